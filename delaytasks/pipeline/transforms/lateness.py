"""Compute statistics per topic and hour or minute from events: outcomes, lateness and run times.

Each function takes and returns data frames. Times are in milliseconds since 1970, durations in milliseconds.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .. import schemas
from ..applications.stale_hours import HOUR_MS, MINUTE_MS
from .outcomes import OUTCOME_COLUMNS, PERCENTILES

LONG_DIGITS = 19  # of the largest bigint


def round_down(ms: Column, digits: int) -> Column:
    """Round a duration down to its first `digits` digits."""
    unit = F.when(ms < 10**digits, 1)  # comparisons are quicker than the length of a text
    for zeros in range(1, LONG_DIGITS - digits):
        unit = unit.when(ms < 10 ** (digits + zeros), 10**zeros)
    return ms - ms % unit.otherwise(10 ** (LONG_DIGITS - digits))


def hour_ms() -> Column:
    """Return the start of the hour in which an event happened, in ms since 1970. Needs done_ms."""
    return F.col("done_ms") - F.col("done_ms") % HOUR_MS


def count_minutes(events: DataFrame) -> DataFrame:
    """Count events by topic, minute, outcome and lateness. Return topic, minute_ms, outcome, late_ms, number, worst_ms.

    minute_ms  start of the minute
    late_ms    lateness of a first attempt, rounded down to three digits; null for all other events
    number     number of events
    worst_ms   greatest exact lateness of these events

    Needs topic, outcome, attempt, due_ms, reserved_ms, done_ms. Lateness is measured on first attempts only: a later
    attempt may have waited for the attempt before it. A job that was given back or deferred before its start has no
    event of its first attempt, and so no lateness. Events without a topic are left out.
    """
    return (
        events.where(F.col("topic").isNotNull())
        .select("topic", (F.col("done_ms") - F.col("done_ms") % MINUTE_MS).alias("minute_ms"), "outcome",
                _late().alias("late"))
        .groupBy("topic", "minute_ms", "outcome", round_down(F.col("late"), 3).alias("late_ms"))
        .agg(F.count("*").alias("number"), F.max("late").alias("worst_ms"))
    )  # fmt: skip


def count_hours(events: DataFrame) -> DataFrame:
    """Count events by hour, otherwise as count_minutes() does, and attempts by run time, in one pass over the events.

    A row counts either events, and run_ms is null, or attempts, and outcome is null. Further columns:

    run_ms     time from the reservation to the end, rounded down to two digits
    total_ms   sum of the exact run times

    Needs the columns for count_minutes().
    """
    ran, no_time, no_text = F.col("done_ms") - F.col("reserved_ms"), _no_ms(), F.lit(None).cast("string")
    event = F.struct(F.col("outcome"), _late().alias("late"), no_time.alias("ran"))
    attempt = F.struct(no_text.alias("outcome"), no_time.alias("late"), F.greatest(ran, F.lit(0)).alias("ran"))
    both = F.when(ran.isNotNull(), F.array(event, attempt)).otherwise(F.array(event))
    return (
        events.where(F.col("topic").isNotNull())
        .select("topic", hour_ms().alias("hour_ms"), F.explode(both).alias("each"))
        .select("topic", "hour_ms", "each.*")
        .groupBy("topic", "hour_ms", "outcome", round_down(F.col("late"), 3).alias("late_ms"),
                 round_down(F.col("ran"), 2).alias("run_ms"))
        .agg(F.count("*").alias("number"), F.max("late").alias("worst_ms"), F.sum("ran").alias("total_ms"))
    )  # fmt: skip


def _late() -> Column:
    """Return the lateness of a first attempt in ms, at least 0; null for all other events."""
    first = (F.col("attempt") == 1) & F.col("reserved_ms").isNotNull()
    return F.when(first, F.greatest(F.col("reserved_ms") - F.col("due_ms"), F.lit(0)))


def by_hour(counts: DataFrame) -> DataFrame:
    """Return the statistics of each topic and hour, with the columns schemas.HOURS. counts: result of count_hours()."""
    statistics = _statistics(counts, ("topic", "hour_ms"), *_runs())
    late = statistics.withColumn("late", histogram(F.col("lateness")))
    return late.withColumn("hour_at", F.timestamp_millis("hour_ms")).select(*schemas.HOURS.names)


def _runs() -> list[Column]:
    """Return the aggregates attempts, run_total_ms and run of schemas.HOURS. They count only attempts."""
    ms, number = F.col("run_ms"), F.col("number")
    return [
        _sum(F.when(ms.isNotNull(), number)).alias("attempts"), _sum(F.col("total_ms")).alias("run_total_ms"),
        _sorted(ms).alias("run"),
    ]  # fmt: skip


def by_minute(counts: DataFrame) -> DataFrame:
    """Return the statistics of each topic and minute, with the columns schemas.MINUTES.

    Needs the columns of count_minutes(). The counts of several batches are added up.
    """
    statistics = _statistics(counts, ("topic", "minute_ms"))
    return statistics.withColumn("minute_at", F.timestamp_millis("minute_ms")).select(*schemas.MINUTES.names)


def _statistics(counts: DataFrame, by: Sequence[str], *more: Column) -> DataFrame:
    """Return for each value of `by` the number of events per outcome and the lateness of first attempts.

    The column `lateness` is an array of (ms, number), sorted by ms. One pass over the rows gives all columns: there are
    no joins.

    more   further aggregates
    """
    outcome, number, late = F.col("outcome"), F.col("number"), F.col("late_ms")
    found = counts.groupBy(*by).agg(
        _sum(F.when(outcome.isNotNull(), number)).alias("happened"),
        *(_sum(F.when(outcome.isin(*map(str, outcomes_of)), number)).alias(name)
          for name, outcomes_of in OUTCOME_COLUMNS.items()),
        _sum(F.when(late.isNotNull(), number)).alias("begun"),
        F.max("worst_ms").alias("late_worst_ms"),
        _sorted(late).alias("lateness"),
        *more,
    )  # fmt: skip
    return found.withColumn("percentiles", percentiles(F.col("lateness"), F.col("begun"))).select("*", "percentiles.*")


def _sum(number: Column) -> Column:
    return F.coalesce(F.sum(number), F.lit(0))


def _sorted(ms: Column) -> Column:
    """Return an aggregate: the sorted array of (ms, number) of the rows whose ms is not null."""
    return F.sort_array(F.collect_list(F.when(ms.isNotNull(), F.struct(ms.alias("ms"), F.col("number")))))


def percentiles(lateness: Column, begun: Column) -> Column:
    """Return a struct of the PERCENTILES of a sorted array of (ms, number). begun: the sum of the numbers."""

    def step(before: Column, each: Column) -> Column:
        so_far = before["so_far"] + each["number"]
        found = (F.coalesce(before[name], F.when(so_far >= begun * share, each["ms"])).alias(name)
                 for name, share in PERCENTILES.items())  # fmt: skip
        return F.struct(so_far.alias("so_far"), *found)

    none = F.struct(F.lit(0).cast("long").alias("so_far"), *(_no_ms().alias(name) for name in PERCENTILES))
    return F.aggregate(lateness, none, step, lambda last: F.struct(*(last[name].alias(name) for name in PERCENTILES)))


def histogram(lateness: Column) -> Column:
    """Round the ms of a sorted array of (ms, number) down to two digits, and add up the numbers of equal ms.

    Equal values are adjacent, so each step adds to the last bucket or begins a new one.
    """

    def step(before: Column, each: Column) -> Column:
        ms = round_down(each["ms"], 2)
        same = before["ms"] == ms
        return F.struct(
            F.when(same, before["buckets"]).otherwise(all_of(before)).alias("buckets"), ms.alias("ms"),
            (F.when(same, before["number"]).otherwise(0) + each["number"]).alias("number"),
        )  # fmt: skip

    def all_of(last: Column) -> Column:
        bucket = F.struct(last["ms"].alias("ms"), last["number"].alias("number"))
        return F.when(last["ms"].isNull(), last["buckets"]).otherwise(F.concat(last["buckets"], F.array(bucket)))

    none = F.struct(
        F.array().cast(schemas.HISTOGRAM.simpleString()).alias("buckets"), _no_ms().alias("ms"),
        F.lit(0).cast("long").alias("number"),
    )  # fmt: skip
    return F.aggregate(lateness, none, step, all_of)


def _no_ms() -> Column:
    return F.lit(None).cast("long")
