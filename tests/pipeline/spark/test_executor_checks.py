"""Executors without the lake, the inputs or the database: each application reports them."""

import json
import os
import re
import shutil
import subprocess
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pyarrow import parquet

from delaytasks.models import Job, JobEvent, LoadChunk, TopicStat
from delaytasks.pipeline.config import VARIABLE, Settings
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources import arrow
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.spark import package
from delaytasks.pipeline.tables import archives, stream_tables
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import Outcome, State

from ...support.servers import die_with_parent, tail
from ...support.spark_cluster import VIEW, cluster
from ..conftest import SMALL, happened
from .test_cluster import LOOPBACK

pytestmark = pytest.mark.only_on("postgresql")
CONF = SMALL | {name: value for name, value in LOOPBACK.items() if "eventLog" not in name} | {
    "spark.default.parallelism": "1",  # the check has enough tasks nevertheless
    # Each executor has a part in each stage that writes.
    "spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64b",
    # An executor whose folder has zones uses them; the others use those of the driver.
    "spark.executorEnv.PYTHONTZPATH": f"{VIEW}/zoneinfo:{':'.join(zoneinfo.TZPATH)}",
}  # fmt: skip
JOBS, ROWS = 6, 200
FIRST_DUE = datetime(2025, 1, 15, 12, tzinfo=UTC)
QUESTIONS = ("report", "audit", "load", "stream", "archive")


class Site(NamedTuple):
    """shared    folder that the first worker sees
    alone     folder of the second worker
    elsewhere   folder that no worker sees
    """

    url: str
    shared: Path
    alone: Path
    elsewhere: Path


