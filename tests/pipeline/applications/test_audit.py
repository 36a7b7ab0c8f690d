"""The audit: finds missing, surplus, late and lost jobs of business rows."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from pyarrow import parquet

import delaytasks
from delaytasks import Calendar
from delaytasks.calendars import registry
from delaytasks.db import dialects, transitions
from delaytasks.management.subcommands.pipeline import audit as verb
from delaytasks.management.subcommands.pipeline import load as load_verb
from delaytasks.models import Job, Topic, Touch
from delaytasks.outcomes import ErrorCode
from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline.applications import archive, audit, load
from delaytasks.pipeline.config import Settings
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.rules import business
from delaytasks.pipeline.rules.rules import BadRule, Rule, rules_of
from delaytasks.pipeline.sources import exports, snapshot
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables import delta, dimensions, history
from delaytasks.pipeline.tables.lake import VERSION, Lake, LakeError
from delaytasks.pipeline.tables.row_counts import RowsLost
from delaytasks.pipeline.transforms import promises
from delaytasks.states import Outcome, State

from ..conftest import at, happened

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
    " weight double precision, day date, gift boolean, tags jsonb",
    "sqlite": "id bigint PRIMARY KEY, placed_at datetime, status varchar(20), lines integer unsigned, total decimal,"
    ' weight real, day date, gift bool, tags text CHECK ((JSON_VALID("tags") OR "tags" IS NULL))',  # a JSONField
}


def rule(**changed: Any) -> Rule:
    given = {name: value for name, value in {**RULE, **changed}.items() if value is not None}
    return rules_of("audit.toml", [given])[0]


@pytest.fixture
def order(database: Database) -> Iterator[Callable[..., None]]:
    """Insert an order, two hours old."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE audit_order ({COLUMNS[connection.vendor]})")

    def make(number: int, status: str | None = "open", **more: Any) -> None:
        values = {"id": number, "placed_at": dialects.database_now("default") - timedelta(hours=2), "status": status}
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
    """Insert an order's job, due 90 minutes ago; `late_ms` for each attempt."""

    def make(number: int, state: State = State.FINISHED, *late_ms: int, **columns: Any) -> Job:
        due_at = columns.pop("due_at", dialects.database_now("default") - timedelta(minutes=90))
        row = job(f"order:{number}", state=state, due_at=due_at, **columns)
        for late in late_ms:
            happened(row, Outcome.FINISHED, due_at + timedelta(seconds=1), late_ms=late)
        return row

    return make


def counts(answer: dict[str, Any], place: int = 0) -> dict[str, int]:
    found = answer["rules"][place]["classes"].items()
    return {name: each["count"] for name, each in found if each["count"]}


