"""Bad input of each kind: the exit code, a sentence that says what is wrong, and nothing is published."""

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from datetime import time
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyarrow import parquet

from delaytasks.models import Job
from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline import schemas
from delaytasks.pipeline.applications import archive, audit
from delaytasks.pipeline.config import BadSettings, Settings
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.rules.rules import BadRule
from delaytasks.pipeline.sources import files
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.spark import session
from delaytasks.pipeline.tables import archived_history, archives, stream_tables
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.pipeline.transforms import dimensions

from .conftest import at

pytestmark = pytest.mark.only_on("sqlite")  # what is wrong is in files and expressions
Asked = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(spark: Any, database: Database, lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Asked:
    """Run an application in the tests' session. Return the exit code and the message."""
    monkeypatch.setattr(session, "session", lambda *_, **__: contextlib.nullcontext(spark))

    def asked(application: str, **arguments: Any) -> tuple[int, str]:
        settings = Settings(database, lake.root, "local[2]", arguments=arguments)
        code = run.main([application], settings.environment())
        answer = json.loads(capsys.readouterr().out.splitlines()[-1])
        return code, answer.get("message") or answer.get("refused", "")

    return asked


# Tables

LOG = f"{archives.JOBS}/_delta_log"
FIRST = f"{LOG}/{0:020}.json"


def reader_version(lake: Lake) -> None:
    log = Path(lake.path(FIRST))
    log.write_text(re.sub(r'"minReaderVersion":\d+', '"minReaderVersion":99', log.read_text()))


def writer_feature(lake: Lake) -> None:
    """Delta's row tracking, which delta-rs does not know: readers may ignore it, writers may not."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]}
    log = Path(lake.path(FIRST))
    log.write_text(re.sub(r'\{"protocol":\{[^}]*\}\}', json.dumps({"protocol": protocol}), log.read_text()))


def other_types(lake: Lake) -> None:
    lake.remove(archives.JOBS)
    columns = json.loads(Schema.from_json(schemas.ARCHIVED_JOBS.json()).to_json())
    columns["fields"][0]["type"] = "string"
    DeltaTable.create(lake.path(archives.JOBS), Schema.from_json(json.dumps(columns)), partition_by=["topic"])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [(reader_version, "jobs was changed by another program to a protocol that .*: .*minimum reader version 99"),
     (writer_feature, "jobs was changed by another program to a protocol that is not known here: .*RowTracking"),
     (other_types, "jobs was written by .* or a newer delaytasks: its column id is .string. and not .long.\\.")],
)  # fmt: skip
def test_a_table_of_a_newer_protocol_or_of_another_program_is_refused_and_nothing_is_pruned(
    ask: Asked, lake: Lake, ended: Callable[..., Job], spoil: Callable[[Lake], None], sentence: str
) -> None:
    assert ask("archive") == (ExitCode.DONE, "")  # creates the document and empty tables
    shutil.copytree(lake.path(LOG), lake.path("whole"))
    ended("order:1")
    spoil(lake)

    code, message = ask("archive")
    assert (code, bool(re.search(sentence, message))) == (ExitCode.COULD_NOT_RUN, True), message
    assert Job.objects.count() == 1
    lake.remove(LOG)
    lake.move("whole", LOG)
    assert ask("archive") == (ExitCode.DONE, "")
    assert (Job.objects.count(), DeltaTable(lake.path(archives.EVENTS)).count()) == (0, 2)


def test_a_table_that_lacks_a_column_is_refused_by_every_reader(
    ask: Asked, lake: Lake, ended: Callable[..., Job], rows: Path
) -> None:
    """Spark reads a missing column as null, and without the start of an attempt nothing is early or late."""
    ended("order:1")
    rule = {**RULE, "parquet": str(rows), "when": "id = 1"}
    assert ask("stream", once=True) == ask("archive") == (ExitCode.DONE, "")
    assert ask("audit", file="audit.toml", rules=[rule]) == (ExitCode.FAULTS, "order.close: 1 early.")
    for name, partition in ((archives.EVENTS, "topic"), (stream_tables.EVENTS, "day")):
        table = DeltaTable(lake.path(name)).to_pyarrow_table()
        names = [{"reserved_ms": "begun_ms"}.get(each, each) for each in table.column_names]
        write_deltalake(lake.path(name), table.rename_columns(names), mode="overwrite", schema_mode="overwrite",
                        partition_by=[partition])  # fmt: skip

    for application, given in {
        "audit": {"file": "audit.toml", "rules": [rule]}, "report": {}, "archive": {}, "stream": {"once": True},
    }.items():  # fmt: skip
        code, message = ask(application, **given)
        assert (code, "events was written by another program or a newer delaytasks: it has no column reserved_ms. " in
                message) == (ExitCode.COULD_NOT_RUN, True), (application, message)  # fmt: skip
        assert message.endswith("Restore it from a backup, move it away, or update delaytasks here.")
    with pytest.raises(LakeError, match="has no column reserved_ms"):
        archived_history.by_key(lake, "order.close", "order:1")


def test_files_that_are_vacuumed_too_early_are_missed_and_nothing_is_pruned(
    ask: Asked, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("archive")
    ended("order:1")
    real = archive.commit

    def vacuumed(*given: Any) -> Any:
        DeltaTable(lake.path(archives.EVENTS)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(archive, "commit", vacuumed)
        code, message = ask("archive")
    assert (code, "has 0 of 2 rows that were written: another program removed files" in message) == (
        ExitCode.COULD_NOT_RUN, True), message  # fmt: skip
    assert Job.objects.count() == 1


# Rules

ROWS = pyarrow.schema([
    ("id", pyarrow.int64()), ("at", pyarrow.timestamp("us", "UTC")), ("text", pyarrow.string()),
    ("grace", pyarrow.int64()), ("nested", pyarrow.struct({"name": pyarrow.string()})),
])  # fmt: skip
RULE = {
    "topic": "order.close", "columns": {"id": "bigint", "at": "timestamp", "text": "string", "grace": "bigint"},
    "key": "concat('order:', id)", "since": "at",
}  # fmt: skip


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """One more row than a carried column may have values. The delay of the first is null, that of the second -1."""
    found = [{"id": n, "at": at("02-01 12:00"), "text": f"t{n}", "grace": {1: None, 2: -1}.get(n, 60), "nested": None}
             for n in range(1, dimensions.MAX_VALUES + 2)]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(found, schema=ROWS), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


COLUMNS = {"id": "bigint", "at": "timestamp"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"carry": ["segment"]}, "carry: segment is not one of the rule's columns: id, at, text, grace."),
        ({"carry": ["segment"], "columns": {**COLUMNS, "segment": "string"}},
         r"columns: file:.*/rows\.parquet has no column segment; its col"),
        ({"carry": ["nested"], "columns": {**COLUMNS, "nested": "string"}},
         r"columns: nested is struct<name: string> in .*rows\.parquet, which cannot be read as string"),
        ({"carry": ["text"]}, r"carry: text has more than 1,000 different values in .*/rows\.parquet\. Carry a column"),
        ({"delay": "grace", "when": "id = 1"}, r"delay: it is null for 1 rows of .* a job, such as 'order:1'\."),
        ({"delay": "grace", "when": "id = 2"}, r"delay: it is negative for 1 rows of .* job, such as 'order:2'\."),
        ({"delay": "-1 days", "zone": "Europe/Rome"}, "delay: it is '-1 days': it must not be negative"),
        ({"key": "element_at(split(text, ','), 5)"}, "an expression fails on a row: The index 5 is out of bounds"),
        ({"when": "raise_error('no') IS NULL"}, r"an expression fails on a row: no\."),
        ({"parquet": "foo://x/rows.parquet"}, r"parquet: foo://x/rows\.parquet cannot be opened: .*Use a path, or"),
        ({"parquet": "s3://me:hush@x/*.parquet"}, r"parquet: The URI s3://x was given with a password or parameters"),
    ],
)  # fmt: skip
def test_a_rule_that_does_not_fit_its_rows_is_refused_with_its_field(
    ask: Asked, lake: Lake, rows: Path, changed: dict[str, Any], sentence: str
) -> None:
    code, message = ask("audit", file="a.toml", rules=[{**RULE, "parquet": str(rows), **changed}])

    assert (code, bool(re.search(sentence, message))) == (ExitCode.BAD_INPUT, True), message
    assert message.startswith("a.toml, rule 1, ")
    assert "\n" not in message
    assert "hush" not in message
    assert (lake.document(audit.DOCUMENT), lake.runs("audit")) == ({}, [])


def test_a_text_of_parquet_that_is_no_utf_8_is_bad_input(ask: Asked, tmp_path: Path) -> None:
    texts = pyarrow.array([b"Zo\xeb"])
    not_utf_8 = pyarrow.Array.from_buffers(pyarrow.string(), 1, texts.buffers())
    table = pyarrow.table({"id": [1], "at": [at("02-01 12:00")], "text": not_utf_8, "grace": [60]})
    parquet.write_table(table, tmp_path / "x.parquet")
    code, message = ask("audit", file="a.toml", rules=[{**RULE, "parquet": str(tmp_path), "key": "text"}])
    assert (code, "an expression fails on a row: Invalid UTF8 byte sequence" in message) == (
        ExitCode.BAD_INPUT, True), message  # fmt: skip


# Loads

LIMITS = {"topics": {"order.close": 30_000}, "max_delay_seconds": 10**9, "max_body_bytes": 65_536}
NAMED = {"topic": "order.close", "key": "id"}


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.csv"
    path.write_text("id,due_at,grace\na,2030-02-01T12:00Z,60\nb,2030-02-01T12:00Z,-60\nc,2030-02-01T12:00Z,\n")
    return path


@pytest.mark.parametrize(
    ("mapping", "code", "sentence"),
    [
        ({"since": "due_at", "delay": "cast(grace AS int)"}, 1, "2 of 3 rows were rejected, more than 5% .*row 3 of "),
        ({"key": "max(id)"}, 2, r"The mapping's key, max\(id\), is not a valid expression: "),
        ({"key": "*"}, 2, r"The mapping's key, \*, is not a valid expression: "),
        ({"body": {"all": "*"}}, 2, r"The mapping's body.all, \*, is not a valid expression: "),
        ({"key": "explode(split(id, ';'))"}, 2, r"The mapping's key, explode.*, is not a valid expression: "),
        ({"when": "count(*) > 1"}, 2, r"The mapping's when, count\(\*\) > 1, is not a valid expression: "),
        ({"ttr": "element_at(split(id, ','), 5)"}, 2, "The mapping fails for .* Nothing was loaded: .*The index 5 is"),
    ],
)  # fmt: skip
def test_a_mapping_that_does_not_fit_its_rows_loads_nothing(
    ask: Asked, orders: Path, mapping: dict[str, str], code: int, sentence: str
) -> None:
    found, message = ask("load", source=str(orders), mapping={**NAMED, **mapping}, limits=LIMITS)
    assert (found, bool(re.search(sentence, message))) == (code, True), message
    assert not Job.objects.exists()


def test_columns_of_any_name_can_be_loaded_unless_a_load_has_a_column_of_this_name(ask: Asked, tmp_path: Path) -> None:
    row = {"due_at": "2030-02-01T12:00Z", "a`b": "x", "_metadata": "y", "c.d": "z"}
    nanos = pyarrow.array([1], pyarrow.timestamp("ns", "UTC"))
    parquet.write_table(pyarrow.Table.from_pylist([row]).append_column("e`f", nanos), tmp_path / "odd.parquet")
    (tmp_path / "odd.csv").write_text("\n".join([",".join(row), ",".join(row.values())]))
    for kind in ("csv", "parquet"):
        mapping = {"topic": "order.close", "key": f"'{kind}'", "body": {"odd": "concat(`a``b`, `_metadata`, `c.d`)"}}
        odd = str(tmp_path / f"odd.{kind}")
        assert ask("load", source=odd, mapping=mapping, limits=LIMITS) == (ExitCode.DONE, "")
    assert list(Job.objects.values_list("key", "body")) == [("csv", {"odd": "xyz"}), ("parquet", {"odd": "xyz"})]

    for path, reserved in ((tmp_path / "reserved.csv", "__Row"), (tmp_path / "reserved.parquet", "__wanted")):
        path.write_text(f"id,due_at,{reserved}")
        if path.suffix == ".parquet":
            parquet.write_table(pyarrow.table({"id": ["c"], "due_at": ["2030-02-01T12:00Z"], reserved: ["x"]}), path)
        sentence = f"{path} has a column {reserved}, a name that a load uses itself: rename it."
        assert ask("load", source=str(path), mapping=NAMED, limits=LIMITS) == (ExitCode.BAD_INPUT, sentence)


def test_a_parquet_file_with_a_type_that_spark_does_not_read_is_bad_input(ask: Asked, tmp_path: Path) -> None:
    for values, type_name in (
        (pyarrow.array([time(9)]), "TIME"), (pyarrow.array([b"a" * 16], pyarrow.uuid()), "UUID"),
        (pyarrow.array([1.5], pyarrow.float16()), "FLOAT16"),
    ):  # fmt: skip
        path = tmp_path / "types.parquet"
        parquet.write_table(pyarrow.table({"id": ["a"], "due_at": ["2030-02-01T12:00Z"], "x": values}), path)
        code, message = ask("load", source=str(path), mapping=NAMED, limits=LIMITS)
        assert (code, message.startswith(f"Spark cannot read {path}: "), type_name in message) == (
            ExitCode.BAD_INPUT, True, True), message  # fmt: skip


def test_a_source_that_cannot_be_opened_is_bad_input_and_one_that_is_not_read_to_its_end_is_not(
    ask: Asked, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, message = ask("load", source="foo://x/orders.csv", mapping=NAMED, limits=LIMITS)
    assert (code, message.partition(": ")[0]) == (ExitCode.BAD_INPUT, "foo://x/orders.csv cannot be opened")
    code, message = ask("load", source="s3://me:hush@x/orders.csv", mapping=NAMED, limits=LIMITS)
    assert (code, "hush" in message) == (ExitCode.BAD_INPUT, False)

    monkeypatch.setattr(files, "rows_of", lambda source: 4)
    code, message = ask("load", source=str(orders), mapping=NAMED, limits=LIMITS)
    assert (code, message.partition(" Every")[0]) == (
        ExitCode.COULD_NOT_RUN, f"Only 3 of 4 rows can be read in {orders}. Nothing was loaded.")  # fmt: skip
    assert not Job.objects.exists()


def test_a_parquet_file_that_spark_cannot_read_for_its_name_is_bad_input(
    ask: Asked, rows: Path, tmp_path: Path
) -> None:
    """Hadoop takes what precedes the colon for the scheme of a URI. Folders may have one."""
    named = rows.rename(tmp_path / "orders 09:00.parquet")
    (tmp_path / "at 09:00").mkdir()
    shutil.copy(named, tmp_path / "at 09:00" / "orders.parquet")
    load = {"mapping": {**NAMED, "key": "id", "due": "at"}, "limits": LIMITS, "most_rejects": "2000"}
    sentence = f"Spark cannot read {named}: the name has a colon. Rename it."

    rule = {**RULE, "parquet": str(named), "when": "id = 3"}
    assert ask("audit", file="audit.toml", rules=[rule]) == (
        ExitCode.BAD_INPUT, f"audit.toml, rule 1, parquet: {sentence}")  # fmt: skip
    assert ask("load", source=str(named), **load) == (ExitCode.BAD_INPUT, sentence)
    code, message = ask("audit", file="audit.toml", rules=[{**rule, "parquet": str(tmp_path / "at 09:00")}])
    assert (code, message) == (ExitCode.FAULTS, "order.close: 1 missing.")
    assert ask("load", source=str(tmp_path / "at 09:00"), **load)[0] == ExitCode.DONE


def test_a_parquet_file_that_spark_ignores_is_refused_by_name_and_left_out_of_folders_and_patterns(
    ask: Asked, rows: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    load: dict[str, Any] = {"mapping": {**NAMED, "due": "at"}, "limits": LIMITS}
    for name in ("_orders.parquet", ".orders.parquet"):
        hidden = shutil.copy(rows, folder / name)
        sentence = f"Spark ignores {hidden}, because its name begins with _ or a dot. Rename it."
        assert ask("audit", file="a.toml", rules=[{**RULE, "parquet": str(hidden)}]) == (
            ExitCode.BAD_INPUT, f"a.toml, rule 1, parquet: {sentence}")  # fmt: skip
        assert ask("load", source=str(hidden), **load) == (ExitCode.BAD_INPUT, sentence)
    code, message = ask("load", source=str(folder), **load)
    assert (code, message.rpartition(": ")[2]) == (ExitCode.BAD_INPUT, ".orders.parquet, _orders.parquet.")

    for number, path in enumerate((folder / "1.parquet", folder / "_day=7" / "1.parquet")):
        path.parent.mkdir(exist_ok=True)
        row = {"id": number, "at": at("02-01 12:00"), "text": "", "grace": 0, "nested": None}
        parquet.write_table(pyarrow.Table.from_pylist([row], schema=ROWS), path)
    for pattern, files_read in (("", 2), ("*", 2), ("*.parquet", 1), ("_day=*", 1), ("_*.parquet", 0)):
        rule = {**RULE, "parquet": str(folder / pattern)}
        assert len(audit.inputs(file="a.toml", rules=[rule])) == files_read
    assert ask("audit", file="a.toml", rules=[{**RULE, "parquet": f"{folder}/*"}]) == (
        ExitCode.FAULTS, "order.close: 2 missing.")  # fmt: skip
    (folder / "1.parquet").unlink()
    assert ask("load", source=str(folder), **load) == (ExitCode.DONE, "")
    assert Job.objects.get().key == "1"


def test_a_pattern_leaves_out_hidden_folders_unless_it_names_them_before_its_first_wildcard(tmp_path: Path) -> None:
    shown, hidden = tmp_path / "orders" / "day=1" / "a.parquet", tmp_path / "orders" / "_temporary" / "b.parquet"
    for each in (shown, hidden):
        each.parent.mkdir(parents=True)
        parquet.write_table(pyarrow.table({"id": [1]}), each)

    def found(pattern: str) -> list[str]:
        return [path for _, path in audit.inputs(file="a.toml", rules=[{**RULE, "parquet": f"{tmp_path}/{pattern}"}])]

    for pattern in ("orders", "*", "**", "orders/*", "orders/*/*.parquet", "orders/**/*.parquet", "*/*/[ab].parquet"):
        assert found(pattern) == [str(shown)], pattern
    assert found("orders/_temporary") == found("orders/_temporary/*") == [str(hidden)]


@pytest.mark.parametrize("part", ["", "day=1", "day=1/*.parquet", "*/*", "**", "day=1/{file}"])
def test_a_delta_table_is_refused_as_its_folder_also_has_deleted_rows(tmp_path: Path, part: str) -> None:
    table = tmp_path / "orders"
    write_deltalake(table, pyarrow.table({"id": [1, 2], "day": ["1", "1"]}), partition_by=["day"])
    DeltaTable(table).delete("id = 1")
    path = f"{table}/{part}".format(file=next(table.glob("day=1/*.parquet")).name)
    message = f"{re.escape(str(table))} is a Delta table\\. "
    columns = {"id": "bigint"}
    with pytest.raises(BadRule, match=f"rule 1, parquet: {message}"):
        audit.inputs(file="a.toml", rules=[{**RULE, "columns": columns, "parquet": path}])
    if "*" not in part:
        with pytest.raises(BadSettings, match=message):
            files.inspect(path)


def test_a_link_to_a_missing_file_in_a_folder_is_refused_by_name_unless_the_name_is_hidden(
    ask: Asked, rows: Path, tmp_path: Path
) -> None:
    """pyarrow leaves it out of its lists, so that the rows of the file would be missed unnoticed."""
    folder, gone = tmp_path / "orders", tmp_path / "gone.parquet"
    link = folder / "more" / "2.parquet"
    link.parent.mkdir(parents=True)
    shutil.copy(rows, folder / "1.parquet")
    for each in (link, folder / ".3.parquet"):
        each.symlink_to(gone)
    rule = {**RULE, "parquet": str(folder), "when": "id = 3"}
    load: dict[str, Any] = {"mapping": {**NAMED, "due": "at"}, "limits": LIMITS, "most_rejects": "2000"}
    sentence = f"{link} is a link to {gone}, which does not exist. Remove the link."
    assert ask("audit", file="a.toml", rules=[rule]) == (ExitCode.BAD_INPUT, f"a.toml, rule 1, parquet: {sentence}")
    assert ask("load", source=str(folder), **load) == (ExitCode.BAD_INPUT, sentence)

    link.unlink()
    assert ask("audit", file="a.toml", rules=[rule]) == (ExitCode.FAULTS, "order.close: 1 missing.")
    assert ask("load", source=str(folder), **load) == (ExitCode.DONE, "")


@pytest.mark.parametrize("other", ["", "week=1", "day=2/hour=3", "more"])
def test_files_in_folders_of_different_columns_are_bad_input(
    ask: Asked, orders: Path, tmp_path: Path, other: str
) -> None:
    """Of files with and without such a folder, Spark reads only those with it."""
    for folder in ("day=1", other, "day=1/part"):
        (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
        table = pyarrow.table({"id": [folder], "due_at": ["2030-02-01T12:00Z"]})
        parquet.write_table(table, tmp_path / "in" / folder / "x.parquet")
    code, message = ask("load", source=str(tmp_path / "in"), mapping=NAMED, limits=LIMITS)
    assert (code, "are in folders of different columns" in message) == (ExitCode.BAD_INPUT, True), message
    assert str(Path("in", other, "x.parquet")) in message

    shutil.rmtree(tmp_path / "in" / other) if other else (tmp_path / "in" / "x.parquet").unlink()
    assert ask("load", source=str(tmp_path / "in"), mapping=NAMED, limits=LIMITS) == (ExitCode.DONE, "")
    assert set(Job.objects.values_list("key", flat=True)) == {"day=1", "day=1/part"}


def test_an_empty_file_is_no_parquet_file(ask: Asked, rows: Path, tmp_path: Path) -> None:
    """It may be an upload that failed. A CSV file may be empty."""
    (tmp_path / "x.parquet").touch()
    code, message = ask("load", source=str(tmp_path), mapping={**NAMED, "due": "at"}, limits=LIMITS)
    assert (code, message.partition(":")[0]) == (
        ExitCode.BAD_INPUT, f"{tmp_path}/x.parquet is not a Parquet file, or was not written completely")  # fmt: skip


# Executors

HIDING = """
import sys

class Finder:
    def find_spec(self, name, *_):
        if name == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name=name)

sys.meta_path.insert(0, Finder())
"""


def test_an_executors_python_of_another_version_or_without_a_package_is_named(
    ask: Asked, spark: Any, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that read a CSV file: really started, and told of another version by the driver."""
    context = spark.sparkContext
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    for name, value, sentence in (
        ("pythonVer", "3.9", r"Python in worker has different version: 3\.\d+ than that in driver: 3\.9\. Use the"),
        ("pythonExec", str(bare), r"Python lacks a package, .* executor: .*pyarrow.* Install delaytasks\[pipeline\]"),
    ):  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setattr(context, name, value)
            code, message = ask("load", source=str(orders), mapping=NAMED, limits=LIMITS)
        assert (code, bool(re.search(sentence, message, re.IGNORECASE))) == (ExitCode.COULD_NOT_RUN, True), message
        assert "PYSPARK_PYTHON" in message
    assert not Job.objects.exists()
