"""Store with a topic up to when jobs of its schedules have been deleted, so that a backfill does not repeat them."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.db.models import Q

from .. import clock
from ..db.retries import retry_conflicts
from ..jobs.series import LABEL
from ..models import Schedule, Topic

_LABEL = re.compile(rf"[@#]({LABEL})", re.ASCII)
FARTHEST = timedelta(hours=15)  # the largest difference between local time and UTC, 14 hours, and an hour to spare


def note_deleted(using: str, jobs: Iterable[tuple[str, str, int]]) -> None:
    """Store with the topics that these jobs, as (topic, key, time of the end in ms since 1970), are to be deleted."""
    until: dict[str, datetime] = {}
    for topic, key, ended_ms in jobs:
        match = next(iter(_LABEL.finditer(key)), None)
        if match is not None:
            moment = _last_instant(match[1], clock.from_ms(ended_ms))
            until[topic] = max(until.get(topic, moment), moment)
    for topic, moment in until.items():
        note(using, moment, topic)


def note(using: str, moment: datetime, topic: str | None = None) -> None:
    """Store that jobs of schedules up to this moment may be deleted, for this topic or for all topics."""
    rows = Topic.objects.using(using).filter(Q(runs_deleted_until=None) | Q(runs_deleted_until__lt=moment))
    if topic is None:
        names = Schedule.objects.using(using).values_list("topic", flat=True).distinct()
        Topic.objects.using(using).bulk_create([Topic(name=name) for name in names], ignore_conflicts=True)
        retry_conflicts(lambda: rows.update(runs_deleted_until=moment), using)
    elif not retry_conflicts(lambda: rows.filter(name=topic).update(runs_deleted_until=moment), using):
        Topic.objects.using(using).bulk_create([Topic(name=topic, runs_deleted_until=moment)], ignore_conflicts=True)


def _last_instant(label: str, ended: datetime) -> datetime:
    """Return when the run ended. If it ran long before its scheduled wall time, return the latest instant of that."""
    try:
        wall = datetime.fromisoformat(label.partition("/")[0]).replace(tzinfo=UTC)
    except ValueError:  # run_now()
        return ended
    return wall + FARTHEST if wall > ended + FARTHEST else ended
