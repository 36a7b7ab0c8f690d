"""What happened, per topic and hour, and what is going to fall due: as Parquet, in TopicStat, and as a page.

Incremental: hours that cannot have changed since the last report are not worked out again. Killed anywhere, the
next run does what was left: the document that says what there is comes last.
"""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import comparing, history, hours, manifest, months, page, schemas, sinks, snapshot, sources, steps, telling
from .batches import ends
from .database import Database
from .hours import HOUR_MS, Look, Wanted
from .lake import Lake
from .months import Months

DOCUMENT = "report.json"
ALL_ROWS = 1 << 62  # for a read in one range
COLUMNS = ["id", "topic", "outcome", "attempt", "due_ms", "reserved_ms", "done_ms"]


def run(
    spark: SparkSession, database: Database, lake: Lake, *, ahead_hours: int = 36, html: str = ""
) -> dict[str, Any]:
    """{"page", "rows", "since", "seconds", "herds"} of a new report.

    ahead_hours   how far what falls due is told
    html          where the page is put as well
    """
    began = time.monotonic()
    with database.alone("report") as still:
        answer = _made(spark, database, lake, ahead_hours, html, still)
    return answer | {"seconds": round(time.monotonic() - began, 1)}


def _made(
    spark: SparkSession, database: Database, lake: Lake, ahead_hours: int, html: str, still: Callable[[], None]
) -> dict[str, Any]:
    with snapshot.taken(database) as taken:
        before = lake.document(DOCUMENT)
        looks, settled_ms = hours.looks_of(before), before.get("settled_ms", 0)
        now, folder = hours.look(taken), lake.new_run("report")
        want = hours.wanted(taken, looks, settled_ms, archived_late(spark, taken, lake, looks, settled_ms))
        new = write_hours(spark, lake, folder, before, events(spark, taken, lake, want), want)
        until_ms = taken.now_ms + ahead_hours * HOUR_MS
        # In one part, so that the database may choose the index by which it finds what is due.
        jobs = sources.read(spark, taken, "jobs", ["topic", "state", "due_at", "ended_at"], rows=ALL_ROWS)
        write(steps.due_by_minute(jobs, taken.now_ms, until_ms).coalesce(1), lake, f"{folder}/due")
    document = {
        "looks": hours.as_document([*looks, now]), "settled_ms": hours.settled(looks, now),
        **months.told(lake, before, new), "page": f"{folder}/report.html", "due": f"{folder}/due",
    }  # fmt: skip
    worked_out = months.read(spark, lake, document, months.changed(document, want))
    still()  # or another report may have begun, and would be told an older state of the hours than its own
    rows = sinks.upsert_stats(database, worked_out.where(_is_wanted(F.unix_millis("hour_at"), want)))
    # Small: in one part each, so that nothing is distributed, which would take longer than the rest.
    last = months.read(spark, lake, document, months.since(document, telling.first_ms(now.taken_ms))).coalesce(1)
    facts = telling.facts(last, read_due(spark, lake, folder).coalesce(1), now.taken_ms, until_ms)
    text = page.html(facts).encode()
    lake.write(f"{folder}/report.html", text)
    lake.settle(folder)
    still()
    lake.publish(DOCUMENT, document)
    clear(lake, [before, document])
    if html:
        Path(html).write_bytes(text)
    return {"page": html or lake.path(document["page"]), "rows": rows, "since": _when(want), "herds": len(facts.herds)}


def _when(want: Wanted) -> str | None:
    """From which hour on everything was worked out; None: from the beginning."""
    first = min([want.since_ms, *want.before])
    return datetime.fromtimestamp(first / 1000, UTC).isoformat() if first else None


def events(spark: SparkSession, taken: snapshot.Snapshot, lake: Lake, want: Wanted) -> DataFrame:
    """The events of the hours that are wanted, also of jobs that the archive has."""
    found = history.events(spark, taken, lake, COLUMNS, min([want.since_ms, *want.before]))
    return found.where(F.col("id") > want.above_id).where(_is_wanted(steps.hour_ms(), want))


def archived_late(
    spark: SparkSession, taken: snapshot.Snapshot, lake: Lake, looks: list[Look], settled_ms: int
) -> set[int]:
    """Hours before settled_ms of events that the archive took away before any report saw them."""
    if not looks:
        return set()
    seen, since_ms = hours.seen(taken, looks, settled_ms), looks[-1].taken_ms - history.DOUBT_MS
    found = set()
    for run in manifest.runs(lake):
        if run.published_ms > since_ms and ends(lake, run)[1] > seen:
            _, events = comparing.written(spark, lake, run.folder)
            late = events.where((F.col("id") > seen) & (F.col("done_ms") < settled_ms))
            found |= {row.hour_ms for row in late.select(steps.hour_ms().alias("hour_ms")).distinct().collect()}
    return found


def _is_wanted(hour_ms: Any, want: Wanted) -> Any:
    return (hour_ms >= want.since_ms) | hour_ms.isin(*want.before)


def write_hours(
    spark: SparkSession, lake: Lake, folder: str, before: dict[str, Any], happened: DataFrame, want: Wanted
) -> Months:
    """Months that changed -> where each now lies whole: what was worked out, and the other hours as they were."""
    counts = steps.counted(happened).repartition("topic", "hour_ms").persist()  # what is made of it moves no row again
    try:
        new = steps.by_hour(counts)
        changed = {hours.month_of(row.hour_ms) for row in counts.select("hour_ms").distinct().collect()}
        old = {month: path for month, path in before.get("months", {}).items() if month in changed}
        kept = months.read(spark, lake, before, old).where(~_is_wanted(F.unix_millis("hour_at"), want))
        whole = new.unionByName(kept).withColumn("month", F.date_format("hour_at", "yyyy-MM"))
        whole = whole.repartition("month").sortWithinPartitions("month", "topic", "hour_at")
        write(whole, lake, f"{folder}/hours", "month")
    finally:
        counts.unpersist()
    return {month: f"{folder}/hours/month={month}" for month in sorted(changed)}


def write(frame: DataFrame, lake: Lake, name: str, *by: str) -> None:
    frame.write.partitionBy(*by).parquet(lake.uri(name))


def read_due(spark: SparkSession, lake: Lake, folder: str) -> DataFrame:
    return spark.read.schema(schemas.DUE).parquet(lake.uri(f"{folder}/due"))


def clear(lake: Lake, documents: Iterable[dict[str, Any]]) -> None:
    """Remove what runs left that none of the documents names: killed ones, and those whose months were written anew."""
    named = [str(path) for each in documents for path in [*each.get("months", {}).values(), each.get("page", "")]]
    used = {"/".join(path.split("/")[:2]) for path in named}
    for folder in lake.runs("report"):
        if folder not in used:
            lake.remove(folder)
