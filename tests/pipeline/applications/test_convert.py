"""An archive of the former format becomes Delta tables without copying a file."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from django.core.management import CommandError, call_command
from pyarrow import parquet
from pyspark.sql.types import StructType

from delaytasks.models import Job, JobEvent, TopicStat
from delaytasks.pipeline import schemas
from delaytasks.pipeline.applications import archive, convert, minutes, report, stream
from delaytasks.pipeline.applications.batches import Batches
from delaytasks.pipeline.sources import arrow, identity
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.sources.snapshot import Snapshot
from delaytasks.pipeline.tables import archived_history, archives, hours, stream_tables
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.pipeline.tables.stream_tables import FORMAT
from delaytasks.states import Outcome

from ..conftest import at, happened, ms

pytestmark = pytest.mark.only_on("sqlite")
NEWER = ["attempts", "run_total_ms", "run"]  # columns of the hours that the former format did not have


class Killed(BaseException):
    """Simulates SIGKILL: our code does not catch it."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """The database's lake below --lake tmp_path."""
    return Lake(f"{tmp_path}/default")


@pytest.fixture
def former(spark: Any, database: Database, lake: Lake, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Archive ended jobs, and store them as a run of the former format. Return the run's entry in the document."""

    def make(name: str, *, pruned: bool = True, withdrawn: tuple[int, ...] = ()) -> dict[str, Any]:
        made = Lake(str(tmp_path / f"made-{name}"))
        archive.run(spark, database, made, prune=pruned)
        folder, partitions = f"archive/{name}", []
        jobs, events = (DeltaTable(made.path(table)).to_pyarrow_table() for table in (archives.JOBS, archives.EVENTS))
        for job in jobs.to_pylist():
            day = job["ended_at"].astimezone(UTC).date()
            files = {}
            for kind, rows, column in (("jobs", jobs, "id"), ("events", events, "job_id")):
                path = f"{folder}/{kind}/topic={job['topic']}/ended_on={day}/part-{job['id']}.parquet"
                Path(lake.path(path)).parent.mkdir(parents=True, exist_ok=True)
                own = rows.filter([each == job["id"] for each in rows[column].to_pylist()])
                parquet.write_table(own.drop_columns(["run", "topic"]), lake.path(path))
                files[path] = os.path.getsize(lake.path(path))
            partitions.append({"topic": job["topic"], "ended_on": str(day), "job_files": [next(iter(files))],
                               "event_files": [list(files)[1]], "sizes": list(files.values())})  # fmt: skip
        lake.publish(f"{folder}/partitions.json", {"partitions": partitions})
        if pruned:
            lake.write(f"{folder}.pruned", b"")
        with database.connect() as connection:
            ours = identity.identify(database, connection)
        entry = {"folder": folder, "published_ms": 5, "jobs": jobs.num_rows, "events": events.num_rows, "first_id": 1,
                 "last_id": 2, "pruned_ms": 5 if pruned else None, "withdrawn": list(withdrawn)}  # fmt: skip
        runs = [*lake.document("archive.json").get("runs", ()), entry]
        lake.publish("archive.json", {"revision": len(runs), "database": ours, "runs": runs})
        return entry

    return make


def inodes(lake: Lake) -> set[int]:
    return {path.stat().st_ino for path in Path(lake.path("archive")).rglob("part-*.parquet")}


def keys(lake: Lake) -> list[str]:
    return sorted(DeltaTable(lake.path(archives.JOBS)).to_pyarrow_table()["key"].to_pylist())


def test_a_former_archive_is_refused_then_converted_without_copying(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], former: Callable[..., Any], tmp_path: Path,
    capsys: Any,
) -> None:  # fmt: skip
    first, _second = ended("order:1"), ended("refund:1", "refund.ask", days=41)
    former("20300101T000000-00000001")
    ended("order:2")
    former("20300102T000000-00000002", pruned=False)
    Path(lake.path("archive/20300103T000000-killed")).mkdir()
    before = inodes(lake)
    for ask in (lambda: archived_history.by_id(lake, first.pk), lambda: archive.run(spark, database, lake)):
        with pytest.raises(LakeError, match=r"archive\.json was written by an earlier .*pipeline convert"):
            ask()

    call_command("delaytasks", "pipeline", "convert", "--lake", str(tmp_path), "--json")
    assert json.loads(capsys.readouterr().out) == {
        "runs": 2, "months": 0, "parts": 0, "jobs": 3, "events": 6}  # fmt: skip
    assert inodes(lake) > before, "and small files of a topic are merged"
    converted = archives.load(lake)
    for table in (converted.jobs, converted.events):
        assert sorted(each.partition for each in table.files) == ["order.close", "refund.ask"], table.name
    assert sorted(each.name for each in Path(lake.path("archive")).iterdir()) == ["events", "jobs"]
    assert list(Job.objects.values_list("key", flat=True)) == ["order:2"]
    report.run(spark, database, lake)
    assert sum(each.happened for each in TopicStat.objects.all()) == 6, "the rows of order:2 count once"

    ended("order:3")
    assert archive.run(spark, database, lake)["pruned"] == 2
    assert keys(lake) == ["order:1", "order:2", "order:3", "refund:1"]
    found = archived_history.by_id(lake, first.pk)
    assert found is not None
    assert (found.job["key"], len(found.events)) == ("order:1", 2)
    call_command("delaytasks", "pipeline", "convert", "--lake", str(tmp_path))
    assert (
        "0 runs of the archive, 0 months of hourly statistics and 0 parts of the stream converted. The archive has 4 j"
        in capsys.readouterr().out
    )
    call_command("delaytasks", "pipeline", "optimize", "--lake", str(tmp_path))
    assert "The archive has 2 files of jobs and 2 of events." in capsys.readouterr().out
    assert keys(lake) == ["order:1", "order:2", "order:3", "refund:1"]


