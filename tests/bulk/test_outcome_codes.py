"""The engine stores codes, and a migration replaces the sentences of earlier versions."""

import importlib
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.utils import timezone

from delaytasks import clock, schedule, signals
from delaytasks.bulk import changes
from delaytasks.db import transitions
from delaytasks.db.transitions import Event
from delaytasks.maintenance import sweep
from delaytasks.models import BulkChange, Job, JobEvent
from delaytasks.outcomes import ErrorCode, error_text
from delaytasks.states import Outcome, State
from delaytasks.worker import leases

from ..support.locks import other_transaction
from ..support.stage import Boom, Stage

pytestmark = pytest.mark.usefixtures("transactional_db")
TOPIC = "mail.send"
TIMED_OUT = "Its TTR was over and nobody had finished it."  # stored by earlier versions
BURIED = "Buried by its consumer."
NOT_ALLOWED = "Who asked for this may not change jobs any more."
migration: Any = importlib.import_module("delaytasks.migrations.0010_codes")


def errors() -> set[tuple[str, str]]:
    """The error of each job, with the errors of its events."""
    return set(Job.objects.values_list("error", "events__error"))


# -- what the engine stores ---------------------------------------------------------------------


@pytest.mark.parametrize("by", ["sweep", "claim"])
def test_a_job_that_exceeded_its_ttr_has_the_code_timed_out(stage: Stage, db_clock: Any, by: str, caplog: Any) -> None:
    received: list[str] = []

    def receive(error: str, **_: Any) -> None:
        received.append(error)

    signals.job_failed.connect(receive)
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    stage.take("t")
    db_clock.advance(seconds=6)
    sweep.sweep() if by == "sweep" else stage.take("t")
    assert errors() == {("delaytasks:timed_out", "delaytasks:timed_out")}
    assert received == [error_text(ErrorCode.TIMED_OUT)], "receivers get the text"
    assert f"error={error_text(ErrorCode.TIMED_OUT)!r}" in caplog.text
    signals.job_failed.disconnect(receive)


def test_a_job_without_attempts_left_is_marked_dead_with_the_code(stage: Stage, db_clock: Any) -> None:
    stage.recorder("t", ttr=5, max_attempts=1)
    job = schedule("t", key="a", delay=0)
    Job.objects.filter(pk=job.pk).update(attempt=1, failures=1)
    assert stage.take("t") == []
    assert errors() == {("delaytasks:timed_out", "delaytasks:timed_out")}


@pytest.mark.parametrize(
    ("reason", "stored"),
    [("", "delaytasks:buried"), ("no such address", "no such address"),
     ("delaytasks:timed_out", "'delaytasks:timed_out'")],
)  # fmt: skip
def test_a_buried_job_has_the_consumers_reason_or_the_code(stage: Stage, reason: str, stored: str) -> None:
    stage.recorder(TOPIC)
    schedule(TOPIC, key="a", delay=0)
    (held,) = stage.take(TOPIC)
    leases.bury(held.id, held.attempt, using=stage.using, reason=reason)
    assert errors() == {(stored, stored)}


def test_a_traceback_is_never_read_as_a_code(stage: Stage) -> None:
    @stage.handler("t", max_attempts=1)
    def fail(job: Any) -> None:
        raise Boom("this is why:\ndelaytasks:buried")

    schedule("t", key="a", delay=0)
    stage.go()
    assert Job.objects.get().error == "'delaytasks:buried'"
    assert JobEvent.objects.get().error.startswith("Traceback")


# -- the migration ------------------------------------------------------------------------------


def make(key: str, error: str, state: State = State.DELAYED, **columns: Any) -> Job:
    now = timezone.now()
    if state is State.DEAD:
        columns |= {"ended_at": now, "died_at": now}
    job = Job.objects.create(
        topic=TOPIC, key=key, due_at=now, ttr_ms=1000, created_at=now, state=state, error=error, **columns
    )
    transitions.record("default", [Event(job.pk, Outcome.EXPIRED, 1, 1, 2, error=error)])
    return job


def make_change(outcomes: dict[str, int], samples: dict[str, Any], **columns: Any) -> BulkChange:
    return BulkChange.objects.create(
        operation="cancel", by="ann", total=9, created_at=timezone.now(), outcomes=outcomes, samples=samples, **columns
    )


def migrate(direction: str = "to_codes") -> None:
    with connection.schema_editor(atomic=False) as editor:
        getattr(migration, direction)(apps, editor)


