"""Reserve jobs in the mirror and claim them in the database.

A reservation in the mirror is only a hint: the claim in the database decides. A run reserves a few jobs for
RESERVE_MS and claims each of them just before its handler is called. So a job that waits behind a slow one can still be
cancelled or moved, and becomes ready again by itself when the reservation ends. If a reserved job cannot be claimed,
its entry in the mirror is corrected.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from operator import attrgetter

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from .. import conf, databases, handlers
from ..db import lookups, transitions
from ..db.lookups import JobSnapshot
from ..db.retries import retry_conflicts, try_twice
from ..db.transitions import Claimed
from ..exceptions import BadInput, LeaseLost
from ..handlers import Handler, Skip
from ..jobs.series import is_firing
from ..mirror.base import GONE, DueIndex, Settlement
from ..outcomes import ErrorCode
from ..states import Outcome, State
from .attempt import Defer, RunningJob
from .completion import Completion, complete, defer, expire
from .process_name import worker_name

logger = logging.getLogger("delaytasks")
RESERVE_MS = 150  # how long a run reserves jobs: a multiple of the time in which it expects to run them
LOCKED_RETRY_MS = 100  # delay before a row that another transaction has locked is tried again
OFFERED = 8  # candidates when the end of a job claims the next: each costs time, and the first is nearly always free
WIDER = 16  # if none of the reserved jobs can be claimed, this many times as many are reserved next
MAX_RESERVED = 1_000  # the most jobs that are then reserved at once; also the limit of reserve.lua
TAKE_SECONDS = 0.1  # how long a call of take() goes on: other consumers wait for it
HELD_RETRY_MS = 1_000  # least delay before a job that another attempt holds is tried again
UNENDED_RETRY_MS = 1_000  # delay before a job that must not run, but could not be ended, is tried again
_CONSUMER = Handler("consumer", lambda _: None, ttr_ms=0, max_attempts=1)  # calling it shows whether a job may begin


class Candidates:
    """Jobs of a topic that a run has reserved but not claimed, in run order: by priority and age."""

    def __init__(self, index: DueIndex, topic: str, *, using: str, worker: str) -> None:
        self.index, self.topic, self.using, self.worker = index, topic, using, worker
        handler = handlers.find(topic)
        self.fenceable = handler is not None and handler.atomic
        self.ids: list[int] = []
        self.reserved = 0  # the number of jobs in the last reservation
        self.missed: list[int] = []  # reserved jobs that could not be claimed
        self.left_out: list[int] = []  # jobs that a group did not take, because they run alone or are locked
        self.entries_ms: Mapping[int, int] = {}  # the times of the jobs' entries before the reservation
        self.more_ready = False  # there were more ready jobs than were reserved
        self.until_ms = 0  # the end of the reservation: the score of the jobs' entries in the mirror
        self.slow = False  # jobs run longer than the reservation: the ends of their leases are written to the mirror

    def reserve(self, count: int) -> bool:
        """Reserve up to `count` ready jobs. Return False if none is ready. Raises MirrorDown.

        If none of the last reserved jobs could be claimed, more are reserved, to find the free ones behind them.
        """
        self.slow, self.left_out = count == 1, []
        if len(self.missed) == self.reserved:
            count = max(count, _wider(self.reserved))
        self._settle_misses()
        now_ms = databases.now_ms(self.using)
        reserved = self.index.reserve(self.topic, count, now_ms, now_ms + RESERVE_MS)
        self.ids, self.more_ready, self.until_ms = reserved.ids, reserved.more, now_ms + RESERVE_MS
        self.entries_ms, self.reserved = reserved.entries_ms, len(reserved.ids)
        if self.ids:
            _wait_until_due(reserved.due_ms, self.using)
        return bool(self.ids)

    @property
    def claimable(self) -> list[int]:
        """The jobs that may be claimed next: those that a group has left out, then the others while they are reserved.

        Jobs that are left out are claimed even if the reservation ended while the group ran. With slow groups they
        would otherwise be reserved again and again, and never run.
        """
        return self.left_out or (self.ids if databases.now_ms(self.using) < self.until_ms else [])

    def claim(self) -> RunningJob | None:
        """Claim the first claimable job that is free. Return None if there is none."""
        while ids := self.claimable:
            claimed = self._claim_first(ids)
            if claimed is None:
                self.miss(ids)
            elif held := self.hold_first(claimed):
                return held
        return None

    def _claim_first(self, ids: Sequence[int]) -> Claimed | None:
        """Claim the first free job of `ids`. If the claim's answer is lost, ask whether it was committed."""
        using = self.using
        try:
            return transitions.claim_first(using, self.topic, ids, self.worker, fenceable=self.fenceable)
        except (OperationalError, InterfaceError):
            # Without a heartbeat, another greenlet may have the same name.
            if connections[using].in_atomic_block or worker_name() is None:
                raise
            connections[using].close_if_unusable_or_obsolete()
            claimed = transitions.find_claimed(using, ids, self.worker)
            if claimed is None:
                raise
            return claimed

    def claim_group(self, size: int) -> list[RunningJob]:
        """Claim up to `size` reserved jobs that share a call or a commit. Return [] if there are none.

        Jobs that the group leaves out follow, each as a group of one: they run alone or were locked.
        """
        while size > 1 and not self.left_out and (offered := self.claimable[:size]):
            claimed = transitions.claim(
                self.using, self.topic, offered, self.worker, grouped=True, fenceable=self.fenceable
            )
            ids = {each.id for each in claimed}
            self.ids = self.ids[len(offered) :]
            self.left_out = [job_id for job_id in offered if job_id not in ids]
            if held := self._hold(claimed):
                return held
        held_one = self.claim()
        return [held_one] if held_one else []

    def hold_first(self, claimed: Claimed) -> RunningJob | None:
        """Return the claimed job, one of the candidates, as a RunningJob, or None if it must not run.

        Candidates that were not free are offered again, until a claim finds none of the offered ones free.
        """
        (self.left_out or self.ids).remove(claimed.id)
        return next(iter(self._hold([claimed])), None)

    def _hold(self, claimed: Sequence[Claimed]) -> list[RunningJob]:
        """Return the claimed jobs as RunningJobs. Jobs that must not run are ended and left out."""
        held = _to_running(claimed, self.until_ms, self.using, self.worker)
        held = _end_unrunnable(self.index, self.using, held)
        _move_entries_to_lease_ends(self.index, held, quick=not self.slow, using=self.using)
        return held

    def next_few(self) -> list[int]:
        """Return the first candidates, for a claim within the statement that ends another job."""
        return self.ids[:OFFERED]

    def miss(self, ids: Sequence[int]) -> None:
        """Drop the first candidates, which could not be claimed. Their entries in the mirror are corrected later."""
        self.missed += ids
        if self.left_out:
            self.left_out = self.left_out[len(ids) :]
        else:
            self.ids = self.ids[len(ids) :]

    def lost(self, ids: Sequence[int]) -> RunningJob | None:
        """Return the job of `ids` that this worker holds, as hold_first(): its claim was committed, not confirmed."""
        claimed = transitions.find_claimed(self.using, ids, self.worker)
        return self.hold_first(claimed) if claimed else None

    def unreserve(self) -> None:
        """Make the jobs that are reserved in the mirror but were not claimed ready again at once, in their old places.

        If the reservation has ended, they are ready already.
        """
        self._settle_misses()
        now_ms = databases.now_ms(self.using)
        ids, self.ids, self.left_out = self.left_out + self.ids, [], []
        if now_ms < self.until_ms:
            _put_back(self.index, self.topic, ids, self.until_ms, self.entries_ms, now_ms)

    def _settle_misses(self) -> None:
        missed, self.missed = self.missed, []
        _try_settle_misses(self.index, self.topic, missed, self.until_ms, self.using)


