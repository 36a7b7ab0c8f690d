"""After a run each partition has at most one small file, whatever else changes the table."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql.types import LongType, StringType, StructField, StructType

from delaytasks.pipeline.sources.database import Busy
from delaytasks.pipeline.tables import data_files, optimization
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake, LakeError

NAME = "t"
SCHEMA = StructType([
    StructField("id", LongType(), False), StructField("topic", StringType(), False), StructField("text", StringType()),
    StructField("run", LongType()),
])  # fmt: skip
COLUMNS = pyarrow.schema([("id", pyarrow.int64()), ("text", pyarrow.string()), ("run", pyarrow.int64())])
Add = Callable[..., Table]


@pytest.fixture
def add(lake: Lake) -> Add:
    """Commit a run of rows with these ids in each topic."""

    def make(*ids: int, topics: tuple[str, ...] = ("a", "b"), columns: tuple[str, ...] = ("id", "text", "run")) -> Any:
        table = Table(lake, NAME).create(SCHEMA)
        run = table.run + 1
        folder = data_files.new_folder(run)
        for topic in topics:
            path = Path(lake.path(f"{NAME}/{folder}/topic={topic}/part-0.parquet"))
            path.parent.mkdir(parents=True)
            rows = [{"id": each, "text": f"{topic}{each}", "run": run} for each in ids]
            parquet.write_table(pyarrow.Table.from_pylist(rows, schema=COLUMNS).select(columns), path)
        return table.commit(folder, run)

    return make


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the size below which a file is small, and the size of merged files."""

    def make(size: int, target: int = 1 << 20) -> None:
        monkeypatch.setattr(optimization, "SMALL_BYTES", size)
        monkeypatch.setattr(optimization, "TARGET_BYTES", target)

    return make


def rows(lake: Lake, version: int | None = None) -> list[tuple[Any, ...]]:
    """Return the rows as any program that reads Delta tables sees them."""
    found = DeltaTable(lake.path(NAME), version=version).to_pyarrow_table().to_pylist()
    return sorted((each["topic"], each["id"], each["text"], each["run"]) for each in found)


def files(lake: Lake) -> Counter[str]:
    return Counter(each.partition for each in Table(lake, NAME).files)


def expected(*ids: int, run: int | None = 1) -> list[tuple[Any, ...]]:
    return sorted((topic, each, f"{topic}{each}", run) for topic in ("a", "b") for each in ids)


def test_a_partition_has_one_small_file_after_each_run_and_older_versions_stay(lake: Lake, add: Add) -> None:
    for n in range(1, 5):
        optimization.merge_small_files(add(n))
        assert files(lake) == {"a": 1, "b": 1}
    assert rows(lake) == sorted(row for n in range(1, 5) for row in expected(n, run=n))
    assert {len(rows(lake, version)) for version in range(8)} == {0, 2, 4, 6, 8}
    found = Table(lake, NAME)
    assert [(each.rows, each.low["id"], each.high["id"], each.newest_run) for each in found.files] == [(4, 1, 4, 4)] * 2
    assert [each.partition for each in found.select("id", 4, 4)] == ["a", "b"]
    assert not found.select("id", 5)


def test_only_small_files_are_rewritten(lake: Lake, add: Add, small: Callable[..., None]) -> None:
    add(*range(1000), topics=("a",))
    large = Table(lake, NAME).files[0]
    small(large.size)
    for n in (2000, 2001, 2002):
        optimization.merge_small_files(add(n, topics=("a",)))
    found = Table(lake, NAME).files
    assert large.path in {each.path for each in found}
    assert sorted(each.rows for each in found) == [3, 1000]


def test_many_small_files_become_files_of_the_target_size(lake: Lake, add: Add, small: Callable[..., None]) -> None:
    for n in range(7):
        table = add(n, topics=("a",))
    size = table.files[0].size
    small(size + 100, target=3 * size - 100)
    optimization.merge_small_files(table)
    assert sorted(each.rows for each in Table(lake, NAME).files) == [1, 3, 3]


