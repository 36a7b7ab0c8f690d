"""The contestants of the benchmark. Each NAME_driver.py is a program with the protocol of lines.py."""
