"""Audit: check that each business row that requires a job has exactly one job, which ran once and in time.

transforms/promises.py defines the classes into which an audit sorts the jobs' keys. The business table, the jobs and
their events are read from one database snapshot; archived jobs are read from the lake. A run writes its results into a
folder of its own, then adds its figures to the Delta table audit/dimensions, and last publishes audit.json, which
names the folder.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ...clock import rfc3339_of
from ..page import audit_page
from ..rules import business
from ..rules.rules import CLASSES, Rule, rules_of
from ..sources import exports
from ..sources import snapshot as snapshots
from ..sources.database import Database
from ..sources.snapshot import Snapshot
from ..tables import dimensions as dimension_table
from ..tables import history, optimization, row_counts
from ..tables.lake import Lake, for_reading
from ..transforms import classified_keys, dimensions, promises
from ..transforms.classified_keys import ClassTotal
from ..transforms.promises import CLASSIFIED, INVALID

DOCUMENT, PAGE = "audit.json", "audit.html"
KEPT_RUNS = 3  # number of runs that the document names; older runs are removed
SAMPLES = 10  # keys of a class that the answer shows
FIGURES = ("total", "trend", "weeks", "dimensions")  # members of a rule's answer that audit.json leaves out
JOB_TABLE = "delaytasks_job"
NOTHING = "Nothing was published."
MISSING_ROWS = 500_000  # missing jobs per file
WRITE_OPTIONS = {"parquet.enable.dictionary": "false"}  # most columns have another value in each row
SPARK_OPTIONS = {
    # A task keeps all columns of all its keys in memory. With the default, 64m, an audit of 3 million jobs needs 1 GB
    # more.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # A task writes into the folders of all classes at once. Otherwise Spark would sort the rows by class.
    "spark.sql.maxConcurrentOutputFileWriters": str(len(CLASSES) + len(INVALID)),
}


def run(
    spark: SparkSession, database: Database, lake: Lake, *, file: str, rules: list[dict[str, Any]],
    calendars: Mapping[str, Any] | None = None, html: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Audit rules. Return {"rules": [per rule: name, topic, source, rows, jobs, classes, total, trend, weeks,
    dimensions, folder, missing], "folder", "as_of", "page", "seconds"}.

    file       path of the rules file, for messages
    rules      the rules as read from this file
    calendars  name -> snapshot of each calendar that a rule names
    html       path of an additional copy of the page; "": no copy

    Members of the answer:

    page      path of the answer as an HTML page
    source    the rule's table, or the path of its files
    rows      number of business rows that require a job or have one
    jobs      number of the jobs of these rows and of jobs without a row, including archived jobs
    classes   class -> {"count", "must_be_empty", "samples"}
    total     the figures of all rows: see dimensions.by_value()
    trend     as_of and TREND_FIGURES of the last audits (tables/dimensions.py), this one last
    weeks     the figures of each week, by the time at which a key's first job was created
    dimensions    column -> the figures of each of its values, if the rule carries columns
    folder    the run's folder, relative to the lake; in a rule: the path of the folder with its classified keys
    missing   input folder for `pipeline load`; empty if no job is missing
    refused   a sentence that names the classes that must be empty and are not; absent if there are none

    Raises BadRule if a rule is invalid or does not match its data; then nothing is published.
    """
    began = time.monotonic()
    calendars = calendars or {}
    parsed_rules = _valid_rules(spark, file, rules, calendars)
    lake.document(DOCUMENT)  # fail early if the document is unusable
    folder = lake.new_run("audit")
    with database.lock("audit") as check_lock:
        table = dimension_table.open_table(lake)
        earlier = dimension_table.trends(table)
        with _remove_on_error(lake, folder):
            with snapshots.take(database) as snapshot:
                results = [
                    _audit_rule(spark, snapshot, lake, rule, f"{folder}/{number}", calendars.get(rule.calendar))
                    for number, rule in enumerate(parsed_rules, 1)
                ]
            for each in results:
                each["trend"] = _trend(earlier.get((each["name"], each["topic"]), []), each["total"], snapshot.now_ms)
            page = audit_page.html(results, snapshot.now_ms)
            lake.write(f"{folder}/{PAGE}", page.encode())
            lake.sync(folder)
            check_lock()
            table = dimension_table.append(table, results, snapshot.now_ms)
        document = {"folder": folder, "as_of": rfc3339_of(snapshot.now_ms), "page": f"{folder}/{PAGE}",
                    "rules": [_without_figures(each) for each in results]}  # fmt: skip
        _publish(lake, document)
        optimization.merge_small_files(table)
    if html:
        Path(html).write_text(page, encoding="utf-8")
    return _answer(lake, document, results) | {"seconds": round(time.monotonic() - began, 1)}