class Driver:
    """The one driver that may use the cluster's cores: it runs applications in a folder until another is needed."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.folder: Path | None = None
        self.python = ""
        self.process: subprocess.Popen[str] | None = None

    def run(self, folder: Path, asked: list[list[str]], unchecked: bool, python: str) -> list[dict[str, Any]]:
        """Run these applications. Return two documents for each: its answer and its exit code.

        python   path of the program that executors start
        """
        if (folder, python) != (self.folder, self.python) or self.process is None:
            self.close()
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.pipeline_questions"], cwd=folder, text=True, bufsize=1,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, preexec_fn=die_with_parent(),
                    env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package.ROOT.parent),
                         "PYSPARK_PYTHON": python},
                )  # fmt: skip
            self.folder, self.python = folder, python
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"asked": asked, "unchecked": unchecked}) + "\n")
        found: list[dict[str, Any]] = []
        for line in self.process.stdout:
            document = json.loads(line) if line.startswith("{") else {"progress": line}
            found += [] if "progress" in document else [document]
            if len(found) == 2 * len(asked):
                return found
        raise AssertionError(f"The driver ended after {found}:\n{tail(self.log)}")

    def close(self) -> None:
        """End the driver and its executors."""
        if self.process is not None:
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    running = Driver(tmp_path_factory.mktemp("driver") / "log")
    yield running
    running.close()


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folders = [tmp_path_factory.mktemp(name) for name in ("shared", "alone", "elsewhere")]
    with cluster(folders[0], folders[1]) as url:
        yield Site(url, *folders)


@pytest.fixture
def site(running_site: Site) -> Site:
    """The cluster with empty folders. Executors write to their own folder, even if the driver runs in another."""
    for folder in running_site[1:]:
        shutil.rmtree(Path(folder) / "lake", ignore_errors=True)
    return running_site


@pytest.fixture
def rows(job: Callable[..., Job]) -> list[Job]:
    """Jobs in as many months, with ids of jobs and events so far apart that each has its own range.

    The times are fixed, because Spark assigns rows to executors by a hash of their hour or month.
    """
    made = []
    for n in range(1, JOBS + 1):
        row = job(
            f"order:{n}", state=State.FINISHED, due_at=FIRST_DUE + timedelta(days=31 * n), pk=n * arrow.RANGE_ROWS
        )
        with connection.cursor() as cursor:
            cursor.execute("SELECT setval(pg_get_serial_sequence('delaytasks_jobevent', 'id'), %s)", [row.pk])
        happened(row, Outcome.FINISHED, row.ended_at, late_ms=n)
        made.append(row)
    return made


@pytest.fixture
def ask(
    site: Site, driver: Driver, database: Database, rows: list[Job], tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Run applications in one session from a folder. Return application -> answer with its exit code."""
    orders, promises = tmp_path / "orders", tmp_path / "promises.csv"
    orders.mkdir()
    kinds = pyarrow.schema([("id", pyarrow.int64()), ("due", pyarrow.timestamp("us", "UTC"))])
    table = pyarrow.Table.from_pylist([{"id": n, "due": row.due_at} for n, row in enumerate(rows, 1)], schema=kinds)
    parquet.write_table(table, orders / "part-0.parquet")
    promises.write_text("\n".join(["key,due_at", *(f"more:{n},2030-02-01T12:00Z" for n in range(ROWS)), ""]))

    def asked(
        folder: Path, *questions: str, lake: str = f"{VIEW}/lake", unchecked: bool = False, orders: str = str(orders),
        promises: str = str(promises), database: Database = database, zone: str = "", python: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        rule = {"topic": "order.close", "parquet": orders, "columns": {"id": "bigint", "due": "timestamp"},
                "key": "concat('order:', id)", "since": "due"}  # fmt: skip
        rule |= {"zone": zone, "delay": "0 days"} if zone else {}
        arguments = {
            "audit": {"file": "audit.toml", "rules": [rule]}, "stream": {"once": True},
            "archive": {"older_than_days": 1},
            "load": {"source": promises, "mapping": {"topic": "order.close"},
                     "limits": {"topics": {"order.close": 60_000}, "max_delay_seconds": 10**9,
                                "max_body_bytes": 1000, "zone": zone}},
        }  # fmt: skip
        result = [
            [each, Settings(database, lake, site.url, CONF, arguments.get(each, {})).environment()[VARIABLE]]
            for each in questions
        ]
        answers = driver.run(folder, result, unchecked, python or os.environ["PYSPARK_PYTHON"])
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return {question: answer | code for question, (answer, code) in zip(questions, pairs, strict=True)}

    return asked


def published(lake: Path) -> list[str]:
    found = Lake(str(lake))
    runs = [f"archive of {archives.load(found).jobs.run}"] if found.has("archive.json") else []
    stream = found.has("stream.json") and stream_tables.load(found).to
    return [
        *runs,
        *(name for name in ("report.json", "audit.json") if found.has(name)),
        *(["stream"] if stream else []),
    ]


def untouched() -> bool:
    """Return whether the database is unchanged."""
    return (
        (Job.objects.count(), JobEvent.objects.count()) == (JOBS, JOBS)
        and not TopicStat.objects.exists() and not LoadChunk.objects.exists()
    )  # fmt: skip


def test_executors_that_share_the_lake_run_each_application(
    ask: Callable[..., dict[str, Any]], site: Site, tmp_path: Path
) -> None:
    """Report and archive: see test_cluster.py."""
    answers = ask(site.shared, "audit", "load", "stream", lake=str(tmp_path / "lake"))

    assert {each["exit_code"] for each in answers.values()} == {ExitCode.DONE}, answers
    assert answers["audit"]["rules"][0]["classes"]["kept"]["count"] == JOBS
    assert (answers["load"]["read"], answers["load"]["inserted"]) == (ROWS, ROWS)
    assert answers["stream"]["events"] == JOBS
    assert not Lake(str(tmp_path / "lake")).runs("preflight")


@pytest.mark.parametrize("failing", [1, pytest.param(2, marks=pytest.mark.tools)])
def test_each_application_names_the_executors_that_do_not_see_the_lake(
    ask: Callable[..., dict[str, Any]], site: Site, failing: int
) -> None:
    here = site.shared if failing == 1 else site.elsewhere
    answers = ask(here, *QUESTIONS)

    for each in answers.values():
        assert (each["exit_code"], each["error"]) == (ExitCode.COULD_NOT_RUN, "ExecutorCheckFailed"), each
        assert f"{failing} of 2 executors cannot take part: " in each["message"]
        assert f"does not see the lake {VIEW}/lake" in each["message"]
        assert "Mount the same folder under the same path on every host" in each["message"]
    assert published(here / "lake") == []
    assert untouched()


@pytest.mark.parametrize("failing", [1, pytest.param(2, marks=pytest.mark.tools)])
def test_rows_that_later_executors_write_elsewhere_are_missing_in_the_count(
    ask: Callable[..., dict[str, Any]], site: Site, failing: int
) -> None:
    """As if each executor had joined after the check."""
    here = site.shared if failing == 1 else site.elsewhere
    answers = ask(here, *QUESTIONS, unchecked=True)

    assert {each["exit_code"] for each in answers.values()} == {ExitCode.COULD_NOT_RUN}, answers
    errors = {question: each["error"] for question, each in answers.items()}
    assert errors == dict.fromkeys(QUESTIONS, "RowsLost"), answers
    for question in QUESTIONS:
        assert "rows can be read in" in answers[question]["message"]
    assert published(here / "lake") == ["archive of 0"]
    assert untouched()


def test_inputs_that_an_executor_lacks_or_has_in_another_version_are_named(
    ask: Callable[..., dict[str, Any]], site: Site, tmp_path: Path
) -> None:
    (site.shared / "promises.csv").write_text("key,due_at\na,2030-02-01T12:00Z\n")
    (site.shared / "orders.parquet").write_bytes((tmp_path / "orders" / "part-0.parquet").read_bytes())
    (site.alone / "orders.parquet").write_bytes(b"PAR1")
    answers = ask(site.shared, "load", "audit", lake=str(tmp_path / "lake"), promises=f"{VIEW}/promises.csv",
                  orders=f"{VIEW}/orders.parquet")  # fmt: skip

    assert {each["exit_code"] for each in answers.values()} == {ExitCode.COULD_NOT_RUN}, answers
    assert f"does not see {VIEW}/promises.csv" in answers["load"]["message"]
    assert f"has another {VIEW}/orders.parquet (4 bytes instead of" in answers["audit"]["message"]
    assert all("Put the inputs where every host sees the same" in each["message"] for each in answers.values())


def test_an_executor_with_another_zone_database_is_named(
    ask: Callable[..., dict[str, Any]], site: Site, tmp_path: Path
) -> None:
    zones = [Path(folder, "Asia") for folder in zoneinfo.TZPATH if Path(folder, "Asia/Kolkata").exists()]
    (site.alone / "zoneinfo" / "Europe").mkdir(parents=True)
    (site.alone / "zoneinfo" / "Europe" / "Berlin").write_bytes((zones[0] / "Kolkata").read_bytes())
    lake = str(tmp_path / "lake")
    wrong = ask(site.shared, "load", "audit", lake=lake, zone="Europe/Berlin")
    right = ask(site.shared, "audit", lake=lake, zone="Europe/Rome")

    for each in wrong.values():
        assert (each["exit_code"], each["error"]) == (ExitCode.COULD_NOT_RUN, "ExecutorCheckFailed"), each
        assert "1 of 2 executors cannot take part: " in each["message"]
        assert "computes Europe/Berlin differently in Python: +05:30 instead of +01:00 at 1970-" in each["message"]
        assert "Install the same version of the time zone database on every host" in each["message"]
    assert right["audit"]["exit_code"] == ExitCode.DONE, right
    assert right["audit"]["rules"][0]["classes"]["kept"]["count"] == JOBS


def test_an_executor_with_another_python_is_named_with_its_host(
    ask: Callable[..., dict[str, Any]], site: Site, tmp_path: Path
) -> None:
    """The second worker's Python has no site-packages."""
    for folder, options in ((site.shared, ""), (site.alone, "-S")):
        program = folder / "python"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        program.chmod(0o755)
    answers = ask(site.shared, "report", "load", lake=str(tmp_path / "lake"), python=f"{VIEW}/python")

    for each in answers.values():
        assert (each["exit_code"], each["error"]) == (ExitCode.COULD_NOT_RUN, "ExecutorCheckFailed"), each
        assert re.match(
            r"Python fails on 127\.0\.0\.1 \(executor \d\)(: .*No module named|\. See the)", each["message"]
        )
        assert re.search(r"Install .*delaytasks\[pipeline\] (there )?on every host", each["message"])
    assert untouched()


@pytest.mark.parametrize("submit", [False, pytest.param(True, marks=pytest.mark.tools)])
def test_the_command_has_another_exit_code_than_for_faults(
    site: Site, driver: Driver, rows: list[Job], monkeypatch: pytest.MonkeyPatch, submit: bool
) -> None:
    driver.close()  # the command's driver needs the cores
    monkeypatch.chdir(site.elsewhere)
    options = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    with pytest.raises(CommandError, match="2 of 2 executors cannot take part") as raised:
        call_command("delaytasks", "pipeline", "archive", "--lake", f"{VIEW}/lake", "--master", site.url, *options,
                     *(["--submit"] if submit else []))  # fmt: skip
    assert raised.value.returncode == ExitCode.COULD_NOT_RUN
    assert untouched()
