"""Read the input of a load as a frame: CSV or Parquet, a file or a folder.

The result of a query is first copied to a Parquet file (sources/query.py).

Each row also has the columns mapping.METADATA: the file, the row number and, if the row could not be parsed, the
problem. The columns of a CSV file are strings and have the names in its header; no types are inferred.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

from pyarrow import ArrowInvalid, fs, parquet
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from ..config import BadSettings
from ..tables.lake import HIDDEN, Lake, LakeError, check_no_delta_table, files_below, for_reading
from ..transforms.mapping import FILE, MESSAGE, METADATA, PROBLEM, RESERVED, ROW, TEXT, quoted
from . import csv_rows, nanoseconds

if TYPE_CHECKING:
    import pyarrow

FORMATS = {
    ".csv": "csv", ".csv.gz": "csv", ".tsv": "csv", ".tsv.gz": "csv", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
TAB_ENDINGS = (".tsv", ".tsv.gz")
METADATA_SCHEMA = [StructField(name, LongType() if name == ROW else StringType()) for name in METADATA]
MAX_TASKS = 512


@dataclass(frozen=True)
class Source:
    """root     path or URI as the user gave it
    kind       "csv" or "parquet"
    files      sorted paths for pyarrow, without CSV files of 0 bytes; empty: nothing to load
    identity   (path, bytes, time of the last change) of each file, to distinguish this input from others
    """

    root: str
    kind: str
    files: tuple[str, ...]
    identity: tuple[tuple[str, int, int], ...]
    encoding: str = "utf-8"
    delimiter: str = ","


def inspect(root: str, *, kind: str = "", encoding: str = "utf-8", delimiter: str = "") -> Source:
    """Find the files of an input. root: path or URI of a file or folder.

    kind        "csv" or "parquet"; "": chosen by the file names
    delimiter   "": a tab for .tsv files, else a comma

    Raises BadSettings if the input does not exist, is an empty folder, is part of a Delta table, has a link to a
    missing file or a URI that cannot be opened, or if its file names do not determine one kind and one delimiter.
    """
    try:
        lake = Lake(root)
        info = lake.files.get_file_info(lake.base)
        if info.type == fs.FileType.NotFound:
            raise BadSettings(f"{root} does not exist.")
        candidates = [info] if info.is_file else files_below(lake.files, lake.base)
        check_no_delta_table(lake.files, [each.path for each in candidates])
    except LakeError as error:
        raise BadSettings(str(error)) from error
    found = [each for each in candidates if not HIDDEN.search(each.path.removeprefix(lake.base))]
    kinds = {kind or _kind_of(each.path) for each in found}
    if kinds - {"csv", "parquet"} or len(kinds) > 1:
        shown = ", ".join(sorted(each.base_name for each in found)[:5])
        raise BadSettings(f"{root} is not all CSV or all Parquet ({shown}): give --format csv or --format parquet.")
    if not found and not candidates:
        raise BadSettings(f"{root} is an empty folder: it contains no CSV or Parquet file.")
    if not found and (hidden := sorted(each.base_name for each in candidates if _kind_of(each.path))):
        shown = ", ".join(hidden[:5])
        raise BadSettings(f"{root} has only files that are ignored, because a name begins with _ or a dot: {shown}.")
    kind = kind or next(iter(kinds), "parquet")
    paths = tuple(sorted(each.path for each in found if each.size or kind == "parquet"))
    identity = tuple(sorted((each.path, each.size, each.mtime_ns or 0) for each in found))
    delimiter = delimiter or _delimiter_of(root, [each.path for each in found])
    return Source(root, kind, paths, identity, encoding, delimiter)


def _delimiter_of(root: str, paths: list[str]) -> str:
    found = {"\t" if path.lower().endswith(TAB_ENDINGS) else "," for path in paths}
    if len(found) > 1:
        raise BadSettings(f"{root} has .tsv files and others: give --delimiter, or load them one by one.")
    return next(iter(found), ",")


def _kind_of(path: str) -> str:
    return next((kind for ending, kind in FORMATS.items() if path.lower().endswith(ending)), "")


def read(spark: SparkSession, source: Source, *, shown: str = "") -> DataFrame:
    """Return the rows of all files, with METADATA.

    shown   name to store as the file of every row; "": the path of the row's file

    Raises BadSettings if files differ in their columns or are damaged.
    """
    found = _read_csv(spark, source) if source.kind == "csv" else _read_parquet(spark, source)
    return found.withColumn(FILE, F.lit(shown)) if shown else found


def _read_csv(spark: SparkSession, source: Source) -> DataFrame:
    """Read each file in one task, because a quoted value may contain line breaks. Large files are not split."""
    columns = csv_rows.header_of_all(source.root, source.files, source.encoding, source.delimiter)
    _check_names(source, columns)
    schema = StructType([*METADATA_SCHEMA, *(StructField(name, StringType()) for name in columns)])
    sizes = {path: size for path, size, _ in source.identity}
    files = spark.createDataFrame([(path, sizes[path]) for path in source.files], "path string, size bigint")
    read = partial(_rows, source.root, schema.names, source.encoding, source.delimiter)
    return files.repartition(min(len(source.files), MAX_TASKS)).mapInArrow(read, schema)


def _rows(
    root: str, names: list[str], encoding: str, delimiter: str, batches: Iterator["pyarrow.RecordBatch"]
) -> Iterator["pyarrow.RecordBatch"]:
    for batch in batches:
        for each in batch.to_pylist():
            yield from csv_rows.rows(root, each["path"], names, encoding, delimiter, each["size"])


def _read_parquet(spark: SparkSession, source: Source) -> DataFrame:
    lake = Lake(source.root)
    schema = _check_schemas(lake, source)
    _check_folders(lake, source)
    nanos = nanoseconds.columns_of(schema)
    # Pass the path of each file: from a folder, Spark would silently ignore the files in nested folders.
    options = {"basePath": lake.uri("")} if source.files != (lake.base,) else {}
    try:
        paths = [for_reading(lake.uri("").rstrip("/") + path.removeprefix(lake.base)) for path in source.files]
    except LakeError as error:
        raise BadSettings(str(error)) from error
    try:
        frame = spark.read.options(**options).parquet(*paths)
        names = frame.columns  # over Spark Connect, only this reads the schema
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":  # removed since it was listed, or not on this host
            raise
        reason = str(error).strip().split("\n")[0]
        raise BadSettings(f"Spark cannot read {source.root}: {reason}") from error
    _check_names(source, names)
    metadata = frame.metadataColumn("_metadata")
    is_utf8 = {each.name: _is_utf8(F.col(quoted(each.name)), each.dataType) for each in frame.schema}
    message = _invalid_text(is_utf8)
    columns = {
        FILE: _display_path(metadata["file_path"]), ROW: metadata["row_index"] + 1,
        PROBLEM: F.when(message.isNotNull(), csv_rows.ENCODING), MESSAGE: message, TEXT: F.lit(None).cast("string"),
    }  # fmt: skip
    for name in names:
        value = F.when(~is_utf8[name], None).otherwise(F.col(quoted(name)))
        columns[name] = nanoseconds.to_timestamps(value, nanos[name]) if name in nanos else value
    return frame.select(*(value.alias(name) for name, value in columns.items()))


def _is_utf8(value: Column, kind: DataType) -> Column:
    """Return whether all texts in a value are UTF-8, which not all writers check. It is true or null for a null."""
    if isinstance(kind, StringType):
        return F.is_valid_utf8(value)
    if isinstance(kind, StructType):
        return reduce(and_, (_is_utf8(value.getField(each.name), each.dataType) for each in kind), F.lit(True))
    if isinstance(kind, ArrayType):
        return F.forall(value, lambda item: _is_utf8(item, kind.elementType))
    if isinstance(kind, MapType):
        keys, values = ArrayType(kind.keyType), ArrayType(kind.valueType)
        return _is_utf8(F.map_keys(value), keys) & _is_utf8(F.map_values(value), values)
    return F.lit(True)


def _invalid_text(is_utf8: Mapping[str, Column]) -> Column:
    """Return a message if the condition of one of these columns is false."""
    messages = [
        F.when(~valid, f"The column {name} contains bytes that are not valid in UTF-8.")
        for name, valid in sorted(is_utf8.items())
    ]
    return F.coalesce(*messages, F.lit(None).cast("string"))


def _check_folders(lake: Lake, source: Source) -> None:
    """Raise BadSettings if the folders of the files, such as day=1, give them different columns.

    Spark would fail or, if only some files are in such a folder, silently ignore the others.
    """
    first_paths: dict[str, str] = {}  # names of the columns -> path of the first file
    for path in source.files:
        folder = path.removeprefix(lake.base).rpartition("/")[0]
        first_paths.setdefault(re.sub(r"=[^/]*", "=", folder).rpartition("=")[0], path)
    if len(first_paths) > 1:
        paths = " and ".join([*first_paths.values()][:2])
        raise BadSettings(f"{paths} are in folders of different columns: load these folders one by one.")


def _check_names(source: Source, names: list[str]) -> None:
    """Raise BadSettings if a column has one of the RESERVED names. Spark does not distinguish capitals."""
    if reserved := next((name for name in names if name.lower() in RESERVED), None):
        raise BadSettings(f"{source.root} has a column {reserved}, a name that a load uses itself: rename it.")


def rows_of(source: Source) -> int | None:
    """Return the number of rows according to the Parquet footers, or None for CSV."""
    if source.kind == "csv":
        return None
    return sum(_footer_rows(Lake(source.root), path) for path in source.files)


def _footer_rows(lake: Lake, path: str) -> int:
    with lake.files.open_input_file(path) as file:
        return int(parquet.read_metadata(file).num_rows)


def _display_path(uri: Column) -> Column:
    """Return a file's name for messages: a local path without scheme and URL encoding; for other files the URI."""
    path = F.url_decode(F.regexp_replace(F.regexp_replace(uri, "^file:/+", "/"), r"\+", "%2B"))
    return F.when(uri.startswith("file:"), path).otherwise(uri)