def _valid_rules(
    spark: SparkSession, file: str, rules: list[dict[str, Any]], calendars: Mapping[str, Any]
) -> list[Rule]:
    """Return the rules, which match their data. Raises BadRule."""
    parsed = rules_of(file, rules)
    for rule in parsed:
        business.validate(spark, rule)
        if rule.calendar and rule.calendar not in calendars:
            raise rule.bad("calendar", f"the run was started without the calendar {rule.calendar!r}.")
    return parsed


def _answer(lake: Lake, document: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the members of run()'s answer but `seconds`, with full paths."""
    paths = [{name: each[name] and lake.location(each[name]) for name in ("folder", "missing")} for each in results]
    rules = [each | its_paths for each, its_paths in zip(results, paths, strict=True)]
    answer = document | {"page": lake.location(document["page"]), "rules": rules}
    faults = [sentence for each in results if (sentence := _fault_message(each))]
    return answer | ({"refused": " ".join(faults)} if faults else {})


def inputs(*, file: str, rules: list[dict[str, Any]], **_: Any) -> list[tuple[str, str]]:
    """Return (root, path) of each Parquet file that executors will read, for preflight.check(). Raises BadRule."""
    return [each for rule in rules_of(file, rules) if rule.parquet for each in exports.inputs(rule)]


def zones(
    *, file: str, rules: list[dict[str, Any]], calendars: Mapping[str, Any] | None = None, **_: Any
) -> dict[str, bool]:
    """Return zone -> whether Java uses it (for weeks) as well as Python, for each time zone that executors need.

    This is the argument `zones` of preflight.check().
    """
    of_calendars = {each["zone"]: False for each in (calendars or {}).values()}
    return of_calendars | {rule.zone: True for rule in rules_of(file, rules) if rule.zone}


def _without_figures(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in FIGURES}


def _trend(earlier: list[dict[str, Any]], total: dict[str, Any], now_ms: int) -> list[dict[str, Any]]:
    """Return the figures of the last audits, oldest first. The last one is this audit."""
    past = [{**each, "as_of": _to_json_value(each["as_of"])} for each in earlier]
    now = {"as_of": rfc3339_of(now_ms), **{name: total[name] for name in dimension_table.TREND_FIGURES}}
    return [*past, now][-dimension_table.TREND_AUDITS :]


@contextmanager
def _remove_on_error(lake: Lake, folder: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if folder in lake.runs("audit"):
            lake.remove(folder)
        raise


def _publish(lake: Lake, document: dict[str, Any]) -> None:
    """Publish the last KEPT_RUNS runs, this one included, in the document. Remove the folders of all other runs."""
    runs = [*lake.document(DOCUMENT).get("runs", ()), document][-KEPT_RUNS:]
    lake.publish(DOCUMENT, {"runs": runs})
    used = {dimension_table.NAME, *(each["folder"] for each in runs)}
    for folder in lake.runs("audit"):
        if folder not in used:
            lake.remove(folder)


def _audit_rule(
    spark: SparkSession, snapshot: Snapshot, lake: Lake, rule: Rule, folder: str, calendar: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Audit one rule, write its result into the folder, and return the rule's part of the answer. Raises BadRule."""
    frame, check_rows = classify(spark, snapshot, lake, rule, calendar)
    try:
        row_counts.write(frame, lake, f"{folder}/classes", "class", options=WRITE_OPTIONS)
    except PySparkException as error:
        raise business.translate(rule, error) from error
    check_rows()
    classified = spark.read.schema(CLASSIFIED).parquet(for_reading(lake.uri(f"{folder}/classes")))
    totals = classified_keys.totals(lake, f"{folder}/classes", SAMPLES)
    samples = {name: _samples(total.samples) for name, total in totals.items()}
    _check_invalid(rule, totals, samples)
    jobs = sum(each.jobs for each in totals.values())
    row_counts.compare(max(jobs, _jobs_in_database(snapshot, rule.topic)), jobs, JOB_TABLE, NOTHING)
    by_value = dimensions.by_value(classified, rule)
    (total,) = by_value.pop(dimensions.ALL)
    keys = sum(each.keys for each in totals.values())
    row_counts.compare(keys, sum(total["classes"].values()), lake.path(f"{folder}/classes"), NOTHING)
    missing = ""
    if "missing" in totals:
        missing = f"{folder}/missing"
        files = 1 + totals["missing"].keys // MISSING_ROWS
        written = row_counts.write(promises.missing_jobs(classified, rule).coalesce(files), lake, missing)
        row_counts.compare(totals["missing"].keys, written, lake.path(f"{folder}/classes"), NOTHING)
    return {
        "name": rule.title, "topic": rule.topic, "source": rule.source,
        "rows": sum(each.rows for each in totals.values()), "jobs": jobs,
        "classes": {
            name: {
                "count": totals[name].keys if name in totals else 0, "must_be_empty": name in rule.faults,
                "samples": samples.get(name, []),
            }
            for name in CLASSES
        },
        "total": total, "weeks": by_value.pop(dimensions.WEEK), "dimensions": by_value,
        "folder": f"{folder}/classes", "missing": missing,
    }  # fmt: skip


def _jobs_in_database(snapshot: Snapshot, topic: str) -> int:
    """Return the number of a topic's jobs in the snapshot. An audit reads these, and archived jobs beside them."""
    ((count,),) = snapshot.query(f"SELECT count(*) FROM {JOB_TABLE} WHERE topic = {{}}", [topic])
    return int(count)


def classify(
    spark: SparkSession, snapshot: Snapshot, lake: Lake, rule: Rule, calendar: Mapping[str, Any] | None = None
) -> tuple[DataFrame, Callable[[], None]]:
    """Return a row for each key that has a job or requires one, as promises.classify() does. Raises BadRule.

    Also return a check to call when the frame has been written. It raises RowsLost if not all business rows were read.
    """
    found, total = business.rows(spark, snapshot, rule)
    rows = promises.promised_jobs(found, rule, calendar)
    jobs = history.jobs(spark, snapshot, lake, promises.JOBS, rule.topic)
    events = history.job_events(spark, snapshot, lake, promises.EVENTS, rule.topic)
    keys = promises.by_key(rows, promises.summarize_jobs(jobs), promises.summarize_events(events))
    # Count after the shuffle: the tasks before it may run again if an executor is lost, and would count twice.
    read = Observation()
    counted = keys.observe(read, F.sum("rows").alias("rows"))

    def check_rows() -> None:
        if total is not None:
            row_counts.compare(total, int(read.get.get("rows") or 0), rule.source, NOTHING)

    return promises.classify(counted, rule, snapshot.now_ms), check_rows


def _check_invalid(rule: Rule, totals: dict[str, ClassTotal], samples: dict[str, list[dict[str, Any]]]) -> None:
    for name, (field, problem) in INVALID.items():
        if name in totals:
            rows = f"{totals[name].rows} rows of {rule.source} that require a job"
            keys = ", ".join(repr(sample["key"]) for sample in samples[name] if sample["key"] is not None)
            raise rule.bad(field, f"it {problem} for {rows}" + (f", such as {keys}." if keys else "."))


def _samples(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as the answer shows them."""
    return [{name: _to_json_value(value) for name, value in row.items()} for row in rows]


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return dimensions.plain(value)
    return rfc3339_of(round(value.timestamp() * 1000)) if isinstance(value, datetime) else value


def _fault_message(result: dict[str, Any]) -> str:
    """Return a sentence with the counts of the classes that must be empty and are not; "" if there are none."""
    classes = result["classes"].items()
    counts = [f"{each['count']} {name}" for name, each in classes if each["must_be_empty"] and each["count"]]
    return f"{result['name']}: {', '.join(counts)}." if counts else ""
