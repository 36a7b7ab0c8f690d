"""The audit: compare the mirror with the database, entry by entry, and repair the mirror."""

import logging
from datetime import timedelta
from typing import NamedTuple

from .. import conf, databases, mirror
from ..db import lookups
from ..db.lookups import JobSnapshot
from ..mirror.base import GONE, Entry, Settlement
from ..mirror.redis.index import Mirror
from ..models import Job
from ..states import STORED_LIVE
from .feed import window

logger = logging.getLogger("delaytasks")
TOLERANCE_MS = 500
EDGE_MS = 300_000  # the end of the horizon is not compared: feed() may not have added its jobs yet


def audit(using: str | None = None, *, repair: bool = True) -> dict[str, int]:
    """Compare the mirror with the rows within the horizon. Return counts by name.

    missing  live rows without an entry        late     entries with a later time than their row
    ghosts   entries without a live row        doubled  jobs with two entries
    checked  rows compared

    repair   False: only count the differences

    Each difference is checked again before it is counted, because jobs move during the audit. All counts are 0
    without Redis. Raises MirrorDown.
    """
    using = databases.alias(using)
    index = mirror.connect(using)
    counts = {"missing": 0, "late": 0, "ghosts": 0, "doubled": 0, "checked": 0}
    if index is None:
        return counts
    _check_rows(index, using, counts, repair)
    _check_entries(index, using, counts, repair)
    if any(counts[kind] for kind in ("missing", "late", "ghosts", "doubled")):
        logger.warning("mirror audit: %s", counts, extra={"audit": counts})
    return counts


class _Difference(NamedTuple):
    kind: str
    row: JobSnapshot
    due_score: int | None


def _check_rows(index: Mirror, using: str, counts: dict[str, int], repair: bool) -> None:
    until_ms = databases.now_ms(using) + conf.get().horizon_ms - EDGE_MS
    for page in window(using, 0, until_ms):
        counts["checked"] += len(page)
        differences = _differences(index, page)
        again = lookups.get_snapshots(using, [each.row.id for each in differences]) if differences else []
        for difference in _differences(index, again):
            counts[difference.kind] += 1
            if repair:
                _repair(index, difference)


def _differences(index: Mirror, rows: list[JobSnapshot]) -> list[_Difference]:
    rows = [row for row in rows if row.state in STORED_LIVE]
    grace_ms = conf.get().claim_grace_ms + TOLERANCE_MS  # a reserved job has a later entry until its claim
    differences = []
    for row, (due, ready) in zip(rows, index.scores([(row.id, row.topic) for row in rows]), strict=True):
        if due is None and ready is None:
            differences.append(_Difference("missing", row, due))
        elif due is not None and ready is not None:
            differences.append(_Difference("doubled", row, due))
        elif due is not None and due > max(row.entry_ms, row.now_ms + grace_ms):
            differences.append(_Difference("late", row, due))
    return differences


def _repair(index: Mirror, difference: _Difference) -> None:
    row = difference.row
    if difference.kind == "doubled":
        index.settle([Settlement(row.id, row.topic, difference.due_score or 0, GONE)])
    else:
        index.feed([Entry(row.id, row.topic, row.entry_ms, row.priority)])


def _check_entries(index: Mirror, using: str, counts: dict[str, int], repair: bool) -> None:
    for entries in index.entries():
        ghosts = _lasting(index, using, _ghosts(using, entries))
        counts["ghosts"] += len(ghosts)
        if repair:
            index.settle(Settlement(e.id, e.topic, e.at_ms, GONE) for e in ghosts)


def _ghosts(using: str, entries: list[Entry]) -> list[Entry]:
    rows = lookups.get_snapshots(using, [entry.id for entry in entries]) if entries else []
    live = {row.id: row.topic for row in rows if row.state in STORED_LIVE}
    return [entry for entry in entries if live.get(entry.id) != entry.topic]


def _lasting(index: Mirror, using: str, ghosts: list[Entry]) -> list[Entry]:
    """Return the ghosts that are still in the mirror, without those of jobs that have just ended.

    The entry of a job that has just ended is removed after the commit.
    """
    if not ghosts:
        return []
    since = databases.now(using) - timedelta(milliseconds=conf.get().claim_grace_ms)
    ended = Job.objects.using(using).filter(pk__in=[ghost.id for ghost in ghosts], ended_at__gt=since)
    leaving = set(ended.values_list("pk", flat=True))
    scores = index.scores([(ghost.id, ghost.topic) for ghost in ghosts])
    there = [ghost for ghost, places in zip(ghosts, scores, strict=True) if any(each is not None for each in places)]
    return [ghost for ghost in there if ghost.id not in leaving]
