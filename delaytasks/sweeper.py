"""The guards: what the mirror missed is found in the database and put right.

guard    each second: is Redis still the one we filled, and is anything overdue that nobody looks at?
sweep    each half minute: leases that ended, and the next window of the horizon
rebuild  everything within the horizon again, after Redis lost or rewound its data
audit    both sides compared, entry by entry
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from django.db import transaction

from . import conf, engine, mirror, statements, topics
from .clock import from_ms, to_ms
from .endings import expire
from .exceptions import MirrorDown
from .mirror.index import Mirror
from .models import MirrorMark, Topic
from .places import GONE, Entry, Settlement
from .states import State
from .statements import Standing

logger = logging.getLogger("delaytasks")
PAGE = 500
OVERDUE_AGE_MS = 500  # younger ones are most likely on their way
OVERLAP_MS = 300_000  # the feeder reads again what committed late, this far below its mark
TICK_EVERY_MS = 10_000
ALONE_MS = 15_000


def guard(using: str) -> int:
    """One second's guard, done by one process at a time; how many missing entries were added to the mirror."""
    found = mirror.connect()
    if found is None or found.down:
        return 0
    try:
        if not found.alone("guard", conf.get().guard_tick_ms * 9 // 10):
            return 0
        if lost_data(found, using):
            logger.warning("mirror: Redis is new, empty, or rewound its data")
            rebuild(using)
            return 0
        return probe(found, using)
    except MirrorDown:
        _tick(using)  # Redis misses this one, so that its return is noticed even if it comes back as it was
        return 0


# -- is it still the Redis that we filled? ------------------------------------------------------


def lost_data(found: Mirror, using: str) -> bool:
    """Whether Redis is another one, empty, or rewound since it was last filled. Ticks on if not."""
    mark = _mark(using)
    if found.masters() != mark.masters or any(tick != mark.tick for tick in found.ticks()):
        return True
    if found.alone("tick", TICK_EVERY_MS):
        found.write_tick(_tick(using))
    return False


def _mark(using: str) -> MirrorMark:
    return MirrorMark.objects.using(using).get_or_create(pk=1)[0]


def _tick(using: str) -> int:
    """The next tick; the database knows it first, so a crash in between only costs a rebuild."""
    with transaction.atomic(using):
        mark = MirrorMark.objects.using(using).select_for_update().get_or_create(pk=1)[0]
        mark.tick += 1
        mark.save(update_fields=["tick"], using=using)
    return mark.tick


def rebuild(using: str | None = None) -> int:
    """Enter everything within the horizon into the mirror again; how many entries were missing.

    What the mirror has beyond that is left: a stale entry costs one refused claim. One
    process at a time; 0 if another is at it or if there is no Redis. Raises MirrorDown.
    """
    using = engine.alias(using)
    found = mirror.connect()
    if found is None or not found.alone("rebuild", ALONE_MS):
        return 0
    try:
        masters = found.masters()  # before, so that a restart meanwhile is noticed afterwards
        until_ms = engine.now_ms(using) + conf.get().horizon_ms
        logger.info("mirror: it is filled from the database")
        added = 0
        for page in _window(using, 0, until_ms):
            added += _feed(found, page)
            found.still_alone("rebuild", ALONE_MS)
        tick = _tick(using)
        MirrorMark.objects.using(using).filter(pk=1).update(masters=masters, fed_until=from_ms(until_ms))
        found.write_tick(tick)
        found.count("rebuilt")
        logger.info("mirror: %s entries were missing and are back", added)
        return added
    finally:
        found.not_alone("rebuild")


def _feed(found: Mirror, page: list[Standing]) -> int:
    return found.add(Entry(s.id, s.topic, _entry_ms(s)) for s in page)


def _entry_ms(standing: Standing) -> int:
    if standing.state == State.RESERVED and standing.lease_ms is not None:
        return standing.lease_ms
    return standing.due_ms


# -- what is overdue, expired, or comes into the horizon ----------------------------------------


def probe(found: Mirror, using: str) -> int:
    """Add what is overdue, held by nobody and not in the mirror; how many that were.

    A cursor goes round, so that a backlog that is correctly ready cannot hide one missing row.
    """
    overdue = statements.overdue(using, age_ms=OVERDUE_AGE_MS, after=found.probe_cursor(), limit=PAGE)
    missing = _feed(found, overdue) if overdue else 0
    found.probe_cursor((overdue[-1].due_ms, overdue[-1].id) if len(overdue) == PAGE else (0, 0))
    if missing:
        found.count("repaired", missing)
        logger.warning("mirror: %s overdue jobs were missing and are back", missing)
    return missing


def sweep(using: str | None = None) -> dict[str, int]:
    """Leases that ended are taken back, the horizon moves on; what was done, by name. Works without Redis."""
    using = engine.alias(using)
    done = {"expired": take_back_expired(using), "fed": 0}
    _ensure_topics(using)
    found = mirror.connect()
    if found is not None and not found.down:
        try:
            done["fed"] = feed(found, using)
            if found.alone("audit", conf.get().audit_seconds * 1000):
                done |= audit(using)
        except MirrorDown as error:
            logger.warning("sweep: the mirror was left out: %s", error)
    return done


def take_back_expired(using: str) -> int:
    after, taken = (0, 0), 0
    while page := statements.expired(using, after=after, limit=PAGE):
        taken += expire(using, page)
        after = (page[-1].due_ms, page[-1].id)
    return taken


def feed(found: Mirror, using: str) -> int:
    """Bring the next window of the horizon into the mirror; how many entries were new there."""
    mark = _mark(using)
    now_ms = engine.now_ms(using)
    until_ms = now_ms + conf.get().horizon_ms
    fed_ms = to_ms(mark.fed_until) if mark.fed_until else now_ms
    pages = _window(using, fed_ms - OVERLAP_MS, until_ms)
    added = sum(_feed(found, page) for page in pages)
    MirrorMark.objects.using(using).filter(pk=mark.pk).update(fed_until=from_ms(until_ms))
    return added


def _window(using: str, after_ms: int, until_ms: int) -> Iterator[list[Standing]]:
    after = (after_ms, 0)
    while page := statements.window(using, until_ms=until_ms, after=after, limit=PAGE):
        yield page
        after = (page[-1].due_ms, page[-1].id)


def _ensure_topics(using: str) -> None:
    rows = Topic.objects.using(using)
    missing = set(topics.known()) - set(rows.values_list("name", flat=True))
    rows.bulk_create([Topic(name=name) for name in sorted(missing)], ignore_conflicts=True)


# -- both sides compared ------------------------------------------------------------------------


def audit(using: str | None = None, *, repair: bool = True) -> dict[str, int]:
    """Compare the mirror with the rows within the horizon; counts by name.

    missing  live rows without an entry        late     entries later than the row says
    ghosts   entries without a live row        doubled  jobs in both places
    checked  rows looked at

    What moves meanwhile is looked at twice before it counts. Raises MirrorDown.
    """
    using = engine.alias(using)
    found = mirror.connect()
    counts = {"missing": 0, "late": 0, "ghosts": 0, "doubled": 0, "checked": 0}
    if found is None:
        return counts
    until_ms = engine.now_ms(using) + conf.get().horizon_ms - OVERLAP_MS
    for page in _window(using, 0, until_ms):
        counts["checked"] += len(page)
        suspects = _suspects(found, page)
        again = statements.stand(using, [suspect.standing.id for suspect in suspects]) if suspects else []
        for suspect in _suspects(found, again):
            counts[suspect.kind] += 1
            if repair:
                _repair(found, suspect)
    for entries in found.entries():
        ghosts = _ghosts(using, entries)
        counts["ghosts"] += len(ghosts)
        if repair:
            found.settle(Settlement(e.id, e.topic, e.at_ms, GONE) for e in ghosts)
    if any(counts[kind] for kind in ("missing", "late", "ghosts", "doubled")):
        logger.warning("mirror audit: %s", counts, extra={"audit": counts})
    return counts


class _Suspect(NamedTuple):
    kind: str
    standing: Standing
    due_score: int | None


def _suspects(found: Mirror, page: list[Standing]) -> list[_Suspect]:
    page = [s for s in page if s.state in (State.DELAYED, State.RESERVED)]
    grace_ms = conf.get().claim_grace_ms + OVERDUE_AGE_MS  # just reserved, about to be claimed
    suspects = []
    for standing, (due, ready) in zip(page, found.scores([(s.id, s.topic) for s in page]), strict=True):
        if due is None and ready is None:
            suspects.append(_Suspect("missing", standing, due))
        elif due is not None and ready is not None:
            suspects.append(_Suspect("doubled", standing, due))
        elif due is not None and due > max(_entry_ms(standing), standing.now_ms + grace_ms):
            suspects.append(_Suspect("late", standing, due))
    return suspects


def _repair(found: Mirror, suspect: _Suspect) -> None:
    if suspect.kind == "doubled":
        found.settle([Settlement(suspect.standing.id, suspect.standing.topic, suspect.due_score or 0, GONE)])
    else:
        _feed(found, [suspect.standing])


def _ghosts(using: str, entries: list[Entry]) -> list[Entry]:
    if not entries:
        return []
    live = {
        s.id: s.topic
        for s in statements.stand(using, [e.id for e in entries])
        if s.state in (State.DELAYED, State.RESERVED)
    }
    return [e for e in entries if live.get(e.id) != e.topic]