def test_an_audit_does_not_read_archived_files_of_other_topics(
    spark: Any, database: Database, lake: Lake, promise: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    promise(1, topic="refund.ask")
    archive.run(spark, database, lake, older_than_days=0)
    promise(2)
    archive.run(spark, database, lake, older_than_days=0)
    promise(3)
    real, planned = delta.read, []
    monkeypatch.setattr(delta, "read", lambda *args: planned.extend(args[2]) or real(*args))
    with snapshot.take(database) as taken:
        jobs = history.jobs(spark, taken, lake, promises.JOBS, "order.close")
        history.job_events(spark, taken, lake, promises.EVENTS, "order.close")
        assert sorted(row.key for row in jobs.collect()) == ["order:2", "order:3"]
    assert [each.partition for each in planned] == ["order.close"], "there are no events"


@pytest.mark.only_on("sqlite")
def test_the_name_of_the_lakes_folder_is_no_pattern(
    spark: Any, database: Database, tmp_path: Path, order: Any, promise: Callable[..., Job]
) -> None:
    lake = Lake(str(tmp_path / "lake [1]{2}"))
    for number in (1, 2):
        order(number)
        promise(number, State.FINISHED, 3)
        assert archive.run(spark, database, lake, older_than_days=0)["jobs"] == 1
    assert counts(audit.run(spark, database, lake, file="audit.toml", rules=[RULE])) == {"kept": 2}


@pytest.mark.on_both
def test_a_job_that_expired_is_late_from_the_table_and_from_the_archive(
    spark: Any, database: Database, lake: Lake, order: Any, promise: Callable[..., Job]
) -> None:
    order(1, "paid")
    row = promise(1, State.CANCELLED, attempt=1)
    happened(row, Outcome.SKIPPED, row.ended_at, late_ms=900, error=ErrorCode.TOO_LATE)
    for _ in range(2):
        answer = audit.run(spark, database, lake, file="audit.toml", rules=[{**RULE, "outcome": "status = 'paid'"}])
        (late,) = answer["rules"][0]["classes"]["late"]["samples"]
        assert (late["key"], late["late_ms"], late["begun_at"], late["outcome"]) == ("order:1", 900, None, None)
        archive.run(spark, database, lake, older_than_days=0)


@pytest.mark.on_both
def test_each_order_gets_the_right_class(
    spark: Any, database: Database, lake: Lake, order: Any, promise: Callable[..., Job]
) -> None:
    now = dialects.database_now("default")
    for number in (1, 2, 3, 4, 5, 6, 7, 9, 13):
        order(number)
    order(8, placed_at=now + timedelta(minutes=30))
    order(10, "draft")  # should have none, and has none
    order(11, "paid")
    order(12, None)
    promise(1, State.FINISHED, 3)
    promise(5, State.FINISHED, 5_001)
    promise(11, State.CANCELLED)  # was paid: for a reason
    promise(13, State.FINISHED, 3)
    archive.run(spark, database, lake, older_than_days=0)
    promise(3, State.FINISHED, 3, 4)
    promise(4, State.FINISHED, -1)
    promise(6, State.CANCELLED)
    promise(7, State.DEAD)
    promise(8, State.DELAYED, due_at=now + timedelta(hours=1))
    promise(9, State.DELAYED)  # overdue
    promise(13, State.FINISHED, 3)  # as one that the archive has
    promise(99, State.FINISHED, 3)
    lake.write("audit/killed/1/classes/class=late/half.parquet", b"")
    given = [RULE, {**RULE, "name": "all may be", "may": ["missing", "orphan", "twice", "called_off", "died", "early",
                                                          "late"]}]  # fmt: skip
    answer = audit.run(spark, database, lake, file="audit.toml", rules=given)
    first, second = answer["rules"]

    assert (first["rows"], first["jobs"], first["topic"]) == (11, 12, "order.close")
    assert {name: [each["key"] for each in about["samples"]] for name, about in first["classes"].items()} == {
        "missing": ["order:2"], "orphan": ["order:99"], "twice": ["order:13", "order:3"], "early": ["order:4"],
        "late": ["order:5", "order:9"], "called_off": ["order:6"], "died": ["order:7"],
        "open": ["order:8"], "kept": ["order:1", "order:11"],
    }  # fmt: skip
    assert answer["refused"] == (
        "orders close: 1 missing, 1 orphan, 2 twice, 1 called_off, 1 died, 1 early, 2 late.")  # fmt: skip
    assert [name for name, each in first["classes"].items() if not each["must_be_empty"]] == ["open", "kept"]
    assert counts(answer, 1) == counts(answer)
    assert not any(each["must_be_empty"] for each in second["classes"].values())
    (early,) = first["classes"]["early"]["samples"]
    row = Job.objects.get(key="order:4")
    assert (early["job_id"], early["due_at"]) == (row.pk, f"{row.due_at:%Y-%m-%dT%H:%M:%S}.{row.due_at:%f}"[:23] + "Z")

    missing = spark.read.parquet(first["missing"])
    assert missing.dtypes == [("topic", "string"), ("key", "string"), ("due_at", "timestamp")]
    ((topic, key, due_at),) = missing.collect()
    assert (topic, key) == ("order.close", "order:2")
    assert abs(due_at.astimezone(UTC) - (now - timedelta(minutes=90))) < timedelta(seconds=30)
    found = spark.read.schema(promises.CLASSIFIED).parquet(first["folder"])
    assert {(row.key, row["class"]) for row in found.collect()} >= {("order:2", "missing"), ("order:11", "kept")}
    (run,) = lake.document(audit.DOCUMENT)["runs"]
    assert lake.runs("audit") == sorted([run["folder"], dimensions.NAME]), "what a killed run left is gone"
    assert lake.path(run["rules"][0]["missing"]) == first["missing"]


@pytest.mark.on_both
def test_the_lease_of_a_touched_job_and_the_start_of_a_fenced_one_count(
    spark: Any, database: Database, lake: Lake, order: Any, promise: Callable[..., Job]
) -> None:
    now = dialects.database_now("default")
    for number, attempt in ((1, 1), (2, 0)):  # order 2 was touched by an earlier attempt
        order(number)
        touched = promise(number, State.RESERVED, lease_until=now - timedelta(minutes=80))
        Touch.objects.create(job_id=touched.pk, attempt=attempt, lease_until=now + timedelta(minutes=1))
    order(3, "paid")
    begun = promise(3, State.RESERVED, reserved_at=now - timedelta(minutes=80), fenceable=True)
    assert transitions.fence("default", begun.pk)

    answer = audit.run(spark, database, lake, file="audit.toml", rules=[RULE])
    classes = answer["rules"][0]["classes"]
    assert {name: [each["key"] for each in about["samples"]] for name, about in classes.items() if about["count"]} == {
        "late": ["order:2", "order:3"], "open": ["order:1"]}  # fmt: skip


def test_rows_and_jobs_come_from_one_snapshot(
    spark: Any, database: Database, lake: Lake, order: Any, job: Callable[..., Job], settings: Any
) -> None:
    def place(number: int) -> None:
        with transaction.atomic():
            order(number, placed_at=dialects.database_now("default"))
            delaytasks.schedule("order.close", key=f"order:{number}", delay=1800)

    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"order.close": {}}}
    place(1)  # in the last moment before
    with snapshot.take(database) as taken:
        place(2)
        order(3)
        with transaction.atomic():
            Job.objects.filter(key="order:1")._raw_delete("default")
        found = audit.classify(spark, taken, lake, rule())[0].collect()

    assert [(row.key, row["class"]) for row in found] == [("order:1", "open")]


