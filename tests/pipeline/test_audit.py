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
def test_each_order_is_in_the_class_that_names_what_became_of_its_promise(
    spark: Any, database: Database, lake: Lake, order: Any, promise: Callable[..., Job]
) -> None:
    now = dialect.database_now("default")
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
    found = spark.read.schema(classes.CLASSED).parquet(first["folder"])
    assert {(row.key, row["class"]) for row in found.collect()} >= {("order:2", "missing"), ("order:11", "kept")}
    (run,) = lake.document(audit.DOCUMENT)["runs"]
    assert run["folder"] == lake.runs("audit")[0]
    assert lake.path(run["rules"][0]["missing"]) == first["missing"]
    assert len(lake.runs("audit")) == 1, "what a killed run left is gone"


def test_rows_and_jobs_are_of_one_moment(
    spark: Any, database: Database, lake: Lake, order: Any, job: Callable[..., Job], settings: Any
) -> None:
    def place(number: int) -> None:
        with transaction.atomic():
            order(number, placed_at=dialect.database_now("default"))
            delaytasks.schedule("order.close", key=f"order:{number}", delay=1800)

    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"order.close": {}}}
    place(1)  # in the last moment before
    with snapshot.taken(database) as taken:
        place(2)
        order(3)
        with transaction.atomic():
            Job.objects.filter(key="order:1")._raw_delete("default")
        found = audit.classification(spark, taken, lake, rule()).collect()

    assert [(row.key, row["class"]) for row in found] == [("order:1", "open")]


@pytest.mark.on_both
def test_a_column_of_each_type_arrives_as_the_rule_says_nulls_first(spark: Any, database: Database, order: Any) -> None:
    order(1, None, placed_at=None)
    order(2, "", placed_at=at("02-01 12:00:00.123"), lines=3, total="19.90", weight=0.5, day="2030-02-01", gift=True)
    order(3, "it's 张", placed_at=at("02-01 12:00"), lines=-1, total="20", weight=2.0, day="1999-12-31", gift=False)
    with snapshot.taken(database) as taken:
        rows = business.rows(spark, taken, rule(columns=ALL)).orderBy("id").collect()
        texts = rule(columns={"total": "string", "status": "string"})
        (as_text,) = business.rows(spark, taken, texts).where("status = ''").collect()

    first, second, third = (tuple(row) for row in rows)
    assert first == (1, *[None] * 7)
    assert second[1].astimezone(UTC) == at("02-01 12:00:00.123")
    assert second[2:] == ("", 3, Decimal("19.90"), 0.5, date(2030, 2, 1), True)
    assert third[2:] == ("it's 张", -1, Decimal("20.00"), 2.0, date(1999, 12, 31), False)
    assert Decimal(as_text.total) == Decimal("19.9")


@pytest.mark.on_both
def test_what_a_rule_says_of_a_table_and_is_not_so_is_named(
    spark: Any, database: Database, lake: Lake, order: Any
) -> None:
    order(1, "seven")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE audit_keyed (code text PRIMARY KEY)")
    wrong: dict[str, dict[str, Any]] = {
        r"audit.toml, rule 1 \(orders close\), table: .* has no table 'audit_gone'": {"table": "audit_gone"},
        "table: audit_keyed has no whole-number id": {"table": "audit_keyed"},
        "columns: audit_order has no column colour; it has day, gift, id, lines, placed_at,": {
            "columns": {"colour": "string"}},
        "columns: status is (text|varchar) in audit_order, which cannot be read as bigint": {
            "columns": {"status": "bigint"}},
        "columns: total is (numeric|decimal) in audit_order, which cannot be read as double": {
            "columns": {"total": "double"}},
    }  # fmt: skip
    try:
        with snapshot.taken(database) as taken:
            for said, changed in wrong.items():
                with pytest.raises(BadRule, match=said):
                    business.rows(spark, taken, rule(**changed))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE audit_keyed")
    with pytest.raises(BadRule, match=r"since, when, holds: one of them fails on a row: The value 'seven'"):
        audit.run(spark, database, lake, file="audit.toml", rules=[{**RULE, "when": "cast(status AS int) = 7"}])
    order(2)
    with pytest.raises(BadRule, match=r"key: it gives the same key.*: 2 rows of audit_order .*, such as 'order'\."):
        audit.run(spark, database, lake, file="audit.toml", rules=[{**RULE, "key": "'order'"}])
    assert lake.runs("audit") == []
    assert lake.document(audit.DOCUMENT) == {}