def test_nothing_is_committed_if_nothing_is_to_be_merged(lake: Lake, add: Add) -> None:
    table = add(1)
    optimization.merge_small_files(table)
    assert Table(lake, NAME).log.version() == table.log.version()  # type: ignore[union-attr]
    optimization.merge_small_files(Table(lake, "absent"))


def test_rows_of_files_without_a_newer_column_are_null_and_the_runs_of_the_others_stay_known(
    lake: Lake, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a converted file would hide that the merged one has rows of a new run."""
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 1)
    add(1, columns=("id", "text"))
    optimization.merge_small_files(add(2))
    assert rows(lake) == sorted([*expected(1, run=None), *expected(2, run=2)])
    found = Table(lake, NAME)
    assert [parquet.read_metadata(lake.path(each.path)).num_row_groups for each in found.files] == [2, 2]
    assert [each.newest_run for each in found.files] == [2, 2]
    assert len(found.run_files(2)) == 2


def test_withdrawn_rows_leave_a_merged_file_and_come_again_with_a_later_run(lake: Lake, add: Add) -> None:
    add(1, 2)
    optimization.merge_small_files(add(3))
    withdrawn = Table(lake, NAME).delete("id", [1, 3], 2)
    assert rows(lake) == expected(1, 2), "row 1 is of another run"
    optimization.merge_small_files(withdrawn)
    optimization.merge_small_files(add(3))
    assert rows(lake) == sorted([*expected(1, 2), *expected(3, run=3)])
    assert files(lake) == {"a": 1, "b": 1}


def test_many_rows_are_deleted_in_several_commits(lake: Lake, add: Add) -> None:
    """In one commit, delta-rs crashes with 22,000 values."""
    add(1, 2, 30_001).delete("id", range(2, 30_002))
    assert rows(lake) == expected(1)


def test_each_change_is_flushed_to_the_disk(lake: Lake, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are not may be lost in a power cut, after what was deleted from the database."""
    flushed: list[str] = []
    sync = Lake._sync
    monkeypatch.setattr(Lake, "_sync", lambda self, path: (flushed.append(path), sync(self, path)))
    add(1, 2)
    before = on_disk(lake)
    for change in (
        lambda table: table.delete("id", [1]),
        lambda table: table.z_order("a", ["id"], 1 << 20),
        lambda table: table.create(StructType([*SCHEMA, StructField("new", LongType())]), added=["new"]),
    ):
        flushed.clear()
        change(Table(lake, NAME))
        before, new = on_disk(lake), on_disk(lake) - before
        assert new
        assert new <= set(flushed)


def on_disk(lake: Lake) -> set[str]:
    return {str(path) for path in Path(lake.path(NAME)).rglob("*") if path.is_file()}


def test_ordered_tables_are_merged_with_what_comes_later(lake: Lake, add: Add) -> None:
    add(3, 1)
    table = add(2)
    for topic in ("a", "b"):
        table = table.z_order(topic, ["id"], 1 << 20)
    assert files(lake) == {"a": 1, "b": 1}
    optimization.merge_small_files(add(5, 4))
    assert files(lake) == {"a": 1, "b": 1}
    assert rows(lake) == sorted([*expected(1, 3), *expected(2, run=2), *expected(4, 5, run=3)])


def test_a_merge_that_is_killed_before_its_commit_is_repeated_and_its_file_is_vacuumed(
    lake: Lake, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dies(*_: Any) -> None:
        raise Killed

    add(1)
    table = add(2)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Table, "_write", dies)
        optimization.merge_small_files(table)
    left = list(Path(lake.path(NAME)).glob("topic=*/*.parquet"))
    assert rows(lake) == sorted([*expected(1), *expected(2, run=2)])

    optimization.merge_small_files(Table(lake, NAME))
    assert rows(lake) == sorted([*expected(1), *expected(2, run=2)])
    assert files(lake) == {"a": 1, "b": 1}
    DeltaTable(lake.path(NAME)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [each.exists() for each in left] == [False, False]
    assert rows(lake) == sorted([*expected(1), *expected(2, run=2)])


def test_folders_of_merged_runs_are_removed_when_their_files_are(lake: Lake, add: Add) -> None:
    add(1)
    optimization.merge_small_files(add(2))
    DeltaTable(lake.path(NAME)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    add(3, topics=("a",))
    running = Path(lake.path(f"{NAME}/{data_files.new_folder(4)}/topic=a"))
    running.mkdir(parents=True)
    optimization.merge_small_files(Table(lake, NAME))
    assert sorted(data_files.run_folders(lake, NAME).values()) == [3, 4]
    assert running.exists()
    assert rows(lake) == sorted([*expected(1), *expected(2, run=2), ("a", 3, "a3", 3)])


CHANGES: dict[str, Callable[[Table], object]] = {
    "merge": optimization.merge_small_files,
    "delete": lambda table: table.delete("id", [1]),
    "order": lambda table: table.z_order("a", ["id"], 1 << 20),
}


@pytest.mark.parametrize(
    ("first", "second"), [(name, "merge") for name in CHANGES] + [("merge", "delete"), ("merge", "order")]
)
def test_a_change_of_the_same_files_meanwhile_is_refused(lake: Lake, add: Add, first: str, second: str) -> None:
    add(1)
    table, theirs = add(2), Table(lake, NAME)
    _ = table.files
    CHANGES[first](theirs)
    before = rows(lake)
    with pytest.raises(Busy, match="Another process"):
        CHANGES[second](table)
    assert rows(lake) == before


def test_a_run_that_is_committed_meanwhile_stays(lake: Lake, add: Add) -> None:
    add(1)
    table = add(2)
    _ = table.files
    add(3)
    optimization.merge_small_files(table)
    assert rows(lake) == sorted([*expected(1), *expected(2, run=2), *expected(3, run=3)])
    assert files(lake) == {"a": 2, "b": 2}


def test_files_that_a_vacuum_takes_before_their_commit_are_missed(
    lake: Lake, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum without retention by another program takes files that are not in the log yet."""
    add(1)
    table, real = add(2), data_files.merge

    def vacuumed(*args: Any) -> None:
        real(*args)
        DeltaTable(lake.path(NAME)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    with monkeypatch.context() as patched, pytest.raises((LakeError, OSError)):
        patched.setattr(data_files, "merge", vacuumed)
        optimization.merge_small_files(table)
    assert rows(lake) == sorted([*expected(1), *expected(2, run=2)])


def test_a_merge_that_lost_rows_is_not_committed(lake: Lake, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    add(1)
    table, real = add(2), data_files.merge
    monkeypatch.setattr(data_files, "merge", lambda lake, files, *args: real(lake, files[:1], *args))
    with pytest.raises(LakeError, match=r"has 1 of 2 rows that were written"):
        optimization.merge_small_files(table)
    assert len(rows(lake)) == 4


def test_a_missing_file_is_named(lake: Lake, add: Add) -> None:
    add(1)
    table = add(2)
    lost = table.files[0].path
    Path(lake.path(lost)).unlink()
    with pytest.raises(LakeError, match=rf"{lost} \(a\) is missing or damaged"):
        optimization.merge_small_files(table)


def test_files_that_an_older_or_lost_log_does_not_name_are_kept(add: Add, lake: Lake) -> None:
    for n in range(3):
        add(n)
    log = Path(lake.path(f"{NAME}/_delta_log"))
    there = sorted(data_files.run_folders(lake, NAME).values())
    with pytest.raises(LakeError, match=r"/t has files of run 3, but its log ends with run 1: .*outdated copy"):
        data_files.remove_uncommitted(lake, NAME, 1)
    data_files.remove_uncommitted(lake, NAME, 3)
    log.rename(f"{log}.away")
    with pytest.raises(LakeError, match="has files of run 3, but its log ends with run 2: the log was lost"):
        data_files.remove_uncommitted(lake, NAME, 2)
    assert sorted(data_files.run_folders(lake, NAME).values()) == there
    Path(f"{log}.away").rename(log)
    data_files.remove_uncommitted(lake, NAME, 2)
    assert sorted(data_files.run_folders(lake, NAME).values()) == there[:-1]
