"""The consumed working time is what arithmetic over the history of states says, whatever the history was."""

import os
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delaytasks import Calendar
from delaytasks.clock import to_ms
from delaytasks.service_levels import clocks
from delaytasks.service_levels.clocks import MS, Clock, Conditions, LiveJob

EXAMPLES = int(os.environ.get("DELAYTASKS_SLA_EXAMPLES", "150"))
TARGET_MS = 8 * 3_600_000
START = datetime(2026, 3, 26, 7, tzinfo=UTC)  # three days before the clocks are changed
steps = st.tuples(
    st.integers(0, 40 * 3_600_000),  # ms until the change
    st.tuples(st.booleans(), st.booleans(), st.booleans()),  # start, pause, stop
    st.booleans(),  # whether the jobs that were due until then have run
)


class Terms:
    levels = (0.5, 0.9, 1.0)
    thresholds_ms = (TARGET_MS // 2, TARGET_MS * 9 // 10, TARGET_MS)

    def __init__(self, calendar: Calendar | None) -> None:
        self.calendar = calendar


def expected_state(conditions: Conditions, before: str | None) -> str | None:
    if conditions.stop:
        return before and "stopped"
    if not (before or conditions.start):
        return None
    return "paused" if conditions.pause else "running"


def open_time(first_ms: int, last_ms: int) -> int:
    """Return the open ms between two moments of an office that is open from 9 to 17 in Berlin, day by day."""
    zone, total = ZoneInfo("Europe/Berlin"), 0
    day = datetime.fromtimestamp(first_ms / 1000, zone).date()
    while (opens := to_ms(datetime(day.year, day.month, day.day, 9, tzinfo=zone))) < last_ms:
        closes = to_ms(datetime(day.year, day.month, day.day, 17, tzinfo=zone))
        if day.weekday() < 5:
            total += max(0, min(closes, last_ms) - max(opens, first_ms))
        day += timedelta(days=1)
    return total


@pytest.mark.parametrize("with_calendar", [True, False])
@given(history=st.lists(steps, min_size=1, max_size=25))
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_consumed_time_is_what_the_history_says(office: Calendar, with_calendar: bool, history: Any) -> None:
    office.editable = False
    terms = Terms(office if with_calendar else None)
    open_ms = open_time if with_calendar else (lambda first, last: last - first)
    clock: Clock | None = None
    state: str | None = None
    consumed, now, due_times = 0, to_ms(START), []
    for wait_ms, flags, jobs_ran in history:
        until, conditions = now + wait_ms, Conditions(*flags)
        if state == "running":
            consumed += open_ms(now, until)
        if jobs_ran and clock is not None and state == "running":
            clock, handled = run_jobs(terms, clock, Conditions(True, False, False), until)
            due_times += handled
        state = expected_state(conditions, state)
        clock, segment = clocks.evaluate(terms, conditions, clock, None, until)
        now = until
        assert (clock and clock.state) == state
        if clock is not None:
            assert clocks.consumed_ms(terms, clock, now) == consumed
            assert segment is None or segment.ended_ms == clock.since_ms == now
            due = clocks.due_ms(terms, clock)
            assert due is None or due > max([*due_times, 0]), "two levels with one due time"
            if due is not None and due > now:  # when it is due, exactly its threshold is consumed: never early
                reached = terms.thresholds_ms[len(due_times)]
                assert clocks.consumed_ms(terms, clock, due) >= reached
                assert clocks.consumed_ms(terms, clock, due - 1) < reached or due == (clock.last_due_ms or 0) + 1
    assert due_times == sorted(set(due_times))
    assert len(due_times) <= 3


def run_jobs(terms: Any, clock: Clock, conditions: Conditions, until: int) -> tuple[Clock, list[int]]:
    """Let the jobs end that are due until then. Return the clock and their due times."""
    handled = []
    while (due := clocks.due_ms(terms, clock)) is not None and due <= until:
        found, _ = clocks.evaluate(terms, conditions, clock, due, until)
        assert found is not None
        assert found.done_part == next(part for part in terms.levels if part > clock.done_part)
        clock = found
        handled.append(due)
    return clock, handled


def test_a_clock_that_goes_back_consumes_nothing() -> None:
    clock = Clock(clocks.RUNNING, to_ms(START))
    found, segment = clocks.evaluate(Terms(None), Conditions(True, True, False), clock, None, to_ms(START) - 5000)
    assert segment is not None
    assert (segment.worked_ms, segment.ended_ms) == (0, to_ms(START))
    assert found is not None
    assert found.consumed_ms * MS == timedelta(0)


def test_a_job_that_ends_after_its_row_was_paused_and_resumed_has_handled_its_level() -> None:
    now, terms, runs = to_ms(START), Terms(None), Conditions(True, False, False)
    clock, _ = clocks.evaluate(terms, runs, None, None, now)
    due = now + TARGET_MS // 2
    for conditions, later in ((Conditions(True, True, False), 1), (runs, 2)):
        clock, _ = clocks.evaluate(terms, conditions, clock, None, due + later, live=LiveJob(due, running=True))
    for ended_ms, done_part in ((None, 0.0), (due, 0.5)):
        found, _ = clocks.evaluate(terms, runs, clock, ended_ms, due + 3)
        assert found is not None
        assert found.done_part == done_part
