"""Classify the keys of an audit rule: assign one class to each key of a business row or job.

A promise is a job that a rule requires for a business row. The functions take and return data frames; columns that end
in _ms are in milliseconds since 1970. A key gets the first of these classes that applies:

    missing     a business row should have a job and has none
    orphan      there are jobs, but no business row
    twice       the jobs finished more than once; or two jobs are live, or one is live although another has finished
    called_off  no job finished, the last one was cancelled, and the rule does not allow this
    died        no job finished, and the last one died
    early       an attempt began before the job's due time, or before the rule's due time
    late        the first attempt began too late, a live job is overdue, or a job expired before it could begin
    open        a job waits for its due time, or is running
    kept        a job finished; or it was cancelled, and the rule allows this
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from ...states import Outcome, State
from ..delays import due_times
from ..delays.due_times import DelayColumns, DueTimes
from ..delays.durations import DAY_SECONDS, MAX_SECONDS
from ..rules.rules import Rule
from . import dimensions

JOBS = ["id", "topic", "key", "state", "due_at", "attempt", "reserved_at", "lease_until", "ended_at", "created_at"]
EVENTS = ["key", "outcome", "attempt", "due_ms", "reserved_ms", "error", "reason"]  # key: the job's key
# Values in the events of jobs whose handler was not called. Copies, because the pipeline does not import these modules.
EXPIRED_ERROR = "delaytasks:too_late"  # outcomes.ErrorCode.TOO_LATE
TIMEOUT_REASONS = ("unmet", "gone", "past")  # of a declared timeout; see timeouts.fire
INVALID = {  # class of keys whose rows cannot be checked -> the rule's field, and what is wrong with its value
    "no_key": ("key", "is null"),
    "no_since": ("since", "is null"),
    "no_delay": ("delay", "is null"),
    "negative_delay": ("delay", "is negative"),
    "long_delay": ("delay", "is more than ten years"),
    "no_due": ("delay", "leads to no due time in the years 1 to 9999, or to none that the calendar knows,"),
    "same_key": ("key", "is not unique"),
}
DELAY_FAULTS = ("no_delay", "negative_delay", "long_delay", "no_due")  # numbered from 1 in the column delay_fault
CLASSIFIED = StructType([
    StructField("key", StringType(), True),
    StructField("rows", LongType(), False),  # number of business rows; in a class of INVALID, that require a job
    StructField("jobs", LongType(), False),  # number of jobs, archived ones too
    StructField("job_id", LongType(), True),  # the newest job
    StructField("promised_at", TimestampType(), True),  # due time by the rule
    StructField("due_at", TimestampType(), True),  # due time of the newest job
    StructField("begun_at", TimestampType(), True),  # start of the first attempt
    StructField("ended_at", TimestampType(), True),  # the last end of the jobs; null: a job is live
    StructField("late_ms", LongType(), True),  # lateness, a duration; null: the job has not begun and is not overdue
    StructField("made_at", TimestampType(), True),  # when the first job was created
    StructField("status", StringType(), True),  # one of rules.STATUSES; null: there is no job
    *dimensions.CARRIED,
    StructField("class", StringType(), False),
])  # fmt: skip


def promised_jobs(rows: DataFrame, rule: Rule, calendar: Mapping[str, Any] | None = None) -> DataFrame:
    """Return key, promised, holds, promised_ms and delay_fault of each business row. Needs the rule's columns.

    calendar   snapshot of the rule's calendar

    promised      whether the row should have a job
    holds         whether the row's job must not have been cancelled
    promised_ms   due time by the rule; null if `since` or the delay cannot be used, or if the row should have no job
    delay_fault   number of one of DELAY_FAULTS; null if the delay can be used. No meaning if the row should have no job
    carried       only if the rule needs it: see dimensions.carried()
    """
    promised = F.coalesce(F.expr(rule.when), F.lit(False))
    since_ms, (days, seconds) = F.unix_millis(F.expr(rule.since)), _delay(rows, rule)
    days, time_ms = days if days is None else F.when(promised, days), _to_ms(F.when(promised, seconds))
    fault = _delay_fault(days, time_ms) if rule.delay else F.lit(None).cast("int")
    due_ms = F.when(fault.isNull(), DueTimes(rule.zone, calendar).due_ms(since_ms, days, time_ms))
    return rows.select(
        F.expr(rule.key).cast("string").alias("key"),
        promised.alias("promised"),
        F.coalesce(F.expr(rule.holds), F.lit(False)).alias("holds"),
        due_ms.alias("promised_ms"),
        F.when(fault.isNull() & since_ms.isNotNull() & due_ms.isNull(), _fault_number("no_due"))
        .otherwise(fault).alias("delay_fault"),
        *([dimensions.carried(rule, promised).alias("carried")] if dimensions.is_needed(rule) else []),
    )  # fmt: skip


def _delay(rows: DataFrame, rule: Rule) -> DelayColumns:
    if rule.duration:
        return due_times.constant(rule.duration)
    kind = rows.select(F.expr(due_times.parenthesized(rule.delay)).alias("it")).schema["it"].dataType
    return due_times.from_expression(rule.delay, kind, zone=rule.zone, calendar=rule.calendar)


def _to_ms(seconds: Column) -> Column:
    """Return the seconds in ms, as at most twice the longest delay, which is then refused as too long; null for NaN."""
    ms = F.nanvl(F.round(seconds.cast("double") * 1000), F.lit(None).cast("double"))
    limit = F.lit(MAX_SECONDS * 2000.0)
    return F.when(ms.isNotNull(), F.greatest(F.least(ms, limit), -limit)).cast("long")


def _delay_fault(days: Column | None, time_ms: Column) -> Column:
    whole = F.lit(0) if days is None else days
    return (
        F.when(time_ms.isNull(), _fault_number("no_delay"))
        .when((time_ms < 0) | (whole < 0), _fault_number("negative_delay"))
        .when(time_ms + whole * DAY_SECONDS * 1000 > MAX_SECONDS * 1000, _fault_number("long_delay"))
    )


def _fault_number(name: str) -> Column:
    return F.lit(DELAY_FAULTS.index(name) + 1)


def summarize_jobs(jobs: DataFrame) -> DataFrame:
    """Return a row for each job: its key, and the columns that by_key() combines. Needs the columns JOBS."""
    state, live = F.col("state"), F.col("ended_at").isNull()
    times = ("due_at", "reserved_at", "ended_at", "created_at")
    due_ms, held_ms, ended_ms, made_ms = (F.unix_millis(name) for name in times)
    cancelled = state == int(State.CANCELLED)
    held = state == int(State.RESERVED)  # the current attempt has no event yet
    wait_ms = F.when(held, held_ms - due_ms)
    return jobs.select(
        "key",
        F.col("id").alias("job_id"),
        due_ms.alias("due_ms"),
        made_ms.alias("made_ms"),
        ended_ms.alias("ended_ms"),
        _one_if(live).alias("live"),
        _one_if(state == int(State.FINISHED)).alias("finished"),
        F.when(live, F.when(held, F.unix_millis("lease_until")).otherwise(due_ms)).alias("overdue_ms"),
        _one_if(wait_ms < 0).alias("early"),
        F.when(held, held_ms).alias("first_ms"),
        F.when(F.col("attempt") == 1, wait_ms).alias("late_ms"),
        F.when(cancelled, ended_ms).alias("cancelled_ms"),
        F.when(cancelled & (ended_ms < due_ms), ended_ms).alias("in_time_ms"),
        F.when(state == int(State.DEAD), ended_ms).alias("died_ms"),
    )


def summarize_events(events: DataFrame) -> DataFrame:
    """Return a row for each event: its job's key, and the columns that by_key() combines. Needs the columns EVENTS."""
    outcome, wait_ms = F.col("outcome"), F.col("reserved_ms") - F.col("due_ms")
    skipped = outcome == str(Outcome.SKIPPED)
    expired = skipped & (F.col("error") == EXPIRED_ERROR)
    ran = ~(expired | (skipped & F.col("reason").isin(*TIMEOUT_REASONS)))
    return events.select(
        "key",
        _one_if(outcome == str(Outcome.FINISHED)).alias("finishes"),
        _one_if(outcome == str(Outcome.RESCHEDULED)).alias("moves"),
        _one_if(wait_ms < 0).alias("early"),
        _one_if(expired).alias("expired"),
        F.when(ran, F.col("reserved_ms")).alias("first_ms"),
        F.when(F.col("attempt") == 1, wait_ms).alias("late_ms"),
    )


