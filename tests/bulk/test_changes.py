"""Bulk changes: each job is changed once, with a result of its own."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from kombu.utils import functional

from delaytasks import cancel, clock, databases, retry_dead, schedule, tasks
from delaytasks.bulk import apply, changes, moves
from delaytasks.exceptions import BadInput
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.outcomes import DONE, ErrorCode
from delaytasks.states import State

from ..support.locks import other_transaction
from ..support.stage import Stage, state_of

TOPIC = "mail.send"
sent: list[tuple[int, str]] = []


@pytest.fixture(autouse=True)
def _workers(settings: Any, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {}}}
    sent.clear()
    monkeypatch.setattr(changes, "send", lambda pk, using: sent.append((pk, using)))
    monkeypatch.setattr(changes, "BATCH_SIZE", 3)


def jobs(count: int, delay: float = 60) -> list[int]:
    return [schedule(TOPIC, key=f"k{number}", delay=delay).pk for number in range(count)]


def finish(change: BulkChange) -> BulkChange:
    """Work on the change until it ends. Return it."""
    while changes.work(change.pk, using="default"):
        pass
    change.refresh_from_db()
    return change


def work_at_once(change: BulkChange, workers: int) -> None:
    """Work on the change in several threads until it ends."""

    def work() -> None:
        try:
            while changes.work(change.pk, using="default"):
                pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_change_is_sent_to_a_worker_when_it_is_committed() -> None:
    change = changes.start("cancel", jobs(2), by="ann")
    assert sent == [(change.pk, "default")]
    assert (change.state, change.total, change.position) == ("waiting", 2, 0)


def test_ten_jobs_are_cancelled_with_requester_and_reason() -> None:
    change = finish(changes.start("cancel", jobs(10), by="ann", reason="shop closed"))
    assert (change.state, change.position, change.outcomes) == ("done", 10, {"cancelled": 10})
    assert set(Job.objects.values_list("state", flat=True)) == {State.CANCELLED}
    assert set(JobEvent.objects.values_list("outcome", "actor", "reason")) == {("cancelled", "ann", "shop closed")}
    assert change.samples["cancelled"][0][1:] == [TOPIC, "k0"]
    assert change.ended_at is not None


def test_each_job_has_its_own_true_result(stage: Stage) -> None:
    running, ended, cancelled, waiting = jobs(4, delay=0)
    Job.objects.exclude(pk=running).update(due_at=clock.from_ms(4_000_000_000_000))
    assert [held.id for held in stage.take(TOPIC)] == [running]
    cancel(TOPIC, key="k2")
    Job.objects.filter(pk=ended).update(state=State.FINISHED, ended_at=clock.from_ms(1))
    change = finish(changes.start("cancel", [running, ended, cancelled, waiting, 10**9], by="ann"))
    assert change.outcomes == {
        "running": 1, "already_finished": 1, "already_cancelled": 1, "cancelled": 1, "not_found": 1,
    }  # fmt: skip
    assert change.samples["running"] == [[running, TOPIC, "k0"]]


@pytest.mark.on_both
def test_cancelling_leaves_the_next_runs_of_running_jobs(stage: Stage) -> None:
    dead, running, waiting = jobs(3, delay=0)
    Job.objects.filter(pk=dead).update(state=State.DEAD, ended_at=clock.from_ms(1), died_at=clock.from_ms(1))
    Job.objects.filter(pk=waiting).update(due_at=clock.from_ms(4_000_000_000_000))
    assert [held.id for held in stage.take(TOPIC)] == [running]
    schedule(TOPIC, key="k1", delay=60, body={"n": 2}, on_conflict="again")
    before = Job.objects.filter(pk=running).values().get()
    change = finish(changes.start("cancel", [dead, running, waiting], by="ann"))
    assert change.outcomes == {"running": 1, "cancelled": 2}
    assert Job.objects.filter(pk=running).values().get() == before


def test_each_job_is_postponed_once_from_its_own_due_time(db_clock: Any) -> None:
    ids = jobs(5, delay=60)
    before = dict(Job.objects.values_list("pk", "due_at"))
    change = finish(changes.start("postpone", ids, by="ann", delay_ms=3_600_000))
    assert change.outcomes == {"postponed": 5}
    assert {clock.to_ms(due) - clock.to_ms(before[pk]) for pk, due in Job.objects.values_list("pk", "due_at")} == {
        3_600_000
    }


def test_an_overdue_job_is_postponed_from_now(db_clock: Any) -> None:
    (job_id,) = jobs(1, delay=0)
    db_clock.advance(seconds=500)
    finish(changes.start("postpone", [job_id], by="ann", delay_ms=60_000))
    assert Job.objects.get().due_ms == db_clock.now_ms + 60_000


def test_dead_jobs_are_retried_and_others_are_counted_as_not_dead(db_clock: Any) -> None:
    dead, alive = jobs(2)
    now = clock.from_ms(db_clock.now_ms)
    Job.objects.filter(pk=dead).update(state=State.DEAD, ended_at=now, died_at=now)
    change = finish(changes.start("retry", [dead, alive], by="ann"))
    assert change.outcomes == {"retried": 1, "not_dead": 1}


def test_jobs_are_made_ready(stage: Stage) -> None:
    change = finish(changes.start("run_now", jobs(4), by="ann"))
    assert change.outcomes == {"made_ready": 4}
    assert len(stage.take(TOPIC, 10)) > 0


def test_a_stopped_change_leaves_the_remaining_jobs_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    change = changes.start("cancel", jobs(9), by="ann")
    assert changes.work(change.pk, using="default", seconds=0)
    assert changes.stop(change.pk)
    assert not changes.work(change.pk, using="default")
    change.refresh_from_db()
    assert (change.state, change.position, change.outcomes) == ("stopped", 3, {"cancelled": 3})
    assert not changes.stop(change.pk)
    assert state_of("k8") == "delayed"


def test_a_killed_worker_leaves_no_job_changed_but_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    change = changes.start("postpone", jobs(5), by="ann", delay_ms=1000)
    due = list(Job.objects.order_by("pk").values_list("due_at", flat=True))
    with monkeypatch.context() as broken:
        broken.setattr(changes, "_store_progress", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            changes.work(change.pk, using="default")
    assert list(Job.objects.order_by("pk").values_list("due_at", flat=True)) == due
    assert finish(change).outcomes == {"postponed": 5}


OPERATIONS: list[tuple[str, int | None]] = [("cancel", None), ("postpone", 60_000), ("run_now", None), ("retry", None)]


def jobs_in_all_states(stage: Stage, prefix: str) -> list[int]:
    """Create jobs in every state and a dead job whose key is live again. Return their ids and an unknown one."""
    ids = {}
    for name in ("running", "far", "far too", "ready", "finished", "cancelled", "dead", "dead too", "again"):
        ids[name] = schedule(TOPIC, key=prefix + name, delay=0 if name in ("running", "ready") else 3600).pk
    now = clock.from_ms(databases.now_ms("default"))
    Job.objects.filter(pk=ids["running"]).update(state=State.RESERVED, attempt=1, reserved_at=now, lease_until=now)
    for name in ("finished", "cancelled", "dead", "dead too", "again"):
        state = State.DEAD if name == "again" else State[name.split()[0].upper()]
        died = now if state is State.DEAD else None
        Job.objects.filter(pk=ids[name]).update(state=state, ended_at=now, died_at=died)
    schedule(TOPIC, key=f"{prefix}again", delay=3600)
    return [*ids.values(), 10**9]


def state_of_all(ids: list[int]) -> list[Any]:
    """Return the columns of these jobs and of their events, except ids."""
    jobs = Job.objects.filter(pk__in=ids).order_by("pk")
    events = JobEvent.objects.filter(job_id__in=ids).order_by("job_id", "id")
    job_columns = ("state", "due_at", "ended_at", "died_at", "attempt", "failures")
    event_columns = ("outcome", "attempt", "due_ms", "done_ms", "next_due_ms", "actor", "reason")
    return [*jobs.values_list(*job_columns), *events.values_list(*event_columns)]


@pytest.mark.parametrize("again", [True, False], ids=["a key is live again", "no key is live again"])
@pytest.mark.parametrize(("operation", "delay_ms"), OPERATIONS)
def test_many_jobs_in_one_statement_are_changed_as_each_of_them_would_be(
    stage: Stage, db_clock: Any, monkeypatch: pytest.MonkeyPatch, operation: str, delay_ms: int | None, again: bool
) -> None:
    monkeypatch.setattr(changes, "BATCH_SIZE", 100)
    together, singly = jobs_in_all_states(stage, "a "), jobs_in_all_states(stage, "b ")
    if not again:
        together, singly = ([pk for pk in ids if pk != ids[-2]] for ids in (together, singly))
    db_clock.advance(seconds=5)
    arguments = {"by": "ann", "reason": "shop closed", "delay_ms": delay_ms}
    one = finish(changes.start(operation, together, **arguments))
    monkeypatch.setattr(apply, "_change_together", lambda *args: set())
    other = finish(changes.start(operation, singly, **arguments))
    assert one.outcomes == other.outcomes
    assert one.outcomes[DONE[operation]] >= 1
    assert {result: len(samples) for result, samples in one.samples.items()} == one.outcomes
    assert state_of_all(together) == state_of_all(singly)


@pytest.mark.parametrize("dead", [False, True], ids=["live", "dead"])
@pytest.mark.parametrize(("operation", "delay_ms"), OPERATIONS[:3])
def test_a_batch_needs_the_same_number_of_queries_for_any_number_of_jobs(
    monkeypatch: pytest.MonkeyPatch, operation: str, delay_ms: int | None, dead: bool
) -> None:
    if dead and operation != "cancel":
        pytest.skip("changes no dead jobs")
    monkeypatch.setattr(changes, "BATCH_SIZE", 100)

    def count_queries(ids: list[int]) -> int:
        change = changes.start(operation, ids, by="ann", delay_ms=delay_ms)
        with CaptureQueriesContext(connection) as captured:
            finish(change)
        return len([query for query in captured.captured_queries if "bulkchange" not in query["sql"]])

    few, many = jobs(2), [schedule(TOPIC, key=f"m{number}", delay=60).pk for number in range(50)]
    if dead:
        now = databases.now("default")
        Job.objects.update(state=State.DEAD, ended_at=now, died_at=now)
    assert count_queries(few) == count_queries(many)


def test_the_mirror_is_updated_for_all_jobs_that_were_cancelled_and_made_ready(stage: Stage) -> None:
    ids = jobs(8)
    finish(changes.start("cancel", ids[:4], by="ann"))
    finish(changes.start("run_now", ids[4:], by="ann"))
    stage.go()
    assert sorted(held.key for held in stage.take(TOPIC, 10)) == ["k4", "k5", "k6", "k7"]


def test_the_ids_are_deleted_when_a_change_is_done_and_kept_while_it_can_be_resumed() -> None:
    finished = finish(changes.start("cancel", jobs(4), by="ann"))
    stopped, failed = (changes.start("cancel", [1, 2], by="ann") for _ in range(2))
    changes.stop(stopped.pk)
    changes.fail(failed.pk, "boom", using="default")
    assert list(BulkChange.objects.order_by("pk").values_list("ids", flat=True)) == [[], [1, 2], [1, 2]]
    assert (finished.total, finished.outcomes) == (4, {"cancelled": 4})


def test_a_change_is_deleted_long_after_its_end(db_clock: Any) -> None:
    old, recent, open_one = (changes.start("cancel", [number], by="ann") for number in (1, 2, 3))
    now = clock.from_ms(db_clock.now_ms)
    BulkChange.objects.filter(pk=open_one.pk).update(created_at=now - timedelta(days=1000))
    BulkChange.objects.filter(pk=old.pk).update(ended_at=now - timedelta(days=91), state="done")
    BulkChange.objects.filter(pk=recent.pk).update(ended_at=now - timedelta(days=89), state="done")
    tasks.sweep()
    assert list(BulkChange.objects.order_by("pk")) == [recent, open_one]


def test_concurrent_workers_change_each_job_once() -> None:
    change = changes.start("postpone", jobs(30), by="ann", delay_ms=1000)
    work_at_once(change, 3)
    assert finish(change).outcomes == {"postponed": 30}
    assert JobEvent.objects.count() == 30


def test_the_admins_log_names_the_requester(django_user_model: Any) -> None:
    ann = get_user_model().objects.create_superuser("ann")
    finish(changes.start("cancel", jobs(4), by="ann", user_id=ann.pk, reason="shop closed"))
    entries = set(LogEntry.objects.values_list("user__username", "change_message"))
    assert entries == {("ann", "Cancelled: shop closed")}
    assert LogEntry.objects.count() == 4


def operator(name: str = "ann") -> Any:
    ann = get_user_model().objects.create_user(name)
    ann.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "operate_job"]))
    return ann


def deleted(ann: Any) -> None:
    ann.delete()


def inactive(ann: Any) -> None:
    type(ann).objects.update(is_active=False)


def without_permissions(ann: Any) -> None:
    ann.user_permissions.clear()


@pytest.mark.parametrize("become", [deleted, inactive, without_permissions])
def test_a_change_fails_if_the_requester_no_longer_has_permission(become: Any) -> None:
    ann = operator()
    change = changes.start("cancel", jobs(5), by="ann", user_id=ann.pk)
    assert changes.work(change.pk, using="default", seconds=0)
    become(ann)
    finish(change)
    assert (change.state, change.outcomes) == ("failed", {"cancelled": 3})
    assert change.error == ErrorCode.NOT_ALLOWED
    assert change.ended_at is not None


def test_jobs_of_a_topic_that_the_requester_may_no_longer_see_are_unchanged() -> None:
    change = changes.start("cancel", jobs(5), by="ann", user_id=operator().pk)
    changes.work(change.pk, using="default", seconds=0)
    Topic.objects.create(name=TOPIC, visible_to=[999])
    assert finish(change).outcomes == {"cancelled": 3, "not_found": 2}
    assert [sample[1:] for sample in change.samples["not_found"]] == [["", ""]] * 2
    assert [state_of(f"k{number}") for number in range(5)] == ["cancelled"] * 3 + ["delayed"] * 2


def test_the_task_continues_until_the_change_is_done_and_a_stalled_change_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = changes.start("cancel", jobs(5), by="ann")
    sent.clear()
    monkeypatch.setattr(changes, "STALLED_SECONDS", -1)
    tasks.sweep()
    assert sent == [(change.pk, "default")]
    tasks.bulk_change(change.pk, "default")
    change.refresh_from_db()
    assert change.state == "done"
    sent.clear()
    tasks.sweep()
    assert sent == []


def make_failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    """Make the change of some jobs raise, together with others and singly."""
    cancel_all = moves.cancel

    def cancel_some(using: str, ids: Any, origin: Any) -> set[int]:
        changed = cancel_all(using, ids, origin)
        return {1 // 0} if any(map(fails, ids)) else changed

    monkeypatch.setattr(moves, "cancel", cancel_some)


def test_an_error_of_one_job_is_counted_and_the_others_are_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = jobs(7)
    make_failing(monkeypatch, lambda job_id: job_id == ids[4])
    change = finish(changes.start("cancel", ids, by="ann"))
    assert (change.state, change.position) == ("done", 7)
    assert change.outcomes == {"cancelled": 6, "error:ZeroDivisionError": 1}
    assert change.samples["error:ZeroDivisionError"] == [[ids[4], TOPIC, "k4"]]
    assert [state_of(f"k{number}") for number in range(7)] == ["cancelled"] * 4 + ["delayed"] + ["cancelled"] * 2
    assert JobEvent.objects.filter(outcome="cancelled").count() == 6


def test_a_change_fails_after_many_errors_in_a_row_and_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "BATCH_SIZE", 30)
    ids = jobs(50)
    with monkeypatch.context() as broken:
        make_failing(broken, lambda job_id: ids[5] <= job_id < ids[40])
        change = finish(changes.start("cancel", ids, by="ann"))
    assert (change.state, change.position, change.outcomes) == ("failed", 5, {"cancelled": 5})
    assert "ZeroDivisionError" in change.error
    sent.clear()
    assert changes.can_resume(change.pk)
    assert changes.resume(change.pk)
    assert sent == [(change.pk, "default")]
    assert not changes.resume(change.pk)
    change.refresh_from_db()
    assert (change.state, change.error, change.ended_at) == ("waiting", "", None)
    assert finish(change).outcomes == {"cancelled": 50}
    assert JobEvent.objects.filter(outcome="cancelled").count() == 50


def test_a_stopped_change_can_be_resumed_and_a_done_one_cannot() -> None:
    change = changes.start("postpone", jobs(9), by="ann", delay_ms=1000)
    changes.work(change.pk, using="default", seconds=0)
    changes.stop(change.pk)
    assert changes.resume(change.pk)
    assert finish(change).outcomes == {"postponed": 9}
    assert JobEvent.objects.filter(outcome="rescheduled").count() == 9
    assert not changes.can_resume(change.pk)
    assert not changes.resume(change.pk)


def test_an_internal_error_fails_the_change_and_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    change = changes.start("cancel", jobs(2), by="ann")
    monkeypatch.setattr(apply, "_count", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tasks.bulk_change(change.pk, "default")
    change.refresh_from_db()
    assert change.state == "failed"
    assert "ZeroDivisionError" in change.error


# Locked jobs


@pytest.mark.only_on("postgresql")
def test_a_batch_skips_locked_jobs_and_changes_them_later() -> None:
    change = changes.start("postpone", jobs(8), by="ann", delay_ms=1000)
    with other_transaction(lambda: cancel(TOPIC, key="k1")):
        assert [changes.work(change.pk, using="default", seconds=0) for _ in range(4)] == [True] * 4
        change.refresh_from_db()
        held = Job.objects.get(key="k1").pk
        assert (change.state, change.position, change.put_off) == ("running", 7, [held])
        assert change.outcomes == {"postponed": 7}
        assert cancel(TOPIC, key="k0") == "cancelled", "others do not wait for the change"
        assert changes.stop(change.pk)
        assert changes.resume(change.pk)
    assert finish(change).outcomes == {"postponed": 8}
    assert (change.put_off, change.position) == ([], 8)
    assert JobEvent.objects.filter(outcome="rescheduled").count() == 8


@pytest.mark.only_on("postgresql")
def test_dead_jobs_that_are_locked_are_cancelled_later() -> None:
    ids, now = jobs(4), databases.now("default")
    Job.objects.update(state=State.DEAD, ended_at=now, died_at=now)
    change = changes.start("cancel", ids, by="ann")
    with other_transaction(lambda: retry_dead(TOPIC, "k1")):
        assert [changes.work(change.pk, using="default", seconds=0) for _ in range(2)] == [True] * 2
        change.refresh_from_db()
        assert (change.position, change.put_off, change.outcomes) == (3, [ids[1]], {"cancelled": 3})
    assert finish(change).outcomes == {"cancelled": 4}


@pytest.mark.only_on("postgresql")
def test_locked_jobs_of_a_killed_worker_are_left_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    change = changes.start("postpone", jobs(5), by="ann", delay_ms=1000)
    monkeypatch.setattr(changes, "PAUSE_SECONDS", None)  # time.sleep raises
    with other_transaction(lambda: cancel(TOPIC, key="k4")):
        with pytest.raises(TypeError):
            changes.work(change.pk, using="default", seconds=60)
        change.refresh_from_db()
        assert (change.position, change.outcomes, len(change.put_off)) == (4, {"postponed": 4}, 1)
    assert finish(change).outcomes == {"postponed": 5}


@pytest.mark.only_on("postgresql")
def test_jobs_that_were_put_off_are_changed_once_by_two_workers() -> None:
    change = changes.start("postpone", jobs(30), by="ann", delay_ms=1000)
    with other_transaction(lambda: [cancel(TOPIC, key=f"k{number}") for number in range(0, 30, 2)]):
        for _ in range(10):  # batches of three jobs each
            changes.work(change.pk, using="default", seconds=0)
        change.refresh_from_db()
        assert (change.position, len(change.put_off)) == (15, 15)
    work_at_once(change, 2)
    assert finish(change).outcomes == {"postponed": 30}
    assert JobEvent.objects.filter(outcome="rescheduled").count() == 30


@pytest.mark.only_on("postgresql")
def test_a_dead_job_whose_key_is_being_scheduled_does_not_block_the_others(
    db_clock: Any,
) -> None:
    ids, now = jobs(3), clock.from_ms(db_clock.now_ms)
    Job.objects.update(state=State.DEAD, ended_at=now, died_at=now)
    change = changes.start("retry", ids, by="ann")
    with other_transaction(lambda: schedule(TOPIC, key="k1", delay=60)):
        for _ in range(2):  # the second batch begins with the jobs that the first one did not reach
            changes.work(change.pk, using="default", seconds=0)
        change.refresh_from_db()
        assert (change.outcomes, change.put_off) == ({"retried": 2}, [ids[1]])
        assert cancel(TOPIC, key="k0") == "cancelled"
    assert finish(change).outcomes == {"retried": 3}


@pytest.mark.only_on("postgresql")
def test_a_batch_does_not_wait_for_a_running_job(stage: Stage) -> None:
    ids = jobs(2, delay=0)
    stage.take(TOPIC, 1)
    running = Job.objects.get(state=State.RESERVED)
    change = changes.start("cancel", ids, by="ann")
    with other_transaction(lambda: Job.objects.select_for_update().get(pk=running.pk)):
        assert finish(change).outcomes == {"cancelled": 1, "running": 1}


@pytest.mark.parametrize(
    ("operation", "ids", "delay_ms"),
    [("explode", [1], None), ("cancel", [], None), ("cancel", [1], 5), ("postpone", [1], None),
     ("cancel", range(100_001), None)],
)  # fmt: skip
def test_bad_input_is_refused(operation: str, ids: Any, delay_ms: int | None) -> None:
    with pytest.raises(BadInput):
        changes.start(operation, ids, by="ann", delay_ms=delay_ms)
    assert not BulkChange.objects.exists()


def test_a_change_is_kept_if_the_broker_does_not_answer(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(
        changes.current_app, "send_task", lambda *args, **options: (_ for _ in ()).throw(OSError("gone"))
    )
    change = changes.start("cancel", jobs(2), by="ann")
    assert "the sweep sends it again: gone" in caplog.text
    assert change.state == "waiting"


@pytest.mark.parametrize("broker", ["redis://localhost:1/0", "amqp://localhost:1//"])
def test_the_caller_does_not_wait_for_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, broker: str
) -> None:
    monkeypatch.undo()

    def rest(seconds: float) -> None:
        raise AssertionError("it is retried at once or not at all")

    monkeypatch.setattr(functional, "sleep", rest)
    monkeypatch.setattr(changes, "current_app", Celery(broker=broker, set_as_current=False))
    changes.send(1, "default")
    assert "the sweep sends it again" in caplog.text
