"""Reads CSV files row by row, so that each bad row has its number: a broken character, a column too many, a lost quote.

As RFC 4180 has it: a value in quotes may go over lines, and a quote in it is doubled. Rows are numbered as a
spreadsheet does: the header is row 1. An empty value is null.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .lake import Lake
from .mapping import ABOUT
from .settings import BadSettings

if TYPE_CHECKING:
    import pyarrow

BATCH = 10_000  # rows
BATCH_CHARACTERS = 16 << 20  # a batch that has as many ends
LONGEST = 16 << 20  # characters of a row
FATAL = ("file", "quote")  # problems after which nothing is known of what follows in the file
SHOWN = 65_536  # characters of a row that is none, among the rejects
COLUMNS, ENCODING = "columns", "encoding"


def header_of_all(root: str, paths: Sequence[str], encoding: str, delimiter: str) -> list[str]:
    """The names of the columns. Raises BadSettings: files that differ, or names that are none."""
    first: list[str] = []
    for path in paths:
        names = _header(root, path, encoding, delimiter)
        if first and names != first:
            raise BadSettings(f"{path} has the columns {', '.join(names)}, and {paths[0]} has {', '.join(first)}.")
        first = names
    return first


def _header(root: str, path: str, encoding: str, delimiter: str) -> list[str]:
    try:
        with _opened(root, path, encoding) as text:
            names = next(csv.reader(Lines(text), delimiter=delimiter, strict=True), [])
    except LookupError:
        raise BadSettings(f"There is no encoding {encoding!r}.") from None
    except (UnicodeError, OSError, csv.Error) as error:
        raise BadSettings(f"The header of {path} cannot be read as {encoding}: {error}.") from error
    if any(_legible(name) != name for name in names):
        raise BadSettings(f"The header of {path} cannot be read as {encoding}: {_legible(delimiter.join(names))}.")
    lower = [name.lower() for name in names]
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None or not all(names) or not names:
        wrong = f"the column {twice!r} twice" if twice else "a column without a name"
        raise BadSettings(f"The header of {path} has {wrong}: {', '.join(names)}.")
    return names


def rows(root: str, path: str, names: Sequence[str], encoding: str, delimiter: str) -> Iterator["pyarrow.RecordBatch"]:
    """Batches with these names, ABOUT first. What cannot be read at all is a row with a FATAL problem."""
    batch: list[tuple[Any, ...]] = []
    characters = 0
    for row in _each(root, path, len(names) - len(ABOUT), encoding, delimiter):
        batch.append(row)
        characters += sum(len(value) for value in row[len(ABOUT) - 1 :] if value)
        if len(batch) == BATCH or characters >= BATCH_CHARACTERS:
            yield _as_batch(batch, names)
            batch, characters = [], 0
    yield _as_batch(batch, names)


class LineTooLong(csv.Error):
    """A line of more than LONGEST characters: what would hold it in memory stops there."""


class NeverClosed(csv.Error):
    """A quoted value goes over more than LONGEST characters."""


class Lines:
    """The lines of a text; and those since the last row, for its rejects. Raises csv.Error: too long."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self.text, self.since, self.length = text, list[str](), 0

    def __iter__(self) -> Iterator[str]:
        for line in iter(partial(self.text.readline, LONGEST + 1), ""):
            self.since.append(line)
            self.length += len(line)
            if len(line) > LONGEST:
                raise LineTooLong(f"has a line of more than {LONGEST:,} characters")
            if self.length > LONGEST:
                raise NeverClosed(f"opens a quote that is not closed within {LONGEST:,} characters")
            yield line

    def begin_row(self) -> None:
        self.since.clear()
        self.length = 0

    def taken(self) -> str:
        """What the last row was read from."""
        return "".join(self.since)[:SHOWN]


def _each(root: str, path: str, width: int, encoding: str, delimiter: str) -> Iterator[tuple[Any, ...]]:
    number, before = 0, csv.field_size_limit(LONGEST)  # of the whole process, which may be somebody else's, too
    nothing: tuple[None, ...] = (None,) * width
    try:
        with _opened(root, path, encoding) as text:
            lines = Lines(text)
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            while True:
                lines.begin_row()
                number += 1
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    kind, said = _told(error)
                    yield path, number, kind, f"Row {number} {said}.", _legible(lines.taken()), *nothing
                    if kind == COLUMNS:
                        continue
                    return
                if number == 1 or not row:
                    continue
                if len(row) != width:
                    message = f"The row has {len(row)} columns, and the header {width}."
                    yield path, number, COLUMNS, message, _legible(lines.taken()), *nothing
                else:
                    yield path, number, None, None, None, *[value or None for value in row]
    except (OSError, UnicodeError) as error:
        yield path, number, FATAL[0], f"It cannot be read on: {error}.", None, *nothing
    finally:
        csv.field_size_limit(before)


def _told(error: csv.Error) -> tuple[str, str]:
    """(problem, what a row does that is none)."""
    if isinstance(error, LineTooLong):
        return FATAL[0], str(error)
    if isinstance(error, NeverClosed):
        return FATAL[1], str(error)
    if str(error).startswith("unexpected end"):
        return FATAL[1], "opens a quote that is never closed"
    return COLUMNS, f"is no row of a CSV: {error}"


def _opened(root: str, path: str, encoding: str) -> io.TextIOWrapper:
    """Its text; a byte that is no character is kept as one that no text has, so that its row can be named."""
    stream = Lake(root).files.open_input_stream(path, compression="detect", buffer_size=1 << 20)
    named = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    return io.TextIOWrapper(stream, named, errors="surrogateescape", newline="")


def _as_batch(found: list[tuple[Any, ...]], names: Sequence[str]) -> "pyarrow.RecordBatch":
    import pyarrow

    try:
        columns = zip(*found, strict=True) if found else [()] * len(names)
        kinds = [pyarrow.int64() if name == ABOUT[1] else pyarrow.string() for name in names]
        arrays = [pyarrow.array(each, type=kind) for each, kind in zip(columns, kinds, strict=True)]
    except UnicodeEncodeError:  # a byte that is none of the encoding's characters
        return _as_batch([_without_broken(row, names) for row in found], names)
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(names))


def _without_broken(row: tuple[Any, ...], names: Sequence[str]) -> tuple[Any, ...]:
    broken = [
        name for name, value in zip(names, row, strict=True) if isinstance(value, str) and _legible(value) != value
    ]
    if not broken:
        return row
    path, number = row[:2]
    text = ",".join(_legible(value or "") for value in row[len(ABOUT) :])
    message = f"The column {broken[0]} has bytes that are no characters in this encoding."
    return (path, number, ENCODING, message, text, *[None] * (len(names) - len(ABOUT)))


def _legible(text: str) -> str:
    """With \\xe9 for a byte that is no character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
