"""Counting for people, at a bounded cost: exact as far as the time allows, "at least" beyond, exact after a while.

A count reads an index in its order and stops at a cap. Who asks for many counts at once gets a first
answer with a small cap for all; where it was reached a larger one is tried, as long as what was measured
says that there is time. So a herd of 40,000 is counted to its last job. Where there are millions, each look
counts some of them to their end and takes for the others what the looks before it found.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.db import connections, transaction

from . import dialect
from .states import State

FIRST_ROWS = 10_000  # read by the first round, all counts together
SURE_ROWS = 30_000  # read by all rounds together even if they are slow: what is small is counted to its end
LEAST_CAP = 20
GROWTH = 8  # of the cap, from round to round
ALONE = 8  # counts of one look that have a statement of their own
GOOD_LOOKS = 50  # for so many looks what was found stands in for what could not be counted again
CELLS = 5_000  # of one statement; SQLite allows 32,766 parameters
TOPICS = 500  # more are not looked for


class Count(NamedTuple):
    number: int
    whole: bool = True  # False: at least so many


NOTHING = Count(0)


def together(counts: Iterable[Count]) -> Count:
    """Their sum."""
    each = list(counts)
    return Count(sum(count.number for count in each), all(count.whole for count in each))


class Cell(NamedTuple):
    """Live jobs of a topic (None: of all) due from `since_ms` on and before `until_ms`."""

    topic: str | None
    since_ms: int
    until_ms: int


class Known(NamedTuple):
    """What was found, and in which look: 1, 2, ..."""

    counted: Count
    look: int
    tried: int  # the look that last did what it could
    old: bool = False  # taken from a look before


Memory = Mapping[Any, Known]  # of the look before this one


def live(using: str, cells: Mapping[Any, Cell], before: Memory, *, seconds: float) -> dict[Any, Known]:
    """How many jobs are in each cell, in about `seconds`. Either each cell is of one topic, or none is."""
    by_topic = any(cell.topic is not None for cell in cells.values())
    d = dialect.of(using)
    times = {key: (d.moment(cell.since_ms), d.moment(cell.until_ms)) for key, cell in cells.items()}
    rows = {key: (cells[key].topic, *span) if by_topic else span for key, span in times.items()}
    kinds = ["text", "timestamptz", "timestamptz"] if by_topic else ["timestamptz", "timestamptz"]
    return _count(using, live_sql(using, by_topic=by_topic), kinds, rows, before, seconds)


def live_sql(using: str, *, by_topic: bool) -> str:
    d = dialect.of(using)
    topic, where = ("name, ", "topic = name AND ") if by_topic else ("", "")
    return f"""
        WITH cells (number, {topic}since, before) AS ({{values}})
        SELECT number, (SELECT count(*) FROM (
            SELECT 1 FROM delaytasks_job WHERE {where}ended_at IS NULL
                AND due_at >= {d.as_moment("since")} AND due_at < {d.as_moment("before")}
            ORDER BY due_at LIMIT {{cap}}) AS found) FROM cells"""


def dead(using: str, names: Iterable[str], before: Memory, *, seconds: float) -> dict[Any, Known]:
    """How many jobs of each topic are dead."""
    return _count(using, _DEAD, ["text"], {name: (name,) for name in names}, before, seconds)


# Two comparisons say what one would: only then is the order one of the topic's own index, and the planner
# does not look for the few dead of one topic among all that are dead.
_DEAD = """
    WITH cells (number, name) AS ({values})
    SELECT number, (SELECT count(*) FROM (
        SELECT 1 FROM delaytasks_job WHERE topic >= name AND topic <= name AND died_at IS NOT NULL
        ORDER BY topic, id LIMIT {cap}) AS found) FROM cells"""


def _count(
    using: str, sql: str, kinds: list[str], rows: Mapping[Any, tuple[Any, ...]], before: Memory, seconds: float
) -> dict[Any, Known]:
    if not rows:
        return {}
    keys, values = list(rows), list(rows.values())

    def ask(numbers: Sequence[int], cap: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for start in range(0, len(numbers), CELLS):
            chunk = [(n, *values[n]) for n in numbers[start : start + CELLS]]
            table, params = dialect.of(using).table(["bigint", *kinds], chunk)
            found.update(run(using, sql.format(values=table, cap=cap), params))
        return found

    with by_index(using):
        found = Look(ask, [before.get(key) for key in keys], seconds).count()
    return dict(zip(keys, found, strict=True))


class Look:
    """One look at many numbers, as far as there is time.

    ask      (numbers, cap) -> number -> how many there are, counted up to cap
    before   what the look before this one found, for each number
    """

    def __init__(
        self,
        ask: Callable[[Sequence[int], int], dict[int, int]],
        before: Sequence[Known | None],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._before, self._seconds, self._monotonic = ask, before, seconds, monotonic
        self._number = 1 + max((known.tried for known in before if known), default=0)
        self._began, self._read = monotonic(), 0
        self._found: list[Known] = [Known(NOTHING, self._number, self._number)] * len(before)

    def count(self) -> list[Known]:
        every = range(len(self._before))
        cap = max(LEAST_CAP, FIRST_ROWS // len(every))
        large = self._count(every, cap)
        self._all_a_little_further([n for n in large if self._before[n] is None], cap)
        self._some_to_their_end([n for n in large if self._before[n] is not None], cap)
        return self._found

    def _count(self, numbers: Sequence[int], cap: int) -> list[int]:
        """Count each up to `cap`; those that have more."""
        answers = self._ask(numbers, cap)
        self._read += sum(answers.values())
        for n in numbers:
            self._found[n] = Known(Count(answers[n], answers[n] < cap), self._number, self._number)
        return [n for n in numbers if not self._found[n].counted.whole]

    def _rows_left(self) -> int:
        """How many rows can still be read in time, at the speed of this look so far."""
        spent = max(self._monotonic() - self._began, 0.0001)
        return int(max((self._seconds - spent) * self._read / spent, SURE_ROWS - self._read))

    def _all_a_little_further(self, large: list[int], cap: int) -> None:
        """Nothing is known of these: better a little of each than all of a few."""
        while large:
            larger = min(cap * GROWTH, self._rows_left() // len(large))
            if larger < 2 * cap:
                return
            cap = larger
            large = self._count(large, cap)

    def _some_to_their_end(self, large: list[int], cap: int) -> None:
        """What was found before is good for a while: first go those of which that is longest ago."""
        for place, n in enumerate(sorted(large, key=lambda n: self._known_before(n).tried)):
            rows, before = self._rows_left(), self._known_before(n)
            still_large = True
            if place < ALONE and rows >= 2 * cap and (place == 0 or rows > before.counted.number):
                still_large = bool(self._count([n], rows))
            if still_large:  # the first had all the time there was: it must do, and the others have their turn
                self._found[n] = self._better(n)._replace(tried=self._number if place == 0 else before.tried)

    def _better(self, n: int) -> Known:
        """What says more: what was found now, or not long ago."""
        before, now = self._known_before(n), self._found[n]
        good = self._number - before.look < GOOD_LOOKS and before.counted.number > now.counted.number
        return before._replace(old=True) if good else now

    def _known_before(self, n: int) -> Known:
        return self._before[n] or self._found[n]


_OFF = [f"set_config('{name}', 'off', true)" for name in ("enable_bitmapscan", "enable_sort", "jit")]


@contextmanager
def by_index(using: str) -> Iterator[None]:
    """Inside, PostgreSQL reads in an index's order, so that a LIMIT ends it early.

    A bitmap and a sort read a whole range before their first row: seconds for what was to stop at a
    thousand rows. And compiling a plan takes longer than these take to run.
    """
    if connections[using].vendor != "postgresql":
        yield
        return
    with transaction.atomic(using):
        run(using, f"SELECT {', '.join(_OFF)}", [])
        yield
        transaction.set_rollback(True, using)  # a transaction around this has its settings again


def run(using: str, sql: str, params: Sequence[Any]) -> list[Any]:
    with dialect.cursor(using) as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


# -- topics -------------------------------------------------------------------------------------


def topics(using: str, where: str) -> list[str]:
    """The topics that have jobs `where`, sorted, the first 500: one look into an index for each of them."""
    sql = f"""
        WITH RECURSIVE names (name) AS (
            SELECT min(topic) FROM delaytasks_job WHERE {where}
            UNION ALL
            SELECT (SELECT min(topic) FROM delaytasks_job WHERE {where} AND topic > name)
            FROM names WHERE name IS NOT NULL)
        SELECT name FROM names WHERE name IS NOT NULL LIMIT {TOPICS}"""
    return [row[0] for row in run(using, sql, [])]


def live_topics(using: str) -> list[str]:
    return topics(using, "ended_at IS NULL")


def dead_topics(using: str) -> list[str]:
    return topics(using, "died_at IS NOT NULL")


class Waiting(NamedTuple):
    reserved: int
    oldest_ms: int | None  # due time of the oldest that is ready


def waiting(using: str, names: Sequence[str], *, rows: int) -> dict[str, Waiting]:
    """Of each topic: how many of the `rows` oldest that are due are reserved, and since when the oldest one waits.

    Jobs are reserved oldest first, so whatever is reserved is found among the oldest.
    """
    if not names:
        return {}
    with by_index(using):
        found = run(using, waiting_sql(using, len(names), rows), list(names))
    return {name: Waiting(reserved, oldest_ms) for name, reserved, oldest_ms in found}


def waiting_sql(using: str, count: int, rows: int) -> str:
    d = dialect.of(using)
    due = f"topic = name AND ended_at IS NULL AND due_at <= {d.now}"
    return f"""
        WITH cells (name) AS (VALUES {", ".join(["(%s)"] * count)})
        SELECT name,
            (SELECT count(*) FROM (
                SELECT state FROM delaytasks_job WHERE {due} ORDER BY due_at, id LIMIT {rows}) AS oldest
             WHERE state = {int(State.RESERVED)}),
            (SELECT {d.to_ms("due_at")} FROM delaytasks_job WHERE {due} AND state = {int(State.DELAYED)}
             ORDER BY due_at, id LIMIT 1)
        FROM cells"""
