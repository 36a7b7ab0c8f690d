"""Note on a topic up to when runs of its schedules may be deleted, so that a backfill does not repeat them."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.db.models import Q

from .. import clock
from ..jobs.series import LABEL
from ..models import Schedule, Topic

_LABEL = re.compile(rf"[@#]({LABEL})", re.ASCII)
FARTHEST = timedelta(hours=15)  # from what a clock shows to UTC, and an hour


def note_deleted(using: str, jobs: Iterable[tuple[str, str, int]]) -> None:
    """Note that these jobs, as (topic, key, time of the end in ms), are about to be deleted."""
    until: dict[str, datetime] = {}
    for topic, key, ended_ms in jobs:
        match = next(iter(_LABEL.finditer(key)), None)
        if match is not None:
            moment = _last_instant(match[1], clock.from_ms(ended_ms))
            until[topic] = max(until.get(topic, moment), moment)
    for topic, moment in until.items():
        note(using, moment, topic)


def note(using: str, moment: datetime, topic: str | None = None) -> None:
    """Note that runs up to this moment may be deleted, of the topic or of all topics."""
    rows = Topic.objects.using(using).filter(Q(runs_deleted_until=None) | Q(runs_deleted_until__lt=moment))
    if topic is None:
        names = Schedule.objects.using(using).values_list("topic", flat=True).distinct()
        Topic.objects.using(using).bulk_create([Topic(name=name) for name in names], ignore_conflicts=True)
        rows.update(runs_deleted_until=moment)
    elif not rows.filter(name=topic).update(runs_deleted_until=moment):
        Topic.objects.using(using).bulk_create([Topic(name=topic, runs_deleted_until=moment)], ignore_conflicts=True)


def _last_instant(label: str, ended: datetime) -> datetime:
    """Return the end of a run, or its time on the clock if somebody ran it long before that."""
    try:
        wall = datetime.fromisoformat(label.partition("/")[0]).replace(tzinfo=UTC)
    except ValueError:  # run_now()
        return ended
    return wall + FARTHEST if wall > ended + FARTHEST else ended
