"""Compute the figures of a report's page. The number of figures is bounded, however many jobs and topics there are."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from math import ceil, floor
from typing import Any

import pyarrow
from pyarrow import compute
from pyarrow.compute import field
from pyspark.sql.pandas.types import to_arrow_schema

from .. import schemas
from ..applications.stale_hours import HOUR_MS, MINUTE_MS, hour_of
from ..transforms.outcomes import percentile
from ..transforms.spikes import herds
from ..transforms.summaries import (
    HOUR_SUMS,
    NUMBER,
    RUN_SUMS,
    Grouping,
    Histogram,
    combine,
    histogram,
    histograms,
    statistics,
)

DAYS = 7  # days in an hourly chart; the figures cover twice as many, for the comparison with the week before
MAX_TOPICS = 40  # in the table of topics
MAX_HERDS = 20
SHOWN_TOPICS = 3  # listed for each herd
Statistics = dict[str, Any]  # the numeric columns of HOURS, without nulls
DAY, BEFORE = "day", "before"  # the last 24 full hours, and the same hours a week before
HOUR, TOPIC, TOPIC_PERIOD = ("hour_ms",), ("topic",), ("topic", "period")
GROUPINGS = {
    "hours": Grouping(HOUR, HOUR_SUMS), "hours late": Grouping((*HOUR, "ms"), NUMBER),
    "topics": Grouping(TOPIC_PERIOD, HOUR_SUMS), "topics late": Grouping((*TOPIC_PERIOD, "ms"), NUMBER),
    "events": Grouping(("topic", "hour_ms"), (("happened", "sum"),)),
    "runs": Grouping(TOPIC, RUN_SUMS), "runs histogram": Grouping((*TOPIC, "ms"), NUMBER),
}  # fmt: skip


@dataclass(frozen=True)
class Herd:
    """A minute in which unusually many jobs fall due; see spikes.py."""

    minute_ms: int  # start of the minute, in ms since 1970
    due: int  # number of jobs
    topics: tuple[tuple[str, int], ...]  # the topics with most jobs due in this minute, with the number of these jobs


@dataclass(frozen=True)
class Topic:
    """A row in the page's table of topics."""

    name: str
    day: Statistics  # of the last 24 full hours
    before: Statistics  # of the same hours a week before; empty: no events
    hours: tuple[int, ...]  # events in each of the 24 hours
    due: int  # number of jobs that fall due, without overdue ones
    overdue: int
    run_mean_ms: float | None = None  # run time of the attempts in the last two weeks; None: there were none
    run_p95_ms: int | None = None


@dataclass(frozen=True)
class Need:
    """The run slots needed for the jobs that fall due in an hour. A slot runs one job at a time.

    hour_ms      start of the hour, in ms since 1970
    jobs         number of jobs; in the first hour also the overdue ones
    work_ms      sum of the jobs' expected run times
    unknown      number of jobs whose topic has no known run time; they add nothing to work_ms and slot_parts
    slot_parts   sum of the part of a slot that each job needs: of n jobs that a slot runs in an hour, each needs 1/n
    """

    hour_ms: int
    jobs: int
    work_ms: float
    unknown: int
    slot_parts: float

    @property
    def slots(self) -> int:
        """The number of slots that run the jobs within an hour. A job that takes longer needs one slot."""
        return _round_up(self.slot_parts)

    @property
    def minutes(self) -> int:
        """How many minutes these slots are busy, rounded up."""
        return _round_up(self.work_ms / self.slots / MINUTE_MS) if self.slots else 0


def _round_up(number: float) -> int:
    return ceil(round(number, 9))  # without the errors of a sum of floats


