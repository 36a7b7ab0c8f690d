"""From events to what is told of a topic and an hour. Each step is a DataFrame from a DataFrame; times in ms."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..states import State
from . import schemas
from .hours import HOUR_MS, MINUTE_MS
from .outcomes import OUTCOMES, SHARES, SUMS

SPANS = {"hour_ms": HOUR_MS, "minute_ms": MINUTE_MS}  # name of the column -> its length


def cut(ms: Column, digits: int) -> Column:
    """A length of time to so many digits, cut."""
    zeros = F.greatest(F.length(ms.cast("string")) - digits, F.lit(0))
    unit = F.pow(F.lit(10), zeros).cast("long")
    return ms - ms % unit


def hour_ms() -> Column:
    """The beginning of the hour in which an event happened. Needs done_ms."""
    return F.col("done_ms") - F.col("done_ms") % HOUR_MS


def counted(events: DataFrame, span: str = "hour_ms") -> DataFrame:
    """topic, hour_ms, outcome, late_ms (to three digits; null: not a first attempt) -> number, worst_ms.

    span   one of SPANS: minute_ms instead of hour_ms

    Needs topic, outcome, attempt, due_ms, reserved_ms, done_ms. How late tells the first attempt: a later one may
    have waited until the one before it gave up. Events whose topic is not known are left out.
    """
    first = (F.col("attempt") == 1) & F.col("reserved_ms").isNotNull()
    late = F.when(first, F.greatest(F.col("reserved_ms") - F.col("due_ms"), F.lit(0)))
    return (
        events.where(F.col("topic").isNotNull())
        .select("topic", (F.col("done_ms") - F.col("done_ms") % SPANS[span]).alias(span), "outcome", late.alias("late"))
        .groupBy("topic", span, "outcome", cut(F.col("late"), 3).alias("late_ms"))
        .agg(F.count("*").alias("number"), F.max("late").alias("worst_ms"))
    )


def by_hour(counts: DataFrame) -> DataFrame:
    """schemas.HOURS. Needs what counted() gives."""
    by = ("topic", "hour_ms")
    whole = _joined(_told(counts, by), [kept(_lateness(counts, by), by)], by)
    return _as(whole.withColumn("hour_at", F.timestamp_millis("hour_ms")), schemas.HOURS.names)


def by_minute(counts: DataFrame) -> DataFrame:
    """schemas.MINUTES. Needs what counted() gives of minutes, of any number of batches together."""
    told = _told(counts, ("topic", "minute_ms"))
    return told.withColumn("minute_at", F.timestamp_millis("minute_ms")).select(*schemas.MINUTES.names)


def together(counts: DataFrame) -> DataFrame:
    """What counted() would have given of all events at once. Needs what it gave of minutes, of parts of them."""
    by = ("topic", "minute_ms", "outcome", "late_ms")
    return counts.groupBy(*by).agg(F.sum("number").alias("number"), F.max("worst_ms").alias("worst_ms"))


def _told(counts: DataFrame, by: Sequence[str]) -> DataFrame:
    """`by` -> what happened, and how late first attempts were."""
    outcomes = counts.groupBy(*by).agg(
        F.sum("number").alias("happened"),
        *(F.sum(F.when(F.col("outcome").isin(*map(str, of)), F.col("number")).otherwise(0)).alias(name)
          for name, of in OUTCOMES.items()),
    )  # fmt: skip
    late = _lateness(counts, by)
    worst = late.groupBy(*by).agg(F.max("worst_ms").alias("late_worst_ms"))
    return _joined(outcomes, [percentiles(late, by), worst], by)


def _lateness(counts: DataFrame, by: Sequence[str]) -> DataFrame:
    """`by`, ms -> number, worst_ms."""
    late = counts.where(F.col("late_ms").isNotNull()).withColumnRenamed("late_ms", "ms")
    return late.groupBy(*by, "ms").agg(F.sum("number").alias("number"), F.max("worst_ms").alias("worst_ms"))


def percentiles(late: DataFrame, by: Sequence[str]) -> DataFrame:
    """`by` -> begun, and the lateness that 50, 95 and 99 of a hundred did not exceed. Needs `by`, ms, number."""
    among = Window.partitionBy(*by)
    so_far = F.sum("number").over(among.orderBy("ms").rowsBetween(Window.unboundedPreceding, Window.currentRow))
    ranked = late.select(
        *by, "ms", "number", so_far.alias("so_far"), F.sum("number").over(among).alias("all")
    )  # fmt: skip
    shares = [
        F.min(F.when(F.col("so_far") >= F.col("all") * share, F.col("ms"))).alias(name)
        for name, share in SHARES.items()
    ]
    return ranked.groupBy(*by).agg(F.sum("number").alias("begun"), *shares)


def kept(late: DataFrame, by: Sequence[str]) -> DataFrame:
    """`by` -> late: how many were how late, to two digits, sorted. Needs `by`, ms, number."""
    coarse = late.groupBy(*by, cut(F.col("ms"), 2).alias("ms")).agg(F.sum("number").alias("number"))
    return coarse.groupBy(*by).agg(F.sort_array(F.collect_list(F.struct("ms", "number"))).alias("late"))


def summed(hours: DataFrame, by: Sequence[str]) -> DataFrame:
    """`by` -> what HOURS tells, of all its rows together; percentiles to two digits. Needs HOURS and `by`."""
    sums = hours.groupBy(*by).agg(
        *(F.sum(name).alias(name) for name in SUMS), F.max("late_worst_ms").alias("late_worst_ms")
    )
    late = hours.select(*by, F.explode("late").alias("each")).select(*by, "each.ms", "each.number")
    late = late.groupBy(*by, "ms").agg(F.sum("number").alias("number"))
    return _joined(sums, [percentiles(late, by)], by)


def due_by_minute(jobs: DataFrame, now_ms: int, until_ms: int) -> DataFrame:
    """schemas.DUE: what falls due up to until_ms; what is overdue is in the first minute.

    Needs topic, state, due_at, ended_at. A reserved job has fallen due already.
    """
    now, until = (F.timestamp_millis(F.lit(ms)) for ms in (now_ms, until_ms))
    live = F.col("ended_at").isNull() & (F.col("state") == int(State.DELAYED)) & (F.col("due_at") < until)
    minute = F.date_trunc("minute", F.greatest(F.col("due_at"), now))
    return (
        jobs.where(live)
        .groupBy("topic", minute.alias("minute_at"))
        .agg(F.count_if(F.col("due_at") > now).alias("due"), F.count_if(F.col("due_at") <= now).alias("overdue"))
    )


def _joined(whole: DataFrame, parts: Sequence[DataFrame], by: Sequence[str]) -> DataFrame:
    for part in parts:
        whole = whole.join(part, [*by], "left")
    return whole.withColumn("begun", F.coalesce("begun", F.lit(0)))


def _as(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    return frame.withColumn("late", F.coalesce("late", F.array().cast(schemas.LATE))).select(*names)
