"""A lake on S3: documents and Delta tables on a server on loopback. For Spark there see spark/test_s3a.py."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pytest
from pyarrow import parquet
from pyspark.sql.types import LongType, StringType, StructField, StructType

from delaytasks.pipeline.tables import data_files, optimization
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake, LakeError

from ...support import s3_server

NAME = "archive/jobs"
COLUMNS = StructType(
    [StructField("id", LongType()), StructField("run", LongType()), StructField("topic", StringType())]
)
WRITERS = 6


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with s3_server.server() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield Lake(f"s3a://{s3_server.BUCKET}/default")


def write(lake: Lake, folder: str, number: int) -> None:
    name = lake.path(f"{NAME}/{folder}/topic=a/part-0.parquet")
    parquet.write_table(pyarrow.table({"id": [number], "run": [number]}), name, filesystem=lake.files)


def ids(table: Table) -> list[int]:
    assert table.log is not None
    return sorted(table.log.to_pyarrow_table().column("id").to_pylist())


def test_documents_are_replaced_and_killed_runs_removed(lake: Lake) -> None:
    assert lake.document("audit.json") == {}
    lake.publish("audit.json", {"runs": [1]})
    lake.publish("audit.json", {"runs": [2]})
    assert lake.document("audit.json") == {"version": 1, "runs": [2]}
    assert lake.list_files("", "")[0][0] == "audit.json"
    assert (lake.uri("a"), lake.location("a")) == ("s3a://lake/default/a", "s3://lake/default/a")

    table = Table(lake, NAME).create(COLUMNS)
    for run in (1, 2):
        write(lake, f"{run:06d}-0000000{run}", run)
    table = table.commit("000001-00000001", 1)
    data_files.remove_uncommitted(lake, NAME, table.run)
    assert data_files.run_folders(lake, NAME) == {"000001-00000001": 1}
    data_files.check(lake, table.files)
    assert ids(table) == [1]
    lake.files.delete_file(lake.path(table.files[0].path))
    with pytest.raises(LakeError, match="is missing or has another size"):
        data_files.check(lake, table.files)


def test_of_several_writers_at_once_none_overwrites_anothers_commit(lake: Lake) -> None:
    """delta-rs writes each version with If-None-Match, and again with the next number if the version exists."""
    table = Table(lake, NAME).create(COLUMNS)
    folders = [data_files.new_folder(number) for number in range(1, WRITERS + 1)]
    for number, folder in enumerate(folders, 1):
        write(lake, folder, number)
    opened = [Table(lake, NAME) for _ in folders]
    with ThreadPoolExecutor(WRITERS) as threads:
        commits = [
            threads.submit(each.commit, folder, 1, application=folder)
            for each, folder in zip(opened, folders, strict=True)
        ]
    assert [each.exception() for each in commits] == [None] * WRITERS
    table = Table(lake, NAME)
    assert ids(table) == [*range(1, WRITERS + 1)]
    assert (table.last_run(folders[0]), table.run) == (1, 0)

    optimization.merge_small_files(table)
    merged = Table(lake, NAME)
    assert ids(merged) == [*range(1, WRITERS + 1)]
    assert [each.rows for each in merged.files] == [WRITERS]
    data_files.check(lake, merged.files)


@pytest.mark.parametrize("uri", ["s3://key:hunter2@lake/default", "s3a://lake/default?secret_key=hunter2"])
def test_a_secret_in_the_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(LakeError, match="The URI s3://lake/default was given with a password or parameters") as raised:
        Lake(uri)
    assert "hunter2" not in str(raised.value)
    assert "AWS_SECRET_ACCESS_KEY" in str(raised.value)