def test_migrating_stores_codes_and_migrating_back_the_sentences() -> None:
    make("a", TIMED_OUT, State.DEAD)
    make("b", BURIED)
    make("c", "boom: " + TIMED_OUT)
    make("d", "")
    words = {"cancelled": 3, "already running": 2, "error: ValueError": 1, "cannot be: a sentence": 1}
    codes = {"cancelled": 3, "running": 2, "error:ValueError": 1, "cannot be: a sentence": 1}
    samples = {word: [[1, TOPIC, "k"]] for word in words}
    change = make_change(words, samples, error=NOT_ALLOWED, state="failed")
    stored = {(each, each) for each in ("delaytasks:timed_out", "delaytasks:buried", "boom: " + TIMED_OUT, "")}
    before = errors()

    call_command("migrate", "delaytasks", "0009", verbosity=0)
    assert errors() == before
    call_command("migrate", verbosity=0)
    change.refresh_from_db()
    assert errors() == stored
    assert (change.outcomes, change.samples) == (codes, {code: [[1, TOPIC, "k"]] for code in codes})
    assert change.error == "delaytasks:not_allowed"

    call_command("migrate", "delaytasks", "0009", verbosity=0)
    change.refresh_from_db()
    assert errors() == before
    assert (change.outcomes, change.samples, change.error) == (words, samples, NOT_ALLOWED)
    call_command("migrate", verbosity=0)


def test_the_migration_commits_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "BATCH", 3)
    for number in range(10):
        make(f"k{number}", TIMED_OUT if number % 2 else "boom", State.DEAD)
    Job.objects.filter(key__in=["k2", "k3", "k4", "k5"]).delete()
    inside: list[bool] = []

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.lstrip().startswith("UPDATE"):
            inside.append(connection.in_atomic_block)
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        migrate()
    assert inside == [False] * 6, "two batches of jobs, four of events"
    assert set(Job.objects.values_list("key", "error")) == {
        ("k0", "boom"), ("k1", "delaytasks:timed_out"), ("k6", "boom"), ("k7", "delaytasks:timed_out"),
        ("k8", "boom"), ("k9", "delaytasks:timed_out"),
    }  # fmt: skip
    assert not JobEvent.objects.filter(error=TIMED_OUT).exists()


def test_a_killed_migration_can_be_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migration, "BATCH", 2)
    for number in range(6):
        make(f"k{number}", BURIED, State.DEAD)
    real, done = migration._replace_batch, iter(range(2))
    with monkeypatch.context() as killed:
        killed.setattr(migration, "_replace_batch", lambda *args: (next(done), real(*args)))
        with pytest.raises(StopIteration):
            migrate()
    assert Job.objects.filter(error=BURIED).count() == 2
    migrate()
    assert errors() == {("delaytasks:buried", "delaytasks:buried")}


def test_the_migration_skips_running_jobs() -> None:
    running = make("a", TIMED_OUT, State.RESERVED, attempt=1, lease_until=timezone.now())
    migrate()
    running.refresh_from_db()
    assert running.error == TIMED_OUT


def test_the_migration_skips_a_bulk_change_that_a_worker_updates_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    change = make_change({"already running": 1}, {}, position=1)

    def counted_meanwhile(stored: str) -> str:
        BulkChange.objects.filter(position=1).update(outcomes={"already running": 2}, position=F("position") + 1)
        return "running"

    migration._replace_results(apps, "default", counted_meanwhile)
    change.refresh_from_db()
    assert (change.outcomes, change.position) == ({"already running": 2}, 2)


@pytest.mark.only_on("postgresql")
def test_the_migration_skips_locked_rows() -> None:
    held, free = make("a", TIMED_OUT, State.DEAD), make("b", TIMED_OUT, State.DEAD)
    with other_transaction(lambda: Job.objects.select_for_update().get(pk=held.pk)):
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '5s'")
            migrate()
        finally:
            connection.close()
    assert dict(Job.objects.values_list("pk", "error")) == {held.pk: TIMED_OUT, free.pk: "delaytasks:timed_out"}


# -- beside a worker of the previous version ----------------------------------------------------


def test_a_bulk_change_that_two_versions_work_on_is_done_and_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "send", lambda pk, using: None)
    monkeypatch.setattr(changes, "BATCH_SIZE", 1)
    stage.recorder(TOPIC)
    ids = [schedule(TOPIC, key=key, delay=0).pk for key in "abc"]
    Job.objects.filter(pk=ids[2]).update(due_at=clock.from_ms(4_000_000_000_000))
    assert len(stage.take(TOPIC)) == 2
    change = changes.start("cancel", ids, by="ann")
    # Written by a worker of the previous version after its first batch.
    BulkChange.objects.update(
        state="running",
        position=1,
        outcomes={"already running": 1},
        samples={"already running": [[ids[0], TOPIC, "a"]]},
    )
    while changes.work(change.pk, using="default"):
        pass
    change.refresh_from_db()
    assert (change.state, change.outcomes) == ("done", {"already running": 1, "running": 1, "cancelled": 1})


def test_an_error_of_the_previous_version_is_overwritten_by_the_next_error(stage: Stage, db_clock: Any) -> None:
    stage.recorder("t", ttr=5)
    job = schedule("t", key="a", delay=0)
    Job.objects.filter(pk=job.pk).update(error=TIMED_OUT)
    stage.take("t")
    db_clock.advance(seconds=6)
    sweep.sweep()
    assert Job.objects.get().error == ErrorCode.TIMED_OUT
    stage.go()
    assert Job.objects.get().error == ""
