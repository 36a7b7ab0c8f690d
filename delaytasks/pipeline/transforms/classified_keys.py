"""Read what an audit wrote: the number of keys of each class, and the first ones. Uses pyarrow, no Spark.

The files of a class are in one folder, such as `class=late`. They are read in batches, so memory is bounded. For these
few figures, Spark needs several times as much processor time.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow
from pyarrow import compute, parquet

from ..tables.lake import Lake


@dataclass
class ClassTotal:
    """keys         number of keys
    rows, jobs   sums of these columns
    first        the first keys in order, with all columns but the class
    """

    keys: int = 0
    rows: int = 0
    jobs: int = 0
    first: pyarrow.Table | None = None

    def add(self, batch: pyarrow.RecordBatch, samples: int) -> None:
        self.keys += batch.num_rows
        self.rows += compute.sum(batch["rows"]).as_py()
        self.jobs += compute.sum(batch["jobs"]).as_py()
        found = _first(pyarrow.table(batch), samples)
        self.first = found if self.first is None else _first(pyarrow.concat_tables([self.first, found]), samples)

    @property
    def samples(self) -> list[dict[str, Any]]:
        rows = self.first.to_pylist() if self.first else []
        return [{**row, "carry": dict(row["carry"])} for row in rows]


def _first(rows: pyarrow.Table, number: int) -> pyarrow.Table:
    return rows.take(compute.select_k_unstable(rows, number, sort_keys=[("key", "ascending")]))


def totals(lake: Lake, folder: str, samples: int) -> dict[str, ClassTotal]:
    """Return class -> its total, for each class that has keys. Raises LakeError.

    folder    folder of the classified keys, relative to the lake
    samples   maximum number of samples of a class
    """
    found: dict[str, ClassTotal] = {}
    for path, _ in lake.list_files(folder, ".parquet"):
        name = path.rpartition("class=")[2].partition("/")[0]
        with lake.reading(path) as location, lake.files.open_input_file(location) as file:
            for batch in parquet.ParquetFile(file).iter_batches():
                found.setdefault(name, ClassTotal()).add(batch, samples)
    return found
