"""Benchmarks against other queues in the same run: `make bench` or `python -m benchmarks`."""
