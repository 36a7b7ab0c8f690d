"""Many jobs that wait: what each of them takes up in Redis, in the database and in the workers.

Redis: the growth of used_memory. Database: tables and indexes. Workers: the growth of their memory (PSS), beat and
whatever else production needs included. Workers run meanwhile, and have run jobs before. Ours get their rows by SQL
and the mirror from the product's own rebuild, which enters what falls due within the horizon; the others are given
their jobs one bulk call after the other.
"""

from collections.abc import Callable
from typing import NamedTuple

from ..plan import Form, Measured, Options
from ..stand import Stand
from .ourselves import inside, with_settings
from .usage import pss_bytes, settled

HOUR_SECONDS = 3600
WEEK_SECONDS = 7 * 86_400
SPREAD_SECONDS = 600  # all due at once is not what a million orders are
OURS = "delaytasks"
MEBIBYTE = 1024 * 1024
SIZES = {"100k": 100_000, "1m": 1_000_000}
TABLES = """
    SELECT coalesce(sum(pg_table_size(oid)), 0), coalesce(sum(pg_indexes_size(oid)), 0) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"""


class Weight(NamedTuple):
    redis: int
    tables: int
    indexes: int
    workers: int


def weigh(stand: Stand) -> Weight:
    """What everything takes up, once it has come to rest."""
    workers = settled(lambda: pss_bytes(stand.pids()), MEBIBYTE // 32)
    redis = settled(lambda: _used_memory(stand), 4096)
    with stand.postgres.connect(stand.database_name) as connection:
        row = connection.execute(TABLES).fetchone()
    assert row is not None
    return Weight(redis, int(row[0]), int(row[1]), workers)


def _used_memory(stand: Stand) -> int:
    with stand.redis.client() as client:
        found = client.info("memory")
    # The buffers of its connections and of its log come and go: they are not what a job takes up.
    return found["used_memory"] - found.get("mem_clients_normal", 0) - found.get("mem_aof_buffer", 0)


def form(name: str, size: str, delay: int, only: tuple[str, ...]) -> Form:
    def measure(stand: Stand, options: Options) -> Measured:
        count = options.scaled(SIZES[size])
        fill = _fill_ours if stand.name == OURS else _fill
        # Each process has swept once before it is weighed.
        with with_settings(stand, **({"SWEEP_SECONDS": 2} if stand.name == OURS else {})), stand.workers():
            return per_job(stand, count, lambda: fill(stand, count, delay))

    note = f"{SIZES[size]:,} jobs due in {'an hour' if delay == HOUR_SECONDS else 'a week'}; bytes per job in Redis"
    return Form("pending", f"{name}.{size}", "bytes/job", measure, needs="pending", only=only, better="less",
                repeats=1, note=note, databases=("postgres",))  # fmt: skip


def per_job(stand: Stand, count: int, fill: Callable[[], None]) -> Measured:
    before = weigh(stand)
    fill()
    # Whole bytes: what is less than half a byte for each of so many is the servers' own coming and going.
    redis, tables, indexes, workers = (
        round((now - then) / count) for now, then in zip(weigh(stand), before, strict=True)
    )
    more = {"database_bytes": tables + indexes, "table_bytes": tables, "index_bytes": indexes}
    return Measured(redis, more | {"worker_bytes": workers, "jobs": count})


def _fill(stand: Stand, count: int, delay: int) -> None:
    stand.do("schedule", how="bulk" if stand.can("schedule.bulk") else "one", count=count, delay=float(delay))


def _fill_ours(stand: Stand, count: int, delay: int) -> None:
    with inside(stand) as ours:
        ours.do("pending", count=count, first_seconds=delay - SPREAD_SECONDS, last_seconds=delay - 5)
        ours.do("rebuild")


FORMS = [
    form(name, size, delay, () if size == "100k" else (OURS,))
    for size in SIZES
    for name, delay in {"hour": HOUR_SECONDS, "week": WEEK_SECONDS}.items()
]
