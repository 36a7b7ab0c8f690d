"""One change to many jobs: each visited once, with its own answer, whatever happens meanwhile."""

import threading
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.db import connections

from delaytasks import bulk, cancel, clock, schedule, tasks
from delaytasks.exceptions import BadInput
from delaytasks.models import BulkChange, Job, JobEvent
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
    ann = get_user_model().objects.create_user("ann")
    done(bulk.start("cancel", jobs(4), by="ann", user_id=ann.pk, reason="shop closed"))
    said = set(LogEntry.objects.values_list("user__username", "change_message"))
    assert said == {("ann", "Cancelled: shop closed")}
    assert LogEntry.objects.count() == 4


def test_a_change_whose_person_is_gone_is_done_all_the_same() -> None:
    ann = get_user_model().objects.create_user("ann")
    change = bulk.start("cancel", jobs(2), by="ann", user_id=ann.pk)
    ann.delete()
    assert done(change).outcomes == {"cancelled": 2}


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


def test_a_fault_of_ours_is_shown_and_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    change = bulk.start("cancel", jobs(2), by="ann")
    monkeypatch.setattr(bulk, "change_one", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tasks.bulk_change(change.pk, "default")
    change.refresh_from_db()
    assert change.state == "failed"
    assert "ZeroDivisionError" in change.error


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
    from celery import current_app

    monkeypatch.setattr(current_app, "send_task", lambda *args, **options: (_ for _ in ()).throw(OSError("gone")))
    change = bulk.start("cancel", jobs(2), by="ann")
    assert "the sweep sends it again: gone" in caplog.text
    assert change.state == "waiting"
