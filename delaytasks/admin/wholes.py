"""All that a wish leaves, for bulk changes: how many of which topics, and which. Read from indexes, at a bounded cost.

First it is found out which walk passes fewest rows, by looking into the indexes alone. If each of them would pass
more than a bulk change may have, nothing is counted: either so many match, or it cannot be told quickly.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import counting, dialect
from ..counting import by_index
from ..states import ENDED, State
from . import walks
from .walks import DUE, KEY, LIVE, NEW, Search, Walk, Wish

LOOKS = (1_000, 10_000)  # rows; and then as many as a bulk change may have
LOOKED_INTO = 20_000  # of which it is counted how many have ended, where the row itself has to be read for that
FOR_GOOD = [int(state) for state in ENDED if state is not State.DEAD]
MANY, WIDE = "many", "wide"


class Way(NamedTuple):
    """How to get at all of them."""

    search: Search
    passed: int  # rows; each fits if the search is exact
    most: int


class Counted(NamedTuple):
    topics: Counter[str]
    ended: int = 0  # how many of them stay as they are whatever is done; of very many it is not told

    @property
    def number(self) -> int:
        return self.topics.total()


def way(using: str, wish: Wish, most: int) -> Way | str:
    """The shortest way to all that match; "many" if these are more than `most`, "wide" if it passes more than that."""
    found = [Search(using, walk, wish, (None,) if wish.topics is None else wish.topics) for walk in _walks(wish)]
    with by_index(using):
        for limit in (*(look for look in LOOKS if look < most), most + 1):
            for search in found:
                passed = _passed(search, limit)
                if passed < limit:
                    return Way(_by_topic(search), passed, most)
    return MANY if any(search.exact or _nearly_exact(wish) for search in found) else WIDE


def _by_topic(search: Search) -> Search:
    """The same, topic by topic if the index by due time, or of the dead, has the topic: then no row need be read."""
    if search.legs != (None,) or not search.exact:
        return search
    dead = search.wish.state == State.DEAD.word
    if not dead and search.walk.name != "due":
        return search
    topics = counting.dead_topics(search.using) if dead else counting.live_topics(search.using)
    return search._replace(legs=tuple(topics)) if 0 < len(topics) < counting.TOPICS else search


def _nearly_exact(wish: Wish) -> bool:
    """Of what waits by its due time all but the few that are reserved are delayed or ready."""
    return wish.state in (State.DELAYED.word, State.READY.word) and not wish.prefix


def count(way: Way) -> Counted:
    """How many match, of which topics."""
    with by_index(way.search.using):
        return _count(way)


def _count(way: Way) -> Counted:
    search, wish = way.search, way.search.wish
    ended_too = not (wish.state or wish.after or wish.until)
    named = None not in search.legs and search.exact
    if named and not (ended_too and wish.prefix and way.passed <= LOOKED_INTO):
        topics = _per_topic(search, way.most)
        if not ended_too or wish.prefix:
            return Counted(topics)
        going_on = (search._replace(walk=walk, wish=wish._replace(state=state)) for walk, state in _GOING_ON)
        return Counted(topics, max(topics.total() - sum(_passed(other, way.most) for other in going_on), 0))
    topics, ended = Counter[str](), 0
    for topic, state, number in _grouped(search, way.most):
        topics[topic] += number
        ended += number if state in FOR_GOOD else 0
    return Counted(topics, ended)


def ids(way: Way) -> tuple[list[int], Counter[str]]:
    """Which match, and of which topics they are: live ones by due time, otherwise the newest first."""
    search, due = way.search, way.search.walk.name == "due"
    order = ["due_at", "id"] if due and len(search.legs) > 1 else []
    conditions, more = walks.rest(search)
    found: list[tuple[Any, ...]] = []
    columns = ("id", "topic", *order[:1], *(("key", "state", "due_at") if conditions else ()))
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    sort = f"ORDER BY {', '.join(order)}" if order else ""
    with by_index(search.using):
        for legs, params in _statements(search, ", ".join(dict.fromkeys(columns)), way.most):
            found += _run(search, f"SELECT id, topic FROM ({legs}) AS walked {where} {sort}", [*params, *more])
    numbers = [row[0] for row in found]
    return numbers if due else sorted(numbers, reverse=True), Counter(row[1] for row in found)


_GOING_ON: list[tuple[Walk, str]] = [(DUE, LIVE), (NEW, State.DEAD.word)]


def _walks(wish: Wish) -> Iterator[Walk]:
    """The orders in which all that match can be passed."""
    if wish.state == State.DEAD.word:
        yield NEW
    elif wish.state in (LIVE, State.DELAYED.word, State.READY.word, State.RESERVED.word):
        yield DUE
    elif wish.topics is None:
        yield NEW
    if wish.topics is not None and (wish.prefix or not wish.state):
        yield KEY


# Statements


def _statements(search: Search, columns: str, most: int) -> Iterator[tuple[str, list[Any]]]:
    """What reads these columns of the first `most` rows of each leg; in parts, if there are very many legs."""
    for at in range(0, len(search.legs), walks.STATEMENT_LEGS):
        legs, params = [], []
        for topic in search.legs[at : at + walks.STATEMENT_LEGS]:
            walked, values, _order = walks.passed(search, search.walk, topic, None)
            legs.append(f"SELECT {columns} FROM {walked} LIMIT {most}")
            params += values
        yield " UNION ALL ".join(f"SELECT * FROM ({leg}) AS leg" for leg in legs), params


def _passed(search: Search, limit: int) -> int:
    """How many rows its legs pass, up to `limit`: read from the index alone."""
    passed = 0
    for legs, params in _statements(search, "1", limit):
        if passed < limit:
            sql = f"SELECT count(*) FROM (SELECT 1 FROM ({legs}) AS walked LIMIT {limit - passed}) AS found"
            passed += _run(search, sql, params)[0][0]
    return passed


def _per_topic(search: Search, most: int) -> Counter[str]:
    """Of a search that is exact: read from the index alone."""
    topics = Counter[str]()
    for legs, params in _statements(search, "topic", most):
        topics += Counter(dict(_run(search, f"SELECT topic, count(*) FROM ({legs}) AS walked GROUP BY topic", params)))
    return topics


def _grouped(search: Search, most: int) -> Iterable[tuple[str, int, int]]:
    conditions, more = walks.rest(search)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = "topic, state, key, due_at" if conditions else "topic, state"
    for legs, params in _statements(search, columns, most):
        sql = f"SELECT topic, state, count(*) FROM ({legs}) AS walked {where} GROUP BY topic, state"
        yield from _run(search, sql, [*params, *more])


def _run(search: Search, sql: str, params: list[Any]) -> list[tuple[Any, ...]]:
    with dialect.cursor(search.using) as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()
