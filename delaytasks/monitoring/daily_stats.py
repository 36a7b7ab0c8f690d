"""Daily and weekly figures per topic, from the hourly TopicStat rows that the pipeline's reports write.

This module reads no jobs or events.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Max, Q, Sum

from .. import clock, databases
from ..models import TopicStat
from . import cache

FRESH_SECONDS = 60  # a report runs each hour at most
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
HOUR_MS = 3_600_000


class PeriodStats(NamedTuple):
    """Figures of one period."""

    happened: int  # number of events
    late_p95_ms: int | None  # of the worst hour, as percentiles cannot be added up; None if no hour has one


class TopicHistory(NamedTuple):
    """Figures of a topic for the last 24 whole hours and the last 7 days, and for the same periods a week earlier.

    The last hour is the newest of the reports, so that equal periods are compared if reports are made once a day.
    """

    newest: datetime  # the newest hour that a report covers
    day: PeriodStats
    day_before: PeriodStats
    week: PeriodStats
    week_before: PeriodStats


PERIODS = {"day": (DAY, timedelta()), "day_before": (DAY, WEEK), "week": (WEEK, timedelta()),
           "week_before": (WEEK, WEEK)}  # name -> (length, how long ago it ended)  # fmt: skip


def topic_histories(using: str) -> dict[str, TopicHistory]:
    """Return the figures of each topic with events in the last two weeks. They may be a minute old."""
    key = cache.cache_key("past", using)
    return cache.get_or_compute(key, FRESH_SECONDS, lambda previous: _compute(using), dict[str, TopicHistory])


def _compute(using: str) -> dict[str, TopicHistory]:
    stats, now_ms = TopicStat.objects.using(using), databases.now_ms(using)
    current = clock.from_ms(now_ms - now_ms % HOUR_MS)  # no report covers this hour completely
    newest = stats.aggregate(newest=Max("hour_at"))["newest"]
    if newest is None:
        return {}
    end = min(current, max(newest + HOUR, current - DAY))
    columns: dict[str, Any] = {}
    for name, (length, ago) in PERIODS.items():
        in_period = Q(hour_at__gte=end - ago - length, hour_at__lt=end - ago)
        columns[name] = Sum("happened", filter=in_period, default=0)
        columns[f"{name}_late"] = Max("late_p95_ms", filter=in_period)
    recent = stats.filter(hour_at__gte=end - 2 * WEEK)
    rows: Any = recent.values("topic").annotate(newest=Max("hour_at"), **columns)
    return {row["topic"]: _topic_history(row) for row in rows}


def _topic_history(row: dict[str, Any]) -> TopicHistory:
    return TopicHistory(row["newest"], *(PeriodStats(row[name], row[f"{name}_late"]) for name in PERIODS))