def take(index: DueIndex, topic: str, count: int, *, using: str, worker: str) -> list[RunningJob]:
    """Reserve up to `count` ready jobs of a topic and claim them at once. Return the claimed jobs in run order.

    For consumers over HTTP, which hold all of these jobs at once. If none of the reserved jobs can be claimed, because
    they are locked, more are reserved, up to MAX_RESERVED. If all of the claimed ones are ended, because they must not
    run or their schedule skips them, more are claimed. After TAKE_SECONDS the result is empty: other consumers wait for
    this call.

    worker   the name of the consumer; stored in the row and in the events
    """
    held: list[RunningJob] = []
    reserving = claiming = count  # numbers of jobs
    began = time.monotonic()
    while not held:
        claimed = _reserve_and_claim(index, topic, reserving, claiming, using, worker)
        if claimed is None:
            break
        runnable = _end_unrunnable(index, using, claimed)
        _unclaim(index, using, runnable[count:])
        held = _begin_at_consumer(index, using, runnable[:count])
        if time.monotonic() - began > TAKE_SECONDS and (claimed or reserving >= MAX_RESERVED):
            break
        if claimed:
            reserving = claiming = min(2 * claiming, conf.get().batch_max)
        else:
            reserving = _wider(reserving)
    _move_entries_to_lease_ends(index, held, quick=False, using=using)
    return held