def _check_schemas(lake: Lake, source: Source) -> "pyarrow.Schema":
    """Return the schema, which must be the same in all files.

    Raises BadSettings if it is not, if a file is damaged, or if Spark takes two columns for the same one.
    """
    first: pyarrow.Schema | None = None
    for path in source.files:
        try:
            with lake.files.open_input_file(path) as file:
                schema, _ = nanoseconds.read_footer(file)
        except (ArrowInvalid, OSError) as error:
            raise BadSettings(f"{path} is not a Parquet file, or was not written completely: {error}") from error
        first = schema if first is None else first
        both = f"Columns: {', '.join(schema.names)} and {', '.join(first.names)}."
        for each in schema:
            kind = first.field(each.name).type if each.name in first.names else "missing"
            if kind != each.type:
                raise BadSettings(
                    f"{path} does not match {source.files[0]}: its column {each.name} is {each.type}, there it is "
                    f"{kind}. {both}"
                )
        if len(schema) != len(first):
            raise BadSettings(
                f"{path} does not match {source.files[0]}: it has {len(schema)} columns instead of {len(first)}. {both}"
            )
    assert first is not None, "a source has files"
    lower = [name.lower() for name in first.names]
    if same := sorted(name for name in first.names if lower.count(name.lower()) > 1):
        raise BadSettings(f"{path} has the columns {', '.join(same)}, which Spark takes for the same one.")
    return first
