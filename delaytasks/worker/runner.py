"""The runner: reserve ready jobs of a topic, then claim, run and end one after the other.

A message that worker/dispatch.py sends starts a runner. A job is claimed just before its handler is called, usually in
the statement that ends the job before it (worker/executor.py). Only the jobs of a group, which share a call or a
commit, are claimed together. The number of reserved jobs grows while the handler is quick and shrinks when it is slow,
so that few reservations end before their jobs are claimed.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from django.db import DatabaseError, Error, InterfaceError, connections

from .. import conf, databases, mirror, topics
from ..db import transitions
from ..db.retries import try_twice
from ..exceptions import MirrorDown
from ..handlers import Handler
from ..maintenance import liveness
from ..mirror.base import DueIndex, Settlement
from . import dispatch, process_name, ttr
from .attempt import RunningJob
from .claim import RESERVE_MS, Candidates
from .executor import Executor
from .group import Group
from .process_name import in_run, new_slot_token, worker_name
from .sender import UNKNOWN_MS

logger = logging.getLogger("delaytasks")
TARGET_SECONDS = RESERVE_MS / 2000  # the planned time for the jobs of one reservation
BATCH_TARGET_SECONDS = 0.4  # the planned duration of a call of a batch handler
CHECK_SLOT_MS = 1_000
SLOT_GRACE_MS = 2_000  # a run slot lasts at least this much longer than the longest TTR of its jobs
DAY_MS = 86_400_000
STALE_MS = 2_000  # twice the longest wait before a message is sent again
STALE_BUDGET_SECONDS = 0.2


@dataclass
class Pace:
    """The number of jobs to reserve at once: it grows while they run quickly and shrinks when they run slowly."""

    size: int = 1

    def update(self, ran: int, seconds: float, target: float, max_size: int) -> None:
        if ran and seconds > target:
            self.size = max(1, int(ran * target / seconds))
        elif ran >= self.size:  # not by the time per job: a batch handler may take as long for one job as for fifty
            self.size = min(max_size, self.size * (8 if seconds * 8 < target else 2))


_paces: dict[str, Pace] = {}
# (database alias, worker) of each run of this process that is in progress or has failed. Empty without a heartbeat.
_unfinished: set[tuple[str, str]] = set()


def run_topic(
    topic: str,
    *,
    using: str,
    worker: str,
    dispatch_topic: Callable[[str], None],
    stopping: Callable[[], bool] = lambda: False,
    message_ms: int = UNKNOWN_MS,
) -> int:
    """Run ready jobs of the topic and its runner group. Return the number of jobs that were run.

    Runs the jobs of `topic` first, then those of the other topics of its group: those that are served here, with the
    same Celery queue. Then waits up to LINGER_MS for the next ready job of the group. Ends if none becomes ready in
    that time, after RUN_BUDGET_SECONDS, or when the worker stops; much earlier if the message is an old one.

    worker           the name of this process; stored in the row and in the events
    dispatch_topic   called with a topic that has more ready jobs than this run has reserved, to start another run
    stopping         returns True when the worker stops
    message_ms       when the message was sent that started this runner; UNKNOWN_MS: by a worker of an older version
    """
    if topics.find(using, topic) is None:
        logger.warning("topic %s has no handler here; its jobs stay ready", topic)
        return 0
    stale = _is_stale(topic, using, message_ms)
    end = time.monotonic() + (STALE_BUDGET_SECONDS if stale else conf.get().run_budget_seconds)
    group, ran = RunnerGroup(topic, using, stopping, end), 0
    current: str | None = topic
    answered: int | None = message_ms
    while current is not None:
        ran += _run_once(current, using, worker, dispatch_topic, stopping, end, answered)
        current, answered = group.next_topic(after=current), None
    return ran


def _is_stale(topic: str, using: str, message_ms: int) -> bool:
    """Return whether a message is older than STALE_MS, and a later one is in the queue.

    Many messages wait there if all processes were busy. If each of them started a runner of RUN_BUDGET_SECONDS, the
    project's own tasks would wait behind them.
    """
    is_old = databases.now_ms(using) - message_ms > STALE_MS
    return is_old and mirror.read(using, lambda index: index.is_superseded(topic, message_ms))


def _run_once(
    topic: str, using: str, worker: str, dispatch_topic: Callable[[str], None], stopping: Callable[[], bool],
    end: float, message_ms: int | None = None,
) -> int:  # fmt: skip
    handler = topics.find(using, topic)
    if handler is None:  # the target of its row was removed a moment ago
        return 0

    runs: list[Run] = []

    def run(index: DueIndex) -> None:
        runs.append(Run(handler, index, using, worker, dispatch_topic, stopping, end, message_ms))
        runs[-1].run()

    mirror.read(using, run)
    if runs[-1].has_more:
        dispatch_topic(topic)
    return sum(run.ran for run in runs)


class RunnerGroup:
    """The topics that one runner serves, one after the other, without a message for each."""

    def __init__(self, topic: str, using: str, stopping: Callable[[], bool], end: float) -> None:
        self.name, self.using, self.stopping, self.end = dispatch.runner_group(using, topic), using, stopping, end
        self.others = set(dispatch.group_topics(using, topic))
        self.token = uuid.uuid4().hex

    def next_topic(self, after: str) -> str | None:
        """Return a topic of the group with ready jobs, after waiting for one if necessary; None: the run ends."""
        self.others.discard(after)  # its jobs have just been run; jobs that remain need a run slot or a new message
        wait_ms = min(conf.get().linger_ms, int((self.end - time.monotonic()) * 1000))
        if wait_ms <= 0 or self.stopping():
            return None
        index = mirror.choose(self.using)
        try:
            return self._ready_topic(index) or index.wait_for_ready(
                self.name, self.token, databases.now_ms(self.using), wait_ms
            )
        except MirrorDown:
            return None

    def _ready_topic(self, index: DueIndex) -> str | None:
        running = [topic for topic in sorted(self.others) if not topics.topic_settings(self.using, topic).paused]
        ready = list(index.ready_counts(running)) if running else []
        return random.choice(ready) if ready else None


class Run:
    """A run of one topic: runs its ready jobs while it has a run slot."""

    def __init__(
        self, handler: Handler, index: DueIndex, using: str, worker: str, dispatch_topic: Callable[[str], None],
        stopping: Callable[[], bool], end: float, message_ms: int | None = None,
    ) -> None:  # fmt: skip
        self.handler, self.topic, self.index = handler, handler.topic, index
        self.using, self.worker, self.dispatch_topic = using, worker, dispatch_topic
        self.stopping, self.end = stopping, end
        self.candidates = Candidates(index, self.topic, using=using, worker=worker)
        self.executor = Executor(handler, self.candidates, self.may_claim_with_end, stopping)
        self.token = new_slot_token()
        self.message_ms = message_ms  # None: this run was not started by a message
        self.slot_checked_ms = 0
        self.slot_until_ms = 0
        self.longest_ttr_ms = handler.ttr_ms  # the longest of a job so far; a job may have its own TTR
        self.pace = _paces.setdefault(self.topic, Pace())
        self.has_more = False
        self.unclaim_error: Error | None = None  # the error because of which claimed jobs stay claimed
        self.ran = 0

    def run(self) -> None:
        with in_run(self.token, self.using):
            all_taken_back = self.take_back_abandoned_jobs()
            if all_taken_back:  # otherwise the heartbeat still has to know which of the jobs that are left was called
                process_name.clear_called(self.using)
            if worker_name():
                _unfinished.add((self.using, self.worker))
            try:
                self.run_in_slot()
            except Error:  # a database error of the run; an error of the handler only ends its job
                process_name.store_called_job(self.using, self.executor.called)
                raise
            if all_taken_back:
                _unfinished.discard((self.using, self.worker))

    def take_back_abandoned_jobs(self) -> bool:
        """Take back the jobs of this thread's last run if it failed. While this thread is idle, the main process does.

        Return False if there are jobs left whose rows are locked: the next run tries again. Not in a process without a
        heartbeat, where another thread may have the same name.
        """
        if (self.using, self.worker) not in _unfinished:
            return True
        liveness.take_back_own_jobs(self.using, self.worker)
        return not liveness.holds_jobs(self.using, self.worker)

    def run_in_slot(self) -> None:
        if not self.has_slot():
            return
        try:
            while self.may_continue() and self.candidates.reserve(self.pace.size):
                if self.candidates.more_ready:
                    self.start_another_run()
                self.work()
            self.has_more = not self.stopping() and bool(self.index.ready_counts([self.topic]))
        finally:
            self.index.free_slot(self.topic, self.token)  # first: the jobs that become ready need a slot
            self.candidates.unreserve()

    def start_another_run(self) -> None:
        """Dispatch the topic again, so that other run slots begin at once with the jobs that this run leaves ready."""
        try:
            self.dispatch_topic(self.topic)
        except MirrorDown:
            raise
        except Exception:  # this run must go on; the mover dispatches the topic again
            logger.exception("topic %s could not be dispatched again", self.topic)

    def may_continue(self) -> bool:
        return not (self.stopping() or self.executor.not_begun) and time.monotonic() < self.end and self.has_slot()

    def may_claim(self) -> bool:
        """Return whether this run may claim one more of its reserved jobs."""
        return bool(self.candidates.claimable) and self.may_continue()

    def may_claim_with_end(self) -> bool:
        """Return whether the end of a job may claim the next one. Queries only the time: a transaction is open."""
        slot_is_checked = databases.now_ms(self.using) - self.slot_checked_ms < CHECK_SLOT_MS
        in_time = not self.stopping() and time.monotonic() < self.end
        return bool(self.candidates.claimable) and slot_is_checked and in_time

    def has_slot(self) -> bool:
        """Take a run slot, or check once a second that this run may keep it. Return whether this run has one.

        It has none if all run slots are taken, the topic is paused, or its row names another target than before.
        """
        now_ms = databases.now_ms(self.using)
        if now_ms - self.slot_checked_ms < CHECK_SLOT_MS:
            return True
        paused, concurrency = topics.topic_settings(self.using, self.topic)
        changed = topics.find(self.using, self.topic) is not self.handler
        if paused or changed or not self.keep_slot(now_ms, concurrency):
            return False
        self.slot_checked_ms = now_ms
        return True

    def keep_slot(self, now_ms: int, concurrency: int) -> bool:
        """Take the run slot, or renew it if the longest job would outlive it.

        In a worker with a heartbeat the slot is taken for a day, because it is freed when the process dies.
        """
        needed_ms = now_ms + self.longest_ttr_ms + SLOT_GRACE_MS
        if needed_ms <= self.slot_until_ms:
            return True
        until_ms = needed_ms + (DAY_MS if worker_name() else CHECK_SLOT_MS)
        taken = self.index.take_slot(self.topic, self.token, now_ms, until_ms, concurrency, message_ms=self.message_ms)
        if not taken:
            return False
        self.slot_until_ms = until_ms
        return True

    def renew_slot(self) -> None:
        """Renew the run slot after a handler has touched its job.

        Not inside a transaction: without a mirror, the topic's row would be locked until its end.
        """
        if connections[self.using].in_atomic_block:
            return
        self.try_renew_slot()

    def try_renew_slot(self) -> None:
        """Renew the run slot. If Redis is down, only log that: the jobs that are claimed must still be run."""
        self.slot_checked_ms = 0
        try:
            self.has_slot()
        except MirrorDown as error:
            logger.warning("%s: the run slot was not renewed: %s", self.topic, error)

    def work(self) -> None:
        """Run the reserved jobs, as many as can be claimed before the reservation ends."""
        began, before = time.monotonic(), self.ran
        try:
            with ttr.keeping_armed():
                if self.handler.batch or self.handler.one_commit:
                    self.run_groups()
                else:
                    self.run_in_turn()
        except (DatabaseError, InterfaceError):
            logger.exception("%s: the database failed", self.topic)
            connections[self.using].close()
            raise
        finally:
            self.executor.flush_removals()
            claimed = self.executor.pop_next()
            self.unclaim([claimed] if claimed else [])
            self.unclaim_not_begun()
        if self.unclaim_error is not None:  # fail the run, so that the jobs that it still holds are taken back
            raise self.unclaim_error
        target = BATCH_TARGET_SECONDS if (self.handler.batch or 1) > 1 else TARGET_SECONDS
        target = min(target, self.handler.ttr_ms / 4000)
        self.pace.update(self.ran - before, time.monotonic() - began, target, conf.get().batch_max)

    def unclaim_not_begun(self) -> None:
        """Unclaim the jobs that were not begun because the topic is held, and check that before the next claim."""
        jobs, self.executor.not_begun = self.executor.not_begun, []
        if jobs:
            self.unclaim(jobs)
            topics.clear_cache()
            self.slot_checked_ms = 0

    def run_in_turn(self) -> None:
        """Claim and run one job after the other. The end of a job usually claims the next one."""
        attempt = self.candidates.claim()
        while attempt is not None:
            self.prepare([attempt])
            self.executor.run_one(attempt)
            self.ran += 1
            attempt = self.executor.pop_next() or (self.candidates.claim() if self.may_claim() else None)

    def run_groups(self) -> None:
        """Claim and run groups of jobs that share a call or a commit. If a group fails, run its jobs one by one."""
        group = self.candidates.claim_group(self.handler.batch or self.pace.size)
        while group:
            self.run_group(group)
            group = self.candidates.claim_group(self.handler.batch or self.pace.size) if self.may_claim() else []

    def run_group(self, attempts: list[RunningJob]) -> None:
        """Run a group in one call or commit. If that fails, run its jobs one by one, as many as the time allows."""
        self.prepare(attempts)
        group = Group(attempts, self.unclaim)
        try:
            together = len(attempts) > 1
            if not (together and self.run_together(group)):
                self.run_singly(group, check=together)
        finally:
            self.unclaim(group.pop_waiting())

    def run_together(self, group: Group) -> bool:
        """Run the group in one call or commit. Return False if that fails: its jobs are then waiting again."""
        with nullcontext() if self.handler.batch else group.unclaim_late():
            committed = self.executor.run_together(group)
        if committed:
            self.ran += len(group.begun)
        else:  # one bad job must not make the others fail
            self.pace.size = 1
            group.start_again()
        return committed

    def run_singly(self, group: Group, *, check: bool = False) -> None:
        """Run one job after the other.

        check   leave out the jobs that are not held any more: the group may have failed because one was cancelled
        """
        with group.unclaim_late():
            for attempt in group:
                if not check or self.renew(attempt):
                    self.executor.run_one(attempt)
                    self.ran += 1
                if not self.may_continue():
                    break

    def prepare(self, attempts: Sequence[RunningJob]) -> None:
        """Keep the run slot for the longest TTR of these jobs, also after a handler touches one of them."""
        longest_ttr_ms = max(self.handler.ttr_ms, *(attempt.ttr_ms for attempt in attempts))
        if longest_ttr_ms != self.longest_ttr_ms:
            self.longest_ttr_ms = longest_ttr_ms
            self.try_renew_slot()
        for attempt in attempts:
            attempt.on_renewal = self.renew_slot

    def renew(self, attempt: RunningJob) -> bool:
        """Renew the lease of a job that has waited while others ran. Return False if the job is not held any more."""
        leases = transitions.renew_if_held(self.using, [(attempt.id, attempt.attempt)])
        if attempt.id not in leases:
            return False
        attempt.renewed(leases[attempt.id])
        return True

    def unclaim(self, attempts: Sequence[RunningJob]) -> None:
        """Make claimed jobs whose handler was not called ready again at once. After an error it is tried once more."""
        if not attempts:
            return
        held = [(attempt.id, attempt.attempt) for attempt in attempts]
        try:
            ids = try_twice(lambda: transitions.unclaim(self.using, held), self.using)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("%s: %s claimed jobs were not made ready again: %s", self.topic, len(attempts), error)
            self.unclaim_error = error
            return
        self.index.settle(Settlement(a.id, a.topic, a.entry_ms, a.due_ms) for a in attempts if a.id in ids)
