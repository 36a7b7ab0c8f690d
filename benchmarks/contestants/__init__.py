"""Who takes part in the benchmark: each NAME_driver.py is a program of its own, spoken to as lines.py describes."""
