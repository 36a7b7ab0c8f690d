"""Reading the operational tables: whole, in parts, as of one moment, and no more than was asked for."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, LessThan, StringContains

from delaytasks.management.verbs.pipeline.asking import database_of
from delaytasks.models import Job
from delaytasks.pipeline import causes, identity, pushdown, snapshot, sources
from delaytasks.pipeline.database import Busy, Database, DatabaseAway, NotAllowed
from delaytasks.pipeline.relations import RELATIONS
from delaytasks.states import Outcome, State
from tests.servers import wait_until

from .conftest import at, happened


def plain(row: Any) -> dict[str, Any]:
    """A row's columns, with aware datetimes as Django has them."""
    return {name: value.astimezone(at("01-01").tzinfo) if hasattr(value, "tzinfo") else value
            for name, value in row.asDict().items()}  # fmt: skip


def test_every_column_of_a_job_arrives_as_django_has_it(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    texts = {"body": {"who": "Łukasz 张 'x'"}, "error": "line\nline \\ ' \"", "worker": "w@1"}
    made = [
        job("order:1", due_at=at("02-01 12:00:00.123")),
        job("order:2", state=State.FINISHED, ended_at=at("02-02 00:00"), reserved_at=at("02-01 12:00"), **texts),
        job("order:3", state=State.DEAD, attempt=5, failures=5),
        job("order:4", state=State.RESERVED),
    ]
    with snapshot.taken(database) as taken:
        found = [plain(row) for row in sources.read(spark, taken, "jobs").orderBy("id").collect()]

    for row, each in zip(found, made, strict=True):
        each.refresh_from_db()
        assert json.loads(row.pop("body")) == each.body
        assert row == {name: getattr(each, name) for name in row}


def test_parts_of_ids_make_the_whole_and_a_filter_reaches_the_ids(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    ids = [job(f"order:{n}").pk for n in range(7)]
    with snapshot.taken(database) as taken:
        jobs = sources.read(spark, taken, "jobs", ["id"], rows=2)
        later = jobs.where(F.col("id") > ids[3])
        assert (jobs.rdd.getNumPartitions(), later.rdd.getNumPartitions()) == (4, 2)
        assert sorted(row.id for row in jobs.collect()) == ids
        assert sorted(row.id for row in later.collect()) == ids[4:]


def test_what_is_committed_after_the_snapshot_is_not_in_it(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    before = job("order:1")
    with snapshot.taken(database) as taken:
        Job.objects.filter(pk=before.pk).update(key="order:renamed")
        job("order:2")
        found = sources.read(spark, taken, "jobs", ["key"]).collect()
        assert taken.ask("SELECT count(*) FROM delaytasks_job WHERE key = {}", ["order:1"]) == [(1,)]

    assert [row.key for row in found] == ["order:1"]


def test_filters_on_times_states_and_nulls_find_what_spark_would_find(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    job("live")
    job("early", state=State.FINISHED, ended_at=at("02-01 12:00:00"))
    job("late", state=State.CANCELLED, ended_at=at("02-01 12:00:00.001"))
    with snapshot.taken(database) as taken:
        jobs = sources.read(spark, taken, "jobs", ["key", "state", "ended_at"])
        ended = jobs.where(F.col("ended_at") < at("02-01 12:00:00.001")).where(F.col("state").isin(4, 5))
        live = jobs.where(F.col("ended_at").isNull())
        keys = [[row.key for row in frame.collect()] for frame in (ended, live)]

    assert keys == [["early"], ["live"]]


def test_events_know_their_topic_and_stories_their_jobs_end(
    spark: Any, database: Database, job: Callable[..., Job]
) -> None:
    live, ended = job("order:1"), job("refund:1", topic="refund.ask", state=State.FINISHED)
    for each in (live, ended):
        happened(each, Outcome.SNOOZED, at("02-01 12:00"))
    happened(ended, Outcome.CANCELLED, at("02-01 12:00"), reserved_ms=None)
    Job.objects.filter(pk=live.pk)._raw_delete("default")
    with snapshot.taken(database) as taken:
        events = sources.read(spark, taken, "events", ["outcome", "topic", "reserved_ms"]).collect()
        stories = sources.read(spark, taken, "stories", ["job_id", "topic", "ended_at"])
        told = stories.where(F.col("ended_at").isNotNull()).collect()

    assert {(row.outcome, row.topic, row.reserved_ms is None) for row in events} == {
        ("snoozed", "refund.ask", False), ("cancelled", "refund.ask", True), ("snoozed", None, False),
    }  # fmt: skip
    assert [(row.job_id, row.topic) for row in told] == [(ended.pk, "refund.ask")] * 2


def test_an_empty_table_is_an_empty_frame(spark: Any, database: Database) -> None:
    with snapshot.taken(database) as taken:
        assert sources.read(spark, taken, "events").collect() == []


def test_only_what_the_database_means_as_spark_does_is_asked_of_it() -> None:
    def said(each: Any, vendor: str = "postgresql") -> str | None:
        return pushdown.condition(each, RELATIONS["jobs"], vendor)

    assert said(EqualTo(("topic",), "o'clock")) == "j.\"topic\" = 'o''clock'"
    assert said(IsNull(("ended_at",))) == 'j."ended_at" IS NULL'
    assert said(In(("state",), (4, 5))) == 'j."state" IN (4, 5)'
    assert said(LessThan(("ended_at",), at("02-01 12:00")), "sqlite") == "j.\"ended_at\" < '2030-02-01 12:00:00'"
    assert said(GreaterThan(("topic",), "a")) is None, "each database has an order of its own for texts"
    assert said(EqualTo(("topic",), "nul\0")) is None
    assert said(EqualTo(("id",), None)) is None
    assert said(StringContains(("topic",), "a")) is None
    assert said(EqualTo(("body", "order"), 1)) is None
    assert said(EqualTo(("body",), '{"order":1}')) is None, "a jsonb is equal however its text is spaced"


def test_one_run_at_a_time_has_the_database(database: Database) -> None:
    with database.alone("archive"):
        with pytest.raises(Busy, match="Another archive of"), database.alone("archive"):
            pass
        with database.alone("report"):
            pass
    with database.alone("archive"):
        pass


@pytest.fixture
def tenant(database: Database) -> Iterator[Database]:
    """The same database by an alias whose OPTIONS name a schema, in which there is a table of jobs alone."""
    options = {"options": "-c search_path=tenant"}
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant CREATE TABLE delaytasks_job (LIKE public.delaytasks_job)")
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(connection.settings_dict, "OPTIONS", options)
            yield Database(**database_of("default"))
        cursor.execute("DROP SCHEMA tenant CASCADE")


@pytest.mark.only_on("postgresql")
def test_tables_are_those_of_the_schema_that_the_alias_names_and_one_that_has_none_is_told(
    spark: Any, database: Database, tenant: Database, job: Callable[..., Job]
) -> None:
    job("order:1")
    counts = [sources.read(spark, snapshot.Snapshot(each, 0, 0, 0), "jobs").count() for each in (database, tenant)]
    assert counts == [1, 0]
    with database.connect() as one, tenant.connect() as other:
        assert identity.differ(identity.of(database, one), identity.of(tenant, other))
    with pytest.raises(PySparkException) as raised:
        sources.read(spark, snapshot.Snapshot(tenant, 0, 0, 0), "events").count()
    missing = r'relation "delaytasks_jobevent" does not exist\. Run manage\.py migrate, or name the tables\' schema'
    assert re.search(missing, causes.told(raised.value)[1])
    with pytest.raises(NotAllowed, match=missing), tenant.connect() as connected:
        connected.execute("SELECT FROM delaytasks_jobevent")


@pytest.mark.only_on("postgresql")
def test_who_keeps_others_away_may_say_nothing_for_longer_than_others_may(reader: Database) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER ROLE delaytasks_reader SET idle_session_timeout = 2000")
    with reader.alone("load") as still, reader.connect() as other:
        other.autocommit = True
        (pid,) = other.execute("SELECT pg_backend_pid()").fetchone()
        wait_until(lambda: pid not in backends(), seconds=10, what="the end of one that says nothing")
        still()
        with pytest.raises(Busy), reader.alone("load"):
            pass


def backends() -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity")
        return {pid for (pid,) in cursor.fetchall()}


def test_a_database_that_is_not_there_is_named_without_its_password(tmp_path: Any) -> None:
    gone = Database("postgresql", "shop", host=str(tmp_path), user="me", password="hush")
    for each in (gone, Database("sqlite", str(tmp_path / "none.sqlite3"))):
        with pytest.raises(DatabaseAway, match="does not answer") as raised, each.connect():
            pass
        assert "hush" not in f"{raised.value} {each!r}"
    assert not (tmp_path / "none.sqlite3").exists()
