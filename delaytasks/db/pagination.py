"""Keyset pagination of jobs for the API, the admin and the commands. Each page reads a bounded number of rows.

A page starts at the position where the previous page ended, in an order that an index provides (see scans.py).
A page that has read as many rows as allowed ends early: it may be short or even empty, and its cursor continues the
list.
"""

import base64
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import QuerySet

from ..exceptions import BadCursor
from ..models import Job
from . import dialects, scans
from .counts import by_index, run
from .scans import DUE, KEY, NEWEST, OLDEST, JobFilter, Order, Position, Scan, Statement

ROUNDS = (2_000, 8_000, 32_000)  # rows read per round, until the page is full
ROUND_BY_ID = 128_000  # rows of one more round in the order by id, where neighbouring rows are cheap to read
PAGE_SECONDS = 0.1  # a page starts no further round after this time, or if the round is expected to end after it
TOPICS_SECONDS = 0.25  # a page ordered by topic starts no further topic after this
SMALL_TOPIC = 5_000  # topics with fewer jobs are read completely and sorted, as their jobs may be anywhere in the table
MERGED_TOPICS = (
    50  # up to this many topics are scanned one by one and merged; more are filtered from a scan of all jobs
)
CURSOR_VERSION = 1
END_OF_TIME_MS = 253_402_300_800_000  # the year 10000


class Page(NamedTuple):
    positions: list[Position]  # in order
    end: Position | None  # the next page starts after this; None: this is the last page

    @property
    def ids(self) -> list[int]:
        return [position[-1] for position in self.positions]


class Cursor(NamedTuple):
    """Where a page starts.

    after       None: at the beginning
    topic       the current topic of a list ordered by topic; "" in other lists
    backwards   True: the page ends before the position; False: it starts after the position
    """

    after: Position | None = None
    topic: str = ""
    backwards: bool = False


# Reading


def order_of(job_filter: JobFilter, *, by_topic: bool = False) -> Order:
    """Return the order of a list: by key for a key prefix, by due time for live jobs, newest first for others.

    by_topic   for find_by_topic(): instead of newest first, dead jobs are ordered oldest first and other jobs by key
    """
    if job_filter.key_prefix:
        return KEY
    if job_filter.is_live:
        return DUE
    if by_topic:
        return OLDEST if job_filter.is_dead else KEY
    return NEWEST


def find(using: str, order: Order, job_filter: JobFilter, after: Position | None, limit: int) -> Page:
    """Return the page of up to `limit` jobs after a position, with the jobs of all topics in one order.

    Takes a bounded number of statements. PostgreSQL is made to read in index order: it might choose to sort if it
    expects few rows, but after an outage or a large import without ANALYZE it may expect a million too few.
    """
    with by_index(using):
        return _find(using, order, job_filter, after, limit)


def find_first(using: str, job_filter: JobFilter, limit: int) -> tuple[list[int], bool]:
    """Return the ids of the first `limit` jobs, and whether there are more jobs. Reads as many rows as necessary."""
    order, page = order_of(job_filter), Page([], None)
    ids: list[int] = []
    while len(ids) <= limit:
        page = find(using, order, job_filter, page.end, limit + 1 - len(ids))
        ids += page.ids
        if page.end is None:
            break
    return ids[:limit], len(ids) > limit


def find_by_topic(using: str, job_filter: JobFilter, cursor: str, limit: int) -> tuple[list[int], str]:
    """Return the ids of a page of jobs ordered by topic, and the cursor of the next page ("" after the last page).

    A job that moves in the order between two pages is listed at most once at each of its places. Raises BadCursor.
    """
    order = order_of(job_filter, by_topic=True)
    start = decode(cursor, order, by_topic=True) if cursor else Cursor()
    ids: list[int] = []
    deadline = time.monotonic() + TOPICS_SECONDS
    with by_index(using):
        for topic in sorted(topic for topic in job_filter.topics or () if topic >= start.topic):
            after = start.after if topic == start.topic else None
            if len(ids) == limit or time.monotonic() > deadline:
                return ids, encode(order, Cursor(after, topic))
            page = _find(using, order, job_filter._replace(topics=(topic,)), after, limit - len(ids))
            ids += page.ids
            if page.end is not None:
                return ids, encode(order, Cursor(page.end, topic))
    return ids, ""


def fetch(jobs: "QuerySet[Job]", ids: Sequence[int]) -> list[Job]:
    """Return the jobs with these ids, in the order of `ids`, without those that no longer exist."""
    by_id: dict[int, Job] = jobs.in_bulk(ids) if ids else {}
    return [by_id[pk] for pk in ids if pk in by_id]


def _find(using: str, order: Order, job_filter: JobFilter, after: Position | None, limit: int) -> Page:
    scan, matching = _scan(using, order, job_filter), list[Position]()
    deadline, seconds_per_row = time.monotonic() + PAGE_SECONDS, 0.0
    for number, count in enumerate(_rounds(scan, order, limit)):
        started = time.monotonic()
        # The first round is too small to measure the speed.
        if number and started + (count * seconds_per_row if number > 1 else 0) > deadline:
            break
        positions, after = _read(scan, order, after, count, limit + 1 - len(matching))
        matching += positions
        if after is None or len(matching) > limit:
            break
        seconds_per_row = (time.monotonic() - started) / count
    return Page(matching[:limit], matching[limit - 1]) if len(matching) > limit else Page(matching, after)


