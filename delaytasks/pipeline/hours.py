"""Which hours a report has to work out: those that may have changed since the one before, and no others.

Events are appended with growing ids, and carry the time of the statement that wrote them. But transactions
commit in any order, so at each moment some hours are not settled: a transaction that began to write in them may
still be open. What ids and transactions say is enough to be exact; a guess about how long transactions take is
not needed.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from .snapshot import Snapshot

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
SLACK_MS = 300_000  # a statement that waited so long for its lock may begin to write after its own time
MOST_LOOKS = 2_000  # of the past that are remembered; without one, more events are read than needed
LATE = "SELECT DISTINCT done_ms / 3600000 FROM delaytasks_jobevent WHERE id > {} AND done_ms < {}"
# By the number of the row's own transaction, of which PostgreSQL keeps 32 bits: so far back or less, as seen from {}.
UNSEEN = " AND (CAST({} AS bigint) - CAST(CAST(xmin AS text) AS bigint)) & 4294967295 <= {}"


@dataclass(frozen=True)
class Look:
    """What a report saw: when, up to which event's id, and which transactions had ended and begun (see Snapshot)."""

    taken_ms: int
    max_id: int
    xmin: int
    xmax: int


@dataclass(frozen=True)
class Wanted:
    """The hours to work out: all from since_ms on, and those of `before`; their events have ids above above_id."""

    since_ms: int
    before: tuple[int, ...]
    above_id: int

    def has(self, hour_ms: int) -> bool:
        return hour_ms >= self.since_ms or hour_ms in self.before


def hour_of(ms: int) -> int:
    return ms - ms % HOUR_MS


def month_of(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m}"


def look(snapshot: Snapshot) -> Look:
    ((max_id,),) = snapshot.ask("SELECT coalesce(max(id), 0) FROM delaytasks_jobevent")
    return Look(snapshot.now_ms, max_id, snapshot.xmin, snapshot.xmax)


def looks_of(document: dict[str, Any]) -> list[Look]:
    return [Look(**each) for each in document.get("looks", ())]


def as_document(looks: Iterable[Look]) -> list[dict[str, int]]:
    return [asdict(each) for each in looks][-MOST_LOOKS:]


def settled(looks: list[Look], now: Look) -> int:
    """Hours before this one cannot change any more: what was being written when they had ended is done by now.

    A later event with an older time is possible (rows that were loaded) and found by its id.
    """
    ended = [each.taken_ms for each in [*looks, now] if each.xmax <= now.xmin]
    return hour_of(max(ended) - SLACK_MS) if ended else 0


def wanted(snapshot: Snapshot, looks: list[Look], settled_ms: int, archived: Iterable[int] = ()) -> Wanted:
    """What has to be worked out, if hours before settled_ms were settled when the last look was worked out.

    archived   hours of events that the last look did not see, and that the archive has
    """
    if not looks:
        return Wanted(0, (), 0)
    before = tuple(sorted({*_late(snapshot, looks, settled_ms), *archived}))
    return Wanted(settled_ms, before, above(looks, min([settled_ms, *before])))


def _late(snapshot: Snapshot, looks: list[Look], settled_ms: int) -> list[int]:
    """The hours before settled_ms of events that the last look did not see."""
    sql, params = LATE, [seen(snapshot, looks, settled_ms), settled_ms]
    if snapshot.database.vendor != "sqlite" and snapshot.xmax >= looks[-1].xmin:  # a database that moved counts anew
        # Below ids that it saw there may be some whose transactions were open: an import's, with old times.
        sql, params = LATE + UNSEEN, [*params, snapshot.xmax, snapshot.xmax - looks[-1].xmin]
    return [hour * HOUR_MS for (hour,) in snapshot.ask(sql, params)]


def seen(snapshot: Snapshot, looks: list[Look], settled_ms: int) -> int:
    """An id up to which the last look saw every event.

    SQLite's one writer commits an id before the next is handed out. Elsewhere it is one that was handed out so long
    before hours were settled that its transaction, which may have begun to write after it had the id, has ended too.
    """
    return looks[-1].max_id if snapshot.database.vendor == "sqlite" else above(looks, settled_ms)


def above(looks: list[Look], hour_ms: int) -> int:
    """An id that no event of this hour or a later one reaches: it was there when the hour had not begun."""
    return max((each.max_id for each in looks if each.taken_ms <= hour_ms), default=0)
