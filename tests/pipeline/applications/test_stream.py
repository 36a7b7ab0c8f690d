"""The stream: events and minutes in the lake, exactly once, whatever is killed."""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from django.core.management import CommandError, call_command
from django.db import connection
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from delaytasks.db import dialects
from delaytasks.management.subcommands.pipeline import process
from delaytasks.models import Job, JobEvent
from delaytasks.pipeline import schemas
from delaytasks.pipeline.applications import archive, minutes, stream
from delaytasks.pipeline.applications import batches as batches_module
from delaytasks.pipeline.applications.batches import Batches
from delaytasks.pipeline.applications.stream import OtherDatabase
from delaytasks.pipeline.sources import arrow
from delaytasks.pipeline.sources.database import Busy, Database, DatabaseUnavailable
from delaytasks.pipeline.sources.snapshot import Snapshot
from delaytasks.pipeline.spark.errors import SLOW_PYTHON
from delaytasks.pipeline.tables import archives, data_files, delta, stream_tables
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.pipeline.tables.stream_tables import DAY, DAY_MS, EVENTS, FORMAT, MINUTES
from delaytasks.pipeline.transforms import lateness
from delaytasks.states import Outcome, State

from ..conftest import at, happened, ms

NOON = "02-01 12:00"


class Killed(BaseException):
    """Simulates SIGKILL: our code does not catch it."""


@pytest.fixture
def batches(spark: Any, database: Database, lake: Lake) -> Callable[[], Batches]:
    """Return a factory of batches, which start from the published state."""
    return lambda: Batches(spark, database, lake)


def take(made: Batches) -> Batches:
    made.publish(arrow.read(made.spark, Snapshot(made.database, 0, 0, 0), "events"))
    return made


