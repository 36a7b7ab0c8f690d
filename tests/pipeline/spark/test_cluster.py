"""The applications on a cluster of a master and two workers, by manage.py and by spark-submit."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from django.core.management import call_command

from delaytasks.db import dialects
from delaytasks.models import Job, JobEvent
from delaytasks.pipeline.sources import arrow
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables import archived_history
from delaytasks.pipeline.tables import hours as hours_table
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import Outcome, State

from ...support.spark_cluster import cluster
from ..conftest import SMALL, happened

LOOPBACK = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
    "spark.executor.memory": "480m", "spark.executor.extraJavaOptions": SMALL["spark.driver.extraJavaOptions"],
    # No task begins before both executors are there, or the first one would have done all of them.
    "spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
    "spark.eventLog.enabled": "true", "spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false",
}  # fmt: skip


@pytest.mark.only_on("postgresql")
def test_a_cluster_gives_the_right_answers_with_all_its_executors(
    database: Database, job: Callable[..., Job], tmp_path: Path, capfd: Any
) -> None:
    """The report by manage.py itself, the archive by spark-submit."""
    rows = fill(job)
    events = {row.pk: list(JobEvent.objects.filter(job=row).order_by("id").values()) for row in rows}

    with cluster() as url:
        result, workers = ask(tmp_path, capfd, "report", "--master", url)
        assert (result["rows"], workers) == (8, {"0", "1"})
        result, workers = ask(tmp_path, capfd, "archive", "--older-than-days", "2", "--master", url, "--submit")
        assert (result["jobs"], result["events"], result["pruned"], workers) == (8, 16, 8, {"0", "1"})

    lake = Lake(str(tmp_path / "lake" / "default"))
    assert hours(lake) == sorted((row.topic, hour(row), 2, 1, 1, 1, late, late) for late, row in enumerate(rows, 1))
    assert not Job.objects.exists()
    for row in rows:
        found = archived_history.by_id(lake, row.pk)
        assert found is not None
        assert found.job == {name: getattr(row, name) for name in found.job}
        assert found.events == events[row.pk]


def fill(job: Callable[..., Job]) -> list[Job]:
    """Eight jobs, each in an hour of its own, with ids so far apart that each has its own range."""
    now = dialects.database_now("default").replace(minute=30)
    made = []
    for n in range(1, 9):
        due_at = now - timedelta(days=3 + n % 2, hours=n)
        row = job(f"order:{n}", f"topic.{n % 3}", State.FINISHED, due_at=due_at, pk=n * arrow.RANGE_ROWS, attempt=2)
        happened(row, Outcome.FAILED, due_at, late_ms=n)
        happened(row, Outcome.FINISHED, row.ended_at, attempt=2)
        made.append(Job.objects.get(pk=row.pk))
    return made


def ask(folder: Path, capfd: Any, *words: str) -> tuple[dict[str, Any], set[str]]:
    """Return the command's answer, and the executors that ran tasks."""
    log = folder / "log" / words[0]
    log.mkdir(parents=True)
    conf = SMALL | LOOPBACK | {"spark.eventLog.dir": log.as_uri()}
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    capfd.readouterr()
    call_command("delaytasks", "pipeline", *words, "--lake", str(folder / "lake"), "--json", *options)
    result = json.loads(capfd.readouterr().out)
    events = [json.loads(line) for path in log.iterdir() for line in path.read_text().splitlines()]
    return result, {each["Task Info"]["Executor ID"] for each in events if each["Event"] == "SparkListenerTaskEnd"}


COLUMNS = ("topic", "hour_at", "happened", "finished", "retried", "begun", "late_p50_ms", "late_worst_ms")


def hours(lake: Lake) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(row[name] for name in COLUMNS)
        for row in DeltaTable(lake.path(hours_table.NAME)).to_pyarrow_table().to_pylist()
    )


def hour(row: Job) -> datetime:
    return row.due_at.replace(minute=0, second=0, microsecond=0)
