"""The guards: what the mirror missed is found in the database and put right.

guard    each second: is Redis still the one we filled, and is anything overdue that nobody looks at?
sweep    each half minute: leases that ended, and the next window of the horizon
rebuild  everything within the horizon again, after Redis lost or rewound its data
"""

import logging
import math
import time
from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Q

from . import conf, engine, loaded, topics, watching
from .audit import audit
from .clock import from_ms, to_ms
from .endings import expire
from .exceptions import MirrorDown
from .mirror.index import Mirror
from .models import MirrorMark, Topic
from .on_commit import OVERLAP_MS  # the feeder reads again what committed late, this far below its mark
from .places import Entry
from .recognition import TICK_EVERY_MS, forget, lost_data, mark, next_tick
from .watching import Standing

logger = logging.getLogger("delaytasks")
PAGE = 500
OVERDUE_AGE_MS = 500  # younger ones are most likely on their way
PROBE_OVERLAP_MS = 2_000  # for what committed late
PROBE_SECONDS = 0.3  # a guard's time for each of its looks
ALONE_MS = 15_000

_noticed_outages: set[str] = set()
_said_looked: dict[str, float] = {}  # alias -> when, by the monotonic clock


def guard(using: str) -> int:
    """One second's guard, done by one process at a time; how many missing entries were added to the mirror."""
    _say_looked(using)
    found = engine.mirror_of(using)
    if found is None:
        return 0
    try:
        if found.down:
            raise MirrorDown
        if not found.alone("guard", conf.get().guard_tick_ms * 9 // 10):
            return 0
        if not lost_data(found, using):
            _noticed_outages.discard(using)
            return probe(found, using)
        logger.warning("mirror: Redis is new, empty, rewound, or was away")
        if rebuild(using) is None:  # another is at it for long, or has died at it: what is overdue does not wait
            return probe(found, using)
        _noticed_outages.discard(using)  # the next one may begin before anybody has looked again
        return 0
    except MirrorDown:
        if using not in _noticed_outages:  # Redis misses this tick, so even one that comes back as it was is noticed
            _noticed_outages.add(using)
            forget(found)
            next_tick(using)
        return 0


def _say_looked(using: str) -> None:
    """Write down, now and then, that somebody moves and guards: what staff see as "the mover is alive"."""
    now = from_ms(engine.now_ms(using))
    if time.monotonic() - _said_looked.get(using, -math.inf) < TICK_EVERY_MS / 1000:
        return
    _said_looked[using] = time.monotonic()
    quiet = Q(looked_at=None) | Q(looked_at__lt=now - timedelta(milliseconds=TICK_EVERY_MS // 2))
    rows = MirrorMark.objects.using(using)
    if not rows.filter(quiet, pk=1).update(looked_at=now):  # another has just said so, or nobody ever did
        rows.get_or_create(pk=1, defaults={"looked_at": now})


def rebuild(using: str | None = None) -> int | None:
    """Enter everything within the horizon into the mirror again; how many entries were missing.

    What the mirror has beyond that is left: a stale entry costs one refused claim. One
    process at a time; None if another is at it, or if there is no Redis. Raises MirrorDown.
    """
    using = engine.alias(using)
    found = engine.mirror_of(using)
    if found is None or not found.alone("rebuild", ALONE_MS):
        return None
    try:
        masters = found.masters()  # before, so that a restart meanwhile is noticed afterwards
        until_ms = engine.now_ms(using) + conf.get().horizon_ms
        added = 0
        for page in window(using, 0, until_ms):
            added += _feed(found, page)
            found.still_alone("rebuild", ALONE_MS)
        tick = next_tick(using)
        MirrorMark.objects.using(using).filter(pk=1).update(masters=masters, fed_until=from_ms(until_ms))
        found.write_tick(tick)
        found.count("rebuilt")
        logger.info("mirror: filled from the database, %s entries were missing", added)
        return added
    finally:
        found.not_alone("rebuild")


def window(using: str, after_ms: int, until_ms: int) -> Iterator[list[Standing]]:
    """The live jobs due from `after_ms` up to `until_ms`, oldest first, in pages."""
    after = (after_ms, 0)
    while page := watching.window(using, until_ms=until_ms, after=after, limit=PAGE):
        yield page
        after = (page[-1].due_ms, page[-1].id)


def _feed(found: Mirror, page: list[Standing]) -> int:
    return found.feed(Entry(s.id, s.topic, s.entry_ms) for s in page)


# -- what is overdue, expired, or comes into the horizon ----------------------------------------


def probe(found: Mirror, using: str) -> int:
    """Add what is overdue, held by nobody and not in the mirror; how many that were.

    A round trip through all of it, a part each time; and, unless that part was all, what became
    overdue since the last look, so that a backlog that is correctly ready cannot hide one
    missing row for longer than the second in which it became overdue.
    """
    now_ms = engine.now_ms(using)
    last_ms, *began = found.probe_cursor()
    missing, reached = _look(found, using, (began[0], began[1]))
    if (*began, *reached) != (0, 0, 0, 0):
        missing += _look(found, using, (max(last_ms - PROBE_OVERLAP_MS, 0), 0))[0]
    found.probe_cursor((now_ms - OVERDUE_AGE_MS, *reached))
    if missing:
        found.count("repaired", missing)
        logger.warning("mirror: %s overdue jobs were missing and are back", missing)
    return missing


def _look(found: Mirror, using: str, after: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """(how many were missing, where to go on): page by page as long as there is time; (0, 0) at the end."""
    missing, over = 0, time.monotonic() + PROBE_SECONDS
    while page := watching.overdue(using, age_ms=OVERDUE_AGE_MS, after=after, limit=PAGE):
        missing += _feed(found, page)
        after = (page[-1].due_ms, page[-1].id)
        if len(page) < PAGE or time.monotonic() > over:
            break
    return missing, after if len(page) == PAGE else (0, 0)


def sweep(using: str | None = None) -> dict[str, int]:
    """Leases that ended are taken back, the horizon moves on; what was done, by name. Works without Redis."""
    using = engine.alias(using)
    done = {"expired": take_back_expired(using), "fed": 0, "unhandled": 0}
    _ensure_topics(using)
    found = engine.mirror_of(using)
    if found is not None and not found.down:
        try:
            done["fed"] = feed(found, using) + loaded.tell(using)
            done["unhandled"] = _say_unhandled(found)
            if found.alone("audit", conf.get().audit_seconds * 1000):
                done |= _audited(using)
        except MirrorDown as error:
            logger.warning("sweep: the mirror was left out: %s", error)
    return done


def _audited(using: str) -> dict[str, int]:
    counts = audit(using)
    kept = {"at_ms": engine.now_ms(using), **counts}
    MirrorMark.objects.using(using).filter(pk=mark(using).pk).update(audit=kept)
    return counts


def take_back_expired(using: str) -> int:
    after, taken = (0, 0), 0
    while page := watching.expired(using, after=after, limit=PAGE):
        taken += expire(using, page)
        after = (page[-1].due_ms, page[-1].id)
    return taken


def feed(found: Mirror, using: str) -> int:
    """Bring the next window of the horizon into the mirror; how many entries were new there. Raises MirrorDown."""
    known = mark(using)
    now_ms = engine.now_ms(using)
    until_ms = now_ms + conf.get().horizon_ms
    fed_ms = to_ms(known.fed_until) if known.fed_until else now_ms
    added = sum(_feed(found, page) for page in window(using, fed_ms - OVERLAP_MS, until_ms))
    MirrorMark.objects.using(using).filter(pk=known.pk).update(fed_until=from_ms(until_ms))
    return added


def _ensure_topics(using: str) -> None:
    rows = Topic.objects.using(using)
    missing = set(topics.known()) - set(rows.values_list("name", flat=True))
    rows.bulk_create([Topic(name=name) for name in sorted(missing)], ignore_conflicts=True)


def _say_unhandled(found: Mirror) -> int:
    """How many jobs are ready of topics that nothing here knows: they stay ready, set aside by their topic."""
    counts = found.ready_counts(sorted(found.ready_topics() - set(topics.known())))
    for topic, count in counts.items():
        logger.warning("topic %s: %s jobs are ready and nothing here knows the topic; they stay ready", topic, count)
    if counts:
        found.count("unhandled", sum(counts.values()))
    return sum(counts.values())
