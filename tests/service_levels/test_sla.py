"""Service levels in the test kit: start, warnings, breach, pause and resume, in working time."""

import importlib
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import Q

from delaytasks import Snooze, cancel, handlers, jobs_of, reschedule, retry_dead, run_now, schedule, sla
from delaytasks.backoff import Backoff
from delaytasks.calendars import hours
from delaytasks.db import calendar_days
from delaytasks.exceptions import BadInput
from delaytasks.models import CalendarDay, Job, JobEvent, SlaClock, SlaSegment
from delaytasks.service_levels.service_level import ServiceLevel
from delaytasks.timeouts import fire
from delaytasks.timeouts.sync import Synced
from tests.timeouts.app.models import Customer, Order, RushOrder

from .conftest import HOUR, MONDAY, TOPIC, at, write

pytestmark = [pytest.mark.on_both, pytest.mark.timeouts(start=MONDAY)]
ZERO = timedelta(0)


def test_warnings_and_breach_come_when_their_working_time_is_over(level: Any, told: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    timeouts.assert_scheduled(TOPIC, subject=order, due_at=at(4))
    timeouts.advance(hours=4, milliseconds=-1)
    assert told == []
    timeouts.advance(milliseconds=1)
    assert told == [(order.pk, 0.5)]
    timeouts.assert_scheduled(TOPIC, subject=order, due_at=at(7.2))
    timeouts.advance_to(at(8) - timedelta(milliseconds=1))
    assert [part for _, part in told] == [0.5, 0.9]
    timeouts.advance_to(at(8))
    assert [part for _, part in told] == [0.5, 0.9, 1.0]
    timeouts.advance(days=30)
    assert len(told) == 3
    assert jobs_of(order).live().count() == 0


def test_the_clock_stands_still_at_night_and_while_paused(level: Any, told: Any, timeouts: Any) -> None:
    timeouts.advance(hours=5)  # Monday 14:00
    order = Order.objects.create()
    timeouts.advance(hours=1)
    write(order, "wait")
    timeouts.assert_not_scheduled(TOPIC, subject=order)
    assert level.remaining(order) == 7 * HOUR
    timeouts.advance(days=7)
    assert level.remaining(order) == 7 * HOUR
    assert told == []
    write(order, "open")  # a week later at 15:00: 2 hours that day, 5 on the next
    status = level.status(order)
    assert status is not None
    assert (status.state, status.breaches_at) == ("running", at(8 * 24 + 5))
    timeouts.advance_to(at(8 * 24 + 5) - timedelta(milliseconds=1))
    assert [part for _, part in told] == [0.5, 0.9]
    timeouts.advance(milliseconds=1)
    assert told[-1] == (order.pk, 1.0)
    assert [(each.state, each.worked_ms) for each in level.history(order)] == [("running", 3_600_000), ("paused", 0)]


def test_async_code_reads_the_service_level_of_a_row(level: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    timeouts.advance(hours=1)
    write(order, "wait")

    async def view() -> tuple[Any, ...]:
        with pytest.raises(BadInput, match="is a service level"):
            await level.aschedule(order, delay=1)
        return (
            await level.astatus(order), await level.astatuses([order]), await level.aremaining(order),
            await level.ahistory(order),
        )  # fmt: skip

    status, statuses, remaining, history = async_to_sync(view)()
    assert (status.state, remaining, statuses) == ("paused", 7 * HOUR, {str(order.pk): status})
    assert [each.state for each in history] == ["running"]


def test_a_row_that_stops_in_time_breaches_nothing(level: Any, told: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    timeouts.advance(hours=3)
    write(order, "done")
    assert not timeouts.advance(days=9)
    status = level.status(order)
    assert (status.state, status.consumed, status.remaining) == ("stopped", 3 * HOUR, 5 * HOUR)
    assert not status.is_breached
    assert status.breaches_at is None


def test_a_stopped_row_that_is_opened_again_goes_on_where_it_stood(level: Any, told: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    timeouts.advance(hours=5)  # after the first warning
    write(order, "done")
    timeouts.advance(hours=24)
    write(order, "open")
    assert level.remaining(order) == 3 * HOUR
    timeouts.assert_scheduled(TOPIC, subject=order, due_at=at(24 + 7.2))


def test_a_clock_starts_with_its_condition_and_goes_on_without_it(level: Any, timeouts: Any) -> None:
    order = Order.objects.create(state="draft")
    assert level.status(order) is None
    assert level.remaining(order) is None
    assert not SlaClock.objects.exists()
    timeouts.advance(hours=1)
    write(order, "open")
    write(order, "draft")
    timeouts.advance(hours=1)
    assert level.remaining(order) == 7 * HOUR


def test_a_row_that_matches_pause_from_the_beginning_starts_paused(declare: Any, timeouts: Any) -> None:
    level = declare(start=None)
    order = Order.objects.create(state="wait")
    timeouts.advance(hours=2)
    assert level.status(order).state == "paused"
    assert level.remaining(order) == 8 * HOUR


def test_a_stopped_row_never_starts(level: Any, timeouts: Any) -> None:
    assert level.status(Order.objects.create(state="done")) is None


def test_clock_and_job_are_in_the_transaction_of_the_row(level: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    timeouts.advance(hours=1)
    with transaction.atomic():
        write(order, "wait")
        assert level.status(order).state == "paused"
        transaction.set_rollback(True)
    assert level.status(order).state == "running"
    timeouts.assert_scheduled(TOPIC, subject=order, due_at=at(4))
    assert not SlaSegment.objects.exists()


def test_what_update_did_is_found_by_reconciliation_and_flagged(level: Any, told: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    timeouts.advance(hours=1)
    timeouts.reconcile()  # advance() does it only after five minutes without one
    Order.objects.update(state="wait")
    timeouts.advance(minutes=3)
    assert level.status(order).state == "running"
    timeouts.reconcile()
    assert level.status(order).state == "paused"
    assert level.remaining(order) == 7 * HOUR - timedelta(minutes=3)  # dated when it was noticed
    assert SlaClock.objects.get().noticed
    timeouts.assert_not_scheduled(TOPIC, subject=order)
    Order.objects.update(state="done")  # from now on there is no job that could differ
    timeouts.reconcile()
    assert [(each.state, each.noticed) for each in level.history(order)] == [("running", False), ("paused", True)]
    assert told == []


def test_rows_that_were_created_without_signals_start_when_they_are_noticed(level: Any, timeouts: Any) -> None:
    timeouts.reconcile()
    Order.objects.bulk_create([Order(), Order(state="done")])
    timeouts.advance(minutes=1)
    timeouts.reconcile()
    assert [each.noticed for each in SlaClock.objects.all()] == [True]
    assert Job.objects.live().get().due_at == at(4) + timedelta(minutes=1)


def test_a_row_that_was_paused_unnoticed_is_not_warned_about(level: Any, told: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    timeouts.advance(hours=4, seconds=-1)
    timeouts.reconcile()
    Order.objects.update(state="wait")
    assert timeouts.advance(seconds=1).outcomes == {"skipped": 1}
    assert told == []
    assert level.status(order).state == "paused"
    timeouts.advance(minutes=1)
    write(order, "open")
    timeouts.run_due()
    assert told == [(order.pk, 0.5)]  # by what was recorded, half of the time is over


def test_a_warning_that_was_skipped_in_a_pause_which_the_clock_never_noticed_comes_after_it(
    level: Any, told: Any, timeouts: Any, monkeypatch: Any
) -> None:
    order = Order.objects.create()
    timeouts.advance(hours=4, seconds=-1)
    timeouts.reconcile()
    Order.objects.update(state="wait")
    with monkeypatch.context() as patch:
        patch.setattr(fire, "sync", lambda *_, **__: Synced())  # as if another transaction had locked the row
        assert timeouts.advance(seconds=1).outcomes == {"skipped": 1}
    Order.objects.update(state="open")
    timeouts.reconcile()
    timeouts.run_due()
    assert told == [(order.pk, 0.5)]


def test_a_level_whose_job_is_dead_or_cancelled_does_not_hold_up_the_next(
    declare: Any, told: Any, timeouts: Any
) -> None:
    declare(max_attempts=1)
    order = Order.objects.create()
    timeouts.die_in(TOPIC, "handler")
    timeouts.advance_to(at(5))
    assert Job.objects.filter(died_at__isnull=False).count() == 1
    timeouts.reconcile()
    cancel(TOPIC, f"order:{order.pk}")  # the second warning
    timeouts.reconcile()
    timeouts.assert_scheduled(TOPIC, subject=order, due_at=at(8))
    timeouts.advance_to(at(8))
    assert told == [(order.pk, 1.0)]


def test_the_breach_of_a_halved_target_is_not_taken_for_the_warning(declare: Any, told: Any, timeouts: Any) -> None:
    declare(warn=[0.5])
    order = Order.objects.create()
    timeouts.advance(hours=5)
    assert told == [(order.pk, 0.5)]
    handlers.unregister(TOPIC)
    level = declare(target=hours(4), warn=[0.5])  # its breach was due when the warning was
    timeouts.reconcile()
    timeouts.run_due()
    assert told == [(order.pk, 0.5), (order.pk, 1.0)]
    assert level.remaining(order) == -1 * HOUR


def test_an_exception_in_the_calendar_moves_the_breach(declare: Any, told: Any, timeouts: Any, office: Any) -> None:
    declare(warn=[])
    order = Order.objects.create()
    timeouts.advance(hours=1)
    CalendarDay.objects.create(calendar=office.name, day=date(2026, 1, 5), hours="09:00-12:00")
    timeouts.advance_to(at(8))  # the run itself finds the new due time, if the reconciliation did not
    assert told == []
    timeouts.assert_scheduled(TOPIC, subject=order, due_at=at(24 + 5))
    timeouts.advance_to(at(24 + 5))
    assert told == [(order.pk, 1.0)]


def test_a_deleted_row_takes_its_clock_along(level: Any, timeouts: Any) -> None:
    one, other = Order.objects.create(), Order.objects.create()
    write(one, "wait")
    one.delete()
    assert SlaClock.objects.get().subject_pk == str(other.pk)
    Order.objects.filter(pk=other.pk)._raw_delete("default")
    timeouts.reconcile()
    assert not SlaClock.objects.exists()
    assert not Job.objects.live().exists()


def test_a_person_may_send_the_next_warning_at_once(level: Any, told: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    run_now(TOPIC, f"order:{order.pk}")
    timeouts.run_due()
    assert told == [(order.pk, 0.5)]
    timeouts.assert_scheduled(TOPIC, subject=order, due_at=at(7.2))


def test_without_a_calendar_the_target_is_elapsed_time(declare: Any, told: Any, timeouts: Any) -> None:
    level = declare(calendar=None, warn=[], target=timedelta(days=2))
    order = Order.objects.create()
    timeouts.advance(days=2)
    assert told == [(order.pk, 1.0)]
    assert level.status(order).is_breached
    assert level.remaining(order) == ZERO


def test_a_handler_that_ends_the_row_ends_its_clock(declare: Callable[..., Any], timeouts: Any) -> None:
    def close(order: Order, event: Any) -> None:
        assert (event.is_breach, event.status.remaining) == (True, ZERO)
        write(order, "done")

    level: ServiceLevel[Any] = sla(Order, target=hours(1), stop=Q(state="done"), topic=TOPIC)(close)
    order = Order.objects.create()
    assert timeouts.advance(hours=9).outcomes == {"finished": 1}
    assert level.status(order).state == "stopped"
    assert level.status(order).is_breached


def test_statuses_are_read_with_one_query(level: Any, timeouts: Any, django_assert_num_queries: Any) -> None:
    orders = [Order.objects.create() for _ in range(3)]
    calendar_days.clear_cache()
    with django_assert_num_queries(2):  # and another one for the calendar's exceptions
        assert set(level.statuses(orders)) == {str(order.pk) for order in orders}
    assert level.statuses([]) == {}


@pytest.mark.parametrize("state", ["wait", "done"])
def test_a_handler_that_pauses_or_stops_its_row_is_not_called_twice(state: str, timeouts: Any) -> None:
    told: list[float] = []

    def answer(order: Order, event: Any) -> None:
        told.append(event.part)
        write(order, state)

    sla(Order, target=hours(8), pause=Q(state="wait"), stop=Q(state="done"), warn=[0.5], topic=TOPIC)(answer)
    order = Order.objects.create()
    for _ in range(3):
        timeouts.advance(hours=4)
        timeouts.advance(minutes=1)
        write(order, "open")
        timeouts.run_due()
    assert told == [0.5, 1.0]


@pytest.mark.parametrize(("warn", "expected"), [([], [0.5, 0.9, 1.0]), ([0.25, 0.5, 0.9, 0.95], [0.5, 0.9, 0.95, 1.0])])
def test_changed_warnings_lose_and_repeat_no_level(
    declare: Any, told: Any, timeouts: Any, warn: Any, expected: Any
) -> None:
    declare()
    Order.objects.create()
    timeouts.advance(hours=7, minutes=30)
    assert [part for _, part in told] == [0.5, 0.9]
    handlers.unregister(TOPIC)
    declare(warn=warn)
    timeouts.reconcile()
    timeouts.advance(hours=1)
    assert [part for _, part in told] == expected


def test_a_dead_breach_can_be_retried_while_its_row_runs(declare: Any, told: Any, timeouts: Any) -> None:
    declare(max_attempts=1)
    order = Order.objects.create()
    timeouts.advance_to(at(8) - timedelta(milliseconds=1))
    timeouts.die_in(TOPIC, "handler")
    timeouts.advance_to(at(9))
    assert [part for _, part in told] == [0.5, 0.9]
    timeouts.reconcile()
    assert jobs_of(order).live().count() == 0
    retry_dead(TOPIC, f"order:{order.pk}")
    write(order, "late")  # a save leaves the job as it is
    timeouts.reconcile()
    timeouts.run_due()
    assert told[-1] == (order.pk, 1.0)
    timeouts.advance(days=7)
    assert len(told) == 3


def test_a_retried_breach_of_a_stopped_row_is_not_run(declare: Any, told: Any, timeouts: Any) -> None:
    declare(max_attempts=1, warn=[])
    order = Order.objects.create()
    timeouts.die_in(TOPIC, "handler")
    timeouts.advance_to(at(9))
    write(order, "done")
    retry_dead(TOPIC, f"order:{order.pk}")
    timeouts.run_due()
    assert told == []
    assert jobs_of(order).live().count() == 0


@pytest.mark.parametrize("method", ["status", "remaining", "history"])
def test_a_row_of_another_model_is_refused(level: Any, timeouts: Any, method: str) -> None:
    customer = Customer.objects.create()
    with pytest.raises(BadInput, match=r"the row is a declared\.customer, but the service level is of declared\.order"):
        getattr(level, method)(customer)
    rush = RushOrder.objects.create()  # inherits from the model
    assert getattr(level, method)(rush) == getattr(level, method)(Order.objects.get())


def test_a_row_in_a_database_without_jobs_has_no_clock(level: Any) -> None:
    order = Order(pk=1)
    order._state.db, order._state.adding = "archive", False
    assert level.status(order) is None
    assert level.remaining(order) is None
    assert level.history(order) == []


def test_a_service_level_schedules_its_jobs_itself(level: Any, timeouts: Any) -> None:
    with pytest.raises(BadInput, match="is a service level: saving its rows schedules their jobs"):
        level.schedule(Order.objects.create(), delay=60)


def test_a_job_that_code_replaces_sends_its_level_early_and_once(level: Any, told: Any, timeouts: Any) -> None:
    order = Order.objects.create()
    schedule(TOPIC, f"order:{order.pk}", delay=0, on_conflict="replace")
    timeouts.run_due()
    assert told == [(order.pk, 0.5)]
    timeouts.advance(days=4)
    assert [part for _, part in told] == [0.5, 0.9, 1.0]


class Primary:
    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


def test_the_clock_of_a_row_that_was_read_from_a_replica_is_in_the_primary(
    level: Any, timeouts: Any, settings: Any
) -> None:
    order = Order.objects.create()
    settings.DATABASE_ROUTERS = [Primary()]
    order._state.db = "replica"
    assert level.remaining(order) == 8 * HOUR


@pytest.fixture
def after_the_lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Let a change be made after the worker has locked and tested the row, before it prepares the event."""
    module = importlib.import_module("delaytasks.service_levels.sla")
    to_event = module.to_event

    def change_once(change: Callable[[], Any]) -> None:
        def changed(*args: Any) -> Any:
            monkeypatch.setattr(module, "to_event", to_event)
            change()
            return to_event(*args)

        monkeypatch.setattr(module, "to_event", changed)

    return change_once


def test_a_row_that_is_deleted_just_before_the_call_is_skipped(
    declare: Any, told: Any, timeouts: Any, after_the_lock: Any
) -> None:
    declare(atomic=False)
    Order.objects.create()
    after_the_lock(lambda: Order.objects.all().delete())
    assert timeouts.advance_to(at(4)).outcomes == {"skipped": 1}
    assert JobEvent.objects.get().reason == "gone"
    assert told == []


def test_a_row_that_is_paused_just_before_the_call_is_told_when_its_clock_runs_again(
    declare: Any, told: Any, timeouts: Any, after_the_lock: Any
) -> None:
    declare(atomic=False)
    order = Order.objects.create()
    after_the_lock(lambda: write(order, "wait"))
    assert timeouts.advance_to(at(4)).outcomes == {"skipped": 1}
    assert JobEvent.objects.get().reason == "unmet"
    assert told == []
    write(order, "open")
    timeouts.run_due()
    assert told == [(order.pk, 0.5)]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_calendar_that_changes_while_the_function_runs_repeats_no_level(
    office: Any, timeouts: Any, atomic: bool
) -> None:
    told: list[float] = []

    def shorten(order: Order, event: Any) -> None:
        told.append(event.part)
        closes = 17 - len(told)
        CalendarDay.objects.update_or_create(
            calendar=office.name, day=MONDAY.date(), defaults={"hours": f"09:00-{closes}:00"}
        )

    sla(Order, calendar=office, target=hours(8), stop=Q(state="done"), warn=[0.5], topic=TOPIC, atomic=atomic)(shorten)
    Order.objects.create()
    timeouts.advance(days=4)
    assert told == [0.5, 1.0]


@pytest.mark.parametrize("change", ["calendar", "pause", "stop"])
def test_a_breach_that_a_person_cancelled_stays_cancelled(
    declare: Any, told: Any, timeouts: Any, office: Any, change: str
) -> None:
    declare(warn=[])
    order = Order.objects.create()
    timeouts.advance(hours=7)
    cancel(TOPIC, f"order:{order.pk}", by="anna")
    if change == "calendar":
        CalendarDay.objects.create(calendar=office.name, day=MONDAY.date(), hours="09:00-16:30")
    else:
        write(order, "wait" if change == "pause" else "done")
        timeouts.advance(minutes=10)
        write(order, "open")
    timeouts.advance(days=4)
    assert told == []


def fails(order: Order) -> None:
    raise ConnectionError("the mail server is away")


def snoozes(order: Order) -> Snooze:
    return Snooze(timedelta(days=2))


@pytest.mark.parametrize("warning", [fails, snoozes])
@pytest.mark.parametrize("warn", [[0.5], [0.5, 0.9]])
def test_a_warning_that_fails_or_is_snoozed_does_not_hold_up_the_next_level(
    office: Any, timeouts: Any, warn: list[float], warning: Callable[[Order], Any]
) -> None:
    told: list[tuple[timedelta, float]] = []

    def answer(order: Order, event: Any) -> Any:
        told.append((timeouts.now - MONDAY, event.part))
        return None if event.is_breach else warning(order)

    sla(Order, calendar=office, target=hours(8), stop=Q(state="done"), warn=warn, topic=TOPIC)(answer)
    order = Order.objects.create()
    timeouts.advance(days=7)
    for part, following in zip(warn, [*warn[1:], 1.0], strict=True):
        assert all(part * 8 * HOUR <= when < following * 8 * HOUR for when, each in told if each == part)
    assert [each for each in told if each[1] == 1.0] == [(8 * HOUR, 1.0)]
    assert jobs_of(order).live().count() == 0


@pytest.mark.timeouts(start=MONDAY, reconciles=False)
def test_a_warning_that_kills_its_process_does_not_hold_up_the_breach(declare: Any, told: Any, timeouts: Any) -> None:
    declare(warn=[0.5], backoff=Backoff(36_000, cap_seconds=36_000))
    order = Order.objects.create()
    timeouts.die_in(TOPIC, "handler", times=2)
    timeouts.advance_to(at(8))
    assert told == [(order.pk, 1.0)]


def test_a_warning_that_a_person_moves_beyond_the_breach_does_not_hold_it_up(
    declare: Any, told: Any, timeouts: Any
) -> None:
    declare(warn=[0.5])
    order = Order.objects.create()
    reschedule(TOPIC, f"order:{order.pk}", due_at=at(3 * 24))
    timeouts.advance_to(at(8))
    assert told == [(order.pk, 1.0)]


def test_after_an_outage_each_level_is_told_and_a_failure_leaves_the_highest(office: Any, timeouts: Any) -> None:
    told: list[tuple[Any, float]] = []

    def answer(order: Order, event: Any) -> None:
        told.append((order.pk, event.part))
        if order.state == "late" and not event.is_breach:
            raise ConnectionError("the mail server is away")

    sla(Order, calendar=office, target=hours(8), stop=Q(state="done"), warn=[0.5, 0.9], topic=TOPIC)(answer)
    one, other = Order.objects.create(), Order.objects.create(state="late")
    timeouts.travel_to(at(3 * 24))
    timeouts.run_due()
    timeouts.advance(seconds=1)
    assert [part for pk, part in told if pk == one.pk] == [0.5, 0.9, 1.0]
    assert [part for pk, part in told if pk == other.pk] == [0.5, 1.0]
