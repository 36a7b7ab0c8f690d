"""The cost of an idle system, without due or newly scheduled jobs.

CPU time is that of all processes of the contestant's workers, of its Redis and of PostgreSQL, which no other contestant
uses at the same time. It is measured first, without statement logging. Then the statements in the server's log are
counted for the same duration (log_min_duration_statement = 0); BEGIN and COMMIT count as statements.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..plan import Form, Measured, Options
from ..stand import Testbed
from .usage import cpu_seconds, process_tree

SECONDS = 60
MIN_SECONDS = 5
SETTLE_SECONDS = 5.0  # after the warm-up
LOGGING = {"log_min_duration_statement": "0", "log_line_prefix": "%m [%p] %d "}
STATEMENT = r"\] {} LOG:  duration: [\d.]+ ms  (?:statement|execute [^:]*):"


def measure(testbed: Testbed, options: Options) -> list[Measured]:
    seconds = max(MIN_SECONDS, min(SECONDS, options.scaled(SECONDS)))
    with testbed.workers():
        time.sleep(SETTLE_SECONDS)
        used = cpu_used(testbed, seconds)
        statements = statements_logged(testbed, seconds)
    parts = {name: 100 * spent / seconds for name, spent in used.items()}
    return [
        Measured(sum(parts.values()), parts | {"cpu_seconds_per_hour": sum(used.values()) * 3600 / seconds}, "cpu"),
        Measured(statements * 60 / seconds, {}, "statements", unit="per minute"),
    ]


def cpu_used(testbed: Testbed, seconds: float) -> dict[str, float]:
    """Return the CPU seconds of each part during the next `seconds`."""
    before = _spent(testbed)
    time.sleep(seconds)
    return {name: spent - before[name] for name, spent in _spent(testbed).items()}


def _spent(testbed: Testbed) -> dict[str, float]:
    redis, postgres = testbed.redis.process, testbed.postgres.process
    assert redis is not None
    assert postgres is not None
    parts = {"workers": testbed.pids(), "redis": process_tree(redis.pid), "postgres": process_tree(postgres.pid)}
    return {name: cpu_seconds(pids) for name, pids in parts.items()}


def statements_logged(testbed: Testbed, seconds: float) -> int:
    """Return the number of statements in the contestant's database during the next `seconds`."""
    with logging(testbed):
        start = testbed.postgres.log.stat().st_size
        time.sleep(seconds)
        with testbed.postgres.log.open("rb") as log:
            log.seek(start)
            text = log.read().decode(errors="replace")
    return len(re.findall(STATEMENT.format(re.escape(testbed.database_name)), text))


@contextmanager
def logging(testbed: Testbed) -> Iterator[None]:
    """Log every statement inside the block."""
    with testbed.postgres.connect(autocommit=True) as connection:
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
