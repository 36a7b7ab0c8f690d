"""One Spark session for the tests that use it, and committed rows: Spark reads over its own connections."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from delaytasks import clock
from delaytasks.db import dialects, transitions
from delaytasks.db.transitions import Event
from delaytasks.management.subcommands.pipeline.process import database_of
from delaytasks.models import Job
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.spark import class_archive
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import ENDED, Outcome, State
from tests.support import spark_classes

BODY = {"order": 7, "to": "Zoë 张"}
HERE = Path(__file__).parent
SMALL = spark_classes.NO_CODEGEN | {
    "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": spark_classes.OPTIONS,
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests that share the Spark session in one process, and choose the database of each test.

    Unless a marker says otherwise, what reads a database runs on PostgreSQL, and the rest on SQLite.
    """
    for item in items:
        if HERE not in item.path.parents:
            continue
        asked_for = getattr(item, "fixturenames", ())
        if "spark" in asked_for:
            item.add_marker(pytest.mark.xdist_group("pipeline"))
        chosen = item.get_closest_marker("only_on") or item.get_closest_marker("on_both")
        if not chosen:
            item.add_marker(pytest.mark.only_on("postgresql" if "database" in asked_for else "sqlite"))


@pytest.fixture(scope="session", autouse=True)
def _spark_classes() -> Iterator[None]:
    """Let all Java and Python processes of Spark start quickly, without the archive of `pipeline prepare-java`."""
    spark_classes.make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_archive, "FOLDER", spark_classes.FOLDER / "none")
        patch.setenv("PYSPARK_PYTHON", str(spark_classes.PYTHON))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from delaytasks.pipeline.spark import session

    with session.session("tests", master="local[2]", options=SMALL) as spark:
        yield spark


@pytest.fixture
def database(transactional_db: None) -> Database:
    """The test's database as the pipeline's settings have it."""
    return Database(**database_of("default"))


@pytest.fixture
def reader(database: Database) -> Iterator[Database]:
    """PostgreSQL for a user with SELECT only."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE delaytasks_reader LOGIN")
        cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO delaytasks_reader")
    yield replace(database, user="delaytasks_reader", password="")
    with connection.cursor() as cursor:
        cursor.execute("DROP OWNED BY delaytasks_reader")
        cursor.execute("DROP ROLE delaytasks_reader")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def at(text: str) -> datetime:
    """Return a time in 2030: "02-01 13:30"."""
    return datetime.fromisoformat(f"2030-{text}").replace(tzinfo=UTC)


def ms(text: str) -> int:
    return clock.to_ms(at(text))


@pytest.fixture
def job(database: Database) -> Callable[..., Job]:
    """Insert a row in the given state, without a worker."""

    def make(key: str = "order:1", topic: str = "order.close", state: State = State.DELAYED, **columns: Any) -> Job:
        due_at = columns.setdefault("due_at", at("02-01 12:00"))
        if state in ENDED:
            columns.setdefault("ended_at", due_at + timedelta(seconds=1))
        if state is State.DEAD:
            columns.setdefault("died_at", columns["ended_at"])
        if state is State.RESERVED:
            columns = {"attempt": 1, "lease_until": due_at, "reserved_at": due_at} | columns
        columns = {"created_at": due_at - timedelta(hours=1), "ttr_ms": 60_000} | columns
        return Job.objects.create(topic=topic, key=key, state=state, **columns)

    return make


def happened(job: Job, outcome: Outcome, when: datetime, *, late_ms: int = 0, attempt: int = 1, **more: Any) -> None:
    """Add an event of an attempt that began `late_ms` after the due time and ended at `when`."""
    due_ms = clock.to_ms(job.due_at)
    begun = {"due_ms": due_ms, "reserved_ms": due_ms + late_ms} | more
    transitions.record("default", [Event(job.pk, outcome, attempt, done_ms=clock.to_ms(when), **begun)])


@pytest.fixture
def ended(job: Callable[..., Job]) -> Callable[..., Job]:
    """Add a job that ended this many days ago, with two events."""

    def make(key: str, topic: str = "order.close", state: State = State.FINISHED, *, days: float = 40) -> Job:
        now = dialects.database_now("default")
        due_at = now - timedelta(days=days)
        row = job(key, topic, state, due_at=due_at, body=BODY, error="line\nline", attempt=2, failures=1)
        happened(row, Outcome.FAILED, due_at, late_ms=3)
        happened(row, Outcome(State(state).word), row.ended_at, attempt=2, worker="w1", reason="so")
        return row

    return make


@pytest.fixture
def chunk(lake: Lake) -> Callable[..., Any]:
    """Write a chunk of a load with these keys."""
    import pyarrow
    from pyarrow import parquet

    from delaytasks.pipeline.sinks import jobs

    def make(
        *keys: str,
        run: str = "r1",
        number: int = 0,
        due_ms: int = ms("02-01 12:00"),
        body: str = '{"n":1}',
        ttr_ms: int = 30_000,
        spread_ms: int = 0,
    ) -> Any:
        rows = [{"topic": "order.close", "key": key, "due_ms": due_ms, "ttr_ms": ttr_ms, "body": body,
                 "spread_ms": spread_ms, "file": "orders.csv", "row": row}
                for row, key in enumerate(keys, 2)]  # fmt: skip
        path = f"load/{run}/staged/{number}.parquet"
        lake.files.create_dir(lake.path(f"load/{run}/staged"), recursive=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), lake.path(path))
        return jobs.Chunk(number, path, len(rows))

    return make
