"""Find the hours that a report has to recompute: those that may have changed since the last report.

An event has an increasing id and the time of the statement that wrote it. But transactions commit in any order: during
a report, a transaction may be open that wrote events of an earlier hour. The next report finds such events by their
event ids and transaction ids, however long the transaction took.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ...clock import from_ms
from ..sources.snapshot import Snapshot

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
MARGIN_MS = 300_000  # assumed longest time from the start of a statement to its write, such as a wait for a lock
MAX_SNAPSHOTS = 2_000  # maximum in report.json; without older ones a report may read more events than necessary
LATE_HOURS = "SELECT DISTINCT done_ms / 3600000 FROM delaytasks_jobevent WHERE id > {} AND done_ms < {}"
# Condition for rows of transactions that may have been open at the last report. A row's xmin has only 32 bits, so
# distances modulo 2**32 are compared. Parameters: the current xmax, and its distance to the xmin of the last report.
UNSEEN_FILTER = " AND (CAST({} AS bigint) - CAST(CAST(xmin AS text) AS bigint)) & 4294967295 <= {}"


@dataclass(frozen=True)
class ReportSnapshot:
    """State of the database at a report.

    taken_ms     time of the snapshot, by the database's clock, in milliseconds since 1970
    max_id       greatest visible event id; 0: no events
    xmin, xmax   bounds of the open transactions; see Snapshot
    """

    taken_ms: int
    max_id: int
    xmin: int
    xmax: int


@dataclass(frozen=True)
class StaleHours:
    """Hours to recompute: all hours from since_ms on, and the hours in earlier_hours.

    An hour is the time at which it begins, in milliseconds since 1970. The events of these hours have ids above
    above_id.
    """

    since_ms: int
    earlier_hours: tuple[int, ...]
    above_id: int


def hour_of(ms: int) -> int:
    return ms - ms % HOUR_MS


def month_of(ms: int) -> str:
    return f"{from_ms(ms):%Y-%m}"


def observe(snapshot: Snapshot) -> ReportSnapshot:
    ((max_id,),) = snapshot.query("SELECT coalesce(max(id), 0) FROM delaytasks_jobevent")
    return ReportSnapshot(snapshot.now_ms, max_id, snapshot.xmin, snapshot.xmax)


def from_document(document: dict[str, Any]) -> list[ReportSnapshot]:
    return [ReportSnapshot(**each) for each in document.get("looks", ())]


def to_document(earlier: Iterable[ReportSnapshot]) -> list[dict[str, int]]:
    return [asdict(each) for each in earlier][-MAX_SNAPSHOTS:]


def settled_before(earlier: list[ReportSnapshot], now: ReportSnapshot) -> int:
    """Return the start of the first hour that open transactions can still change; 0 if no hour is settled.

    An hour is settled when all transactions that were open at its end have ended. Rows that are inserted later may
    still have a time in a settled hour, such as imported events; find_stale_hours() finds these by their ids.
    """
    ended = [each.taken_ms for each in [*earlier, now] if each.xmax <= now.xmin]
    return hour_of(max(ended) - MARGIN_MS) if ended else 0


def find_stale_hours(
    snapshot: Snapshot, earlier: list[ReportSnapshot], settled_ms: int, archived_hours: Iterable[int] = ()
) -> StaleHours:
    """Return the hours to recompute. Without an earlier report these are all hours.

    settled_ms       result of settled_before() at the last report
    archived_hours   hours of archived events that the last report may not have read
    """
    if not earlier:
        return StaleHours(0, (), 0)
    earlier_hours = tuple(sorted({*_late(snapshot, earlier, settled_ms), *archived_hours}))
    return StaleHours(settled_ms, earlier_hours, id_before(earlier, min([settled_ms, *earlier_hours])))


def _late(snapshot: Snapshot, earlier: list[ReportSnapshot], settled_ms: int) -> list[int]:
    """Return the hours before settled_ms with events that the last report may not have read."""
    sql, params = LATE_HOURS, [seen_id(snapshot, earlier, settled_ms), settled_ms]
    # An event with a low id may belong to a transaction that was open at the last report, such as an import. So select
    # by transaction id as well, except after dump and restore: transaction ids of another server cannot be compared.
    if snapshot.database.vendor != "sqlite" and snapshot.xmax >= earlier[-1].xmin:
        sql, params = LATE_HOURS + UNSEEN_FILTER, [*params, snapshot.xmax, snapshot.xmax - earlier[-1].xmin]
    return [hour * HOUR_MS for (hour,) in snapshot.query(sql, params)]


def seen_id(snapshot: Snapshot, earlier: list[ReportSnapshot], settled_ms: int) -> int:
    """Return an event id up to which the last report read every event; 0 if no such id is known.

    SQLite: the greatest id at the last report, because a single writer commits an id before the next one is assigned.
    PostgreSQL: an id that was visible before settled_ms; transactions with lower event ids had ended at the last
    report.
    """
    return earlier[-1].max_id if snapshot.database.vendor == "sqlite" else id_before(earlier, settled_ms)


def id_before(earlier: list[ReportSnapshot], hour_ms: int) -> int:
    """Return an id that is less than the ids of all events from this hour on; 0 if none is known.

    This is the greatest event id of the last report that was made before the hour began.
    """
    return max((each.max_id for each in earlier if each.taken_ms <= hour_ms), default=0)