@pytest.mark.only_on("postgresql")
def test_a_database_that_lets_nobody_in_any_more_is_a_sentence_and_nothing_is_published(
    spark: Any, database: Database, lake: Lake, order: Any, reader: Database, monkeypatch: Any, capsys: Any
) -> None:
    order(1)
    real = audit.classification

    def disturbed(*given: Any) -> Any:
        found = real(*given)
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER ROLE {reader.user} NOLOGIN")  # whoever is in stays in: the snapshot holds
        return found

    monkeypatch.setattr(audit, "classification", disturbed)
    monkeypatch.setattr(run, "ask", lambda *given: audit.run(spark, reader, lake, file="audit.toml", rules=[RULE]))
    code = run.main(["audit"], Settings(reader, lake.root).environment())

    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["error"]) == (run.REFUSED, "DatabaseAway")
    assert "not permitted to log in" in answer["message"]
    assert answer["message"].endswith("Nothing was published; run it again when the database is back.")
    assert (lake.document(audit.DOCUMENT), lake.runs("audit")) == ({}, [])


def test_a_document_of_a_newer_format_is_refused_before_anything_is_read(spark: Any, lake: Lake) -> None:
    lake.publish(audit.DOCUMENT, {"version": VERSION + 1})
    with pytest.raises(LakeError, match=r"audit\.json was written by a newer delaytasks"):
        audit.run(spark, Database("sqlite", "/nowhere"), lake, file="audit.toml", rules=[RULE])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"when": "status = = 'x'"}, r"when: \"status = = 'x'\" cannot be worked out: Syntax error"),
        ({"key": "concat('order:', number)"}, r"key: .* cannot be worked out: .*`number` cannot be resolved"),
        ({"when": "status"}, r"when: 'status' is string; boolean may stand there\."),
        ({"since": "id"}, r"since: 'id' is bigint; timestamp may stand there\."),
        ({"key": "placed_at"}, r"key: 'placed_at' is timestamp; string or smallint or int or bigint may stand there\."),
        ({"when": "count(*) > 1"}, "when: .* cannot be worked out"),
        ({"holds": "nosuch(id)"}, "holds: .* cannot be worked out"),
        ({"when": "id IN (SELECT id FROM elsewhere)"}, "when: .* cannot be worked out"),
    ],
)
def test_an_expression_of_no_use_is_one_sentence(spark: Any, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRule, match=said) as raised:
        business.understood(spark, rule(**changed))
    assert "\n" not in str(raised.value)
    assert "SQLSTATE" not in str(raised.value)


ORDERS = pa.schema([("id", pa.int64()), ("placed_at", pa.timestamp("us", "UTC")), ("status", pa.string())])


def wrote(path: Path, *rows: tuple[Any, ...], schema: pa.Schema = ORDERS) -> None:
    columns = [pa.array([row[n] for row in rows], each.type) for n, each in enumerate(schema)]
    parquet.write_table(pa.Table.from_arrays(columns, schema=schema), path)