def test_a_job_that_was_made_and_archived_after_the_snapshot_is_no_orphan(
    spark: Any, database: Database, lake: Lake, order: Any, promise: Callable[..., Job]
) -> None:
    with snapshot.take(database) as taken:
        promise(1, State.FINISHED, 3, created_at=dialects.database_now("default"))
        assert archive.run(spark, database, lake, older_than_days=0)["pruned"] == 1
        assert audit.classify(spark, taken, lake, rule())[0].collect() == []


@pytest.mark.on_both
def test_columns_of_each_type_are_read_as_declared(spark: Any, database: Database, order: Any) -> None:
    order(1, None, placed_at=None)
    order(2, "", placed_at=at("02-01 12:00:00.123"), lines=3, total="19.90", weight=0.5, day="2030-02-01", gift=True)
    order(3, "it's 张", placed_at=at("02-01 12:00"), lines=-1, total="20", weight=2.0, day="1999-12-31", gift=False)
    with snapshot.take(database) as taken:
        rows = business.rows(spark, taken, rule(columns=ALL))[0].orderBy("id").collect()
        texts = rule(columns={"total": "string", "status": "string"})
        (as_text,) = business.rows(spark, taken, texts)[0].where("status = ''").collect()

    first, second, third = (tuple(row) for row in rows)
    assert first == (1, *[None] * 7)
    assert second[1].astimezone(UTC) == at("02-01 12:00:00.123")
    assert second[2:] == ("", 3, Decimal("19.90"), 0.5, date(2030, 2, 1), True)
    assert third[2:] == ("it's 张", -1, Decimal("20.00"), 2.0, date(1999, 12, 31), False)
    assert Decimal(as_text.total) == Decimal("19.9")


@pytest.mark.on_both
def test_mismatches_between_a_rule_and_its_table_are_named(
    spark: Any, database: Database, lake: Lake, order: Any
) -> None:
    order(1, "seven")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE audit_keyed (code text PRIMARY KEY)")
    wrong: dict[str, dict[str, Any]] = {
        r"audit.toml, rule 1 \(orders close\), table: .* has no table 'audit_gone'": {"table": "audit_gone"},
        "table: audit_keyed has no integer column id": {"table": "audit_keyed"},
        "columns: audit_order has no column colour; its columns are day, gift, id, lines, placed_at,": {
            "columns": {"colour": "string"}},
        "columns: status is (text|varchar) in audit_order, which cannot be read as bigint": {
            "columns": {"status": "bigint"}},
        "columns: total is (numeric|decimal) in audit_order, which cannot be read as double": {
            "columns": {"total": "double"}},
        "carry: tags is jsonb? in audit_order, which is nested": {
            "columns": {**ALL, "tags": "string"}, "carry": ["status", "tags"]},
    }  # fmt: skip
    try:
        with snapshot.take(database) as taken:
            for message, changed in wrong.items():
                with pytest.raises(BadRule, match=message):
                    business.rows(spark, taken, rule(**changed))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE audit_keyed")
    with pytest.raises(
        BadRule, match=r"since, delay, when, holds, outcome: an expression fails on a row: The value 'seven'"
    ):
        audit.run(spark, database, lake, file="audit.toml", rules=[{**RULE, "when": "cast(status AS int) = 7"}])
    order(2)
    order(3, "draft")  # requires no job
    with pytest.raises(BadRule, match=r"key: it is not unique for 2 rows of audit_order .*, such as 'order'\."):
        audit.run(spark, database, lake, file="audit.toml", rules=[{**RULE, "key": "'order'"}])
    assert lake.runs("audit") == []
    assert lake.document(audit.DOCUMENT) == {}


@pytest.mark.on_both
def test_a_view_with_rows_without_an_id_is_refused(spark: Any, database: Database, order: Any) -> None:
    order(1)
    order(2, "lost")
    with connection.cursor() as cursor:
        cursor.execute("""CREATE VIEW audit_view AS SELECT found.id, placed.placed_at, placed.status FROM audit_order
            AS placed LEFT JOIN audit_order AS found ON found.id = placed.id AND found.status = 'open'""")
    try:
        with (
            snapshot.take(database) as taken,
            pytest.raises(BadRule, match="table: audit_view has 1 rows whose id is null, which cannot be read"),
        ):
            business.rows(spark, taken, rule(table="audit_view"))
        with connection.cursor() as cursor:
            cursor.execute("UPDATE audit_order SET status = 'open'")
        with snapshot.take(database) as taken:
            assert [business.rows(spark, taken, rule(table=name))[1] for name in ("audit_order", "audit_view")] == [
                2, None], "the rows of a view may depend on the time"  # fmt: skip
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP VIEW audit_view")


