"""How fast it is, measured beside others in the same run: `make bench`, or `python -m benchmarks`."""
