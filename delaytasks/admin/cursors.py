"""A position in the list of jobs, as an address carries it: opaque, unsigned, and checked as anything typed by hand."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from ..exceptions import BadCursor
from .walks import Position, Walk

END_OF_TIME_MS = 253_402_300_800_000  # the year 10000


def write(walk: Walk, position: Position, *, back: bool = False) -> str:
    """The cursor of the page behind `position`, or with `back` of the one before it."""
    text = json.dumps([walk.word, int(back), *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read(cursor: str, walk: Walk) -> tuple[Position, bool]:
    """(position, whether to go back) of a cursor of this walk. Raises BadCursor."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        word, back, *position = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, TypeError, RecursionError):
        raise BadCursor from None
    if word != walk.word or type(back) is not int or back not in (0, 1) or not _fits(position, walk.columns):
        raise BadCursor
    return position, bool(back)


def _fits(position: Sequence[Any], columns: Sequence[str]) -> bool:
    """Whether these values can be a position there, and a database can compare with them."""
    return len(position) == len(columns) and all(
        _comparable(value, column) for value, column in zip(position, columns, strict=True)
    )


def _comparable(value: Any, column: str) -> bool:
    if column == "key":
        return type(value) is str and not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
    return type(value) is int and 0 <= value < (END_OF_TIME_MS if column == "due_at" else 2**63)
