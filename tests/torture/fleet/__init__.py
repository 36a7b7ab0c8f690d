"""Three databases and one fleet of workers: `python -m tests.torture.fleet --help`."""

ALIASES = ("default", "east", "west")
TOPIC = "fleet.close"
TENANT_TOPIC = "tenant.timeout"
# Run slots in each database. Two workers have four processes: a database that does not answer must leave some.
CONCURRENCY = 1