def test_a_job_withdrawn_from_one_run_stays_in_a_later_one(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], former: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    changed = ended("order:1")
    ended("order:2")
    former("20300101T000000-00000001", pruned=False)
    lake.write("archive/20300101T000000-00000001.pruned", b"")
    document = lake.document("archive.json")
    document["runs"][0] |= {"pruned_ms": 5, "withdrawn": [changed.pk]}
    lake.publish("archive.json", document)
    Job.objects.filter(key="order:2").delete()
    former("20300102T000000-00000002")

    for step in range(1, 9):  # killed at each change of a table in turn
        done: list[str] = []
        with monkeypatch.context() as patched:
            for name in ("commit", "delete"):
                real = getattr(Table, name)

                def once(*args: Any, real: Any = real, done: list[str] = done, step: int = step, **more: Any) -> Any:
                    done.append("")
                    if len(done) == step:
                        real(*args, **more)
                        raise Killed
                    return real(*args, **more)

                patched.setattr(Table, name, once)
            try:
                convert.run(database, lake)
            except Killed:
                assert lake.document("archive.json")["runs"], "not published"
            else:
                break
    assert step > 2
    assert keys(lake) == ["order:1", "order:2"]
    assert DeltaTable(lake.path(archives.EVENTS)).count() == 4
    assert not archives.load(lake).unpruned


