"""The archive: what leaves the tables is in the lake, once, whatever is killed when; and is still answerable."""

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from delaytasks import dialect
from delaytasks.models import Job, JobEvent, TopicStat
from delaytasks.pipeline import archive, comparing, manifest, pruning, report, story
from delaytasks.pipeline.comparing import Differs, Digest
from delaytasks.pipeline.database import Busy, Database, DatabaseAway
from delaytasks.pipeline.lake import Lake, LakeError
from delaytasks.states import Outcome, State

from .conftest import BODY, happened


class Killed(BaseException):
    """As good as SIGKILL: nothing of ours catches it."""


def run(spark: Any, database: Database, lake: Lake, **wishes: Any) -> dict[str, int]:
    answer = archive.run(spark, database, lake, **wishes)
    return {name: answer[name] for name in ("jobs", "events", "partitions", "pruned", "left", "withdrawn")}


def stored(spark: Any, lake: Lake) -> tuple[list[str], int]:
    """Keys of the jobs, and the number of events, of all published runs together."""
    keys, events = [], 0
    for each in manifest.runs(lake):
        jobs, told = comparing.written(spark, lake, each.folder)
        keys += [row.key for row in jobs.collect() if row.id not in each.withdrawn]
        events += sum(row.job_id not in each.withdrawn for row in told.select("job_id").collect())
    return sorted(keys), events


def standing() -> list[str]:
    return sorted(Job.objects.values_list("key", flat=True))


@pytest.mark.on_both
def test_jobs_that_ended_long_ago_leave_the_tables_and_their_story_stays_whole(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], job: Callable[..., Job]
) -> None:
    old, cancelled = ended("order:1"), ended("refund:1", "refund.ask", State.CANCELLED, days=41)
    events = list(JobEvent.objects.filter(job=old).order_by("id").values())
    ended("order:2", days=1)
    ended("order:3", state=State.DEAD)
    job("order:4", due_at=dialect.database_now("default") - timedelta(days=60))

    assert run(spark, database, lake) == {
        "jobs": 2, "events": 4, "partitions": 2, "pruned": 2, "left": 0, "withdrawn": 0}  # fmt: skip
    assert standing() == ["order:2", "order:3", "order:4"]
    assert JobEvent.objects.count() == 4
    found = story.by_id(lake, old.pk)
    assert found is not None
    assert {**found.job, "body": BODY} == {name: getattr(old, name) for name in found.job}
    assert found.events == events
    by_key = story.by_key(lake, "refund.ask", "refund:1")
    assert by_key is not None
    assert (by_key.job["id"], by_key.job["state"]) == (cancelled.pk, State.CANCELLED)
    assert story.by_id(lake, 10**9) is None
    assert story.by_key(lake, "order.close", "refund:1") is None
    assert run(spark, database, lake, dead=True)["pruned"] == 1
    assert standing() == ["order:2", "order:4"]


def test_a_day_is_archived_whole_and_by_one_run_however_often_it_runs(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    now = dialect.database_now("default")
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=30)
    for key, moment in (("order:1", midnight - timedelta(seconds=3)), ("order:2", midnight)):
        Job.objects.filter(pk=ended(key).pk).update(ended_at=moment)

    assert run(spark, database, lake)["jobs"] == 1
    assert standing() == ["order:2"]
    assert archive.before(0, 0.5) == -archive.DAY_MS // 2


def dies(*args: Any) -> Any:
    raise Killed


