"""What is loaded, as a frame: a CSV or Parquet, a file or a folder of them, or what a query of the database answers.

Each row comes with mapping.ABOUT: its file, its number there, and what is wrong with it, if its columns could not be
told. A CSV's columns are texts under its header's names: nothing is inferred.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyarrow import ArrowInvalid, fs, parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from . import csvs
from .lake import Lake
from .mapping import ABOUT, FILE, MESSAGE, PROBLEM, ROW, TEXT
from .settings import BadSettings

if TYPE_CHECKING:
    import pyarrow

KINDS = {
    ".csv": "csv", ".csv.gz": "csv", ".tsv": "csv", ".tsv.gz": "csv", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
TABS = (".tsv", ".tsv.gz")
ABOUT_SCHEMA = [StructField(name, LongType() if name == ROW else StringType()) for name in ABOUT]
MOST_TASKS = 512


@dataclass(frozen=True)
class Source:
    """root     as it was asked for
    kind       "csv" or "parquet"
    files      paths as pyarrow names them, sorted; none: there is nothing to load
    identity   what tells it from another source: names, sizes and times
    """

    root: str
    kind: str
    files: tuple[str, ...]
    identity: tuple[tuple[str, int, int], ...]
    encoding: str = "utf-8"
    delimiter: str = ","


def look(root: str, *, kind: str = "", encoding: str = "utf-8", delimiter: str = "") -> Source:
    """What lies there. Raises BadSettings: nothing does, or nothing that can be told. delimiter "": by the names."""
    place = Lake(root)
    info = place.files.get_file_info(place.base)
    if info.type == fs.FileType.NotFound:
        raise BadSettings(f"There is no {root}.")
    listed = [info] if info.type == fs.FileType.File else _below(place)
    found = [each for each in listed if not _is_hidden(each.path.removeprefix(place.base))]
    kinds = {kind or _kind_of(each.path) for each in found}
    if kinds - {"csv", "parquet"} or len(kinds) > 1:
        named = ", ".join(sorted(each.base_name for each in found)[:5])
        raise BadSettings(f"{root} is neither CSV nor Parquet alone ({named}): say --format csv or --format parquet.")
    if not found and not listed:
        raise BadSettings(f"{root} is an empty folder: there is neither CSV nor Parquet in it.")
    full = [each for each in found if each.size]
    paths = tuple(sorted(each.path for each in full))
    identity = tuple(sorted((each.path, each.size, each.mtime_ns or 0) for each in found))
    delimiter = delimiter or _delimiter_of(root, [each.path for each in found])
    return Source(root, kind or next(iter(kinds), "parquet"), paths, identity, encoding, delimiter)


def _delimiter_of(root: str, paths: list[str]) -> str:
    found = {"\t" if path.lower().endswith(TABS) else "," for path in paths}
    if len(found) > 1:
        raise BadSettings(f"{root} has files that end in .tsv and others: say --delimiter, or load them one by one.")
    return next(iter(found), ",")


def _below(place: Lake) -> list[Any]:
    found = place.files.get_file_info(fs.FileSelector(place.base, recursive=True))
    return [each for each in found if each.type == fs.FileType.File]


def _is_hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def _kind_of(path: str) -> str:
    return next((kind for ending, kind in KINDS.items() if path.lower().endswith(ending)), "")


def read(spark: SparkSession, source: Source, *, named: str = "") -> DataFrame:
    """The rows, each with ABOUT; its file as `named`, if that is said.

    Raises BadSettings: files that do not go together, or are not what they seem.
    """
    found = _read_csv(spark, source) if source.kind == "csv" else _read_parquet(spark, source)
    return found.withColumn(FILE, F.lit(named)) if named else found


def _read_csv(spark: SparkSession, source: Source) -> DataFrame:
    """Each file by one task, as a quoted value may go over lines; large ones had better be several."""
    columns = csvs.header_of_all(source.root, source.files, source.encoding, source.delimiter)
    schema = StructType([*ABOUT_SCHEMA, *(StructField(name, StringType()) for name in columns)])
    files = spark.createDataFrame([(path,) for path in source.files], "path string")
    read = partial(_rows, source.root, schema.names, source.encoding, source.delimiter)
    return files.repartition(min(len(source.files), MOST_TASKS)).mapInArrow(read, schema)


def _rows(
    root: str, names: list[str], encoding: str, delimiter: str, batches: Iterator["pyarrow.RecordBatch"]
) -> Iterator["pyarrow.RecordBatch"]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            yield from csvs.rows(root, path, names, encoding, delimiter)


def _read_parquet(spark: SparkSession, source: Source) -> DataFrame:
    place = Lake(source.root)
    _check_schemas(place, source)
    # Each by its name: of a folder in a folder, Spark would say nothing and read nothing.
    below = {"basePath": place.uri("")} if source.files != (place.base,) else {}
    paths = [place.uri("").rstrip("/") + path.removeprefix(place.base) for path in source.files]
    frame = spark.read.options(**below).parquet(*paths)
    about = {
        FILE: _path(F.col("_metadata.file_path")), ROW: F.col("_metadata.row_index") + 1,
        **dict.fromkeys((PROBLEM, MESSAGE, TEXT), F.lit(None).cast("string")),
    }  # fmt: skip
    return frame.select(*(value.alias(name) for name, value in about.items()), *(f"`{name}`" for name in frame.columns))


def _path(uri: Column) -> Column:
    """As people name it."""
    path = F.url_decode(F.regexp_replace(F.regexp_replace(uri, "^file:/+", "/"), r"\+", "%2B"))
    return F.when(uri.startswith("file:"), path).otherwise(uri)


def _check_schemas(place: Lake, source: Source) -> None:
    first: pyarrow.Schema | None = None
    for path in source.files:
        try:
            with place.files.open_input_file(path) as file:
                schema = parquet.read_schema(file)
        except (ArrowInvalid, OSError) as error:
            raise BadSettings(f"{path} is no Parquet file, or was not written to its end: {error}") from error
        first = schema if first is None else first
        for each in schema:
            kind = first.field(each.name).type if each.name in first.names else "missing"
            if kind != each.type or len(schema) != len(first):
                raise BadSettings(
                    f"{path} does not go with {source.files[0]}: its column {each.name} is {each.type}, there it is "
                    f"{kind}; columns {', '.join(schema.names)} and {', '.join(first.names)}."
                )
