"""Index scans over jobs: the filter, the order, and the SQL that reads the rows.

Three orders have an index:

due   live jobs by due time: delaytasks_job_live_due; of one topic: delaytasks_job_topic_due
id    all jobs: the primary key; dead jobs: delaytasks_job_dead and delaytasks_job_topic_dead
key   the jobs of one topic by key, byte by byte: delaytasks_job_key

The rows that a scan reads are tested for the conditions that the index does not cover. The LIMIT inside each statement
is also an optimization fence: without it, a planner that expects few matches might scan the whole table.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections

from .. import clock
from ..states import LIVE, STORED_LIVE, State
from ..validators import prefix_end
from . import dialects
from .counts import run

RANGES = 200  # index ranges per statement, each with up to two SELECTs: SQLite allows 500 in a compound SELECT

Position = list[Any]  # a job's place in an order: [due in ms since 1970, id], [id] or [key, id]
Statement = tuple[str, list[Any]]  # SQL and its parameters


class Order(NamedTuple):
    """An order that an index provides."""

    name: str
    columns: tuple[str, ...]
    descending: bool = False

    @property
    def reverse(self) -> "Order":
        return self._replace(descending=not self.descending)


DUE = Order("due", ("due_at", "id"))
KEY = Order("key", ("key", "id"))
OLDEST = Order("id", ("id",))
NEWEST = OLDEST.reverse


class JobFilter(NamedTuple):
    """The conditions of a list of jobs. Times are aware and precise to the millisecond.

    now         jobs due after this are delayed, others are ready
    topics      only jobs of these topics, for example those that a user may see; None: all. Required with KEY
    state       the state that is displayed, so READY is possible; None: any state
    live        only jobs that have not ended
    due_from    due at this time or later
    due_until   due before this time
    """

    now: datetime
    topics: tuple[str, ...] | None = None
    state: State | None = None
    live: bool = False
    key_prefix: str = ""
    due_from: datetime | None = None
    due_until: datetime | None = None

    @property
    def is_live(self) -> bool:
        return self.live or self.state in LIVE

    @property
    def is_dead(self) -> bool:
        return self.state is State.DEAD

    def due_range(self) -> tuple[int | None, int | None]:
        """Return (inclusive start, exclusive end) of the due times, in ms since 1970.

        The state limits the range as well: a ready job, for example, is due now at the latest. None stands for no limit
        at that end.
        """
        low, high = ([] if bound is None else [clock.to_ms(bound)] for bound in (self.due_from, self.due_until))
        after_now = clock.to_ms(self.now) + 1
        if self.state is State.DELAYED:
            low.append(after_now)
        elif self.state in (State.READY, State.RESERVED):  # a reserved job was due when it was claimed
            high.append(after_now)
        return max(low, default=None), min(high, default=None)


class Scan(NamedTuple):
    """A filter applied in the order of an index: one index range for each topic. The topic None means all topics."""

    using: str
    order: Order
    job_filter: JobFilter
    topics: tuple[str | None, ...]

    @property
    def is_exact(self) -> bool:
        """Return whether every row of the ranges matches the filter."""
        return not conditions(self)[0]


def union(scan: Scan, select: Callable[[str | None], Statement]) -> Iterator[Statement]:
    """Combine the statements that `select` returns for each range into as few as the databases allow."""
    for at in range(0, len(scan.topics), RANGES):
        parts = [select(topic) for topic in scan.topics[at : at + RANGES]]
        sql = " UNION ALL ".join(f"SELECT * FROM ({sql}) AS part" for sql, _ in parts)
        yield sql, [param for _, params in parts for param in params]


def rows(scan: Scan, columns: str, limit: int) -> Iterator[Statement]:
    """Return statements that select these columns of the first `limit` rows of each range."""

    def select(topic: str | None) -> Statement:
        source, params = index_range(scan, topic)
        return f"SELECT {columns} FROM {source} LIMIT {limit}", params

    return union(scan, select)


def count_rows(scan: Scan, limit: int) -> int:
    """Return the number of rows in all ranges together, at most `limit`. Uses index-only scans."""
    total = 0
    for sql, params in rows(scan, "1", limit):
        if total < limit:
            limited = f"SELECT count(*) FROM (SELECT 1 FROM ({sql}) AS scanned LIMIT {limit - total}) AS counted"
            total += run(scan.using, limited, params)[0][0]
    return total


def index_range(scan: Scan, topic: str | None, after: Position | None = None) -> Statement:
    """Return the SQL after FROM that reads the jobs of a range after a position, in index order, and its parameters."""
    ranges = {"due": _due_range, "id": _id_range, "key": _key_range}
    where, params = ranges[scan.order.name](scan, topic, after)
    conditions = f"WHERE {' AND '.join(where)} " if where else ""
    return f"delaytasks_job {conditions}ORDER BY {order_by(scan, topic)}", params


def order_by(scan: Scan, topic: str | None) -> str:
    direction = " DESC" if scan.order.descending else ""
    if scan.order.name == "key":
        if connections[scan.using].vendor == "postgresql":
            return f"key USING {_by_bytes(scan.using, '>' if direction else '<')}, id{direction}"
        return f"key{direction}, id{direction}"
    columns = scan.order.columns if topic is None else ("topic", *scan.order.columns)
    return ", ".join(f"{column}{direction}" for column in columns)


def _due_range(scan: Scan, topic: str | None, after: Position | None) -> tuple[list[str], list[Any]]:
    since, until = scan.job_filter.due_range()
    low = [] if since is None else [[since, 0]]  # no job has the id 0
    high = [] if until is None else [[until, 0]]
    if after:
        (high if scan.order.descending else low).append(after)
    edges = (max(low, default=None), min(high, default=None))
    d = dialects.get_dialect(scan.using)
    where, params = _between(scan.order, topic, *(edge and [d.moment(edge[0]), edge[1]] for edge in edges))
    return ["ended_at IS NULL", *where], params


def _id_range(scan: Scan, topic: str | None, after: Position | None) -> tuple[list[str], list[Any]]:
    edges = (None, after) if scan.order.descending else (after, None)
    where, params = _between(scan.order, topic, *edges)
    return ([*where, "died_at IS NOT NULL"] if scan.job_filter.is_dead else where), params


def _between(
    order: Order, topic: str | None, low: list[Any] | None, high: list[Any] | None
) -> tuple[list[str], list[Any]]:
    """Return the conditions for rows above `low` and below `high`, and their parameters.

    Both are lists of values of the ORDER BY columns; None: no limit. There is at most one row comparison for each, so
    that the index scan starts at the right place. For a topic, the comparisons and the ORDER BY begin with the topic:
    then only an index that begins with the topic fits. With `topic = ...` the planner might scan the jobs of all
    topics.
    """
    where: list[str] = []
    params: list[Any] = []
    for edge, operator in ((low, ">"), (high, "<")):
        columns = [*([] if topic is None else ["topic"]), *(order.columns if edge else ())]
        if columns:
            comparison = operator if edge else f"{operator}="
            where.append(f"({', '.join(columns)}) {comparison} ({', '.join(['%s'] * len(columns))})")
            params += [*([] if topic is None else [topic]), *(edge or [])]
    return where, params


def _key_range(scan: Scan, topic: str | None, after: Position | None) -> tuple[list[str], list[Any]]:
    """Return the conditions for the jobs of a topic whose key has the prefix of the filter, and their parameters.

    Row comparisons are not used, because they would not compare byte by byte.
    """
    where, params = ["topic = %s"], [topic]
    if scan.job_filter.key_prefix:
        condition, values = _prefixed(scan)
        where.append(condition)
        params += values
    if after:
        operator = "<" if scan.order.descending else ">"
        at_or_after, strictly_after = (_by_bytes(scan.using, op) for op in (f"{operator}=", operator))
        where.append(f"key {at_or_after} %s AND (key {strictly_after} %s OR id {operator} %s)")
        params += [after[0], *after]
    return where, params


def _prefixed(scan: Scan) -> Statement:
    prefix, (at_least, before) = scan.job_filter.key_prefix, (_by_bytes(scan.using, op) for op in (">=", "<"))
    return f"key {at_least} %s AND key {before} %s", [prefix, prefix_end(prefix)]


def _by_bytes(using: str, operator: str) -> str:
    """Return the operator that compares bytes, as the key index does; PostgreSQL's default compares by collation."""
    return f"~{operator}~" if connections[using].vendor == "postgresql" else operator


def conditions(scan: Scan) -> tuple[list[str], list[Any]]:
    """Return the conditions on id, key, topic, state and due_at that the index ranges do not cover, and parameters."""
    order, job_filter = scan.order, scan.job_filter
    where: list[str] = []
    params: list[Any] = []
    if job_filter.state is not None and not (order.name == "id" and job_filter.is_dead):
        where.append(f"state = {int(State.DELAYED if job_filter.state is State.READY else job_filter.state)}")
    elif job_filter.live and order.name != "due":
        where.append(f"state IN ({', '.join(str(int(state)) for state in STORED_LIVE)})")
    if order.name != "due":
        for comparison, ms in zip((">=", "<"), job_filter.due_range(), strict=True):
            if ms is not None:
                where.append(f"due_at {comparison} %s")
                params.append(dialects.get_dialect(scan.using).moment(ms))
    if job_filter.key_prefix and order.name != "key":
        condition, values = _prefixed(scan)
        where.append(condition)
        params += values
    if job_filter.topics is not None and None in scan.topics:
        where.append(f"topic IN ({', '.join(['%s'] * len(job_filter.topics))})")
        params += job_filter.topics
    return where, params
