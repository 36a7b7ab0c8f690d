"""Read CSV files row by row, so that each bad row can be reported with its number.

The format is that of RFC 4180: a quoted value may contain line breaks and doubled quotes. Rows are numbered as in a
spreadsheet: the header is row 1. An empty value is read as null.
"""

import csv
import io
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..config import BadSettings
from ..tables.lake import Lake
from ..transforms.mapping import METADATA

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 10_000
BATCH_CHARACTERS = 16 << 20  # a batch ends when it has this many characters, even with fewer rows
MAX_ROW_CHARACTERS = 16 << 20
FATAL = ("file", "quote")  # kinds of problems after which the rest of the file cannot be parsed
MAX_RAW_CHARACTERS = 65_536  # maximum number of characters of an unparsable row that are stored with its reject
COLUMNS, ENCODING = "columns", "encoding"


def header_of_all(root: str, paths: Sequence[str], encoding: str, delimiter: str) -> list[str]:
    """Return the column names, which must be the same in all files.

    Raises BadSettings if files differ, or if names are missing, duplicate or undecodable.
    """
    first: list[str] = []
    for path in paths:
        names = _header(root, path, encoding, delimiter)
        if first and names != first:
            raise BadSettings(
                f"The columns of {path} ({', '.join(names)}) differ from those of {paths[0]} ({', '.join(first)})."
            )
        first = names
    return first


def _header(root: str, path: str, encoding: str, delimiter: str) -> list[str]:
    try:
        with _open(root, path, encoding) as file:
            names = next(csv.reader(Lines(file), delimiter=delimiter, strict=True), [])
    except LookupError:
        raise BadSettings(f"Unknown encoding {encoding!r}.") from None
    except (UnicodeError, OSError, csv.Error) as error:
        raise BadSettings(f"The header of {path} cannot be read as {encoding}: {error}.") from error
    if any(_escape(name) != name for name in names):
        raise BadSettings(f"The header of {path} cannot be read as {encoding}: {_escape(delimiter.join(names))}.")
    if not names:
        raise BadSettings(f"The header of {path} is empty: the first line must name the columns.")
    lower = [name.lower() for name in names]
    duplicate = next((name for name in names if lower.count(name.lower()) > 1), None)
    if duplicate is not None or not all(names):
        problem = f"the column {duplicate!r} twice" if duplicate else "a column without a name"
        raise BadSettings(f"The header of {path} has {problem}: {', '.join(names)}.")
    return names


def rows(
    root: str, path: str, names: Sequence[str], encoding: str, delimiter: str, size: int | None = None
) -> Iterator["pyarrow.RecordBatch"]:
    """Yield the rows of a file in batches. A FATAL problem ends the file: the last row reports it.

    names   columns of the batches: METADATA, then the columns of the file
    size    in bytes; if the file has another size, this is a FATAL problem. None: not known
    """
    batch: list[tuple[Any, ...]] = []
    characters = 0
    for row in _parse(root, path, len(names) - len(METADATA), encoding, delimiter, size):
        batch.append(row)
        characters += sum(len(value) for value in row[len(METADATA) - 1 :] if value)
        if len(batch) == BATCH_ROWS or characters >= BATCH_CHARACTERS:
            yield _as_batch(batch, names)
            batch, characters = [], 0
    yield _as_batch(batch, names)


class LineTooLong(csv.Error):
    """A line has more than MAX_ROW_CHARACTERS characters. Reading stops there, to bound the memory."""


class UnclosedQuote(csv.Error):
    """A row opens a quote that is not closed within MAX_ROW_CHARACTERS characters."""


class Lines:
    """Iterates over the lines of a file, and keeps the lines of the current row in case it is rejected.

    A byte order mark before the first line is left out: only some of Python's codecs remove it.

    Raises LineTooLong or UnclosedQuote if a row is too long. Call begin_row() before each row.
    """

    def __init__(self, file: io.TextIOWrapper) -> None:
        self.file, self.row_lines, self.length = file, list[str](), 0

    def __iter__(self) -> Iterator[str]:
        for number, found in enumerate(iter(partial(self.file.readline, MAX_ROW_CHARACTERS + 1), "")):
            line = found if number else found.removeprefix("\ufeff")
            self.row_lines.append(line)
            self.length += len(line)
            if len(line) > MAX_ROW_CHARACTERS:
                raise LineTooLong(f"has a line of more than {MAX_ROW_CHARACTERS:,} characters")
            if self.length > MAX_ROW_CHARACTERS:
                raise UnclosedQuote(f"opens a quote that is not closed within {MAX_ROW_CHARACTERS:,} characters")
            yield line

    def begin_row(self) -> None:
        self.row_lines.clear()
        self.length = 0

    def has_open_quote(self) -> bool:
        """Return whether the lines of the current row have an odd number of quotes: it may go on in the next line."""
        return sum(line.count('"') for line in self.row_lines) % 2 == 1

    def raw(self) -> str:
        """Return the text of the current row, at most MAX_RAW_CHARACTERS."""
        return "".join(self.row_lines)[:MAX_RAW_CHARACTERS]


