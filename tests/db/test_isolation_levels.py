"""A role whose transactions are REPEATABLE READ or SERIALIZABLE: conflicts are retried where the engine can do that."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection, transaction

from delaytasks import cancel, cancel_many, databases, mirror, reschedule, schedule, schedule_many
from delaytasks.bulk import changes
from delaytasks.db import dialects, retention, transitions
from delaytasks.db.retries import TRIES, retry_conflicts
from delaytasks.exceptions import ScheduleExists
from delaytasks.jobs import cancellation
from delaytasks.jobs.control import CancelResult
from delaytasks.maintenance import guard, inbox, loads, runs, sweep
from delaytasks.maintenance.retention import step
from delaytasks.models import BulkChange, InboxMessage, Job, LoadChunk, RetentionCursor, Schedule, Topic
from delaytasks.recurrence import registry, schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.recurrence.registry import Declared
from delaytasks.states import State
from tests.support.locks import committed_meanwhile

from .test_races import at_once

pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.parametrize("due_index", ["no-mirror"], indirect=True),
]
THREADS = 8
HOURLY = Definition("hourly", "t", every=3600)


@pytest.fixture(params=["repeatable read", "serializable"], autouse=True)
def _isolation(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[None]:
    """The isolation level of the role, which its new connections get."""
    alter("SET default_transaction_isolation = %s", [request.param])
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == (request.param,)
        yield
    finally:
        alter("RESET default_transaction_isolation")


def alter(what: str, params: list[str] | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER ROLE CURRENT_USER {what}", params)
    connection.close()


def test_of_racing_schedules_with_keep_none_raises(stage) -> None:
    stage.recorder("t")
    for round_ in range(12):
        jobs = at_once(*[lambda: schedule("t", f"{round_}", delay=60, on_conflict="keep")] * THREADS)  # noqa: B023
        assert len({job.id for job in jobs}) == 1
        assert sum(job.is_new for job in jobs) == 1


def test_of_racing_schedules_with_replace_none_raises(stage) -> None:
    stage.recorder("t")
    for round_ in range(6):
        jobs = at_once(*[lambda: schedule("t", f"{round_}", delay=60, on_conflict="replace")] * THREADS)  # noqa: B023
        assert len({job.id for job in jobs}) == 1


def test_of_racing_lists_none_raises(stage) -> None:
    stage.recorder("t")
    items = [{"topic": "t", "key": f"{n}", "delay": 60} for n in range(20)]
    for _ in range(4):
        results = at_once(
            *[lambda: schedule_many(items, on_conflict="keep")] * (THREADS // 2),
            *[lambda: schedule_many(items[::-1], on_conflict="replace")] * (THREADS // 2),
        )
        assert all(sum(result) == len(items) for result in results)
    assert Job.objects.count() == len(items)


def test_of_racing_claims_none_raises_and_each_job_is_claimed_once(stage) -> None:
    stage.recorder("t")
    for round_ in range(9):
        schedule_many([{"topic": "t", "key": f"{round_}.{n}", "delay": 0} for n in range(6)])
        ids = sorted(Job.objects.filter(state=State.DELAYED).values_list("id", flat=True))
        claims = at_once(*[lambda: transitions.claim("default", "t", ids, "w")] * THREADS)  # noqa: B023
        assert sorted(claimed.id for claimed in chain(*claims)) == ids


def test_of_racing_runners_without_a_mirror_none_raises(stage) -> None:
    stage.recorder("t")
    index = mirror.choose("default")
    now_ms = int(dialects.now_ms("default"))
    for _ in range(9):
        slots = at_once(
            *[lambda n=n: index.take_slot("t", f"{n}", now_ms, now_ms + 5_000, 100) for n in range(THREADS)]
        )
        assert all(slots)
        at_once(*[lambda n=n: index.free_slot("t", f"{n}") for n in range(THREADS)])
        at_once(*[lambda: index.call_runner("t", "g", now_ms, 100)] * THREADS)


def test_of_racing_cancels_and_moves_none_raises(stage) -> None:
    stage.recorder("t")
    for round_ in range(9):
        schedule("t", f"{round_}", delay=60)
        *_, cancelled = at_once(
            *[lambda: reschedule("t", f"{round_}", delay=90)] * 4,  # noqa: B023
            lambda: cancel("t", f"{round_}"),  # noqa: B023
        )
        assert cancelled is CancelResult.CANCELLED


def test_of_racing_sweeps_and_guards_none_raises(stage, db_clock) -> None:
    stage.recorder("t")
    for round_ in range(4):
        schedule_many([{"topic": "t", "key": f"{round_}.{n}", "delay": 0, "ttr": 10} for n in range(20)])
        assert len(stage.take("t", 20)) == 20
        db_clock.advance(seconds=11)
        guard._heartbeats.clear()
        taken = at_once(
            *[lambda: sweep.take_back_expired("default")] * (THREADS // 2),
            *[lambda: guard.guard("default")] * (THREADS // 2),
        )
        assert sum(taken[: THREADS // 2]) == 20
        Job.objects.all().delete()


def test_a_conflict_inside_the_callers_transaction_is_not_retried(stage) -> None:
    stage.recorder("t")
    schedule("t", "a", delay=60)
    tries: list[int] = []

    def conflict() -> None:
        tries.append(1)
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE serialization_failure; END $$")

    with pytest.raises(OperationalError), transaction.atomic():
        retry_conflicts(conflict, "default")
    assert len(tries) == 1
    with pytest.raises(OperationalError):
        retry_conflicts(conflict, "default")
    assert len(tries) == 1 + TRIES


def conflict_twice(patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Let the first two calls of a function meet a conflict in the database."""
    function: Callable[..., Any] = getattr(module, name)
    conflicts = ["first", "second"]

    def call(*args: Any, **kwargs: Any) -> Any:
        if conflicts:
            conflicts.pop()
            dialects.run("default", "DO $$ BEGIN RAISE serialization_failure; END $$", [])
        return function(*args, **kwargs)

    patch.setattr(module, name, call)