def test_parquet_of_the_business_is_a_file_a_folder_or_a_pattern_and_may_be_empty(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "_temporary").mkdir()
    wrote(tmp_path / "_temporary" / "half.parquet", (9, None, None))
    wrote(tmp_path / "a.parquet", (1, at("02-01 12:00"), "open"), (2, None, None))
    wrote(tmp_path / "b.parquet", (3, at("02-01 12:00"), "open"))
    wrote(tmp_path / "none.parquet")

    def ids(name: str) -> list[int]:
        found = rule(table=None, parquet=str(tmp_path / name))
        return sorted(row.id for row in business.rows(spark, None, found).collect())  # type: ignore[arg-type]

    assert [ids(name) for name in ("", "a.parquet", "[ab].parquet", "none.parquet")] == [[1, 2, 3], [1, 2], [1, 2, 3],
                                                                                        []]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.parquet", "parquet: .*gone.parquet does not exist"),
        ("gone/*.parquet", r"parquet: .*gone/\*.parquet does not exist"),
        ("empty", "parquet: .*empty holds no Parquet file"),
        ("text.parquet", "parquet: .*text.parquet cannot be read as Parquet: "),
        ("nothing.parquet", "parquet: .*nothing.parquet cannot be read as Parquet: "),
        ("short.parquet", "columns: .*short.parquet has no column placed_at; it has id, status"),
        ("text_id.parquet", "columns: id is string in .*text_id.parquet, which cannot be read as bigint"),
        ("zoneless.parquet", r"columns: placed_at is timestamp\[us\] in .*, which cannot be read as timestamp"),
        ("nanos.parquet", r"columns: placed_at is timestamp\[ns, tz=UTC\] in .*, which cannot be read as timestamp"),
        ("two", "columns: .*two/short.parquet has no column placed_at"),
    ],
)
def test_parquet_that_is_not_as_the_rule_says_is_named(spark: Any, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "text.parquet").write_text("id,placed_at,status")
    (tmp_path / "nothing.parquet").touch()
    short = pa.schema([ORDERS.field("id"), ORDERS.field("status")])
    wrote(tmp_path / "two" / "good.parquet")
    for folder in (tmp_path, tmp_path / "two"):
        wrote(folder / "short.parquet", (1, "open"), schema=short)
    wrote(tmp_path / "text_id.parquet", schema=ORDERS.set(0, pa.field("id", pa.string())))
    wrote(tmp_path / "zoneless.parquet", schema=ORDERS.set(1, pa.field("placed_at", pa.timestamp("us"))))
    wrote(tmp_path / "nanos.parquet", schema=ORDERS.set(1, pa.field("placed_at", pa.timestamp("ns", "UTC"))))
    with pytest.raises(BadRule, match=said) as raised:
        business.rows(spark, None, rule(table=None, parquet=str(tmp_path / name)))  # type: ignore[arg-type]
    assert str(raised.value).startswith("audit.toml, rule 1 (orders close), ")


TOML = """
[[rule]]
topic = "order.close"
parquet = "orders.parquet"
columns = { id = "bigint", placed_at = "timestamp" }
key = "concat('order:', id)"
since = "placed_at"
delay_seconds = 60
"""


def test_the_command_says_what_is_wrong_and_how_to_schedule_what_is_missing(
    spark: Any, database: Database, job: Callable[..., Job], tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    def ask(question: str, options: Any, using: str, wishes: Any, *progress: Any) -> Any:
        """In this process; test_command.py has one of its own."""
        run = {"audit": audit.run, "load": load.run}[question]
        said = run(spark, database, Lake(f"{options['lake']}/{using}"), **json.loads(json.dumps(wishes)))
        return json.loads(json.dumps(said))

    monkeypatch.setattr(verb, "ask", ask)
    monkeypatch.setattr(load_verb, "ask", ask)
    Topic.objects.get_or_create(name="order.close")
    wrote(tmp_path / "orders.parquet", (1, at("02-01 11:59"), ""), (2, at("02-01 12:00"), ""))
    job("order:1")
    file = tmp_path / "audit.toml"
    file.write_text(TOML)
    said = ["delaytasks", "pipeline", "audit", "--rule", str(file), "--lake", str(tmp_path / "lake")]
    with pytest.raises(CommandError) as raised:
        call_command(*said)

    assert (str(raised.value), raised.value.returncode) == ("order.close: 1 missing.", 1)
    text = capsys.readouterr().out
    (run,) = json.loads((tmp_path / "lake" / "default" / "audit.json").read_text())["runs"]
    folder = tmp_path / "lake" / "default" / run["rules"][0]["missing"]
    assert f"order.close: 2 rows of {tmp_path}/orders.parquet, 1 jobs of order.close" in text
    assert "missing        1  yes            order:2" in text
    assert f"manage.py delaytasks pipeline load {folder} --lake {tmp_path}/lake" in text
    assert [each.as_py() for each in parquet.read_table(folder)["key"]] == ["order:2"]

    (line,) = [line for line in text.splitlines() if line.startswith("to schedule what is missing: manage.py ")]
    call_command(*shlex.split(line.partition("manage.py ")[2]))
    assert list(Job.objects.values_list("key", "due_at").order_by("key"))[1:] == [("order:2", at("02-01 12:01"))]
    call_command(*said)  # nothing is wrong any more
    assert "missing        0" in capsys.readouterr().out

    file.write_text(TOML.replace("60", "'soon'"))
    with pytest.raises(CommandError, match="delay_seconds: 'soon' was found; a whole number") as raised:
        call_command(*said)
    assert raised.value.returncode == 2
