"""The folder of the pipeline's files: what is published is whole, and what is not means nothing."""

from pathlib import Path

import pytest

from delaytasks.pipeline.lake import VERSION, Lake, LakeError


def test_a_document_that_was_never_published_is_empty(lake: Lake) -> None:
    assert lake.document("archive.json") == {}
    assert lake.runs("archive") == []
    assert lake.parquet("archive/none") == []


def test_a_published_document_replaces_the_one_before_and_leaves_nothing_else(lake: Lake) -> None:
    lake.publish("archive.json", {"runs": [1]})
    lake.publish("archive.json", {"runs": [1, 2]})

    assert lake.document("archive.json") == {"version": VERSION, "runs": [1, 2]}
    assert [path.name for path in Path(lake.root).iterdir()] == ["archive.json"]


def test_files_of_a_newer_version_are_refused(lake: Lake) -> None:
    lake.publish("archive.json", {"version": VERSION + 1})

    with pytest.raises(LakeError, match=r"archive\.json was written by a newer delaytasks .* update delaytasks here"):
        lake.document("archive.json")


def test_a_damaged_document_is_named(lake: Lake) -> None:
    lake.write("archive.json", b'{"runs": [')

    with pytest.raises(LakeError, match=r"archive\.json is damaged"):
        lake.document("archive.json")


def test_spark_and_pyarrow_name_the_same_file_however_the_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a lake"
    for root in (str(folder), f"{folder}/", folder.as_uri()):
        assert Lake(root).path("a/b") == f"{folder}/a/b"
        assert Lake(root).uri("a/b") == f"file://{folder}/a/b"