def test_cancelling_and_deleting_many_jobs_survive_two_conflicts(stage, monkeypatch) -> None:
    stage.recorder("t")
    job = schedule("t", "a", delay=60)
    conflict_twice(monkeypatch, transitions, "cancel_each")
    assert cancel_many(topic="t").cancelled == 1
    conflict_twice(monkeypatch, retention, "_delete_jobs")
    ended = retention.EndedJob(job.pk, "t", "a", int(State.CANCELLED), job.due_ms)
    assert retention.delete_jobs("default", [ended]) == 1


def test_the_end_of_a_series_survives_two_conflicts(stage, monkeypatch) -> None:
    stage.recorder("t")
    schedule("t", "a", period=60, repeat=None)
    conflict_twice(monkeypatch, cancellation, "cancel_ids")
    assert cancel("t", "a") == "cancelled"


def store_schedule() -> Schedule:
    return schedules.define(HOURLY)


@pytest.mark.parametrize("store", [store_schedule, schedules.apply])
def test_a_schedule_is_stored_while_another_process_stores_it(stage, store: Callable[[], Any]) -> None:
    stage.recorder("t")
    registry.add(Declared(HOURLY))
    try:
        with committed_meanwhile(store):
            store()
    finally:
        registry.unregister("hourly")
    assert (Schedule.objects.get().name, Job.objects.count()) == ("hourly", 1)


def test_a_schedule_whose_name_is_taken_while_it_is_created_is_refused(stage) -> None:
    stage.recorder("t")
    with committed_meanwhile(store_schedule), pytest.raises(ScheduleExists):
        schedules.create(HOURLY)


@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_a_series_is_started_while_another_process_starts_it(stage, mode: str) -> None:
    stage.recorder("t")

    def start(**options: Any) -> Job:
        return schedule("t", "a", delay=60, period=60, repeat=None, **options)

    with committed_meanwhile(start):
        job = start(on_conflict=mode)
    assert job.is_new is (mode == "replace")
    assert (Schedule.objects.count(), Job.objects.filter(ended_at=None).count()) == (1, 1)


def test_a_bulk_change_is_stopped_while_a_batch_changes_its_row(stage) -> None:
    stage.recorder("t")
    change = changes.start("cancel", [schedule("t", "a", delay=60).pk], by="ann")
    with committed_meanwhile(lambda: BulkChange.objects.update(worked_at=databases.now("default"))):
        assert changes.stop(change.pk)


def test_a_bulk_change_is_resumed_while_its_row_changes(stage) -> None:
    stage.recorder("t")
    change = changes.start("cancel", [schedule("t", "a", delay=60).pk], by="ann")
    assert changes.stop(change.pk)
    with committed_meanwhile(lambda: BulkChange.objects.update(worked_at=databases.now("default"))):
        assert changes.resume(change.pk)


def test_the_retention_notes_deleted_runs_while_the_row_of_their_topic_changes(stage) -> None:
    Topic.objects.create(name="t")
    now = databases.now("default")
    with committed_meanwhile(lambda: Topic.objects.update(slots={"token": 1})):
        runs.note("default", now, "t")
    with committed_meanwhile(lambda: Topic.objects.update(slots={})):
        runs.note("default", now + timedelta(days=1))
    assert Topic.objects.get(name="t").runs_deleted_until == now + timedelta(days=1)


def test_the_retention_stores_its_position_while_another_process_does(stage, settings) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RETENTION": {"*": {"ended": timedelta(days=1)}}}
    RetentionCursor.objects.create(pk=1, job_id=0, event_id=0, began_at=databases.now("default"))
    with committed_meanwhile(lambda: RetentionCursor.objects.update(job_id=5)):
        step("default")
    assert RetentionCursor.objects.get().job_id is None


def test_old_messages_and_changes_are_deleted_while_another_process_deletes_them(stage) -> None:
    old = databases.now("default") - timedelta(days=100)
    InboxMessage.objects.create(inbox="i", message_id="m", digest="", received_at=old)
    with committed_meanwhile(lambda: InboxMessage.objects.all().delete()):
        assert inbox.prune("default") == 0
    stage.recorder("t")
    job = schedule("t", "a", delay=60)
    changes.start("cancel", [job.pk], by="ann")
    BulkChange.objects.update(ended_at=old)
    with committed_meanwhile(lambda: BulkChange.objects.all().delete()):
        changes.prune("default")
    assert not BulkChange.objects.exists()


def test_a_chunk_of_a_load_is_marked_while_another_process_marks_it(stage, monkeypatch) -> None:
    numbers = dict.fromkeys(("chunk", "rows", "inserted", "kept", "replaced", "refused"), 0)
    LoadChunk.objects.create(run="r", stamp="s", loaded_at=databases.now("default"), **numbers)
    monkeypatch.setattr(loads.mirror, "connect", lambda using: Mock(down=False))
    with committed_meanwhile(lambda: LoadChunk.objects.update(mirrored=True)):
        assert loads.add_to_mirror("default") == 0
    assert LoadChunk.objects.get().mirrored
