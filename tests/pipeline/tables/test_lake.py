"""The lake: documents are published atomically; other files are ignored."""

import os
import time
from pathlib import Path

import pytest
from pyarrow import fs

from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import VERSION, Lake, LakeError, check_no_delta_table


def test_an_unpublished_document_is_empty(lake: Lake) -> None:
    assert lake.document("archive.json") == {}
    assert lake.runs("archive") == []
    assert lake.parquet("archive/none") == []


def test_publishing_replaces_the_document_and_leaves_no_other_file(lake: Lake) -> None:
    lake.publish("archive.json", {"runs": [1]})
    lake.publish("archive.json", {"runs": [1, 2]})

    assert lake.document("archive.json") == {"version": VERSION, "runs": [1, 2]}
    assert [path.name for path in Path(lake.root).iterdir()] == ["archive.json"]


def test_publishing_removes_temporary_files_of_killed_writers_but_not_recent_ones(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def dies(name: str, hours_ago: float) -> str:
        before = set(Path(lake.root).glob("*"))
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(lake, "_sync", killed)
            lake.publish(name, {})
        (left,) = set(Path(lake.root).glob("*")) - before
        os.utime(left, (time.time() - hours_ago * 3600,) * 2)
        return left.name

    dies("archive.json", 1.1)
    dies("archive.json", 50)
    young, others = dies("archive.json", 0.9), dies("report.json", 50)
    somebodys = Path(lake.root) / "archive.json.mine.tmp"
    somebodys.touch()
    os.utime(somebodys, (0, 0))

    lake.publish("archive.json", {"runs": [1]})
    assert {path.name for path in Path(lake.root).iterdir()} == {"archive.json", young, others, somebodys.name}


def test_documents_of_a_newer_version_are_refused(lake: Lake) -> None:
    lake.publish("archive.json", {"version": VERSION + 1})

    with pytest.raises(LakeError, match=r"archive\.json was written by a newer delaytasks .* update delaytasks here"):
        lake.document("archive.json")


@pytest.mark.parametrize("text", ['{"runs": [', '{"version": "2"}', '{"version": null}'])
def test_a_damaged_document_is_named(lake: Lake, text: str) -> None:
    lake.write("archive.json", text.encode())

    with pytest.raises(LakeError, match=r"archive\.json is damaged"):
        lake.document("archive.json")


@pytest.mark.parametrize("name", ["a%20lake", "a\\lake"])
def test_a_path_that_delta_rs_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LakeError, match=r"The lake cannot be in .*: its path has a .\. Rename the folder\."):
        Table(Lake(f"{tmp_path}/{name}"), "t")


def test_spark_and_pyarrow_use_the_same_file_for_every_form_of_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a lake"
    for root in (str(folder), f"{folder}/", folder.as_uri()):
        assert Lake(root).path("a/b") == f"{folder}/a/b"
        assert Lake(root).uri("a/b") == f"file://{folder}/a/b"
    monkeypatch.chdir(tmp_path)
    assert Lake("a lake").root == str(folder), "an executor makes a lake of it, and is in another folder"


def test_a_delta_table_in_an_object_store_is_noticed_by_the_files_of_its_log() -> None:
    store = fs.SubTreeFileSystem("none", fs.LocalFileSystem())
    check_no_delta_table(store, ["bucket/orders/a.parquet", "bucket/_delta_log.parquet"])
    with pytest.raises(LakeError, match=r"^bucket/orders is a Delta table\."):
        check_no_delta_table(store, ["bucket/orders/a.parquet", "bucket/orders/_delta_log/0.json"])
