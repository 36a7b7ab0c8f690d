"""Reserve in the mirror, claim in the database: only the claim counts, and what it missed is put right."""

import logging
import time
from collections.abc import Sequence

from django.db import DatabaseError, transaction

from . import conf, engine, statements, topics, watching
from .attempt import Attempt
from .endings import EXPIRED, Verdict, conclude, expire
from .exceptions import LeaseLost
from .places import GONE, Places, Settlement
from .statements import Claimed
from .states import Outcome, State
from .watching import Standing

logger = logging.getLogger("delaytasks")
EXPIRED_AT_ONCE = 200
LOCKED_RETRY_MS = 100  # a row that was locked by somebody's transaction is looked at again after this


def take(places: Places, topic: str, count: int, *, using: str, worker: str, quick: bool = False) -> list[Attempt]:
    """Reserve up to `count` ready jobs of a topic and claim them; held until their deadline, oldest due first.

    worker   who takes them; kept in the row and in the events
    quick    they are expected to end within the claim grace: the mirror is not told of their leases

    Empty only if nothing more is ready: a job that is locked or not due holds up no other.
    """
    held: list[Attempt] | None = []
    while held == []:
        held = _take_once(places, topic, count, using, worker, quick)
    return held or []


def _take_once(places: Places, topic: str, count: int, using: str, worker: str, quick: bool) -> list[Attempt] | None:
    """What could be claimed; None if nothing was there to claim."""
    now_ms = engine.now_ms(using)
    until_ms = now_ms + conf.get().claim_grace_ms
    found = places.reserve(topic, count, now_ms, until_ms)
    if found is None:
        claimed = _claim_without_mirror(using, topic, count, worker)
    else:
        _await(found.due_ms, using)
        claimed = _claim(using, topic, found.ids, worker) if found.ids else []
        _after_misses(places, topic, sorted(set(found.ids) - {c.id for c in claimed}), until_ms, using)
    if not claimed and not (found and found.ids):
        return None
    held = [Attempt(c, using, worker) for c in claimed]
    if found is not None:
        _settle_leases(places, held, until_ms, quick, using)
    return _bury_the_used_up(using, held)


def _await(due_ms: int, using: str) -> None:
    """Wait for what the mover moved early. Were it moved much too early, the claim would refuse it."""
    early_ms = min(due_ms - engine.exact_ms(using), 2 * conf.get().ahead_ms)
    if early_ms > 0:
        time.sleep(early_ms / 1000)


def _settle_leases(places: Places, held: Sequence[Attempt], seen_ms: int, quick: bool, using: str) -> None:
    """Move the entries to where the leases end. Of quick ones they stay, unless that would be too late."""
    moved = []
    for attempt in held:
        if quick and seen_ms <= attempt.lease_ms:
            attempt.entry_ms = seen_ms
        else:
            moved.append(Settlement(attempt.id, attempt.topic, seen_ms, attempt.lease_ms))
    if moved:
        transaction.on_commit(lambda: places.settle(moved), using=using, robust=True)


def _claim(using: str, topic: str, ids: Sequence[int], worker: str) -> list[Claimed]:
    """The claimed of these, and of those whose lease is over: they are taken back on the way."""
    claimed = statements.claim(using, topic, ids, worker)
    missed = sorted(set(ids) - {c.id for c in claimed})
    try:
        if missed and _take_back(using, missed):
            claimed += statements.claim(using, topic, missed, worker)
            claimed.sort(key=lambda c: (c.due_ms, c.id))
    except DatabaseError as error:  # what was claimed must not be lost with it
        logger.warning("%s: leases that are over were not taken back: %s", topic, error)
    return claimed


def _take_back(using: str, ids: Sequence[int]) -> int:
    over = [s for s in watching.stand(using, ids) if s.lease_is_over]
    return expire(using, over) if over else 0


def _claim_without_mirror(using: str, topic: str, count: int, worker: str) -> list[Claimed]:
    claimed = statements.claim_due(using, topic, count, worker)
    if not claimed and expire(using, watching.expired(using, after=(0, 0), limit=EXPIRED_AT_ONCE)):
        claimed = statements.claim_due(using, topic, count, worker)
    return claimed


def _bury_the_used_up(using: str, held: list[Attempt]) -> list[Attempt]:
    """Those that may still be tried. A lease that ended where the topic is unknown was not judged there."""
    used_up = [a for a in held if a.failures >= topics.max_attempts(a.topic)]
    for attempt in used_up:
        try:
            conclude(using, [Verdict(attempt, Outcome.DEAD, None, EXPIRED)])
        except (LeaseLost, DatabaseError) as error:  # the others that were claimed must not be lost with it
            logger.warning("%r was not buried: %s", attempt, error)
    return [a for a in held if a not in used_up]


def _after_misses(places: Places, topic: str, missed: Sequence[int], seen_ms: int, using: str) -> None:
    if not missed:
        return
    try:
        settle_misses(places, topic, missed, seen_ms, using=using)
    except DatabaseError as error:  # what was claimed must not be lost with it; the mirror looks again at seen_ms
        logger.warning("%s: %s missed claims were not put right: %s", topic, len(missed), error)


def settle_misses(places: Places, topic: str, ids: Sequence[int], seen_ms: int, *, using: str) -> None:
    """Put the mirror right about jobs that were reserved there and could not be claimed.

    Ended or unknown: removed. Not yet due: back by the wait that the database reports, counted
    from this host's idea of now, so that a difference between the clocks cannot make us spin.
    Held by another: at the end of that lease. Due but locked by a transaction: a moment later.
    """
    standings = {s.id: s for s in watching.stand(using, ids)}
    over = {s.id for s in standings.values() if s.lease_is_over}
    if over:
        expire(using, [standings[job_id] for job_id in over])
        standings |= {s.id: s for s in watching.stand(using, sorted(over))}
    unknown = [job_id for job_id in ids if job_id not in standings or standings[job_id].topic != topic]
    if unknown:
        logger.error("mirror: jobs %s of topic %s are unknown to the database; removed", unknown, topic)
        places.count("unknown", len(unknown))
    now_ms = engine.now_ms(using)
    places.count("claim_misses", len(ids))
    places.settle(
        Settlement(i, topic, seen_ms, GONE if i in unknown else _belongs_at(standings[i], now_ms, expired=i in over))
        for i in ids
    )


def _belongs_at(standing: Standing, now_ms: int, *, expired: bool) -> int:
    if standing.state == State.RESERVED:
        return now_ms + max((standing.lease_ms or 0) - standing.now_ms, LOCKED_RETRY_MS)
    if standing.state != State.DELAYED:
        return GONE
    locked = standing.due_ms <= standing.now_ms and not expired
    return now_ms + (LOCKED_RETRY_MS if locked else max(standing.due_ms - standing.now_ms, 0))
