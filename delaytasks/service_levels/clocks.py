"""Arithmetic of a service level's clock: state, consumed working time and the due time of the next level. No database.

A clock starts when its row matches `start` for the first time. After that, it is stopped while the row matches `stop`,
else paused while the row matches `pause`, else running. Only running consumes time, counted by the calendar.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, Protocol

from ..calendars.calendar import Calendar
from ..clock import from_ms, to_ms
from ..exceptions import NoOpenHours

RUNNING, PAUSED, STOPPED = "running", "paused", "stopped"
MS = timedelta(milliseconds=1)


class Terms(Protocol):
    """The values of a service level that the arithmetic needs."""

    @property
    def calendar(self) -> Calendar | None: ...
    @property
    def levels(self) -> Sequence[float]: ...
    @property
    def thresholds_ms(self) -> Sequence[int]: ...


class Conditions(NamedTuple):
    """Whether a row matches `start`, `pause` and `stop`."""

    start: bool
    pause: bool
    stop: bool


class LiveJob(NamedTuple):
    """The live job of a row that has a declared due time.

    put_off_ms   when its retry or snooze is due or has begun, or to when a person has moved it; None: not put off
    """

    declared_ms: int
    running: bool
    put_off_ms: int | None = None


@dataclass(frozen=True)
class Clock:
    """The clock of one row.

    state           RUNNING, PAUSED or STOPPED
    since_ms        when this state began
    consumed_ms     working time of the earlier states
    done_part       the level that was handled last, as a part of the target; 0: none
    last_due_ms     due time of that level
    awaited_due_ms  declared due time of the next level's job when the clock last ran. The job may end after the clock
                    was paused or stopped, or after the calendar has changed
    noticed         True: since_ms is when a comparison found the state, which may be later than the change
    """

    state: str
    since_ms: int
    consumed_ms: int = 0
    done_part: float = 0.0
    last_due_ms: int | None = None
    awaited_due_ms: int | None = None
    noticed: bool = False


class Segment(NamedTuple):
    """A past period in one state of a clock, with the working time that it consumed."""

    state: str
    began_ms: int
    ended_ms: int
    worked_ms: int
    noticed: bool


def state_of(conditions: Conditions, *, started: bool) -> str | None:
    """Return the state of a clock by its row's conditions; None: the clock does not start."""
    if not started and (conditions.stop or not conditions.start):
        return None
    return STOPPED if conditions.stop else PAUSED if conditions.pause else RUNNING


def evaluate(
    terms: Terms, conditions: Conditions, clock: Clock | None, ended_ms: int | None, now_ms: int, *,
    live: LiveJob | None = None, noticed: bool = False, skip_before_ms: int = 0,
) -> tuple[Clock | None, Segment | None]:  # fmt: skip
    """Return the row's clock as it is now, and the segment that has ended if its state changes, otherwise None.

    clock            the stored clock; None: not started
    ended_ms         declared due time of the row's newest ended job that has one, or None
    live             the row's live job, or None
    noticed          True: a comparison found the change, which may have been earlier than now
    skip_before_ms   levels with an earlier due time are skipped
    """
    state = state_of(conditions, started=clock is not None)
    if state is None:
        return None, None
    if clock is None:
        return _await_next(terms, Clock(state, now_ms, noticed=noticed), live), None
    clock = _await_next(terms, _count_handled(terms, clock, ended_ms, live, skip_before_ms), live)
    if state == clock.state:
        return clock, None
    clock, segment = _switch(terms, clock, state, now_ms, noticed)
    return _await_next(terms, clock, live), segment


def _count_handled(
    terms: Terms, clock: Clock, ended_ms: int | None, live: LiveJob | None, skip_before_ms: int
) -> Clock:
    """Mark the level whose job has ended, those whose job was put off for too long, and skipped ones, as handled.

    A job that was skipped because its row did not run has no declared time any more: its level is handled when the
    clock runs again. A level whose job was put off until the next level is handled, so that a warning that keeps
    failing does not hold up the breach.
    """
    if ended_ms is not None and ended_ms in (clock.awaited_due_ms, due_ms(terms, clock)):
        clock = _count_next(terms, clock, ended_ms)
    if live is not None and live.put_off_ms is not None and live.declared_ms == due_ms(terms, clock):
        clock = _count_until(terms, clock, live.declared_ms, live.put_off_ms)
    while (due := due_ms(terms, clock)) is not None and due < skip_before_ms:
        clock = _count_next(terms, clock, due)
    return clock


