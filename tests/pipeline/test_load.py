"""load: what a file, a folder or a query asks for becomes jobs, once; what cannot is written down with its reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from delaytasks import dialect
from delaytasks.models import Job, LoadChunk
from delaytasks.pipeline import ledger, load, querying, staging
from delaytasks.pipeline.database import Busy, Database, DatabaseAway
from delaytasks.pipeline.lake import Lake, LakeError
from delaytasks.pipeline.settings import BadSettings
from delaytasks.states import State

from .conftest import at

LIMITS = {"topics": {"order.close": 30_000, "order.remind": 60_000}, "max_delay_seconds": 10**9,
          "max_body_bytes": 65_536}  # fmt: skip
MAPPING = {
    "topic": "order.close", "key": "concat('order:', id)", "since": "created",
    "delay": "try_cast(minutes as int) * 60", "ttr": "45",
    "body": {"order": "cast(id as bigint)", "shop": "shop"},
}  # fmt: skip
PLAIN: dict[str, Any] = {}


class Killed(BaseException):
    """As good as SIGKILL: nothing of ours catches it."""


@pytest.fixture
def loaded(spark: Any, database: Database, lake: Lake) -> Callable[..., dict[str, Any]]:
    def run(source: Path | str = "", mapping: dict[str, Any] = PLAIN, **wishes: Any) -> dict[str, Any]:
        limits = {**LIMITS, "zone": wishes.pop("zone", "")}
        return load.run(spark, database, lake, source=str(source), mapping=mapping, limits=limits, **wishes)

    return run


def keys() -> list[str]:
    return sorted(Job.objects.values_list("key", flat=True))


def rejects(answer: dict[str, Any]) -> list[dict[str, Any]]:
    lines = [line for path in Path(answer["rejects"]).glob("*.json") for line in path.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda each: each["row"])


def promises(path: Path, *rows: dict[str, Any]) -> Path:
    """A Parquet of promises, as an audit hands over those that are missing."""
    path.mkdir(parents=True, exist_ok=True)
    kinds = pyarrow.schema([("topic", pyarrow.string()), ("key", pyarrow.string()),
                            ("due_at", pyarrow.timestamp("us", "UTC"))])  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=kinds), path / "part-0.parquet")
    return path


NOON = at("02-01 12:00")


def promise(key: str, due_at: datetime = NOON, topic: str = "order.close") -> dict[str, Any]:
    return {"topic": topic, "key": key, "due_at": due_at}


@pytest.mark.on_both
def test_a_csv_becomes_jobs_by_a_mapping_and_its_bad_rows_are_written_down(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    lines = [f"{n},s{n % 3},2030-02-01T12:00:00,30" for n in range(3, 103)]
    bad = ["1,s,2030-02-01T12:00:00,soon", "2,s", f"3,s{chr(0xEB)},2030-02-01T12:00:00,1", "4,x,2030-02-01T13:00:00,1"]
    path = tmp_path / "orders.csv"
    path.write_bytes("\n".join(["id,shop,created,minutes", *lines, *bad, ""]).encode("latin-1"))

    with pytest.raises(BadSettings, match=r"key asks for order_id, which .*orders\.csv does not have; it has id, shop"):
        loaded(path, {**MAPPING, "key": "order_id"})
    with pytest.raises(
        BadSettings, match=r"fails for row 102 of .*orders\.csv, and nothing was loaded: .*'soon'.*try_cast"
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
    with pytest.raises(LakeError, match="has begun with another zone"):
        loaded(path, MAPPING, name="r", zone="Europe/Paris")


@pytest.mark.on_both
def test_a_run_that_is_killed_goes_on_where_it_stopped_and_doubles_nothing(
    loaded: Callable[..., dict[str, Any]], lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = promises(tmp_path / "missing", *(promise(f"order:{n}") for n in range(10)))
    monkeypatch.setattr(staging, "CHUNK_ROWS", 3)
    real = load.put_chunks

    def dies(*args: Any) -> str:
        raise Killed

    def puts_two(*args: Any) -> str:
        assert not real(*args[:4], args[4][:2])
        raise Killed

    for death in (dies, puts_two):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(load, "put_chunks", death)
            loaded(source, name="r")
    assert (Job.objects.count(), LoadChunk.objects.count()) == (6, 2)
    with pytest.raises(LakeError, match="begun with another on_conflict: say the same again"):
        loaded(source, name="r", on_conflict="keep")
    with pytest.raises(LakeError, match="another source, files"):
        loaded(promises(tmp_path / "other", promise("order:11")), name="r")

    answer = loaded(source, name="r")
    assert (answer["inserted"], answer["before"], answer["refused_live"]) == (10, 6, 0)
    assert (keys(), LoadChunk.objects.count()) == ([f"order:{n}" for n in range(10)], 4)
    assert not lake.has("load/r/staged")
    lake.remove("load/r")
    with pytest.raises(LakeError, match="files that are not in"):
        loaded(source, name="r")


@pytest.mark.on_both
def test_a_run_goes_on_after_the_database_was_away_or_a_chunk_of_its_files_was(
    loaded: Callable[..., dict[str, Any]], lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = promises(tmp_path / "missing", promise("order:1"))

    def away(*args: Any) -> str:
        return str(DatabaseAway("postgresql shop does not answer: gone."))

    with monkeypatch.context() as patched:
        patched.setattr(load, "put_chunks", away)
        refused = loaded(source, name="r")
    assert "shop does not answer: gone. What is loaded stays" in refused["refused"]
    assert "--run r" in refused["refused"]

    (path,) = Path(lake.path("load/r/staged")).rglob("*.parquet")
    path.rename(tmp_path / "moved")
    refused = loaded(source, name="r")
    assert f"{path}, a chunk of this run, is gone" in refused["refused"]
    assert "when that is mended, say the same again with --run r" in refused["refused"]
    (tmp_path / "moved").rename(path)
    document = lake.document("load/r/run.json")
    lake.publish("load/r/run.json", {**document, "version": 99})
    with pytest.raises(LakeError, match=r"run\.json was written by a newer delaytasks \(its format is 99"):
        loaded(source, name="r")
    lake.publish("load/r/run.json", document)
    assert loaded(source, name="r")["inserted"] == 1


def test_a_load_is_alone_and_one_that_may_not_be_any_more_publishes_nothing(
    loaded: Callable[..., dict[str, Any]], database: Database, lake: Lake, tmp_path: Path, monkeypatch: Any
) -> None:
    source = promises(tmp_path / "missing", promise("order:1"))
    with database.alone("load"), pytest.raises(Busy, match="Another load of"):
        loaded(source)
    real = staging.stage

    def loses_its_lock(*args: Any) -> Any:
        found = real(*args)
        with database.connect() as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        return found

    monkeypatch.setattr(staging, "stage", loses_its_lock)
    with pytest.raises(DatabaseAway, match="does not answer"):
        loaded(source, name="r")
    assert not lake.has("load/r/run.json")
    assert not Job.objects.exists()


def test_files_of_other_encodings_or_of_nothing_topics_by_row_intervals_and_live_jobs_that_are_kept(
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


def test_missing_promises_of_an_audit_are_loaded_as_they_are_and_a_live_one_is_refused(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], tmp_path: Path
) -> None:
    live = job("order:1", due_at=at("03-01 00:00"))
    source = promises(tmp_path / "missing", promise("order:1"), promise("order:2", topic="order.remind"))
    answer = loaded(source)

    assert (answer["inserted"], answer["refused_live"], answer["rejected"]) == (1, 1, {})
    made = Job.objects.exclude(pk=live.pk).get()
    assert (made.key, made.topic, made.due_at, made.ttr_ms, made.body) == (
        "order:2", "order.remind", at("02-01 12:00"), 60_000, {})  # fmt: skip
    assert [(each["key"], each["reason"]) for each in rejects(answer)] == [("order:1", "live")]
    assert "part-0.parquet" in rejects(answer)[0]["file"]


def test_replacing_takes_the_last_of_rows_with_the_same_key(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], tmp_path: Path
) -> None:
    live = job("order:1")
    source = promises(tmp_path / "moved", promise("order:1", at("03-01 00:00")), promise("order:1", at("04-01 00:00")))
    answer = loaded(source, on_conflict="replace", most_rejects="50%", by="ann")

    live.refresh_from_db()
    assert (live.due_at, answer["replaced"], answer["rejected"]) == (at("04-01 00:00"), 1, {"twice": 1})
    assert live.events.get().actor == "ann"


def test_a_herd_is_spread_by_key_never_earlier_and_what_is_overdue_from_now_on(
    loaded: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    now = dialect.database_now("default")
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
def test_a_query_of_the_jobs_own_database_is_loaded_and_only_reads(
    loaded: Callable[..., dict[str, Any]], job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(querying, "BATCH", 1)
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
    ):
        with pytest.raises(BadSettings, match=r"The query"):
            loaded(query=wrong, mapping=mapping)
    assert Job.objects.count() == 5


@pytest.mark.only_on("sqlite")
def test_a_query_of_sqlite_makes_no_file_and_one_that_is_away_is_told(
    database: Database, lake: Lake, tmp_path: Path
) -> None:
    for wrong in (f"VACUUM INTO '{tmp_path}/copy'", f"ATTACH '{tmp_path}/new' AS other", "PRAGMA user_version"):
        with pytest.raises(BadSettings, match="The query was refused"):
            querying.copy(database, wrong, lake, "load/r/asked")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatabaseAway, match="gone does not answer: unable to open"):
        querying.copy(replace(database, name=f"{tmp_path}/gone"), "SELECT 1", lake, "load/r/asked")


def test_what_cannot_be_loaded_is_told_in_a_sentence(
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

    answer = loaded(empty)
    assert (answer["read"], answer["inserted"], answer.get("refused")) == (0, 0, None)
    for source, mapping, why in (
        (path, {}, r"a\.csv has no column due_at; it has topic, key\. .*--due, or --since and --delay"),
        (path, {"due": "2 +"}, "mapping's due, 2 \\+, cannot be worked out: .*PARSE_SYNTAX_ERROR"),
        (path, {"due": "key", "since": "key"}, "both due and since"),
        (path, {"since": "key"}, "since and delay go together"),
        (path, {"colour": "red"}, "A mapping has no colour; it has topic"),
        (broken, {}, r"b\.parquet is no Parquet file"),
        (wrong, {}, r"due_at`, is a double: it must be a timestamp.* timestamp_millis"),
    ):
        with pytest.raises(BadSettings, match=why):
            loaded(source, mapping)
    for most in ("nan%", "inf%", "-1", "1.5"):
        with pytest.raises(BadSettings, match=f"--most-rejects is '{most}'"):
            loaded(path, {"due": "'2030-02-01T12:00Z'"}, most_rejects=most)
    quoted = loaded(path, {"due": "'2030-02-01T12:00Z'"}, most_rejects="100%")
    assert "Row 2 opens a quote that is never closed. What follows there cannot be told" in quoted["refused"]
    assert not Job.objects.exists()


def test_a_run_says_each_new_chunk_and_now_and_then_how_far_it_is(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: Queue[tuple[str, int]] = Queue()
    monkeypatch.setattr(ledger, "say", lambda text, chunks: heard.put((text, chunks)))
    monkeypatch.setattr(ledger, "SAY_SECONDS", 0)
    with ledger.Watch(ledger.Ledger(database, "r"), 100):
        LoadChunk.objects.create(run="r", chunk=0, stamp="s", rows=40, inserted=40, kept=0, replaced=0, refused=0,
                                 loaded_at=at("01-01 00:00"))  # fmt: skip
        text = next(text for text, chunks in iter(lambda: heard.get(timeout=10), None) if chunks)
    assert "40 of 100 rows loaded" in text
