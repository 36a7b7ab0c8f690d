"""What became of each promise, as one class for each key. Steps are a DataFrame from DataFrames; times in ms.

A key has the first of these that is true of it:

    missing     a row should have a promise and has no job
    orphan      jobs without a row
    twice       it finished more than once, or a second job stands beside: it will
    called_off  cancelled last, never finished, and the row says that it should not have been
    died        its attempts were used up last, and it never finished
    early       an attempt began before its due time, or before the rule's
    late        the first attempt began too late, or a live job is overdue
    kept        finished; or called off for a reason
    open        it waits for its time, or runs
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from ..states import Outcome, State
from .rules import Rule

JOBS = ["id", "topic", "key", "state", "due_at", "attempt", "reserved_at", "lease_until", "ended_at"]
EVENTS = ["key", "outcome", "attempt", "due_ms", "reserved_ms"]  # key: their job's
USELESS = {  # what a rule gives that nothing can be told by -> field, and what is wrong
    "no_key": ("key", "gives nothing (null)"),
    "no_since": ("since", "gives nothing (null)"),
    "same_key": ("key", "gives the same key to more than one row"),
}
CLASSED = StructType([
    StructField("key", StringType(), True),
    StructField("rows", LongType(), False),  # of the business
    StructField("jobs", LongType(), False),  # that it has, or had
    StructField("job_id", LongType(), True),  # of the newest
    StructField("promised_at", TimestampType(), True),  # by the rule
    StructField("due_at", TimestampType(), True),  # of the newest job, by itself
    StructField("begun_at", TimestampType(), True),  # the first attempt
    StructField("ended_at", TimestampType(), True),  # the last of them; null: live
    StructField("class", StringType(), False),
])  # fmt: skip
MISSING = StructType([
    StructField("topic", StringType(), False), StructField("key", StringType(), False),
    StructField("due_at", TimestampType(), False),
])  # fmt: skip


def expected(rows: DataFrame, rule: Rule) -> DataFrame:
    """key, promised (whether it should have a job), holds, promised_ms. Needs the rule's columns."""
    due_ms = F.unix_millis(F.expr(rule.since)) + F.lit(rule.delay_seconds * 1000)
    return rows.select(
        F.expr(rule.key).cast("string").alias("key"),
        F.coalesce(F.expr(rule.when), F.lit(False)).alias("promised"),
        F.coalesce(F.expr(rule.holds), F.lit(False)).alias("holds"),
        due_ms.alias("promised_ms"),
    )


def told_by_jobs(jobs: DataFrame) -> DataFrame:
    """key -> what one job of it says. Needs JOBS."""
    state, live = F.col("state"), F.col("ended_at").isNull()
    due_ms, held_ms, ended_ms = (F.unix_millis(name) for name in ("due_at", "reserved_at", "ended_at"))
    held = state == int(State.RESERVED)  # by an attempt that has no event yet
    wait_ms = F.when(held, held_ms - due_ms)
    return jobs.select(
        "key",
        F.col("id").alias("job_id"),
        due_ms.alias("due_ms"),
        ended_ms.alias("ended_ms"),
        _one_if(live).alias("live"),
        _one_if(state == int(State.FINISHED)).alias("finished"),
        F.when(live, F.when(held, F.unix_millis("lease_until")).otherwise(due_ms)).alias("overdue_ms"),
        _one_if(wait_ms < 0).alias("early"),
        F.when(held, held_ms).alias("first_ms"),
        F.when(F.col("attempt") == 1, wait_ms).alias("late_ms"),
        F.when(state == int(State.CANCELLED), ended_ms).alias("cancelled_ms"),
        F.when(state == int(State.DEAD), ended_ms).alias("died_ms"),
    )


def told_by_events(events: DataFrame) -> DataFrame:
    """key -> what one event of its jobs says. Needs EVENTS."""
    outcome, wait_ms = F.col("outcome"), F.col("reserved_ms") - F.col("due_ms")
    return events.select(
        "key",
        _one_if(outcome == str(Outcome.FINISHED)).alias("finishes"),
        _one_if(outcome == str(Outcome.RESCHEDULED)).alias("moves"),
        _one_if(wait_ms < 0).alias("early"),
        F.col("reserved_ms").alias("first_ms"),
        F.when(F.col("attempt") == 1, wait_ms).alias("late_ms"),
    )


