"""One Spark session for the tests that ask for it, and rows that are committed: Spark reads them from elsewhere."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from delaytasks import clock, dialect, statements
from delaytasks.management.verbs.pipeline.asking import database_of
from delaytasks.models import Job
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.lake import Lake
from delaytasks.statements import Event
from delaytasks.states import ENDED, Outcome, State

BODY = {"order": 7, "to": "Zoë 张"}
HERE = Path(__file__).parent
SMALL = {  # a few rows: to make code quick takes longer than to run it slowly
    "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}  # fmt: skip


ON_BOTH = ("test_sources", "test_load_placing", "test_watermark")
ABOUT_THE_LAKE = ("test_archive", "test_archive_kept", "test_story")  # but for those of them that say otherwise


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that ask for the session share it, so one process. Most run in one pass: a run costs seconds.

    What each database is asked in words of its own runs on both; what knows no database, on the quicker one.
    """
    for item in items:
        if HERE not in item.path.parents:
            continue
        asked_for = getattr(item, "fixturenames", ())
        if "spark" in asked_for:
            item.add_marker(pytest.mark.xdist_group("pipeline"))
        chosen = item.get_closest_marker("only_on") or item.get_closest_marker("on_both")
        if item.path.stem not in ON_BOTH and not chosen:
            asks = "database" in asked_for and item.path.stem not in ABOUT_THE_LAKE
            item.add_marker(pytest.mark.only_on("postgresql" if asks else "sqlite"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from delaytasks.pipeline import session

    with session.session("tests", master="local[2]", options=SMALL) as spark:
        yield spark


@pytest.fixture
def database(transactional_db: None) -> Database:
    """The test's database as the pipeline is told of it."""
    return Database(**database_of("default"))


@pytest.fixture
def reader(database: Database) -> Iterator[Database]:
    """PostgreSQL as a user has it who may read, and nothing else."""
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
    """An instant of 2030: "02-01 13:30"."""
    return datetime.fromisoformat(f"2030-{text}").replace(tzinfo=UTC)


def ms(text: str) -> int:
    return clock.to_ms(at(text))


@pytest.fixture
def job(database: Database) -> Callable[..., Job]:
    """Puts a row there as it stands, so that these tests need no worker."""

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
    """An event of an attempt that began `late_ms` after the due time and ended at `when`."""
    due_ms = clock.to_ms(job.due_at)
    begun = {"due_ms": due_ms, "reserved_ms": due_ms + late_ms} | more
    statements.record("default", [Event(job.pk, outcome, attempt, done_ms=clock.to_ms(when), **begun)])


@pytest.fixture
def ended(job: Callable[..., Job]) -> Callable[..., Job]:
    """A job that ended so many days ago, with two events."""

    def make(key: str, topic: str = "order.close", state: State = State.FINISHED, *, days: float = 40) -> Job:
        now = dialect.database_now("default")
        due_at = now - timedelta(days=days)
        row = job(key, topic, state, due_at=due_at, body=BODY, error="line\nline", attempt=2, failures=1)
        happened(row, Outcome.FAILED, due_at, late_ms=3)
        happened(row, Outcome(State(state).word), row.ended_at, attempt=2, worker="w1", reason="so")
        return row

    return make


@pytest.fixture
def chunk(lake: Lake) -> Callable[..., Any]:
    """Writes a chunk of a load, with these keys."""
    import pyarrow
    from pyarrow import parquet

    from delaytasks.pipeline import stages

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
        return stages.Chunk(number, path, len(rows))

    return make
