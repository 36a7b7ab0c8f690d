"""The measured questions, in this order: each with the pipeline's command, some with PostgreSQL and DuckDB."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.results import Result

from . import agreeing, rows
from .beside import ENGINES
from .measuring import Cost, Failed
from .place import BenchmarkDatabase

OURS = "delaytasks"
NEW_EVENTS = 10_000  # between two reports
RULE = f"""[[rule]]
name = "orders"
topic = "{rows.TOPIC}"
table = "bench_order"
columns = {{ id = "bigint", payment = "string", status = "string", placed_at = "timestamp" }}
key = "concat('order:', id)"
since = "placed_at"
delay_seconds = 1800
when = "payment = 'later'"
holds = "status = 'open'"
"""
CARRY = 'carry = ["payment", "status"]\n'


@dataclass(frozen=True)
class Measurement:
    """The cost of a question for one contestant. `rows` is the number of rows it reads."""

    form: str
    contestant: str
    cost: Cost
    rows: int

    def add_to(self, result: Result, question: str) -> None:
        figure = result.figure(question, self.form, self.contestant, "s", "less")
        figure.add(self.cost.seconds, {
            "rows_per_second": self.rows / self.cost.seconds, "computing_s": self.cost.computing,
            "peak_MiB": self.cost.peak_mib,
        })  # fmt: skip


def report(database: BenchmarkDatabase) -> Iterator[Measurement]:
    """A full report, one after new events, and the full report of the other engines, which must agree."""
    events = count(database, "delaytasks_jobevent")
    cost, _ = database.run_command("report")
    yield Measurement(size(database), OURS, cost, events)
    database.sql(f"""
        INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, done_ms, worker, actor, error, reason)
        SELECT id, 'rescheduled', 0, ms(due_at), ms(clock_timestamp()), '', 'anna', '', ''
        FROM delaytasks_job WHERE ended_at IS NULL LIMIT {NEW_EVENTS}""")
    cost, _ = database.run_command("report")
    yield Measurement(f"{size(database)}, again", OURS, cost, events)
    for engine in ENGINES:
        out = database.lake.with_suffix(f".{engine}.parquet")
        yield Measurement(size(database), engine, database.run_engine(engine, "report", out), events)
        agreeing.reports(database.lake / "default", out)


def audit(database: BenchmarkDatabase) -> Iterator[Measurement]:
    """An audit of orders against jobs, and one by two columns. Planted faults make the command exit with 1."""
    file = database.lake.with_suffix(".toml")
    file.write_text(RULE)
    row_count = sum(count(database, table) for table in ("delaytasks_job", "delaytasks_jobevent", "bench_order"))
    cost, answer = database.run_command("audit", "--rule", str(file), codes=(1,))
    yield Measurement(size(database), OURS, cost, row_count)
    now_ms = str(round(datetime.fromisoformat(answer["as_of"]).timestamp() * 1000))
    for engine in ENGINES:
        out = database.lake.with_suffix(f".{engine}.parquet")
        yield Measurement(size(database), engine, database.run_engine(engine, "audit", out, now_ms), row_count)
        agreeing.audits(answer, out)
    file.write_text(RULE + CARRY)
    cost, _ = database.run_command("audit", "--rule", str(file), codes=(1,))
    yield Measurement(f"{size(database)}, by two columns", OURS, cost, row_count)


def archive(database: BenchmarkDatabase) -> Iterator[Measurement]:
    """Archive the older half: first written and verified, then pruned."""
    days = ("--older-than-days", str(rows.OLD_DAYS))
    cost, answer = database.run_command("archive", *days, "--keep")
    moved = answer["jobs"] + answer["events"]
    form = f"{answer['jobs'] / 1_000_000:.2g} M of {size(database)}"
    yield Measurement(f"{form}, written", OURS, cost, moved)
    cost, answer = database.run_command("archive", *days)
    yield Measurement(f"{form}, pruned", OURS, cost, moved)


def load(database: BenchmarkDatabase) -> Iterator[Measurement]:
    """Load open orders of another system. Raises measuring.Failed unless exactly the invalid rows are rejected."""
    folder = database.lake.with_suffix(".csvs")
    exported = rows.export(folder, round(database.millions * 1_000_000))
    mapping = ("--topic", rows.TOPIC, "--key", "order", "--due", "closes_at", "--body", "customer=customer")
    cost, answer = database.run_command("load", str(folder), *mapping)
    counts = answer["read"], answer["inserted"], sum(answer["rejected"].values())
    bad = -(-exported // rows.BAD)
    if counts != (exported, exported - bad, bad):
        raise Failed(f"Of {exported} rows, {bad} of them invalid: read, loaded and rejected were {counts}.")
    yield Measurement(f"{exported / 1_000_000:.2g} M rows to {size(database)}", OURS, cost, exported)
    shutil.rmtree(folder)


QUESTIONS: dict[str, Callable[[BenchmarkDatabase], Iterator[Measurement]]] = {
    "report": report, "audit": audit, "archive": archive, "load": load,
}  # fmt: skip


def size(database: BenchmarkDatabase) -> str:
    return f"{database.millions:g} M jobs"


def count(database: BenchmarkDatabase, table: str) -> int:
    return int(database.sql(f"SELECT count(*) FROM {table}")[0])


def remove_output(database: BenchmarkDatabase) -> None:
    """Remove the output of the other engines."""
    for path in database.lake.parent.glob(f"{database.lake.name}.*"):
        with suppress(OSError):
            Path(path).unlink()
