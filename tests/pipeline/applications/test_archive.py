"""The archive: ended jobs move from the tables to the lake exactly once, and stay readable."""

import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import pyarrow
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.errors import PySparkException

from delaytasks import clock
from delaytasks.db import dialects
from delaytasks.models import Job, JobEvent, TopicStat
from delaytasks.pipeline import schemas
from delaytasks.pipeline.applications import archive, optimize, prune, report
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Busy, Database, DatabaseUnavailable
from delaytasks.pipeline.tables import archived_history, archives, checksums, data_files, delta, optimization
from delaytasks.pipeline.tables.checksums import Differs, Digest
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.states import Outcome, State

from ..conftest import BODY, happened

pytestmark = pytest.mark.only_on("sqlite")  # most are about the files; the others are marked
ON_BOTH = pytest.mark.on_both


class Killed(BaseException):
    """Simulates SIGKILL: our code does not catch it."""


def run(spark: Any, database: Database, lake: Lake, **arguments: Any) -> dict[str, int]:
    answer = archive.run(spark, database, lake, **arguments)
    return {name: answer[name] for name in ("jobs", "events", "partitions", "pruned", "left", "withdrawn")}


def stored(lake: Lake) -> tuple[list[str], int]:
    """Return the jobs' keys and the number of events in the archive."""
    jobs, events = (DeltaTable(lake.path(name)).to_pyarrow_dataset() for name in (archives.JOBS, archives.EVENTS))
    return sorted(jobs.to_table(["key"])["key"].to_pylist()), events.count_rows()


def published(lake: Lake) -> int:
    """Return the number of published runs."""
    return archives.load(lake).jobs.run


def folders(lake: Lake) -> set[int]:
    """Return the numbers of the runs that have files."""
    return {run for table in (archives.JOBS, archives.EVENTS) for run in data_files.run_folders(lake, table).values()}


def kept_keys() -> list[str]:
    return sorted(Job.objects.values_list("key", flat=True))


@pytest.mark.on_both
def test_old_ended_jobs_leave_the_tables_and_stay_complete_in_the_archive(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], job: Callable[..., Job]
) -> None:
    old, cancelled = ended("order:1"), ended("refund:1", "refund.ask", State.CANCELLED, days=41)
    events = list(JobEvent.objects.filter(job=old).order_by("id").values())
    ended("order:2", days=1)
    ended("order:3", state=State.DEAD)
    job("order:4", due_at=dialects.database_now("default") - timedelta(days=60))
    needed = ended("order:5")  # by a declared timeout, which would make another job of this key
    Job.objects.filter(pk=needed.pk).update(declared_due=needed.due_at)

    assert run(spark, database, lake) == {
        "jobs": 2, "events": 4, "partitions": 2, "pruned": 2, "left": 0, "withdrawn": 0}  # fmt: skip
    assert kept_keys() == ["order:2", "order:3", "order:4", "order:5"]
    assert JobEvent.objects.filter(job=needed).exists()
    found = archived_history.by_id(lake, old.pk)
    assert found is not None
    assert {**found.job, "body": BODY} == {name: getattr(old, name) for name in found.job}
    assert found.events == events
    by_key = archived_history.by_key(lake, "refund.ask", "refund:1")
    assert by_key is not None
    assert (by_key.job["id"], by_key.job["state"]) == (cancelled.pk, State.CANCELLED)
    assert archived_history.by_id(lake, 10**9) is None
    assert archived_history.by_key(lake, "order.close", "refund:1") is None
    assert run(spark, database, lake, dead=True)["pruned"] == 1
    assert kept_keys() == ["order:2", "order:4", "order:5"]


def test_a_day_is_archived_completely_by_one_run(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    now = dialects.database_now("default")
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=30)
    for key, moment in (("order:1", midnight - timedelta(seconds=3)), ("order:2", midnight)):
        Job.objects.filter(pk=ended(key).pk).update(ended_at=moment)

    assert run(spark, database, lake, now_ms=clock.to_ms(now - timedelta(days=1)))["jobs"] == 0
    assert run(spark, database, lake)["jobs"] == 1
    assert kept_keys() == ["order:2"]
    assert archive.cutoff_ms(0, 0.5) == -archive.DAY_MS // 2


def dies(*args: Any) -> Any:
    raise Killed