def _reserve_and_claim(
    index: DueIndex, topic: str, reserving: int, claiming: int, using: str, worker: str
) -> list[RunningJob] | None:
    """Reserve up to `reserving` jobs and claim the first `claiming` free ones. Return None if no job is ready."""
    now_ms = databases.now_ms(using)
    until_ms = now_ms + conf.get().claim_grace_ms
    reserved = index.reserve(topic, reserving, now_ms, until_ms)
    if not reserved.ids:
        return None
    _wait_until_due(reserved.due_ms, using)
    claimed = _claim_many(using, topic, reserved.ids, claiming, worker)
    ids = {each.id for each in claimed}
    behind = takewhile(lambda job_id: job_id not in ids, reversed(reserved.ids))  # the last claimed job
    untried = list(behind) if len(ids) == claiming else []
    missed = [job_id for job_id in reserved.ids[: len(reserved.ids) - len(untried)] if job_id not in ids]
    _try_settle_misses(index, topic, missed, until_ms, using)
    _put_back(index, topic, untried, until_ms, reserved.entries_ms, now_ms)
    return _to_running(claimed, until_ms, using, worker)


def _wider(size: int) -> int:
    return max(size, min(WIDER * size, MAX_RESERVED))


def _to_running(claimed: Sequence[Claimed], entry_ms: int, using: str, worker: str) -> list[RunningJob]:
    held = [RunningJob(each, using, worker) for each in claimed]
    for attempt in held:
        attempt.entry_ms = entry_ms
    return held


def _put_back(
    index: DueIndex, topic: str, ids: Sequence[int], seen_ms: int, entries_ms: Mapping[int, int], now_ms: int
) -> None:
    """Make jobs that were reserved in the mirror but not claimed ready again, in their old places."""
    if ids:
        index.settle(Settlement(job_id, topic, seen_ms, entries_ms.get(job_id, now_ms)) for job_id in ids)


def _claim_many(using: str, topic: str, ids: Sequence[int], count: int, worker: str) -> list[Claimed]:
    """Claim up to `count` of these jobs. If the free ones are too few, those whose lease has ended are taken back."""
    claimed = transitions.claim(using, topic, ids, worker, limit=count)
    missed = sorted(set(ids) - {c.id for c in claimed})
    left = count - len(claimed)
    if missed and left:
        try:
            with _savepoint(using):
                if _take_back(using, missed):
                    claimed += transitions.claim(using, topic, missed, worker, limit=left)
        except DatabaseError as error:  # the claimed jobs must be returned
            logger.warning("%s: expired leases were not taken back: %s", topic, error)
    return sorted(claimed, key=attrgetter("rank"))


def _savepoint(using: str) -> AbstractContextManager[None]:
    """Inside a transaction, keep an error in the block from rolling back what was claimed before."""
    return transaction.atomic(using) if connections[using].in_atomic_block else nullcontext()