def _one_if(condition: Column) -> Column:
    """Return 1 where the condition is true, else null. So count() of the column counts the rows where it is true."""
    return F.when(condition, F.lit(1))


def by_key(rows: DataFrame, jobs: DataFrame, events: DataFrame) -> DataFrame:
    """Combine the business rows, jobs and events of each key into one row, in one shuffle.

    Needs the results of promised_jobs(), summarize_jobs() and summarize_events().
    """
    promised = F.col("promised")
    combined = rows.unionByName(jobs, allowMissingColumns=True).unionByName(events, allowMissingColumns=True)
    # repartition() makes Spark aggregate only after the shuffle. A partial aggregation before it would save little,
    # because most keys have few rows; and with `carried` Spark would sort all rows twice.
    return combined.repartition("key").groupBy("key").agg(
        F.count("promised").alias("rows"),
        F.count_if(promised).alias("promised_rows"),
        F.count_if(promised & F.col("promised_ms").isNull()).alias("undated"),
        F.min(F.when(promised, F.col("promised_ms"))).alias("promised_ms"),
        F.min(F.when(promised, F.col("delay_fault"))).alias("delay_fault"),
        F.coalesce(F.max(F.when(promised, F.col("holds"))), F.max("holds")).alias("holds"),
        F.count("job_id").alias("jobs"),
        *(F.count(name).alias(name) for name in ("live", "finished", "finishes", "early", "moves", "expired")),
        *(F.min(name).alias(name) for name in ("overdue_ms", "first_ms", "made_ms")),
        F.max_by("due_ms", "job_id").alias("due_ms"),
        *(F.max(name).alias(name) for name in
          ("job_id", "ended_ms", "late_ms", "cancelled_ms", "in_time_ms", "died_ms")),
        *([F.max("carried").alias("carried")] if "carried" in rows.columns else []),
    )  # fmt: skip