@pytest.mark.only_on("sqlite")
def test_a_table_is_counted_beside_a_trigger_of_its_name(database: Database, order: Any) -> None:
    order(1)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TRIGGER audit_order AFTER DELETE ON audit_order BEGIN SELECT 1; END")
    with snapshot.take(database) as taken:
        assert business._check_table(taken, rule()) == 1


@pytest.mark.only_on("postgresql")
def test_rows_of_a_foreign_partition_are_not_counted(database: Database, transactional_db: None) -> None:
    """They are not in the snapshot, so that a count could differ from what is read."""
    is_table = []
    with connection.cursor() as cursor:
        for sql in (
            "CREATE TABLE audit_parted (id bigint) PARTITION BY RANGE (id)",
            "CREATE TABLE audit_part PARTITION OF audit_parted FOR VALUES FROM (0) TO (9)",
            "CREATE FOREIGN DATA WRAPPER audit_wrapper",
            "CREATE SERVER audit_server FOREIGN DATA WRAPPER audit_wrapper",
            "CREATE FOREIGN TABLE audit_far PARTITION OF audit_parted FOR VALUES FROM (9) TO (10) SERVER audit_server",
        ):
            cursor.execute(sql)
            with snapshot.take(database) as taken:
                is_table += [value for (value,) in taken.query(business.IS_TABLE["postgresql"], ["audit_parted"])]
        cursor.execute("DROP TABLE audit_parted")
        cursor.execute("DROP FOREIGN DATA WRAPPER audit_wrapper CASCADE")
    assert is_table == [True, True, True, True, False]


@pytest.mark.on_both
def test_a_value_that_does_not_fit_its_column_is_refused(
    spark: Any, database: Database, lake: Lake, order: Any
) -> None:
    order(1, total="NaN" if connection.vendor == "postgresql" else "much")
    with pytest.raises(BadRule, match=r"columns: a value of total in audit_order cannot be read as decimal\(10, 2\)\."):
        audit.run(spark, database, lake, file="audit.toml", rules=[{**RULE, "columns": ALL, "when": "total > 0"}])
    assert lake.runs("audit") == []


