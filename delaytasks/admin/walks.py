"""Pages of the list of jobs: each walks an index from where the last one ended, and looks at a bounded number of rows.

What no index answers ("cancelled", "reserved", a topic's ended jobs) is filtered from the rows
that a walk passes. A page that has looked at enough ends there, short or even empty, and can
be gone on from. The LIMIT inside each statement is also a fence: without it the planner,
who expects few rows to fit, may prefer to read the whole table.

due   live jobs by due time: delaytasks_job_live_due, of one topic delaytasks_job_topic_due
new   newest first: the primary key; dead ones delaytasks_job_dead and delaytasks_job_topic_dead
key   a topic's jobs by key, byte by byte: delaytasks_job_key
"""

import time
from collections.abc import Iterable
from datetime import datetime
from math import inf
from typing import Any, NamedTuple

from django.db import connections

from .. import clock, dialect
from ..counting import by_index
from ..states import STORED_LIVE, State

ROUNDS = (2_000, 8_000, 32_000)  # rows that a page looks at, again and again until it is full
FAR = 128_000  # rows of one more round where they lie side by side, as they do by number
PAGE_SECONDS = 0.1  # after that no further round begins; nor a large one that would take longer
SMALL = 5_000  # a topic with fewer jobs is read whole and sorted: its newest may lie anywhere in the table
LEGS = 50  # topics that are walked one by one and merged; more are picked out of a walk through all
STATEMENT_LEGS = 200  # of one statement: SQLite knows no more than 500
LIVE = "live"
Position = list[Any]  # of a row in its walk: [due in ms, id], [key, id] or [id]
_LAST = "\U0010ffff"


class Walk(NamedTuple):
    """An order that an index has. `down`: from its end; `sorted_from`: a walk that is read whole and sorted instead."""

    name: str
    columns: tuple[str, ...]
    down: bool = False
    sorted_from: "Walk | None" = None

    @property
    def reverse(self) -> "Walk":
        return self._replace(down=not self.down)

    @property
    def word(self) -> str:
        """What a cursor calls it."""
        return f"{self.name}-" if self.down else self.name


DUE = Walk("due", ("due_at", "id"))
NEW = Walk("new", ("id",), down=True)
KEY = Walk("key", ("key", "id"))


class Wish(NamedTuple):
    """What is looked for at `now`, the moment at which a delayed job becomes a ready one.

    state    "live", or a state's word; "": any
    topics   only these; None: all. A walk by key needs them named
    after    due after this; until: and not after this
    """

    now: datetime
    state: str = ""
    topics: tuple[str, ...] | None = None
    prefix: str = ""
    after: datetime | None = None
    until: datetime | None = None


class Found(NamedTuple):
    positions: list[Position]  # in the walk's order
    end: Position | None  # go on behind this; None: there is nothing behind

    @property
    def ids(self) -> list[int]:
        return [position[-1] for position in self.positions]


class Search(NamedTuple):
    """A walk for a wish in a database: what the statements below are made of."""

    using: str
    walk: Walk
    wish: Wish
    legs: tuple[str | None, ...]  # each is walked alone; None is a walk through all topics

    @property
    def exact(self) -> bool:
        """Whether every row that a leg passes fits."""
        return not rest(self)[0]


def find(using: str, walk: Walk, wish: Wish, start: Position | None, limit: int) -> Found:
    """Up to `limit` jobs behind `start` in the walk's order. Costs a bounded number of queries: nine at most.

    Read in the index's order even where the planner expects that few rows are left, and would sort these: after an
    outage, or a large import that was not analyzed yet, it may be wrong by a million.
    """
    with by_index(using):
        return _find(using, walk, wish, start, limit)


def _find(using: str, walk: Walk, wish: Wish, start: Position | None, limit: int) -> Found:
    search = _search(using, walk, wish)
    if search.walk.sorted_from or search.exact:
        return _full(_rows(search, start, limit + 1, limit + 1), limit, None)
    found: list[Position] = []
    over, row_seconds = time.monotonic() + PAGE_SECONDS, 0.0
    for number, most in enumerate((*ROUNDS, FAR) if walk.name == "new" else ROUNDS):
        begun = time.monotonic()
        # The first round is too small to tell how quick it goes.
        if number and begun + (most * row_seconds if number > 1 else 0) > over:
            break
        part = _rows(search, start, most, limit + 1 - len(found))
        alone = len(search.legs) == 1
        if alone and len(found) + len(part) > limit:
            return _full(found + part, limit, None)
        end = _looked_up_to(search, start, most)
        # A leg knows nothing behind its own end, so neither does the merged walk.
        found += [row for row in part if end is None or _passed_by(walk, row, end)]
        start, row_seconds = end, (time.monotonic() - begun) / most
        if end is None or len(found) > limit:
            break
    return _full(found, limit, start)