@dataclass(frozen=True)
class Facts:
    """The figures of one page.

    taken_ms     time of the snapshot, in ms since 1970
    end_ms       end of the last full hour; later events are not shown
    hours        statistics over all topics for each hour of the last week; {} for an hour without events
    before       the same for the week before
    more_topics  number of topics that are not in the table
    minutes      number of jobs that fall due in each minute from start_ms on
    overdue      number of overdue jobs of all topics, including topics that are not in the table
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
    herds: list[Herd] = attribute(default_factory=list)
    needs: list[Need] = attribute(default_factory=list)


def first_ms(now_ms: int) -> int:
    """Return the start of the first hour that the page needs, in ms since 1970."""
    return hour_of(now_ms) - 2 * DAYS * 24 * HOUR_MS


def facts(hours: Iterable[pyarrow.Table], due: pyarrow.Table, now_ms: int, until_ms: int) -> Facts:
    """Compute the figures of a page.

    hours      batches of rows with the columns of schemas.HOURS, from first_ms() on
    due        the jobs that fall due before until_ms, with the columns of schemas.DUE
    now_ms     time of the snapshot, in ms since 1970
    """
    end_ms, start_ms = hour_of(now_ms), now_ms - now_ms % MINUTE_MS
    sums = _sum(hours, first_ms(now_ms), end_ms)
    by_hour = {hour: each for (hour,), each in statistics(sums["hours"], sums["hours late"], HOUR)}
    series = [by_hour.get(ms, {}) for ms in range(first_ms(now_ms), end_ms, HOUR_MS)]
    due = due.append_column("ms", _to_ms(due["minute_at"]))
    run_means = _run_means(sums["runs"])
    minutes = dict(_pairs(due, "ms", "due"))
    counts, midpoint = [minutes.get(ms, 0) for ms in range(start_ms, until_ms, MINUTE_MS)], DAYS * 24
    topics, more_topics = _topics(sums, _due_by_topic(due), run_means, end_ms)
    return Facts(
        now_ms, end_ms, series[midpoint:], series[:midpoint], topics, more_topics, start_ms, counts,
        sum(due["overdue"].to_pylist()), _herds(due, counts, start_ms), _needs(due, run_means),
    )  # fmt: skip


def _to_ms(times: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    return times.cast(pyarrow.timestamp("ms", "UTC")).cast(pyarrow.int64())


def _sum(hours: Iterable[pyarrow.Table], first_ms: int, end_ms: int) -> dict[str, pyarrow.Table]:
    """Return the sums of GROUPINGS over the hours from first_ms to end_ms."""
    none = to_arrow_schema(schemas.HOURS, timezone="UTC").empty_table()
    return combine(GROUPINGS, (_sum_batch(each, first_ms, end_ms) for each in itertools.chain([none], hours)))


def _sum_batch(hours: pyarrow.Table, first_ms: int, end_ms: int) -> dict[str, pyarrow.Table]:
    timed = hours.append_column("hour_ms", _to_ms(hours["hour_at"]))
    timed = timed.filter((field("hour_ms") >= first_ms) & (field("hour_ms") < end_ms))
    ms = timed["hour_ms"]
    periods = {name: compute.and_(compute.greater_equal(ms, at - 24 * HOUR_MS), compute.less(ms, at))
               for name, at in ((DAY, end_ms), (BEFORE, end_ms - DAYS * 24 * HOUR_MS))}  # fmt: skip
    period = compute.if_else(periods[DAY], DAY, compute.if_else(periods[BEFORE], BEFORE, None))
    timed = timed.append_column("period", period.cast(pyarrow.string()))
    days, today = timed.filter(field("period").is_valid()), timed.filter(field("period") == DAY)
    rows = {
        "hours": timed, "hours late": histogram(timed, "late", HOUR), "topics": days,
        "topics late": histogram(days, "late", TOPIC_PERIOD), "events": today,
        "runs": timed.filter(field("attempts") > 0), "runs histogram": histogram(timed, "run", TOPIC),
    }  # fmt: skip
    return {name: GROUPINGS[name].apply(each) for name, each in rows.items()}


def _pairs(table: pyarrow.Table, by: str, number: str) -> Iterator[tuple[Any, Any]]:
    """Yield (value, sum): the sum of the column `number` for each value of the column `by`."""
    sums = Grouping((by,), ((number, "sum"),)).apply(table)
    return zip(sums[by].to_pylist(), sums[number].to_pylist(), strict=True)


def _run_means(runs: pyarrow.Table) -> dict[str, float]:
    return {row["topic"]: row["run_total_ms"] / row["attempts"] for row in runs.to_pylist()}


def _due_by_topic(due: pyarrow.Table) -> dict[str, tuple[int, int]]:
    """Return topic -> (number of jobs that fall due, number of overdue jobs)."""
    sums = Grouping(TOPIC, (("due", "sum"), ("overdue", "sum"))).apply(due)
    return {row["topic"]: (row["due"], row["overdue"]) for row in sums.to_pylist()}


def _herds(due: pyarrow.Table, minutes: Sequence[int], start_ms: int) -> list[Herd]:
    """Return the MAX_HERDS largest herds in order of time, each with its largest topics."""
    indexes = sorted(sorted(herds(minutes), key=lambda index: -minutes[index])[:MAX_HERDS])
    at = {start_ms + index * MINUTE_MS: minutes[index] for index in indexes}
    rows = due.filter(field("ms").isin(list(at))).filter(field("due") > 0).to_pylist() if at else []
    rows.sort(key=lambda row: (-row["due"], row["topic"]))
    topics = {ms: tuple((row["topic"], row["due"]) for row in rows if row["ms"] == ms)[:SHOWN_TOPICS] for ms in at}
    return [Herd(ms, count, topics[ms]) for ms, count in at.items()]


def _needs(due: pyarrow.Table, run_means: Mapping[str, float]) -> list[Need]:
    """Return the need of each hour in which jobs fall due. A job is expected to take its topic's mean run time."""
    timed = due.append_column("hour_ms", pyarrow.array([hour_of(ms) for ms in due["ms"].to_pylist()], pyarrow.int64()))
    sums = Grouping(("hour_ms", "topic"), (("due", "sum"), ("overdue", "sum"))).apply(timed).sort_by(
        [("hour_ms", "ascending"), ("topic", "ascending")])  # fmt: skip
    needs: dict[int, Need] = {}
    for row in sums.to_pylist():
        jobs, mean = row["due"] + row["overdue"], run_means.get(row["topic"])
        need = needs.get(row["hour_ms"], Need(row["hour_ms"], 0, 0.0, 0, 0.0))
        needs[need.hour_ms] = replace(
            need, jobs=need.jobs + jobs, work_ms=need.work_ms + jobs * (mean or 0.0),
            unknown=need.unknown + (jobs if mean is None else 0),
            slot_parts=need.slot_parts + (jobs * _slot_part(mean) if mean else 0.0),
        )  # fmt: skip
    return list(needs.values())