@pytest.mark.only_on("sqlite")
def test_rows_that_are_not_read_are_missed_and_nothing_is_published(
    spark: Any, database: Database, lake: Lake, order: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing job is a fault only if its row is read."""
    order(1, "draft")
    order(2)
    of_files = {**RULE, "parquet": str(tmp_path / "orders.parquet")}
    del of_files["table"]
    wrote(tmp_path / "orders.parquet", (1, at("02-01 12:00"), "draft"), (2, at("02-01 12:00"), "open"))
    wrote(tmp_path / "later.parquet", (1, at("02-01 12:00"), "draft"))
    real = business.rows

    def changed(*given: Any) -> Any:
        found, number = real(*given)
        if (tmp_path / "later.parquet").exists():
            (tmp_path / "later.parquet").rename(tmp_path / "orders.parquet")
        return (found.where("id = 1") if given[2].table else found), number

    monkeypatch.setattr(business, "rows", changed)
    for given, source in ((of_files, "orders.parquet"), (RULE, "audit_order")):
        with pytest.raises(RowsLost, match=rf"^Only 1 of 2 rows can be read in .*{source}\. Nothing was published\."):
            audit.run(spark, database, lake, file="audit.toml", rules=[given])
    assert (lake.document(audit.DOCUMENT), lake.runs("audit")) == ({}, [])


@pytest.mark.only_on("sqlite")
def test_jobs_that_are_not_read_are_missed_and_nothing_is_published(
    spark: Any, database: Database, lake: Lake, order: Any, promise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of a row are a fault only if both are read."""
    order(1)
    for _ in range(2):
        promise(1)
    jobs = audit.history.jobs
    monkeypatch.setattr(audit.history, "jobs", lambda *given: jobs(*given).limit(1))
    with pytest.raises(RowsLost, match=r"^Only 1 of 2 rows can be read in delaytasks_job\. Nothing was published\."):
        audit.run(spark, database, lake, file="audit.toml", rules=[RULE])
    assert (lake.document(audit.DOCUMENT), lake.runs("audit")) == ({}, [])


@pytest.mark.only_on("postgresql")
def test_a_time_that_no_calendar_has_is_refused_with_its_key(
    spark: Any, database: Database, lake: Lake, order: Any
) -> None:
    order(1)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO audit_order (id, placed_at, status) VALUES (2, 'infinity', 'open')")
    with pytest.raises(BadRule, match=r"delay: it leads to no due time .* for 1 rows of .*, such as 'order:2'\."):
        audit.run(spark, database, lake, file="audit.toml", rules=[RULE])


@pytest.mark.only_on("postgresql")
def test_infinite_times_of_a_table_are_later_or_earlier_than_all_others(
    spark: Any, database: Database, order: Any
) -> None:
    order(1, placed_at=None, day=None)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO audit_order (id, placed_at, day) VALUES (2, 'infinity', 'infinity'), (3, '-infinity', "
            "'-infinity'), (4, '2030-02-01Z', '2030-02-01')"
        )
    with snapshot.take(database) as taken:
        rows, _ = business.rows(spark, taken, rule(columns={"id": "bigint", "placed_at": "timestamp", "day": "date"}))
        years = rows.orderBy("id").selectExpr("year(placed_at)", "year(day)").collect()
        later = rows.where("placed_at > current_timestamp()").count()

    assert list(map(tuple, years)) == [(None, None), (9999, 9999), (1, 1), (2030, 2030)]
    assert later == 2


@pytest.mark.only_on("sqlite")
def test_a_delay_in_days_follows_the_zones_clocks_and_a_bad_delay_is_refused_by_row(
    spark: Any, database: Database, lake: Lake, order: Any, job: Callable[..., Job]
) -> None:
    paid_by = {1: ("2020-02-01T12:00Z", "2020-04-01T11:00Z"), 2: ("2020-09-01T10:00Z", "2020-10-31T11:00Z")}
    for number, times in paid_by.items():
        placed_at, due_at = map(datetime.fromisoformat, times)
        order(number, placed_at=placed_at, lines=60)
        happened(job(f"order:{number}", state=State.FINISHED, due_at=due_at), Outcome.FINISHED, due_at)
    fine = {**RULE, "columns": ALL, "delay": "60 days", "zone": "Europe/Rome"}
    del fine["delay_seconds"]
    answer = audit.run(spark, database, lake, file="audit.toml", rules=[fine])
    assert counts(answer) == {"kept": 2}, "60 * 86400 seconds make the first early and the second late"

    order(3, placed_at=placed_at)
    by_row = {**fine, "delay": "cast(lines as interval day)"}
    with pytest.raises(BadRule, match=r"delay: it is null for 1 rows of audit_order that .* job, such as 'order:3'\."):
        audit.run(spark, database, lake, file="audit.toml", rules=[by_row])
    by_calendar = {name: value for name, value in fine.items() if name != "zone"} | {"calendar": "office"}
    with pytest.raises(BadRule, match=r"calendar: the run was started without the calendar 'office'"):
        audit.run(spark, database, lake, file="a.toml", rules=[by_calendar])


@pytest.mark.only_on("postgresql")
def test_a_database_that_refuses_logins_is_reported_and_nothing_is_published(
    spark: Any, database: Database, lake: Lake, order: Any, reader: Database, monkeypatch: Any, capsys: Any
) -> None:
    order(1)
    real = audit.classify

    def disturbed(*given: Any) -> Any:
        found = real(*given)
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER ROLE {reader.user} NOLOGIN")  # whoever is in stays in: the snapshot holds
        return found

    monkeypatch.setattr(audit, "classify", disturbed)
    monkeypatch.setattr(
        run, "run_application", lambda *given: audit.run(spark, reader, lake, file="audit.toml", rules=[RULE])
    )
    code = run.main(["audit"], Settings(reader, lake.root).environment())

    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["error"]) == (ExitCode.COULD_NOT_RUN, "DatabaseUnavailable")
    assert "not permitted to log in" in answer["message"]
    assert answer["message"].endswith("Run this again when the database is back.")
    assert (lake.document(audit.DOCUMENT), lake.runs("audit")) == ({}, [])


