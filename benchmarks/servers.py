"""The servers of a benchmark: as production has them, with every commit on the disk."""

from tests.servers import PostgresServer, RedisServer

# Room for writes without a checkpoint in the middle of a figure; nothing that a crash could lose.
POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "max_connections": "200",
}
# Several contestants keep their only truth here; ours does not need it, and gets the same.
REDIS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}

SAID = {
    "PostgreSQL": ", ".join(f"{name} {value}" for name, value in POSTGRES.items()),
    "Redis": "appendonly yes, appendfsync everysec, no snapshots, noeviction: the same for all",
}


def benchmark_postgres(**options: str) -> PostgresServer:
    """A PostgreSQL that is not started yet; `options` replace ours."""
    return PostgresServer(**(POSTGRES | options))


def benchmark_redis(**options: str) -> RedisServer:
    """A Redis that is not started yet; `options` replace ours."""
    return RedisServer(**(REDIS | options))