def _take_back(using: str, ids: Sequence[int]) -> int:
    expired = [s for s in lookups.get_snapshots(using, ids) if s.lease_is_over]
    return _expire(using, expired) if expired else 0


def _expire(using: str, expired: Sequence[JobSnapshot]) -> int:
    return retry_conflicts(lambda: expire(using, expired), using)


def _wait_until_due(due_ms: int, using: str) -> None:
    """Wait until jobs are due that the mover made ready early, at most 2 × AHEAD_MS.

    The claim refuses a job that is not due after this wait.
    """
    early_ms = min(due_ms - databases.exact_ms(using), 2 * conf.get().ahead_ms)
    if early_ms > 0:
        time.sleep(early_ms / 1000)


def _move_entries_to_lease_ends(index: DueIndex, held: Sequence[RunningJob], *, quick: bool, using: str) -> None:
    """Move the mirror's entries of the held jobs to the ends of their leases.

    The entries of quick jobs stay where they are, unless the lease ends earlier.
    """
    moved = []
    for attempt in held:
        if not quick or attempt.entry_ms > attempt.lease_ms:
            moved.append(Settlement(attempt.id, attempt.topic, attempt.entry_ms, attempt.lease_ms))
            attempt.entry_ms = attempt.lease_ms
    if moved:
        transaction.on_commit(lambda: index.settle(moved), using=using, robust=True)


def _end_unrunnable(index: DueIndex, using: str, held: list[RunningJob]) -> list[RunningJob]:
    """End the claimed jobs that must not run: those with max_attempts failures, and the expired ones. Return the rest.

    A job may have max_attempts failures without being dead: a process that does not know the topic cannot apply its
    limit when it takes the job back.
    """
    unrunnable = [completion for attempt in held if (completion := _unrunnable(using, attempt))]
    return _without(held, unrunnable, index, using)


def _begin_at_consumer(index: DueIndex, using: str, held: list[RunningJob]) -> list[RunningJob]:
    """Return the jobs that a consumer gets. The others are ended or delayed, as jobs whose handler is not called."""
    runnable, skipped = [], []
    for attempt in held:
        result = None
        try:
            if is_firing(attempt.key):
                with _savepoint(using):
                    result = _CONSUMER.call(attempt)
        except Defer as error:
            _defer(index, using, attempt, error)
            continue
        except BadInput as error:  # of a schedule that was not checked before it was stored
            logger.error("%r: its schedule was not looked at: %s", attempt, error)
        except (DatabaseError, InterfaceError) as error:  # the other jobs must be returned
            logger.warning("%r was not begun, it is tried again: %s", attempt, error)
            _unclaim(index, using, [attempt], UNENDED_RETRY_MS)
            continue
        runnable.append(attempt)
        if isinstance(result, Skip):
            skipped.append(Completion(attempt, Outcome.SKIPPED, reason=result.reason))
    return _without(runnable, skipped, index, using)


def _defer(index: DueIndex, using: str, attempt: RunningJob, error: Defer) -> None:
    try:
        with _savepoint(using):
            defer(using, attempt, delay_ms=error.delay_ms, declared_ms=error.declared_ms)
    except LeaseLost as lost:
        logger.warning("%s", lost)
    except (DatabaseError, InterfaceError) as failed:
        logger.warning("%r was not put off, it is tried again: %s", attempt, failed)
        _unclaim(index, using, [attempt], UNENDED_RETRY_MS)


def _without(
    held: list[RunningJob], completions: Sequence[Completion], index: DueIndex, using: str
) -> list[RunningJob]:
    """End these attempts, and return the others."""
    if not completions:
        return held
    _unclaim(index, using, _end(using, completions), UNENDED_RETRY_MS)
    ended = [completion.held for completion in completions]
    return [attempt for attempt in held if attempt not in ended]


def _end(using: str, completions: Sequence[Completion]) -> list[RunningJob]:
    """End these attempts together; if that fails, one by one. Return those that could not be ended."""
    try:
        with _savepoint(using):
            try_twice(lambda: complete(using, completions), using)
    except (DatabaseError, InterfaceError, LeaseLost) as error:
        if len(completions) > 1:
            return [held for each in completions for held in _end(using, [each])]
        logger.warning("%r was not ended: %s", completions[0].held, error)
        return [] if isinstance(error, LeaseLost) else [completions[0].held]
    return []