def test_a_document_of_a_newer_format_is_refused_before_anything_is_read(spark: Any, lake: Lake) -> None:
    lake.publish(audit.DOCUMENT, {"version": VERSION + 1})
    with pytest.raises(LakeError, match=r"audit\.json was written by a newer delaytasks"):
        audit.run(spark, Database("sqlite", "/nowhere"), lake, file="audit.toml", rules=[RULE])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"when": "status = = 'x'"}, r"when: \"status = = 'x'\" is not a valid expression: Syntax error"),
        ({"key": "concat('order:', number)"}, r"key: .* is not a valid expression: .*`number` cannot be resolved"),
        ({"when": "status"}, r"when: 'status' is string, but must be boolean\."),
        ({"since": "id"}, r"since: 'id' is bigint, but must be timestamp\."),
        ({"key": "placed_at"}, r"key: 'placed_at' is timestamp, but must be string or smallint or int or bigint\."),
        ({"when": "count(*) > 1"}, "when: .* is not a valid expression"),
        ({"holds": "nosuch(id)"}, "holds: .* is not a valid expression"),
        ({"delay": "grace"}, "delay: 'grace' is not a valid expression: .*`grace` cannot be resolved"),
        ({"delay": "id days"}, "delay: 'id days' is not a valid expression: Syntax error"),
        ({"delay": "status"}, "delay: 'status' is string, but must be a number of seconds or an interval"),
        ({"delay": "placed_at"}, "delay: 'placed_at' is timestamp: give a number of seconds or an interval of days"),
        ({"delay": "id * 86400", "zone": "Europe/Rome"}, r"zone: it has no meaning for 'id \* 86400', a number of sec"),
        ({"delay": "id * interval 1 day", "calendar": "x"}, "it cannot mix days and hours"),
        ({"when": "id IN (SELECT id FROM elsewhere)"}, "when: .* is not a valid expression"),
        ({"when": "begun_at IS NULL"}, "when: .* is not a valid expression: .*`begun_at` cannot be resolved"),
        ({"outcome": "payed_at < begun_at"}, "outcome: .* is not a valid expression: .*`payed_at` cannot be resolved"),
        ({"outcome": "`by key`.jobs > 0"}, "outcome: .* is not a valid expression"),
        ({"outcome": "begun_at"}, r"outcome: 'begun_at' is timestamp, but must be boolean\."),
        ({"outcome": "null"}, r"outcome: 'null' is void, but must be boolean\."),
        ({"outcome": "max(begun_at) > placed_at"}, "outcome: .* is not a valid expression"),
    ],
)
def test_an_invalid_expression_is_reported_in_one_sentence(spark: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRule, match=message) as raised:
        business.validate(spark, rule(**changed, **({"delay_seconds": None} if "delay" in changed else {})))
    assert "\n" not in str(raised.value)
    assert "SQLSTATE" not in str(raised.value)


ORDERS = pa.schema([("id", pa.int64()), ("placed_at", pa.timestamp("us", "UTC")), ("status", pa.string())])


def wrote(path: Path, *rows: tuple[Any, ...], schema: pa.Schema = ORDERS, **options: Any) -> None:
    columns = [pa.array([row[n] for row in rows], each.type) for n, each in enumerate(schema)]
    parquet.write_table(pa.Table.from_arrays(columns, schema=schema), path, **options)


def test_parquet_may_be_a_file_a_folder_or_a_pattern_and_may_be_empty(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "_temporary").mkdir()
    wrote(tmp_path / "_temporary" / "half.parquet", (9, None, None))
    wrote(tmp_path / "a.parquet", (1, at("02-01 12:00"), "open"), (2, None, None))
    wrote(tmp_path / "b.parquet", (3, at("02-01 12:00"), "open"))
    wrote(tmp_path / "none.parquet")
    (tmp_path / "more").mkdir()
    wrote(tmp_path / "more" / "c.PQ", (4, None, None))

    def ids(name: str) -> list[int]:
        found = rule(table=None, parquet=str(tmp_path / name))
        rows, number = business.rows(spark, None, found)  # type: ignore[arg-type]
        found_ids = sorted(row.id for row in rows.collect())
        assert len(found_ids) == number
        return found_ids

    assert [ids(name) for name in ("", "a.parquet", "[ab].parquet", "none.parquet")] == [
        [1, 2, 3, 4], [1, 2], [1, 2, 3], []]  # fmt: skip


def test_the_name_of_a_parquet_file_is_no_pattern(spark: Any, tmp_path: Path) -> None:
    names = ("a1", "a[1]", "a{1,2}", "a2", "a*", "a?", "a 1%20+#")
    for number, name in enumerate(names):
        wrote(tmp_path / f"{name}.parquet", (number, None, None))
    found, _ = business.rows(spark, None, rule(table=None, parquet=str(tmp_path)))  # type: ignore[arg-type]
    assert sorted(row.id for row in found.collect()) == list(range(len(names)))
    one, _ = business.rows(spark, None, rule(table=None, parquet=str(tmp_path / "a[[]1].parquet")))  # type: ignore[arg-type]
    assert [row.id for row in one.collect()] == [1]


def test_parquet_may_have_timestamps_in_nanoseconds_and_int96(spark: Any, tmp_path: Path) -> None:
    nanos = ORDERS.set(1, pa.field("placed_at", pa.timestamp("ns", "UTC")))
    wrote(tmp_path / "a.parquet", (1, at("02-01 12:00"), "open"))
    wrote(tmp_path / "b.parquet", (2, 1_234_567_891_999, "open"), (3, -1_001, None), (4, None, "paid"), schema=nanos)
    wrote(tmp_path / "c.parquet", (5, at("02-01 12:00"), None), use_deprecated_int96_timestamps=True)

    found, _ = business.rows(spark, None, rule(table=None, parquet=str(tmp_path)))  # type: ignore[arg-type]
    micros = found.orderBy("id").selectExpr("id", "unix_micros(placed_at)", "status").collect()
    noon = round(at("02-01 12:00").timestamp() * 1_000_000)
    assert list(map(tuple, micros)) == [
        (1, noon, "open"), (2, 1_234_567_891, "open"), (3, -2, None), (4, None, "paid"), (5, noon, None)]  # fmt: skip


