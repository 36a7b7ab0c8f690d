"""The load: valid rows of a file, folder or query become jobs once; the others become rejects."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from delaytasks.db import dialects
from delaytasks.models import Job, LoadChunk
from delaytasks.pipeline.applications import load
from delaytasks.pipeline.config import BadSettings
from delaytasks.pipeline.sinks import ledger, staging
from delaytasks.pipeline.sources import files, query
from delaytasks.pipeline.sources.database import Busy, Database, DatabaseUnavailable
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.states import State

from ..conftest import at

LIMITS = {"topics": {"order.close": 30_000, "order.remind": 60_000}, "max_delay_seconds": 10**9,
          "max_body_bytes": 65_536}  # fmt: skip
MAPPING = {
    "topic": "order.close", "key": "concat('order:', id)", "since": "created",
    "delay": "try_cast(minutes as int) * 60", "ttr": "45",
    "body": {"order": "cast(id as bigint)", "shop": "shop"},
}  # fmt: skip
PLAIN: dict[str, Any] = {}


class Killed(BaseException):
    """Simulates SIGKILL: our code does not catch it."""


@pytest.fixture
def loaded(spark: Any, database: Database, lake: Lake) -> Callable[..., dict[str, Any]]:
    def run(source: Path | str = "", mapping: dict[str, Any] = PLAIN, **arguments: Any) -> dict[str, Any]:
        limits = {**LIMITS, "zone": arguments.pop("zone", "")}
        return load.run(spark, database, lake, source=str(source), mapping=mapping, limits=limits, **arguments)

    return run


def keys() -> list[str]:
    return sorted(Job.objects.values_list("key", flat=True))


def rejects(answer: dict[str, Any]) -> list[dict[str, Any]]:
    lines = [line for path in Path(answer["rejects"]).glob("*.json") for line in path.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda each: each["row"])


def promises(path: Path, *rows: dict[str, Any]) -> Path:
    """Write Parquet like an audit's missing jobs."""
    path.mkdir(parents=True, exist_ok=True)
    kinds = pyarrow.schema([("topic", pyarrow.string()), ("key", pyarrow.string()),
                            ("due_at", pyarrow.timestamp("us", "UTC"))])  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=kinds), path / "part-0.parquet")
    return path


NOON = at("02-01 12:00")


def promise(key: str, due_at: datetime = NOON, topic: str = "order.close") -> dict[str, Any]:
    return {"topic": topic, "key": key, "due_at": due_at}


