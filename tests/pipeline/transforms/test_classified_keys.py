"""The number of keys of each class and the first keys, read from an audit's files."""

from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from delaytasks.pipeline.tables.lake import Lake
from delaytasks.pipeline.transforms import classified_keys

CARRY = pyarrow.map_(pyarrow.string(), pyarrow.string())


def wrote(lake: Lake, name: str, keys: list[str | None]) -> None:
    columns: dict[str, Any] = {"key": keys, "rows": [1] * len(keys), "jobs": [2] * len(keys)}
    columns["carry"] = pyarrow.array([{"segment": key} for key in keys], CARRY)
    lake.write(f"classes/{name}", b"")  # makes the folder
    parquet.write_table(pyarrow.table(columns), lake.path(f"classes/{name}"), row_group_size=2)


@pytest.mark.only_on("sqlite")
def test_the_first_keys_of_all_files_are_found(lake: Lake) -> None:
    wrote(lake, "class=late/a.parquet", ["d", "b", "é", "z"])
    wrote(lake, "class=late/b.parquet", ["c", "a", "ab"])
    wrote(lake, "class=no_key/a.parquet", [None])

    found = classified_keys.totals(lake, "classes", samples=3)

    assert {name: (each.keys, each.rows, each.jobs) for name, each in found.items()} == {
        "late": (7, 7, 14), "no_key": (1, 1, 2)
    }  # fmt: skip
    assert [each["key"] for each in found["late"].samples] == ["a", "ab", "b"]
    assert found["late"].samples[0] == {"key": "a", "rows": 1, "jobs": 2, "carry": {"segment": "a"}}
    assert [each["key"] for each in found["no_key"].samples] == [None]
