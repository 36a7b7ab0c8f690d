"""One change to many jobs: each visited once, with its own answer, whatever happens meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from kombu.utils import functional

from delaytasks import bulk, cancel, changing, clock, engine, manymoves, schedule, tasks, visits
from delaytasks.exceptions import BadInput
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import State

from .conftest import Stage, state_of

TOPIC = "mail.send"
sent: list[tuple[int, str]] = []


@pytest.fixture(autouse=True)
def _workers(settings: Any, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {}}}
    sent.clear()
    monkeypatch.setattr(bulk, "send", lambda pk, using: sent.append((pk, using)))
    monkeypatch.setattr(bulk, "PIECE", 3)


def jobs(count: int, delay: float = 60) -> list[int]:
    return [schedule(TOPIC, key=f"k{number}", delay=delay).pk for number in range(count)]


def done(change: BulkChange) -> BulkChange:
    """The change after workers have worked it off."""
    while bulk.work(change.pk, using="default"):
        pass
    change.refresh_from_db()
    return change


def test_a_change_is_sent_to_a_worker_when_it_is_committed() -> None:
    change = bulk.start("cancel", jobs(2), by="ann")
    assert sent == [(change.pk, "default")]
    assert (change.state, change.total, change.position) == ("waiting", 2, 0)


def test_ten_jobs_are_cancelled_each_with_who_and_why() -> None:
    change = done(bulk.start("cancel", jobs(10), by="ann", reason="shop closed"))
    assert (change.state, change.position, change.outcomes) == ("done", 10, {"cancelled": 10})
    assert set(Job.objects.values_list("state", flat=True)) == {State.CANCELLED}
    assert set(JobEvent.objects.values_list("outcome", "actor", "reason")) == {("cancelled", "ann", "shop closed")}
    assert change.samples["cancelled"][0][1:] == [TOPIC, "k0"]
    assert change.ended_at is not None


def test_each_job_has_its_own_truthful_answer(stage: Stage) -> None:
    running, ended, cancelled, waiting = jobs(4, delay=0)
    Job.objects.exclude(pk=running).update(due_at=clock.from_ms(4_000_000_000_000))
    assert [held.id for held in stage.take(TOPIC)] == [running]
    cancel(TOPIC, key="k2")
    Job.objects.filter(pk=ended).update(state=State.FINISHED, ended_at=clock.from_ms(1))
    change = done(bulk.start("cancel", [running, ended, cancelled, waiting, 10**9], by="ann"))
    assert change.outcomes == {
        "already running": 1, "already finished": 1, "already cancelled": 1, "cancelled": 1, "no longer there": 1,
    }  # fmt: skip
    assert change.samples["already running"] == [[running, TOPIC, "k0"]]


def test_what_is_postponed_is_moved_once_by_its_own_due_time(db_clock: Any) -> None:
    ids = jobs(5, delay=60)
    before = dict(Job.objects.values_list("pk", "due_at"))
    change = done(bulk.start("postpone", ids, by="ann", delay_ms=3_600_000))
    assert change.outcomes == {"postponed": 5}
    assert {clock.to_ms(due) - clock.to_ms(before[pk]) for pk, due in Job.objects.values_list("pk", "due_at")} == {
        3_600_000
    }


def test_what_is_overdue_is_postponed_from_now(db_clock: Any) -> None:
    (job_id,) = jobs(1, delay=0)
    db_clock.advance(seconds=500)
    done(bulk.start("postpone", [job_id], by="ann", delay_ms=60_000))
    assert Job.objects.get().due_ms == db_clock.now_ms + 60_000


def test_dead_jobs_are_retried_and_others_are_not_dead(db_clock: Any) -> None:
    dead, alive = jobs(2)
    now = clock.from_ms(db_clock.now_ms)
    Job.objects.filter(pk=dead).update(state=State.DEAD, ended_at=now, died_at=now)
    change = done(bulk.start("retry", [dead, alive], by="ann"))
    assert change.outcomes == {"retried": 1, "not dead": 1}


def test_jobs_are_made_ready(stage: Stage) -> None:
    change = done(bulk.start("run_now", jobs(4), by="ann"))
    assert change.outcomes == {"made ready": 4}
    assert len(stage.take(TOPIC, 10)) > 0


def test_a_change_that_is_stopped_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    change = bulk.start("cancel", jobs(9), by="ann")
    assert bulk.work(change.pk, using="default", seconds=0)
    assert bulk.stop(change.pk)
    assert not bulk.work(change.pk, using="default")
    change.refresh_from_db()
    assert (change.state, change.position, change.outcomes) == ("stopped", 3, {"cancelled": 3})
    assert not bulk.stop(change.pk)
    assert state_of("k8") == "delayed"


def test_a_killed_worker_leaves_nothing_changed_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    change = bulk.start("postpone", jobs(5), by="ann", delay_ms=1000)
    due = list(Job.objects.order_by("pk").values_list("due_at", flat=True))
    with monkeypatch.context() as broken:
        broken.setattr(bulk, "_store_progress", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bulk.work(change.pk, using="default")
    assert list(Job.objects.order_by("pk").values_list("due_at", flat=True)) == due
    assert done(change).outcomes == {"postponed": 5}


MOVES: list[tuple[str, int | None]] = [("cancel", None), ("postpone", 60_000), ("run_now", None), ("retry", None)]


def one_of_each(stage: Stage, prefix: str) -> list[int]:
    """Jobs in every state, one that there is not, a dead one whose key is live again; two of each that can be moved."""
    named = {}
    for name in ("running", "far", "far too", "ready", "finished", "cancelled", "dead", "dead too", "again"):
        named[name] = schedule(TOPIC, key=prefix + name, delay=0 if name in ("running", "ready") else 3600).pk
    now = clock.from_ms(engine.now_ms("default"))
    Job.objects.filter(pk=named["running"]).update(state=State.RESERVED, attempt=1, reserved_at=now, lease_until=now)
    for name in ("finished", "cancelled", "dead", "dead too", "again"):
        state = State.DEAD if name == "again" else State[name.split()[0].upper()]
        died = now if state is State.DEAD else None
        Job.objects.filter(pk=named[name]).update(state=state, ended_at=now, died_at=died)
    schedule(TOPIC, key=f"{prefix}again", delay=3600)
    return [*named.values(), 10**9]


def standing(ids: list[int]) -> list[Any]:
    """How these jobs and their events are, but for their numbers."""
    jobs = Job.objects.filter(pk__in=ids).order_by("pk")
    events = JobEvent.objects.filter(job_id__in=ids).order_by("job_id", "id")
    columns = ("state", "due_at", "ended_at", "died_at", "attempt", "failures")
    told = ("outcome", "attempt", "due_ms", "done_ms", "next_due_ms", "actor", "reason")
    return [*jobs.values_list(*columns), *events.values_list(*told)]


@pytest.mark.parametrize("again", [True, False], ids=["a key is live again", "no key is live again"])
@pytest.mark.parametrize(("operation", "delay_ms"), MOVES)
def test_many_at_once_are_changed_as_each_of_them_would_be_by_itself(
    stage: Stage, db_clock: Any, monkeypatch: pytest.MonkeyPatch, operation: str, delay_ms: int | None, again: bool
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 100)
    together, apart = one_of_each(stage, "a "), one_of_each(stage, "b ")
    if not again:
        together, apart = ([number for number in ids if number != ids[-2]] for ids in (together, apart))
    db_clock.advance(seconds=5)
    terms = {"by": "ann", "reason": "shop closed", "delay_ms": delay_ms}
    one = done(bulk.start(operation, together, **terms))
    monkeypatch.setattr(visits, "_change_together", lambda *args: set())
    other = done(bulk.start(operation, apart, **terms))
    assert one.outcomes == other.outcomes
    assert one.outcomes[visits.DONE_WORDS[bulk.Operation(operation)]] >= 1
    assert {word: len(named) for word, named in one.samples.items()} == one.outcomes
    assert standing(together) == standing(apart)


@pytest.mark.parametrize(("operation", "delay_ms"), MOVES[:3])
def test_a_piece_costs_the_same_number_of_queries_however_many_jobs_it_has(
    monkeypatch: pytest.MonkeyPatch, operation: str, delay_ms: int | None
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 100)

    def cost(ids: list[int]) -> int:
        change = bulk.start(operation, ids, by="ann", delay_ms=delay_ms)
        with CaptureQueriesContext(connection) as captured:
            done(change)
        return len([each for each in captured.captured_queries if "bulkchange" not in each["sql"]])

    few, many = jobs(2), [schedule(TOPIC, key=f"m{number}", delay=60).pk for number in range(50)]
    assert cost(few) == cost(many)


def test_the_mirror_hears_of_all_that_were_cancelled_and_made_ready(stage: Stage) -> None:
    ids = jobs(8)
    done(bulk.start("cancel", ids[:4], by="ann"))
    done(bulk.start("run_now", ids[4:], by="ann"))
    stage.go()
    assert sorted(held.key for held in stage.take(TOPIC, 10)) == ["k4", "k5", "k6", "k7"]


def test_which_jobs_it_was_is_forgotten_when_it_is_done_and_kept_as_long_as_it_can_go_on() -> None:
    finished = done(bulk.start("cancel", jobs(4), by="ann"))
    stopped, failed = (bulk.start("cancel", [1, 2], by="ann") for _ in range(2))
    bulk.stop(stopped.pk)
    bulk.fail(failed.pk, "boom", using="default")
    assert list(BulkChange.objects.order_by("pk").values_list("ids", flat=True)) == [[], [1, 2], [1, 2]]
    assert (finished.total, finished.outcomes) == (4, {"cancelled": 4})


def test_a_change_is_forgotten_long_after_its_end(db_clock: Any) -> None:
    old, recent, open_one = (bulk.start("cancel", [number], by="ann") for number in (1, 2, 3))
    now = clock.from_ms(db_clock.now_ms)
    BulkChange.objects.filter(pk=open_one.pk).update(created_at=now - timedelta(days=1000))
    BulkChange.objects.filter(pk=old.pk).update(ended_at=now - timedelta(days=91), state="done")
    BulkChange.objects.filter(pk=recent.pk).update(ended_at=now - timedelta(days=89), state="done")
    tasks.sweep()
    assert list(BulkChange.objects.order_by("pk")) == [recent, open_one]


def test_two_workers_at_once_visit_each_job_once() -> None:
    change = bulk.start("postpone", jobs(30), by="ann", delay_ms=1000)

    def work() -> None:
        try:
            while bulk.work(change.pk, using="default"):
                pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done(change).outcomes == {"postponed": 30}
    assert JobEvent.objects.count() == 30


def test_the_admins_log_names_the_person(django_user_model: Any) -> None:
    ann = get_user_model().objects.create_superuser("ann")
    done(bulk.start("cancel", jobs(4), by="ann", user_id=ann.pk, reason="shop closed"))
    said = set(LogEntry.objects.values_list("user__username", "change_message"))
    assert said == {("ann", "Cancelled: shop closed")}
    assert LogEntry.objects.count() == 4


def operator(name: str = "ann") -> Any:
    ann = get_user_model().objects.create_user(name)
    ann.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "operate_job"]))
    return ann


def gone(ann: Any) -> None:
    ann.delete()


def not_active(ann: Any) -> None:
    type(ann).objects.update(is_active=False)


def without_rights(ann: Any) -> None:
    ann.user_permissions.clear()


@pytest.mark.parametrize("become", [gone, not_active, without_rights])
def test_a_change_whose_person_may_not_operate_any_more_is_not_gone_on_with(become: Any) -> None:
    ann = operator()
    change = bulk.start("cancel", jobs(5), by="ann", user_id=ann.pk)
    assert bulk.work(change.pk, using="default", seconds=0)
    become(ann)
    done(change)
    assert (change.state, change.outcomes) == ("failed", {"cancelled": 3})
    assert change.error == "Who asked for this may not change jobs any more."
    assert change.ended_at is not None


def test_the_jobs_of_a_topic_that_was_hidden_from_them_meanwhile_are_left_as_they_are() -> None:
    change = bulk.start("cancel", jobs(5), by="ann", user_id=operator().pk)
    bulk.work(change.pk, using="default", seconds=0)
    Topic.objects.create(name=TOPIC, visible_to=[999])
    assert done(change).outcomes == {"cancelled": 3, "no longer there": 2}
    assert [named[1:] for named in change.samples["no longer there"]] == [["", ""]] * 2
    assert [state_of(f"k{number}") for number in range(5)] == ["cancelled"] * 3 + ["delayed"] * 2


def test_the_task_goes_on_until_it_is_done_and_a_stalled_one_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = bulk.start("cancel", jobs(5), by="ann")
    sent.clear()
    monkeypatch.setattr(bulk, "STALLED_SECONDS", -1)
    tasks.sweep()
    assert sent == [(change.pk, "default")]
    tasks.bulk_change(change.pk, "default")
    change.refresh_from_db()
    assert change.state == "done"
    sent.clear()
    tasks.sweep()
    assert sent == []


def poisoned(monkeypatch: pytest.MonkeyPatch, poison: Callable[[int], bool]) -> None:
    """Some jobs cannot be changed, neither together with others nor by themselves."""
    one, many = changing.call_off, manymoves.cancel

    def call_off(job_id: int, **terms: Any) -> Any:
        answer = one(job_id, **terms)
        return 1 / 0 if poison(job_id) else answer

    def cancel_many(using: str, ids: Any, who: Any) -> set[int]:
        found = many(using, ids, who)
        return {1 // 0} if any(map(poison, ids)) else found

    monkeypatch.setattr(changing, "call_off", call_off)
    monkeypatch.setattr(manymoves, "cancel", cancel_many)


def test_what_is_wrong_with_one_job_is_said_of_that_one_and_the_others_are_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = jobs(7)
    poisoned(monkeypatch, lambda job_id: job_id == ids[4])
    change = done(bulk.start("cancel", ids, by="ann"))
    assert (change.state, change.position) == ("done", 7)
    assert change.outcomes == {"cancelled": 6, "error: ZeroDivisionError": 1}
    assert change.samples["error: ZeroDivisionError"] == [[ids[4], TOPIC, "k4"]]
    assert [state_of(f"k{number}") for number in range(7)] == ["cancelled"] * 4 + ["delayed"] + ["cancelled"] * 2
    assert JobEvent.objects.filter(outcome="cancelled").count() == 6


def test_what_is_wrong_with_each_job_ends_it_and_it_can_go_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PIECE", 30)
    ids = jobs(50)
    with monkeypatch.context() as broken:
        poisoned(broken, lambda job_id: ids[5] <= job_id < ids[40])
        change = done(bulk.start("cancel", ids, by="ann"))
    assert (change.state, change.position, change.outcomes) == ("failed", 5, {"cancelled": 5})
    assert "ZeroDivisionError" in change.error
    sent.clear()
    assert bulk.can_go_on(change.pk)
    assert bulk.go_on(change.pk)
    assert sent == [(change.pk, "default")]
    assert not bulk.go_on(change.pk)
    change.refresh_from_db()
    assert (change.state, change.error, change.ended_at) == ("waiting", "", None)
    assert done(change).outcomes == {"cancelled": 50}
    assert JobEvent.objects.filter(outcome="cancelled").count() == 50


def test_a_change_that_was_stopped_goes_on_where_it_was_and_one_that_is_done_does_not() -> None:
    change = bulk.start("postpone", jobs(9), by="ann", delay_ms=1000)
    bulk.work(change.pk, using="default", seconds=0)
    bulk.stop(change.pk)
    assert bulk.go_on(change.pk)
    assert done(change).outcomes == {"postponed": 9}
    assert JobEvent.objects.filter(outcome="rescheduled").count() == 9
    assert not bulk.can_go_on(change.pk)
    assert not bulk.go_on(change.pk)


def test_a_fault_of_ours_is_shown_and_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    change = bulk.start("cancel", jobs(2), by="ann")
    monkeypatch.setattr(visits, "_count", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tasks.bulk_change(change.pk, "default")
    change.refresh_from_db()
    assert change.state == "failed"
    assert "ZeroDivisionError" in change.error


# What somebody else holds


@contextmanager
def somebody(act: Callable[[], Any]) -> Iterator[None]:
    """Somebody who has done this in a transaction that goes on until the end of the block, and is then undone."""
    did, leave = threading.Event(), threading.Event()

    def transact() -> None:
        try:
            with transaction.atomic():
                act()
                did.set()
                leave.wait(60)
                transaction.set_rollback(True)
        finally:
            did.set()
            connections.close_all()

    thread = threading.Thread(target=transact)
    thread.start()
    assert did.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join()


@pytest.mark.only_on("postgresql")
def test_a_piece_waits_for_nobody_and_comes_back_to_what_was_held() -> None:
    change = bulk.start("postpone", jobs(8), by="ann", delay_ms=1000)
    with somebody(lambda: cancel(TOPIC, key="k1")):
        assert [bulk.work(change.pk, using="default", seconds=0) for _ in range(4)] == [True] * 4
        change.refresh_from_db()
        held = Job.objects.get(key="k1").pk
        assert (change.state, change.position, change.put_off) == ("running", 7, [held])
        assert change.outcomes == {"postponed": 7}
        assert cancel(TOPIC, key="k0") == "cancelled", "nobody has to wait for the change meanwhile"
        assert bulk.stop(change.pk)
        assert bulk.go_on(change.pk)
    assert done(change).outcomes == {"postponed": 8}
    assert (change.put_off, change.position) == ([], 8)
    assert JobEvent.objects.filter(outcome="rescheduled").count() == 8


@pytest.mark.only_on("postgresql")
def test_a_worker_that_is_killed_at_what_is_held_leaves_it_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    change = bulk.start("postpone", jobs(5), by="ann", delay_ms=1000)
    monkeypatch.setattr(bulk, "PAUSE_SECONDS", None)  # whoever rests is killed
    with somebody(lambda: cancel(TOPIC, key="k4")):
        with pytest.raises(TypeError):
            bulk.work(change.pk, using="default", seconds=60)
        change.refresh_from_db()
        assert (change.position, change.outcomes, len(change.put_off)) == (4, {"postponed": 4}, 1)
    assert done(change).outcomes == {"postponed": 5}


@pytest.mark.only_on("postgresql")
def test_what_is_put_off_is_visited_once_by_two_workers() -> None:
    change = bulk.start("postpone", jobs(30), by="ann", delay_ms=1000)
    with somebody(lambda: [cancel(TOPIC, key=f"k{number}") for number in range(0, 30, 2)]):
        for _ in range(10):  # pieces of three jobs each
            bulk.work(change.pk, using="default", seconds=0)
        change.refresh_from_db()
        assert (change.position, len(change.put_off)) == (15, 15)

    def work() -> None:
        try:
            while bulk.work(change.pk, using="default"):
                pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done(change).outcomes == {"postponed": 30}
    assert JobEvent.objects.filter(outcome="rescheduled").count() == 30


@pytest.mark.only_on("postgresql")
def test_a_dead_job_whose_key_is_being_scheduled_holds_up_neither_the_others_nor_their_customers(
    db_clock: Any,
) -> None:
    ids, now = jobs(3), clock.from_ms(db_clock.now_ms)
    Job.objects.update(state=State.DEAD, ended_at=now, died_at=now)
    change = bulk.start("retry", ids, by="ann")
    with somebody(lambda: schedule(TOPIC, key="k1", delay=60)):
        for _ in range(2):  # the second one begins with what the first one did not come to
            bulk.work(change.pk, using="default", seconds=0)
        change.refresh_from_db()
        assert (change.outcomes, change.put_off) == ({"retried": 2}, [ids[1]])
        assert cancel(TOPIC, key="k0") == "cancelled"
    assert done(change).outcomes == {"retried": 3}


@pytest.mark.only_on("postgresql")
def test_a_job_that_runs_is_not_waited_for(stage: Stage) -> None:
    ids = jobs(2, delay=0)
    stage.take(TOPIC, 1)
    running = Job.objects.get(state=State.RESERVED)
    change = bulk.start("cancel", ids, by="ann")
    with somebody(lambda: Job.objects.select_for_update().get(pk=running.pk)):
        assert done(change).outcomes == {"cancelled": 1, "already running": 1}


@pytest.mark.parametrize(
    ("operation", "ids", "delay_ms"),
    [("explode", [1], None), ("cancel", [], None), ("cancel", [1], 5), ("postpone", [1], None),
     ("cancel", range(100_001), None)],
)  # fmt: skip
def test_bad_input_is_refused(operation: str, ids: Any, delay_ms: int | None) -> None:
    with pytest.raises(BadInput):
        bulk.start(operation, ids, by="ann", delay_ms=delay_ms)
    assert not BulkChange.objects.exists()


def test_a_broker_that_does_not_answer_loses_nothing(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(bulk.current_app, "send_task", lambda *args, **options: (_ for _ in ()).throw(OSError("gone")))
    change = bulk.start("cancel", jobs(2), by="ann")
    assert "the sweep sends it again: gone" in caplog.text
    assert change.state == "waiting"


@pytest.mark.parametrize("broker", ["redis://localhost:1/0", "amqp://localhost:1//"])
def test_nobody_waits_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch, caplog: Any, broker: str) -> None:
    monkeypatch.undo()

    def rest(seconds: float) -> None:
        raise AssertionError("it is tried again at once, or not at all")

    monkeypatch.setattr(functional, "sleep", rest)
    monkeypatch.setattr(bulk, "current_app", Celery(broker=broker, set_as_current=False))
    bulk.send(1, "default")
    assert "the sweep sends it again" in caplog.text