@pytest.mark.on_both
def test_a_csv_becomes_jobs_by_a_mapping_and_bad_rows_become_rejects(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    lines = [f"{n},s{n % 3},2030-02-01T12:00:00,30" for n in range(3, 103)]
    bad = ["1,s,2030-02-01T12:00:00,soon", "2,s", f"3,s{chr(0xEB)},2030-02-01T12:00:00,1", "4,x,2030-02-01T13:00:00,1"]
    path = tmp_path / "orders.csv"
    path.write_bytes("\n".join(["id,shop,created,minutes", *lines, *bad, ""]).encode("latin-1"))

    with pytest.raises(BadSettings, match=r"key uses order_id, which .*\.csv does not have; its columns are id, shop"):
        loaded(path, {**MAPPING, "key": "order_id"})
    with pytest.raises(
        BadSettings, match=r"fails for row 102 of .*orders\.csv\. Nothing was loaded: .*'soon'.*try_cast"
    ):
        loaded(path, {**MAPPING, "delay": "minutes * 60"})
    refused = loaded(path, MAPPING, name="r", most_rejects="2", zone="Europe/Berlin")
    assert "4 of 104 rows were rejected, more than 2" in refused["refused"]
    assert not Job.objects.exists()

    answer = loaded(path, MAPPING, name="r", zone="Europe/Berlin")
    assert (answer["read"], answer["inserted"], answer["rejected"]) == (
        104, 100, {"columns": 1, "due": 1, "encoding": 1, "twice": 1})  # fmt: skip
    job = Job.objects.get(key="order:3")
    assert (job.topic, job.due_at, job.ttr_ms) == ("order.close", at("02-01 11:30"), 45_000)
    assert job.body == {"order": 3, "shop": "s0"}
    found = rejects(answer)
    assert [(each["row"], each["reason"]) for each in found] == [
        (102, "due"), (103, "columns"), (104, "encoding"), (105, "twice")]  # fmt: skip
    assert found[0]["raw"] == {"id": "1", "shop": "s", "created": "2030-02-01T12:00:00", "minutes": "soon"}
    assert {each["file"] for each in found} == {str(path)}
    assert not Path(answer["rejects"]).with_name("staged").exists()

    again = loaded(path, MAPPING, name="r", zone="Europe/Berlin")
    assert (again["inserted"], again["before"], Job.objects.count()) == (100, 100, 100)
    with pytest.raises(BadSettings, match="began with a different zone"):
        loaded(path, MAPPING, name="r", zone="Europe/Paris")


@pytest.mark.only_on("sqlite")
def test_timestamps_in_nanoseconds_are_read_with_and_without_a_zone(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    moment = at("02-01 12:00")
    table = pyarrow.table({
        "key": ["a"], "utc": pyarrow.array([moment], pyarrow.timestamp("ns", "UTC")),
        "local": pyarrow.array([moment.replace(tzinfo=None)], pyarrow.timestamp("ns")),
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "x.parquet")
    for column, due_at in (("utc", moment), ("local", moment - timedelta(hours=1))):
        mapping = {"topic": "order.close", "key": f"concat('{column}', key)", "due": column}
        assert loaded(tmp_path / "x.parquet", mapping, zone="Europe/Berlin")["inserted"] == 1
        assert Job.objects.get(key=f"{column}a").due_at == due_at


@pytest.mark.only_on("sqlite")
def test_timestamps_in_nanoseconds_within_other_values_are_times_in_a_body(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    utc, local = pyarrow.timestamp("ns", "UTC"), pyarrow.timestamp("ns")
    moments = [NOON.replace(tzinfo=None), None]
    kinds = {"list": pyarrow.list_(utc), "struct": pyarrow.struct({"n": pyarrow.int64(), "at b": pyarrow.list_(local)}),
             "map": pyarrow.map_(pyarrow.string(), pyarrow.struct({"at": utc}))}  # fmt: skip
    values = {"list": moments, "struct": {"n": 1, "at b": moments}, "map": [("x", {"at": moments[0]})]}
    rows = [{"key": "a", "due_at": NOON, **values}, {"key": "b", "due_at": NOON, **dict.fromkeys(kinds)}]
    schema = pyarrow.schema({"key": pyarrow.string(), "due_at": utc, **kinds})
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), tmp_path / "x.parquet")
    mapping = {"topic": "order.close", "body": {name: f"`{name}`" for name in kinds}}
    assert loaded(tmp_path / "x.parquet", mapping)["inserted"] == 2
    text = "2030-02-01T12:00:00.000"
    assert dict(Job.objects.values_list("key", "body")) == {
        "a": {"list": [f"{text}Z", None], "struct": {"n": 1, "at b": [text, None]}, "map": {"x": {"at": f"{text}Z"}}},
        "b": dict.fromkeys(kinds),
    }  # fmt: skip


@pytest.mark.only_on("sqlite")
def test_files_of_several_writers_may_have_texts_as_categories(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    texts = [pyarrow.dictionary(kind, pyarrow.string()) for kind in (pyarrow.int8(), pyarrow.int16())]
    for key, kind in enumerate([*texts, pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]):
        table = pyarrow.table({"key": pyarrow.array([str(key)]).cast(kind), "due_at": [NOON]})
        parquet.write_table(table, tmp_path / f"{key}.parquet")
    assert loaded(tmp_path, {"topic": "order.close"})["inserted"] == 5
    assert keys() == list("01234")


@pytest.mark.only_on("sqlite")
def test_timestamps_in_int96_are_read_as_utc(loaded: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    table = pyarrow.table({"key": ["a"], "due_at": [NOON], "all": [[NOON]]})
    parquet.write_table(table, tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    assert loaded(tmp_path / "x.parquet", {"topic": "order.close", "body": {"all": "all"}})["inserted"] == 1
    job = Job.objects.get()
    assert (job.due_at, job.body) == (NOON, {"all": ["2030-02-01T12:00:00.000Z"]})


@pytest.mark.only_on("sqlite")
def test_a_number_that_json_lacks_is_rejected_and_a_files_name_is_no_pattern(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    folder, path = tmp_path / "orders", tmp_path / "orders" / "part[1].parquet"
    folder.mkdir()
    numbers = [1.5, float("nan"), float("-inf"), None]
    rows = pyarrow.table({"key": list("abcd"), "due_at": [NOON] * 4, "x": numbers, "body": [{"x": x} for x in numbers]})
    parquet.write_table(rows, path)
    parquet.write_table(rows.slice(0, 0), folder / "part1.parquet")
    for n, body in enumerate(({"body": {"x": "x", "n": "1"}}, {})):
        answer = loaded(folder, {"topic": "order.close", "key": f"concat(key, {n})", **body}, most_rejects="2")
        assert (answer["read"], answer["inserted"], answer["rejected"]) == (4, 2, {"body": 2})
    assert dict(Job.objects.values_list("key", "body")) == {
        "a0": {"x": 1.5, "n": 1}, "d0": {"x": None, "n": 1}, "a1": {"x": 1.5}, "d1": {"x": None}}  # fmt: skip
    assert "finite numbers" in rejects(answer)[0]["message"]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("column", ["key", "shop"])
def test_a_row_with_bytes_that_are_no_utf_8_is_rejected_from_parquet_as_from_csv(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path, column: str
) -> None:
    texts = pyarrow.array([b"a", b"Zo\xeb", b"c"])
    columns = {"key": list("abc"), "shop": list("abc"), "due_at": [NOON] * 3}
    columns[column] = pyarrow.Array.from_buffers(pyarrow.string(), len(texts), texts.buffers())
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    mapping = {"topic": "order.close", "body": {"shop": "shop"}, "when": f"{column} IS NOT NULL"}
    answer = loaded(tmp_path / "x.parquet", mapping, most_rejects="1")
    assert (answer["inserted"], answer["rejected"]) == (2, {"encoding": 1})
    assert dict(Job.objects.values_list("key", "body")) == {"a": {"shop": "a"}, "c": {"shop": "c"}}
    (reject,) = rejects(answer)
    assert (reject["row"], reject["message"]) == (2, f"The column {column} contains bytes that are not valid in UTF-8.")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("kind", ["struct", "list", "map", "keys", "deep"])
def test_a_row_with_bytes_that_are_no_utf_8_within_a_value_is_rejected(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 3, pyarrow.array([b"a", b"Zo\xeb", b"c"]).buffers())
    others, nulls, one_each = pyarrow.array(list("xyz")), pyarrow.nulls(3, pyarrow.string()), pyarrow.array(range(4))
    values = {
        "struct": pyarrow.StructArray.from_arrays([nulls, texts], ["none", "it's"]),
        "list": pyarrow.ListArray.from_arrays(one_each.cast("int32"), texts),
        "map": pyarrow.MapArray.from_arrays(one_each.cast("int32"), others, texts),
        "keys": pyarrow.MapArray.from_arrays(one_each.cast("int32"), texts, others),
    }
    values["deep"] = pyarrow.StructArray.from_arrays([nulls, values["list"]], ["none", "all"])
    table = pyarrow.table({"key": list("abc"), "due_at": [NOON] * 3, "value": values[kind]})
    parquet.write_table(table, tmp_path / "x.parquet")
    answer = loaded(tmp_path / "x.parquet", {"topic": "order.close", "body": {"value": "value"}}, most_rejects="1")
    assert (answer["inserted"], answer["rejected"], keys()) == (2, {"encoding": 1}, ["a", "c"])
    first = {"struct": {"none": None, "it's": "a"}, "list": ["a"], "map": {"x": "a"}, "keys": {"a": "x"},
             "deep": {"none": None, "all": ["a"]}}  # fmt: skip
    assert Job.objects.get(key="a").body == {"value": first[kind]}
    (reject,) = rejects(answer)
    assert (reject["row"], reject["raw"]["value"]) == (2, None)
    assert reject["message"] == "The column value contains bytes that are not valid in UTF-8."


@pytest.mark.only_on("sqlite")
def test_each_row_is_either_skipped_or_loaded(loaded: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("\n".join(["id,due_at", *(f"{n},2030-02-01T12:00Z" for n in range(200)), ""]))
    by_chance = {"topic": "order.close", "key": "id", "when": "rand() < 0.5"}  # like now(), it differs in each query
    answer = loaded(path, by_chance)
    assert answer["skipped"] + answer["inserted"] == answer["read"] == 200
    for when in ("id > 200", "false"):
        nothing = loaded(path, {**by_chance, "when": when})
        assert (nothing["read"], nothing["skipped"], nothing["inserted"]) == (200, 200, 0)


@pytest.mark.only_on("sqlite")
def test_a_csv_file_that_changes_before_it_is_read_is_not_loaded(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("id,due_at\n1,2030-02-01T12:00Z\n")
    real = files.read

    def growing(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        path.write_text(f"{path.read_text()}2,2030-02-01T12:00Z\n")
        return found

    monkeypatch.setattr(files, "read", growing)
    refused = loaded(path, {"topic": "order.close", "key": "id"})["refused"]
    assert re.match(
        r"Nothing was loaded: .* cannot be read any further: it has \d+ bytes on \S+ and not \d+\.", refused
    )
    assert not Job.objects.exists()


@pytest.mark.only_on("sqlite")
def test_a_log_of_events_gives_one_job_for_each_case(loaded: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    lines = ["case,activity,at"]
    for n in range(5):
        lines += [f"{n},Create Fine,2030-02-01T12:00Z", f"x{n},Payment,2030-02-02T12:00Z", f"{n},,"]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([*lines, "9,Create Fine,soon", "10,Create Fine", ""]))
    mapping = {"topic": "order.close", "key": "concat('fine:', cast(case as int))", "due": "at"}

    answer = loaded(path, {**mapping, "when": "activity = 'Create Fine'"}, most_rejects="30%")
    assert (answer["read"], answer["skipped"], answer["inserted"], answer["rejected"]) == (
        17, 10, 5, {"columns": 1, "due": 1})  # fmt: skip
    assert keys() == [f"fine:{n}" for n in range(5)], "the key of a skipped row is not computed: x0 is no number"
    refused = loaded(path, {**mapping, "when": "activity = 'Create Fine'"}, most_rejects="20%", on_conflict="keep")
    assert "2 of 7 rows were rejected, more than 20%" in refused["refused"], "a share of the chosen rows"
    for when, problem in (("activity", "is a string: it must be true or false"), ("act = 1", "which .* does not have")):
        with pytest.raises(BadSettings, match=rf"The mapping's when,? .*{problem}"):
            loaded(path, {**mapping, "when": when})


@pytest.mark.only_on("sqlite")
def test_a_delay_in_days_keeps_the_local_time_over_a_clock_change(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "fines.csv"
    lines = ["spring,2030-02-01T13:00,60", "autumn,2030-09-01T12:00,60", "utc,2030-09-01T10:00Z,60"]
    path.write_text("\n".join(["id,at,grace", *lines, "negative,2030-02-01T13:00,-1", "null,2030-02-01T13:00,x", ""]))
    mapping = {"topic": "order.close", "key": "id", "since": "at", "delay": "60 days", "when": "grace = '60'"}
    for delay, zone, why in (
        ("60 days", "", r"The mapping's delay is '60 days', and a day is not always 24 hours: give .* \(--zone\)"),
        ("60 dayz", "Europe/Rome", r"The mapping's delay is '60 dayz', .*'dayz' is not a unit: use seconds, minutes,"),
        ("-1 hours", "", r"The mapping's delay is '-1 hours': it must not be negative"),
        ("grace days", "", r"The mapping's delay, grace days, is not a valid expression: .*PARSE_SYNTAX_ERROR"),
    ):
        with pytest.raises(BadSettings, match=why):
            loaded(path, {**mapping, "delay": delay}, zone=zone)

    assert loaded(path, mapping, zone="Europe/Rome")["inserted"] == 3
    summer, winter = at("04-02 11:00"), at("10-31 11:00")  # 13:00 in Rome as in February, 12:00 as in September
    expected = {"spring": summer, "autumn": winter, "utc": winter}
    assert dict(Job.objects.values_list("key", "due_at")) == expected

    Job.objects.all().delete()
    mapping = {**mapping, "delay": "cast(try_cast(grace as int) as interval day)", "when": "true"}
    answer = loaded(path, mapping, zone="Europe/Rome", most_rejects="2")
    assert dict(Job.objects.values_list("key", "due_at")) == expected
    assert [(each["row"], each["reason"], each["message"]) for each in rejects(answer)] == [
        (5, "due", "The delay is -1 days: it must not be negative."),
        (6, "due", "The delay is null: give a number of seconds or an interval."),
    ]


@pytest.mark.on_both
def test_a_killed_run_continues_where_it_stopped_without_duplicates(
    loaded: Callable[..., dict[str, Any]], lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = promises(tmp_path / "missing", *(promise(f"order:{n}") for n in range(10)))
    monkeypatch.setattr(staging, "CHUNK_ROWS", 3)
    real = load.load_pending_chunks

    def dies(*args: Any) -> str:
        raise Killed

    def puts_two(*args: Any) -> str:
        assert not real(*args[:4], args[4][:2])
        raise Killed

    for death in (dies, puts_two):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(load, "load_pending_chunks", death)
            loaded(source, name="r")
    assert (Job.objects.count(), LoadChunk.objects.count()) == (6, 2)
    with pytest.raises(BadSettings, match="began with a different on_conflict: repeat the original arguments"):
        loaded(source, name="r", on_conflict="keep")
    with pytest.raises(BadSettings, match="different source, files"):
        loaded(promises(tmp_path / "other", promise("order:11")), name="r")

    answer = loaded(source, name="r")
    assert (answer["inserted"], answer["before"], answer["refused_live"]) == (10, 6, 0)
    assert (keys(), LoadChunk.objects.count()) == ([f"order:{n}" for n in range(10)], 4)
    assert not lake.has("load/r/staged")
    lake.remove("load/r")
    with pytest.raises(LakeError, match="files that are not in"):
        loaded(source, name="r")


@pytest.mark.on_both
def test_a_run_continues_after_a_lost_database_or_a_missing_chunk(
    loaded: Callable[..., dict[str, Any]], lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = promises(tmp_path / "missing", promise("order:1"))

    def away(*args: Any) -> str:
        return str(DatabaseUnavailable("postgresql shop does not answer: gone."))

    with monkeypatch.context() as patched:
        patched.setattr(load, "load_pending_chunks", away)
        refused = loaded(source, name="r")
    assert "shop does not answer: gone. Loaded rows stay" in refused["refused"]
    assert "--run r" in refused["refused"]

    (path,) = Path(lake.path("load/r/staged")).rglob("*.parquet")
    path.rename(tmp_path / "moved")
    refused = loaded(source, name="r")
    assert f"{path}, a chunk of this run, is missing" in refused["refused"]
    assert "fix the problem, then repeat the command with --run r" in refused["refused"]
    (tmp_path / "moved").rename(path)
    document = lake.document("load/r/run.json")
    lake.publish("load/r/run.json", {**document, "version": 99})
    with pytest.raises(LakeError, match=r"run\.json was written by a newer delaytasks \(format 99"):
        loaded(source, name="r")
    lake.publish("load/r/run.json", document)
    assert loaded(source, name="r")["inserted"] == 1


def test_a_load_holds_its_lock_and_publishes_nothing_without_it(
    loaded: Callable[..., dict[str, Any]], database: Database, lake: Lake, tmp_path: Path, monkeypatch: Any
) -> None:
    source = promises(tmp_path / "missing", promise("order:1"))
    with database.lock("load"), pytest.raises(Busy, match="Another load of"):
        loaded(source)
    real = staging.write_chunks

    def loses_its_lock(*args: Any) -> Any:
        found = real(*args)
        with database.connect() as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        return found

    monkeypatch.setattr(staging, "write_chunks", loses_its_lock)
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        loaded(source, name="r")
    assert not lake.has("load/r/run.json")
    assert not Job.objects.exists()


def test_loads_support_encodings_empty_files_topics_by_row_intervals_and_kept_jobs(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], tmp_path: Path
) -> None:
    path, empty = tmp_path / "orders.tsv", tmp_path / "empty.csv"
    rows = [("close", "1", "a"), ("remind", "2", "b"), ("close", "3\0", "c"), ("close", "4", "\0"), ("close", "5", "d")]
    lines = ["kind\tid\tnote", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines), encoding="utf-16")
    empty.touch()
    live = job("order:5", due_at=at("03-01 00:00"))
    mapping = {"topic_from": "concat('order.', kind)", "key": "concat('order:', id)", "body": {"note": "note"},
               "since": "'2030-02-01T12:00Z'", "delay": "interval '1 00:30:00.5' day to second"}  # fmt: skip

    assert (loaded(empty)["read"], LoadChunk.objects.count()) == (0, 0)
    with pytest.raises(BadSettings, match=r"header of .*orders\.tsv cannot be read as utf-8: \\xff\\xfe"):
        loaded(path, mapping)
    reading = {"kind": "", "encoding": "utf-16", "delimiter": ""}
    answer = loaded(path, mapping, reading=reading, on_conflict="keep", most_rejects="2")
    assert (answer["inserted"], answer["kept"], answer["rejected"]) == (2, 1, {"body": 1, "key": 1})
    due_at = at("02-02 12:30") + timedelta(milliseconds=500)
    assert list(Job.objects.exclude(pk=live.pk).order_by("key").values_list("topic", "key", "due_at")) == [
        ("order.close", "order:1", due_at), ("order.remind", "order:2", due_at)]  # fmt: skip
    live.refresh_from_db()
    assert live.due_at == at("03-01 00:00")
    assert [each["row"] for each in rejects(answer)] == [4, 5]


def test_missing_jobs_of_an_audit_can_be_loaded_and_live_ones_are_refused(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], tmp_path: Path
) -> None:
    live = job("order:1", due_at=at("03-01 00:00"))
    source = promises(tmp_path / "missing", promise("order:1"), promise("order:2", topic="order.remind"))
    answer = loaded(source, most_rejects="50%")

    assert (answer["inserted"], answer["refused_live"], answer["rejected"]) == (1, 1, {})
    assert "refused" not in answer
    made = Job.objects.exclude(pk=live.pk).get()
    assert (made.key, made.topic, made.due_at, made.ttr_ms, made.body) == (
        "order:2", "order.remind", at("02-01 12:00"), 60_000, {})  # fmt: skip
    assert [(each["key"], each["reason"]) for each in rejects(answer)] == [("order:1", "live")]
    assert "part-0.parquet" in rejects(answer)[0]["file"]


@pytest.mark.only_on("sqlite")
def test_more_live_jobs_than_rejects_are_allowed_are_a_fault_and_the_others_are_loaded(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], tmp_path: Path
) -> None:
    job("order:1", due_at=at("03-01 00:00"))
    rows = [promise("order:1"), promise("order:2", topic="unknown"), *(promise(f"order:{n}") for n in range(3, 6))]
    source = promises(tmp_path / "missing", *rows)
    expected = (
        "3 jobs were inserted, 0 replaced and 0 kept. But 2 of 5 rows were rejected, more than 1 (--most-rejects), 1 "
        "of them because a job with the topic and key was live or running. All rejects are in "
    )
    for _ in range(2):
        answer = loaded(source, name="r", most_rejects="1")
        assert answer["refused"].startswith(expected)
        assert (answer["inserted"], answer["refused_live"], "exit_code" in answer) == (3, 1, False)
    assert "refused" not in loaded(source, name="r", most_rejects="2")


def test_replace_loads_the_last_row_of_a_key(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], tmp_path: Path
) -> None:
    live = job("order:1")
    source = promises(tmp_path / "moved", promise("order:1", at("03-01 00:00")), promise("order:1", at("04-01 00:00")))
    answer = loaded(source, on_conflict="replace", most_rejects="50%", by="ann")

    live.refresh_from_db()
    assert (live.due_at, answer["replaced"], answer["rejected"]) == (at("04-01 00:00"), 1, {"twice": 1})
    assert live.events.get().actor == "ann"


def test_a_herd_is_spread_by_key_and_never_earlier(loaded: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    now = dialects.database_now("default")
    rows = [promise(f"order:{n}") for n in range(40)] + [promise(f"late:{n}", at("01-01 00:00") - timedelta(days=9000))
                                                         for n in range(40)]  # fmt: skip
    loaded(promises(tmp_path / "a", *rows), spread_seconds=3600)
    due = dict(Job.objects.values_list("key", "due_at"))

    for kind, least in (("order:", at("02-01 12:00")), ("late:", now)):
        times = [each for key, each in due.items() if key.startswith(kind)]
        assert least <= min(times) < least + timedelta(minutes=15)
        assert least + timedelta(minutes=45) < max(times) < least + timedelta(hours=1, seconds=60)
        assert len(set(times)) > 35
    Job.objects.all().delete()
    loaded(promises(tmp_path / "b", *rows[:40]), spread_seconds=3600)
    assert {key: due[key] for key in keys()} == dict(Job.objects.values_list("key", "due_at"))


@pytest.mark.on_both
def test_a_query_of_the_jobs_database_is_loaded_and_is_read_only(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "BATCH_ROWS", 1)
    for n in range(3):
        job(f"order:{n}", state=State.FINISHED, body={"n": n})
    mapping = {"topic": "order.remind", "key": "replace(key, 'order', 'again')", "due": "ended_at", "body_from": "body"}
    sql = "SELECT key, ended_at, body FROM delaytasks_job WHERE key <> 'order:1' -- not this\n;"
    answer = loaded(query=sql, mapping=mapping, zone="UTC")

    assert (answer["inserted"], answer["rejected"]) == (2, {})
    assert list(Job.objects.filter(ended_at=None).order_by("key").values_list("key", "due_at", "body")) == [
        ("again:0", at("02-01 12:00") + timedelta(seconds=1), {"n": 0}),
        ("again:2", at("02-01 12:00") + timedelta(seconds=1), {"n": 2}),
    ]
    for wrong in (
        "SELECT key FROM orders_of_mars",
        "DELETE FROM delaytasks_job",
        "SELECT key, key FROM delaytasks_job",
        'SELECT key, 1 AS "KEY" FROM delaytasks_job',
    ):
        with pytest.raises(BadSettings, match=r"The query"):
            loaded(query=wrong, mapping=mapping)
    assert Job.objects.count() == 5


def test_a_refused_load_reads_its_input_again_when_it_is_repeated(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job]
) -> None:
    job("order:1", state=State.FINISHED)
    arguments = {"query": "SELECT error AS key, due_at FROM delaytasks_job", "mapping": {"topic": "order.remind"}}
    assert "1 of 1 rows were rejected" in loaded(**arguments, name="r")["refused"]
    Job.objects.update(error="repaired")
    answer = loaded(**arguments, name="r")
    assert (answer["inserted"], answer["rejected"]) == (1, {})


def test_a_query_reads_padded_characters_as_an_audit_does(loaded: Callable[..., dict[str, Any]]) -> None:
    sql = "SELECT CAST('order:7' AS char(9)) AS key, TIMESTAMPTZ '2030-02-01 12:00Z' AS due_at"
    loaded(query=sql, mapping={"topic": "order.close"})
    assert keys() == ["order:7"]


@pytest.mark.on_both
def test_bytes_of_a_query_are_read_in_hexadecimal_digits(database: Database, lake: Lake) -> None:
    literal = "x'00ff'" if database.vendor == "sqlite" else "'\\x00ff'::bytea"
    query.copy(database, f"SELECT {literal} AS key", lake, "asked")
    assert parquet.read_table(lake.path("asked/answer.parquet")).to_pylist() == [{"key": "\\x00ff"}]


@pytest.mark.only_on("postgresql")
def test_an_infinite_due_time_of_a_query_is_rejected(loaded: Callable[..., dict[str, Any]]) -> None:
    sql = "SELECT 'a' AS key, timestamptz 'infinity' AS due_at, date '-infinity' AS day, 1 AS n"
    mapping = {"topic": "order.close", "when": "day < '0002-01-01'"}
    answer = loaded(query=sql, mapping=mapping, most_rejects="1")
    assert (answer["rejected"], answer["inserted"]) == ({"due": 1}, 0)


def test_a_query_that_fails_while_it_runs_is_refused_and_a_lost_server_is_not_answering(
    database: Database, lake: Lake
) -> None:
    for sql, why in (
        ("SELECT 1 / (n - 3) AS key FROM generate_series(1, 5) AS n", "division by zero"),
        ("SELECT nextval('delaytasks_job_id_seq') AS key", r"cannot execute nextval\(\) in a read-only transaction"),
    ):
        with pytest.raises(BadSettings, match=f"The query was refused: {why}"):
            query.copy(database, sql, lake, "load/r/asked")
    with pytest.raises(DatabaseUnavailable, match=r"does not answer: .*terminating connection"):
        query.copy(database, "SELECT pg_terminate_backend(pg_backend_pid()) AS key", lake, "load/r/asked")


@pytest.mark.only_on("sqlite")
def test_a_query_of_sqlite_creates_no_file_and_reports_a_missing_database(
    database: Database, lake: Lake, tmp_path: Path
) -> None:
    for wrong in (f"VACUUM INTO '{tmp_path}/copy'", f"ATTACH '{tmp_path}/new' AS other", "PRAGMA user_version"):
        with pytest.raises(BadSettings, match="The query was refused"):
            query.copy(database, wrong, lake, "load/r/asked")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatabaseUnavailable, match="gone does not answer: unable to open"):
        query.copy(replace(database, name=f"{tmp_path}/gone"), "SELECT 1", lake, "load/r/asked")


def test_invalid_loads_are_reported_in_a_sentence(
    loaded: Callable[..., dict[str, Any]], spark: Any, tmp_path: Path
) -> None:
    empty, path = tmp_path / "empty.csv", tmp_path / "a.csv"
    empty.write_text("topic,key,due_at\n")
    path.write_text('topic,key\norder.close,"a\norder.close,b\n')
    broken = tmp_path / "b.parquet"
    broken.write_bytes(b"PAR1")
    wrong = tmp_path / "number"
    wrong.mkdir()
    parquet.write_table(pyarrow.table({"topic": ["order.close"], "key": ["a"], "due_at": [1.5]}), wrong / "a.parquet")
    same = tmp_path / "same.parquet"
    parquet.write_table(pyarrow.table({"key": ["a"], "due_at": [NOON], "Key": ["b"]}), same)

    answer = loaded(empty)
    assert (answer["read"], answer["inserted"], answer.get("refused")) == (0, 0, None)
    for source, mapping, why in (
        (path, {}, r"a\.csv has no column due_at; its columns are topic, key\. .*--due, or --since and --delay"),
        (path, {"due": "2 +"}, "mapping's due, 2 \\+, is not a valid expression: .*PARSE_SYNTAX_ERROR"),
        (path, {"due": "key", "since": "key"}, "both due and since"),
        (path, {"since": "key"}, "Give .since. and .delay. together"),
        (path, {"colour": "red"}, "Unknown mapping keys: colour. Known: topic"),
        (broken, {}, r"b\.parquet is not a Parquet file"),
        (same, {}, r"same\.parquet has the columns Key, key, which Spark takes for the same one"),
        (wrong, {}, r"due_at`, is a double: it must be a timestamp.* timestamp_millis"),
    ):
        with pytest.raises(BadSettings, match=why):
            loaded(source, mapping)
    for most in ("nan%", "inf%", "-1", "1.5"):
        with pytest.raises(BadSettings, match=f"--most-rejects is '{most}'"):
            loaded(path, {"due": "'2030-02-01T12:00Z'"}, most_rejects=most)
    quoted = loaded(path, {"due": "'2030-02-01T12:00Z'"}, most_rejects="100%")
    assert "Row 2 opens a quote that is never closed. The rest of the file cannot be read" in quoted["refused"]
    assert not Job.objects.exists()


def test_a_run_reports_each_new_chunk_and_its_progress(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: Queue[tuple[str, int]] = Queue()
    monkeypatch.setattr(ledger, "report_progress", lambda text, chunks: heard.put((text, chunks)))
    monkeypatch.setattr(ledger, "MESSAGE_SECONDS", 0)
    with ledger.ProgressReporter(ledger.Ledger(database, "r"), 100):
        LoadChunk.objects.create(run="r", chunk=0, stamp="s", rows=40, inserted=40, kept=0, replaced=0, refused=0,
                                 loaded_at=at("01-01 00:00"))  # fmt: skip
        text = next(text for text, chunks in iter(lambda: heard.get(timeout=10), None) if chunks)
    assert "40 of 100 rows loaded" in text
