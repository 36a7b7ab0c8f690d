"""The stream: events and minutes in the lake, exactly once, whatever is killed."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet
from pyspark.sql import functions as F

from delaytasks.db import dialects
from delaytasks.management.subcommands.pipeline import process
from delaytasks.models import Job, JobEvent
from delaytasks.pipeline import schemas
from delaytasks.pipeline.applications import archive, minutes, stream
from delaytasks.pipeline.applications.batches import Batches
from delaytasks.pipeline.applications.stream import OtherDatabase
from delaytasks.pipeline.sources import arrow
from delaytasks.pipeline.sources.database import Busy, Database, DatabaseAway
from delaytasks.pipeline.sources.snapshot import Snapshot
from delaytasks.pipeline.tables import archives, compaction, parts, stream_batches
from delaytasks.pipeline.tables.compaction import DAY_MS
from delaytasks.pipeline.tables.lake import VERSION, Lake, LakeError
from delaytasks.pipeline.tables.stream_batches import Part
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


def ids(spark: Any, lake: Lake) -> list[int]:
    folders = [part.folder for part in stream_batches.load(lake).parts]
    return sorted(row.id for row in parts.read_events(spark, lake, *folders).collect()) if folders else []


def there() -> list[int]:
    return sorted(JobEvent.objects.values_list("id", flat=True))


def told(lake: Lake) -> list[tuple[str, int, int, int | None]]:
    return [(each["topic"], each["minute_ms"] - ms(NOON), each["happened"], each["late_p50_ms"])
            for each in minutes.read(lake, 0)]  # fmt: skip


def by_spark(spark: Any, lake: Lake) -> list[dict[str, Any]]:
    counts = parts.read_counts(spark, lake, *(part.folder for part in stream_batches.load(lake).parts))
    rows = lateness.by_minute(counts).withColumn("minute_ms", F.unix_millis("minute_at")).orderBy("minute_ms", "topic")
    return [row.asDict() for row in rows.drop("minute_at").collect()]


# A run


def test_a_restarted_stream_reads_each_event_once_and_stops_after_a_batch(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = job()
    for n in range(5):
        happened(row, Outcome.FINISHED, at(NOON) + timedelta(seconds=n), late_ms=n)
    first = stream.run(spark, database, lake, once=True, most=2)
    happened(row, Outcome.FAILED, at(NOON) + timedelta(minutes=1), late_ms=70)
    real = Batches.publish

    def told_to_stop(self: Batches, *given: Any) -> None:
        with pytest.raises(Busy, match="Another stream of"), database.lock("stream"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        real(self, *given)

    monkeypatch.setattr(Batches, "publish", told_to_stop)
    second = stream.run(spark, database, lake, every_seconds=0.1)

    assert [(each["events"], each["batches"]) for each in (first, second)] == [(5, 3), (1, 1)]
    assert ids(spark, lake) == there()
    assert second["to"] == there()[-1]
    assert told(lake) == [("order.close", 0, 5, 2), ("order.close", 60_000, 1, 70)]


@pytest.mark.only_on("sqlite")
def test_a_stream_of_sqlite_reads_all_events_and_stops_without_its_parent(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job]
) -> None:
    row = job()
    happened(row, Outcome.CANCELLED, at(NOON), attempt=0, reserved_ms=None, actor="Ann")
    for n in range(4):
        happened(row, Outcome.FAILED, at(NOON), late_ms=n, attempt=n + 1, error="no\tmoney", worker="w-1")

    orphan = stream.run(spark, database, lake, every_seconds=0.1, parent=os.getppid() + 1)
    assert (orphan["events"], there()[0] > 0) == (0, True)
    done = stream.run(spark, database, lake, once=True, most=3, parent=os.getppid())
    happened(row, Outcome.FINISHED, at(NOON), late_ms=9)
    again = stream.run(spark, database, lake, once=True)

    assert [(each["events"], each["batches"]) for each in (done, again)] == [(5, 2), (1, 1)]
    found = parts.read_events(spark, lake, *(part.folder for part in stream_batches.load(lake).parts))
    names = [name for name in found.columns if name != "topic"]
    assert sorted(tuple(each) for each in found.select(names).collect()) == sorted(JobEvent.objects.values_list(*names))
    assert told(lake) == [("order.close", 0, 6, 0)]


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
    with pytest.raises(DatabaseAway, match="does not answer"):
        stream.run(spark, database, lake, every_seconds=0.1)
    assert ids(spark, lake) == there()


# A batch


def test_unpublished_parts_are_ignored_and_written_again(
    spark: Any, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = job()
    happened(row, Outcome.FINISHED, at(NOON))

    def killed_at(step: str) -> None:
        made = batches()
        with monkeypatch.context() as patched:
            patched.setattr(stream_batches, step, lambda *given: (_ for _ in ()).throw(Killed()))
            with pytest.raises(Killed):
                take(made)

    killed_at("publish")  # the first batch of all
    assert told(lake) == []
    take(batches())
    happened(row, Outcome.FINISHED, at(NOON))
    for step in ("publish", "event"):
        killed_at(step)
        assert (len(ids(spark, lake)), told(lake)[0][2]) == (1, 1)
    assert len(lake.runs("stream")) == 4

    again = batches()
    stream_batches.clear(lake, again.state)
    assert len(lake.runs("stream")) == 1
    take(take(again))
    assert ids(spark, lake) == there()
    assert told(lake)[0][2] == 2


def test_a_late_event_corrects_its_minute_with_and_without_spark(
    spark: Any, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    row, other = job(), job("refund:1", topic="refund.ask")
    for n in range(20):
        happened(row, Outcome.FINISHED, at(NOON) + timedelta(seconds=n * 7), late_ms=n * 111)
    happened(other, Outcome.CANCELLED, at(NOON), reserved_ms=None)
    first = take(batches())
    assert told(lake)[0] == ("order.close", 0, 9, 444)
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
    with pytest.raises(Busy, match=r"Another stream publishes to .*stream\.json \(revision 2, expected 1\)"):
        take(two)
    assert ids(spark, lake) == there()


# What the archive took away


def test_events_archived_before_they_were_read_come_from_the_archive(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    long_ago = dialects.database_now("default") - timedelta(days=40)

    def ended(*keys: str) -> list[int]:
        """Return the events of jobs that the archive takes."""
        for key in keys:
            happened(job(key, state=State.FINISHED, due_at=long_ago), Outcome.FINISHED, long_ago)
        return there()[-len(keys) :]

    ended("order:0")
    archive.run(spark, database, lake)  # before the stream first ran: the archive's alone
    gone = ended("order:1", "order:2")
    made = take(batches())
    before = made.state
    gone += ended("order:3")
    happened(job("order:8"), Outcome.SNOOZED, at(NOON))
    (kept,) = there()[-1:]
    gone += ended("order:4")
    archive.run(spark, database, lake)
    assert there() == [kept]

    lost = Path(lake.path(archives.load(lake).events.run_files(2)[0].path))
    away = lost.rename(f"{lost}.away")
    with pytest.raises(LakeError, match=rf"{lost.name} \(.*\) is missing or has another size"):
        batches().unread_range()
    away.rename(lost)
    again = batches()
    stream.verify(database, lake, again.state)
    stream.catch_up(spark, database, again, 2, lambda: again.batches == 1)  # when it begins again; told to stop
    assert ids(spark, lake) == [*gone[:-1], kept], "two ids at once, and one of them the tables still have"
    stream.catch_up(spark, database, again, 2, lambda: False)
    assert (ids(spark, lake), again.batches) == (sorted([*gone, kept]), 2)
    stream.verify(database, lake, batches().state)
    stream.catch_up(spark, database, again, 2, lambda: False)
    assert again.batches == 2

    lake.publish(stream_batches.DOCUMENT, asdict(before))
    happened(job("order:9"), Outcome.SNOOZED, at(NOON))
    take(made)  # while it runs: they come with the next event
    assert (ids(spark, lake), made.batches) == (sorted([*gone, *there()]), 2)
    with pytest.raises(OtherDatabase, match=r"neither there nor in the archive of this lake.*move stream\.json"):
        stream.verify(database, Lake(f"{lake.root}/elsewhere"), again.state)


# Folding


def part(name: str, events: int, published_ms: int, batches: int = 1) -> Part:
    return Part(name, events, 1, 2, published_ms, published_ms, published_ms, batches)


def test_batches_are_compacted_after_their_day_or_when_there_are_many() -> None:
    now, full = 10 * DAY_MS + 5, compaction.FULL_EVENTS
    old = [part("a", 5, 8 * DAY_MS), part("b", full, 8 * DAY_MS + 1), part("c", 5, 8 * DAY_MS + 2, 60)]
    today = [part(str(n), 5, 10 * DAY_MS + n) for n in range(compaction.MIN_BATCHES - 1)]

    assert [each.folder for each in compaction.select_parts([*old, *today], now)] == ["a", "c"]
    assert compaction.select_parts([part("a", 5, 8 * DAY_MS), part("b", 5, 9 * DAY_MS), *today[2:]], now) == []
    many = [*today, part("x", compaction.SMALL_EVENTS, now), part("y", 5, now)]
    assert [each.folder for each in compaction.select_parts(many, now)] == [*(each.folder for each in today), "y"]
    large = [part(str(n), full - 1, 8 * DAY_MS) for n in range(4)]
    assert len(compaction.select_parts(large, now)) == 2, "no fold is much larger than a full part"


def test_a_compaction_keeps_the_data_in_fewer_files_and_removes_old_ones_later(
    spark: Any, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MIN_BATCHES", 3)
    row, made = job(), batches()
    for n in range(2):
        happened(row, Outcome.FINISHED, at(NOON), late_ms=n)
        take(made)
    happened(row, Outcome.FINISHED, at(NOON), late_ms=5)
    with monkeypatch.context() as patched:
        patched.setattr(compaction, "replace_parts", lambda *given: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            take(made)
    assert (len(made.state.parts), told(lake)) == (3, [("order.close", 0, 3, 1)])
    assert take(batches()).state == made.state, "nothing new, so nothing to be done"
    happened(row, Outcome.FINISHED, at(NOON), late_ms=6)
    made = take(batches())

    assert [(each.batches, each.events) for each in made.state.parts] == [(4, 4)]
    assert (ids(spark, lake), told(lake)) == (there(), [("order.close", 0, 4, 1)])
    assert len(lake.runs("stream")) == 6, "who reads the old ones is not disturbed"
    monkeypatch.setattr(compaction, "READER_MS", -1)
    made.keep_days = 1 / DAY_MS
    happened(row, Outcome.FINISHED, dialects.database_now("default") - timedelta(days=1))
    take(made)
    assert ([each.events for each in made.state.parts], len(made.state.retired)) == ([4], 1)
    stream_batches.clear(lake, made.state)
    assert len(lake.runs("stream")) == 2
    assert told(lake) == [("order.close", 0, 4, 1)], "what happened longer ago than it is kept is gone"


# Bad input


def test_a_lake_of_another_or_restored_database_is_refused(
    database: Database, lake: Lake, job: Callable[..., Job], batches: Callable[[], Batches]
) -> None:
    row = job()
    happened(row, Outcome.FINISHED, at(NOON))
    made = take(batches())
    stream.verify(database, lake, made.state)
    other = replace(made.state, newest={**made.state.newest, "done_ms": 1})
    with pytest.raises(OtherDatabase, match="is a different event there"):
        stream.verify(database, lake, other)
    JobEvent.objects.all()._raw_delete("default")
    with pytest.raises(OtherDatabase, match="was restored to an earlier state, is another"):
        stream.verify(database, lake, made.state)


def test_a_damaged_or_newer_document_is_named(lake: Lake) -> None:
    lake.publish(stream_batches.DOCUMENT, {"version": VERSION + 1})
    with pytest.raises(LakeError, match=r"stream\.json was written by a newer delaytasks"):
        minutes.read(lake, 0)
    lake.publish(stream_batches.DOCUMENT, {"colour": 1})
    with pytest.raises(LakeError, match=r"stream\.json is damaged: .*colour"):
        stream_batches.load(lake)


def test_parts_without_a_document_are_refused_and_kept(lake: Lake, spark: Any) -> None:
    lake.files.create_dir(lake.path("stream/20300101T000000-1/events"))
    for ask in (lambda: minutes.read(lake, 0), lambda: Batches(spark, Database("sqlite", "none"), lake)):
        with pytest.raises(LakeError, match=r"stream\.json is missing, but .*/stream has 1 folders.*move stream\.json"):
            ask()
    assert lake.runs("stream") == ["stream/20300101T000000-1"]


@pytest.fixture
def three(lake: Lake) -> Part:
    """A published part with three events, as Spark would have written it."""
    folder = "stream/20300201T120000-1"
    made = part(folder, 3, ms(NOON))
    counts = [{"topic": "order.close", "minute_ms": ms(NOON), "outcome": "finished", "late_ms": n, "number": 1,
               "worst_ms": n} for n in range(3)]  # fmt: skip
    for kind, rows in (("minutes", counts), ("events", [{"id": n, "done_ms": ms(NOON)} for n in range(3)])):
        lake.files.create_dir(lake.path(f"{folder}/{kind}"))
        parquet.write_table(pyarrow.Table.from_pylist(rows), lake.path(f"{folder}/{kind}/a.parquet"))
    lake.publish(stream_batches.DOCUMENT, asdict(stream_batches.Streamed(revision=1, to=2, parts=(made,))))
    return made


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "another"])
def test_a_missing_or_damaged_part_is_refused_by_name(lake: Lake, three: Part, damage: str, spark: Any) -> None:
    assert told(lake) == [("order.close", 0, 3, 1)]
    stream_batches.verify(lake, three)

    for kind in ("minutes", "events"):
        file = Path(lake.path(f"{three.folder}/{kind}/a.parquet"))
        whole = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(
                {"empty": b"", "cut": whole[:-20], "another": whole[:40] + b"x" * (len(whole) - 40)}[damage]
            )
        with pytest.raises(LakeError, match=rf"{three.folder}/{kind}.* though .* names it.*Restore it from a backup"):
            compaction.compact(spark, lake, [three])
        if kind == "minutes":
            with pytest.raises(LakeError, match=rf"{three.folder}/minutes.*Restore it"):
                minutes.read(lake, 0)
        file.write_bytes(whole)
    parquet.write_table(pyarrow.table({"id": [0], "done_ms": [0]}), file)
    with pytest.raises(LakeError, match=r"has 1 events, but stream\.json says 3"):
        stream_batches.verify(lake, three)


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
    root.publish(stream_batches.DOCUMENT, {"version": VERSION + 1})
    for words in ([], ["--last", "0"]):
        with pytest.raises(CommandError):
            call_command(*asked, *words)
    with pytest.raises(CommandError), contextlib.redirect_stderr(None):
        call_command("delaytasks", "pipeline", "stream", "--lake", lake.root, "--every", "never")
    assert made.state.revision == 2
