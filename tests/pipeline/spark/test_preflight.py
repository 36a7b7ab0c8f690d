"""Checks of an executor. On a cluster: test_executor_checks.py."""

import itertools
import json
import os
import pickle
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from delaytasks.calendars.wall_time import to_zone
from delaytasks.pipeline.config import BadSettings
from delaytasks.pipeline.delays import zone_databases
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.spark import package, preflight
from delaytasks.pipeline.spark.errors import ExecutorCheckFailed
from delaytasks.pipeline.spark.preflight import Executor, Probe, fingerprint
from delaytasks.pipeline.tables.lake import Lake
from tests.support.servers import UNPRIVILEGED, make_directory

SHOP = Database("sqlite", "shop")


def problems(probe: Probe) -> list[list[str]]:
    return json.loads(probe.report()["problems"])


def probe(lake: Lake, *inputs: Path, token: bytes = b"token") -> Probe:
    observed = tuple(((str(each), str(each)), fingerprint(str(each), str(each))) for each in inputs)
    return Probe(lake.root, "preflight/now", token, observed, SHOP, None)


def test_an_executor_reads_the_token_and_writes_a_marker(lake: Lake) -> None:
    assert [what for what, _ in problems(probe(lake))] == ["lake"]
    assert not lake.has("")  # it makes no folder of its own
    lake.write("preflight/now/token", b"token")
    report = probe(lake).report()
    assert json.loads(report["problems"]) == []
    assert lake.has(report["wrote"])
    ((kind, problem),) = problems(probe(lake, token=b"another"))
    assert (kind, problem) == ("lake", f"has another folder as the lake {lake.root}")


def test_an_executor_without_write_permission_is_named() -> None:
    """As another user if this one is root, whom no permission stops."""
    folder = make_directory("delaytasks-lake-")
    try:
        folder.chmod(0o755)
        lake = Lake(f"{folder}/lake")
        lake.write("preflight/now/token", b"token")
        Path(lake.path("preflight/now")).chmod(0o555)
        user = pwd.getpwnam(UNPRIVILEGED).pw_uid if os.geteuid() == 0 else os.geteuid()
        program = (
            "import os, pickle, sys; probe = pickle.load(sys.stdin.buffer); os.setuid(int(sys.argv[1])); "
            "print(probe.report()['problems'])"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(user)], input=pickle.dumps(probe(lake)), capture_output=True,
            env={"PATH": os.defpath, "PYTHONPATH": str(package.ROOT.parent)},
        )  # fmt: skip
    finally:
        Path(lake.path("preflight/now")).chmod(0o755)
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr.decode()
    ((kind, problem),) = json.loads(done.stdout)
    assert (kind, problem.startswith(f"cannot write to the lake {lake.root} (")) == ("write", True), problem
    assert "Permission denied" in problem


def test_an_input_is_identified_by_its_size_and_head(lake: Lake, tmp_path: Path) -> None:
    lake.write("preflight/now/token", b"token")
    file = tmp_path / "orders 100%.csv"
    file.write_text("id\n1\n")
    asked = probe(lake, file)
    assert problems(asked) == []
    for text, why in (("id\n2\n", "other contents"), ("id\n", "3 bytes instead of 5")):
        file.write_text(text)
        assert problems(asked) == [["input", f"has another {file} ({why})"]]
    file.unlink()
    ((kind, problem),) = problems(asked)
    assert (kind, f"does not see {file}" in problem) == ("input", True)


