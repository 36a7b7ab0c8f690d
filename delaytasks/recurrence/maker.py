"""Make the jobs of schedules: the next firing of each schedule, and all firings due within ten seconds.

Any number of processes may do this at the same time.
"""

import logging
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from django.db import transaction

from .. import clock, databases, handlers
from ..db import schedules
from ..db.retries import retry_conflicts
from ..db.schedules import Advance, NewFiring
from ..db.transitions import StoredJob, current_producer
from ..exceptions import BadInput
from ..jobs import on_commit
from ..jobs.series import firing_prefix
from ..models import Schedule
from .definition import body_text, times_of_row
from .wall_times import Firing

logger = logging.getLogger("delaytasks")
AHEAD_MS = 10_000
REST_SECONDS = 5.0  # between two passes of a process; half of AHEAD_MS
PAGE = 200  # schedules in one transaction
MOST_FIRINGS = 100  # of one schedule in one transaction
MOST_PAGES = 50  # of one pass
MOST_SECONDS = 1.0  # of one pass of the guard's loop
_passed: dict[str, float] = {}  # alias -> monotonic time of this process's last pass


def make_due_throttled(using: str) -> None:
    """Make the jobs that are due, at most every five seconds in a process. Called by the guard's loop."""
    if time.monotonic() - _passed.get(using, -REST_SECONDS) >= REST_SECONDS:
        _passed[using] = time.monotonic()
        if not _make_due(using, time.monotonic() + MOST_SECONDS)[1]:
            del _passed[using]  # the next call continues without a rest


def make_due(using: str) -> int:
    """Make all firings that are due within ten seconds, and the next firing of each schedule. Return their number."""
    return _make_due(using, None)[0]


def _make_due(using: str, deadline: float | None) -> tuple[int, bool]:
    """Make firings as make_due() does, until the deadline. Return their number, and whether all were made.

    Schedules that may run more often than once a minute come first and ignore the deadline. Each of the others has one
    firing made ahead already, so that its next one can wait; at noon, 20,000 of them may be due.
    """
    frequent, _ = _make_pages(using, None, is_frequent=True)
    others, is_done = _make_pages(using, deadline, is_frequent=False)
    return frequent + others, is_done


def _make_pages(using: str, deadline: float | None, *, is_frequent: bool) -> tuple[int, bool]:
    made = 0
    for _ in range(MOST_PAGES):
        ids = schedules.due(using, AHEAD_MS, PAGE, is_frequent=is_frequent)
        count = make(using, ids) if ids else 0
        made += count
        if not count:  # nothing is due, or others are making it
            return made, True
        if deadline is not None and time.monotonic() > deadline:
            break
    return made, False


def make(using: str, ids: Iterable[int]) -> int:
    """Advance these schedules and insert their jobs, in one transaction. Return the number of jobs.

    A schedule whose last firing is not due within ten seconds is skipped: that firing has been made ahead.
    """
    until_ms = databases.now_ms(using) + AHEAD_MS
    chosen = Schedule.objects.using(using).filter(pk__in=list(ids), paused=False, ended=False)
    rows = list(chosen.filter(made_until__lte=clock.from_ms(until_ms)))
    plans = {row.pk: _plan(row, until_ms) for row in rows}
    return retry_conflicts(lambda: _store(using, rows, plans), using) if rows else 0


class Plan(NamedTuple):
    """The firings to make of one schedule."""

    firings: list[Firing]
    ended: bool
    problem: str = ""


def _plan(row: Schedule, until_ms: int) -> Plan:
    """Return the firings after made_until, up to the first one after `until_ms`."""
    firings: list[Firing] = []
    try:
        times, after = times_of_row(row), row.made_until
        while len(firings) < MOST_FIRINGS:
            firing = times.next_after(after)
            if firing is None:
                return Plan(firings, ended=True)
            firings.append(firing)
            after = firing.due
            if clock.to_ms(after) > until_ms:
                break
    except BadInput as error:  # not checked before it was stored, or its zone was removed; go on with the others
        logger.error("schedule %s: no firings can be made: %s", row.name, error)
        return Plan([], ended=True, problem=str(error)[:255])
    return Plan(firings, ended=False)


def _store(using: str, rows: list[Schedule], plans: dict[int, Plan]) -> int:
    with transaction.atomic(using):
        advanced = schedules.advance(using, [_advance(row, plans[row.pk]) for row in rows])
        new = [new_firing(row, firing) for row in rows if row.pk in advanced for firing in plans[row.pk].firings]
        return len(insert(using, new))


def _advance(row: Schedule, plan: Plan) -> Advance:
    seen_ms = clock.to_ms(row.made_until)
    last = plan.firings[-1] if plan.firings else None
    until_ms = seen_ms if last is None else clock.to_ms(last.due)
    return Advance(row.pk, seen_ms, row.version, until_ms, last.label if last else row.made_label, int(plan.ended),
                   plan.problem)  # fmt: skip


def new_firing(row: Schedule, firing: Firing, backfilled_ms: int | None = None) -> NewFiring:
    """Return the job of a firing.

    backfilled_ms   the due time of a backfill; None: the job is due at the firing's time
    """
    planned_ms, ttr_ms = clock.to_ms(firing.due), row.ttr_ms or handlers.ttr_ms(row.topic)
    due_ms, kept_ms = (planned_ms, planned_ms) if backfilled_ms is None else (backfilled_ms, None)
    key, label, pk = firing_prefix(row) + firing.label, row.subject_label or "", row.subject_pk or ""
    producer = current_producer() or row.producer or ""
    return NewFiring(row.topic, key, due_ms, kept_ms, unknown_ms(row), ttr_ms, body_text(row.body), label, pk, producer)


def unknown_ms(row: Schedule) -> int | None:
    """Return the time of the last change of the zone or topic: earlier firings may have the keys of later ones."""
    return None if row.runs_unknown_until is None else clock.to_ms(row.runs_unknown_until)


def insert(using: str, new: list[NewFiring]) -> list[StoredJob]:
    """Insert the jobs; update the mirror and send the signals on commit."""
    stored = schedules.insert_firings(using, new) if new else []
    on_commit.stored(using, stored)
    return stored


def refresh_zones(using: str) -> int:
    """Move firings whose time zone has new rules, so that they keep their wall times. Return how many were moved.

    Called by `schedules apply`. Only the last firing made of a schedule can be far ahead.
    """
    from ..calendars.wall_time import to_zone
    from .wall_times import parse_label

    moved = 0
    for row in Schedule.objects.using(using).filter(ended=False).exclude(made_label="").iterator():
        try:
            due = parse_label(row.made_label, to_zone(row.tz)).due
            if abs(due - row.made_until) >= timedelta(seconds=1) and times_of_row(row).fixed:
                moved += _move(using, row, clock.to_ms(due))
        except BadInput as error:  # as in _plan()
            logger.error("schedule %s: its times cannot be checked: %s", row.name, error)
    return moved


def _move(using: str, row: Schedule, due_ms: int) -> int:
    with transaction.atomic(using):
        seen_ms = clock.to_ms(row.made_until)
        if not schedules.advance(using, [Advance(row.pk, seen_ms, row.version, due_ms, row.made_label, 0, "")]):
            return 0
        key = firing_prefix(row) + row.made_label
        moved = schedules.move_firing(using, row.topic, key, seen_ms=seen_ms, due_ms=due_ms)
        on_commit.add_to_mirror(using, moved, mark=True)
    return 1
