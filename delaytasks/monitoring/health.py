"""The health of the workers, beat, the mover and the mirror: the last signs of each, as recorded in the database."""

from collections.abc import Collection
from typing import Any, NamedTuple

from django.db.models import Q

from .. import clock, databases
from ..db import counts, dialects
from ..models import MirrorMark, Schedule, Topic
from . import cache, metrics
from .metrics import MirrorState

FRESH_SECONDS = 4
STATEMENT_MS = 2000  # no probe waits longer for a statement
SILENT_MS = 30_000  # a mover without a heartbeat for this long is silent; it records one every ten seconds
BEHIND_MS = 60_000  # a schedule, whose runs are made ahead, is behind if its newest run was due this long ago
NAMED_SCHEDULES = 3
DIFFERENCES = ("missing", "ghosts", "late", "doubled")


class Health(NamedTuple):
    now_ms: int
    heartbeat_age_ms: int | None  # age of the last mover heartbeat; None: there has been none
    mirror: MirrorState
    audit_age_ms: int | None  # age of the last comparison of mirror and database; None: never compared
    checked: int  # rows that the last audit compared
    differences: int  # differences that the last audit found and repaired
    repaired: int  # overdue jobs that the guard found missing, since the mirror was last emptied
    rebuilt: int  # rebuilds of the mirror from the database, since it was last emptied
    sweep_age_ms: int | None = None  # time since a worker completed a sweep that beat had sent; None: never
    oldest_ready_ms: int | None = None  # how long the oldest ready job has waited; None: no job is ready
    oldest_ready_topic: str = ""  # paused topics are left out
    schedules_behind_ms: int | None = None  # of the schedule that is most behind; None: none is behind
    schedule_behind: str = ""  # the name of that schedule
    schedules_stopped: tuple[str, ...] = ()  # names of schedules that make no runs because of a problem; up to 3
    mirror_refusal: str = ""  # why Redis refuses writes

    @property
    def moving(self) -> bool:
        return self.heartbeat_age_ms is not None and self.heartbeat_age_ms < SILENT_MS


def health(using: str) -> Health:
    """Return the health of the mover and of the mirror. It may be a few seconds old, half a minute if it was slow.

    Raises the database's error if a statement takes longer than STATEMENT_MS.
    """

    def compute(previous: Health | None) -> Health:
        with dialects.reads_with(using, statement_timeout=f"{STATEMENT_MS}ms"):
            return _compute(using)

    return cache.get_or_compute(cache.cache_key("health", using), FRESH_SECONDS, compute, Health)


def _compute(using: str) -> Health:
    now_ms = databases.now_ms(using)
    mark = MirrorMark.objects.using(using).filter(pk=1).first()
    heartbeat_at = mark.heartbeat_at if mark else None
    audit: dict[str, Any] = (mark.audit if mark else None) or {}
    mirror, counters, refusal = metrics.mirror_state(using)
    schedules = _schedule_problems(using, now_ms)
    return Health(
        now_ms,
        None if heartbeat_at is None else max(0, now_ms - clock.to_ms(heartbeat_at)),
        mirror,
        None if "at_ms" not in audit else max(0, now_ms - audit["at_ms"]),
        audit.get("checked", 0),
        sum(audit.get(kind, 0) for kind in DIFFERENCES),
        counters.get("repaired", 0),
        counters.get("rebuilt", 0),
        None if mark is None or mark.swept_at is None else max(0, now_ms - clock.to_ms(mark.swept_at)),
        *_oldest_ready(using, now_ms),
    )._replace(
        schedules_behind_ms=schedules.behind_ms, schedule_behind=schedules.behind, schedules_stopped=schedules.stopped,
        mirror_refusal=refusal,
    )  # fmt: skip


class ScheduleProblems(NamedTuple):
    """Schedules that are behind or stopped. The fields are those of Health."""

    behind_ms: int | None
    behind: str
    stopped: tuple[str, ...]


def problems_of(using: str, status: Health, topics: Collection[str] | None) -> ScheduleProblems:
    """Return the problems of the schedules of these topics (None: of all). Queries only if there are any."""
    found = ScheduleProblems(status.schedules_behind_ms, status.schedule_behind, status.schedules_stopped)
    is_none = found.behind_ms is None and not found.stopped
    return found if topics is None or is_none else _schedule_problems(using, status.now_ms, topics)


def _schedule_problems(using: str, now_ms: int, topics: Collection[str] | None = None) -> ScheduleProblems:
    rows = Schedule.objects.using(using).filter(paused=False)
    rows = rows if topics is None else rows.filter(topic__in=list(topics))
    late = rows.filter(ended=False, made_until__lt=clock.from_ms(now_ms - BEHIND_MS)).order_by("made_until").first()
    # A problem ends a schedule. So the many series that go on need not be read, and each part of this has an index.
    rows = rows.filter(Q(series_key__isnull=True) | Q(series_key__isnull=False, ended=True))
    stopped = tuple(map(str, rows.exclude(problem="").order_by("name")[:NAMED_SCHEDULES]))
    behind_ms = None if late is None else now_ms - clock.to_ms(late.made_until)
    return ScheduleProblems(behind_ms, "" if late is None else str(late), stopped)


def _oldest_ready(using: str, now_ms: int) -> tuple[int | None, str]:
    """Return the age and the topic of the oldest ready job of all topics that are not paused, at most 5,000."""
    paused = set(Topic.objects.using(using).filter(paused=True).values_list("name", flat=True))
    names = [name for name in counts.live_topics(using, counts.SEARCHED_TOPICS) if name not in paused]
    ages = [(now_ms - oldest_ms, name) for name, oldest_ms in counts.oldest_ready(using, names).items()]
    return max(ages, default=(None, ""))
