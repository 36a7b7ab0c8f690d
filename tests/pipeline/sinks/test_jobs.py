"""Loading a chunk into the job table: exactly once, with the same result as schedule(). No Spark."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow
import pytest
from django.db import transaction
from pyarrow import parquet

from delaytasks.clock import to_ms
from delaytasks.db import dialects
from delaytasks.jobs import schedule
from delaytasks.models import Job, JobEvent, LoadChunk
from delaytasks.pipeline.sinks import inserts, ledger
from delaytasks.pipeline.sinks.inserts import load_chunk
from delaytasks.pipeline.sinks.jobs import Chunk, PostgreSQL, Run, SQLite, TransactionConflict
from delaytasks.pipeline.sinks.ledger import Ledger
from delaytasks.pipeline.sources.database import Database, DatabaseUnavailable
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import State

from ..conftest import at, ms

pytestmark = pytest.mark.on_both  # each database is asked in SQL of its own

RUN = Run("r1", "stamp", "reject")
LATER = ms("02-01 12:00")


class Killed(BaseException):
    """Simulates SIGKILL: our code does not catch it."""


def rejects(lake: Lake) -> list[tuple[Any, ...]]:
    found = lake.document("load/r1/rejects/live-000000.json")
    return [(found["row"], found["key"], found["reason"])] if found else []


def counts() -> tuple[int, ...]:
    (found,) = LoadChunk.objects.values_list("rows", "inserted", "kept", "replaced", "refused")
    return found


def test_a_loaded_job_equals_a_scheduled_one(database: Database, lake: Lake, chunk: Callable[..., Chunk]) -> None:
    hard = 'a"b,\\c Zoë 张'
    assert load_chunk(database, lake, RUN, chunk(hard, body='{"a":"\\"x\\\\","b":[null,1.5]}'))
    schedule.schedule(
        "order.close", key="other", due_at=at("02-01 12:00"), ttr=30, body={"a": '"x\\', "b": [None, 1.5]}
    )
    loaded, scheduled = (Job.objects.filter(key=key).values().get() for key in (hard, "other"))

    assert abs(loaded.pop("created_at") - scheduled.pop("created_at")) < timedelta(minutes=1)
    for each in (loaded, scheduled):
        del each["id"], each["key"]
    assert loaded == scheduled
    assert not JobEvent.objects.exists()
    assert counts() == (1, 1, 0, 0, 0)


def test_a_past_due_time_becomes_now_and_the_actor_gets_an_event(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    before = dialects.database_now("default")
    assert load_chunk(database, lake, Run("r1", "stamp", "reject", "ann"), chunk("a", "b", due_ms=5))
    job = Job.objects.get(key="a")

    assert before <= job.due_at <= dialects.database_now("default")
    assert (job.due_at, job.due_at.microsecond % 1000) == (job.created_at, 0)
    event = JobEvent.objects.get(job=job)
    assert (event.outcome, event.actor, event.due_ms, event.next_due_ms) == (
        "scheduled", "ann", job.due_ms, job.due_ms)  # fmt: skip
    schedule.schedule("order.close", key="c", due_at=at("02-01 12:00"), by="ann")
    known = JobEvent.objects.get(job__key="c")
    assert (event.attempt, event.reserved_ms, event.worker, event.error, event.reason) == (
        known.attempt, known.reserved_ms, known.worker, known.error, known.reason)  # fmt: skip


def test_the_spread_of_an_overdue_row_starts_when_it_is_loaded(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    assert load_chunk(database, lake, RUN, chunk("a", due_ms=5, spread_ms=90_000))
    assert load_chunk(database, lake, RUN, chunk("b", number=1, spread_ms=1_500))
    late, early = Job.objects.get(key="a"), Job.objects.get(key="b")
    assert late.due_at == late.created_at + timedelta(seconds=90)
    assert early.due_ms == LATER + 1_500

    before = dialects.now_ms("default")
    assert load_chunk(database, lake, Run("r2", "stamp", "replace"), chunk("a", due_ms=5, spread_ms=3_000))
    late.refresh_from_db()
    assert before + 3_000 <= late.due_ms <= dialects.now_ms("default") + 3_000


def test_a_chunk_is_read_in_small_batches(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = SQLite if database.vendor == "sqlite" else PostgreSQL
    real, sizes = stage.fill, list[int]()

    def noting(self: Any, batches: Any) -> None:
        def each() -> Iterator[Any]:
            for batch in batches:
                sizes.append(batch.num_rows)
                yield batch

        real(self, each())

    monkeypatch.setattr(stage, "fill", noting)
    monkeypatch.setattr(inserts, "BATCH_ROWS", 2)
    assert load_chunk(database, lake, RUN, chunk("a", "b", "c", "d", "e"))
    assert (sizes, counts()) == ([2, 2, 1], (5, 5, 0, 0, 0))


def test_rejects_of_an_attempt_without_commit_are_removed_by_the_next_one(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], job: Callable[..., Job], monkeypatch: Any
) -> None:
    stage, made = SQLite if database.vendor == "sqlite" else PostgreSQL, chunk("a", "b")
    live = job("a")

    def dies(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(stage, "record_result", dies)
        load_chunk(database, lake, RUN, made)
    assert rejects(lake) == [(2, "a", "live")]
    Job.objects.filter(pk=live.pk).update(state=State.CANCELLED, ended_at=at("01-01 00:00"))
    assert load_chunk(database, lake, RUN, made)
    assert (rejects(lake), counts()) == ([], (2, 2, 0, 0, 0))


def test_a_missing_or_invalid_chunk_is_named_and_not_loaded(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    made = chunk("a")
    path = lake.path(made.path)
    kept = lake.files.open_input_stream(path).read()
    lake.files.delete_file(path)
    assert f"{path}, a chunk of this run, is missing" in ledger._load_chunk(database, lake, RUN, made)
    lake.write(made.path, kept[:-3])
    assert f"{path}, a chunk of this run, is missing, damaged" in ledger._load_chunk(database, lake, RUN, made)
    parquet.write_table(pyarrow.table({"topic": ["order.close"], "key": ["a"]}), path)
    assert "of another version" in ledger._load_chunk(database, lake, RUN, made)
    assert not LoadChunk.objects.exists()
    lake.write(made.path, kept)
    assert ledger._load_chunk(database, lake, RUN, made) == ""
    assert Job.objects.count() == 1


def test_a_live_key_is_refused_kept_or_replaced_as_schedule_does(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], job: Callable[..., Job]
) -> None:
    live = job(
        "a", due_at=at("03-01 00:00"), failures=1, attempt=1, error="x", body={"old": 1}, polls=3, expires_ms=5000,
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )  # fmt: skip
    held = job("b", state=State.RESERVED)
    job("c", state=State.FINISHED)

    assert load_chunk(database, lake, Run("r1", "stamp", "keep"), chunk("a", "b", "c", "d"))
    assert counts() == (4, 2, 2, 0, 0)
    live.refresh_from_db()
    assert live.due_at == at("03-01 00:00")

    LoadChunk.objects.all().delete()
    Job.objects.filter(key__in="cd").delete()
    assert load_chunk(database, lake, Run("r1", "stamp", "replace", "ann"), chunk("a", "b", "d", due_ms=LATER))
    assert counts() == (3, 1, 0, 1, 1)
    assert rejects(lake) == [(3, "b", "running")]
    live.refresh_from_db()
    assert (live.due_ms, live.failures, live.error, live.ttr_ms, live.body) == (LATER, 0, "", 30_000, {"n": 1})
    assert (live.expires_ms, live.polls, live.trace_context) == (None, 0, None)
    result = JobEvent.objects.get(outcome="rescheduled")
    assert live.replaced_at is not None
    assert to_ms(live.replaced_at) <= result.done_ms  # of two statements
    assert (result.job_id, result.attempt, result.due_ms, result.next_due_ms, result.actor) == (
        live.pk, 1, ms("03-01 00:00"), LATER, "ann")  # fmt: skip
    assert LoadChunk.objects.get().replaced_ids == [live.pk]
    held.refresh_from_db()
    assert held.due_at == at("02-01 12:00")

    LoadChunk.objects.all().delete()
    assert load_chunk(database, lake, RUN, chunk("a", "e"))
    assert counts() == (2, 1, 0, 0, 1)
    assert rejects(lake) == [(2, "a", "live")]
    ledger = LoadChunk.objects.get()
    assert ledger.low_id == ledger.high_id == Job.objects.get(key="e").pk


@pytest.mark.parametrize("when", ["fill", "insert", "record_result"])
def test_a_chunk_killed_before_its_commit_leaves_nothing_and_is_loaded_by_the_next_run(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    stage = SQLite if database.vendor == "sqlite" else PostgreSQL
    real = getattr(stage, when)

    def dies_after(*args: Any) -> None:
        real(*args)
        raise Killed

    made = chunk("a", "b")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(stage, when, dies_after)
        load_chunk(database, lake, RUN, made)
    assert (Job.objects.count(), LoadChunk.objects.count()) == (0, 0)
    assert load_chunk(database, lake, RUN, made)
    assert (Job.objects.count(), counts()) == (2, (2, 2, 0, 0, 0))


def test_a_committed_chunk_is_not_loaded_again_even_if_its_jobs_have_ended(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    made = chunk("a", "b")
    assert load_chunk(database, lake, RUN, made)
    Job.objects.update(state=State.CANCELLED, ended_at=at("01-01 00:00"))

    assert not load_chunk(database, lake, RUN, made)
    assert Job.objects.count() == 2
    assert load_chunk(database, lake, Run("r2", "stamp", "reject"), made), "another run is another promise"
    assert (Job.objects.count(), LoadChunk.objects.count()) == (4, 2)


@pytest.mark.only_on("postgresql")
def test_a_row_is_inserted_when_its_live_job_ends_between_two_statements(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], job: Callable[..., Job], monkeypatch: Any
) -> None:
    job("a")
    real = PostgreSQL.insert

    def ends_after(stage: PostgreSQL) -> Any:
        found = real(stage)
        Job.objects.filter(key="a", ended_at=None, attempt=0).update(
            state=State.CANCELLED, ended_at=at("01-01 00:00"))  # fmt: skip
        monkeypatch.setattr(PostgreSQL, "insert", real)
        return found

    monkeypatch.setattr(PostgreSQL, "insert", ends_after)
    assert load_chunk(database, lake, RUN, chunk("a", "b"))
    assert counts() == (2, 2, 0, 0, 0)


@pytest.mark.only_on("postgresql")
def test_a_deadlock_is_retried_and_a_lost_database_is_reported_without_effects(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    real, message = PostgreSQL.insert, [psycopg.errors.DeadlockDetected("deadlock detected")]

    def deadlocks_once(stage: PostgreSQL) -> Any:
        if message:
            raise TransactionConflict(str(message.pop()))
        return real(stage)

    def ends_its_own_session(stage: PostgreSQL) -> Any:
        stage.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    made = chunk("a")
    monkeypatch.setattr(PostgreSQL, "insert", ends_its_own_session)
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        load_chunk(database, lake, RUN, made)
    assert not LoadChunk.objects.exists()
    monkeypatch.setattr(PostgreSQL, "insert", deadlocks_once)
    assert load_chunk(database, lake, RUN, made)
    assert Job.objects.count() == 1


@pytest.mark.only_on("sqlite")
def test_a_locked_sqlite_database_is_reported_without_effects(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaytasks.pipeline.sources.database.WAIT_SECONDS", 0.05)
    made = chunk("a")
    with transaction.atomic():
        Job.objects.update(failures=0)
        with pytest.raises(DatabaseUnavailable, match="locked"):
            load_chunk(database, lake, RUN, made)
    assert load_chunk(database, lake, RUN, made)
    assert Ledger(database, "r1").totals().inserted == 1
