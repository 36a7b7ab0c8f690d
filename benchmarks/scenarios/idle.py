"""Nothing is due and nothing is scheduled: what the whole system costs by being there.

The processor time is that of every process of the contestant's workers, of its Redis and of the PostgreSQL that all
share but nobody else uses meanwhile. It is taken first, without statement logging; then the statements are counted in
the server's log for as long (log_min_duration_statement = 0): each of a transaction's BEGIN and COMMIT is one.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..plan import Form, Measured, Options
from ..stand import Stand
from .usage import cpu_seconds, family

SECONDS = 60
LEAST_SECONDS = 5
SETTLE_SECONDS = 5.0  # after the warm-up
LOGGING = {"log_min_duration_statement": "0", "log_line_prefix": "%m [%p] %d "}
STATEMENT = r"\] {} LOG:  duration: [\d.]+ ms  (?:statement|execute [^:]*):"


def measure(stand: Stand, options: Options) -> list[Measured]:
    seconds = max(LEAST_SECONDS, min(SECONDS, options.scaled(SECONDS)))
    with stand.workers():
        time.sleep(SETTLE_SECONDS)
        used = cpu_used(stand, seconds)
        statements = statements_logged(stand, seconds)
    parts = {name: 100 * spent / seconds for name, spent in used.items()}
    return [
        Measured(sum(parts.values()), parts | {"cpu_seconds_per_hour": sum(used.values()) * 3600 / seconds}, "cpu"),
        Measured(statements * 60 / seconds, {}, "statements", unit="per minute"),
    ]


def cpu_used(stand: Stand, seconds: float) -> dict[str, float]:
    """Processor seconds of each part during the next `seconds`."""
    before = _spent(stand)
    time.sleep(seconds)
    return {name: spent - before[name] for name, spent in _spent(stand).items()}


def _spent(stand: Stand) -> dict[str, float]:
    redis, postgres = stand.redis.process, stand.postgres.process
    assert redis is not None
    assert postgres is not None
    parts = {"workers": stand.pids(), "redis": family(redis.pid), "postgres": family(postgres.pid)}
    return {name: cpu_seconds(pids) for name, pids in parts.items()}


def statements_logged(stand: Stand, seconds: float) -> int:
    """How many statements the contestant's database gets during the next `seconds`."""
    with logging(stand):
        start = stand.postgres.log.stat().st_size
        time.sleep(seconds)
        with stand.postgres.log.open("rb") as log:
            log.seek(start)
            text = log.read().decode(errors="replace")
    return len(re.findall(STATEMENT.format(re.escape(stand.database_name)), text))


@contextmanager
def logging(stand: Stand) -> Iterator[None]:
    """Inside the block the server writes every statement into its log."""
    with stand.postgres.connect(autocommit=True) as connection:
        for name, value in LOGGING.items():
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            for name in LOGGING:
                connection.execute(f"ALTER SYSTEM RESET {name}")
            connection.execute("SELECT pg_reload_conf()")


FORMS = [
    Form("idle", "cpu", "% of a core", measure, better="less", repeats=1, databases=("postgres",),
         note="workers, scheduler, Redis and PostgreSQL together, nothing due")
]  # fmt: skip