def _parse(
    root: str, path: str, width: int, encoding: str, delimiter: str, size: int | None
) -> Iterator[tuple[Any, ...]]:
    number, previous = 0, csv.field_size_limit(MAX_ROW_CHARACTERS)  # the limit is process-wide, so it is restored below
    nulls: tuple[None, ...] = (None,) * width
    try:
        found = Lake(root).files.get_file_info(path).size
        if found is not None and size not in (None, found):
            raise OSError(f"it has {found} bytes on {socket.gethostname()} and not {size}")
        with _open(root, path, encoding) as file:
            lines = Lines(file)
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            while True:
                lines.begin_row()
                number += 1
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    kind, message = _classify(error, lines)
                    yield path, number, kind, f"Row {number} {message}.", _escape(lines.raw()), *nulls
                    if kind == COLUMNS:
                        continue
                    return
                if number == 1 or not row:
                    continue
                if len(row) != width:
                    message = f"The row has {len(row)} columns, the header has {width}."
                    yield path, number, COLUMNS, message, _escape(lines.raw()), *nulls
                else:
                    yield path, number, None, None, None, *[value or None for value in row]
    except (OSError, UnicodeError) as error:
        yield path, number, FATAL[0], f"The file cannot be read any further: {error}.", None, *nulls
    finally:
        csv.field_size_limit(previous)


def _classify(error: csv.Error, lines: Lines) -> tuple[str, str]:
    """Return the kind of the problem, and a predicate such as "opens a quote that is never closed"."""
    if isinstance(error, LineTooLong):
        return FATAL[0], str(error)
    if isinstance(error, UnclosedQuote):
        return FATAL[1], str(error)
    if str(error).startswith("unexpected end"):
        return FATAL[1], "opens a quote that is never closed"
    if lines.has_open_quote():
        return FATAL[1], f"is not a CSV row, and may go on in the next line: {error}"
    return COLUMNS, f"is not a CSV row: {error}"


def _open(root: str, path: str, encoding: str) -> io.TextIOWrapper:
    """Open a file as text. Undecodable bytes become surrogates, so that the rows with them can be reported."""
    compression = "gzip" if path.lower().endswith(".gz") else "detect"  # "detect" knows only small letters
    stream = Lake(root).files.open_input_stream(path, compression=compression, buffer_size=1 << 20)
    return io.TextIOWrapper(stream, encoding, errors="surrogateescape", newline="")


def _as_batch(rows: list[tuple[Any, ...]], names: Sequence[str]) -> "pyarrow.RecordBatch":
    import pyarrow

    try:
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        types = [pyarrow.int64() if name == METADATA[1] else pyarrow.string() for name in names]
        arrays = [pyarrow.array(each, type=kind) for each, kind in zip(columns, types, strict=True)]
    except UnicodeEncodeError:  # a value contains an undecodable byte
        return _as_batch([_reject_undecodable(row, names) for row in rows], names)
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(names))


def _reject_undecodable(row: tuple[Any, ...], names: Sequence[str]) -> tuple[Any, ...]:
    undecodable = [
        name for name, value in zip(names, row, strict=True) if isinstance(value, str) and _escape(value) != value
    ]
    if not undecodable:
        return row
    path, number = row[:2]
    text = ",".join(_escape(value or "") for value in row[len(METADATA) :])
    message = f"The column {undecodable[0]} contains bytes that are not valid in this encoding."
    return (path, number, ENCODING, message, text, *[None] * (len(names) - len(METADATA)))


def _escape(text: str) -> str:
    """Return the text with each undecodable byte written as an escape, such as \\xe9."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
