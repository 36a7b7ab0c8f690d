"""A chunk in the job table: once, whoever is killed when; and as schedule() would have put it there. No Spark."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow
import pytest
from django.db import transaction
from pyarrow import parquet

from delaytasks import dialect, scheduling
from delaytasks.models import Job, JobEvent, LoadChunk
from delaytasks.pipeline import ledger, placing
from delaytasks.pipeline.database import Database, DatabaseAway
from delaytasks.pipeline.lake import Lake
from delaytasks.pipeline.ledger import Ledger
from delaytasks.pipeline.placing import place
from delaytasks.pipeline.stages import Chunk, Overtaken, PostgreSQL, Run, SQLite
from delaytasks.states import State

from .conftest import at, ms

RUN = Run("r1", "stamp", "reject")
LATER = ms("02-01 12:00")


class Killed(BaseException):
    """As good as SIGKILL: nothing of ours catches it."""


def rejects(lake: Lake) -> list[tuple[Any, ...]]:
    found = lake.document("load/r1/rejects/live-000000.json")
    return [(found["row"], found["key"], found["reason"])] if found else []


def counts() -> tuple[int, ...]:
    (found,) = LoadChunk.objects.values_list("rows", "inserted", "kept", "replaced", "refused")
    return found


def test_a_loaded_job_is_what_schedule_would_have_made(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    hard = 'a"b,\\c Zoë 张'
    assert place(database, lake, RUN, chunk(hard, body='{"a":"\\"x\\\\","b":[null,1.5]}'))
    scheduling.schedule(
        "order.close", key="other", due_at=at("02-01 12:00"), ttr=30, body={"a": '"x\\', "b": [None, 1.5]}
    )
    loaded, scheduled = (Job.objects.filter(key=key).values().get() for key in (hard, "other"))

    assert abs(loaded.pop("created_at") - scheduled.pop("created_at")) < timedelta(minutes=1)
    for each in (loaded, scheduled):
        del each["id"], each["key"]
    assert loaded == scheduled
    assert not JobEvent.objects.exists()
    assert counts() == (1, 1, 0, 0, 0)


def test_a_past_due_time_is_now_and_who_asked_is_an_event(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    before = dialect.database_now("default")
    assert place(database, lake, Run("r1", "stamp", "reject", "ann"), chunk("a", "b", due_ms=5))
    job = Job.objects.get(key="a")

    assert before <= job.due_at <= dialect.database_now("default")
    assert (job.due_at, job.due_at.microsecond % 1000) == (job.created_at, 0)
    event = JobEvent.objects.get(job=job)
    assert (event.outcome, event.actor, event.due_ms, event.next_due_ms) == (
        "scheduled", "ann", job.due_ms, job.due_ms)  # fmt: skip
    scheduling.schedule("order.close", key="c", due_at=at("02-01 12:00"), by="ann")
    known = JobEvent.objects.get(job__key="c")
    assert (event.attempt, event.reserved_ms, event.worker, event.error, event.reason) == (
        known.attempt, known.reserved_ms, known.worker, known.error, known.reason)  # fmt: skip


def test_the_spread_counts_from_when_a_row_is_loaded_so_that_what_was_overdue_by_then_does_not_come_at_once(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    assert place(database, lake, RUN, chunk("a", due_ms=5, spread_ms=90_000))
    assert place(database, lake, RUN, chunk("b", number=1, spread_ms=1_500))
    late, early = Job.objects.get(key="a"), Job.objects.get(key="b")
    assert late.due_at == late.created_at + timedelta(seconds=90)
    assert early.due_ms == LATER + 1_500

    before = dialect.now_ms("default")
    assert place(database, lake, Run("r2", "stamp", "replace"), chunk("a", due_ms=5, spread_ms=3_000))
    late.refresh_from_db()
    assert before + 3_000 <= late.due_ms <= dialect.now_ms("default") + 3_000


def test_a_chunk_is_in_memory_by_a_few_rows_at_once(
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
    monkeypatch.setattr(placing, "ROWS", 2)
    assert place(database, lake, RUN, chunk("a", "b", "c", "d", "e"))
    assert (sizes, counts()) == ([2, 2, 1], (5, 5, 0, 0, 0))


def test_rows_that_a_try_refused_and_did_not_commit_are_no_rejects_if_the_next_one_loads_them(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], job: Callable[..., Job], monkeypatch: Any
) -> None:
    stage, made = SQLite if database.vendor == "sqlite" else PostgreSQL, chunk("a", "b")
    live = job("a")

    def dies(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(stage, "note", dies)
        place(database, lake, RUN, made)
    assert rejects(lake) == [(2, "a", "live")]
    Job.objects.filter(pk=live.pk).update(state=State.CANCELLED, ended_at=at("01-01 00:00"))
    assert place(database, lake, RUN, made)
    assert (rejects(lake), counts()) == ([], (2, 2, 0, 0, 0))


def test_a_chunk_that_is_gone_or_is_none_is_named_and_nothing_of_it_is_loaded(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    made = chunk("a")
    path = lake.path(made.path)
    kept = lake.files.open_input_stream(path).read()
    lake.files.delete_file(path)
    assert f"{path}, a chunk of this run, is gone" in ledger._placed(database, lake, RUN, made)
    lake.write(made.path, kept[:-3])
    assert f"{path}, a chunk of this run, is gone, damaged" in ledger._placed(database, lake, RUN, made)
    parquet.write_table(pyarrow.table({"topic": ["order.close"], "key": ["a"]}), path)
    assert "of another version" in ledger._placed(database, lake, RUN, made)
    assert not LoadChunk.objects.exists()
    lake.write(made.path, kept)
    assert ledger._placed(database, lake, RUN, made) == ""
    assert Job.objects.count() == 1


def test_a_live_key_is_refused_kept_or_replaced_as_schedule_does(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], job: Callable[..., Job]
) -> None:
    live = job("a", due_at=at("03-01 00:00"), failures=1, attempt=1, error="x", body={"old": 1})
    held = job("b", state=State.RESERVED)
    job("c", state=State.FINISHED)

    assert place(database, lake, Run("r1", "stamp", "keep"), chunk("a", "b", "c", "d"))
    assert counts() == (4, 2, 2, 0, 0)
    live.refresh_from_db()
    assert live.due_at == at("03-01 00:00")

    LoadChunk.objects.all().delete()
    Job.objects.filter(key__in="cd").delete()
    assert place(database, lake, Run("r1", "stamp", "replace", "ann"), chunk("a", "b", "d", due_ms=LATER))
    assert counts() == (3, 1, 0, 1, 1)
    assert rejects(lake) == [(3, "b", "running")]
    live.refresh_from_db()
    assert (live.due_ms, live.failures, live.error, live.ttr_ms, live.body) == (LATER, 0, "", 30_000, {"n": 1})
    told = JobEvent.objects.get(outcome="rescheduled")
    assert (told.job_id, told.attempt, told.due_ms, told.next_due_ms, told.actor) == (
        live.pk, 1, ms("03-01 00:00"), LATER, "ann")  # fmt: skip
    assert LoadChunk.objects.get().replaced_ids == [live.pk]
    held.refresh_from_db()
    assert held.due_at == at("02-01 12:00")

    LoadChunk.objects.all().delete()
    assert place(database, lake, RUN, chunk("a", "e"))
    assert counts() == (2, 1, 0, 0, 1)
    assert rejects(lake) == [(2, "a", "live")]
    ledger = LoadChunk.objects.get()
    assert ledger.low_id == ledger.high_id == Job.objects.get(key="e").pk


@pytest.mark.parametrize("when", ["fill", "insert", "note"])
def test_a_chunk_that_is_killed_before_its_commit_is_not_there_and_is_loaded_whole_the_next_time(
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
        place(database, lake, RUN, made)
    assert (Job.objects.count(), LoadChunk.objects.count()) == (0, 0)
    assert place(database, lake, RUN, made)
    assert (Job.objects.count(), counts()) == (2, (2, 2, 0, 0, 0))


def test_a_chunk_that_was_committed_is_not_loaded_again_even_when_its_jobs_have_ended(
    database: Database, lake: Lake, chunk: Callable[..., Chunk]
) -> None:
    made = chunk("a", "b")
    assert place(database, lake, RUN, made)
    Job.objects.update(state=State.CANCELLED, ended_at=at("01-01 00:00"))

    assert not place(database, lake, RUN, made)
    assert Job.objects.count() == 2
    assert place(database, lake, Run("r2", "stamp", "reject"), made), "another run is another promise"
    assert (Job.objects.count(), LoadChunk.objects.count()) == (4, 2)


@pytest.mark.only_on("postgresql")
def test_a_live_job_that_ends_between_two_statements_makes_room(
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
    assert place(database, lake, RUN, chunk("a", "b"))
    assert counts() == (2, 2, 0, 0, 0)


@pytest.mark.only_on("postgresql")
def test_a_deadlock_is_tried_again_and_a_database_that_goes_away_is_a_sentence_with_nothing_done(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    real, said = PostgreSQL.insert, [psycopg.errors.DeadlockDetected("deadlock detected")]

    def deadlocks_once(stage: PostgreSQL) -> Any:
        if said:
            raise Overtaken(str(said.pop()))
        return real(stage)

    def ends_its_own_session(stage: PostgreSQL) -> Any:
        stage.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    made = chunk("a")
    monkeypatch.setattr(PostgreSQL, "insert", ends_its_own_session)
    with pytest.raises(DatabaseAway, match="does not answer"):
        place(database, lake, RUN, made)
    assert not LoadChunk.objects.exists()
    monkeypatch.setattr(PostgreSQL, "insert", deadlocks_once)
    assert place(database, lake, RUN, made)
    assert Job.objects.count() == 1


@pytest.mark.only_on("sqlite")
def test_a_database_whose_writer_does_not_let_go_is_a_sentence_with_nothing_done(
    database: Database, lake: Lake, chunk: Callable[..., Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaytasks.pipeline.database.WAIT_SECONDS", 0.05)
    made = chunk("a")
    with transaction.atomic():
        Job.objects.update(failures=0)
        with pytest.raises(DatabaseAway, match="locked"):
            place(database, lake, RUN, made)
    assert place(database, lake, RUN, made)
    assert Ledger(database, "r1").totals().inserted == 1
