"""The same questions on a cluster: a master and two workers, asked as manage.py asks and by spark-submit."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from pyarrow import parquet

from delaytasks import dialect
from delaytasks.models import Job
from delaytasks.pipeline import archive, manifest, report, sources
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.lake import Lake
from delaytasks.states import Outcome, State

from .conftest import SMALL, happened
from .standalone import cluster

LOOPBACK = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
    "spark.executor.memory": "480m", "spark.executor.extraJavaOptions": SMALL["spark.driver.extraJavaOptions"],
    # No task begins before both executors are there, or the first one would have done all of them.
    "spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.eventLog.enabled": "true", "spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false",
}  # fmt: skip


@pytest.mark.only_on("postgresql")
def test_a_cluster_answers_as_one_machine_does_and_each_of_its_executors_works(
    spark: Any, database: Database, job: Callable[..., Job], tmp_path: Path, capfd: Any
) -> None:
    """The report as manage.py asks by itself, the archive by spark-submit."""
    fill(job)
    here, there = Lake(str(tmp_path / "here")), Lake(str(tmp_path / "there" / "default"))
    report.run(spark, database, here)
    archive.run(spark, database, here, older_than_days=2, prune=False)

    with cluster() as url:
        told, workers = ask(tmp_path, capfd, "report", "--master", url)
        assert (told["rows"], workers) == (8, {"0", "1"})
        told, workers = ask(tmp_path, capfd, "archive", "--older-than-days", "2", "--master", url, "--submit")
        assert (told["jobs"], told["events"], told["pruned"], workers) == (8, 16, 8, {"0", "1"})

    assert hours(there) == hours(here)
    assert partitions(there) == partitions(here)
    assert not Job.objects.exists()


def fill(job: Callable[..., Job]) -> None:
    """Eight jobs whose ids are so far apart that each is in a range of its own."""
    now = dialect.database_now("default")
    for n in range(1, 9):
        due_at = now - timedelta(days=3 + n % 2, hours=n)
        row = job(f"order:{n}", f"topic.{n % 3}", State.FINISHED, due_at=due_at, pk=n * sources.RANGE_ROWS, attempt=2)
        happened(row, Outcome.FAILED, due_at, late_ms=n)
        happened(row, Outcome.FINISHED, row.ended_at, attempt=2)


def ask(folder: Path, capfd: Any, *words: str) -> tuple[dict[str, Any], set[str]]:
    """What the command answers, and the executors that did a part of it."""
    log = folder / "log" / words[0]
    log.mkdir(parents=True)
    conf = SMALL | LOOPBACK | {"spark.eventLog.dir": log.as_uri()}
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    capfd.readouterr()
    call_command("delaytasks", "pipeline", *words, "--lake", str(folder / "there"), "--json", *options)
    told = json.loads(capfd.readouterr().out)
    events = [json.loads(line) for path in log.iterdir() for line in path.read_text().splitlines()]
    return told, {each["Task Info"]["Executor ID"] for each in events if each["Event"] == "SparkListenerTaskEnd"}


def hours(lake: Lake) -> list[dict[str, Any]]:
    found = [
        row for path in lake.document(report.DOCUMENT)["months"].values() for file, _ in lake.parquet(path)
        for row in parquet.read_table(lake.path(file), partitioning=None).to_pylist()
    ]  # fmt: skip
    return sorted(found, key=lambda row: (row["topic"], row["hour_at"]))


def partitions(lake: Lake) -> list[manifest.Partition]:
    (run,) = manifest.runs(lake)
    return [replace(each, job_files=(), event_files=(), sizes=()) for each in manifest.partitions(lake, run)]