def classify(keys: DataFrame, rule: Rule, now_ms: int) -> DataFrame:
    """Return a row for each key, with its class and the other columns CLASSIFIED. Needs the columns of by_key().

    The class is one of rules.CLASSES or INVALID. Keys that need no job and have none are left out.

    now_ms   time of the snapshot, in ms since 1970
    """
    needed = keys.where((F.col("promised_rows") > 0) | (F.col("jobs") > 0))
    classified = needed.withColumn("class", _class(rule, now_ms))
    times = {"promised_at": "promised_ms", "due_at": "due_ms", "begun_at": "first_ms"}
    rows = F.when(F.col("class").isin(*INVALID), F.col("promised_rows")).otherwise(F.col("rows")).alias("rows")
    return dimensions.with_outcome(classified, rule, now_ms).select(
        "key", rows, "jobs", "job_id", *(F.timestamp_millis(ms).alias(name) for name, ms in times.items()),
        F.when(F.col("live") == 0, F.timestamp_millis("ended_ms")).alias("ended_at"),
        _late_ms(now_ms).alias("late_ms"), F.timestamp_millis("made_ms").alias("made_at"), _status().alias("status"),
        *dimensions.columns(rule), "outcome", "class",
    )  # fmt: skip


def _class(rule: Rule, now_ms: int) -> Column:
    col = F.col
    finishes = _finishes()
    finished, live = finishes > 0, col("live") > 0
    cancelled_last = _cancelled_last()
    ended = ~finished & ~live
    return (
        F.when((col("promised_rows") > 0) & col("key").isNull(), "no_key")
        .when(col("promised_rows") > 1, "same_key")
        .when(col("delay_fault").isNotNull(), F.element_at(F.array(*map(F.lit, DELAY_FAULTS)), col("delay_fault")))
        .when(col("undated") > 0, "no_since")
        .when(col("jobs") == 0, "missing")
        .when(col("rows") == 0, "orphan")
        .when((finishes > 1) | (col("live") > 1) | (finished & live), "twice")
        .when(ended & cancelled_last & F.coalesce("holds", F.lit(False)), "called_off")
        .when(ended & col("died_ms").isNotNull() & ~F.coalesce(cancelled_last, F.lit(False)), "died")
        .when((col("early") > 0) | (col("first_ms") < _promised_ms() - rule.early_seconds * 1000), "early")
        .when((col("expired") > 0) | _late(rule.late_seconds * 1000, now_ms), "late")
        .when(live, "open")
        .otherwise("kept")
    )


