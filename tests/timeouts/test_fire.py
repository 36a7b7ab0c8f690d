"""A declared job at its due time: the row is locked, and its condition and due time are tested again."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection
from django.db.models import F, Q

from delaytasks import Skip, Snooze, cancel, retry_dead, schedule, timeout
from delaytasks.backoff import Backoff
from delaytasks.db import lookups
from delaytasks.models import Job, TimeoutMark
from delaytasks.states import State
from delaytasks.timeouts import fire
from delaytasks.timeouts.fire import FIRED, GONE, PAST
from delaytasks.timeouts.statements import UNMET
from delaytasks.timeouts.triggers import marks
from delaytasks.worker import completion, executor
from delaytasks.worker.completion import expire

from .app.models import CourierOrder, OpenOrder, Order, PlainOrder
from .conftest import HALF_HOUR, START, live

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("automatic")]
Close = Callable[..., list[Any]]


@pytest.fixture
def close() -> Close:
    """Declare a timeout that closes open orders. Returns a list of the rows that its handler received."""

    def close(model: Any = Order, effect: Callable[[Any], Any] | None = None, **options: Any) -> list[Any]:
        called: list[Any] = []

        @timeout(model, topic="declared.close", **({"on": "created_at", "after": "window"} | options))
        def close_unpaid(order: Any, job: Any) -> Any:
            called.append(order)
            if effect is not None:
                return effect(order)
            order.state = "closed"
            order.save(update_fields=["state"])
            return None

        return called

    return close


def outcomes() -> list[tuple[str, str]]:
    return [(event.outcome, event.reason) for job in Job.objects.order_by("id") for event in job.events.order_by("id")]


def test_the_handler_receives_the_row_and_its_effects_end_with_the_job(close: Close, stage: Any, db_clock: Any) -> None:
    called = close(while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    stage.go()
    assert called == []
    db_clock.advance(seconds=1800)
    stage.go()
    order.refresh_from_db()
    assert (called, order.state, Job.objects.get().state) == ([order], "closed", State.FINISHED)


def test_a_write_that_nobody_noticed_never_runs_with_the_condition_false(
    close: Close, stage: Any, db_clock: Any
) -> None:
    called = close(while_=Q(state="open"))
    Order.objects.create(created_at=START)
    Order.objects.update(state="paid")
    db_clock.advance(seconds=1800)
    stage.go()
    assert (called, outcomes()) == ([], [("skipped", UNMET)])


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
def test_a_row_that_was_skipped_because_it_did_not_match_gets_its_job_when_it_matches_again(
    close: Close, stage: Any, db_clock: Any, atomic: bool
) -> None:
    """As if the change was noticed before the due time, and the job cancelled."""
    called = close(while_=Q(state="open"), atomic=atomic)
    order = Order.objects.create(created_at=START)
    Order.objects.update(state="paid")
    db_clock.advance(seconds=1800)
    stage.go()
    order.save()  # with the state "open"
    stage.go()
    assert (called, outcomes()) == ([order], [("skipped", UNMET), ("finished", "")])
    order.save()
    assert live() == {}


@pytest.mark.on_both
def test_a_row_that_is_inserted_again_after_its_job_was_skipped_gets_a_job(
    close: Close, stage: Any, db_clock: Any
) -> None:
    """As if its deletion, by a program that replaces rows, was noticed before the due time."""
    called = close(while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    Order.objects.all()._raw_delete("default")
    db_clock.advance(seconds=1800)
    stage.go()
    order.save(force_insert=True)
    stage.go()
    assert (called, outcomes()) == ([order], [("skipped", GONE), ("finished", "")])


@pytest.fixture
def dead_and_fired(stage: Any, db_clock: Any) -> tuple[Order, list[Any]]:
    """An order whose first job is dead and whose second, half an hour later, has fired; the due times of the calls."""
    called: list[Any] = []

    @timeout(Order, on="created_at", topic="declared.close", max_attempts=1)
    def close(order: Order, job: Any) -> None:
        called.append(order.created_at)
        if order.created_at == START:
            raise ConnectionError

    order = Order.objects.create(created_at=START)
    stage.go()
    order.created_at += HALF_HOUR
    order.save()
    db_clock.advance(seconds=1800)
    stage.go()
    return order, called


@pytest.mark.on_both
@pytest.mark.parametrize("first", ["worker", "sync"])
def test_a_dead_job_that_is_retried_does_not_repeat_a_newer_one(
    dead_and_fired: tuple[Order, list[Any]], stage: Any, first: str
) -> None:
    order, called = dead_and_fired
    dead = Job.objects.get(state=State.DEAD)
    retry_dead(job_id=dead.pk)
    if first == "sync":
        order.save()
    stage.go()
    assert called == [START, START + HALF_HOUR]
    dead.refresh_from_db()
    assert (dead.state, live()) == (State.CANCELLED, {})
    assert dead.events.order_by("-id").values_list("reason", flat=True)[0] == (FIRED if first == "worker" else UNMET)


@pytest.mark.on_both
@pytest.mark.parametrize("first", ["worker", "sync"])
def test_a_dead_job_that_is_retried_and_a_newer_one_fire_each_due_time_once(
    dead_and_fired: tuple[Order, list[Any]], stage: Any, db_clock: Any, first: str
) -> None:
    """The newest job of a key tells which due time has fired last, so the older one must not be moved."""
    order, called = dead_and_fired
    order.created_at += HALF_HOUR
    Order.objects.update(created_at=order.created_at)
    retry_dead(job_id=Job.objects.get(state=State.DEAD).pk)
    if first == "sync":
        order.save()
        assert live() == {f"order:{order.pk}": START + 2 * HALF_HOUR}
    stage.go()
    assert live() == {f"order:{order.pk}": START + 2 * HALF_HOUR}
    db_clock.advance(seconds=1800)
    stage.go()
    assert called == [START, START + HALF_HOUR, START + 2 * HALF_HOUR]
    assert live() == {}


def test_a_row_that_is_gone_is_skipped(close: Close, stage: Any, db_clock: Any) -> None:
    called = close()
    Order.objects.create(created_at=START)
    Order.objects.all()._raw_delete("default")
    db_clock.advance(seconds=1800)
    stage.go()
    assert (called, outcomes()) == ([], [("skipped", GONE)])


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("model", [Order, CourierOrder])
def test_a_row_whose_time_python_cannot_read_is_skipped(close: Close, stage: Any, db_clock: Any, model: Any) -> None:
    called = close(model)
    good, *bad = [model.objects.create(created_at=START) for _ in range(3)]
    with connection.cursor() as cursor:
        for row, moment in zip(bad, ("infinity", "-infinity"), strict=True):
            cursor.execute("UPDATE declared_order SET created_at = %s WHERE id = %s", [moment, row.pk])
    db_clock.advance(seconds=1800)
    stage.go()
    assert called == [good]
    assert sorted(outcomes()) == [("finished", ""), ("skipped", UNMET), ("skipped", UNMET)]


def test_a_due_time_that_nobody_noticed_moves_the_job(close: Close, stage: Any, db_clock: Any) -> None:
    called = close()
    order = Order.objects.create(created_at=START)
    Order.objects.update(window=F("window") * 2)
    db_clock.advance(seconds=1800)
    stage.go()
    assert (called, live()) == ([], {f"order:{order.pk}": START + 2 * HALF_HOUR})
    assert outcomes() == [("rescheduled", "")]
    job = Job.objects.get()
    assert (job.declared_due, job.failures, job.attempt) == (START + 2 * HALF_HOUR, 0, 1)
    db_clock.advance(seconds=1800)
    stage.go()
    assert called == [order]


def test_a_time_that_moved_into_the_past_runs_at_once_or_is_skipped(close: Close, stage: Any, db_clock: Any) -> None:
    for if_past, events in (("run", ["rescheduled", "finished"]), ("skip", ["skipped"])):
        Job.objects.all().delete()
        called = close(if_past=if_past)
        Order.objects.create(created_at=START + HALF_HOUR, window=timedelta(0))
        Order.objects.update(created_at=START)
        db_clock.set(db_clock.now_ms + 1800_000)
        stage.go()
        assert [outcome for outcome, _ in outcomes()] == events
        assert len(called) == (if_past == "run")
        db_clock.set(db_clock.now_ms - 1800_000)
        Order.objects.all().delete()
    assert outcomes()[-1] == ("skipped", PAST)


def test_it_fires_once_for_each_due_time(close: Close, stage: Any, db_clock: Any) -> None:
    called = close(effect=lambda order: order.save())  # the condition stays true, and so does the due time
    order = Order.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    for _ in range(3):
        stage.go()
        order.save()
    assert len(called) == 1


@pytest.mark.on_both
def test_a_handler_that_schedules_its_own_key_runs_again_only_then(close: Close, stage: Any, db_clock: Any) -> None:
    called = close(effect=lambda order: schedule("declared.close", subject=order, delay=3600) and None)
    order = Order.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    for _ in range(3):
        stage.go()
        order.save()
    assert (len(called), live()) == (1, {f"order:{order.pk}": START + 3 * HALF_HOUR})
    db_clock.advance(seconds=3600)
    stage.go()
    assert len(called) == 2


@pytest.mark.parametrize("atomic", [True, False])
def test_a_handler_that_leaves_another_due_time_gets_its_next_job_in_the_same_commit(
    close: Close, stage: Any, db_clock: Any, atomic: bool
) -> None:
    called = close(effect=lambda order: Order.objects.update(created_at=F("created_at") + HALF_HOUR) and None,
                   atomic=atomic)  # fmt: skip
    order = Order.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    stage.go()
    assert (called, live()) == ([order], {f"order:{order.pk}": START + 2 * HALF_HOUR})


@pytest.mark.on_both
def test_a_next_run_that_was_asked_for_meanwhile_is_moved_to_the_other_due_time(
    close: Close, stage: Any, db_clock: Any
) -> None:
    def postpone(order: Order) -> None:
        schedule("declared.close", subject=order, delay=60, body={"asked": True}, on_conflict="again")
        Order.objects.update(created_at=F("created_at") + HALF_HOUR)

    close(effect=postpone)
    order = Order.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    stage.go()
    assert live() == {f"order:{order.pk}": START + 2 * HALF_HOUR}
    assert Job.objects.get(ended_at=None).body == {"asked": True}


def test_a_failed_handler_leaves_no_next_job_and_its_retry_stands(close: Close, stage: Any, db_clock: Any) -> None:
    def fail(order: Any) -> None:
        Order.objects.update(created_at=F("created_at") + HALF_HOUR)
        raise ValueError

    close(effect=fail, max_attempts=2)
    order = Order.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    stage.go()
    due = live()[f"order:{order.pk}"]
    assert due > START + HALF_HOUR
    order.save()
    assert live()[f"order:{order.pk}"] == due  # the backoff is not undone
    db_clock.advance(seconds=86_400)
    stage.go()
    assert Job.objects.get().state == State.DEAD
    order.save()
    assert live() == {}  # dead counts as done


@pytest.mark.on_both
@pytest.mark.parametrize("ends", ["fails", "snoozes", "dies"])
def test_a_due_time_that_is_saved_while_an_attempt_runs_does_not_wait_for_the_next_attempt(
    stage: Any, db_clock: Any, ends: str
) -> None:
    called: list[Any] = []

    @timeout(Order, on="created_at", topic="declared.close", atomic=False, backoff=Backoff(base_seconds=7200))
    def close(order: Order, job: Any) -> Any:
        called.append(order.created_at)
        if order.created_at == START + HALF_HOUR:
            return None
        order.created_at = START + HALF_HOUR
        order.save()  # another process might do this
        if ends == "fails":
            raise ConnectionError
        return Snooze(7200)

    order = Order.objects.create(created_at=START)
    if ends == "dies":
        for moved in (timedelta(0), HALF_HOUR):  # after the first death the job runs again at once
            (job,) = stage.take("declared.close")
            order.created_at += moved
            order.save()
            db_clock.advance(seconds=60)
            expire("default", lookups.get_snapshots("default", [job.id]))
    else:
        stage.go()
    assert live() == {f"order:{order.pk}": START + HALF_HOUR}
    db_clock.advance(seconds=1800)
    stage.go()
    assert called[-1] == START + HALF_HOUR
    assert not TimeoutMark.objects.exists()


@pytest.mark.on_both
def test_a_job_whose_skip_could_not_be_stored_does_not_fire_by_its_former_time(
    stage: Any, db_clock: Any, monkeypatch: Any
) -> None:
    called: list[Any] = []

    @timeout(Order, on="created_at", while_=Q(state="open"), topic="declared.close")
    def close(order: Order, job: Any) -> None:
        called.append(order.created_at)

    order = Order.objects.create(created_at=START)
    Order.objects.update(state="paid")
    sync, errors = fire.sync, [DatabaseError("canceling statement due to statement timeout")]

    def sync_at_second_call(*args: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return sync(*args, **options)

    monkeypatch.setattr(fire, "sync", sync_at_second_call)
    stage.go()
    assert outcomes() == [("failed", ""), ("cancelled", "unmet")]
    Order.objects.update(state="open", created_at=START + HALF_HOUR)
    db_clock.advance(seconds=900)
    stage.go()
    assert called == []
    order.refresh_from_db()
    order.save()
    db_clock.advance(seconds=900)
    stage.go()
    assert called == [START + HALF_HOUR]


def test_a_row_that_is_paid_while_a_failing_attempt_runs_has_no_further_attempt(stage: Any, db_clock: Any) -> None:
    @timeout(Order, on="created_at", while_=Q(state="open"), topic="declared.close", atomic=False)
    def close(order: Order, job: Any) -> None:
        order.state = "paid"
        order.save()  # another process might do this
        raise ConnectionError

    Order.objects.create(created_at=START)
    stage.go()
    assert Job.objects.get().state == State.CANCELLED
    assert [outcome for outcome, _ in outcomes()] == ["failed", "cancelled"]


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
def test_a_failed_attempt_ends_although_its_row_cannot_be_synced(
    stage: Any, db_clock: Any, monkeypatch: Any, atomic: bool
) -> None:
    @timeout(Order, on="created_at", topic="declared.close", atomic=atomic)
    def close(order: Order, job: Any) -> None:
        monkeypatch.setattr(fire, "sync", lambda *_, **__: connection.cursor().execute("SELECT missing"))
        raise ConnectionError

    Order.objects.create(created_at=START)
    stage.go()
    job = Job.objects.get()
    assert (job.state, job.failures, job.error) == (State.DELAYED, 1, "ConnectionError")


@pytest.mark.parametrize("topic_fails", [False, True])
def test_the_death_of_its_process_leaves_the_next_job_and_harms_no_other(
    close: Close, stage: Any, db_clock: Any, monkeypatch: Any, topic_fails: bool
) -> None:
    stage.handler("plain", max_attempts=1)(lambda job: None)
    close(max_attempts=1)
    order = Order.objects.create(created_at=START)
    schedule("plain", "x", delay=1800)
    db_clock.advance(seconds=1800)
    assert len(stage.take("declared.close") + stage.take("plain")) == 2
    order.window *= 4
    order.save()  # its job is running: nothing is made
    if topic_fails:
        monkeypatch.setitem(completion.after_end, "declared.close", lambda using, held: Order.objects.get(pk=0))
    db_clock.advance(seconds=120)
    stage.go()
    assert set(Job.objects.filter(ended_at__isnull=False).values_list("topic", "state")) == {
        ("declared.close", State.DEAD), ("plain", State.DEAD)
    }  # fmt: skip
    assert live() == ({} if topic_fails else {f"order:{order.pk}": START + 4 * HALF_HOUR})


def test_a_snooze_stands(close: Close, stage: Any, db_clock: Any) -> None:
    close(effect=lambda order: Snooze(3600))
    order = Order.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    stage.go()
    order.save()
    assert live() == {f"order:{order.pk}": START + 3 * HALF_HOUR}


@pytest.mark.parametrize("model", [CourierOrder, OpenOrder])
def test_the_row_is_an_instance_of_the_declared_model(close: Close, stage: Any, db_clock: Any, model: Any) -> None:
    called = close(model)
    row = model.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    stage.go()
    assert (called, type(called[0])) == ([row], model)


def test_a_row_that_the_managers_of_a_proxy_hide_is_received(close: Close, stage: Any, db_clock: Any) -> None:
    called = close(PlainOrder)
    row = PlainOrder.plain.create(created_at=START, note="hidden")
    db_clock.advance(seconds=1800)
    stage.go()
    assert (called, type(called[0])) == ([row], PlainOrder)


def test_async_handlers_receive_the_row(stage: Any, db_clock: Any) -> None:
    called = []

    @timeout(Order, on="created_at", topic="declared.close")
    async def close(order: Order, job: Any) -> None:
        called.append(await Order.objects.aget(pk=order.pk))

    order = Order.objects.create(created_at=START)
    stage.go()
    assert called == [order]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(("model", "locked", "free"), [(Order, 4, 50), (CourierOrder, 1, 1)])
def test_a_locked_row_hands_its_job_back_soon_without_a_failure_or_an_event(
    close: Close,
    stage: Any,
    db_clock: Any,
    in_another_session: Any,
    monkeypatch: Any,
    model: Any,
    locked: int,
    free: int,
) -> None:
    waits: list[float] = []

    # Only the waits let time pass: a machine that stalls for longer than WAIT_SECONDS would end it before the first.
    monkeypatch.setattr(fire, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append))
    called = close(model)
    rows = [model.objects.create(created_at=START) for _ in range(locked + free)]
    in_another_session(f"UPDATE declared_order SET note = 'x' WHERE id <= {rows[locked - 1].pk}")
    db_clock.advance(seconds=1800)
    stage.go()
    assert sorted(called, key=lambda row: row.pk) == rows[locked:]
    assert locked <= len(waits)
    assert sum(waits) < locked * 0.15
    for job in Job.objects.filter(ended_at=None):
        assert (job.state, job.failures, job.due_at) == (State.DELAYED, 0, START + HALF_HOUR + timedelta(seconds=0.2))
    assert outcomes() == [("finished", "")] * free


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("ends", ["return", "finishing"])
@pytest.mark.parametrize("model", [Order, CourierOrder])
def test_a_due_time_that_is_saved_while_the_job_ends_gets_its_job_soon(
    stage: Any, db_clock: Any, in_another_session: Any, ends: str, model: Any
) -> None:
    """The saving transaction sees a running job; the end of the job finds the row locked, and leaves a mark."""
    commits: list[Callable[[], None]] = []

    @timeout(model, on="created_at", after=HALF_HOUR, topic="declared.close", atomic=False)
    def close(order: Any, job: Any) -> None:
        sql = f"UPDATE declared_order SET created_at = created_at + interval '1 hour' WHERE id = {order.pk}"
        commits.append(in_another_session(sql))
        if ends == "finishing":
            with job.finishing():
                pass

    order = model.objects.create(created_at=START)
    db_clock.advance(seconds=1800)
    stage.go()
    assert Job.objects.get().state == State.FINISHED
    marks.drain_for_a_while("default")
    assert live() == {}
    commits[0]()
    marks.drain_for_a_while("default")
    assert live() == {f"{model._meta.model_name}:{order.pk}": START + 3 * HALF_HOUR}
    assert not TimeoutMark.objects.exists()


@pytest.mark.only_on("postgresql")
def test_a_payment_that_is_open_at_the_due_time_wins(
    close: Close, stage: Any, db_clock: Any, in_another_session: Any
) -> None:
    called = close(while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    commit = in_another_session(f"UPDATE declared_order SET state = 'paid' WHERE id = {order.pk}")
    db_clock.advance(seconds=1800)
    stage.go()
    commit()
    db_clock.advance(seconds=1)
    stage.go()
    assert (called, outcomes()) == ([], [("skipped", UNMET)])


@pytest.mark.only_on("postgresql")
def test_a_job_that_waits_for_its_row_answers_running_to_a_cancel(
    close: Close, stage: Any, db_clock: Any, in_another_session: Any, monkeypatch: Any
) -> None:
    close()
    order = Order.objects.create(created_at=START)
    in_another_session(f"UPDATE declared_order SET note = 'x' WHERE id = {order.pk}")
    answers: list[str] = []

    def asked(_: float) -> None:
        answers.append(in_a_thread(lambda: cancel("declared.close", f"order:{order.pk}")))

    monkeypatch.setattr(fire, "time", SimpleNamespace(monotonic=lambda: len(answers) * fire.STEP_SECONDS, sleep=asked))
    db_clock.advance(seconds=1800)
    stage.go()
    assert set(answers) == {"running"}


def in_a_thread(call: Callable[[], Any]) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connection

    def closing() -> Any:
        try:
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(closing).result()


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("change", "job"), [({"created_at": START + HALF_HOUR}, START + HALF_HOUR), ({"state": "paid"}, None)]
)
def test_a_save_between_the_test_at_fire_and_the_move_of_the_job_is_not_lost(
    close: Close, stage: Any, db_clock: Any, monkeypatch: Any, change: dict[str, Any], job: Any
) -> None:
    close(after=None, while_=Q(state="open"))
    order = Order.objects.create(created_at=START)
    Order.objects.update(created_at=START + timedelta(hours=24))  # no signal: the job moves at fire
    defer = executor.defer

    def saved_before(*args: Any, **options: Any) -> None:
        for name, value in {"created_at": START + timedelta(hours=24), **change}.items():
            setattr(order, name, value)
        order.save()  # of another process; it cannot change a running job
        defer(*args, **options)

    monkeypatch.setattr(executor, "defer", saved_before)
    stage.go()
    assert live() == ({} if job is None else {f"order:{order.pk}": job})


@pytest.fixture
def charge() -> Callable[..., list[Any]]:
    """Declare a timeout whose handler acts outside the database. Returns a list of the rows that it received."""

    def charge(result: Any = None) -> list[Any]:
        called: list[Any] = []

        @timeout(Order, on="created_at", topic="declared.close", atomic=False, max_attempts=3)
        def charge(order: Order, job: Any) -> Any:
            called.append(order.pk)
            return result

        Order.objects.create(created_at=START)
        return called

    return charge


def raise_conflict() -> None:
    cause = Exception()
    cause.sqlstate = "40001"  # type: ignore[attr-defined]
    raise OperationalError from cause


@pytest.fixture
def before_sync(monkeypatch: Any) -> Callable[..., list[int]]:
    """Call a function before each sync at the end of an attempt. Returns a list with the numbers of the calls."""

    def before_sync(call: Callable[[int], None]) -> list[int]:
        numbers: list[int] = []
        original = fire.sync

        def sync(*args: Any, **options: Any) -> Any:
            numbers.append(len(numbers))
            call(numbers[-1])
            return original(*args, **options)

        monkeypatch.setattr(fire, "sync", sync)
        return numbers

    return before_sync


@pytest.mark.on_both
@pytest.mark.parametrize(("result", "state"), [(None, State.FINISHED), (Skip("refunded"), State.CANCELLED)])
def test_a_handler_that_has_run_is_not_called_again_because_its_row_cannot_be_synced(
    charge: Any, before_sync: Any, stage: Any, db_clock: Any, result: Any, state: State
) -> None:
    def fail(number: int) -> None:
        raise DatabaseError("canceling statement due to statement timeout")

    called = charge(result)
    before_sync(fail)
    for _ in range(4):
        stage.go()
        db_clock.advance(seconds=86_400)
    assert (len(called), Job.objects.get().state) == (1, state)


@pytest.mark.on_both
def test_a_conflict_of_the_sync_repeats_the_end_alone(charge: Any, before_sync: Any, stage: Any) -> None:
    def conflict(number: int) -> None:
        if number == 0:
            raise_conflict()

    called, syncs = charge(), before_sync(conflict)
    stage.go()
    assert (len(called), syncs, Job.objects.get().state) == (1, [0, 1], State.FINISHED)


@pytest.mark.only_on("postgresql")
def test_a_connection_that_is_lost_in_the_sync_repeats_the_end_alone(charge: Any, before_sync: Any, stage: Any) -> None:
    def lose(number: int) -> None:
        if number == 0:
            connection.connection.close()

    called, syncs = charge(), before_sync(lose)
    stage.go()
    assert (len(called), syncs, Job.objects.get().state) == (1, [0, 1], State.FINISHED)


@pytest.mark.on_both
def test_a_skip_that_cannot_be_stored_at_the_last_attempt_makes_the_job_dead_and_ends_no_run(
    close: Close, before_sync: Any, stage: Any
) -> None:
    def fail(number: int) -> None:
        raise DatabaseError("canceling statement due to statement timeout")

    close(after=None, while_=Q(state="open"), max_attempts=1)
    Order.objects.create(created_at=START)
    Order.objects.update(state="paid")  # no signal
    before_sync(fail)
    stage.go()
    assert Job.objects.get().state == State.DEAD


@pytest.mark.on_both
def test_a_handler_that_finishes_its_job_itself_meets_no_conflict(before_sync: Any, stage: Any) -> None:
    def conflict(number: int) -> None:
        if number == 0:
            raise_conflict()

    @timeout(Order, on="created_at", topic="declared.close", atomic=False, max_attempts=1)
    def charge(order: Order, job: Any) -> None:
        job.finish()

    Order.objects.create(created_at=START)
    syncs = before_sync(conflict)
    stage.go()
    assert (syncs, Job.objects.get().state) == ([0, 1], State.FINISHED)


@pytest.mark.on_both
def test_a_conflict_of_the_sync_after_a_move_repeats_the_move(
    close: Close, before_sync: Any, stage: Any, db_clock: Any
) -> None:
    def conflict(number: int) -> None:
        if number == 1:  # the second sync of the move, after the job has got its new due time
            raise_conflict()

    close(after=None)
    order = Order.objects.create(created_at=START)
    Order.objects.update(created_at=START + HALF_HOUR)  # no signal: the job moves at fire
    syncs = before_sync(conflict)
    stage.go()
    assert (syncs, live()) == ([0, 1, 2, 3], {f"order:{order.pk}": START + HALF_HOUR})
