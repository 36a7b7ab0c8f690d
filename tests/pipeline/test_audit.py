"""The audit: every row that should have a promise has exactly one, and what became of it has a name."""

import json
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from pyarrow import parquet

import delaytasks
from delaytasks import dialect
from delaytasks.management.verbs.pipeline import audit as verb
from delaytasks.management.verbs.pipeline import load as load_verb
from delaytasks.models import Job, Topic
from delaytasks.pipeline import archive, audit, business, classes, comparing, history, load, manifest, run, snapshot
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.lake import VERSION, Lake, LakeError
from delaytasks.pipeline.rules import BadRule, Rule, rules_of
from delaytasks.pipeline.settings import Settings
from delaytasks.states import Outcome, State

from .conftest import at, happened

RULE = {
    "name": "orders close", "topic": "order.close", "table": "audit_order",
    "columns": {"id": "bigint", "placed_at": "timestamp", "status": "string"},
    "key": "concat('order:', id)", "since": "placed_at", "delay_seconds": 1800, "when": "status <> 'draft'",
    "holds": "status = 'open'", "late_seconds": 5,
}  # fmt: skip
ALL = {  # a column of each type that a rule can name
    "id": "bigint", "placed_at": "timestamp", "status": "string", "lines": "int", "total": "decimal(10, 2)",
    "weight": "double", "day": "date", "gift": "boolean",
}  # fmt: skip
COLUMNS = {
    "postgresql": "id bigint PRIMARY KEY, placed_at timestamptz, status text, lines integer, total numeric(10, 2),"
    " weight double precision, day date, gift boolean",
    "sqlite": "id bigint PRIMARY KEY, placed_at datetime, status varchar(20), lines integer unsigned, total decimal,"
    " weight real, day date, gift bool",
}


def rule(**changed: Any) -> Rule:
    given = {name: value for name, value in {**RULE, **changed}.items() if value is not None}
    return rules_of("audit.toml", [given])[0]


@pytest.fixture
def order(database: Database) -> Iterator[Callable[..., None]]:
    """Puts an order there, two hours old."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE audit_order ({COLUMNS[connection.vendor]})")

    def make(number: int, status: str | None = "open", **more: Any) -> None:
        values = {"id": number, "placed_at": dialect.database_now("default") - timedelta(hours=2), "status": status}
        values |= more
        if values["placed_at"]:
            values["placed_at"] = connection.ops.adapt_datetimefield_value(values["placed_at"])
        marks = ", ".join(["%s"] * len(values))
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO audit_order ({', '.join(values)}) VALUES ({marks})", list(values.values()))

    yield make
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE audit_order")


@pytest.fixture
def promise(job: Callable[..., Job]) -> Callable[..., Job]:
    """The job of an order, due 90 minutes ago; `late_ms` for each time that it was run."""

    def make(number: int, state: State = State.FINISHED, *late_ms: int, **columns: Any) -> Job:
        due_at = columns.pop("due_at", dialect.database_now("default") - timedelta(minutes=90))
        row = job(f"order:{number}", state=state, due_at=due_at, **columns)
        for late in late_ms:
            happened(row, Outcome.FINISHED, due_at + timedelta(seconds=1), late_ms=late)
        return row

    return make


def counts(answer: dict[str, Any], place: int = 0) -> dict[str, int]:
    found = answer["rules"][place]["classes"].items()
    return {name: each["count"] for name, each in found if each["count"]}


def test_an_audit_plans_nothing_for_a_run_of_the_archive_that_has_no_job_of_its_topic(
    spark: Any, database: Database, lake: Lake, promise: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    promise(1, topic="refund.ask")
    archive.run(spark, database, lake, older_than_days=0)
    promise(2)
    archive.run(spark, database, lake, older_than_days=0)
    promise(3)
    real, planned = comparing.written, []
    monkeypatch.setattr(comparing, "written", lambda *args: planned.append(args[2]) or real(*args))
    with snapshot.taken(database) as taken:
        jobs = history.jobs(spark, taken, lake, classes.JOBS, "order.close")
        history.stories(spark, taken, lake, classes.EVENTS, "order.close")
        assert sorted(row.key for row in jobs.collect()) == ["order:2", "order:3"]
    assert set(planned) == {manifest.runs(lake)[1].folder}


@pytest.mark.on_both
