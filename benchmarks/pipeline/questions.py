"""What is asked of each size, in this order: by the project's own command, and of PostgreSQL and DuckDB beside it."""

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
from .place import Place

OURS = "delaytasks"
AFRESH = 10_000  # events between two reports
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


@dataclass(frozen=True)
class Asked:
    """What one of them took for a question. rows: that it had to look at."""

    form: str
    contestant: str
    cost: Cost
    rows: int

    def note(self, question: str, result: Result) -> None:
        figure = result.figure(question, self.form, self.contestant, "s", "less")
        figure.add(self.cost.seconds, {
            "rows_per_second": self.rows / self.cost.seconds, "computing_s": self.cost.computing,
            "peak_MiB": self.cost.peak_mib,
        })  # fmt: skip


def report(place: Place) -> Iterator[Asked]:
    """The first, and after some new events the next; then the whole of it by the others, and whether they agree."""
    events = count(place, "delaytasks_jobevent")
    cost, _ = place.asked("report")
    yield Asked(size(place), OURS, cost, events)
    place.sql(f"""
        INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, done_ms, worker, actor, error, reason)
        SELECT id, 'rescheduled', 0, ms(due_at), ms(clock_timestamp()), '', 'anna', '', ''
        FROM delaytasks_job WHERE ended_at IS NULL LIMIT {AFRESH}""")
    cost, _ = place.asked("report")
    yield Asked(f"{size(place)}, again", OURS, cost, events)
    for engine in ENGINES:
        out = place.lake.with_suffix(f".{engine}.parquet")
        yield Asked(size(place), engine, place.beside(engine, "report", out), events)
        agreeing.reports(place.lake / "default", out)


def audit(place: Place) -> Iterator[Asked]:
    """Orders against promises. Planted faults make the command end with 1."""
    file = place.lake.with_suffix(".toml")
    file.write_text(RULE)
    looked_at = sum(count(place, table) for table in ("delaytasks_job", "delaytasks_jobevent", "bench_order"))
    cost, answer = place.asked("audit", "--rule", str(file), codes=(1,))
    yield Asked(size(place), OURS, cost, looked_at)
    now_ms = str(round(datetime.fromisoformat(answer["as_of"]).timestamp() * 1000))
    for engine in ENGINES:
        out = place.lake.with_suffix(f".{engine}.parquet")
        yield Asked(size(place), engine, place.beside(engine, "audit", out, now_ms), looked_at)
        agreeing.audits(answer, out)


def archive(place: Place) -> Iterator[Asked]:
    """What ended in the older half: first written and compared, then pruned."""
    days = ("--older-than-days", str(rows.OLD_DAYS))
    cost, answer = place.asked("archive", *days, "--keep")
    moved = answer["jobs"] + answer["events"]
    form = f"{answer['jobs'] / 1_000_000:.2g} M of {size(place)}"
    yield Asked(f"{form}, written", OURS, cost, moved)
    cost, answer = place.asked("archive", *days)
    yield Asked(f"{form}, pruned", OURS, cost, moved)


def load(place: Place) -> Iterator[Asked]:
    """Open orders of another system, due in a month. Raises measuring.Failed where other rows than the bad are left."""
    folder = place.lake.with_suffix(".csvs")
    exported = rows.export(folder, round(place.millions * 1_000_000))
    mapping = ("--topic", rows.TOPIC, "--key", "order", "--due", "closes_at", "--body", "customer=customer")
    cost, answer = place.asked("load", str(folder), *mapping)
    found = answer["read"], answer["inserted"], sum(answer["rejected"].values())
    bad = -(-exported // rows.BAD)
    if found != (exported, exported - bad, bad):
        raise Failed(f"Of {exported} rows, {bad} of them bad: read, loaded and rejected were {found}.")
    yield Asked(f"{exported / 1_000_000:.2g} M rows to {size(place)}", OURS, cost, exported)
    shutil.rmtree(folder)


QUESTIONS: dict[str, Callable[[Place], Iterator[Asked]]] = {
    "report": report, "audit": audit, "archive": archive, "load": load,
}  # fmt: skip


def size(place: Place) -> str:
    return f"{place.millions:g} M jobs"


def count(place: Place, table: str) -> int:
    return int(place.sql(f"SELECT count(*) FROM {table}")[0])


def forget(place: Place) -> None:
    """Remove what the others wrote."""
    for path in place.lake.parent.glob(f"{place.lake.name}.*"):
        with suppress(OSError):
            Path(path).unlink()