def test_parquet_may_have_texts_as_categories_and_in_other_types_of_arrow(spark: Any, tmp_path: Path) -> None:
    texts = (pa.string(), pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.string_view())
    for number, kind in enumerate(texts):
        statuses = pa.array(["open"]).cast(kind)
        parquet.write_table(pa.table({"id": [number], "status": statuses}), tmp_path / f"{number}.parquet")
    given = rule(table=None, parquet=str(tmp_path), columns={"id": "bigint", "status": "string"}, since="now()")
    found, number = business.rows(spark, None, given)  # type: ignore[arg-type]
    assert sorted(map(tuple, found.collect())) == [(n, "open") for n in range(number)]


@pytest.mark.parametrize(
    ("stored", "declared", "largest"),
    [
        ("uint8", "smallint", 2**8 - 1), ("uint8", "bigint", 2**8 - 1), ("uint16", "int", 2**16 - 1),
        ("uint32", "bigint", 2**32 - 1), ("uint64", "decimal(20, 0)", 2**64 - 1), ("float", "double", 0.5),
    ],
)  # fmt: skip
def test_parquet_may_have_unsigned_integers_and_floats_of_32_bits(
    spark: Any, tmp_path: Path, stored: str, declared: str, largest: float
) -> None:
    numbers = pa.array([largest, None], pa.type_for_alias(stored))
    parquet.write_table(pa.table({"id": numbers}), tmp_path / "x.parquet")
    given = rule(table=None, parquet=str(tmp_path), columns={"id": declared}, since="now()", when=None, holds=None)
    found, _ = business.rows(spark, None, given)  # type: ignore[arg-type]
    assert [row.id for row in found.collect()] == [largest, None]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.parquet", "parquet: .*gone.parquet does not exist"),
        ("gone/*.parquet", r"parquet: .*gone/\*.parquet does not exist"),
        ("empty", "parquet: .*empty contains no Parquet file"),
        ("text.parquet", "parquet: .*text.parquet cannot be read as Parquet: "),
        ("nothing.parquet", "parquet: .*nothing.parquet cannot be read as Parquet: "),
        ("short.parquet", "columns: .*short.parquet has no column placed_at; its columns are id, status"),
        ("nested.parquet", "columns: status is struct<name: string> in .*nested.parquet, which cannot be read as str"),
        ("text_id.parquet", "columns: id is string in .*text_id.parquet, which cannot be read as bigint"),
        ("unsigned.parquet", "columns: id is uint64 in .*unsigned.parquet, which cannot be read as bigint"),
        ("zoneless.parquet", r"columns: placed_at is timestamp\[us\] in .*, which cannot be read as timestamp"),
        ("nanos.parquet", r"columns: placed_at is timestamp\[ns\] in .*, which cannot be read as timestamp"),
        ("two", "columns: .*two/short.parquet has no column placed_at"),
        ("unnamed", r"parquet: .*unnamed/part-0 is a Parquet file, but its name does not end with .parquet or .pq\."),
        ("case.parquet", "columns: .*case.parquet has the columns STATUS, status, which Spark takes for"),
    ],
)
def test_parquet_files_that_do_not_fit_the_rule_are_named(spark: Any, tmp_path: Path, name: str, message: str) -> None:
    for folder in ("empty", "two", "unnamed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "unnamed" / "readme.txt").touch()
    wrote(tmp_path / "unnamed" / "part-0")
    wrote(tmp_path / "unnamed" / "part-1.parquet")
    (tmp_path / "text.parquet").write_text("id,placed_at,status")
    (tmp_path / "nothing.parquet").touch()
    short = pa.schema([ORDERS.field("id"), ORDERS.field("status")])
    wrote(tmp_path / "two" / "good.parquet")
    for place in (tmp_path, tmp_path / "two"):
        wrote(place / "short.parquet", (1, "open"), schema=short)
    wrote(tmp_path / "nested.parquet", schema=ORDERS.set(2, pa.field("status", pa.struct({"name": pa.string()}))))
    wrote(tmp_path / "text_id.parquet", schema=ORDERS.set(0, pa.field("id", pa.string())))
    wrote(tmp_path / "unsigned.parquet", schema=ORDERS.set(0, pa.field("id", pa.uint64())))
    wrote(tmp_path / "zoneless.parquet", schema=ORDERS.set(1, pa.field("placed_at", pa.timestamp("us"))))
    wrote(tmp_path / "nanos.parquet", schema=ORDERS.set(1, pa.field("placed_at", pa.timestamp("ns"))))
    wrote(tmp_path / "case.parquet", schema=ORDERS.append(pa.field("STATUS", pa.string())))
    with pytest.raises(BadRule, match=message) as raised:
        business.rows(spark, None, rule(table=None, parquet=str(tmp_path / name)))  # type: ignore[arg-type]
    assert str(raised.value).startswith("audit.toml, rule 1 (orders close), ")


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), PermissionError("of another user")], ids=repr)
def test_a_file_of_a_folder_that_cannot_be_opened_is_named_unless_it_is_gone(error: OSError) -> None:
    files = Mock(**{"open_input_file.side_effect": error})
    if isinstance(error, FileNotFoundError):
        assert not exports._is_parquet(rule(), files, "/lake/part-0")
        return
    with pytest.raises(BadRule, match=r"/lake/part-0 cannot be read, .*: of another user\."):
        exports._is_parquet(rule(), files, "/lake/part-0")


