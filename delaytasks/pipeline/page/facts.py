"""Figures of a report's page. Their number is bounded, however many jobs and topics there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..applications.stale_hours import HOUR_MS, MINUTE_MS, hour_of
from ..transforms import lateness
from ..transforms.spikes import herds

DAYS = 7  # length of the hourly charts, which are compared with the same time before
MAX_TOPICS = 40  # in the table of topics
MAX_HERDS = 20
SHOWN_TOPICS = 3  # listed for each herd
Statistics = dict[str, Any]  # the numeric columns of HOURS, without nulls


@dataclass(frozen=True)
class Herd:
    minute_ms: int
    due: int
    topics: tuple[tuple[str, int], ...]  # the topics with most jobs due in this minute, with the number of these jobs


@dataclass(frozen=True)
class Topic:
    name: str
    day: Statistics  # of the last 24 full hours
    before: Statistics  # of the same hours a week before; empty: no events
    hours: tuple[int, ...]  # events in each of the 24 hours
    due: int
    overdue: int
    run_mean_ms: float | None = None  # of attempts in the last two weeks; None: there were none
    run_p95_ms: int | None = None


@dataclass(frozen=True)
class Need:
    """The slots for the jobs that fall due in an hour. A slot runs one job at a time.

    jobs       number of jobs; in the first hour also the overdue ones
    work_ms    sum of their expected run times
    unknown    number of those jobs whose topic has no run time; they are not in work_ms
    """

    hour_ms: int
    jobs: int
    work_ms: float
    unknown: int

    @property
    def slots(self) -> int:
        """The least number of slots that run the jobs of the hour in an hour."""
        return ceil(self.work_ms / HOUR_MS)

    @property
    def minutes(self) -> int:
        """How long these slots are busy, rounded up."""
        return ceil(self.work_ms / self.slots / MINUTE_MS) if self.slots else 0


@dataclass(frozen=True)
class Facts:
    """The figures of one page.

    taken_ms     time of the snapshot, in ms since 1970
    end_ms       end of the last full hour; later events are not shown
    hours        statistics over all topics for each hour of the last week; {} for an hour without events
    before       the same for the week before
    more_topics  number of topics that are not in the table
    minutes      number of jobs that fall due in each minute from start_ms on
    overdue      number of overdue jobs of all topics, also of those that are not in the table
    needs        each hour in which jobs fall due, in order of time
    """

    taken_ms: int
    end_ms: int
    hours: list[Statistics]
    before: list[Statistics]
    topics: list[Topic]
    more_topics: int
    start_ms: int
    minutes: list[int]
    overdue: int
    herds: list[Herd] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)


def first_ms(now_ms: int) -> int:
    """Return the start of the first hour that the page needs."""
    return hour_of(now_ms) - 2 * DAYS * 24 * HOUR_MS


def facts(hours: DataFrame, due: DataFrame, now_ms: int, until_ms: int) -> Facts:
    """Compute the figures. Needs the columns schemas.HOURS from first_ms() on in `hours`, and schemas.DUE in `due`."""
    end_ms, start_ms = hour_of(now_ms), now_ms - now_ms % MINUTE_MS
    timed = hours.withColumn("hour_ms", F.unix_millis("hour_at"))
    timed = timed.where((F.col("hour_ms") >= first_ms(now_ms)) & (F.col("hour_ms") < end_ms))
    hour_statistics = [_to_statistics(row) for row in lateness.sum_hours(timed, ["hour_ms"]).collect()]
    by_hour = {statistics.pop("hour_ms"): statistics for statistics in hour_statistics}
    series = [by_hour.get(ms, {}) for ms in range(first_ms(now_ms), end_ms, HOUR_MS)]
    minutes, overdue = _minutes(due, start_ms, until_ms)
    run_times = lateness.run_times(timed, ["topic"]).persist()
    topics, more_topics = _topics(timed, due, run_times, end_ms)
    needs = [Need(**row.asDict()) for row in lateness.work_by_hour(due, run_times).orderBy("hour_ms").collect()]
    run_times.unpersist()
    midpoint = DAYS * 24
    spikes = _herds(due, minutes, start_ms)
    return Facts(
        now_ms, end_ms, series[midpoint:], series[:midpoint], topics, more_topics, start_ms, minutes, overdue, spikes,
        needs,
    )  # fmt: skip


def _to_statistics(row: Any) -> Statistics:
    return {name: value for name, value in row.asDict().items() if value is not None}


def _minutes(due: DataFrame, start_ms: int, until_ms: int) -> tuple[list[int], int]:
    """Return the number of jobs that fall due in each minute, and the number of overdue jobs."""
    sums = (F.sum(name).alias(name) for name in ("due", "overdue"))
    rows = due.groupBy(F.unix_millis("minute_at").alias("ms")).agg(*sums).collect()
    due_at = {row.ms: row.due for row in rows}
    return [due_at.get(ms, 0) for ms in range(start_ms, until_ms, MINUTE_MS)], sum(row.overdue for row in rows)


def _herds(due: DataFrame, minutes: Sequence[int], start_ms: int) -> list[Herd]:
    """Return the MAX_HERDS largest herds in order of time, each with its largest topics."""
    indexes = sorted(sorted(herds(minutes), key=lambda index: -minutes[index])[:MAX_HERDS])
    at = {start_ms + index * MINUTE_MS: minutes[index] for index in indexes}
    if not at:
        return []
    timed = due.withColumn("ms", F.unix_millis("minute_at")).where(F.col("ms").isin(*at))
    rows = timed.orderBy(F.desc("due"), "topic").select("ms", "topic", "due").collect()
    topics = {ms: tuple((row.topic, row.due) for row in rows if row.ms == ms and row.due)[:SHOWN_TOPICS] for ms in at}
    return [Herd(ms, count, topics[ms]) for ms, count in at.items()]


def _topics(timed: DataFrame, due: DataFrame, run_times: DataFrame, end_ms: int) -> tuple[list[Topic], int]:
    """Return the topics with most events in the last 24 hours, then most jobs due, and the number of other topics."""
    day_ms = end_ms - 24 * HOUR_MS
    week_ms = DAYS * 24 * HOUR_MS
    ms = F.col("hour_ms")
    period = F.when(ms >= day_ms, "day").when((ms >= day_ms - week_ms) & (ms < end_ms - week_ms), "before")
    topic_sums = lateness.sum_hours(
        timed.withColumn("period", period).where("period is not null"), ["topic", "period"]
    ).persist()
    due_sums = due.groupBy("topic").agg(F.sum("due").alias("due"), F.sum("overdue").alias("overdue")).persist()
    names = topic_sums.select("topic").union(due_sums.select("topic")).distinct()
    today = topic_sums.where("period = 'day'").select("topic", "happened")
    order = [F.desc_nulls_last("happened"), F.desc_nulls_last("due"), F.asc("topic")]
    ranked = names.join(today, "topic", "left").join(due_sums, "topic", "left").orderBy(*order)
    rows = ranked.limit(MAX_TOPICS).join(run_times, "topic", "left").orderBy(*order).collect()
    shown = [row.topic for row in rows]
    topic_statistics = {
        (row.topic, row.period): _to_statistics(row) for row in topic_sums.where(F.col("topic").isin(*shown)).collect()
    }
    hourly = timed.where(F.col("topic").isin(*shown) & (ms >= day_ms)).select("topic", "hour_ms", "happened").collect()
    events = {(row.topic, row.hour_ms): row.happened for row in hourly}
    spans = range(day_ms, end_ms, HOUR_MS)
    topics = [
        Topic(row.topic, topic_statistics.get((row.topic, "day"), {}), topic_statistics.get((row.topic, "before"), {}),
              tuple(events.get((row.topic, at), 0) for at in spans), row.due or 0, row.overdue or 0,
              row.run_mean_ms, row.run_p95_ms)
        for row in rows
    ]  # fmt: skip
    more_topics = names.count() - len(topics) if len(topics) == MAX_TOPICS else 0
    topic_sums.unpersist()
    due_sums.unpersist()
    return topics, more_topics
