"""Parquet files of a rule. Each file is checked, because Spark would read a column that a file lacks as null."""

import glob
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark.sql.types import DecimalType

from ..rules.rules import Rule
from ..rules.types import can_read, no_column, type_of
from ..tables.lake import (
    HIDDEN,
    LakeError,
    check_no_delta_table,
    files_below,
    for_pyarrow,
    for_reading,
    for_spark,
    open_uri,
)
from . import nanoseconds

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import fs

ENDINGS = (".parquet", ".pq")
MAGIC = b"PAR1"  # first bytes of a Parquet file


def checked_files(rule: Rule) -> tuple[dict[tuple[str, ...], list[str]], int]:
    """Return the URIs of the rule's files for Spark, grouped by which of the rule's columns are stored in nanoseconds.

    The keys are the sorted names of these columns. Also return the number of rows according to the files' footers.
    Raises BadRule if there is no file, or if a file is unreadable or lacks the rule's columns.
    """
    uris: dict[tuple[str, ...], list[str]] = {}
    total = 0
    for files, path, uri in _files(rule):
        schema, rows = _footer(rule, files, path, uri)
        total += rows
        _check_file(rule, uri, schema)
        nanos = tuple(sorted(nanoseconds.columns_of(schema).keys() & rule.columns.keys()))
        try:
            uris.setdefault(nanos, []).append(for_reading(for_spark(uri)))
        except LakeError as error:
            raise rule.bad("parquet", str(error)) from error
    if not uris:
        raise rule.bad("parquet", f"{rule.parquet} contains no Parquet file.")
    return uris, total


def inputs(rule: Rule) -> list[tuple[str, str]]:
    """Return (argument of lake.Lake, path) of each of the rule's files. Raises BadRule if a local path is missing."""
    return [(path if uri.startswith("file:") else uri, path) for _, path, uri in _files(rule)]


def _files(rule: Rule) -> "Iterator[tuple[fs.FileSystem, str, str]]":
    """Yield (file system, path, URI) of each Parquet file. The rule's path may be a file, a folder or a pattern.

    Hidden files and folders are left out, as by Spark, unless the path itself names them before its first wildcard.
    """
    from pyarrow import fs

    remote = urlsplit(rule.parquet).scheme not in ("", "file")
    pattern = rule.parquet.removeprefix("file://")
    head = re.split(r"[*?\[]", pattern)[0]
    if not remote:
        local = fs.LocalFileSystem()
        paths = dict.fromkeys(sorted(glob.glob(pattern, recursive=True)))
        if not paths:
            raise rule.bad("parquet", f"{rule.parquet} does not exist.")
        folder = head.rpartition("/")[0]
        shown = [path for path in paths if path == pattern or not HIDDEN.search(path.removeprefix(folder))]
        found = dict.fromkeys(each for path in shown for each in _files_below(rule, local, path))
        for each in found:  # once, as a pattern may match a folder and the files in it
            if each in paths or _is_parquet(rule, local, each):
                yield local, each, f"file://{each}"
        return
    try:
        files, base = open_uri(for_pyarrow(head if head == pattern else head.rpartition("/")[0]))
    except LakeError as error:
        raise rule.bad("parquet", str(error)) from error
    prefix = rule.parquet[: len(rule.parquet) - len(urlsplit(rule.parquet).path) - len(urlsplit(rule.parquet).netloc)]
    for path in _files_below(rule, files, base):
        uri = f"{prefix}{path}"
        wanted = head == pattern or fnmatchcase(uri, pattern)
        if wanted and (path == base or _is_parquet(rule, files, path)):
            yield files, path, uri


def _files_below(rule: Rule, files: "fs.FileSystem", path: str) -> list[str]:
    """Return the path itself if it is a file; for a folder, the files below it, except hidden ones.

    Raises BadRule if the folder has a link to a missing file, and for files of a Delta table.
    """
    from pyarrow import fs

    is_folder = files.get_file_info(path).type == fs.FileType.Directory
    try:
        found = [each.path for each in files_below(files, path)] if is_folder else [path]
        check_no_delta_table(files, found)
    except LakeError as error:
        raise rule.bad("parquet", str(error)) from error
    return sorted(each for each in found if not HIDDEN.search(each.removeprefix(path).lstrip("/")))


def _is_parquet(rule: Rule, files: "fs.FileSystem", path: str) -> bool:
    """Return whether a file has the name of a Parquet file. Raises BadRule if it is one with another name."""
    if path.lower().endswith(ENDINGS):
        return True
    try:
        with files.open_input_file(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                return False
    except FileNotFoundError:  # renamed or removed since it was listed
        return False
    except OSError as error:
        raise rule.bad("parquet", f"{path} cannot be read, so it may be a Parquet file: {error}.") from error
    raise rule.bad("parquet", f"{path} is a Parquet file, but its name does not end with {' or '.join(ENDINGS)}.")


def _footer(rule: Rule, files: "fs.FileSystem", path: str, uri: str) -> "tuple[pyarrow.Schema, int]":
    """Return a file's schema and number of rows."""
    import pyarrow

    try:
        with files.open_input_file(path) as file:
            return nanoseconds.read_footer(file)
    except (pyarrow.ArrowInvalid, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise rule.bad("parquet", f"{uri} cannot be read as Parquet: {reason}.") from error


def _check_file(rule: Rule, uri: str, schema: "pyarrow.Schema") -> None:
    types = {field.name: field.type for field in schema}
    for name, declared in rule.columns.items():
        if name not in types:
            raise rule.bad("columns", no_column(uri, name, types))
        if len(same := [each for each in schema.names if each.lower() == name.lower()]) > 1:
            both = ", ".join(sorted(same))
            raise rule.bad("columns", f"{uri} has the columns {both}, which Spark takes for the same one.")
        if not _readable(types[name], declared):
            raise rule.bad("columns", f"{name} is {types[name]} in {uri}, which cannot be read as {declared}.")


def _readable(stored: Any, declared: str) -> bool:
    """Return whether Spark can read a column as the declared type. Timestamps need a zone.

    Spark reads an unsigned integer as the next wider type, one of 64 bits as a decimal.
    """
    from pyarrow import types

    if types.is_decimal(stored):
        return type_of(declared) == DecimalType(stored.precision, stored.scale)
    if types.is_uint64(stored):
        return type_of(declared) == DecimalType(20, 0)
    if types.is_timestamp(stored):
        return declared == "timestamp" and stored.tz is not None and stored.unit in ("ns", "us", "ms")
    kinds = {
        "string": types.is_string(stored), "boolean": types.is_boolean(stored),
        "date": types.is_date32(stored), "double": types.is_float32(stored) or types.is_float64(stored),
        "smallint": types.is_int8(stored) or types.is_uint8(stored) or types.is_int16(stored),
        "int": types.is_uint16(stored) or types.is_int32(stored),
        "bigint": types.is_uint32(stored) or types.is_int64(stored),
    }  # fmt: skip
    return any(can_read(kind, declared, as_text=False) for kind, is_so in kinds.items() if is_so)