def test_files_of_a_killed_run_stay_and_the_next_run_completes_it(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are older than the week after which a vacuum removes what the log does not name."""
    ended("order:1")
    real = Table.commit

    def until_jobs(self: Table, *args: Any, **more: Any) -> Table:
        if self.name == archives.JOBS:
            raise Killed
        return real(self, *args, **more)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Table, "commit", until_jobs)
        archive.run(spark, database, lake)
    for path in Path(lake.path("archive")).rglob("*.parquet"):
        os.utime(path, (0, 0))
    assert convert.run(database, lake)["jobs"] == 0
    assert archive.run(spark, database, lake)["pruned"] == 1
    assert keys(lake) == ["order:1"]


def test_a_damaged_or_absent_former_archive_is_refused_and_stays(
    database: Database, lake: Lake, ended: Callable[..., Job], former: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=r"nothing to convert: .* has none of archive\.json, report") as raised:
        call_command("delaytasks", "pipeline", "convert", "--lake", str(tmp_path))
    assert raised.value.returncode == 3
    ended("order:1")
    former("20300101T000000-00000001")
    file = next(Path(lake.path("archive")).rglob("part-*.parquet"))
    whole, there = file.read_bytes(), lake.document("archive.json")

    file.write_bytes(whole[:9])
    with pytest.raises(LakeError, match=rf"{file} is missing or has another size"):
        convert.run(database, lake)
    file.write_bytes(whole)
    copy = file.with_name("copy.parquet")
    copy.write_bytes(whole)
    with pytest.raises(LakeError, match=rf"{copy} is not listed in the partitions\.json of its archive run"):
        convert.run(database, lake)
    copy.unlink()
    lake.write("archive/20300102T000000-lost.pruned", b"")
    with pytest.raises(LakeError, match=r"archive\.json is an outdated copy"):
        convert.run(database, lake)
    lake.publish("archive.json", {**there, "database": {**there["database"], "name": "elsewhere"}})
    with pytest.raises(LakeError, match="the archive of another database"):
        convert.run(database, lake)
    lake.publish("archive.json", {**there, "runs": [{"folder": "x"}]})
    with pytest.raises(LakeError, match="is damaged"):
        convert.run(database, lake)
    assert not lake.has(archives.JOBS)


def test_hours_of_former_reports_are_converted_and_stay(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    ended("order:1", days=70)
    ended("order:2", days=3)
    report.run(spark, database, lake)
    before = statistics(lake)
    document, months, sizes = lake.document(report.DOCUMENT, report.FORMAT), {}, {}
    for each in Table(lake, hours.NAME, hours.MONTH).files:
        former = f"report/20300101T000000-00000001/hours/month={each.partition}/{os.path.basename(each.path)}"
        lake.move(each.path, former)
        rows = parquet.read_table(lake.path(former), partitioning=None).drop_columns(NEWER)
        parquet.write_table(rows, lake.path(former))
        months[each.partition], sizes[former] = os.path.dirname(former), os.path.getsize(lake.path(former))
    lake.remove(hours.NAME)
    older = [each for each in schemas.REPORTED_HOURS if each.name not in NEWER]
    Table(lake, hours.NAME, hours.MONTH).create(StructType(older))
    del document["hours_run"]
    lake.publish(report.DOCUMENT, {**document, "version": 1, "months": months, "files": sizes})
    with pytest.raises(LakeError, match=r"report\.json was written by an earlier .*pipeline convert"):
        report.run(spark, database, lake)

    file = Path(lake.path(former))
    whole = file.read_bytes()
    file.write_bytes(whole[:9])
    with pytest.raises(LakeError, match=rf"{file} is missing or has another size .* remove report\.json"):
        convert.run(database, lake)
    file.write_bytes(whole)
    assert convert.run(database, lake) == {
        "runs": 0, "months": 2, "parts": 0, "jobs": 0, "events": 0}  # fmt: skip
    assert convert.run(database, lake)["months"] == 0
    assert statistics(lake) == before
    with database.connect() as connection:
        connection.execute("DELETE FROM delaytasks_jobevent")
        connection.execute("DELETE FROM delaytasks_job")
    ended("order:3", days=1)
    assert report.run(spark, database, lake)["since"] is not None
    assert len(statistics(lake)) > len(before), "hours whose events are gone stay"
    attempts = DeltaTable(lake.path(hours.NAME)).to_pyarrow_table()["attempts"].to_pylist()
    assert {each is None for each in attempts} == {True, False}, "hours of older reports have no run times"


def statistics(lake: Lake) -> list[tuple[Any, ...]]:
    rows = DeltaTable(lake.path(hours.NAME)).to_pyarrow_table().to_pylist()
    return sorted((each["topic"], each["hour_at"], each["happened"], each["month"]) for each in rows)


def test_parts_of_a_former_stream_are_converted_and_continued(
    spark: Any, database: Database, lake: Lake, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = job()
    parts = []
    for n in range(2):
        happened(row, Outcome.FAILED, at("02-01 12:00"), late_ms=n, attempt=n + 1)
        batch = Batches(spark, database, lake)
        batch.publish(arrow.read(spark, Snapshot(database, 0, 0, 0), "events"))
        folder = f"stream/2030020{n + 1}T120000-0000000{n}"
        for table, kind in ((batch.stream.events, "events"), (batch.stream.minutes, "minutes")):
            for each in table.files:
                lake.move(each.path, f"{folder}/{kind}/{os.path.basename(each.path)}")
        shutil.rmtree(lake.path("stream/events"))
        shutil.rmtree(lake.path("stream/minutes"))
        lake.publish("stream.json", {"version": FORMAT, "archived_run": 0})
        parts.append({"folder": folder, "events": n + 1, "published_ms": ms(f"02-0{n + 1} 12:00")})
    lake.remove(parts.pop(0)["folder"])  # its event is in the second part, too
    lake.files.create_dir(lake.path("stream/20300201T000000-killed/events"))
    last = JobEvent.objects.latest("id").pk
    lake.publish("stream.json", {"revision": 4, "to": last, "newest": {}, "parts": parts, "archive": {"run": 0}})
    files = {path.stat().st_ino for path in Path(lake.path(parts[0]["folder"])).rglob("*.parquet")}
    for ask in (lambda: minutes.read(lake, 0), lambda: Batches(spark, database, lake)):
        with pytest.raises(LakeError, match=r"stream\.json was written by an earlier .*pipeline convert"):
            ask()

    (file,) = Path(lake.path(f"{parts[0]['folder']}/events")).glob("*.parquet")
    file.rename(f"{file}.away")
    with pytest.raises(
        LakeError, match=r"-00000001 is damaged: it has 0 of 2 events.* The stream was not changed: restore it"
    ):
        convert.run(database, lake)
    Path(f"{file}.away").rename(file)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(stream_tables, "publish", lambda *_: (_ for _ in ()).throw(Killed()))
        convert.run(database, lake)
    assert convert.run(database, lake) == {"runs": 0, "months": 0, "parts": 1, "jobs": 0, "events": 0}
    assert lake.runs("stream") == ["stream/events", "stream/minutes"]
    assert {path.stat().st_ino for path in Path(lake.path("stream")).rglob("part-*.parquet")} == files
    assert [each["happened"] for each in minutes.read(lake, 0)] == [2]

    happened(row, Outcome.FINISHED, at("02-01 12:01"), attempt=3)
    assert stream.run(spark, database, lake, once=True)["events"] == 1
    assert [each["happened"] for each in minutes.read(lake, 0)] == [2, 1]
    assert DeltaTable(lake.path("stream/events")).count() == 3
    assert convert.run(database, lake)["parts"] == 0
