"""Compute statistics per topic and hour or minute from events.

Each function takes and returns data frames. Times are in milliseconds since 1970, durations in milliseconds.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ...states import State
from .. import schemas
from ..applications.stale_hours import HOUR_MS, MINUTE_MS
from .outcomes import OUTCOME_COLUMNS, PERCENTILES, SUM_COLUMNS

PERIODS = {"hour_ms": HOUR_MS, "minute_ms": MINUTE_MS}  # column with a period's start -> length of the period in ms


def round_down(ms: Column, digits: int) -> Column:
    """Round a duration down to its first `digits` digits."""
    zeros = F.greatest(F.length(ms.cast("string")) - digits, F.lit(0))
    unit = F.pow(F.lit(10), zeros).cast("long")
    return ms - ms % unit


def hour_ms() -> Column:
    """Return the start of the hour in which an event happened, in ms since 1970. Needs done_ms."""
    return F.col("done_ms") - F.col("done_ms") % HOUR_MS


def count_events(events: DataFrame, period: str = "hour_ms") -> DataFrame:
    """Count events by topic, hour, outcome and lateness. Return topic, hour_ms, outcome, late_ms, number, worst_ms.

    hour_ms    start of the hour
    late_ms    lateness of a first attempt, rounded down to three digits; null for all other events
    number     number of events
    worst_ms   greatest exact lateness of these events
    period     column for the start of the period, a key of PERIODS: minute_ms counts by minute instead of by hour

    Needs topic, outcome, attempt, due_ms, reserved_ms, done_ms. Lateness is measured on first attempts only: a later
    attempt may have waited for the attempt before it. Events without a topic are left out.
    """
    first = (F.col("attempt") == 1) & F.col("reserved_ms").isNotNull()
    late = F.when(first, F.greatest(F.col("reserved_ms") - F.col("due_ms"), F.lit(0)))
    start = F.col("done_ms") - F.col("done_ms") % PERIODS[period]
    return (
        events.where(F.col("topic").isNotNull())
        .select("topic", start.alias(period), "outcome", late.alias("late"))
        .groupBy("topic", period, "outcome", round_down(F.col("late"), 3).alias("late_ms"))
        .agg(F.count("*").alias("number"), F.max("late").alias("worst_ms"))
    )


def by_hour(counts: DataFrame) -> DataFrame:
    """Return the statistics of each topic and hour, with the columns schemas.HOURS. Needs those of count_events()."""
    by = ("topic", "hour_ms")
    statistics = _join_all(_statistics(counts, by), [histogram(_lateness(counts, by), by)], by)
    return _select(statistics.withColumn("hour_at", F.timestamp_millis("hour_ms")), schemas.HOURS.names)


def by_minute(counts: DataFrame) -> DataFrame:
    """Return the statistics of each topic and minute, with the columns schemas.MINUTES.

    Needs the columns of count_events() by minute. The counts of several batches are added up.
    """
    statistics = _statistics(counts, ("topic", "minute_ms"))
    return statistics.withColumn("minute_at", F.timestamp_millis("minute_ms")).select(*schemas.MINUTES.names)


def merge_counts(counts: DataFrame) -> DataFrame:
    """Merge the results of count_events() by minute for several batches into one result with the same columns."""
    by = ("topic", "minute_ms", "outcome", "late_ms")
    return counts.groupBy(*by).agg(F.sum("number").alias("number"), F.max("worst_ms").alias("worst_ms"))


def _statistics(counts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return for each value of `by` the number of events per outcome and the lateness of first attempts."""
    outcomes = counts.groupBy(*by).agg(
        F.sum("number").alias("happened"),
        *(F.sum(F.when(F.col("outcome").isin(*map(str, outcomes_of)), F.col("number")).otherwise(0)).alias(name)
          for name, outcomes_of in OUTCOME_COLUMNS.items()),
    )  # fmt: skip
    late = _lateness(counts, by)
    worst = late.groupBy(*by).agg(F.max("worst_ms").alias("late_worst_ms"))
    return _join_all(outcomes, [percentiles(late, by), worst], by)


def _lateness(counts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the number of first attempts by `by` and lateness, with the columns `by`, ms, number and worst_ms."""
    late = counts.where(F.col("late_ms").isNotNull()).withColumnRenamed("late_ms", "ms")
    return late.groupBy(*by, "ms").agg(F.sum("number").alias("number"), F.max("worst_ms").alias("worst_ms"))


def percentiles(late: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return for each value of `by` the 50th, 95th and 99th percentile of lateness.

    The column begun has the number of first attempts. Needs `by`, ms, number.
    """
    window = Window.partitionBy(*by)
    so_far = F.sum("number").over(window.orderBy("ms").rowsBetween(Window.unboundedPreceding, Window.currentRow))
    ranked = late.select(
        *by, "ms", "number", so_far.alias("so_far"), F.sum("number").over(window).alias("all")
    )  # fmt: skip
    percentile_columns = [
        F.min(F.when(F.col("so_far") >= F.col("all") * share, F.col("ms"))).alias(name)
        for name, share in PERCENTILES.items()
    ]
    return ranked.groupBy(*by).agg(F.sum("number").alias("begun"), *percentile_columns)


def histogram(late: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return for each value of `by` the column late: a sorted histogram of lateness, rounded down to two digits.

    Needs `by`, ms, number.
    """
    buckets = late.groupBy(*by, round_down(F.col("ms"), 2).alias("ms")).agg(F.sum("number").alias("number"))
    return buckets.groupBy(*by).agg(F.sort_array(F.collect_list(F.struct("ms", "number"))).alias("late"))


def sum_hours(hours: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return for each value of `by` the statistics over all its hours. Needs the columns schemas.HOURS and `by`.

    The percentiles are computed from the histograms, so they are rounded down to two digits.
    """
    sums = hours.groupBy(*by).agg(
        *(F.sum(name).alias(name) for name in SUM_COLUMNS), F.max("late_worst_ms").alias("late_worst_ms")
    )
    late = hours.select(*by, F.explode("late").alias("each")).select(*by, "each.ms", "each.number")
    late = late.groupBy(*by, "ms").agg(F.sum("number").alias("number"))
    return _join_all(sums, [percentiles(late, by)], by)


def due_by_minute(jobs: DataFrame, now_ms: int, until_ms: int) -> DataFrame:
    """Return the number of jobs that fall due in each minute before until_ms, with the columns schemas.DUE.

    Overdue jobs are counted in the first minute, which contains now_ms.

    Needs topic, state, due_at, ended_at. Reserved jobs are left out, as they have been due already.
    """
    now, until = (F.timestamp_millis(F.lit(ms)) for ms in (now_ms, until_ms))
    live = F.col("ended_at").isNull() & (F.col("state") == int(State.DELAYED)) & (F.col("due_at") < until)
    minute = F.date_trunc("minute", F.greatest(F.col("due_at"), now))
    return (
        jobs.where(live)
        .groupBy("topic", minute.alias("minute_at"))
        .agg(F.count_if(F.col("due_at") > now).alias("due"), F.count_if(F.col("due_at") <= now).alias("overdue"))
    )


def _join_all(joined: DataFrame, parts: Sequence[DataFrame], by: Sequence[str]) -> DataFrame:
    for part in parts:
        joined = joined.join(part, [*by], "left")
    return joined.withColumn("begun", F.coalesce("begun", F.lit(0)))


def _select(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    return frame.withColumn("late", F.coalesce("late", F.array().cast(schemas.LATE))).select(*names)