def _finishes() -> Column:
    """Return how often the key's jobs finished. Jobs are counted, too, because their events may have been removed."""
    return F.greatest("finishes", "finished")


def _cancelled_last() -> Column:
    return F.col("cancelled_ms") > F.coalesce("died_ms", F.lit(0))


def _status() -> Column:
    """Return what became of a key's jobs, one of rules.STATUSES; null if there is none.

    cancelled_in_time: the job that was cancelled last was cancelled before its due time, and no attempt had begun.
    """
    in_time = (F.col("in_time_ms") == F.col("cancelled_ms")) & F.col("first_ms").isNull()
    return (
        F.when(F.col("jobs") == 0, None)
        .when(F.col("live") > 0, "live")
        .when(_finishes() > 0, "ran")
        .when(_cancelled_last(), F.when(in_time, "cancelled_in_time").otherwise("cancelled_late"))
        .otherwise("dead")
    )


def _promised_ms() -> Column:
    """Return the due time by the rule, or null if the job was rescheduled or scheduled again.

    For such a job only its own due time counts.
    """
    return F.when((F.col("jobs") == 1) & (F.col("moves") == 0), F.col("promised_ms"))


def _late(late_ms: int, now_ms: int) -> Column:
    return reduce(or_, [each > late_ms for each in _waits(now_ms)])


def _waits(now_ms: int) -> tuple[Column, ...]:
    """Return four lateness values in ms: of the first attempt and of a live job, by the job's due time and the rule's.

    A value is negative or null if the job is not late in this respect.
    """
    col, promised_ms = F.col, _promised_ms()
    waiting = (col("live") > 0) & col("first_ms").isNull()
    return (
        col("late_ms"), now_ms - col("overdue_ms"), col("first_ms") - promised_ms,
        F.when(waiting, now_ms - promised_ms),
    )  # fmt: skip


def _late_ms(now_ms: int) -> Column:
    """Return how late the job began, or how long it is overdue, in ms. 0: it began in time; null: it is not due yet."""
    latest = F.greatest(*_waits(now_ms))
    return F.when((latest >= 0) | F.col("first_ms").isNotNull(), F.greatest(latest, F.lit(0)))


def missing_jobs(classified: DataFrame, rule: Rule) -> DataFrame:
    """Return topic, key and due_at of the missing jobs, an input for `pipeline load`. Needs the columns CLASSIFIED."""
    return classified.where(F.col("class") == "missing").select(
        F.lit(rule.topic).alias("topic"), "key", F.col("promised_at").alias("due_at")
    )
