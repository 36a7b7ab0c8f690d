"""The memory and disk space of a pending job: in Redis, in the database and in the workers.

Redis: growth of used_memory. Database: tables and indexes. Workers: growth of their memory (PSS), including beat and
other processes that production needs. Workers are running and warm. For delaytasks, rows are inserted with SQL and the
mirror is rebuilt from them, up to the horizon; other contestants get their jobs by bulk calls.
"""

from collections.abc import Callable
from typing import NamedTuple

from ..plan import Form, Measured, Options
from ..stand import Testbed
from .ourselves import inside, with_settings
from .usage import pss_bytes, wait_until_stable

HOUR_SECONDS = 3600
WEEK_SECONDS = 7 * 86_400
SPREAD_SECONDS = 600  # a million orders are not all due at once
OURS = "delaytasks"
MEBIBYTE = 1024 * 1024
SIZES = {"100k": 100_000, "1m": 1_000_000}
TABLES = """
    SELECT coalesce(sum(pg_table_size(oid)), 0), coalesce(sum(pg_indexes_size(oid)), 0) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"""


class Usage(NamedTuple):
    redis: int
    tables: int
    indexes: int
    workers: int


def measure_usage(testbed: Testbed) -> Usage:
    """Return the usage once it is stable."""
    workers = wait_until_stable(lambda: pss_bytes(testbed.pids()), MEBIBYTE // 32)
    redis = wait_until_stable(lambda: _used_memory(testbed), 4096)
    with testbed.postgres.connect(testbed.database_name) as connection:
        row = connection.execute(TABLES).fetchone()
    assert row is not None
    return Usage(redis, int(row[0]), int(row[1]), workers)


def _used_memory(testbed: Testbed) -> int:
    with testbed.redis.client() as client:
        info = client.info("memory")
    # Exclude buffers of connections and of the log: they vary and do not belong to jobs.
    return info["used_memory"] - info.get("mem_clients_normal", 0) - info.get("mem_aof_buffer", 0)


def form(name: str, size: str, delay: int, only: tuple[str, ...]) -> Form:
    def measure(testbed: Testbed, options: Options) -> Measured:
        count = options.scaled(SIZES[size])
        fill = _fill_ours if testbed.name == OURS else _fill
        # A short interval: each process has swept once before the measurement.
        with with_settings(testbed, **({"SWEEP_SECONDS": 2} if testbed.name == OURS else {})), testbed.workers():
            return per_job(testbed, count, lambda: fill(testbed, count, delay))

    note = f"{SIZES[size]:,} jobs due in {'an hour' if delay == HOUR_SECONDS else 'a week'}; bytes per job in Redis"
    return Form("pending", f"{name}.{size}", "bytes/job", measure, needs="pending", only=only, better="less",
                repeats=1, note=note, databases=("postgres",))  # fmt: skip


def per_job(testbed: Testbed, count: int, fill: Callable[[], None]) -> Measured:
    before = measure_usage(testbed)
    fill()
    # Round to bytes: less than half a byte per job is normal variation of the servers.
    redis, tables, indexes, workers = (
        round((now - then) / count) for now, then in zip(measure_usage(testbed), before, strict=True)
    )
    more = {"database_bytes": tables + indexes, "table_bytes": tables, "index_bytes": indexes}
    return Measured(redis, more | {"worker_bytes": workers, "jobs": count})


def _fill(testbed: Testbed, count: int, delay: int) -> None:
    testbed.do("schedule", how="bulk" if testbed.can("schedule.bulk") else "one", count=count, delay=float(delay))


def _fill_ours(testbed: Testbed, count: int, delay: int) -> None:
    with inside(testbed) as ours:
        ours.do("pending", count=count, first_seconds=delay - SPREAD_SECONDS, last_seconds=delay - 5)
        ours.do("rebuild")


FORMS = [
    form(name, size, delay, () if size == "100k" else (OURS,))
    for size in SIZES
    for name, delay in {"hour": HOUR_SECONDS, "week": WEEK_SECONDS}.items()
]