# Until the publication only files are written, so the first three are the same on both databases.
@pytest.mark.parametrize(
    "when",
    ["written", "half", "published", *(pytest.param(w, marks=ON_BOTH) for w in ("pruning", "withdrawing", "pruned"))],
)
def test_a_killed_and_repeated_run_loses_and_duplicates_nothing(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for n in range(4):
        ended(f"order:{n}", days=40 + n % 2)
    monkeypatch.setattr(prune, "BATCH_JOBS", 1)
    done: list[Any] = []

    def second(real: Any) -> Any:
        def once(*args: Any, **more: Any) -> Any:
            done.append(args)
            return dies() if len(done) == 2 else real(*args, **more)

        return once

    def withdrawn(*args: Any) -> Any:
        happened(Job.objects.get(key="order:3"), Outcome.RELEASED, dialects.database_now("default"))
        return commit(*args)

    commit = archive.commit
    with monkeypatch.context() as patched:
        where: dict[str, tuple[Any, str, Any]] = {
            "written": (archive, "commit", dies),
            "half": (Table, "commit", second(Table.commit)),
            "published": (prune, "prune", dies),
            "pruning": (prune, "prune_batch", second(prune.prune_batch)),
            "withdrawing": (Table, "delete", second(Table.delete)),
            "pruned": (archives, "mark_pruned", dies),
        }
        if when == "withdrawing":
            patched.setattr(archive, "commit", withdrawn)
        patched.setattr(*where[when])
        with pytest.raises(Killed):
            archive.run(spark, database, lake)
    assert len(kept_keys()) == {"pruning": 3, "withdrawing": 1, "pruned": 0}.get(when, 4)
    assert published(lake) == (0 if when in ("written", "half") else 1)

    run(spark, database, lake)

    assert kept_keys() == []
    assert stored(lake) == ([f"order:{n}" for n in range(4)], 9 if when == "withdrawing" else 8)
    runs = 2 if when == "withdrawing" else 1
    assert (published(lake), folders(lake)) == (runs, set(range(1, runs + 1)))
    assert not archives.load(lake).unpruned


def test_optimizing_completes_a_run_that_was_killed_between_its_two_commits(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its vacuum would remove the run's jobs, whose events are committed."""
    ended("order:1")
    commit = Table.commit
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Table, "commit", lambda self, *args, **more: dies() if self.name == archives.JOBS
                        else commit(self, *args, **more))  # fmt: skip
        archive.run(spark, database, lake)
    for path in Path(lake.path(archives.FOLDER)).rglob("*.parquet"):
        os.utime(path, (0, 0))
    optimize.run(database, lake)
    assert stored(lake) == (["order:1"], 2)
    assert archive.run(spark, database, lake)["pruned"] == 1


def test_a_run_killed_during_cleanup_removes_nothing_published(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    archive.run(spark, database, lake)
    ended("order:2")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(archive, "commit", dies)
        archive.run(spark, database, lake)

    def half(name: str) -> None:
        lake.files.delete_file(lake.path(lake.parquet(name)[0][0]))
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(lake, "remove", half)
        archive.run(spark, database, lake)
    assert kept_keys() == ["order:2"]

    run(spark, database, lake)
    assert stored(lake) == (["order:1", "order:2"], 4)
    assert folders(lake) == {1, 2}


def test_a_topic_has_as_few_files_as_its_rows_need(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FILE_ROWS", 4)
    monkeypatch.setattr(optimization, "SMALL_BYTES", 0)  # otherwise a topic's files are merged
    shuffled = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    for n in range(3):
        ended(f"order:{n}")
    for n in range(5):
        ended(f"refund:{n}", "refund.ask", days=41)
    try:
        archive.run(spark, database, lake)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", shuffled)

    found = archives.load(lake)
    assert [len(found.jobs.in_partition(topic)) for topic in ("order.close", "refund.ask")] == [1, 2], "3 and 5 rows"
    assert [len(found.events.in_partition(topic)) for topic in ("order.close", "refund.ask")] == [2, 3], "6 and 10"
    assert stored(lake)[1] == 16


def test_a_huge_topic_is_written_by_several_tasks(spark: Any, lake: Lake) -> None:
    options = {"spark.sql.adaptive.advisoryPartitionSizeInBytes": "4kb", "spark.sql.shuffle.partitions": "3"}
    before = {name: spark.conf.get(name) for name in options}
    frame = spark.range(0, 4_000, 1, 4).selectExpr("id", "'order.close' AS topic", "uuid() AS key")
    for name, value in options.items():
        spark.conf.set(name, value)
    try:
        archive._write(frame, lake, "x", "key", "id")
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert len(lake.parquet("x")) > 1


def test_small_files_are_merged_after_each_run_and_older_versions_stay_readable(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    for n in range(3):
        jobs = [ended(f"order:{n}", days=40 + n), ended(f"refund:{n}", "refund.ask")]
        archive.run(spark, database, lake)

    found = archives.load(lake)
    for table in (found.jobs, found.events):
        assert [each.partition for each in table.files] == ["order.close", "refund.ask"], table.name
    assert stored(lake) == ([*(f"order:{n}" for n in range(3)), *(f"refund:{n}" for n in range(3))], 12)
    assert delta.read(spark, lake, found.jobs.files, schemas.ARCHIVED_JOBS).where("state > 0").count() == 6
    shown = archived_history.by_id(lake, jobs[0].pk)
    assert shown is not None
    assert len(shown.events) == 2
    versions = range(DeltaTable(lake.path(archives.JOBS)).version() + 1)
    assert {DeltaTable(lake.path(archives.JOBS), version=n).count() for n in versions} == {0, 2, 4, 6}

    assert optimization.z_order(found) == {archives.JOBS: 2, archives.EVENTS: 2}
    assert len(stored(lake)[0]) == 6
    (operation,) = DeltaTable(lake.path(archives.JOBS)).history(1)
    assert operation["operationMetrics"]["plannerStrategy"] == "zOrder"


def test_duckdb_reads_the_tables(spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]) -> None:
    old, other = ended("order:1"), ended("refund:1", "refund.ask")
    archive.run(spark, database, lake)
    (folder,) = duckdb_extension_delta.__path__
    (extension,) = Path(folder).glob("extensions/*/*.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        found = connection.execute(
            f"SELECT j.topic, key, j.ended_at, count(*), max(e.run) FROM delta_scan('{lake.path(archives.JOBS)}') AS j "
            f"JOIN delta_scan('{lake.path(archives.EVENTS)}') AS e ON e.job_id = j.id GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert found == [("order.close", "order:1", old.ended_at, 2, 1), ("refund.ask", "refund:1", other.ended_at, 2, 1)]


@pytest.mark.on_both
def test_a_job_changed_after_writing_stays_and_is_archived_when_it_ends_again(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    retried, commented, same = ended("order:1", state=State.DEAD), ended("order:2"), ended("order:3")
    archive.run(spark, database, lake, dead=True, prune=False)
    assert kept_keys() == ["order:1", "order:2", "order:3"]
    Job.objects.filter(pk=retried.pk).update(state=State.DELAYED, ended_at=None, died_at=None)
    happened(commented, Outcome.RELEASED, dialects.database_now("default"))

    assert run(spark, database, lake, dead=True) == {
        "jobs": 1, "events": 3, "partitions": 1, "pruned": 2, "left": 0, "withdrawn": 2}  # fmt: skip
    assert kept_keys() == ["order:1"]
    assert archived_history.by_id(lake, retried.pk) is None
    assert archived_history.by_key(lake, "order.close", "order:1") is None
    found = archived_history.by_id(lake, commented.pk)
    assert found is not None
    assert len(found.events) == 3
    assert stored(lake) == (["order:2", "order:3"], 5)
    assert same.pk


def test_files_that_differ_from_the_source_are_not_published_and_nothing_is_pruned(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    real = archive.read_written

    def without_events(*args: Any) -> Any:
        jobs, events = real(*args)
        return jobs, events.limit(1)

    monkeypatch.setattr(archive, "read_written", without_events)
    with pytest.raises(Differs, match=r"order\.close: 1 jobs and 1 events instead of 1 and 2"):
        archive.run(spark, database, lake)

    assert (kept_keys(), published(lake)) == (["order:1"], 0)


def test_a_checksum_depends_on_values_and_nulls_but_not_on_order(spark: Any) -> None:
    def of(*rows: tuple[Any, ...]) -> Any:
        frame = spark.createDataFrame(list(rows), "a string, b string")
        return frame.agg(checksums.checksum(frame)).first()[0]

    assert of(("x", None), ("y", "z")) == of(("y", "z"), ("x", None))
    assert len({of(("x", None)), of((None, "x")), of(("x", "x")), of(("x", None), ("x", None))}) == 4


def test_topics_that_differ_are_named_with_what_differs() -> None:
    one = Digest(2, 3, "a/b", 1)
    checksums.compare({"t": one}, {"t": one})
    with pytest.raises(Differs, match="other contents"):
        checksums.compare({"t": one}, {"t": one._replace(digest="a/c")})
    with pytest.raises(Differs, match="0 jobs and 0 events instead of 2 and 3"):
        checksums.compare({"t": one}, {})


@pytest.mark.only_on("postgresql")
def test_a_locked_job_is_left_to_the_next_run_which_prunes_it_first(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    locked, _free = ended("order:1"), ended("order:2")
    with database.connect() as other:
        other.execute("SELECT 1 FROM delaytasks_job WHERE id = %s FOR UPDATE", (locked.pk,))
        assert run(spark, database, lake)["left"] == 1
        ended("order:3")
        refused = archive.run(spark, database, lake)
        assert "not pruned yet" in refused["refused"]
        assert refused["exit_code"] == ExitCode.COULD_NOT_RUN
        assert published(lake) == 1
    assert run(spark, database, lake)["pruned"] == 2
    assert stored(lake) == (["order:1", "order:2", "order:3"], 6)


def after_losing(which: str, database: Database, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, which first lets the server end these connections."""

    def done(*args: Any) -> Any:
        with database.connect() as other:
            other.execute(f"SELECT pg_terminate_backend(pid) FROM {which}")
        return real(*args)

    return done


@pytest.mark.only_on("postgresql")
def test_a_lost_database_leaves_nothing_published_and_the_next_run_repeats_all(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    snapshots = "pg_stat_activity WHERE application_name = 'delaytasks pipeline' AND state = 'idle in transaction'"
    with monkeypatch.context() as patched:
        patched.setattr(archive, "_write", after_losing(snapshots, database, archive._write))
        with pytest.raises((PySparkException, DatabaseUnavailable)):
            archive.run(spark, database, lake)
    assert (kept_keys(), published(lake)) == (["order:1"], 0)
    assert run(spark, database, lake)["pruned"] == 1


@pytest.mark.only_on("postgresql")
def test_a_run_that_lost_its_lock_publishes_nothing(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its lock, another run may have removed its files."""
    ended("order:1")
    locks = "pg_locks WHERE locktype = 'advisory'"
    monkeypatch.setattr(lake, "sync", after_losing(locks, database, lake.sync))
    with pytest.raises(DatabaseUnavailable):
        archive.run(spark, database, lake)
    assert (kept_keys(), published(lake)) == (["order:1"], 0)


def test_kept_jobs_are_pruned_by_the_next_run_without_keep(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    ended("order:1")
    for jobs, refused in ((1, ""), (0, "run this without --keep")):
        result = archive.run(spark, database, lake, prune=False)
        assert (result["jobs"], refused in result.get("refused", "")) == (jobs, True)
    assert result["exit_code"] == ExitCode.BAD_INPUT, "to repeat it would not help"
    assert kept_keys() == ["order:1"]
    assert run(spark, database, lake)["pruned"] == 1


@pytest.mark.on_both
def test_a_second_concurrent_archive_is_refused(spark: Any, database: Database, lake: Lake) -> None:
    with database.lock("archive"), pytest.raises(Busy, match="Another archive"):
        archive.run(spark, database, lake)


def test_an_empty_archive_leaves_nothing_behind(spark: Any, database: Database, lake: Lake) -> None:
    assert run(spark, database, lake)["jobs"] == 0
    assert (published(lake), folders(lake)) == (0, set())


def test_a_report_counts_archived_and_unpruned_events_once(
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


def test_an_unreadable_document_or_log_is_damaged(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    for document in ({"colour": 1}, {"recent": 3}, {"recent": {"x": 1}}):
        lake.publish(archives.DOCUMENT, {"version": archives.FORMAT, **document})
        with pytest.raises(LakeError, match="is damaged"):
            archived_history.by_id(lake, 1)
    lake.files.delete_file(lake.path(archives.DOCUMENT))
    old = ended("order:1")
    archive.run(spark, database, lake)
    log = Path(lake.path(archives.JOBS)) / "_delta_log" / f"{1:020}.json"
    text = log.read_text()

    log.write_text(text[: len(text) // 2])
    with pytest.raises(LakeError, match=rf"{archives.JOBS} is damaged or cannot be read"):
        archived_history.by_id(lake, old.pk)
    log.write_text(text)
    assert archived_history.by_id(lake, old.pk)


def test_a_table_with_features_that_hide_rows_is_refused(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    old = ended("order:1")
    archive.run(spark, database, lake)
    table = DeltaTable(lake.path(archives.JOBS))
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)

    for ask in (lambda: archived_history.by_id(lake, old.pk), lambda: archive.run(spark, database, lake)):
        with pytest.raises(LakeError, match=r"was changed by another program to use deletionVectors"):
            ask()


@pytest.mark.parametrize("version", ["minReaderVersion", "minWriterVersion"])
def test_a_table_of_a_newer_protocol_is_refused_and_nothing_is_pruned(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], version: str
) -> None:
    ended("order:1")
    archive.run(spark, database, lake)
    log = Path(lake.path(archives.JOBS), "_delta_log", f"{0:020}.json")
    log.write_text(re.sub(rf'"{version}":\d+', f'"{version}":99', log.read_text()))
    ended("order:2")

    with pytest.raises(LakeError, match=rf"{archives.JOBS} was changed by another .* version 99"):
        archive.run(spark, database, lake)
    assert kept_keys() == ["order:2"]


@pytest.mark.parametrize("partition", [None, "topic"])
def test_a_table_of_another_program_is_refused(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], partition: str | None
) -> None:
    ended("order:1")
    archive.run(spark, database, lake, older_than_days=99)  # creates the document and empty tables
    lake.remove(archives.JOBS)
    theirs = pyarrow.table({"topic": ["order.close"], "amount": [1]})
    write_deltalake(lake.path(archives.JOBS), theirs, partition_by=partition)

    with pytest.raises(LakeError, match=rf"{archives.JOBS} was written by another program or a newer delaytasks: it"):
        archive.run(spark, database, lake)
    assert kept_keys() == ["order:1"]
    assert DeltaTable(lake.path(archives.JOBS)).count() == 1


@pytest.mark.parametrize("table", [archives.JOBS, archives.EVENTS])
def test_files_that_were_vacuumed_before_their_commit_are_missed_and_nothing_is_pruned(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """A vacuum without retention by another program takes files that are not in the log yet."""
    ended("order:1")
    archive.run(spark, database, lake, older_than_days=99)
    real = archive.commit

    def vacuumed(*args: Any) -> Any:
        theirs = DeltaTable(lake.path(table))
        assert theirs.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return real(*args)

    with monkeypatch.context() as patched, pytest.raises(LakeError, match=r"has 0 of \d rows .* vacuum without ret"):
        patched.setattr(archive, "commit", vacuumed)
        archive.run(spark, database, lake)
    assert kept_keys() == ["order:1"]
    if table == archives.EVENTS:
        assert archive.run(spark, database, lake)["pruned"] == 1
    else:  # the events are committed, and the folder of the jobs is empty
        with pytest.raises(LakeError, match=r"events has run 1, but .*/jobs has not\. .* Restore the newest backup"):
            archive.run(spark, database, lake)
        assert (kept_keys(), published(lake)) == (["order:1"], 0)


def test_a_truncated_file_is_named_and_nothing_is_pruned(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    old = ended("order:1")
    archive.run(spark, database, lake, prune=False)
    found = archives.load(lake)
    jobs, events = (Path(lake.path(table.files[0].path)) for table in (found.jobs, found.events))
    whole = jobs.read_bytes()

    jobs.write_bytes(whole[: len(whole) // 2])
    where = rf"{jobs} \(order\.close\)"
    with pytest.raises(LakeError, match=f"{where} is missing or damaged"):
        archived_history.by_id(lake, old.pk)
    with pytest.raises(LakeError, match=f"{where} is missing or has another size"):
        archive.run(spark, database, lake)
    assert kept_keys() == ["order:1"]
    jobs.write_bytes(whole)

    result = events.read_bytes()
    where = rf"{events} \(order\.close\) is missing or has another size"
    for spoil in (events.unlink, lambda: events.write_bytes(result[: len(result) // 2])):
        spoil()
        for ask in (report.run, archive.run):
            with pytest.raises(LakeError, match=where):
                ask(spark, database, lake)
    assert kept_keys() == ["order:1"]
    events.write_bytes(result)

    copy = events.with_name("part-copied.parquet")
    copy.write_bytes(events.read_bytes())
    report.run(spark, database, lake)
    assert sum(each.happened for each in TopicStat.objects.all()) == 2, "the log does not name the copy"
