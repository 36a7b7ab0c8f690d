"""The Parquet files that a rule names, looked at one by one: Spark would take a column that one has not for null."""

import glob
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark.sql.types import DecimalType

from .rules import Rule
from .ruletypes import fits, no_column, type_of

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import fs


def checked(rule: Rule) -> list[str]:
    """The files as Spark names them; each has what the rule says. Raises BadRule, which names one that has not."""
    found = []
    for files, path, uri in _files(rule):
        _check_file(rule, uri, _arrow_schema(rule, files, path, uri))
        found.append(uri)
    if not found:
        raise rule.bad("parquet", f"{rule.parquet} holds no Parquet file.")
    return found


def _files(rule: Rule) -> "Iterator[tuple[fs.FileSystem, str, str]]":
    """(file system, path, URI) of each Parquet file that the rule's path means: a file, a folder's, or a pattern's."""
    from pyarrow import fs

    remote = urlsplit(rule.parquet).scheme not in ("", "file")
    if not remote:
        local = fs.LocalFileSystem()
        matching = sorted(glob.glob(rule.parquet.removeprefix("file://"), recursive=True))
        if not matching:
            raise rule.bad("parquet", f"{rule.parquet} does not exist.")
        for path in matching:
            yield from ((local, each, f"file://{each}") for each in _in(local, path))
        return
    head = re.split(r"[*?\[]", rule.parquet)[0]
    files, base = fs.FileSystem.from_uri(head if head == rule.parquet else head.rpartition("/")[0])
    prefix = rule.parquet[: len(rule.parquet) - len(urlsplit(rule.parquet).path) - len(urlsplit(rule.parquet).netloc)]
    for path in _in(files, base):
        uri = f"{prefix}{path}"
        if head == rule.parquet or fnmatchcase(uri, rule.parquet):
            yield files, path, uri


def _in(files: "fs.FileSystem", path: str) -> list[str]:
    """The path, or what is in its folder and those below; not what writers hide there."""
    from pyarrow import fs

    if files.get_file_info(path).type != fs.FileType.Directory:
        return [path]
    below = files.get_file_info(fs.FileSelector(path, recursive=True))
    hidden = re.compile(r"(^|/)[_.]")
    return sorted(
        each.path for each in below
        if each.type == fs.FileType.File and each.path.endswith(".parquet")
        and not hidden.search(each.path.removeprefix(path).lstrip("/"))
    )  # fmt: skip


def _arrow_schema(rule: Rule, files: "fs.FileSystem", path: str, uri: str) -> "pyarrow.Schema":
    import pyarrow
    from pyarrow import parquet

    try:
        with files.open_input_file(path) as file:
            return parquet.ParquetFile(file).schema_arrow
    except (pyarrow.ArrowInvalid, OSError) as error:
        said = str(error).split("\n")[0].rstrip(".")
        raise rule.bad("parquet", f"{uri} cannot be read as Parquet: {said}.") from error


def _check_file(rule: Rule, uri: str, schema: "pyarrow.Schema") -> None:
    found = {field.name: field.type for field in schema}
    for name, wanted in rule.columns.items():
        if name not in found:
            raise rule.bad("columns", no_column(uri, name, found))
        if not _readable(found[name], wanted):
            raise rule.bad("columns", f"{name} is {found[name]} in {uri}, which cannot be read as {wanted}.")


def _readable(found: Any, wanted: str) -> bool:
    """Instants have a zone, and no nanoseconds: those Spark does not read."""
    from pyarrow import types

    if types.is_decimal(found):
        return type_of(wanted) == DecimalType(found.precision, found.scale)
    if types.is_timestamp(found):
        return wanted == "timestamp" and found.tz is not None and found.unit in ("us", "ms")
    kinds = {
        "string": types.is_string(found) or types.is_large_string(found), "boolean": types.is_boolean(found),
        "date": types.is_date32(found), "double": types.is_float64(found),
        "smallint": types.is_int8(found) or types.is_int16(found), "int": types.is_int32(found),
        "bigint": types.is_int64(found),
    }  # fmt: skip
    return any(fits(kind, wanted, anything=False) for kind, is_so in kinds.items() if is_so)
