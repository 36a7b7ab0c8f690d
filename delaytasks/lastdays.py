"""What the data pipeline's reports found of the last days, per topic: from TopicStat, so nothing is counted here."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Max, Q, Sum

from . import clock, engine, keeping
from .models import TopicStat

FRESH_SECONDS = 60  # a report runs each hour at most
DAY, WEEK = timedelta(days=1), timedelta(days=7)
HOUR_MS = 3_600_000


class Stretch(NamedTuple):
    happened: int  # events
    late_p95_ms: int | None  # of the hour in which it was worst; percentiles of hours cannot be added


class Past(NamedTuple):
    """A topic's last 24 whole hours and last 7 days, and the same a week before."""

    newest: datetime  # the newest hour that a report told of
    day: Stretch
    day_before: Stretch
    week: Stretch
    week_before: Stretch


STRETCHES = {"day": (DAY, timedelta()), "day_before": (DAY, WEEK), "week": (WEEK, timedelta()),
             "week_before": (WEEK, WEEK)}  # fmt: skip


def past(using: str) -> dict[str, Past]:
    """Per topic, of those in which anything happened in these two weeks. A minute old; one query."""
    return keeping.keep(keeping.name_of("past", using), FRESH_SECONDS, lambda before: _look(using))


def _look(using: str) -> dict[str, Past]:
    now_ms = engine.now_ms(using)
    end = clock.from_ms(now_ms - now_ms % HOUR_MS)  # the hour that runs is told by no report as a whole
    wanted: dict[str, Any] = {}
    for name, (length, ago) in STRETCHES.items():
        within = Q(hour_at__gte=end - ago - length, hour_at__lt=end - ago)
        wanted[name] = Sum("happened", filter=within, default=0)
        wanted[f"{name}_late"] = Max("late_p95_ms", filter=within)
    rows: Any = (
        TopicStat.objects.using(using)
        .filter(hour_at__gte=end - 2 * WEEK)
        .values("topic")
        .annotate(newest=Max("hour_at"), **wanted)
    )
    return {row["topic"]: Past(row["newest"], *(Stretch(row[name], row[f"{name}_late"]) for name in STRETCHES))
            for row in rows}  # fmt: skip
