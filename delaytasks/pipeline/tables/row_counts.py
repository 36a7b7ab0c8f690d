"""Write data frames, and compare the number of rows that the executors wrote with the number of rows in the files.

The counts differ if an executor does not share the lake's folder: it then writes to its own disk, but Spark reports
success.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pyarrow import parquet
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from .lake import Lake

THREADS = 16  # for reading files' footers; an object store takes about 50 ms for each
BLOCK_BYTES = 1 << 20
NEW = "error"  # Spark's write mode if the folder must not exist; Spark Connect does not know its other name


class RowsLost(Exception):
    """The driver cannot read all rows that executors wrote, or executors did not read all rows of the input."""


def write(
    frame: DataFrame, lake: Lake, name: str, *by: str, order: tuple[str, ...] = (), kind: str = "parquet",
    mode: str = NEW, options: Mapping[str, str] | None = None,
) -> int:  # fmt: skip
    """Write a frame to a folder of the lake. Return the number of rows. Raises RowsLost if some cannot be read back.

    by     partition columns: each of their values gets a folder
    order  columns by which the rows of each file are sorted. Do not pass a sorted frame instead: Spark would sort it
           again after the count
    kind   "parquet" or "json"
    mode   NEW, or "append" to add files to the folder
    """
    rows_before = count_written(lake, name, kind) if mode == "append" else 0
    observation = Observation()
    observed = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    if order:
        observed = observed.sortWithinPartitions(*by, *order)
    observed.write.format(kind).options(**options or {}).mode(mode).partitionBy(*by).save(lake.uri(name))
    rows = int(observation.get.get("rows") or 0)
    compare(rows, count_written(lake, name, kind) - rows_before, lake.path(name), "They were not published.")
    return rows


def compare(expected: int, found: int, path: str, outcome: str) -> None:
    """Compare two counts. Raises RowsLost if they differ. outcome: a sentence about what was not done."""
    if expected != found:
        counts = f"Only {found} of {expected} rows" if found < expected else f"{found} rows instead of {expected}"
        raise RowsLost(
            f"{counts} can be read in {path}. {outcome} Every executor must reach this path: mount the same folder on "
            "every host, then run this again. If all executors reach it, another program has changed the rows while "
            "they were read, or the disk is damaged."
        )


def count_written(lake: Lake, name: str, kind: str = "parquet") -> int:
    """Return the number of rows in all files of this kind in a folder and below."""
    return count(lake, [path for path, _ in lake.list_files(name, f".{kind}")], kind)


def count(lake: Lake, paths: list[str], kind: str = "parquet") -> int:
    """Return the number of rows in these files. paths: relative to the lake's root."""
    count_file = {"parquet": _rows, "json": _lines}[kind]
    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(lambda path: count_file(lake, path), paths))


def _rows(lake: Lake, path: str) -> int:
    with lake.reading(path) as name, lake.files.open_input_file(name) as file:
        return int(parquet.read_metadata(file).num_rows)


def _lines(lake: Lake, path: str) -> int:
    with lake.reading(path) as name, lake.files.open_input_stream(name) as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(BLOCK_BYTES), b""))
