"""Pages of jobs for programs: forward only, at the same cost among a thousand rows and among ten million.

A page walks one index, topic by topic, from where the last one ended. What no index answers is
filtered from a bounded number of rows, so a page may be short, even empty, and have a next one.
"""

import base64
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections

from . import clock, dialect
from .exceptions import BadCursor
from .models import Job
from .states import STORED_LIVE, State

EXAMINED = 20_000  # rows of a topic that one page looks at
PAGE_SECONDS = 0.25  # after that a page goes on to no further topic
_LAST = "\U0010ffff"
_LAST_MS = 253_402_300_799_999  # of the year 9999; no id gets that far either


class Page(NamedTuple):
    jobs: list[Job]
    next: str  # the cursor of the next page; "" at the end


class Wish(NamedTuple):
    """What is looked for. state None: in any state; times are aware, due_until is not included."""

    state: State | None = None
    key_prefix: str = ""
    due_from: datetime | None = None
    due_until: datetime | None = None


class Walk(NamedTuple):
    """An index of one topic, walked in its order behind a position."""

    name: str
    where: str  # what makes it this index
    columns: str
    behind: str  # its place holders are `position`
    order: str


def page(
    using: str,
    topics: Sequence[str],
    *,
    state: State | None = None,
    key_prefix: str = "",
    due_from: datetime | None = None,
    due_until: datetime | None = None,
    cursor: str = "",
    limit: int = 50,
) -> Page:
    """Up to `limit` jobs of these topics that fit, and the cursor of the next page.

    Ordered by topic; inside a topic live states by due time, dead ones by id, everything else by
    key. A job that changes while somebody pages is seen at most once in each of its places.
    Raises BadCursor.
    """
    wish = Wish(state, key_prefix, due_from, due_until)
    walk = _walk(using, wish)
    at_topic, position = _read(cursor, walk)
    found: list[Job] = []
    over = time.monotonic() + PAGE_SECONDS
    for topic in sorted(topic for topic in topics if topic >= at_topic):
        start = position if topic == at_topic else []
        if (found and len(found) == limit) or time.monotonic() > over:
            return Page(found, _write(walk, topic, start))
        part, stop = _up_to_stop(using, walk, wish, topic, start, limit - len(found) + 1)
        if len(found) + len(part) > limit:
            found += part[:-1]
            return Page(found, _write(walk, topic, _position(walk, found[-1])))
        found += part
        if stop is not None:
            return Page(found, _write(walk, topic, _position(walk, stop)))
    return Page(found, "")


def _walk(using: str, wish: Wish) -> Walk:
    if not wish.key_prefix and wish.state in (*STORED_LIVE, State.READY):
        return Walk("due", "ended_at IS NULL", "due_at, id", "(due_at, id) > (%s, %s)", "due_at, id")
    if not wish.key_prefix and wish.state is State.DEAD:
        return Walk("dead", "died_at IS NOT NULL", "id", "id > %s", "id")
    if connections[using].vendor == "postgresql":  # the index is ordered byte by byte, whatever the collation
        behind = "key ~>=~ %s AND (key ~>~ %s OR id > %s)"
        return Walk("key", "key ~>=~ %s AND key ~<~ %s", "key, id", behind, "key USING ~<~, id")
    return Walk("key", "key >= %s AND key < %s", "key, id", "key >= %s AND (key > %s OR id > %s)", "key, id")


def _walked(using: str, walk: Walk, wish: Wish, topic: str, start: list[Any]) -> tuple[str, list[Any]]:
    """The rows behind `start` in the walk's order: a range of its index. Of these a page looks at EXAMINED."""
    d = dialect.of(using)
    where, params = ["topic = %s", walk.where], [topic]
    if walk.name == "key":
        params += [wish.key_prefix, wish.key_prefix + _LAST]
    if walk.name == "due":
        for moment, comparison in ((wish.due_from, ">="), (wish.due_until, "<")):
            if moment is not None:
                where.append(f"due_at {comparison} %s")
                params.append(d.moment(clock.to_ms(moment)))
        if wish.state in (State.DELAYED, State.READY):
            where.append(f"due_at {'>' if wish.state is State.DELAYED else '<='} {d.now}")
    if start:
        where.append(walk.behind)
        params += _as_params(using, walk, start)
    sql = f"SELECT * FROM delaytasks_job WHERE {' AND '.join(where)} ORDER BY {walk.order}"
    return sql, params


