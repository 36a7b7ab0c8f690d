"""Writes to the lake detect rows that cannot be read back."""

from typing import Any

import pytest
from pyarrow import parquet

from delaytasks.pipeline.tables import row_counts
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.pipeline.tables.row_counts import RowsLost


def test_a_write_returns_the_row_count_and_sorts_each_file(spark: Any, lake: Lake) -> None:
    frame = spark.range(100).selectExpr("id % 3 AS third", "100 - id AS number").repartition("third")

    assert row_counts.write(frame, lake, "x", "third", order=("number",)) == 100
    for path, _ in lake.parquet("x"):
        numbers = parquet.read_table(lake.path(path), partitioning=None)["number"].to_pylist()
        assert numbers == sorted(numbers)
    assert row_counts.write(frame.where("number > 90"), lake, "x", "third", mode="append") == 10
    assert row_counts.count_written(lake, "x") == 110
    assert row_counts.write(frame, lake, "lines", kind="json") == 100
    assert row_counts.count_written(lake, "lines", "json") == 100


def test_a_write_of_an_empty_frame_returns_0(spark: Any, lake: Lake) -> None:
    empty = spark.createDataFrame([], "topic string, id bigint")

    assert row_counts.write(empty, lake, "plain") == 0
    assert row_counts.write(empty, lake, "by", "topic") == 0
    assert row_counts.write(empty.where("id > 0").coalesce(1), lake, "lines", kind="json") == 0


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_rows_that_this_process_cannot_read_are_lost(
    spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    list_files = Lake.list_files
    monkeypatch.setattr(Lake, "list_files", lambda self, name, ending: list_files(self, name, ending)[1:])

    with pytest.raises(RowsLost, match=r"5 of 10 rows can be read in .*/x\. They were not published"):
        row_counts.write(spark.range(0, 10, 1, 2), lake, "x", kind=kind)
