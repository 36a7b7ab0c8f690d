"""Compute statistics per topic and hour or minute from events: outcomes, lateness and run times.

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
    return (
        events.where(F.col("topic").isNotNull())
        .select("topic", _start(period).alias(period), "outcome", _late().alias("late"))
        .groupBy("topic", period, "outcome", round_down(F.col("late"), 3).alias("late_ms"))
        .agg(F.count("*").alias("number"), F.max("late").alias("worst_ms"))
    )


def count_hours(events: DataFrame) -> DataFrame:
    """Count events as count_events(), and attempts by run time, so that the events are read once.

    A row of attempts has run_ms and no outcome, a row of events has an outcome and no run_ms. Further columns:

    run_ms     time from the reservation to the end, rounded down to two digits
    total_ms   sum of the exact run times

    Needs the columns for count_events().
    """
    ran, no_time, no_text = (
        F.col("done_ms") - F.col("reserved_ms"),
        F.lit(None).cast("long"),
        F.lit(None).cast("string"),
    )
    event = F.struct(F.col("outcome"), _late().alias("late"), no_time.alias("ran"))
    attempt = F.struct(no_text.alias("outcome"), no_time.alias("late"), F.greatest(ran, F.lit(0)).alias("ran"))
    both = F.when(ran.isNotNull(), F.array(event, attempt)).otherwise(F.array(event))
    return (
        events.where(F.col("topic").isNotNull())
        .select("topic", _start("hour_ms").alias("hour_ms"), F.explode(both).alias("each"))
        .select("topic", "hour_ms", "each.*")
        .groupBy("topic", "hour_ms", "outcome", round_down(F.col("late"), 3).alias("late_ms"),
                 round_down(F.col("ran"), 2).alias("run_ms"))
        .agg(F.count("*").alias("number"), F.max("late").alias("worst_ms"), F.sum("ran").alias("total_ms"))
    )  # fmt: skip


def _late() -> Column:
    """Return the lateness of a first attempt, null for all other events."""
    first = (F.col("attempt") == 1) & F.col("reserved_ms").isNotNull()
    return F.when(first, F.greatest(F.col("reserved_ms") - F.col("due_ms"), F.lit(0)))


def _start(period: str) -> Column:
    return F.col("done_ms") - F.col("done_ms") % PERIODS[period]


def by_hour(counts: DataFrame) -> DataFrame:
    """Return the statistics of each topic and hour, with the columns schemas.HOURS. Needs those of count_hours()."""
    by = ("topic", "hour_ms")
    statistics = _join_all(_statistics(counts, by, *_runs()), [histogram(_lateness(counts, by), by)], by)
    return _select(statistics.withColumn("hour_at", F.timestamp_millis("hour_ms")), schemas.HOURS.names)


def _runs() -> list[Column]:
    """Return the aggregates attempts, run_total_ms and run of schemas.HOURS. Rows of events add nothing to them."""
    ms, number = F.col("run_ms"), F.col("number")
    each = F.when(ms.isNotNull(), F.struct(ms.alias("ms"), number))
    return [
        F.sum(F.when(ms.isNotNull(), number)).alias("attempts"), F.sum("total_ms").alias("run_total_ms"),
        F.sort_array(F.collect_list(each)).alias("run"),
    ]  # fmt: skip


def by_minute(counts: DataFrame) -> DataFrame:
    """Return the statistics of each topic and minute, with the columns schemas.MINUTES.

    Needs the columns of count_events() by minute. The counts of several batches are added up.
    """
    statistics = _statistics(counts, ("topic", "minute_ms"))
    return statistics.withColumn("minute_at", F.timestamp_millis("minute_ms")).select(*schemas.MINUTES.names)


def _statistics(counts: DataFrame, by: Sequence[str], *more: Column) -> DataFrame:
    """Return for each value of `by` the number of events per outcome and the lateness of first attempts.

    more   further aggregates
    """
    outcome, number = F.col("outcome"), F.col("number")
    outcomes = counts.groupBy(*by).agg(
        F.sum(F.when(outcome.isNotNull(), number)).alias("happened"),
        *(F.sum(F.when(outcome.isin(*map(str, outcomes_of)), number).otherwise(0)).alias(name)
          for name, outcomes_of in OUTCOME_COLUMNS.items()),
        F.max("worst_ms").alias("late_worst_ms"),
        *more,
    )  # fmt: skip
    return _join_all(outcomes, [percentiles(_lateness(counts, by), by)], by)


def _lateness(counts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the number of first attempts by `by` and lateness, with the columns `by`, ms and number."""
    late = counts.where(F.col("late_ms").isNotNull()).withColumnRenamed("late_ms", "ms")
    return late.groupBy(*by, "ms").agg(F.sum("number").alias("number"))


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
    return _join_all(sums, [percentiles(_sum_histograms(hours, "late", by), by)], by)


def run_times(hours: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return for each value of `by` with attempts: run_mean_ms, and run_p95_ms, rounded down to two digits.

    Needs attempts, run_total_ms, run and `by`. Hours of older reports, which lack these columns, do not count.
    """
    mean = (F.sum("run_total_ms") / F.sum("attempts")).alias("run_mean_ms")
    means = hours.where(F.col("attempts") > 0).groupBy(*by).agg(mean)
    slowest = percentiles(_sum_histograms(hours, "run", by), by)
    return means.join(slowest.select(*by, F.col("late_p95_ms").alias("run_p95_ms")), [*by])


def _sum_histograms(hours: DataFrame, name: str, by: Sequence[str]) -> DataFrame:
    """Return the sum of the histograms in this column for each value of `by`, with the columns `by`, ms and number."""
    buckets = hours.select(*by, F.explode(name).alias("each")).select(*by, "each.ms", "each.number")
    return buckets.groupBy(*by, "ms").agg(F.sum("number").alias("number"))


def work_by_hour(due: DataFrame, run_times: DataFrame) -> DataFrame:
    """Return for each hour in which jobs fall due: hour_ms, jobs, work_ms and unknown. Needs schemas.DUE.

    jobs       number of jobs that fall due, in the first hour also of overdue ones
    work_ms    sum of their expected run times: the mean of their topic
    unknown    number of jobs whose topic has no run time; they add nothing to work_ms

    run_times   topic, run_mean_ms
    """
    ms, jobs, mean = F.unix_millis("minute_at"), F.col("due") + F.col("overdue"), F.col("run_mean_ms")
    return (
        due.join(run_times.select("topic", "run_mean_ms"), "topic", "left")
        .groupBy((ms - ms % HOUR_MS).alias("hour_ms"))
        .agg(F.sum(jobs).alias("jobs"), F.coalesce(F.sum(jobs * mean), F.lit(0.0)).alias("work_ms"),
             F.sum(F.when(mean.isNull(), jobs).otherwise(0)).alias("unknown"))
    )  # fmt: skip


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
    empty = {name: F.coalesce(name, F.array().cast(schemas.HISTOGRAM)) for name in ("late", "run")}
    none = {name: F.coalesce(name, F.lit(0)) for name in ("attempts", "run_total_ms")}
    return frame.withColumns(empty | none).select(*names)