def _as_params(using: str, walk: Walk, start: list[Any]) -> list[Any]:
    if walk.name == "due":
        return [dialect.of(using).moment(start[0]), start[1]]
    return [start[0], *start] if walk.name == "key" else start


def _filters(using: str, walk: Walk, wish: Wish) -> tuple[list[str], list[Any]]:
    """What the walk's range does not say yet."""
    d = dialect.of(using)
    where: list[str] = []
    params: list[Any] = []
    if wish.state is not None and walk.name != "dead":
        where.append(f"state = {int(State.DELAYED if wish.state is State.READY else wish.state)}")
        if walk.name == "key" and wish.state in (State.DELAYED, State.READY):
            where.append(f"due_at {'>' if wish.state is State.DELAYED else '<='} {d.now}")
    for moment, comparison in ((wish.due_from, ">="), (wish.due_until, "<")):
        if moment is not None and walk.name != "due":
            where.append(f"due_at {comparison} %s")
            params.append(d.moment(clock.to_ms(moment)))
    return where, params


def _up_to_stop(
    using: str, walk: Walk, wish: Wish, topic: str, start: list[Any], limit: int
) -> tuple[list[Job], Job | None]:
    """(what was found, the last row that was looked at, if the topic has more behind it).

    Rows leave the walk while it goes on. So a page that looked at all that it may looks once more
    when it knows where it stops: whatever lies before that and did not change is in it.
    """
    part = _part(using, walk, wish, topic, start, limit)
    if len(part) == limit or not _filters(using, walk, wish)[0]:
        return part, None
    stop = _examined_up_to(using, walk, wish, topic, start)
    part = _part(using, walk, wish, topic, start, limit)
    if stop is not None:
        part = [job for job in part if _position(walk, job) <= _position(walk, stop)]
    return part, stop


def _part(using: str, walk: Walk, wish: Wish, topic: str, start: list[Any], limit: int) -> list[Job]:
    walked, params = _walked(using, walk, wish, topic, start)
    filters, more = _filters(using, walk, wish)
    where = f"WHERE {' AND '.join(filters)}" if filters else ""
    sql = f"SELECT * FROM ({walked} LIMIT {EXAMINED}) AS walked {where} ORDER BY {walk.order} LIMIT {limit}"
    return list(Job.objects.using(using).raw(sql, [*params, *more]))


def _examined_up_to(using: str, walk: Walk, wish: Wish, topic: str, start: list[Any]) -> Job | None:
    """The last row that was looked at, if the topic has more behind it."""
    walked, params = _walked(using, walk, wish, topic, start)
    rows = Job.objects.using(using).raw(f"{walked} LIMIT 1 OFFSET {EXAMINED - 1}", params)
    return next(iter(rows), None)


def _position(walk: Walk, job: Job) -> list[Any]:
    if walk.name == "dead":
        return [job.pk]
    return [job.due_ms if walk.name == "due" else job.key, job.pk]


def _write(walk: Walk, topic: str, position: list[Any]) -> str:
    text = json.dumps([walk.name, topic, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


_KINDS: dict[str, tuple[type, ...]] = {"due": (int, int), "dead": (int,), "key": (str, int)}


def _read(cursor: str, walk: Walk) -> tuple[str, list[Any]]:
    """(topic, position) of a cursor; ("", []) without one. Raises BadCursor."""
    if not cursor:
        return "", []
    try:
        name, topic, *position = json.loads(_decoded(cursor))
    except (ValueError, TypeError, RecursionError):
        raise BadCursor("The cursor is not one that a page gave: begin without one.") from None
    if name != walk.name or not isinstance(topic, str) or not _fits(position, _KINDS[walk.name]):
        raise BadCursor("The cursor belongs to a list with other filters: begin without one.")
    return topic, position


def _decoded(cursor: str) -> bytes:
    return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)


def _fits(position: list[Any], kinds: Sequence[type]) -> bool:
    return not position or ([type(value) for value in position] == list(kinds) and all(map(_in_range, position)))


def _in_range(value: Any) -> bool:
    """Whether a database can compare with it."""
    if isinstance(value, int):
        return 0 <= value <= _LAST_MS
    return not any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in value)