def _scan(using: str, order: Order, job_filter: JobFilter) -> Scan:
    """Return the scan of a page.

    If an index begins with the topic and there are few topics, it scans topic by topic, otherwise all jobs. Small
    topics are scanned completely, by key.
    """
    topics = job_filter.topics
    if topics is None or (len(topics) > MERGED_TOPICS and order.name != "key"):
        return Scan(using, order, job_filter, (None,))
    if order.name == "id" and not job_filter.is_dead:
        by_key = Scan(using, KEY, JobFilter(job_filter.now), topics)
        is_small = scans.count_rows(by_key, SMALL_TOPIC) < SMALL_TOPIC
        return by_key._replace(job_filter=job_filter) if is_small else Scan(using, order, job_filter, (None,))
    return Scan(using, order, job_filter, topics)


def _rounds(scan: Scan, order: Order, limit: int) -> tuple[int, ...]:
    if scan.order != order:
        return (SMALL_TOPIC * len(scan.topics),)
    if scan.is_exact:
        return ((limit + 1) * len(scan.topics),)
    return (*ROUNDS, ROUND_BY_ID) if order.name == "id" else ROUNDS


def _read(
    scan: Scan, order: Order, after: Position | None, count: int, limit: int
) -> tuple[list[Position], Position | None]:
    """Read the next `count` rows. Return up to `limit` matching positions, and the position after which to continue.

    That position is None if there are no more rows. One statement finds both: with two, a row that leaves the index in
    between would hide other rows.
    """
    count_per_range = max(count // max(len(scan.topics), 1), 1)
    rows: list[Any] = []
    for sql, params in scans.union(scan, lambda topic: _select(scan, order, topic, after, count_per_range, limit)):
        rows += run(scan.using, sql, params)
    matching = _in_order(order, (position for *position, is_end in rows if not is_end))
    ends = _in_order(order, (position for *position, is_end in rows if is_end))
    if not ends:
        return matching, None
    # The rows after the end of a range are unknown, so the merged list ends where the first of the ranges ends.
    last, descending = _sort_key(ends[0]), order.descending
    return [row for row in matching if (_sort_key(row) >= last if descending else _sort_key(row) <= last)], ends[0]


def _select(scan: Scan, order: Order, topic: str | None, after: Position | None, count: int, limit: int) -> Statement:
    """Return the SQL of up to `limit` matching rows among the next `count` rows of a range, and of the last row."""
    is_sorted, to_ms = scan.order != order, dialects.get_dialect(scan.using).to_ms
    source, params = scans.index_range(scan, topic, None if is_sorted else after)
    where, values = scans.conditions(scan)
    has_end = bool(where) and not is_sorted
    if is_sorted and after:
        where, values = [*where, f"id {'<' if order.descending else '>'} %s"], [*values, *after]
    columns = ", ".join(to_ms(column) if column == "due_at" else column for column in order.columns)
    rows = f"SELECT id, key, topic, state, due_at FROM {source} LIMIT {count}"
    matches = f"WHERE {' AND '.join(where)}" if where else ""
    sort = scans.order_by(scan._replace(order=order), topic)
    sql = f"SELECT {columns}, 0 FROM ({rows}) AS scanned {matches} ORDER BY {sort} LIMIT {limit}"
    if not has_end:
        return sql, [*params, *values]
    end = f"SELECT {columns}, 1 FROM {source} LIMIT 1 OFFSET {count - 1}"
    return f"SELECT * FROM ({sql}) AS matching UNION ALL SELECT * FROM ({end}) AS last", [*params, *values, *params]


def _in_order(order: Order, positions: Iterable[Position]) -> list[Position]:
    return sorted(positions, key=_sort_key, reverse=order.descending)


def _sort_key(position: Position) -> tuple[Any, ...]:
    """Return a sort key that orders positions as the index does, with the keys of jobs compared byte by byte."""
    return tuple(value.encode() if isinstance(value, str) else value for value in position)


# Cursors


def encode(order: Order, cursor: Cursor) -> str:
    """Return the text of a cursor for a URL. It is opaque, but not signed."""
    values = [CURSOR_VERSION, _code(order), cursor.topic, int(cursor.backwards), *(cursor.after or [])]
    return base64.urlsafe_b64encode(json.dumps(values, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(text: str, order: Order, *, by_topic: bool = False) -> Cursor:
    """Parse the text of a cursor of a list in this order. Raises BadCursor."""
    try:
        padded = text + "=" * (-len(text) % 4)
        version, code, topic, back, *after = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, TypeError, RecursionError):
        version, code, topic, back, after = None, None, None, None, []
    if type(version) is not int or version != CURSOR_VERSION:
        raise BadCursor("The cursor is not valid. Request the first page, without a cursor.")
    if code != _code(order) or type(topic) is not str or bool(topic) != by_topic:
        raise BadCursor("The cursor belongs to a list with other filters. Request the first page, without a cursor.")
    if type(back) is not int or back not in range(1 if by_topic else 2) or not _is_position(after, order, by_topic):
        raise BadCursor("The cursor has no valid position. Request the first page, without a cursor.")
    return Cursor(after or None, topic, bool(back))


def _code(order: Order) -> str:
    return f"{order.name}-" if order.descending else order.name


def _is_position(values: Position, order: Order, by_topic: bool) -> bool:
    """Return whether the values are a valid position; in a list by topic, [] is valid: the start of a topic."""
    if not values:
        return by_topic
    return len(values) == len(order.columns) and all(map(_is_comparable, values, order.columns))


def _is_comparable(value: Any, column: str) -> bool:
    if column == "key":
        return type(value) is str and not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
    return type(value) is int and 0 <= value < (END_OF_TIME_MS if column == "due_at" else 2**63)
