"""Reads a real order history from a CSV file, and says of every row that it cannot use why not.

Columns: order_id, order_status, order_purchase_timestamp, order_approved_at; more are ignored.
Times in ISO form or as `10/2/2017 10:56`, month first; without a zone they are UTC. An empty
order_approved_at means that the order was never paid.
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


class UnusableFile(Exception):
    """The file cannot be replayed at all; the message is one sentence that says why."""


class BadRow(ValueError):
    """One row cannot be used; the message says why."""


@dataclass(frozen=True)
class PastOrder:
    order_id: str
    purchased_at: datetime  # aware, UTC
    approved_at: datetime | None  # None: never paid


@dataclass
class History:
    """What the file holds: orders by purchase time, and what was wrong with the other rows."""

    path: Path
    orders: list[PastOrder] = field(default_factory=list)
    bad_rows: list[str] = field(default_factory=list)  # "line 12: the order id is missing"


def read(path: Path) -> History:
    """The history in a CSV file. A bad row never stops it. Raises UnusableFile."""
    history = History(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            take_rows(file, history)
    except OSError as error:
        raise UnusableFile(f"ORDERS={path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UnusableFile(f"ORDERS={path} is not text in UTF-8 ({error.reason}): save it in that encoding.") from error
    if not history.orders:
        listed = "".join(f"\n  {problem}" for problem in history.bad_rows[:5])
        raise UnusableFile(f"ORDERS={path} holds no order that can be replayed.{listed}")
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
                raise BadRow(f"the order id {order.order_id!r} was already on {line_of[order.order_id]}")
        except BadRow as problem:
            history.bad_rows.append(f"{line}: {problem}")
        else:
            line_of[order.order_id] = line
            history.orders.append(order)


def numbered_rows(file: TextIO) -> Iterator[tuple[str, list[str] | None]]:
    """Each row with its place, "line 7" or "lines 7 to 9"; None where it is not CSV. Blank lines are no rows."""
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
    """Where each of COLUMNS is. Raises UnusableFile that names what is missing."""
    if header is None:
        raise UnusableFile(f"ORDERS={path} is empty or not CSV; its first line must name {', '.join(COLUMNS)}.")
    names = [name.strip().lower() for name in header]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise UnusableFile(f"ORDERS={path} lacks {' and '.join(missing)} in its first line; found: {', '.join(names)}.")
    return [names.index(name) for name in COLUMNS]


def to_order(cells: list[str] | None, positions: list[int]) -> PastOrder:
    """The order of one row. Raises BadRow."""
    if cells is None:
        raise BadRow("this is not CSV that can be read")
    order_id, _, purchased, approved = (cells[i].strip() if i < len(cells) else "" for i in positions)
    if not order_id:
        raise BadRow("the order id is missing")
    if len(order_id) > MAX_ID or not order_id.isprintable():
        raise BadRow(f"the order id is not 1 to {MAX_ID} printable characters: {order_id[:40]!r}")
    if not purchased:
        raise BadRow("the purchase time is missing")
    purchased_at = to_time(purchased, "purchase")
    approved_at = to_time(approved, "approval") if approved else None
    if approved_at and approved_at < purchased_at:
        raise BadRow(f"approved ({approved}) before it was purchased ({purchased})")
    return PastOrder(order_id, purchased_at, approved_at)


def to_time(text: str, what: str) -> datetime:
    """An aware datetime in UTC. Raises BadRow."""
    try:
        moment = month_first(text) or datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadRow(f"the {what} time {text[:40]!r} cannot be read") from None
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise BadRow(f"the {what} time {text[:40]!r} is not in the years {YEARS[0]} to {YEARS[1]}")
    return moment


def month_first(text: str) -> datetime | None:
    """`10/2/2017 10:56`; None if it does not look like that. Raises ValueError for a 31st of February."""
    match = _MONTH_FIRST.fullmatch(text)
    if not match:
        return None
    month, day, year, hour, minute, second = (int(part or 0) for part in match.groups())
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