def ids(lake: Lake) -> list[int]:
    """Return the ids in the table of events, as any program that reads Delta tables sees them."""
    return sorted(DeltaTable(lake.path(EVENTS)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def folders(lake: Lake) -> list[str]:
    """Return the folders of batches in both tables."""
    return [f"{table}/{each}" for table in (EVENTS, MINUTES) for each in data_files.run_folders(lake, table)]


def event_ids() -> list[int]:
    return sorted(JobEvent.objects.values_list("id", flat=True))


def minute_rows(lake: Lake) -> list[tuple[str, int, int, int | None]]:
    return [(each["topic"], each["minute_ms"] - ms(NOON), each["happened"], each["late_p50_ms"])
            for each in minutes.read(lake, 0)]  # fmt: skip


def by_spark(spark: Any, lake: Lake) -> list[dict[str, Any]]:
    table = stream_tables.load(lake).minutes
    counts = delta.read(spark, lake, table.files, schemas.STREAMED_COUNTS, DAY)
    rows = lateness.by_minute(counts).withColumn("minute_ms", F.unix_millis("minute_at")).orderBy("minute_ms", "topic")
    return [row.asDict() for row in rows.drop("minute_at").collect()]


# A run


@pytest.mark.parametrize("table", [EVENTS, MINUTES])
def test_files_that_were_vacuumed_before_their_commit_are_missed_and_come_with_the_next_batch(
    batches: Callable[[], Batches], lake: Lake, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """A vacuum without retention by another program takes files that are not in the log yet."""
    happened(job(), Outcome.FINISHED, at(NOON))
    real = stream_tables.commit

    def vacuumed(*args: Any, **counts: int) -> Any:
        theirs = DeltaTable(lake.path(table))
        assert theirs.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return real(*args, **counts)

    with monkeypatch.context() as patched, pytest.raises(LakeError, match=r"has 0 of 1 rows .* vacuum without ret"):
        patched.setattr(stream_tables, "commit", vacuumed)
        take(batches())
    if table == EVENTS:
        take(batches())
        assert ids(lake) == event_ids()
        assert minute_rows(lake) == [("order.close", 0, 1, 0)]
    else:  # the events are committed, and the folder of their counts is empty
        with pytest.raises(LakeError, match=r"ends with event \d+, but .*/minutes with 0\. .* the newest backup"):
            batches()
        assert minute_rows(lake) == []


def test_a_restarted_stream_reads_each_event_once_and_stops_after_a_batch(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = job()
    for n in range(5):
        happened(row, Outcome.FINISHED, at(NOON) + timedelta(seconds=n), late_ms=n)
    first = stream.run(spark, database, lake, once=True, most=2)
    happened(row, Outcome.FAILED, at(NOON) + timedelta(minutes=1), late_ms=70)
    real = Batches.publish

    def stopped_by_signal(self: Batches, *given: Any) -> None:
        with pytest.raises(Busy, match="Another stream of"), database.lock("stream"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        real(self, *given)

    monkeypatch.setattr(Batches, "publish", stopped_by_signal)
    second = stream.run(spark, database, lake, every_seconds=0.1)

    assert [(each["events"], each["batches"]) for each in (first, second)] == [(5, 3), (1, 1)]
    assert ids(lake) == event_ids()
    assert second["to"] == event_ids()[-1]
    assert minute_rows(lake) == [("order.close", 0, 5, 2), ("order.close", 60_000, 1, 70)]


@pytest.mark.only_on("sqlite")
def test_a_stream_of_sqlite_reads_all_events_and_stops_without_its_parent(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job]
) -> None:
    row = job()
    happened(row, Outcome.CANCELLED, at(NOON), attempt=0, reserved_ms=None, actor="Ann")
    for n in range(4):
        happened(row, Outcome.FAILED, at(NOON), late_ms=n, attempt=n + 1, error="no\tmoney", worker="w-1")

    orphan = stream.run(spark, database, lake, every_seconds=0.1, parent=os.getppid() + 1)
    assert (orphan["events"], event_ids()[0] > 0) == (0, True)
    done = stream.run(spark, database, lake, once=True, most=3, parent=os.getppid())
    happened(row, Outcome.FINISHED, at(NOON), late_ms=9)
    again = stream.run(spark, database, lake, once=True)

    assert [(each["events"], each["batches"]) for each in (done, again)] == [(5, 2), (1, 1)]
    found = DeltaTable(lake.path(EVENTS)).to_pyarrow_table(columns=schemas.EVENTS.names)
    rows = sorted(tuple(each.values()) for each in found.to_pylist())
    assert rows == sorted(JobEvent.objects.values_list(*schemas.EVENTS.names))
    assert minute_rows(lake) == [("order.close", 0, 6, 0)]


@pytest.mark.parametrize("which", [(signal.SIGTERM, signal.SIGINT), (signal.SIGTERM,)])
def test_the_command_forwards_signals_to_its_run(which: tuple[signal.Signals, ...]) -> None:
    class Run:
        def __init__(self) -> None:
            self.told: list[int] = []
            self.send_signal = self.told.append

    run: Any = Run()
    before = signal.getsignal(signal.SIGTERM)
    with process._forward_signals(run, which):
        for each in which:
            os.kill(os.getpid(), each)
    assert tuple(run.told) == which
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.only_on("postgresql")
def test_a_lost_database_is_reported_and_no_event_is_lost(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    happened(job(), Outcome.FINISHED, at(NOON))
    real = Batches.publish

    def disturbed(self: Batches, *given: Any) -> None:
        real(self, *given)
        with database.connect() as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'delaytasks pipeline' "
                "AND datname = current_database() AND pid <> pg_backend_pid()"
            )

    monkeypatch.setattr(Batches, "publish", disturbed)
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        stream.run(spark, database, lake, every_seconds=0.1)
    assert ids(lake) == event_ids()


# A batch


@pytest.mark.parametrize("committed", [None, EVENTS])
def test_a_killed_batch_is_completed_or_done_again(
    lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches], monkeypatch: pytest.MonkeyPatch,
    committed: str | None,
) -> None:  # fmt: skip
    """Killed before both commits, or between them; as the first batch of all, and as a later one."""
    row, commit = job(), Table.commit

    def commits_until(self: Table, *given: Any, **more: Any) -> Table:
        if self.name != committed:
            raise Killed
        return commit(self, *given, **more)

    for number in (1, 2):
        happened(row, Outcome.FINISHED, at(NOON))
        made = batches()
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(Table, "commit", commits_until)
            take(made)
        assert sum(each["happened"] for each in minutes.read(lake, 0)) == number - 1
        assert len(folders(lake)) == 2 * number
        again = take(batches())
        assert (ids(lake), again.to, again.batches) == (event_ids(), event_ids()[-1], 0 if committed else 1)
        assert minute_rows(lake) == [("order.close", 0, number, 0)]
        assert len(folders(lake)) == 2 * number, "what had committed nothing is gone"


def test_a_late_event_corrects_its_minute_with_and_without_spark(
    spark: Any, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    row, other = job(), job("refund:1", topic="refund.ask")
    for n in range(20):
        happened(row, Outcome.FINISHED, at(NOON) + timedelta(seconds=n * 7), late_ms=n * 111)
    happened(other, Outcome.CANCELLED, at(NOON), reserved_ms=None)
    first = take(batches())
    assert minute_rows(lake)[0] == ("order.close", 0, 9, 444)
    happened(row, Outcome.EXPIRED, at(NOON), late_ms=99_999)
    happened(row, Outcome.FINISHED, at(NOON), late_ms=1, attempt=2)
    take(first)

    found = minutes.read(lake, 0)
    assert [(each["happened"], each["retried"], each["begun"], each["late_p99_ms"]) for each in found][:2] == [
        (11, 1, 10, 99_900), (1, 0, 0, None)]  # fmt: skip
    assert found[0]["late_worst_ms"] == 99_999
    assert found == by_spark(spark, lake)
    assert [{**each, "minute_at": 0, "minute_ms": 0} for each in found[:1]] == [
        {name: found[0].get(name, 0) for name in schemas.MINUTES.names} | {"minute_at": 0, "minute_ms": 0}]  # fmt: skip
    minute = minutes.read(lake, ms(NOON) + 60_000, ms(NOON) + 120_000, topic="order.close")
    assert [each["minute_ms"] - ms(NOON) for each in minute] == [60_000]


def test_two_streams_never_overwrite_each_other(
    spark: Any, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    happened(job(), Outcome.FINISHED, at(NOON))
    one, two = batches(), batches()
    take(one)
    with pytest.raises(Busy, match=r"Another process changes the table .*/stream/events"):
        take(two)
    assert ids(lake) == event_ids()


# What the archive took away


def test_events_archived_before_they_were_read_come_from_the_archive(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    long_ago = dialects.database_now("default") - timedelta(days=40)

    def ended(*keys: str) -> list[int]:
        """Return the events of jobs that the archive takes."""
        for key in keys:
            happened(job(key, state=State.FINISHED, due_at=long_ago), Outcome.FINISHED, long_ago)
        return event_ids()[-len(keys) :]

    ended("order:0")
    archive.run(spark, database, lake)  # before the stream first ran: the archive's alone
    gone = ended("order:1", "order:2")
    made = take(batches())
    shutil.copytree(lake.path("stream"), lake.path("before"))
    gone += ended("order:3")
    happened(job("order:8"), Outcome.SNOOZED, at(NOON))
    (kept,) = event_ids()[-1:]
    gone += ended("order:4")
    archive.run(spark, database, lake)
    assert event_ids() == [kept]

    lost = Path(lake.path(archives.load(lake).events.run_files(2)[0].path))
    away = lost.rename(f"{lost}.away")
    with pytest.raises(LakeError, match=rf"{lost.name} \(.*\) is missing or has another size"):
        batches().unread_range()
    away.rename(lost)
    again = batches()
    stream.verify(database, again.stream)
    stream.catch_up(spark, database, again, 2, lambda: again.batches == 1)  # when it begins again; told to stop
    assert ids(lake) == [*gone[:-1], kept], "two ids at once, and one of them the tables still have"
    stream.catch_up(spark, database, again, 2, lambda: False)
    assert (ids(lake), again.batches) == (sorted([*gone, kept]), 2)
    stream.verify(database, batches().stream)
    stream.catch_up(spark, database, again, 2, lambda: False)
    assert again.batches == 2

    elsewhere = Lake(f"{lake.root}/elsewhere")
    shutil.copytree(lake.path("stream"), elsewhere.path("stream"))
    shutil.copy(lake.path("stream.json"), elsewhere.path("stream.json"))
    with pytest.raises(OtherDatabase, match=r"neither there nor in the archive of this lake.*move stream\.json"):
        stream.verify(database, stream_tables.load(elsewhere))
    shutil.rmtree(lake.path("stream"))
    os.rename(lake.path("before"), lake.path("stream"))
    happened(job("order:9"), Outcome.SNOOZED, at(NOON))
    take(made)  # while it runs: they come with the next event
    assert (ids(lake), made.batches) == (sorted([*gone, *event_ids()]), 2)


@pytest.mark.only_on("sqlite")
def test_the_first_run_of_a_new_archive_is_not_taken_for_that_of_the_former_one(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    long_ago = dialects.database_now("default") - timedelta(days=40)
    happened(job("order:0", state=State.FINISHED, due_at=long_ago), Outcome.FINISHED, long_ago)
    archive.run(spark, database, lake)
    happened(job("order:1"), Outcome.SNOOZED, at(NOON))
    take(batches())
    happened(job("order:2", state=State.FINISHED, due_at=long_ago), Outcome.FINISHED, long_ago)
    streamed = event_ids()
    Path(lake.path(archives.DOCUMENT)).unlink()
    os.rename(lake.path(archives.FOLDER), lake.path("former"))
    archive.run(spark, database, lake)
    happened(job("order:3"), Outcome.SNOOZED, at(NOON))
    take(batches())
    assert ids(lake) == sorted({*streamed, *event_ids()})


@pytest.mark.only_on("sqlite")
def test_a_query_whose_python_is_slow_to_start_begins_again(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    happened(job(), Outcome.FINISHED, at(NOON))
    real, errors = stream.follow, [f"[STREAM_FAILED] Query terminated with exception: {SLOW_PYTHON}."] * 2

    def slow(*args: Any) -> None:
        if errors:
            raise StreamingQueryException(errors.pop())
        real(*args)

    monkeypatch.setattr(stream, "follow", slow)
    assert stream.run(spark, database, lake, once=True)["events"] == 1
    assert capsys.readouterr().err.count("Python did not start within 10 seconds; starting it again") == 2

    errors += [f"{SLOW_PYTHON}."] * stream.MAX_STARTS
    with pytest.raises(StreamingQueryException):
        stream.run(spark, database, lake, once=True)
    assert not errors, "it does not try for ever"
    errors += ["another cause", "not reached"]
    errors.reverse()
    with pytest.raises(StreamingQueryException, match="another cause"):
        stream.run(spark, database, lake, once=True)
    assert errors == ["not reached"]
    assert ids(lake) == event_ids()


@pytest.mark.tools  # Spark waits for 10 seconds
@pytest.mark.only_on("sqlite")
def test_a_python_that_takes_eleven_seconds_to_start_ends_no_stream(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    happened(job(), Outcome.FINISHED, at(NOON))
    script, once = tmp_path / "python", tmp_path / "was-slow"
    script.write_text(f"""#!/bin/sh
case "$*" in *streaming_source_runner*) mkdir {once} && sleep 11;; esac
exec {spark.sparkContext.pythonExec} "$@"
""")
    script.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "pythonExec", str(script))
        arrow.register(spark)
        assert stream.run(spark, database, lake, once=True)["events"] == 1
    arrow.register(spark)
    assert once.exists()
    assert ids(lake) == event_ids()


# Merging


def sizes(lake: Lake) -> list[tuple[str, int]]:
    """Return day and rows of each file of events."""
    return sorted((each.partition, each.rows) for each in stream_tables.load(lake).events.files)


def test_small_files_are_merged_after_their_day_or_when_there_are_many(
    spark: Any, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_tables, "MAX_SMALL_FILES", 3)
    day = batches_module.today()
    row, made = job(), batches()
    for n in range(4):
        monkeypatch.setattr(batches_module, "today", lambda n=n: "2020-01-01" if n < 2 else day)
        happened(row, Outcome.FINISHED, at(NOON), late_ms=n)
        take(made)
        if n == 1:
            assert sizes(lake) == [("2020-01-01", 1), ("2020-01-01", 1)]
    assert sizes(lake) == [("2020-01-01", 2), (day, 1), (day, 1)]
    for n in (4, 5):
        happened(row, Outcome.FINISHED, at(NOON), late_ms=n)
        take(made)

    assert (sizes(lake), made.folds) == ([("2020-01-01", 2), (day, 4)], 2)
    assert (ids(lake), minute_rows(lake)) == (event_ids(), [("order.close", 0, 6, 2)])
    assert minutes.read(lake, 0) == by_spark(spark, lake)
    assert len(folders(lake)) == 12, "readers of an older version have an hour"


def test_expired_events_and_minutes_leave_the_tables(
    lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    now = dialects.database_now("default")
    row, made = job(), batches()
    made.keep_days = 3
    happened(row, Outcome.FAILED, now - timedelta(days=4))
    happened(row, Outcome.FAILED, now - timedelta(days=2))
    take(made)
    assert ids(lake) == event_ids(), "a file stays as long as one of its events"
    made.keep_days = 1 / DAY_MS
    happened(row, Outcome.FINISHED, now + timedelta(days=1))
    take(made)
    assert ids(lake) == event_ids()[-1:]
    assert [each["happened"] for each in minutes.read(lake, 0)] == [1]
    assert batches().to == event_ids()[-1]

    stream_tables.expire(stream_tables.load(lake), ms("12-31 00:00") * 2)
    assert ids(lake) == event_ids()[-1:], "the last event stays: the next start compares it with the database"
    assert minutes.read(lake, 0) == []


def test_the_log_of_many_batches_stays_short(lake: Lake) -> None:
    """A batch every two seconds would make 43,200 files of the log a day, and keep them for a month."""
    stream_tables.publish(lake, 0)
    configuration = {**stream_tables.CONFIGURATION, "delta.logRetentionDuration": "interval 0 days"}
    table = Table(lake, MINUTES, DAY).create(schemas.STREAMED_COUNTS, configuration)
    for run in range(1, 251):
        table = table.commit("none", run)
    assert table.run == 250
    assert len(lake.list_files(f"{MINUTES}/{delta.LOG}", ".json")) < 110
    assert stream_tables.load(lake).minutes.committed_ms is not None


# Bad input


def test_a_lake_of_another_or_restored_database_is_refused(
    database: Database, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    row = job()
    happened(row, Outcome.FINISHED, at(NOON))
    made = take(batches())
    stream.verify(database, made.stream)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delaytasks_jobevent SET done_ms = 1")
    with pytest.raises(OtherDatabase, match="is a different event there"):
        stream.verify(database, made.stream)
    JobEvent.objects.all()._raw_delete("default")
    with pytest.raises(OtherDatabase, match="was restored to an earlier state, is another"):
        stream.verify(database, made.stream)


def test_a_damaged_or_newer_document_is_named(lake: Lake) -> None:
    lake.publish(stream_tables.DOCUMENT, {"version": FORMAT + 1})
    with pytest.raises(LakeError, match=r"stream\.json was written by a newer delaytasks"):
        minutes.read(lake, 0)
    lake.publish(stream_tables.DOCUMENT, {"version": FORMAT, "colour": 1})
    with pytest.raises(LakeError, match=r"stream\.json is damaged: .*archived_run"):
        stream_tables.load(lake)


def test_tables_without_a_document_are_refused_and_kept(lake: Lake, spark: Any) -> None:
    lake.files.create_dir(lake.path(EVENTS))
    for ask in (lambda: minutes.read(lake, 0), lambda: Batches(spark, Database("sqlite", "none"), lake)):
        with pytest.raises(LakeError, match=r"stream\.json is missing, but .*/stream has 1 folders.*move stream\.json"):
            ask()
    assert lake.runs("stream") == [EVENTS]


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "another"])
def test_a_missing_or_damaged_file_is_refused_by_name(
    lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches], damage: str
) -> None:
    happened(job(), Outcome.FINISHED, at(NOON))
    made = take(batches())

    for table, ask in ((made.stream.minutes, lambda: minutes.read(lake, 0)),
                       (made.stream.events, lambda: stream_tables.event(made.stream, made.to))):  # fmt: skip
        file = Path(lake.path(table.files[0].path))
        whole = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(
                {"empty": b"", "cut": whole[:-20], "another": whole[:40] + b"x" * (len(whole) - 40)}[damage]
            )
        with pytest.raises(
            LakeError, match=rf"{table.name}/.*{file.name}.* though .* names it.*Restore it from a back"
        ):
            ask()
        file.write_bytes(whole)
    shutil.copytree(lake.path(EVENTS), lake.path("copy"))
    happened(job("order:2"), Outcome.FINISHED, at(NOON))
    take(made)
    shutil.rmtree(lake.path(EVENTS))
    os.rename(lake.path("copy"), lake.path(EVENTS))
    older = stream_tables.load(lake)
    assert older.minutes.run > older.to
    there = folders(lake)
    with pytest.raises(LakeError, match=r"/stream/events ends with event \d+, but .*/stream/minutes with \d+"):
        batches()
    assert folders(lake) == there, "the newest events, once restored, need their minutes"


# The minutes


def test_minutes_are_shown_without_spark_or_the_database(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], capsys: Any
) -> None:
    asked = ["delaytasks", "pipeline", "minutes", "--lake", str(Path(lake.root).parent)]
    root = Lake(f"{Path(lake.root).parent}/default")
    call_command(*asked)
    assert "There is no data of a stream" in capsys.readouterr().out
    happened(job(), Outcome.DEAD, dialects.database_now("default"), late_ms=3)
    made = take(Batches(spark, database, root))
    call_command(*asked)
    shown = capsys.readouterr().out
    assert "order.close" in shown
    assert "The stream wrote its last events" in shown
    call_command(*asked, "--json", "--topic", "order.close", "--last", "2")
    (found,) = json.loads(capsys.readouterr().out)["minutes"]
    assert (found["died"], found["late_p95_ms"], found["late_worst_ms"]) == (1, 3, 3)
    root.publish(stream_tables.DOCUMENT, {"version": FORMAT + 1})
    for words in ([], ["--last", "0"]):
        with pytest.raises(CommandError):
            call_command(*asked, *words)
    with pytest.raises(CommandError), contextlib.redirect_stderr(None):
        call_command("delaytasks", "pipeline", "stream", "--lake", lake.root, "--every", "never")
    assert made.batches == 1