TOML = """
[[rule]]
topic = "order.close"
parquet = "orders.parquet"
columns = { id = "bigint", placed_at = "timestamp" }
key = "concat('order:', id)"
since = "placed_at"
delay_seconds = 60
"""


def test_the_command_reports_faults_and_how_to_schedule_missing_jobs(
    spark: Any, database: Database, job: Callable[..., Job], tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    def ask(question: str, options: Any, using: str, arguments: Any, *progress: Any) -> Any:
        """Run in this process; test_command.py starts one."""
        run = {"audit": audit.run, "load": load.run}[question]
        message = run(spark, database, Lake(f"{options['lake']}/{using}"), **json.loads(json.dumps(arguments)))
        return json.loads(json.dumps(message))

    monkeypatch.setattr(verb, "run_application", ask)
    monkeypatch.setattr(load_verb, "run_application", ask)
    Topic.objects.get_or_create(name="order.close")
    wrote(tmp_path / "orders.parquet", (1, at("02-01 11:59"), ""), (2, at("02-01 12:00"), ""))
    job("order:1")
    file = tmp_path / "audit.toml"
    file.write_text(TOML)
    message = ["delaytasks", "pipeline", "audit", "--rule", str(file), "--lake", str(tmp_path / "lake")]
    with pytest.raises(CommandError) as raised:
        call_command(*message)

    assert (str(raised.value), raised.value.returncode) == ("order.close: 1 missing.", 1)
    text = capsys.readouterr().out
    (run,) = json.loads((tmp_path / "lake" / "default" / "audit.json").read_text())["runs"]
    folder = tmp_path / "lake" / "default" / run["rules"][0]["missing"]
    assert f"order.close: 2 rows of {tmp_path}/orders.parquet, 1 jobs of order.close" in text
    assert "missing        1  yes            order:2" in text
    assert f"manage.py delaytasks pipeline load {folder} --lake {tmp_path}/lake" in text
    assert [each.as_py() for each in parquet.read_table(folder)["key"]] == ["order:2"]

    (line,) = [line for line in text.splitlines() if line.startswith("to schedule the missing jobs: manage.py ")]
    call_command(*shlex.split(line.partition("manage.py ")[2]))
    assert list(Job.objects.values_list("key", "due_at").order_by("key"))[1:] == [("order:2", at("02-01 12:01"))]
    call_command(*message)  # nothing is wrong any more
    text = capsys.readouterr().out
    assert "missing        0" in text
    assert re.search(r"last audits: \S+ 0 % kept and 1 fault, \S+ 0 faults\n", text)

    file.write_text(TOML.replace("60", "'soon'"))
    with pytest.raises(CommandError, match="delay_seconds: 'soon' is invalid; expected a whole number") as raised:
        call_command(*message)
    assert raised.value.returncode == 2


@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
def test_the_command_passes_the_days_of_the_rules_calendars(tmp_path: Path, monkeypatch: Any) -> None:
    passed: list[dict[str, Any]] = []
    monkeypatch.setattr(verb, "run_application", lambda name, options, using, arguments: passed.append(arguments) or {
        "rules": [], "as_of": "", "page": "", "seconds": 0})  # fmt: skip
    Calendar("audited", tz="Europe/Rome", hours={"mon": "09:00-17:00"}, editable=False)
    file = tmp_path / "audit.toml"
    delay = 'delay = "8 hours"\ncalendar = "{}"'
    words = ["delaytasks", "pipeline", "audit", "--rule", str(file), "--lake", str(tmp_path)]
    try:
        file.write_text(TOML.replace("delay_seconds = 60", delay.format("audited")))
        call_command(*words)
        file.write_text(TOML.replace("delay_seconds = 60", delay.format("audit")))
        with pytest.raises(CommandError, match=r"rule 1, calendar: There is no calendar 'audit'\. .*audited") as raised:
            call_command(*words)
    finally:
        registry.unregister("audited")
    assert raised.value.returncode == 2
    assert passed[0]["calendars"]["audited"]["week"] == ["09:00-17:00", *[""] * 6]