@pytest.mark.on_both
@pytest.mark.parametrize("when", ["written", "listed", "published", "pruning", "pruned"])
def test_a_run_that_is_killed_and_run_again_loses_nothing_and_doubles_nothing(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for n in range(4):
        ended(f"order:{n}", days=40 + n % 2)
    monkeypatch.setattr(pruning, "BATCH", 1)
    publish, prune_batch, done = manifest.publish, pruning.prune_batch, []

    def second(real: Any) -> Any:
        def once(*args: Any) -> Any:
            done.append(args)
            return dies() if len(done) == 2 else real(*args)

        return once

    with monkeypatch.context() as patched:
        where: dict[str, tuple[Any, str, Any]] = {
            "written": (manifest, "write_partitions", dies),
            "listed": (manifest, "publish", dies),
            "published": (pruning, "prune", dies),
            "pruning": (pruning, "prune_batch", second(prune_batch)),
            "pruned": (manifest, "publish", second(publish)),
        }
        patched.setattr(*where[when])
        with pytest.raises(Killed):
            archive.run(spark, database, lake)
    assert len(standing()) == {"pruning": 3, "pruned": 0}.get(when, 4)
    (folder,) = lake.runs("archive")
    assert lake.has(f"{folder}/{manifest.PARTITIONS}") is (when != "written")
    assert len(manifest.runs(lake)) == (0 if when in ("written", "listed") else 1)

    run(spark, database, lake)

    assert standing() == []
    assert stored(spark, lake) == ([f"order:{n}" for n in range(4)], 8)
    assert lake.runs("archive") == [each.folder for each in manifest.runs(lake)]
    assert len(manifest.runs(lake)) == 1
    assert all(each.pruned_ms for each in manifest.runs(lake))


def test_a_run_that_is_killed_while_it_removes_what_another_left_takes_nothing_that_is_published(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    archive.run(spark, database, lake)
    ended("order:2")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(manifest, "publish", dies)
        archive.run(spark, database, lake)

    def half(name: str) -> None:
        lake.files.delete_file(lake.path(lake.parquet(name)[0][0]))
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(lake, "remove", half)
        archive.run(spark, database, lake)
    assert standing() == ["order:2"]

    run(spark, database, lake)
    assert stored(spark, lake) == (["order:1", "order:2"], 4)
    assert lake.runs("archive") == [each.folder for each in manifest.runs(lake)]


def test_a_topic_and_day_is_in_as_few_files_as_its_rows_need(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FILE_ROWS", 4)
    shuffled = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    for n in range(3):
        ended(f"order:{n}")
        ended(f"refund:{n}", "refund.ask", days=41)
    ended("refund:3", "refund.ask", days=41)
    ended("refund:4", "refund.ask", days=41)
    try:
        archive.run(spark, database, lake)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", shuffled)

    files = {
        each.topic: (len(each.job_files), len(each.event_files))
        for each in manifest.partitions(lake, *manifest.runs(lake))
    }
    assert files == {"order.close": (1, 2), "refund.ask": (2, 3)}, "3 and 6 rows; 5 and 10"
    assert stored(spark, lake)[1] == 16


@pytest.mark.on_both
def test_a_job_that_changed_after_it_was_written_stays_and_is_archived_anew_when_it_ends_again(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    retried, commented, same = ended("order:1", state=State.DEAD), ended("order:2"), ended("order:3")
    archive.run(spark, database, lake, dead=True, prune=False)
    assert standing() == ["order:1", "order:2", "order:3"]
    Job.objects.filter(pk=retried.pk).update(state=State.DELAYED, ended_at=None, died_at=None)
    happened(commented, Outcome.RELEASED, dialect.database_now("default"))

    assert run(spark, database, lake, dead=True) == {
        "jobs": 1, "events": 3, "partitions": 1, "pruned": 2, "left": 0, "withdrawn": 2}  # fmt: skip
    assert standing() == ["order:1"]
    assert story.by_id(lake, retried.pk) is None
    assert story.by_key(lake, "order.close", "order:1") is None
    found = story.by_id(lake, commented.pk)
    assert found is not None
    assert len(found.events) == 3
    assert stored(spark, lake) == (["order:2", "order:3"], 5)
    assert same.pk


def test_what_lies_otherwise_than_it_was_read_is_not_published_and_nothing_is_pruned(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    real = comparing.written

    def without_events(*args: Any) -> Any:
        jobs, events = real(*args)
        return jobs, events.limit(1)

    monkeypatch.setattr(comparing, "written", without_events)
    with pytest.raises(Differs, match=r"order\.close of .*: 1 jobs and 1 events instead of 1 and 2"):
        archive.run(spark, database, lake)

    assert (standing(), manifest.runs(lake)) == (["order:1"], ())


def test_a_checksum_sees_a_changed_value_a_swapped_null_and_no_other_order(spark: Any) -> None:
    def of(*rows: tuple[Any, ...]) -> Any:
        frame = spark.createDataFrame(list(rows), "a string, b string")
        return frame.agg(comparing.checksum(frame)).first()[0]

    assert of(("x", None), ("y", "z")) == of(("y", "z"), ("x", None))
    assert len({of(("x", None)), of((None, "x")), of(("x", "x")), of(("x", None), ("x", None))}) == 4


def test_partitions_that_differ_are_named_with_what_differs() -> None:
    one = Digest(2, 3, "a/b", 1, 2)
    comparing.compare({("t", "2030-02-01"): one}, {("t", "2030-02-01"): one})
    with pytest.raises(Differs, match="other contents"):
        comparing.compare({("t", "2030-02-01"): one}, {("t", "2030-02-01"): one._replace(digest="a/c")})
    with pytest.raises(Differs, match="0 jobs and 0 events instead of 2 and 3"):
        comparing.compare({("t", "2030-02-01"): one}, {})


@pytest.mark.only_on("postgresql")
def test_a_job_that_somebody_holds_locked_is_left_to_the_next_run_which_archives_nothing_before(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    locked, _free = ended("order:1"), ended("order:2")
    with database.connect() as other:
        other.execute("SELECT 1 FROM delaytasks_job WHERE id = %s FOR UPDATE", (locked.pk,))
        assert run(spark, database, lake)["left"] == 1
        ended("order:3")
        refused = archive.run(spark, database, lake)
        assert "still to be pruned" in refused["refused"]
        assert len(manifest.runs(lake)) == 1
    assert run(spark, database, lake)["pruned"] == 2
    assert stored(spark, lake) == (["order:1", "order:2", "order:3"], 6)


def after_losing(which: str, database: Database, real: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but before it the server ends these connections."""

    def done(*args: Any) -> Any:
        with database.connect() as other:
            other.execute(f"SELECT pg_terminate_backend(pid) FROM {which}")
        return real(*args)

    return done


@pytest.mark.only_on("postgresql")
def test_a_database_that_goes_away_in_the_middle_leaves_nothing_published_and_the_next_run_does_it_all(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    snapshots = "pg_stat_activity WHERE application_name = 'delaytasks pipeline' AND state = 'idle in transaction'"
    with monkeypatch.context() as patched:
        patched.setattr(archive, "_write", after_losing(snapshots, database, archive._write))
        with pytest.raises((PySparkException, DatabaseAway)):
            archive.run(spark, database, lake)
    assert (standing(), manifest.runs(lake)) == (["order:1"], ())
    assert run(spark, database, lake)["pruned"] == 1


@pytest.mark.only_on("postgresql")
def test_a_run_that_keeps_no_other_away_any_more_publishes_nothing(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one, which began meanwhile, has taken its files for left behind."""
    ended("order:1")
    locks = "pg_locks WHERE locktype = 'advisory'"
    monkeypatch.setattr(manifest, "write_partitions", after_losing(locks, database, manifest.write_partitions))
    with pytest.raises(DatabaseAway):
        archive.run(spark, database, lake)
    assert (standing(), manifest.runs(lake)) == (["order:1"], ())


def test_what_was_kept_is_pruned_by_the_next_run_unless_that_keeps_it_too(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    ended("order:1")
    for jobs, refused in ((1, ""), (0, "run it without --keep")):
        told = archive.run(spark, database, lake, prune=False)
        assert (told["jobs"], refused in told.get("refused", "")) == (jobs, True)
    assert standing() == ["order:1"]
    assert run(spark, database, lake)["pruned"] == 1


@pytest.mark.on_both
def test_two_archives_at_once_are_one(spark: Any, database: Database, lake: Lake) -> None:
    with database.alone("archive"), pytest.raises(Busy, match="Another archive"):
        archive.run(spark, database, lake)


def test_an_empty_archive_leaves_nothing_behind(spark: Any, database: Database, lake: Lake) -> None:
    assert run(spark, database, lake)["jobs"] == 0
    assert (manifest.runs(lake), lake.runs("archive")) == ((), [])


def test_a_report_counts_what_was_archived_once_and_what_was_not_yet_pruned_once(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    for key in ("order:1", "order:2"):
        ended(key)
    archive.run(spark, database, lake)
    ended("order:3")
    archive.run(spark, database, lake, prune=False)
    ended("order:4")
    report.run(spark, database, lake)

    assert sum(each.happened for each in TopicStat.objects.all()) == 8


def test_a_manifest_that_names_something_else_is_damaged(lake: Lake) -> None:
    for told in ({"runs": [{"colour": 1}]}, {"runs": 3}, {"revision": 3}):
        lake.publish(manifest.DOCUMENT, told)
        with pytest.raises(LakeError, match="is damaged"):
            story.by_id(lake, 1)
    run_of_nothing = manifest.Run("archive/x", 0, 1, 0, 1, 1)
    lake.publish(manifest.DOCUMENT, {"runs": [dataclasses.asdict(run_of_nothing)]})
    with pytest.raises(LakeError, match=r"has no partitions\.json"):
        story.by_id(lake, 1)


def test_a_partition_of_which_half_is_there_is_named_by_whoever_reads_it_and_nothing_is_pruned_for_it(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    old = ended("order:1")
    archive.run(spark, database, lake, prune=False)
    (partition,) = manifest.partitions(lake, *manifest.runs(lake))
    jobs, events = (Path(lake.path(files[0])) for files in (partition.job_files, partition.event_files))
    whole = jobs.read_bytes()

    jobs.write_bytes(whole[: len(whole) // 2])
    where = rf"{jobs} \(order\.close of {partition.ended_on}\)"
    with pytest.raises(LakeError, match=f"{where} is gone or damaged"):
        story.by_id(lake, old.pk)
    with pytest.raises(LakeError, match=f"{where}: gone, or of another size"):
        archive.run(spark, database, lake)
    assert standing() == ["order:1"]
    jobs.write_bytes(whole)

    told = events.read_bytes()
    where = rf"{events} \(order\.close of {partition.ended_on}\): gone, or of another size"
    for spoil in (events.unlink, lambda: events.write_bytes(told[: len(told) // 2])):
        spoil()
        for ask in (report.run, archive.run):
            with pytest.raises(LakeError, match=where):
                ask(spark, database, lake)
    assert standing() == ["order:1"]
    events.write_bytes(told)

    copy = events.with_name("part-copied.parquet")
    copy.write_bytes(events.read_bytes())
    with pytest.raises(LakeError, match=r"part-copied\.parquet: there in a run .* does not name it"):
        report.run(spark, database, lake)
    copy.unlink()
    assert report.run(spark, database, lake)["rows"] >= 1


def test_a_run_whose_partitions_were_written_by_a_newer_version_is_refused_by_its_files_name(lake: Lake) -> None:
    newer = manifest.Run("archive/x", 0, 1, 0, 1, 1)
    lake.publish(manifest.DOCUMENT, {"runs": [dataclasses.asdict(newer)]})
    lake.write(f"archive/x/{manifest.PARTITIONS}", b'{"version": 2, "partitions": [{"colour": 1}]}')
    with pytest.raises(LakeError, match=r"archive/x/partitions\.json was written by a newer delaytasks"):
        story.by_id(lake, 1)
