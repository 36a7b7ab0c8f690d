"""The same questions on a cluster: a master and two workers, asked as manage.py asks and by spark-submit."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from pyarrow import parquet

from delaytasks import dialect
from delaytasks.models import Job, JobEvent
from delaytasks.pipeline import report, sources, story
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
def test_a_cluster_answers_rightly_and_each_of_its_executors_works(
    database: Database, job: Callable[..., Job], tmp_path: Path, capfd: Any
) -> None:
    """The report as manage.py asks by itself, the archive by spark-submit."""
    rows = fill(job)
    events = {row.pk: list(JobEvent.objects.filter(job=row).order_by("id").values()) for row in rows}

    with cluster() as url:
        told, workers = ask(tmp_path, capfd, "report", "--master", url)
        assert (told["rows"], workers) == (8, {"0", "1"})
        told, workers = ask(tmp_path, capfd, "archive", "--older-than-days", "2", "--master", url, "--submit")
        assert (told["jobs"], told["events"], told["pruned"], workers) == (8, 16, 8, {"0", "1"})

    lake = Lake(str(tmp_path / "lake" / "default"))
    assert hours(lake) == sorted((row.topic, hour(row), 2, 1, 1, 1, late, late) for late, row in enumerate(rows, 1))
    assert not Job.objects.exists()
    for row in rows:
        found = story.by_id(lake, row.pk)
        assert found is not None
        assert found.job == {name: getattr(row, name) for name in found.job}
        assert found.events == events[row.pk]


def fill(job: Callable[..., Job]) -> list[Job]:
    """Eight jobs, each of an hour of its own, whose ids are so far apart that each is in a range of its own."""
    now = dialect.database_now("default").replace(minute=30)
    made = []
    for n in range(1, 9):
        due_at = now - timedelta(days=3 + n % 2, hours=n)
        row = job(f"order:{n}", f"topic.{n % 3}", State.FINISHED, due_at=due_at, pk=n * sources.RANGE_ROWS, attempt=2)
        happened(row, Outcome.FAILED, due_at, late_ms=n)
        happened(row, Outcome.FINISHED, row.ended_at, attempt=2)
        made.append(Job.objects.get(pk=row.pk))
    return made


def ask(folder: Path, capfd: Any, *words: str) -> tuple[dict[str, Any], set[str]]:
    """What the command answers, and the executors that did a part of it."""
    log = folder / "log" / words[0]
    log.mkdir(parents=True)
    conf = SMALL | LOOPBACK | {"spark.eventLog.dir": log.as_uri()}
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    capfd.readouterr()
    call_command("delaytasks", "pipeline", *words, "--lake", str(folder / "lake"), "--json", *options)
    told = json.loads(capfd.readouterr().out)
    events = [json.loads(line) for path in log.iterdir() for line in path.read_text().splitlines()]
    return told, {each["Task Info"]["Executor ID"] for each in events if each["Event"] == "SparkListenerTaskEnd"}


COLUMNS = ("topic", "hour_at", "happened", "finished", "retried", "begun", "late_p50_ms", "late_worst_ms")


def hours(lake: Lake) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(row[name] for name in COLUMNS)
        for path in lake.document(report.DOCUMENT)["months"].values() for file, _ in lake.parquet(path)
        for row in parquet.read_table(lake.path(file), partitioning=None).to_pylist()
    )  # fmt: skip


def hour(row: Job) -> datetime:
    return row.due_at.replace(minute=0, second=0, microsecond=0)
