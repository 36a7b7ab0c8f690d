"""The servers of a benchmark, configured as in production with durable commits."""

from tests.support.servers import PostgresServer, RedisServer

# Large enough to avoid a checkpoint during a measurement; fully durable.
POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "max_connections": "200",
}
# Several contestants store jobs only in Redis; delaytasks does not, but gets the same settings.
REDIS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}

DESCRIPTIONS = {
    "PostgreSQL": ", ".join(f"{name} {value}" for name, value in POSTGRES.items()),
    "Redis": "appendonly yes, appendfsync everysec, no snapshots, noeviction: the same for all",
}


def benchmark_postgres(**options: str) -> PostgresServer:
    """Return a PostgreSQL that is not started yet; `options` override POSTGRES."""
    return PostgresServer(**(POSTGRES | options))


def benchmark_redis(**options: str) -> RedisServer:
    """Return a Redis that is not started yet; `options` override REDIS."""
    return RedisServer(**(REDIS | options))
