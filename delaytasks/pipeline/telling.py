"""What a report's page tells, as plain numbers: a bounded number of them, however many jobs and topics there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from . import steps
from .herds import herds
from .hours import HOUR_MS, MINUTE_MS, hour_of

DAYS = 7  # of the charts of hours, and how long before it is what is compared
MOST_TOPICS = 40  # in the table; of the others it tells how many there are
MOST_HERDS = 20
NAMED = 3  # topics of a herd
Numbers = dict[str, Any]  # the columns of HOURS that are numbers


@dataclass(frozen=True)
class Herd:
    minute_ms: int
    due: int
    topics: tuple[tuple[str, int], ...]  # those with most


@dataclass(frozen=True)
class Topic:
    name: str
    day: Numbers  # of the last 24 whole hours
    before: Numbers  # of the same hours a week before; empty: nothing happened
    hours: tuple[int, ...]  # events in each of the 24 hours
    due: int
    overdue: int


@dataclass(frozen=True)
class Facts:
    """end_ms   the last whole hour's end: what happened is told up to it
    hours    per hour of the last week: what happened in all topics; empty: nothing
    before   the same, a week before
    minutes  jobs that fall due, minute by minute from start_ms on
    overdue  jobs of all topics, those beyond the table too
    """

    taken_ms: int
    end_ms: int
    hours: list[Numbers]
    before: list[Numbers]
    topics: list[Topic]
    more_topics: int
    start_ms: int
    minutes: list[int]
    overdue: int
    herds: list[Herd] = field(default_factory=list)


def first_ms(now_ms: int) -> int:
    """The beginning of what is told of: earlier hours are not needed."""
    return hour_of(now_ms) - 2 * DAYS * 24 * HOUR_MS


def facts(hours: DataFrame, due: DataFrame, now_ms: int, until_ms: int) -> Facts:
    """Needs HOURS, from first_ms() on, and DUE."""
    end_ms, start_ms = hour_of(now_ms), now_ms - now_ms % MINUTE_MS
    timed = hours.withColumn("hour_ms", F.unix_millis("hour_at"))
    timed = timed.where((F.col("hour_ms") >= first_ms(now_ms)) & (F.col("hour_ms") < end_ms))
    each = [_numbers(row) for row in steps.summed(timed, ["hour_ms"]).collect()]
    by_hour = {numbers.pop("hour_ms"): numbers for numbers in each}
    series = [by_hour.get(ms, {}) for ms in range(first_ms(now_ms), end_ms, HOUR_MS)]
    minutes, overdue = _minutes(due, start_ms, until_ms)
    topics, more = _topics(timed, due, end_ms)
    half = DAYS * 24
    found = _herds(due, minutes, start_ms)
    return Facts(now_ms, end_ms, series[half:], series[:half], topics, more, start_ms, minutes, overdue, found)


def _numbers(row: Any) -> Numbers:
    return {name: value for name, value in row.asDict().items() if value is not None}


def _minutes(due: DataFrame, start_ms: int, until_ms: int) -> tuple[list[int], int]:
    """What falls due, minute by minute, and how many jobs are overdue."""
    sums = (F.sum(name).alias(name) for name in ("due", "overdue"))
    rows = due.groupBy(F.unix_millis("minute_at").alias("ms")).agg(*sums).collect()
    numbers = {row.ms: row.due for row in rows}
    return [numbers.get(ms, 0) for ms in range(start_ms, until_ms, MINUTE_MS)], sum(row.overdue for row in rows)


def _herds(due: DataFrame, minutes: Sequence[int], start_ms: int) -> list[Herd]:
    """The largest, in the order of time, with the topics that they are of."""
    places = sorted(sorted(herds(minutes), key=lambda place: -minutes[place])[:MOST_HERDS])
    at = {start_ms + place * MINUTE_MS: minutes[place] for place in places}
    if not at:
        return []
    timed = due.withColumn("ms", F.unix_millis("minute_at")).where(F.col("ms").isin(*at))
    rows = timed.orderBy(F.desc("due"), "topic").select("ms", "topic", "due").collect()
    topics = {ms: tuple((row.topic, row.due) for row in rows if row.ms == ms and row.due)[:NAMED] for ms in at}
    return [Herd(ms, number, topics[ms]) for ms, number in at.items()]


def _topics(timed: DataFrame, due: DataFrame, end_ms: int) -> tuple[list[Topic], int]:
    """Those with most to tell, and how many more there are."""
    day_ms = end_ms - 24 * HOUR_MS
    week_ms = DAYS * 24 * HOUR_MS
    ms = F.col("hour_ms")
    which = F.when(ms >= day_ms, "day").when((ms >= day_ms - week_ms) & (ms < end_ms - week_ms), "before")
    told = steps.summed(timed.withColumn("which", which).where("which is not null"), ["topic", "which"]).persist()
    coming = due.groupBy("topic").agg(F.sum("due").alias("due"), F.sum("overdue").alias("overdue")).persist()
    names = told.select("topic").union(coming.select("topic")).distinct()
    today = told.where("which = 'day'").select("topic", "happened")
    order = [F.desc_nulls_last("happened"), F.desc_nulls_last("due"), F.asc("topic")]
    most = names.join(today, "topic", "left").join(coming, "topic", "left").orderBy(*order)
    rows = most.limit(MOST_TOPICS).collect()
    chosen = [row.topic for row in rows]
    found = {(row.topic, row.which): _numbers(row) for row in told.where(F.col("topic").isin(*chosen)).collect()}
    hourly = timed.where(F.col("topic").isin(*chosen) & (ms >= day_ms)).select("topic", "hour_ms", "happened").collect()
    events = {(row.topic, row.hour_ms): row.happened for row in hourly}
    spans = range(day_ms, end_ms, HOUR_MS)
    topics = [
        Topic(row.topic, found.get((row.topic, "day"), {}), found.get((row.topic, "before"), {}),
              tuple(events.get((row.topic, at), 0) for at in spans), row.due or 0, row.overdue or 0)
        for row in rows
    ]  # fmt: skip
    more = names.count() - len(topics) if len(topics) == MOST_TOPICS else 0
    told.unpersist()
    coming.unpersist()
    return topics, more
