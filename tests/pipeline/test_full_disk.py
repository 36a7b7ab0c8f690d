"""A disk that fills in the middle of an archive: exit code 3, a sentence that says which; the next run completes."""

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet

from delaytasks.models import Job
from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline.applications import archive
from delaytasks.pipeline.config import BadSettings, Settings
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.spark import full_disk, session
from delaytasks.pipeline.spark.errors import ExecutorCheckFailed
from delaytasks.pipeline.spark.full_disk import DiskFull
from delaytasks.pipeline.tables import archives
from delaytasks.pipeline.tables.lake import Lake
from tests.support import archived_rows

JOBS = 6


@pytest.fixture
def answer(
    spark: Any, database: Database, lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run an archive in the tests' session. Return exit code and answer."""
    monkeypatch.setattr(session, "session", lambda *_, **__: contextlib.nullcontext(spark))

    def asked(root: str = lake.root, application: str = "archive", **arguments: Any) -> tuple[int, dict[str, Any]]:
        settings = Settings(database, root, "local[2]", arguments=arguments)
        code = run.main([application], settings.environment())
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return asked


@pytest.fixture
def rows(ended: Callable[..., Job]) -> Iterator[None]:
    """Ended jobs with two events each, and a copy of them."""
    for n in range(JOBS):
        ended(f"order:{n}", f"topic.{n % 2}")
    with archived_rows.kept():
        yield


@contextlib.contextmanager
def limited(process: int, size: int) -> Iterator[None]:
    """Let a process write no file beyond this size inside the block; 0: this process. No permission is needed.

    This process writes no bytecode meanwhile: Python 3.11 keeps a file of which it could write only a part, and every
    later import of this module fails.
    """
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("step", ["Spark writes", "create", "commit", "prune"])
def test_an_archive_that_cannot_write_prunes_nothing_and_is_completed_later(
    spark: Any, rows: None, lake: Lake, answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    process, size, calls = 0, 100, list[str]()

    def full(real: Callable[..., Any]) -> Callable[..., Any]:
        def in_full(*given: Any, **more: Any) -> Any:
            calls.append("")
            # Spark's first write unpacks the library of its compression, which must not fail.
            with limited(process, size) if len(calls) > 1 or process == 0 else contextlib.nullcontext():
                return real(*given, **more)

        return in_full

    if step == "Spark writes":
        process, size = spark.sparkContext._gateway.proc.pid, 1000
        monkeypatch.setattr(archive, "_write", full(archive._write))
    elif step == "create":
        monkeypatch.setattr(archive, "_open", full(archive._open))
    elif step == "commit":
        monkeypatch.setattr(archive, "commit", full(archive.commit))
    else:
        monkeypatch.setattr(archive.pruner, "prune", full(archive.pruner.prune))
    code, refused = answer()

    assert (code, refused["error"]) == (ExitCode.COULD_NOT_RUN, "DiskFull"), refused
    assert "File too large" in refused["message"]
    assert f"the lake, {lake.root}, has " in refused["message"]
    assert "No row is lost: free some space, then run this again." in refused["message"]
    assert Job.objects.count() == JOBS
    monkeypatch.undo()
    monkeypatch.setattr(session, "session", lambda *_, **__: contextlib.nullcontext(spark))
    code, done = answer()
    assert (code, done.get("pruned")) == (ExitCode.DONE, JOBS), done
    assert not Job.objects.exists()
    assert archived_rows.compare(lake) == {
        "delaytasks_job": (JOBS, 0, 0), "delaytasks_jobevent": (2 * JOBS, 0, 0)}  # fmt: skip


@pytest.mark.tools
def test_an_archive_on_a_disk_with_a_little_more_space_each_time(
    rows: None, answer: Callable[..., Any], tmp_path: Path
) -> None:
    """A real file system of 2 MB, filled but for some KB, so that each run ends a little later. Needs root to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    messages = []
    try:
        root, ballast = Lake(str(disk / "lake")), disk / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        code = ExitCode.COULD_NOT_RUN
        while code != ExitCode.DONE:
            with ballast.open("r+b") as file:
                file.truncate(max(0, ballast.stat().st_size - (4 << 10)))
            code, found = answer(root.root)
            if code != ExitCode.DONE:
                assert (code, found["error"]) == (ExitCode.COULD_NOT_RUN, "DiskFull"), found
                messages.append(found["message"])
                committed = root.has("archive.json") and archives.load(root).jobs.run
                assert committed or Job.objects.count() == JOBS, "nothing is pruned before it is committed"
        assert not Job.objects.exists()
        assert archived_rows.compare(root) == {
            "delaytasks_job": (JOBS, 0, 0), "delaytasks_jobevent": (2 * JOBS, 0, 0)}  # fmt: skip
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert len(messages) > 4
    assert all(f"The disk of the lake, {root.root}, is full (No space left on device; " in each for each in messages)


def test_the_disk_that_is_short_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, free = Lake(f"{tmp_path}/lake"), {str(tmp_path): 5 << 30, "/fast": 2 << 20}
    monkeypatch.setattr(full_disk, "_free_bytes", lambda path: free.get(path, free[str(tmp_path)]))

    def sentence(message: str) -> str:
        with pytest.raises(DiskFull) as raised, full_disk.translate_errors(lake, {"spark.local.dir": "/fast,/slow"}):
            raise OSError(message)
        return str(raised.value)

    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    assert sentence("java.io.IOException: No space left on device") == (
        "The disk of Spark's temporary files, /fast, is full (No space left on device; 2.0 MB free). No row is lost: "
        "free some space, then run this again."
    )
    free["/fast"] = 1 << 30
    assert sentence(f"Task failed while writing rows to file:{tmp_path}/lake/x. No space left on device").startswith(
        f"{lake.root}/x cannot be written (No space left on device). On this host the lake, {lake.root}, has 5,120.0 MB"
    )
    assert sentence('could not extend file "base/1": No space left on device').startswith("The disk of the database ")
    assert full_disk._free_bytes("not/yet/there") > 0
    for mistake in (
        KeyError("another mistake"),
        ExecutorCheckFailed("host7 cannot write (Disk quota exceeded)"),
        BadSettings("outcome: text = = 'No space left on device'"),
    ):
        with pytest.raises(type(mistake)), full_disk.translate_errors(lake, {}):
            raise mistake


@pytest.mark.parametrize("application", ["report", "audit", "load", "stream", "optimize", "convert"])
def test_each_application_names_a_full_disk_and_is_completed_later(
    rows: None, lake: Lake, answer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    application: str,
) -> None:  # fmt: skip
    """The disk fills at the first write of this process: of a document, a page or a table's log."""
    assert answer()[0] == ExitCode.DONE  # of the archive, which optimize needs
    (tmp_path / "more.csv").write_text("key,due_at\norder:x,2030-02-01T12:00Z\n")
    parquet.write_table(pyarrow.table({"id": [1], "at": [datetime(2030, 2, 1, tzinfo=UTC)]}), tmp_path / "x.parquet")
    rule = {"topic": "topic.0", "parquet": str(tmp_path / "x.parquet"), "key": "concat('order:', id)", "since": "at",
            "columns": {"id": "bigint", "at": "timestamp"}, "may": ["missing", "orphan"]}  # fmt: skip
    arguments: dict[str, dict[str, Any]] = {
        "audit": {"file": "a.toml", "rules": [rule]}, "stream": {"once": True},
        "load": {"source": str(tmp_path / "more.csv"), "mapping": {"topic": "topic.0"},
                 "limits": {"topics": {"topic.0": 1000}, "max_delay_seconds": 10**9, "max_body_bytes": 1000}},
    }  # fmt: skip
    if application == "convert":
        lake.publish("archive.json", {"database": lake.document("archive.json", 2)["database"], "runs": []})
        lake.remove("archive")
    (tmp_path / "default").symlink_to(lake.root)  # the command adds the database's alias to the lake

    def asked() -> tuple[int, str]:
        if application not in run.APPLICATIONS:
            try:
                call_command("delaytasks", "pipeline", application, "--lake", str(tmp_path))
            except CommandError as error:
                return error.returncode, str(error)
            return ExitCode.DONE, ""
        code, found = answer(application=application, **arguments.get(application, {}))
        return code, found.get("message", "")

    with limited(0, 100):
        code, message = asked()
    assert (code, "(File too large). On this host the lake, " in message) == (ExitCode.COULD_NOT_RUN, True), message
    assert asked() == (ExitCode.DONE, "")
