"""Statistics of schedules for the dashboard: next run, drift, missed and skipped runs.

Series are left out, because there may be very many: for example one for each order.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from .. import clock, databases
from ..calendars.wall_time import to_zone
from ..db import schedules as sql
from ..exceptions import BadInput
from ..models import Schedule
from ..monitoring import cache
from . import schedules
from .definition import state_of

FRESH_SECONDS = 10
MAX_SCHEDULES = 20  # those that run next
RUNS = 50  # of each schedule: the newest
SHORTEST, LONGEST = timedelta(hours=1), timedelta(days=60)  # limits of the period in which runs are searched
MISSED, SKIPPED = ("missed", "late"), ("running", "paused")  # reasons of begin.decide()


class ScheduleStats(NamedTuple):
    """A schedule, and its newest 50 runs.

    next_ms    due time of the next run; None: it is not running
    drift_ms   how late the newest run began; None: none of these has begun
    worst_ms   the largest drift
    missed     runs that could not begin on time and were skipped (missed=, within=)
    skipped    runs that were skipped because another one was running, or the schedule was paused
    """

    name: str
    topic: str
    state: str
    next_ms: int | None
    drift_ms: int | None
    worst_ms: int | None
    ran: int
    missed: int
    skipped: int


class Statistics(NamedTuple):
    schedules: tuple[ScheduleStats, ...]
    total: int  # number of all schedules, including those that are not among the first 20


def recent(using: str, topics: Collection[str] | None) -> Statistics:
    """Return the statistics of the 20 schedules that run next. They may be a few seconds old.

    topics   the topics whose schedules are shown; None: all
    """
    key = cache.cache_key("schedules", using, topics=topics)
    statistics: Statistics = cache.get_or_compute(key, FRESH_SECONDS, lambda _: _compute(using, topics), Statistics)
    return statistics


def _compute(using: str, topics: Collection[str] | None) -> Statistics:
    rows = Schedule.objects.using(using).filter(series_key__isnull=True)
    rows = rows if topics is None else rows.filter(topic__in=list(topics))
    shown = list(rows.order_by("ended", "paused", "made_until", "id")[:MAX_SCHEDULES])
    now = databases.now(using)
    ranges = {row.pk: _key_range(row, now) for row in shown}
    events: dict[int, list[sql.RunEvent]] = {row.pk: [] for row in shown}
    for event in sql.recent_runs(using, [(pk, *each) for pk, each in ranges.items() if each], RUNS):
        events[event.schedule_id].append(event)
    return Statistics(tuple(_stats(row, now, events[row.pk]) for row in shown), rows.count())


def _key_range(row: Schedule, now: datetime) -> tuple[str, str, str] | None:
    """Return the topic and the range of keys (lowest, highest) of the newest runs; None for a broken schedule.

    Keys contain wall times, so that they sort by time.
    """
    try:
        firings, zone = schedules.next_firings(row, 2, after=now - LONGEST), to_zone(row.tz)
    except BadInput:
        return None
    gap = firings[1].due - firings[0].due if len(firings) == 2 else LONGEST
    since = (now - min(max(gap * RUNS, SHORTEST), LONGEST)).astimezone(zone)
    return row.topic, f"{row.name}@{since:%Y-%m-%dT%H:%M:%S}", f"{row.name}@:"  # ":" sorts between digits and "now"


def _stats(row: Schedule, now: datetime, events: Iterable[sql.RunEvent]) -> ScheduleStats:
    reasons = [event.reason for event in events if event.outcome == "skipped"]
    missed, skipped = (sum(reason in among for reason in reasons) for among in (MISSED, SKIPPED))
    begun = [each for each in events if each.outcome != "skipped" or each.reason not in (*MISSED, *SKIPPED)]
    newest = max(begun, key=lambda each: each.due_ms, default=None)
    return ScheduleStats(
        row.name, row.topic, state_of(row, now), _next_ms(row, now), None if newest is None else newest.late_ms,
        max((each.late_ms for each in begun), default=None), len(begun), missed, skipped,
    )  # fmt: skip


def _next_ms(row: Schedule, now: datetime) -> int | None:
    if state_of(row, now) != "running":
        return None
    try:
        firings = schedules.next_firings(row, 1, after=now)
    except BadInput:
        return None
    return clock.to_ms(firings[0].due) if firings else None
