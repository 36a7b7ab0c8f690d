"""Counts for display at a bounded cost: exact if the time allows, otherwise a lower bound that becomes exact later.

A count reads an index in order and stops at a cap. The first round of a pass uses the same small cap for all counts.
The counts that reach it are repeated with larger caps, while there is time by the speed of the pass so far. So 40,000
jobs are counted exactly. Of millions of jobs, each pass makes some counts exact and takes the others from earlier
passes.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..states import State
from . import dialects

FIRST_ROWS = 10_000  # read by all counts of the first round together
SURE_ROWS = 30_000  # read by all rounds together even if they are slow, so that small counts are exact
LEAST_CAP = 20
GROWTH = 8  # factor of the cap from round to round
SINGLE_STATEMENTS = 8  # counts of one pass that may have a statement of their own
VALID_PASSES = 50  # passes for which an earlier count may replace a smaller lower bound
CELLS = 5_000  # at most in one statement; SQLite allows 32,766 parameters
TOPICS = 500  # the most topics whose jobs are counted
LATE_PROBE_MS = 60_000
SEARCHED_TOPICS = 5_000  # the most topics that are searched for old ready jobs and for dead ones


class Count(NamedTuple):
    number: int
    complete: bool = True  # False: a lower bound


NOTHING = Count(0)


def total(counts: Iterable[Count]) -> Count:
    """Return the sum of counts; exact if each of them is."""
    items = list(counts)
    return Count(sum(count.number for count in items), all(count.complete for count in items))


class Cell(NamedTuple):
    """The live jobs of a topic (None: of all topics) with since_ms <= due time < until_ms, in ms since 1970."""

    topic: str | None
    since_ms: int
    until_ms: int


class KnownCount(NamedTuple):
    """A count and the number of the pass that made it: 1, 2, ..."""

    counted: Count
    made_in: int
    tried_in: int  # the last pass that tried to make it exact
    old: bool = False  # taken from an earlier pass


KnownCounts = Mapping[Any, KnownCount]  # the results of the previous pass


def live(using: str, cells: Mapping[Any, Cell], before: KnownCounts, *, seconds: float) -> dict[Any, KnownCount]:
    """Return the number of jobs in each cell, by the keys of `cells`, in about `seconds`.

    cells    cells with a topic, or cells without one, but not both
    before   the result of the previous pass
    """
    by_topic = any(cell.topic is not None for cell in cells.values())
    d = dialects.get_dialect(using)
    times = {key: (d.moment(cell.since_ms), d.moment(cell.until_ms)) for key, cell in cells.items()}
    rows = {key: (cells[key].topic, *span) if by_topic else span for key, span in times.items()}
    kinds = ["text", "timestamptz", "timestamptz"] if by_topic else ["timestamptz", "timestamptz"]
    return _count(using, live_sql(using, by_topic=by_topic), kinds, rows, before, seconds)


def live_sql(using: str, *, by_topic: bool) -> str:
    """Return the query of live(). It compares (topic, due_at) as a row: only the index on both can serve it.

    With `topic = name` the planner might search all due jobs for those of a rare topic.
    """
    d = dialects.get_dialect(using)
    name, row, order = ("name, ", "(topic, due_at)", "topic, due_at") if by_topic else ("", "due_at", "due_at")
    since, before = (f"({name}{d.as_moment(each)})" for each in ("since", "before"))
    return f"""
        WITH cells (number, {name}since, before) AS ({{values}})
        SELECT number, (SELECT count(*) FROM (
            SELECT 1 FROM delaytasks_job WHERE ended_at IS NULL AND {row} >= {since} AND {row} < {before}
            ORDER BY {order} LIMIT {{cap}}) AS found) FROM cells"""


def dead(using: str, names: Iterable[str], before: KnownCounts, *, seconds: float) -> dict[Any, KnownCount]:
    """Return the number of dead jobs of each topic, in about `seconds`.

    before   the result of the previous pass
    """
    return _count(using, _DEAD, ["text"], {name: (name,) for name in names}, before, seconds)


# Two comparisons instead of "=", so that only the index by topic provides the order. With "=" the planner might search
# the dead jobs of all topics for the few of one topic.
_DEAD = """
    WITH cells (number, name) AS ({values})
    SELECT number, (SELECT count(*) FROM (
        SELECT 1 FROM delaytasks_job WHERE topic >= name AND topic <= name AND died_at IS NOT NULL
        ORDER BY topic, id LIMIT {cap}) AS found) FROM cells"""


def _count(
    using: str, sql: str, kinds: list[str], rows: Mapping[Any, tuple[Any, ...]], before: KnownCounts, seconds: float
) -> dict[Any, KnownCount]:
    if not rows:
        return {}
    keys, values = list(rows), list(rows.values())

    def count_up_to(numbers: Sequence[int], cap: int) -> dict[int, int]:
        counts: dict[int, int] = {}
        for start in range(0, len(numbers), CELLS):
            chunk = [(n, *values[n]) for n in numbers[start : start + CELLS]]
            table, params = dialects.get_dialect(using).table(["bigint", *kinds], chunk)
            counts.update(run(using, sql.format(values=table, cap=cap), params))
        return counts

    with by_index(using):
        known = CountPass(count_up_to, [before.get(key) for key in keys], seconds).count()
    return dict(zip(keys, known, strict=True))


class CountPass:
    """One pass over many counts, as exact as the time allows. Each count has a number: 0, 1, ...

    count_up_to   (numbers, cap) -> {number: count, at most cap}
    before        the results of the previous pass, by number
    """

    def __init__(
        self,
        count_up_to: Callable[[Sequence[int], int], dict[int, int]],
        before: Sequence[KnownCount | None],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count_up_to, self._before, self._seconds, self._monotonic = count_up_to, before, seconds, monotonic
        self._pass = 1 + max((known.tried_in for known in before if known), default=0)
        self._began, self._rows_read = monotonic(), 0
        self._known: list[KnownCount] = [KnownCount(NOTHING, self._pass, self._pass)] * len(before)

    def count(self) -> list[KnownCount]:
        numbers = range(len(self._before))
        cap = max(LEAST_CAP, FIRST_ROWS // len(numbers))
        large = self._count(numbers, cap)
        self._raise_cap_of_all([n for n in large if self._before[n] is None], cap)
        self._count_some_exactly([n for n in large if self._before[n] is not None], cap)
        return self._known

    def _count(self, numbers: Sequence[int], cap: int) -> list[int]:
        """Make each of these counts, up to `cap`. Return the numbers of the counts that reached the cap."""
        counts = self._count_up_to(numbers, cap)
        self._rows_read += sum(counts.values())
        for n in numbers:
            self._known[n] = KnownCount(Count(counts[n], counts[n] < cap), self._pass, self._pass)
        return [n for n in numbers if not self._known[n].counted.complete]

    def _rows_left(self) -> int:
        """Return the number of rows that can still be read in time at the speed of this pass so far."""
        spent = max(self._monotonic() - self._began, 0.0001)
        return int(max((self._seconds - spent) * self._rows_read / spent, SURE_ROWS - self._rows_read))

    def _raise_cap_of_all(self, large: list[int], cap: int) -> None:
        """Repeat all these counts with larger caps, the same for all, while there is time.

        They have no earlier results, so a better lower bound for each is worth more than a few exact counts.
        """
        while large:
            larger = min(cap * GROWTH, self._rows_left() // len(large))
            if larger < 2 * cap:
                return
            cap = larger
            large = self._count(large, cap)

    def _count_some_exactly(self, large: list[int], cap: int) -> None:
        """Make as many of these counts exact as possible, those tried longest ago first. Others keep old results."""
        for position, n in enumerate(sorted(large, key=lambda n: self._previous(n).tried_in)):
            rows, before = self._rows_left(), self._previous(n)
            still_large = True
            if position < SINGLE_STATEMENTS and rows >= 2 * cap and (position == 0 or rows > before.counted.number):
                still_large = bool(self._count([n], rows))
            if still_large:  # only the first count could use all the time that was left, so only it counts as tried
                self._known[n] = self._better(n)._replace(tried_in=self._pass if position == 0 else before.tried_in)

    def _better(self, n: int) -> KnownCount:
        """Return the larger lower bound: that of this pass, or that of an earlier pass if it is still valid."""
        before, now = self._previous(n), self._known[n]
        valid = self._pass - before.made_in < VALID_PASSES and before.counted.number > now.counted.number
        return before._replace(old=True) if valid else now

    def _previous(self, n: int) -> KnownCount:
        return self._before[n] or self._known[n]


def by_index(using: str) -> AbstractContextManager[None]:
    """Make PostgreSQL read in index order inside the block, so that a LIMIT ends the query early.

    Bitmap scans and all sorts are switched off, because they read a whole range before they return the first row, which
    takes seconds. JIT compilation is switched off too, because it takes longer than these queries.
    """
    return dialects.reads_with(
        using, enable_bitmapscan="off", enable_sort="off", enable_incremental_sort="off", jit="off"
    )


def run(using: str, sql: str, params: Sequence[Any]) -> list[Any]:
    with dialects.cursor(using) as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


# -- topics -------------------------------------------------------------------------------------


def topics(using: str, where: str, limit: int) -> list[str]:
    """Return the first `limit` topics with jobs that match `where`, sorted. Takes one index lookup for each topic."""
    sql = f"""
        WITH RECURSIVE names (name) AS (
            SELECT min(topic) FROM delaytasks_job WHERE {where}
            UNION ALL
            SELECT (SELECT min(topic) FROM delaytasks_job WHERE {where} AND topic > name)
            FROM names WHERE name IS NOT NULL)
        SELECT name FROM names WHERE name IS NOT NULL LIMIT {limit}"""
    return [row[0] for row in run(using, sql, [])]


def live_topics(using: str, limit: int = TOPICS) -> list[str]:
    return topics(using, "ended_at IS NULL", limit)


def dead_topics(using: str, limit: int = TOPICS) -> list[str]:
    return topics(using, "died_at IS NOT NULL", limit)


def oldest_ready(using: str, names: Sequence[str]) -> dict[str, int]:
    """Return the due time of each topic's oldest ready job, in ms since 1970.

    Topics without ready jobs are left out, and held topics: more workers could not run their jobs.
    """
    return {name: each.oldest_ms for name, each in waiting(using, names, rows=0).items() if each.oldest_ms is not None}


class Waiting(NamedTuple):
    reserved: int
    # Due time of the oldest ready job in ms since 1970. None: no job is ready, or they are held, unless the probe that
    # may end the hold is late by LATE_PROBE_MS: then they wait for a worker.
    oldest_ms: int | None


def waiting(using: str, names: Sequence[str], *, rows: int) -> dict[str, Waiting]:
    """Return, for each topic, its oldest ready job and the number of reserved jobs among its `rows` oldest due jobs.

    rows   0: reserved jobs are not counted

    Jobs are reserved by age and priority, so the reserved ones are usually among the oldest. A reserved job of a high
    priority that is not among them is not counted.
    """
    if not names:
        return {}
    with by_index(using):
        result = run(using, waiting_sql(using, len(names), rows), list(names))
    return {name: Waiting(reserved, oldest_ms) for name, reserved, oldest_ms in result}


def waiting_sql(using: str, count: int, rows: int) -> str:
    d = dialects.get_dialect(using)
    due = f"topic = name AND ended_at IS NULL AND due_at <= {d.now}"
    oldest = f"SELECT state FROM delaytasks_job WHERE {due} ORDER BY due_at, id LIMIT {rows}"
    reserved = f"(SELECT count(*) FROM ({oldest}) AS oldest WHERE state = {int(State.RESERVED)})"
    probed = f"{d.to_ms('held_until')} > {d.to_ms(d.now)} - {LATE_PROBE_MS}"
    held = f"EXISTS (SELECT 1 FROM delaytasks_topic AS topic WHERE topic.name = cells.name AND {probed})"
    return f"""
        WITH cells (name) AS (VALUES {", ".join(["(%s)"] * count)})
        SELECT name, {reserved if rows else 0}, CASE WHEN NOT {held} THEN
            (SELECT {d.to_ms("due_at")} FROM delaytasks_job WHERE {due} AND state = {int(State.DELAYED)}
             ORDER BY due_at, id LIMIT 1) END
        FROM cells"""


def next_due(using: str, names: Sequence[str]) -> dict[str, int | None]:
    """Return the due time of each topic's next job that is not due yet, in ms since 1970; None without such a job."""
    if not names:
        return {}
    with by_index(using):
        return dict(run(using, next_due_sql(using, len(names)), list(names)))


def next_due_sql(using: str, count: int) -> str:
    """Return the query of next_due(). It compares (topic, due_at) as a row: only the index on both can serve it.

    With `topic = name` the planner might scan all due times for a rare topic; with `topic >= name AND topic <= name` it
    would read all overdue jobs of the topic.
    """
    d = dialects.get_dialect(using)
    return f"""
        WITH cells (name) AS (VALUES {", ".join(["(%s)"] * count)})
        SELECT name, (SELECT {d.to_ms("due_at")} FROM delaytasks_job
            WHERE (topic, due_at) > (name, {d.now}) AND topic <= name AND ended_at IS NULL
            ORDER BY topic, due_at LIMIT 1) FROM cells"""