def _one_if(condition: Column) -> Column:
    """To be counted; null, which takes no room, where it is not so."""
    return F.when(condition, F.lit(1))


def by_key(rows: DataFrame, jobs: DataFrame, events: DataFrame) -> DataFrame:
    """key -> what all that is known of it says together, in one shuffle. Needs what the three steps before give."""
    promised = F.col("promised")
    every = rows.unionByName(jobs, allowMissingColumns=True).unionByName(events, allowMissingColumns=True)
    return every.groupBy("key").agg(
        F.count("promised").alias("rows"),
        F.count_if(promised).alias("asked"),
        F.count_if(promised & F.col("promised_ms").isNull()).alias("timeless"),
        F.min(F.when(promised, F.col("promised_ms"))).alias("promised_ms"),
        F.max("holds").alias("holds"),
        F.count("job_id").alias("jobs"),
        *(F.count(name).alias(name) for name in ("live", "finished", "finishes", "early", "moves")),
        *(F.min(name).alias(name) for name in ("overdue_ms", "first_ms")),
        *(F.max(name).alias(name) for name in
          ("job_id", "due_ms", "ended_ms", "late_ms", "cancelled_ms", "died_ms")),
    )  # fmt: skip


def classed(keys: DataFrame, rule: Rule, now_ms: int) -> DataFrame:
    """CLASSED, with those of USELESS. Rows that need no promise and have none are left out. Needs by_key()."""
    found = keys.withColumn("class", _class(rule, now_ms)).where(F.col("class").isNotNull())
    times = {"promised_at": "promised_ms", "due_at": "due_ms", "begun_at": "first_ms"}
    return found.select(
        "key", "rows", "jobs", "job_id", *(F.timestamp_millis(ms).alias(name) for name, ms in times.items()),
        F.when(F.col("live") == 0, F.timestamp_millis("ended_ms")).alias("ended_at"), "class",
    )  # fmt: skip


def _class(rule: Rule, now_ms: int) -> Column:
    col = F.col
    finishes = F.greatest("finishes", "finished")  # the events of a finished job may be gone
    finished, live = finishes > 0, col("live") > 0
    cancelled_last = col("cancelled_ms") > F.coalesce("died_ms", F.lit(0))
    over = ~finished & ~live
    return (
        F.when((col("asked") > 0) & col("key").isNull(), "no_key")
        .when(col("asked") > 1, "same_key")
        .when(col("timeless") > 0, "no_since")
        .when((col("jobs") == 0) & (col("asked") > 0), "missing")
        .when(col("jobs") == 0, None)
        .when(col("rows") == 0, "orphan")
        .when((finishes > 1) | (col("live") > 1) | (finished & live), "twice")
        .when(over & cancelled_last & F.coalesce("holds", F.lit(False)), "called_off")
        .when(over & col("died_ms").isNotNull() & ~F.coalesce(cancelled_last, F.lit(False)), "died")
        .when((col("early") > 0) | (col("first_ms") < _agreed_ms() - rule.early_seconds * 1000), "early")
        .when(_late(rule.late_seconds * 1000, now_ms), "late")
        .when(live, "open")
        .otherwise("kept")
    )


def _agreed_ms() -> Column:
    """The rule's time. It says nothing (null) of a promise that was moved or made again: then its own counts alone."""
    return F.when((F.col("jobs") == 1) & (F.col("moves") == 0), F.col("promised_ms"))


def _late(late_ms: int, now_ms: int) -> Column:
    col, agreed_ms = F.col, _agreed_ms()
    waits = (col("live") > 0) & col("first_ms").isNull()
    return reduce(or_, [
        col("late_ms") > late_ms,
        col("overdue_ms") < now_ms - late_ms,
        col("first_ms") > agreed_ms + late_ms,
        waits & (agreed_ms < now_ms - late_ms),
    ])  # fmt: skip


def missing(found: DataFrame, rule: Rule) -> DataFrame:
    """MISSING: what `pipeline load` takes. Needs CLASSED."""
    return found.where(F.col("class") == "missing").select(
        F.lit(rule.topic).alias("topic"), "key", F.col("promised_at").alias("due_at")
    )