def _count_next(terms: Terms, clock: Clock, due: int) -> Clock:
    index = next_level(terms, clock)
    done_part = clock.done_part if index is None else terms.levels[index]
    return replace(clock, done_part=done_part, last_due_ms=due, awaited_due_ms=None)


def _count_until(terms: Terms, clock: Clock, due: int, until_ms: int) -> Clock:
    """Mark the levels from the one due at `due` on as handled, but not the last one that is due until then."""
    while (following := due_ms(terms, after := _count_next(terms, clock, due))) is not None and following <= until_ms:
        clock, due = after, following
    return clock


def _await_next(terms: Terms, clock: Clock, live: LiveJob | None) -> Clock:
    """Note the due time of the next level's job. A job that is running keeps the due time that was noted for it."""
    is_kept = live is not None and live.running and clock.awaited_due_ms is not None
    if clock.state != RUNNING or is_kept:
        return clock
    return replace(clock, awaited_due_ms=due_ms(terms, clock))


def _switch(terms: Terms, clock: Clock, state: str, now_ms: int, noticed: bool) -> tuple[Clock, Segment]:
    end_ms = max(now_ms, clock.since_ms)
    worked = worked_ms(terms, clock, end_ms)
    segment = Segment(clock.state, clock.since_ms, end_ms, worked, clock.noticed)
    consumed = clock.consumed_ms + worked
    return replace(clock, state=state, since_ms=end_ms, consumed_ms=consumed, noticed=noticed), segment


def worked_ms(terms: Terms, clock: Clock, now_ms: int) -> int:
    """Return the working time that the clock's current state has consumed."""
    if clock.state != RUNNING or now_ms <= clock.since_ms:
        return 0
    if terms.calendar is None:
        return now_ms - clock.since_ms
    return terms.calendar.between(from_ms(clock.since_ms), from_ms(now_ms)) // MS


def consumed_ms(terms: Terms, clock: Clock, now_ms: int) -> int:
    """Return the working time that the clock has consumed in all."""
    return clock.consumed_ms + worked_ms(terms, clock, now_ms)


def due_ms(terms: Terms, clock: Clock) -> int | None:
    """Return the due time of the next level; None: the clock awaits no level, or the calendar has no such time.

    A level that was reached before the current state is due when the state began. No two levels get the same due time,
    because a declared timeout fires once for each due time.
    """
    index = next_level(terms, clock)
    if clock.state != RUNNING or index is None:
        return None
    try:
        reached = reached_ms(terms, clock, terms.thresholds_ms[index])
    except NoOpenHours:
        return None
    return reached if clock.last_due_ms is None else max(reached, clock.last_due_ms + 1)


def following_due_ms(terms: Terms, clock: Clock) -> int | None:
    """Return the due time of the level after the next one; None: there is none, or as for due_ms()."""
    due = due_ms(terms, clock)
    return None if due is None else due_ms(terms, _count_next(terms, clock, due))


def awaits_level(terms: Terms, clock: Clock) -> bool:
    """Return whether the clock runs and has a level that was not handled yet."""
    return clock.state == RUNNING and next_level(terms, clock) is not None


def is_breach_handled(terms: Terms, clock: Clock) -> bool:
    """Return whether the clock runs and all of its levels, including the breach, were handled."""
    return clock.state == RUNNING and next_level(terms, clock) is None


def next_level(terms: Terms, clock: Clock) -> int | None:
    """Return the index of the first level that was not handled yet; None: all were."""
    return next((index for index, part in enumerate(terms.levels) if part > clock.done_part), None)


def reached_ms(terms: Terms, clock: Clock, threshold_ms: int) -> int:
    """Return when a running clock has consumed this working time, but no time before its current state began.

    Raises NoOpenHours.
    """
    left = threshold_ms - clock.consumed_ms
    if left <= 0:
        return clock.since_ms
    if terms.calendar is None:
        return clock.since_ms + left
    return to_ms(terms.calendar.add(from_ms(clock.since_ms), left * MS))