def test_a_database_that_an_executor_cannot_reach_is_named(lake: Lake, tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    lake.write("preflight/now/token", b"token")
    away = Database("postgresql", "shop", host=str(tmp_path), password="hush")
    ((kind, problem),) = problems(Probe(lake.root, "preflight/now", b"token", (), away, ("1", "shop")))
    assert kind == "database"
    assert "does not reach the database postgresql shop" in problem
    assert "hush" not in problem


def test_a_package_that_an_executor_lacks_is_named(lake: Lake) -> None:
    lake.write("preflight/now/token", b"token")
    asked = replace(probe(lake), modules=("psycopg", "psycopg_of_another_version"))
    assert problems(asked) == [["package", "lacks the Python package psycopg_of_another_version"]]


def test_for_sqlite_an_executor_must_read_the_temporary_files_of_the_driver(lake: Lake, tmp_path: Path) -> None:
    lake.write("preflight/now/token", b"token")
    with preflight._temporary_token(SHOP, b"token") as copy:
        asked = replace(probe(lake), copy=copy)
        assert problems(asked) == []
        Path(copy).write_bytes(b"another")
        (problem,) = problems(asked)
    assert problem == ["copy", f"cannot read the temporary files of this process in {tempfile.gettempdir()}"]
    assert problems(asked) == [problem], "the file is gone"
    with preflight._temporary_token(Database("postgresql", "shop"), b"token") as copy:
        assert copy == ""


def test_offsets_of_a_zone_include_each_of_its_changes(spark: Any) -> None:
    """Of Python and of Java, computed on executors."""
    found = zone_databases.offsets("Europe/Berlin")
    changes = [second for (_, one), second in itertools.pairwise(found) if one != second[1]]

    assert (1_901_149_200, 7200) in changes, "2030-03-31T01:00Z"
    assert (1_919_293_200, 3600) in changes, "2030-10-27T01:00Z"
    assert zone_databases.difference(found, [offset for _, offset in found]) == ""
    rows = spark.range(1).select(zone_databases.java_offsets([("Europe/Berlin", found)], F.col("id")))
    ((java,),) = rows.collect()
    assert zone_databases.difference(found, java["Europe/Berlin"]) == ""


def test_a_zone_that_only_python_knows_is_refused_with_its_name_before_the_run(
    spark: Any, database: Database, lake: Lake
) -> None:
    assert to_zone("Factory")
    preflight.check(spark, database, lake, zones={"Europe/Berlin": True, "Factory": False})
    with pytest.raises(BadSettings, match="Java has no time zone 'Factory', though Python has it"):
        preflight.check(spark, database, lake, zones={"Europe/Berlin": True, "Factory": True})


def test_another_zone_database_is_named_with_its_first_difference(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write("preflight/now/token", b"token")
    known = zone_databases.offsets("Europe/Berlin")
    asked = replace(probe(lake), zones=(("Europe/Berlin", known),))
    assert problems(asked) == []
    java = {"Europe/Berlin": [offset + 1800 * (instant == 1_901_149_200) for instant, offset in known]}
    assert json.loads(asked.report(java)["problems"]) == [
        ["zone", "computes Europe/Berlin differently in Java: +02:30 instead of +02:00 at 2030-03-31T01:00Z"]
    ]
    monkeypatch.setattr(zone_databases, "to_zone", lambda zone: to_zone(f"{zone}/of another version"))
    assert problems(asked) == [["zone", "has no time zone Europe/Berlin in Python"]]


def test_a_local_master_is_not_checked(spark: Any, lake: Lake) -> None:
    preflight.check(spark, SHOP, lake, [("/nowhere", "/nowhere")])
    assert not lake.has("")


@pytest.mark.parametrize("is_submitted", [True, False])
def test_without_an_executor_the_check_gives_up(
    spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch, is_submitted: bool
) -> None:
    """With a local master the driver runs the tasks, and no executor registers.

    is_submitted   False: Spark has not begun the job when it is cancelled
    """
    progress, waited, reports = list[str](), threading.Event(), preflight._reports

    def report_progress(text: str) -> None:
        progress.append(text)
        if len(progress) == 2:
            waited.set()

    def begin(*args: Any) -> Any:
        assert is_submitted or waited.wait(timeout=60)
        return reports(*args)

    def wait(*_: Any) -> Any:
        time.sleep(2)
        return iter([])

    monkeypatch.setattr(preflight, "_run_probe", wait)
    monkeypatch.setattr(preflight, "_reports", begin)
    monkeypatch.setattr(preflight, "report_progress", report_progress)
    monkeypatch.setattr(preflight, "WARNING_SECONDS", 0.1)
    monkeypatch.setattr(preflight, "WAIT_SECONDS", 0.3)
    with pytest.raises(ExecutorCheckFailed, match=r"No executor has registered in 0\.3 s: .* no free cores or memory"):
        preflight._run_on_executors(spark, probe(lake), ())
    assert progress == ["no executor has registered yet"] * 2


def test_executors_are_asked_until_each_one_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One registers during the first round and is busy in the next two. Another never runs a task."""
    first, third = Executor("1", "a", 2), Executor("3", "c", 2, completed=7)
    asked, second = first._replace(completed=4), Executor("2", "b", 4)
    states = [[first, third], *[[asked, second, third]] * 5, *[[asked, second._replace(completed=9), third]] * 20]
    spark, rows, tasks = Mock(spec=SparkSession), Mock(), list[int]()
    monkeypatch.setattr(preflight, "_executors", lambda _: states.pop(0))
    rows.mapInArrow.return_value.collect.return_value = []

    def frame(*given: int) -> Mock:
        tasks.append(given[-1])
        return rows

    spark.range.side_effect = frame
    _, silent = preflight._reports(spark, Mock(), ())
    assert silent == [third]
    assert tasks == [8, 16, 16, 16, 16]

    states = [[first], [asked]]
    assert preflight._reports(spark, Mock(), ()) == ([], [])
    assert tasks[5:] == [4]


def test_the_message_names_a_few_executors_and_each_advice_once() -> None:
    problem_rows = [(f"host{n} (process 1)", "write", "cannot write") for n in range(7)]
    assert preflight._sentence(problem_rows, 9) == (
        "7 of 9 executors cannot take part: " + "; ".join(f"host{n} (process 1) cannot write" for n in range(5))
        + "; and 2 more. Give the executors' user write permission there."
    )  # fmt: skip
