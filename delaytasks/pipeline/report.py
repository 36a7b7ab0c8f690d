"""What happened, per topic and hour, and what is going to fall due: as Parquet, in TopicStat, and as a page.

Incremental: hours that cannot have changed since the last report are not worked out again. Killed anywhere, the
next run does what was left: the document that says what there is comes last.
"""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import history, hours, page, schemas, sinks, snapshot, sources, steps, telling
from .database import Database
from .hours import HOUR_MS, Look, Wanted
from .lake import Lake

DOCUMENT = "report.json"
ALL_ROWS = 1 << 62  # for a read in one range
COLUMNS = ["id", "topic", "outcome", "attempt", "due_ms", "reserved_ms", "done_ms"]


def run(
    spark: SparkSession, database: Database, lake: Lake, *, ahead_hours: int = 36, html: str = ""
) -> dict[str, Any]:
    """{"page", "hours", "rows", "since", "seconds", "herds"} of a new report.

    ahead_hours   how far what falls due is told
    html          where the page is put as well
    """
    began = time.monotonic()
    with database.alone("report"), snapshot.taken(database) as taken:
        before = lake.document(DOCUMENT)
        looks, settled_ms = hours.looks_of(before), before.get("settled_ms", 0)
        now, folder = hours.look(taken), lake.new_run("report")
        want = hours.wanted(taken, looks, settled_ms)
        months = before.get("months", {}) | write_hours(
            spark, lake, folder, before, events(spark, taken, lake, want), want
        )
        until_ms = taken.now_ms + ahead_hours * HOUR_MS
        # In one part, so that the database may choose the index by which it finds what is due.
        jobs = sources.read(spark, taken, "jobs", ["topic", "state", "due_at", "ended_at"], rows=ALL_ROWS)
        write(steps.due_by_minute(jobs, taken.now_ms, until_ms).coalesce(1), lake, f"{folder}/due")
    rows = sinks.upsert_stats(database, worked_out(read_hours(spark, lake, months), want))
    # Small: in one part each, so that nothing is distributed, which would take longer than the rest.
    told, due = (each.coalesce(1) for each in (read_hours(spark, lake, months), read_due(spark, lake, folder)))
    facts = telling.facts(told, due, now.taken_ms, until_ms)
    text = page.html(facts).encode()
    lake.write(f"{folder}/report.html", text)
    document = {
        "looks": hours.as_document([*looks, now]), "settled_ms": hours.settled(looks, now), "months": months,
        "page": f"{folder}/report.html", "due": f"{folder}/due",
    }  # fmt: skip
    lake.publish(DOCUMENT, document)
    clear(lake, [before, document])
    if html:
        Path(html).write_bytes(text)
    return {
        "page": html or lake.path(document["page"]), "rows": rows, "since": _when(want, now), "herds": len(facts.herds),
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def _when(want: Wanted, now: Look) -> str | None:
    """From which hour on everything was worked out; None: from the beginning."""
    first = min([want.since_ms, *want.before])
    return datetime.fromtimestamp(first / 1000, UTC).isoformat() if first else None


def events(spark: SparkSession, taken: snapshot.Snapshot, lake: Lake, want: Wanted) -> DataFrame:
    """The events of the hours that are wanted, also of jobs that the archive has."""
    found = history.events(spark, taken, lake, COLUMNS, min([want.since_ms, *want.before]))
    return found.where(F.col("id") > want.above_id).where(_is_wanted(steps.hour_ms(), want))


def worked_out(frame: DataFrame, want: Wanted) -> DataFrame:
    return frame.where(_is_wanted(F.unix_millis("hour_at"), want))


def _is_wanted(hour_ms: Any, want: Wanted) -> Any:
    return (hour_ms >= want.since_ms) | hour_ms.isin(*want.before)


def write_hours(
    spark: SparkSession, lake: Lake, folder: str, before: dict[str, Any], happened: DataFrame, want: Wanted
) -> dict[str, str]:
    """Months that changed -> where each now lies whole: what was worked out, and the other hours as they were."""
    counts = steps.counted(happened).repartition("topic", "hour_ms").persist()  # what is made of it moves no row again
    try:
        new = steps.by_hour(counts)
        changed = {hours.month_of(row.hour_ms) for row in counts.select("hour_ms").distinct().collect()}
        old = {month: path for month, path in before.get("months", {}).items() if month in changed}
        kept = read_hours(spark, lake, old).where(~_is_wanted(F.unix_millis("hour_at"), want))
        whole = new.unionByName(kept).withColumn("month", F.date_format("hour_at", "yyyy-MM"))
        whole = whole.repartition("month").sortWithinPartitions("month", "topic", "hour_at")
        write(whole, lake, f"{folder}/hours", "month")
    finally:
        counts.unpersist()
    return {month: f"{folder}/hours/month={month}" for month in sorted(changed)}


def write(frame: DataFrame, lake: Lake, name: str, *by: str) -> None:
    frame.write.partitionBy(*by).parquet(lake.uri(name))


def read_hours(spark: SparkSession, lake: Lake, months: dict[str, str]) -> DataFrame:
    """schemas.HOURS of these months."""
    frames = [spark.read.schema(schemas.HOURS).parquet(lake.uri(path)) for path in months.values()]
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], schemas.HOURS)


def read_due(spark: SparkSession, lake: Lake, folder: str) -> DataFrame:
    return spark.read.schema(schemas.DUE).parquet(lake.uri(f"{folder}/due"))


def clear(lake: Lake, documents: Iterable[dict[str, Any]]) -> None:
    """Remove what runs left that none of the documents names: killed ones, and those whose months were written anew."""
    named = [str(path) for each in documents for path in [*each.get("months", {}).values(), each.get("page", "")]]
    used = {"/".join(path.split("/")[:2]) for path in named}
    for folder in lake.runs("report"):
        if folder not in used:
            lake.remove(folder)