def _unclaim(index: DueIndex, using: str, held: Sequence[RunningJob], delay_ms: int = 0) -> None:
    """Make claimed jobs ready again, after `delay_ms`. Their due times do not change, so that they remain expired."""
    if not held:
        return
    try:
        with _savepoint(using):
            transitions.unclaim(using, [(attempt.id, attempt.attempt) for attempt in held])
    except (DatabaseError, InterfaceError) as error:
        logger.warning("%r stay claimed until their TTR ends: %s", held, error)
        return
    retry_ms = databases.now_ms(using) + delay_ms if delay_ms else None
    index.postpone(Settlement(a.id, a.topic, a.entry_ms, retry_ms or a.due_ms) for a in held)


def _unrunnable(using: str, attempt: RunningJob) -> Completion | None:
    if attempt.failures >= handlers.max_attempts(attempt.topic):
        return Completion(attempt, Outcome.DEAD, None, ErrorCode.TIMED_OUT)
    expires_ms = handlers.expires_ms(attempt.topic, attempt.expires_ms)
    if expires_ms is None or databases.now_ms(using) <= attempt.due_ms + expires_ms:
        return None
    return Completion(attempt, Outcome.SKIPPED, None, ErrorCode.TOO_LATE)


def _try_settle_misses(index: DueIndex, topic: str, missed: Sequence[int], seen_ms: int, using: str) -> None:
    if not missed:
        return
    try:
        with _savepoint(using):
            settle_misses(index, topic, missed, seen_ms, using=using)
    except (DatabaseError, InterfaceError) as error:  # other jobs must be run; these are ready again at seen_ms
        logger.warning("%s: the mirror was not corrected for %s missed claims: %s", topic, len(missed), error)


def settle_misses(index: DueIndex, topic: str, ids: Sequence[int], seen_ms: int, *, using: str) -> None:
    """Correct the mirror's entries of jobs that were reserved there but could not be claimed.

    The entry of a job that has ended or is unknown is removed. Other entries are moved: that of a job that is not due
    yet, to its due time; that of a job that another attempt holds, to the end of that lease, but at least by
    HELD_RETRY_MS; that of a due job that a transaction has locked, to LOCKED_RETRY_MS from now. The waits are computed
    from the database's times and added to this process's time, so that a difference between the two clocks cannot
    cause a busy loop.

    seen_ms   the score that the entries got when they were reserved
    """
    snapshots = {s.id: s for s in lookups.get_snapshots(using, ids)}
    expired = {s.id for s in snapshots.values() if s.lease_is_over}
    if expired:
        _expire(using, [snapshots[job_id] for job_id in expired])
        snapshots |= {s.id: s for s in lookups.get_snapshots(using, sorted(expired))}
    unknown = [job_id for job_id in ids if job_id not in snapshots or snapshots[job_id].topic != topic]
    if unknown:
        logger.error("mirror: removed jobs %s of topic %s, which the database does not have", unknown, topic)
        index.count("unknown", len(unknown))
    now_ms = databases.now_ms(using)
    index.count("claim_misses", len(ids))
    index.postpone(
        Settlement(i, topic, seen_ms, GONE if i in unknown else _entry_ms(snapshots[i], now_ms, expired=i in expired))
        for i in ids
    )


def _entry_ms(snapshot: JobSnapshot, now_ms: int, *, expired: bool) -> int:
    if snapshot.state == State.RESERVED:
        return now_ms + max((snapshot.lease_ms or 0) - snapshot.now_ms, HELD_RETRY_MS)
    if snapshot.state != State.DELAYED:
        return GONE
    locked = snapshot.due_ms <= snapshot.now_ms and not expired
    return now_ms + (LOCKED_RETRY_MS if locked else max(snapshot.due_ms - snapshot.now_ms, 0))