def _slot_part(mean_ms: float) -> float:
    """Return the part of a slot that a job needs. A slot runs whole jobs within an hour, and at least one."""
    return 1 / max(1, floor(round(HOUR_MS / mean_ms, 6)))


def _topics(
    sums: Mapping[str, pyarrow.Table], due: Mapping[str, tuple[int, int]], run_means: Mapping[str, float], end_ms: int
) -> tuple[list[Topic], int]:
    """Return the topics with most events in the last 24 hours, then most jobs due, and the number of other topics."""
    periods = sums["topics"]
    happened = dict(_pairs(periods.filter(field("period") == DAY), "topic", "happened"))
    names = {*periods["topic"].to_pylist(), *due}
    ranked = sorted(names, key=lambda name: (-happened.get(name, -1), -due.get(name, (-1, 0))[0], name))
    shown = ranked[:MAX_TOPICS]
    is_shown = field("topic").isin(pyarrow.array(shown, pyarrow.string()))
    few = {name: sums[name].filter(is_shown) for name in (
        "topics", "topics late", "events", "runs histogram")}  # fmt: skip
    figures = dict(statistics(few["topics"], few["topics late"], TOPIC_PERIOD))
    events = {(row["topic"], row["hour_ms"]): row["happened"] for row in few["events"].to_pylist()}
    runs = {topic: entries for (topic,), entries in histograms(few["runs histogram"], TOPIC).items()}
    spans = range(end_ms - 24 * HOUR_MS, end_ms, HOUR_MS)
    topics = [
        Topic(name, figures.get((name, DAY), {}), figures.get((name, BEFORE), {}),
              tuple(events.get((name, at), 0) for at in spans), *due.get(name, (0, 0)),
              run_means.get(name), _run_p95(runs.get(name, [])))
        for name in shown
    ]  # fmt: skip
    return topics, len(ranked) - len(shown)


def _run_p95(runs: Histogram) -> int | None:
    """Return the 95th percentile of run times in ms; None if there are none."""
    return percentile(runs, 0.95 * sum(number for _, number in runs))
