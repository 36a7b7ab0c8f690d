"""Does every row of the business that should have a promise have exactly one, and was each kept, once, in time?

classes.py says what became of each. The business's table, the jobs and their events are read as of one moment; the
archive is read with them. A run writes into a folder of its own, and the document that names it comes last.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import business, classes, history, snapshot
from .classes import CLASSED, USELESS
from .database import Database
from .lake import Lake
from .rules import CLASSES, Rule, rules_of
from .snapshot import Snapshot

DOCUMENT = "audit.json"
KEPT_RUNS = 3  # that the document names; older ones are removed
SAMPLES = 10  # of each class
MISSING_ROWS = 500_000  # of one file


def run(
    spark: SparkSession, database: Database, lake: Lake, *, file: str, rules: list[dict[str, Any]]
) -> dict[str, Any]:
    """{"rules": [of each: name, topic, rows, jobs, classes, folder, missing], "as_of", "seconds"}.

    file      the rules' file, for messages
    classes   class -> {"count", "must_be_empty", "samples"}
    rows      of the business that should have a promise or have one; jobs: all that they have or had
    missing   a folder for `pipeline load`; empty: there is nothing missing
    refused   a sentence, if there are any where there must be none

    Raises BadRule; nothing is published then.
    """
    began = time.monotonic()
    declared = rules_of(file, rules)
    for rule in declared:
        business.understood(spark, rule)
    lake.document(DOCUMENT)  # one that is refused is refused now, and not when the work is done
    folder = lake.new_run("audit")
    with database.alone("audit") as still:
        with _removed_unless_done(lake, folder), snapshot.taken(database) as taken:
            found = [
                _one(spark, taken, lake, rule, f"{folder}/{number}") for number, rule in enumerate(declared, 1)
            ]  # fmt: skip
            document = {"folder": folder, "as_of": _instant(taken.now_ms), "rules": found}
            lake.settle(folder)
            still()
        _publish(lake, document)
    places = [
        {**each, "folder": _place(lake, each["folder"]), "missing": each["missing"] and _place(lake, each["missing"])}
        for each in found
    ]
    answer = {**document, "rules": places, "seconds": round(time.monotonic() - began, 1)}
    wrong = [sentence for each in found if (sentence := _wrong(each))]
    return answer | ({"refused": " ".join(wrong)} if wrong else {})


@contextmanager
def _removed_unless_done(lake: Lake, folder: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if folder in lake.runs("audit"):
            lake.remove(folder)
        raise


def _publish(lake: Lake, document: dict[str, Any]) -> None:
    """Name the run, forget those before the last few, and remove what no run that is named has written."""
    runs = [*lake.document(DOCUMENT).get("runs", ()), document][-KEPT_RUNS:]
    lake.publish(DOCUMENT, {"runs": runs})
    named = {each["folder"] for each in runs}
    for folder in lake.runs("audit"):
        if folder not in named:
            lake.remove(folder)


def _one(spark: SparkSession, taken: Snapshot, lake: Lake, rule: Rule, folder: str) -> dict[str, Any]:
    """What one rule found, written below the folder."""
    frame = classification(spark, taken, lake, rule)
    try:
        frame.write.partitionBy("class").parquet(lake.uri(f"{folder}/classes"))
    except PySparkException as error:
        raise business.failed(rule, error) from error
    found = spark.read.schema(CLASSED).parquet(lake.uri(f"{folder}/classes"))
    sums = {row["class"]: row for row in found.groupBy("class").agg(
        F.count("*").alias("keys"), F.sum("rows").alias("rows"), F.sum("jobs").alias("jobs")).collect()}  # fmt: skip
    samples = _samples(found, list(sums))
    _refuse_useless(rule, sums, samples)
    missing = ""
    if "missing" in sums:
        missing = f"{folder}/missing"
        files = 1 + sums["missing"].keys // MISSING_ROWS
        classes.missing(found, rule).coalesce(files).write.parquet(lake.uri(missing))
    return {
        "name": rule.title, "topic": rule.topic, "source": rule.source,
        "rows": sum(each.rows for each in sums.values()), "jobs": sum(each.jobs for each in sums.values()),
        "classes": {
            name: {
                "count": sums[name].keys if name in sums else 0, "must_be_empty": name in rule.faults,
                "samples": samples.get(name, []),
            }
            for name in CLASSES
        },
        "folder": f"{folder}/classes", "missing": missing,
    }  # fmt: skip


def _place(lake: Lake, name: str) -> str:
    """As people name it."""
    return lake.path(name) if lake.scheme == "file" else lake.uri(name)


def classification(spark: SparkSession, taken: Snapshot, lake: Lake, rule: Rule) -> DataFrame:
    """CLASSED of every key that the rule's rows and the topic's jobs have. Raises BadRule."""
    rows = classes.expected(business.rows(spark, taken, rule), rule)
    jobs = history.jobs(spark, taken, lake, classes.JOBS, rule.topic)
    events = history.stories(spark, taken, lake, classes.EVENTS, rule.topic)
    keys = classes.by_key(rows, classes.told_by_jobs(jobs), classes.told_by_events(events))
    return classes.classed(keys, rule, taken.now_ms)


def _refuse_useless(rule: Rule, sums: dict[str, Any], samples: dict[str, list[dict[str, Any]]]) -> None:
    for name, (field, problem) in USELESS.items():
        if name in sums:
            rows = f"{sums[name].rows} rows of {rule.source} that should have a promise"
            keys = ", ".join(repr(each["key"]) for each in samples[name] if each["key"] is not None)
            raise rule.bad(field, f"it {problem}: {rows}" + (f", such as {keys}." if keys else "."))


def _samples(found: DataFrame, names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The first keys of each class, with what one looks them up by."""
    each = [found.where(F.col("class") == name).orderBy("key").limit(SAMPLES) for name in names]
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for row in reduce(DataFrame.union, each).collect() if each else ():
        told = {column: _plain(value) for column, value in row.asDict().items()}
        samples[told.pop("class")].append(told)
    return samples


def _plain(value: Any) -> Any:
    return _instant(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value


def _instant(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _wrong(found: dict[str, Any]) -> str:
    """One sentence; empty if all is well."""
    counts = [
        f"{each['count']} {name}" for name, each in found["classes"].items() if each["must_be_empty"] and each["count"]
    ]
    return f"{found['name']}: {', '.join(counts)}." if counts else ""
