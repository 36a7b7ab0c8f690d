"""Reading the operational tables: all columns, in ranges, from one snapshot, with pushed filters."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, LessThan, StringContains

from delaytasks.management.subcommands.pipeline.process import database_of
from delaytasks.models import Job
from delaytasks.pipeline.sources import arrow, identity, pushdown, snapshot
from delaytasks.pipeline.sources.database import Busy, Database, DatabaseUnavailable, NotAllowed
from delaytasks.pipeline.sources.relations import RELATIONS
from delaytasks.pipeline.spark import errors
from delaytasks.states import Outcome, State
from tests.support.servers import wait_until

from ..conftest import at, happened

pytestmark = pytest.mark.on_both  # each database is asked in SQL of its own


def plain(row: Any) -> dict[str, Any]:
    """Return a row's columns, with aware datetimes as in Django."""
    return {name: value.astimezone(at("01-01").tzinfo) if hasattr(value, "tzinfo") else value
            for name, value in row.asDict().items()}  # fmt: skip


def test_every_column_of_a_job_equals_djangos_value(spark: Any, database: Database, job: Callable[..., Job]) -> None:
    texts = {"body": {"who": "Łukasz 张 'x'"}, "error": "line\nline \\ ' \"", "worker": "w@1"}
    made = [
        job("order:1", due_at=at("02-01 12:00:00.123")),
        job("order:2", state=State.FINISHED, ended_at=at("02-02 00:00"), reserved_at=at("02-01 12:00"), **texts),
        job("order:3", state=State.DEAD, attempt=5, failures=5),
        job("order:4", state=State.RESERVED),
    ]
    with snapshot.take(database) as taken:
        found = [plain(row) for row in arrow.read(spark, taken, "jobs").orderBy("id").collect()]

    for row, each in zip(found, made, strict=True):
        each.refresh_from_db()
        assert json.loads(row.pop("body")) == each.body
        assert row == {name: getattr(each, name) for name in row}


def test_ranges_cover_all_ids_and_a_filter_limits_them(spark: Any, database: Database, job: Callable[..., Job]) -> None:
    ids = [job(f"order:{n}").pk for n in range(7)]
    with snapshot.take(database) as taken:
        jobs = arrow.read(spark, taken, "jobs", ["id"], rows=2)
        later = jobs.where(F.col("id") > ids[3])
        assert (jobs.rdd.getNumPartitions(), later.rdd.getNumPartitions()) == (4, 2)
        assert sorted(row.id for row in jobs.collect()) == ids
        assert sorted(row.id for row in later.collect()) == ids[4:]


