"""Report: compute statistics per topic and hour, and count the jobs that will fall due.

The results are written to Delta tables, to the database table TopicStat and to an HTML page. A report recomputes only
the hours that may have changed since the last report. It publishes its document, report.json, last; so if a run is
killed, the next run recomputes the same hours.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import compute, parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ...clock import from_ms
from .. import schemas
from ..page import facts as page_facts
from ..page import page
from ..sinks import topic_stats
from ..sources import due_jobs
from ..sources import snapshot as snapshots
from ..sources.database import Database
from ..sources.snapshot import Snapshot
from ..tables import archives, capacity, delta, history, hours, optimization
from ..tables.delta import Table
from ..tables.lake import Lake, LakeError
from ..transforms import lateness
from . import stale_hours
from .stale_hours import HOUR_MS, StaleHours

DOCUMENT = "report.json"
FORMAT = 2  # version of the document; 1 named folders of months instead of a table
COLUMNS = ["topic", "outcome", "attempt", "due_ms", "reserved_ms", "done_ms"]


def run(
    spark: SparkSession, database: Database, lake: Lake, *, ahead_hours: int = 36, html: str = ""
) -> dict[str, Any]:
    """Make a report. Return {"page", "rows", "since", "last_at", "seconds", "herds", "run_times", "capacity"}.

    ahead_hours   show the jobs that fall due within this number of hours
    html          path of an additional copy of the page; "": no copy

    Members of the answer:

    page          path of the page: the copy if there is one
    rows          number of rows written to TopicStat
    since         first recomputed hour as ISO 8601, or None if all hours were recomputed
    last_at       time of the report before, or None
    herds         number of minutes in which unusually many jobs fall due; see spikes.py
    run_times     topic -> {"mean_ms", "p95_ms"} of its attempts in the last two weeks, for the topics of the page
    capacity      each hour in which jobs fall due: {"hour_at", "jobs", "slots", "minutes", "unknown"}; see facts.Need
    """
    began = time.monotonic()
    with database.lock("report") as check_lock:
        answer = _make_report(spark, database, lake, ahead_hours, html, check_lock)
    return answer | {"seconds": round(time.monotonic() - began, 1)}


def _make_report(
    spark: SparkSession, database: Database, lake: Lake, ahead_hours: int, html: str, check_lock: Callable[[], None]
) -> dict[str, Any]:
    with snapshots.take(database) as snapshot:
        computed = _compute(spark, snapshot, lake, ahead_hours, check_lock)
    check_lock()  # if the lock was lost, a newer report may have written newer statistics
    rows = _write_stats(database, lake, computed)
    last_hours = hours.batches(lake, hours.since(computed.table, page_facts.first_ms(computed.taken_ms)))
    facts = page_facts.facts(last_hours, computed.due, computed.taken_ms, computed.until_ms)
    text = page.html(facts).encode()
    lake.write(computed.document["page"], text)
    lake.sync(computed.folder)
    check_lock()
    needs = capacity.append(computed.needs, facts.needs, computed.taken_ms)
    lake.publish(DOCUMENT, computed.document)
    clear(lake, [computed.before, computed.document])
    computed.table.vacuum()
    optimization.merge_small_files(needs)
    if html:
        Path(html).write_bytes(text)
    return _answer(html or lake.path(computed.document["page"]), rows, computed, facts)


@dataclass(frozen=True)
class _Computed:
    """What a report computes from one snapshot of the database.

    taken_ms   time of the snapshot, in ms since 1970
    until_ms   end of the last hour of `due`
    due        number of jobs that fall due in each minute
    table      version of the table of hours with the stale hours recomputed
    needs      table of earlier needs of capacity
    before     the last report's document
    document   this report's document
    """

    folder: str
    taken_ms: int
    until_ms: int
    due: pyarrow.Table
    stale: StaleHours
    table: Table
    needs: Table
    before: dict[str, Any]
    document: dict[str, Any]


def _compute(
    spark: SparkSession, snapshot: Snapshot, lake: Lake, ahead_hours: int, check_lock: Callable[[], None]
) -> _Computed:
    """Recompute the stale hours and count the jobs that will fall due."""
    before = load(lake)
    earlier, settled_ms = stale_hours.from_document(before), before.get("settled_ms", 0)
    now, folder = stale_hours.observe(snapshot), lake.new_run("report")
    archive = archives.load(lake)
    archive_run, is_same = archive.events.run, archive.id == before.get("archive_id", "")
    read_run = before.get("archive_run", -1) if is_same else -1
    archived: set[int] = set()
    if earlier:
        seen_id = stale_hours.seen_id(snapshot, earlier, settled_ms)
        archived = stale_archived_hours(spark, lake, read_run, seen_id, settled_ms)
    stale = stale_hours.find_stale_hours(snapshot, earlier, settled_ms, archived)
    table, needs = hours.open_table(lake, before.get("hours_run", 0)), capacity.open_table(lake)
    stale_events = events(spark, snapshot, lake, stale)
    table = write_hours(spark, table, stale_events, stale, everything=not before, check_lock=check_lock)
    # Up to the end of an hour, so that the capacity of the last hour counts all of its jobs.
    until_ms = -(-(snapshot.now_ms + ahead_hours * HOUR_MS) // HOUR_MS) * HOUR_MS
    due = due_jobs.count_by_minute(snapshot, until_ms)
    write_due(lake, folder, due)
    document = {
        "version": FORMAT, "looks": stale_hours.to_document([*earlier, now]),
        "settled_ms": stale_hours.settled_before(earlier, now), "page": f"{folder}/report.html",
        "due": f"{folder}/due", "archive_id": archive.id, "archive_run": archive_run, "hours_run": table.run,
    }  # fmt: skip
    return _Computed(folder, now.taken_ms, until_ms, due, stale, table, needs, before, document)


def _write_stats(database: Database, lake: Lake, computed: _Computed) -> int:
    """Write the recomputed hours to TopicStat. Return the number of rows."""
    changed = hours.batches(lake, hours.changed(computed.table, computed.stale), schemas.TOPIC_STATS.names)
    return topic_stats.upsert_stats(database, (_stale_rows(each, computed.stale) for each in changed))


def _answer(path: str, rows: int, computed: _Computed, facts: page_facts.Facts) -> dict[str, Any]:
    earlier = stale_hours.from_document(computed.before)
    return {
        "page": path,
        "rows": rows,
        "since": _since(computed.stale),
        "last_at": from_ms(earlier[-1].taken_ms).isoformat() if earlier else None,
        "herds": len(facts.herds),
        "run_times": {
            each.name: {"mean_ms": round(each.run_mean_ms), "p95_ms": each.run_p95_ms}
            for each in facts.topics if each.run_mean_ms is not None
        },
        "capacity": [
            {"hour_at": from_ms(each.hour_ms).isoformat(), "jobs": each.jobs, "slots": each.slots,
             "minutes": each.minutes, "unknown": each.unknown}
            for each in facts.needs
        ],
    }  # fmt: skip


def load(lake: Lake) -> dict[str, Any]:
    """Return the document of the last report; {} if there is none. Raises LakeError if an earlier version wrote it."""
    document = lake.document(DOCUMENT, FORMAT)
    if document and document["version"] < FORMAT:
        raise LakeError(
            f"{lake.path(DOCUMENT)} was written by an earlier delaytasks, which did not use Delta tables. Run "
            "`manage.py delaytasks pipeline convert` once; or remove the file: the next report recomputes all hours."
        )
    return document


def _since(stale: StaleHours) -> str | None:
    """Return the first recomputed hour as ISO 8601, or None if all hours were recomputed."""
    first = min([stale.since_ms, *stale.earlier_hours])
    return from_ms(first).isoformat() if first else None


def events(spark: SparkSession, snapshot: Snapshot, lake: Lake, stale: StaleHours) -> DataFrame:
    """Return the events of the stale hours, including those of archived jobs."""
    names = ["id", *COLUMNS] if stale.above_id else COLUMNS  # each column costs time
    frame = history.events(spark, snapshot, lake, names, min([stale.since_ms, *stale.earlier_hours]))
    unseen = frame.where(F.col("id") > stale.above_id) if stale.above_id else frame
    return unseen.where(_is_stale(lateness.hour_ms(), stale))


def stale_archived_hours(spark: SparkSession, lake: Lake, read_run: int, seen_id: int, settled_ms: int) -> set[int]:
    """Return the hours before settled_ms with archived events that the last report may not have read.

    read_run   number of the newest archive run that the last report read; -1: none
    seen_id    id up to which the last report has read every event
    """
    files = [each for each in archives.load(lake).events.run_files(read_run + 1) if each.may_contain("id", seen_id + 1)]
    if not files:
        return set()
    events = delta.read(spark, lake, files, schemas.ARCHIVED_EVENTS)
    new = F.coalesce(delta.RUN, F.lit(0)) > read_run
    late = events.where(new & (F.col("id") > seen_id) & (F.col("done_ms") < settled_ms))
    return {row.hour_ms for row in late.select(lateness.hour_ms().alias("hour_ms")).distinct().collect()}


def _is_stale(hour_ms: Any, stale: StaleHours) -> Any:
    return (hour_ms >= stale.since_ms) | hour_ms.isin(*stale.earlier_hours)


def _stale_rows(hours: pyarrow.Table, stale: StaleHours) -> pyarrow.Table:
    ms = hours["hour_at"].cast(pyarrow.timestamp("ms", "UTC")).cast(pyarrow.int64())
    earlier = compute.is_in(ms, pyarrow.array(stale.earlier_hours, pyarrow.int64()))
    return hours.filter(compute.or_(compute.greater_equal(ms, stale.since_ms), earlier))


def write_hours(
    spark: SparkSession, table: Table, stale_events: DataFrame, stale: StaleHours, everything: bool,
    check_lock: Callable[[], None],
) -> Table:  # fmt: skip
    """Rewrite the months that have stale hours. Return the table's new version.

    stale_events   events of the stale hours, from which these are computed; the months' other hours are copied
    everything     replace the whole table without reading it, because its files may be damaged
    """
    replaced = table.files if everything else hours.changed(table, stale)
    kept = hours.read(spark, table.lake, [] if everything else replaced)
    new = lateness.by_hour(lateness.count_hours(stale_events))
    both = new.unionByName(kept.where(~_is_stale(F.unix_millis("hour_at"), stale)))
    return hours.replace(table, both, replaced, check_lock, everything=everything)


def write_due(lake: Lake, folder: str, due: pyarrow.Table) -> None:
    text = pyarrow.BufferOutputStream()
    parquet.write_table(due, text, compression="zstd")
    lake.write(f"{folder}/due/part-0.parquet", text.getvalue().to_pybytes())


def clear(lake: Lake, documents: Iterable[dict[str, Any]]) -> None:
    """Remove the folders of killed runs and of older reports: those that none of these documents names."""
    used = {"/".join(str(each["page"]).split("/")[:2]) for each in documents if each}
    for folder in lake.runs("report"):
        if folder not in used and folder not in (hours.NAME, capacity.NAME):
            lake.remove(folder)
