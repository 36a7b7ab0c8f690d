"""Read an order history from a CSV file and report each invalid row with its reason.

Columns: order_id, order_status, order_purchase_timestamp, order_approved_at. Other columns are ignored.
Times are ISO 8601 or `10/2/2017 10:56` (month first), in UTC unless they name a zone. An order with an
empty order_approved_at was never paid.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

COLUMNS = ("order_id", "order_status", "order_purchase_timestamp", "order_approved_at")
MAX_ID = 200
YEARS = (1970, 2999)
_MONTH_FIRST = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4}) (\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)


class InvalidFile(Exception):
    """The file cannot be replayed. The message is one sentence with the reason."""


class InvalidRow(ValueError):
    """A row is invalid. The message is the reason."""


@dataclass(frozen=True)
class PastOrder:
    order_id: str
    purchased_at: datetime  # aware, UTC
    approved_at: datetime | None  # None: never paid


@dataclass
class History:
    """The orders of a file by purchase time, and the problems of its invalid rows."""

    path: Path
    orders: list[PastOrder] = field(default_factory=list)
    bad_rows: list[str] = field(default_factory=list)  # "line 12: the order id is missing"


def read(path: Path) -> History:
    """Return the history in a CSV file. Invalid rows are listed in `bad_rows`. Raises InvalidFile."""
    history = History(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            take_rows(file, history)
    except OSError as error:
        raise InvalidFile(f"ORDERS={path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidFile(f"ORDERS={path} is not UTF-8 text ({error.reason}): save it as UTF-8.") from error
    if not history.orders:
        listed = "".join(f"\n  {problem}" for problem in history.bad_rows[:5])
        raise InvalidFile(f"ORDERS={path} contains no valid order.{listed}")
    history.orders.sort(key=lambda order: order.purchased_at)
    return history


def take_rows(file: TextIO, history: History) -> None:
    rows = numbered_rows(file)
    positions = find_columns(next(rows, ("", None))[1], history.path)
    line_of: dict[str, str] = {}
    for line, cells in rows:
        try:
            order = to_order(cells, positions)
            if order.order_id in line_of:
                raise InvalidRow(f"the order id {order.order_id!r} was already on {line_of[order.order_id]}")
        except InvalidRow as problem:
            history.bad_rows.append(f"{line}: {problem}")
        else:
            line_of[order.order_id] = line
            history.orders.append(order)


def numbered_rows(file: TextIO) -> Iterator[tuple[str, list[str] | None]]:
    """Yield each row as its position, "line 7" or "lines 7 to 9", and its cells, None if invalid. Skips blank lines."""
    reader = csv.reader(file)
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader, [])
        except csv.Error:
            cells = None
        last = reader.line_num
        if last < first:
            return
        if cells != []:
            yield (f"line {first}" if first == last else f"lines {first} to {last}"), cells


def find_columns(header: list[str] | None, path: Path) -> list[int]:
    """Return the position of each of COLUMNS in the header. Raises InvalidFile, which names the missing columns."""
    if header is None:
        raise InvalidFile(f"ORDERS={path} is empty or not CSV: the first line must contain {', '.join(COLUMNS)}.")
    names = [name.strip().lower() for name in header]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise InvalidFile(f"ORDERS={path} has no column {' and '.join(missing)}; its columns are {', '.join(names)}.")
    return [names.index(name) for name in COLUMNS]


def to_order(cells: list[str] | None, positions: list[int]) -> PastOrder:
    """Parse one row. Raises InvalidRow."""
    if cells is None:
        raise InvalidRow("invalid CSV")
    order_id, _, purchased, approved = (cells[i].strip() if i < len(cells) else "" for i in positions)
    if not order_id:
        raise InvalidRow("the order id is missing")
    if len(order_id) > MAX_ID or not order_id.isprintable():
        raise InvalidRow(f"the order id is not 1 to {MAX_ID} printable characters: {order_id[:40]!r}")
    if not purchased:
        raise InvalidRow("the purchase time is missing")
    purchased_at = to_time(purchased, "purchase")
    approved_at = to_time(approved, "approval") if approved else None
    if approved_at and approved_at < purchased_at:
        raise InvalidRow(f"approved ({approved}) before it was purchased ({purchased})")
    return PastOrder(order_id, purchased_at, approved_at)


def to_time(text: str, name: str) -> datetime:
    """Return the time in a text as an aware datetime in UTC. Raises InvalidRow."""
    try:
        time = parse_month_first(text) or datetime.fromisoformat(text)
        time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidRow(f"the {name} time {text[:40]!r} is invalid") from None
    if not YEARS[0] <= time.year <= YEARS[1]:
        raise InvalidRow(f"the {name} time {text[:40]!r} is outside the years {YEARS[0]} to {YEARS[1]}")
    return time


def parse_month_first(text: str) -> datetime | None:
    """Parse `10/2/2017 10:56`. Return None for another format. Raises ValueError for a day such as February 31."""
    match = _MONTH_FIRST.fullmatch(text)
    if not match:
        return None
    month, day, year, hour, minute, second = (int(part or 0) for part in match.groups())
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
