"""A PostgreSQL primary is killed under load and its standby promoted: `python -m tests.torture.failover --help`."""