def _full(found: list[Position], limit: int, end: Position | None) -> Found:
    return Found(found[:limit], found[limit - 1]) if len(found) > limit else Found(found, end)


def _search(using: str, walk: Walk, wish: Wish) -> Search:
    topics = wish.topics
    if walk.name == "new" and wish.state != State.DEAD.word:
        if topics is None or len(topics) > LEGS:
            return Search(using, walk, wish, (None,))
        by_key = Search(using, KEY, Wish(wish.now), topics)
        if _looked_up_to(by_key, None, SMALL) is None:
            return Search(using, walk._replace(sorted_from=KEY), wish, topics)
        return Search(using, walk, wish, (None,))
    if topics is None or (len(topics) > LEGS and walk.name != "key"):
        return Search(using, walk, wish, (None,))
    return Search(using, walk, wish, topics)


# Statements


def _rows(search: Search, start: Position | None, most: int, limit: int) -> list[Position]:
    """The first `limit` fitting rows behind `start`, among the `most` that come next."""
    legs = (_leg(search, topic, start, max(_share(search, most), limit), limit) for topic in search.legs)
    return in_order(search.walk, legs, search.using)[:limit]


def _share(search: Search, most: int) -> int:
    """How many of `most` rows each leg passes."""
    return max(most // max(len(search.legs), 1), 1)


def _leg(search: Search, topic: str | None, start: Position | None, most: int, limit: int) -> tuple[str, list[Any]]:
    walk = search.walk
    conditions, more = rest(search)
    if walk.sorted_from:
        walked, params, order = passed(search, walk.sorted_from, topic, None)
        most, order = SMALL, _order(search.using, walk, None)
        if start:
            conditions, more = [*conditions, f"id {'<' if walk.down else '>'} %s"], [*more, *start]
    else:
        walked, params, order = passed(search, walk, topic, start)
    fits = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    inner = f"SELECT id, key, topic, state, due_at FROM {walked} LIMIT {most}"
    sql = f"SELECT {_columns(search.using, walk)} FROM ({inner}) AS walked {fits} ORDER BY {order} LIMIT {limit}"
    return sql, [*params, *more]


def _looked_up_to(search: Search, start: Position | None, most: int) -> Position | None:
    """The last row that a look at `most` rows passed, if there are more behind it."""
    share = _share(search, most)

    def last(topic: str | None) -> tuple[str, list[Any]]:
        walked, params, _ = passed(search, search.walk, topic, start)
        return f"SELECT {_columns(search.using, search.walk)} FROM {walked} LIMIT 1 OFFSET {share - 1}", params

    return next(iter(in_order(search.walk, map(last, search.legs), search.using)), None)


def passed(search: Search, walk: Walk, topic: str | None, start: Position | None) -> tuple[str, list[Any], str]:
    """The rows that a leg passes, a range of one index in its order: what follows FROM, its parameters, that order."""
    ranges = {"due": _due_range, "new": _id_range, "key": _key_range}
    where, params = ranges[walk.name](search, walk, topic, start)
    order = _order(search.using, walk, topic)
    conditions = f"WHERE {' AND '.join(where)} " if where else ""
    return f"delaytasks_job {conditions}ORDER BY {order}", params, order


def _due_range(search: Search, walk: Walk, topic: str | None, start: Position | None) -> tuple[list[str], list[Any]]:
    wish, d = search.wish, dialect.of(search.using)
    low = [(clock.to_ms(moment), inf) for moment in (wish.after, _after(wish)) if moment is not None]
    high = [(clock.to_ms(moment), inf) for moment in (wish.until, _until(wish)) if moment is not None]
    if start:
        (high if walk.down else low).append((start[0], start[1]))

    def values(edge: tuple[float, float]) -> list[Any]:
        due, number = edge
        return [d.moment(int(due)), *([] if number == inf else [number])]

    least, most = max(low, default=None), min(high, default=None)
    where, params = _between(
        walk, topic, least and values(least), most and values(most), including=most is not None and most[1] == inf
    )
    return ["ended_at IS NULL", *where], params


def _id_range(search: Search, walk: Walk, topic: str | None, start: Position | None) -> tuple[list[str], list[Any]]:
    dead = ["died_at IS NOT NULL"] if search.wish.state == State.DEAD.word else []
    where, params = _between(walk, topic, None if walk.down else start, start if walk.down else None)
    return [*dead, *where], params


def _between(
    walk: Walk, topic: str | None, low: list[Any] | None, high: list[Any] | None, *, including: bool = False
) -> tuple[list[str], list[Any]]:
    """Rows above `low` and below `high` (or at it), which are values of the walk's first columns.

    At most one condition at each end, so that an index scan begins at the right place. With a topic
    all of them begin with it, and so does the order: then an index that does is the only way. With
    an equality, or with the due time alone, the planner might walk the jobs of all topics.
    """
    first, value = ([], []) if topic is None else (["topic"], [topic])
    where: list[str] = []
    params: list[Any] = []
    for edge, operator, at in ((low, ">", ">="), (high, "<=" if including else "<", "<=")):
        columns = [*first, *walk.columns[: len(edge or [])]]
        if columns:
            marks = ", ".join(["%s"] * len(columns))
            where.append(f"({', '.join(columns)}) {operator if edge else at} ({marks})")
            params += [*value, *(edge or [])]
    return where, params


def _key_range(search: Search, walk: Walk, topic: str | None, start: Position | None) -> tuple[list[str], list[Any]]:
    """The keys of a topic that begin with the prefix, byte by byte. In that order there is no comparison of rows."""
    where, params = ["topic = %s"], [topic]
    if search.wish.prefix:
        condition, values = _prefixed(search)
        where.append(condition)
        params += values
    if start:
        after = "<" if walk.down else ">"
        beside, beyond = (_by_bytes(search.using, operator) for operator in (f"{after}=", after))
        where.append(f"key {beside} %s AND (key {beyond} %s OR id {after} %s)")
        params += [start[0], *start]
    return where, params


def _prefixed(search: Search) -> tuple[str, list[Any]]:
    at_least, before = (_by_bytes(search.using, operator) for operator in (">=", "<"))
    return f"key {at_least} %s AND key {before} %s", [search.wish.prefix, search.wish.prefix + _LAST]


def _after(wish: Wish) -> datetime | None:
    """What the state says of the due time: it is after this."""
    return wish.now if wish.state == State.DELAYED.word else None


def _until(wish: Wish) -> datetime | None:
    """And not after this. What is reserved is always past its due time."""
    return wish.now if wish.state in (State.READY.word, State.RESERVED.word) else None


def rest(search: Search) -> tuple[list[str], list[Any]]:
    """What the legs' range does not say yet."""
    walk, wish = search.walk, search.wish
    where: list[str] = []
    params: list[Any] = []
    if wish.state == LIVE:
        where += [f"state IN ({', '.join(str(int(s)) for s in STORED_LIVE)})"] if walk.name != "due" else []
    elif wish.state and not (walk.name == "new" and wish.state == State.DEAD.word):
        state = State[wish.state.upper()]
        where.append(f"state = {int(State.DELAYED if state is State.READY else state)}")
    if walk.name != "due":
        d = dialect.of(search.using)
        for comparison, moments in ((">", (wish.after, _after(wish))), ("<=", (wish.until, _until(wish)))):
            asked = [moment for moment in moments if moment is not None]
            where += [f"due_at {comparison} %s"] * len(asked)
            params += [d.moment(clock.to_ms(moment)) for moment in asked]
    if wish.prefix and walk.name != "key":
        condition, values = _prefixed(search)
        where.append(condition)
        params += values
    if wish.topics is not None and None in search.legs:
        where.append(f"topic IN ({', '.join(['%s'] * len(wish.topics))})")
        params += wish.topics
    return where, params


def _by_bytes(using: str, operator: str) -> str:
    """PostgreSQL compares text by its collation unless it is told otherwise; the index of keys goes byte by byte."""
    return f"~{operator}~" if connections[using].vendor == "postgresql" else operator


def _order(using: str, walk: Walk, topic: str | None) -> str:
    way = " DESC" if walk.down else ""
    if walk.name == "key" and connections[using].vendor == "postgresql":
        return f"key USING {'~>~' if walk.down else '~<~'}, id{way}"
    columns = walk.columns if topic is None or walk.name == "key" else ("topic", *walk.columns)
    return ", ".join(f"{column}{way}" for column in columns)


def _columns(using: str, walk: Walk) -> str:
    return ", ".join(dialect.of(using).to_ms(column) if column == "due_at" else column for column in walk.columns)


def in_order(walk: Walk, legs: Iterable[tuple[str, list[Any]]], using: str) -> list[Position]:
    """What the legs' statements find, merged in the walk's order."""
    found: list[Position] = []
    every = list(legs)
    for at in range(0, len(every), STATEMENT_LEGS):
        some = every[at : at + STATEMENT_LEGS]
        sql = " UNION ALL ".join(f"SELECT * FROM ({leg}) AS leg" for leg, _ in some) if len(some) > 1 else some[0][0]
        with dialect.cursor(using) as cursor:
            cursor.execute(sql, [param for _, params in some for param in params])
            found += [list(row) for row in cursor.fetchall()]
    return sorted(found, key=_place, reverse=walk.down)


def _place(position: Position) -> tuple[Any, ...]:
    """What a position is compared by in Python: keys byte by byte, as the index has them."""
    return tuple(value.encode() if isinstance(value, str) else value for value in position)


def _passed_by(walk: Walk, row: Position, end: Position) -> bool:
    """Whether a walk that got as far as `end` has seen `row`."""
    return _place(row) >= _place(end) if walk.down else _place(row) <= _place(end)