def test_rows_committed_after_the_snapshot_are_not_in_it(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    before = job("order:1")
    with snapshot.take(database) as taken:
        Job.objects.filter(pk=before.pk).update(key="order:renamed")
        job("order:2")
        found = arrow.read(spark, taken, "jobs", ["key"]).collect()
        assert taken.query("SELECT count(*) FROM delaytasks_job WHERE key = {}", ["order:1"]) == [(1,)]

    assert [row.key for row in found] == ["order:1"]


def test_pushed_filters_on_times_states_and_nulls_match_sparks(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    job("live")
    job("early", state=State.FINISHED, ended_at=at("02-01 12:00:00"))
    job("late", state=State.CANCELLED, ended_at=at("02-01 12:00:00.001"))
    with snapshot.take(database) as taken:
        jobs = arrow.read(spark, taken, "jobs", ["key", "state", "ended_at"])
        ended = jobs.where(F.col("ended_at") < at("02-01 12:00:00.001")).where(F.col("state").isin(4, 5))
        live = jobs.where(F.col("ended_at").isNull())
        keys = [[row.key for row in frame.collect()] for frame in (ended, live)]

    assert keys == [["early"], ["live"]]


def test_events_have_their_topic_and_job_events_their_jobs_end(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    live, ended = job("order:1"), job("refund:1", topic="refund.ask", state=State.FINISHED)
    for each in (live, ended):
        happened(each, Outcome.SNOOZED, at("02-01 12:00"))
    happened(ended, Outcome.CANCELLED, at("02-01 12:00"), reserved_ms=None)
    Job.objects.filter(pk=live.pk)._raw_delete("default")
    with snapshot.take(database) as taken:
        events = arrow.read(spark, taken, "events", ["outcome", "topic", "reserved_ms"]).collect()
        job_events = arrow.read(spark, taken, "job_events", ["job_id", "topic", "ended_at"])
        result = job_events.where(F.col("ended_at").isNotNull()).collect()

    assert {(row.outcome, row.topic, row.reserved_ms is None) for row in events} == {
        ("snoozed", "refund.ask", False), ("cancelled", "refund.ask", True), ("snoozed", None, False),
    }  # fmt: skip
    assert [(row.job_id, row.topic) for row in result] == [(ended.pk, "refund.ask")] * 2


def test_an_empty_table_is_an_empty_frame(spark: Any, database: Database) -> None:
    with snapshot.take(database) as taken:
        assert arrow.read(spark, taken, "events").collect() == []


def test_only_filters_with_the_same_meaning_are_pushed_down() -> None:
    def message(each: Any, vendor: str = "postgresql") -> str | None:
        return pushdown.condition(each, RELATIONS["jobs"], vendor)

    assert message(EqualTo(("topic",), "o'clock")) == "j.\"topic\" = 'o''clock'"
    assert message(IsNull(("ended_at",))) == 'j."ended_at" IS NULL'
    assert message(In(("state",), (4, 5))) == 'j."state" IN (4, 5)'
    assert message(LessThan(("ended_at",), at("02-01 12:00")), "sqlite") == "j.\"ended_at\" < '2030-02-01 12:00:00'"
    assert message(GreaterThan(("topic",), "a")) is None, "each database has an order of its own for texts"
    assert message(EqualTo(("topic",), "nul\0")) is None
    assert message(EqualTo(("id",), None)) is None
    assert message(StringContains(("topic",), "a")) is None
    assert message(EqualTo(("body", "order"), 1)) is None
    assert message(EqualTo(("body",), '{"order":1}')) is None, "a jsonb is equal however its text is spaced"


@pytest.mark.only_on("sqlite")
def test_a_link_to_the_database_has_the_same_lock(database: Database, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite3"
    link.symlink_to(database.name)
    with database.lock("archive"), pytest.raises(Busy), replace(database, name=str(link)).lock("archive"):
        pytest.fail("both have the lock")


def test_one_run_of_a_kind_at_a_time_holds_the_lock(database: Database) -> None:
    with database.lock("archive"):
        with pytest.raises(Busy, match="Another archive of"), database.lock("archive"):
            pass
        with database.lock("report"):
            pass
    with database.lock("archive"):
        pass


@pytest.fixture
def tenant(database: Database) -> Iterator[Database]:
    """The database by an alias whose OPTIONS name a schema with a job table only."""
    options = {"options": "-c search_path=tenant"}
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant CREATE TABLE delaytasks_job (LIKE public.delaytasks_job)")
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(connection.settings_dict, "OPTIONS", options)
            yield Database(**database_of("default"))
        cursor.execute("DROP SCHEMA tenant CASCADE")


@pytest.mark.only_on("postgresql")
def test_tables_come_from_the_alias_schema_and_missing_ones_are_reported(
    spark: Any, database: Database, tenant: Database, job: Callable[..., Job]
) -> None:
    job("order:1")
    counts = [
        arrow.read(spark, snapshot.Snapshot(each, 0, 0, 0), "jobs", ["id"]).count() for each in (database, tenant)
    ]
    assert counts == [1, 0]
    with database.connect() as one, tenant.connect() as other:
        assert identity.differ(identity.identify(database, one), identity.identify(tenant, other))
    with pytest.raises(PySparkException) as raised:
        arrow.read(spark, snapshot.Snapshot(tenant, 0, 0, 0), "events").count()
    missing = r'relation "delaytasks_jobevent" does not exist\. Run manage\.py migrate, or name the tables\' schema'
    assert re.search(missing, errors.summary(raised.value)[1])
    with pytest.raises(NotAllowed, match=missing), tenant.connect() as connected:
        connected.execute("SELECT FROM delaytasks_jobevent")


@pytest.mark.only_on("postgresql")
def test_the_connection_with_the_lock_survives_the_idle_session_timeout(reader: Database) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER ROLE delaytasks_reader SET idle_session_timeout = 2000")
    with reader.lock("load") as still, reader.connect() as other:
        other.autocommit = True
        (pid,) = other.execute("SELECT pg_backend_pid()").fetchone()
        wait_until(lambda: pid not in backends(), seconds=10, what="the end of one that says nothing")
        still()
        with pytest.raises(Busy), reader.lock("load"):
            pass


def backends() -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity")
        return {pid for (pid,) in cursor.fetchall()}


@pytest.mark.only_on("postgresql")
def test_a_reader_without_a_snapshot_reads_no_other_server(database: Database, job: Callable[..., Job]) -> None:
    """As an executor that joins a stream later and whose host knows another server under this name."""
    row, jobs = job(), RELATIONS["jobs"]
    server = database.server()
    assert server is not None
    for known, ids in ((server, [row.pk]), ((), [row.pk]), (("1", server[1]), None)):
        reader = arrow.TableReader(database, jobs, jobs.columns, "", 1000, known)
        if ids is None:
            with pytest.raises(DatabaseUnavailable, match=rf"{socket.gethostname()} reaches another server as postgre"):
                reader.partitions()
            continue
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert [batch["id"].to_pylist() for batch in batches] == [ids]
    assert Database("sqlite", "shop").server() is None


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("policies", ["", "CREATE POLICY none ON delaytasks_job USING (false)"])
def test_rows_that_a_policy_may_hide_are_an_error_and_not_left_out(
    reader: Database, job: Callable[..., Job], policies: str
) -> None:
    job()
    with connection.cursor() as cursor:
        cursor.execute(f"{policies}; ALTER TABLE delaytasks_job ENABLE ROW LEVEL SECURITY")
    try:
        for name in ("jobs", "ended", "job_events"):
            table = arrow.TableReader(reader, RELATIONS[name], RELATIONS[name].columns, "", 1000)
            with pytest.raises(Exception, match="row-level security") as raised:
                table.partitions()
            assert errors.summary(raised.value)[1] == (
                "The database may hide rows from the pipeline's user, so nothing was read: there is a row-level "
                'security policy for table "delaytasks_job". Give the user the attribute BYPASSRLS, or run this as the '
                "table's owner."
            )
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP POLICY IF EXISTS none ON delaytasks_job")
            cursor.execute("ALTER TABLE delaytasks_job DISABLE ROW LEVEL SECURITY")


@pytest.mark.only_on("postgresql")
def test_a_frame_without_a_snapshot_is_of_the_server_that_the_driver_reaches(
    spark: Any, database: Database, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, no_snapshot = job(), snapshot.Snapshot(database, 0, 0, 0)
    assert [each.id for each in arrow.read(spark, no_snapshot, "jobs", ["id"]).collect()] == [row.pk]
    monkeypatch.setattr(Database, "server", lambda _: ("1", "another"))
    with pytest.raises(Exception, match="reaches another server as postgresql"):
        arrow.read(spark, no_snapshot, "jobs", ["id"]).collect()


def test_an_unreachable_database_is_named_without_its_password(tmp_path: Any) -> None:
    gone = Database("postgresql", "shop", host=str(tmp_path), user="me", password="hush")
    for each in (gone, Database("sqlite", str(tmp_path / "none.sqlite3"))):
        with pytest.raises(DatabaseUnavailable, match="does not answer") as raised, each.connect():
            pass
        assert "hush" not in f"{raised.value} {each!r}"
    assert not (tmp_path / "none.sqlite3").exists()
