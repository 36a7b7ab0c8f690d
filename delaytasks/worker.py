"""run_topic: reserves a topic's ready jobs in small batches, claims them, runs their handler, ends them.

A bell brings us here (mover.py rang it); what is reserved in the mirror is claimed in the
database, and only the claim counts. The batch grows while the handler is quick and shrinks
when it is slow, so that nobody's TTR is spent waiting behind others.
"""

import logging
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction

from . import bells, conf, engine, statements, topics, ttr
from .attempt import Attempt, in_hand
from .endings import Verdict, conclude, expire
from .conflicts import retried_once
from .exceptions import LeaseLost, MirrorDown, TTRExceeded
from .places import GONE, Places, Settlement
from .states import Outcome, State
from .topics import Handler, Retry, Snooze

logger = logging.getLogger("delaytasks")
LOCKED_RETRY_MS = 100  # a row that was locked by somebody's transaction is looked at again after this
TRACEBACK_CHARS = 4000
BATCH_TARGET_SECONDS = 0.4  # what a batch should take
SLOT_LEASE_MS = 30_000


@dataclass
class Pace:
    """How many jobs to reserve at once: doubled after a quick batch, cut to fit after a slow one."""

    size: int = 4

    def learn(self, ran: int, seconds: float, ttr_ms: int, most: int) -> None:
        target = min(BATCH_TARGET_SECONDS, ttr_ms / 4000)
        fits = int(target / max(seconds / max(ran, 1), 1e-6))
        self.size = max(1, min(fits, self.size * 2, most))


_paces: dict[str, Pace] = {}


def run_topic(
    topic: str,
    *,
    using: str,
    worker: str,
    ring: Callable[[str], None],
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Run the topic's ready jobs until none is left, the time is spent or the worker stops; how many were run.

    ring   rings for the topic again if something is left.
    """
    handler = topics.find(topic)
    if handler is None:
        logger.warning("no handler for topic %s here; its jobs stay ready", topic)
        return 0
    try:
        run = Run(handler, engine.places(using), using, worker, stopping)
        ran = run.go()
    except MirrorDown:
        run = Run(handler, engine.places(using), using, worker, stopping)
        ran = run.go()
    if run.left_something:
        ring(topic)
    return ran


class Run:
    """One run slot's worth of work on one topic."""

    def __init__(
        self, handler: Handler, places: Places, using: str, worker: str, stopping: Callable[[], bool]
    ) -> None:
        self.handler, self.topic, self.places = handler, handler.topic, places
        self.using, self.worker, self.stopping = using, worker, stopping
        self.settings = conf.get()
        self.token = uuid.uuid4().hex
        self.pace = _paces.setdefault(self.topic, Pace())
        self.over = time.monotonic() + self.settings.run_budget_seconds
        self.left_something = False
        self.ran = 0

    def go(self) -> int:
        if bells.terms(self.using, self.topic).paused or not self.take_slot():
            return 0
        try:
            while not self.stopping() and time.monotonic() < self.over and self.take_slot():
                held = self.take(self.pace.size)
                if held:
                    self.work(held)
                elif not self.linger():
                    break
            self.left_something = not self.stopping() and bool(self.places.ready_counts([self.topic]))
        finally:
            self.places.free_slot(self.topic, self.token)
        return self.ran

    def take_slot(self) -> bool:
        """Take the run slot or renew it; False if there is none for us, or the topic was paused."""
        paused, concurrency = bells.terms(self.using, self.topic)
        now_ms = engine.now_ms(self.using)
        until_ms = now_ms + SLOT_LEASE_MS + self.handler.ttr_ms
        return not paused and self.places.take_slot(self.topic, self.token, now_ms, until_ms, concurrency)

    def linger(self) -> bool:
        """Wait a moment for the next ready job; never while other work could use this process for longer."""
        wait_ms = min(self.settings.linger_ms, int((self.over - time.monotonic()) * 1000))
        if wait_ms <= 0 or self.stopping():
            return False
        return self.places.linger(self.topic, self.token, engine.now_ms(self.using), wait_ms)

    def take(self, count: int) -> list[Attempt]:
        """Reserve and claim up to `count` jobs; oldest due first."""
        return take(self.places, self.topic, count, using=self.using, worker=self.worker)

    # -- running --------------------------------------------------------------------------------

    def work(self, held: list[Attempt]) -> None:
        began, before = time.monotonic(), self.ran
        try:
            for group in self.in_turn(held):
                self.run_group(group)
        except (DatabaseError, InterfaceError):
            logger.exception("%s: the database failed; what was in hand comes back when its lease ends", self.topic)
            connections[self.using].close()
            raise
        self.pace.learn(self.ran - before, time.monotonic() - began, self.handler.ttr_ms, self.settings.batch_max)

    def in_turn(self, held: list[Attempt]) -> Iterator[list[Attempt]]:
        """The held jobs in groups for one call each; leases are renewed on the way, the rest is given back at a stop."""
        together = self.handler.batch or (len(held) if self.handler.one_commit else 1)
        while held:
            if self.stopping():
                return self.give_back(held)
            held = self.renew(held)
            yield held[:together]
            held = held[together:]

    def renew(self, held: list[Attempt]) -> list[Attempt]:
        """Those still held, all with most of their TTR ahead of them."""
        now_ms = engine.now_ms(self.using)
        short = [a for a in held if a.lease_ms - now_ms < a.ttr_ms * 3 // 4]
        if not short:
            return held
        leases = statements.renew_if_held(self.using, [(a.id, a.attempt) for a in short])
        for attempt in short:
            if attempt.id in leases:
                attempt.renewed(leases[attempt.id])
        return [a for a in held if a not in short or a.id in leases]

    def give_back(self, held: list[Attempt]) -> None:
        for attempt in held:
            self.end(Verdict(attempt, Outcome.RELEASED))

    def run_group(self, group: Sequence[Attempt]) -> None:
        """Run jobs that share one call or one commit; if that fails, one by one, so that one bad job hurts no other."""
        self.ran += len(group)
        if not self.try_together(group):
            for attempt in group:
                attempt.ended = False
                for held in self.renew([attempt]):
                    self.run_one(held)

    def try_together(self, group: Sequence[Attempt]) -> bool:
        """Run the group in one transaction; False if it has to be done again one by one."""
        if len(group) == 1:
            return False
        try:
            with in_hand(*group), transaction.atomic(self.using):
                self.relax_commit()
                if self.handler.batch:
                    results = self.results_of_batch(group, self.call(list(group), min(a.lease_ms for a in group)))
                else:
                    results = [self.call(attempt, attempt.lease_ms) for attempt in group]
                conclude(self.using, self.verdicts(group, results))
        except (DatabaseError, InterfaceError):
            if not self.usable():
                raise
            return False
        except (Exception, SystemExit, TTRExceeded) as error:
            self.leave_if_shutting_down(error)
            logger.info("%s: %s jobs go one by one after %r", self.topic, len(group), error)
            return False
        return True

    def run_one(self, attempt: Attempt) -> None:
        """One attempt, whatever happens in it."""
        try:
            with in_hand(attempt):
                retried_once(lambda: self.run_fenced(attempt))
        except LeaseLost as lost:
            logger.warning("%s", lost)
            self.places.count("lease_lost")
        except TTRExceeded:
            self.expire_now(attempt)
        except (Exception, SystemExit) as error:
            self.leave_if_shutting_down(error)
            if not self.usable():
                connections[self.using].close()
            self.fail(attempt, error)

    def run_fenced(self, attempt: Attempt) -> None:
        """The handler and the job's finish: one transaction, or with atomic=False the finish alone."""
        attempt.ended = False
        if not self.handler.atomic:
            conclude(self.using, self.verdicts([attempt], [self.call(attempt, attempt.lease_ms)]))
            return
        with transaction.atomic(self.using):
            self.relax_commit()
            if self.handler.batch:
                results = self.results_of_batch([attempt], self.call([attempt], attempt.lease_ms))
            else:
                results = [self.call(attempt, attempt.lease_ms)]
            conclude(self.using, self.verdicts([attempt], results))

    def call(self, argument: Any, lease_ms: int) -> Any:
        """Call the handler under its TTR. An interrupted database connection is cancelled and closed at once."""
        rest_ms = max(1, lease_ms - engine.now_ms(self.using))
        try:
            with ttr.limit(rest_ms):
                return self.handler.function(argument)
        except TTRExceeded:
            drop_connections()
            raise

    def verdicts(self, group: Sequence[Attempt], results: Sequence[Any]) -> list[Verdict]:
        """What the handler's results mean; attempts that ended inside the handler need nothing more."""
        found = []
        for attempt, result in zip(group, results, strict=True):
            if isinstance(result, Retry):
                raise result
            if attempt.ended:
                if isinstance(result, Snooze):
                    raise TypeError(f"{self.handler.name} finished {attempt!r} and then returned a Snooze: do only one.")
                continue
            if isinstance(result, Snooze):
                found.append(Verdict(attempt, Outcome.SNOOZED, result.delay_ms))
                continue
            if result is not None:
                logger.warning(
                    "%s returned %.80r; a handler returns nothing or a Snooze. The job is finished.",
                    self.handler.name, result,
                )  # fmt: skip
            found.append(Verdict(attempt, Outcome.FINISHED))
        return found

    def results_of_batch(self, group: Sequence[Attempt], result: Any) -> list[Any]:
        """A batch handler returns nothing, one Snooze for all, or {job.id: Snooze} for some."""
        if isinstance(result, dict):
            return [result.get(attempt.id) for attempt in group]
        return [result] * len(group)

    # -- ending ---------------------------------------------------------------------------------

    def end(self, verdict: Verdict) -> None:
        try:
            conclude(self.using, [verdict])
        except LeaseLost as lost:
            logger.warning("%s", lost)
            self.places.count("lease_lost")

    def fail(self, attempt: Attempt, error: BaseException) -> None:
        """Retry after the handler's own delay or the topic's backoff, until max_attempts; then dead."""
        trace = shortened(error)
        if attempt.failures + 1 >= self.handler.max_attempts:
            self.end(Verdict(attempt, Outcome.DEAD, None, trace))
            return
        delay_ms = error.delay_ms if isinstance(error, Retry) else None
        if delay_ms is None:
            delay_ms = self.handler.backoff.delay_ms(attempt.failures + 1)
        self.end(Verdict(attempt, Outcome.FAILED, delay_ms, trace))

    def expire_now(self, attempt: Attempt) -> None:
        """The handler was interrupted at its TTR: the lease is over, take the job back without waiting for a guard."""
        self.places.count("ttr_exceeded")
        expire(self.using, statements.stand(self.using, [attempt.id]))

    def relax_commit(self) -> None:
        if self.handler.relaxed_commit and connections[self.using].vendor == "postgresql":
            with connections[self.using].cursor() as cursor:
                cursor.execute("SET LOCAL synchronous_commit = off")

    def usable(self) -> bool:
        return connections[self.using].connection is None or connections[self.using].is_usable()

    def leave_if_shutting_down(self, error: BaseException) -> None:
        """Celery's cold shutdown arrives as SystemExit in the middle of a handler: not the handler's failure."""
        if isinstance(error, SystemExit) and self.stopping():
            raise error


def take(places: Places, topic: str, count: int, *, using: str, worker: str) -> list[Attempt]:
    """Reserve up to `count` ready jobs of a topic and claim them: what is returned is held until its deadline."""
    until_ms = engine.now_ms(using) + conf.get().claim_grace_ms
    ids = places.reserve(topic, count, until_ms)
    if ids is None:
        expire(using, statements.expired(using, after=(0, 0), limit=count))
        return [Attempt(c, using, worker) for c in statements.claim_due(using, topic, count, worker)]
    if not ids:
        return []
    claimed = statements.claim(using, topic, ids, worker)
    places.settle(Settlement(c.id, topic, until_ms, c.lease_ms) for c in claimed)
    missed = set(ids) - {c.id for c in claimed}
    if missed:
        settle_misses(places, topic, sorted(missed), until_ms, using=using)
    return [Attempt(c, using, worker) for c in claimed]


def settle_misses(places: Places, topic: str, ids: Sequence[int], seen_ms: int, *, using: str) -> None:
    """Put the mirror right about jobs that were reserved there and could not be claimed.

    Ended or unknown: removed. Not yet due: back by the wait that the database reports, counted
    from this host's idea of now, so that a difference between the clocks cannot make us spin.
    Held by another: at the end of that lease. Due but locked by a transaction: a moment later.
    """
    standings = {s.id: s for s in statements.stand(using, ids)}
    over = {s.id for s in standings.values() if s.state == State.RESERVED and (s.lease_ms or 0) <= s.now_ms}
    if over:
        expire(using, [standings[job_id] for job_id in over])
        standings |= {s.id: s for s in statements.stand(using, sorted(over))}
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


def _belongs_at(standing: statements.Standing, now_ms: int, *, expired: bool) -> int:
    if standing.state == State.RESERVED:
        return now_ms + max((standing.lease_ms or 0) - standing.now_ms, LOCKED_RETRY_MS)
    if standing.state != State.DELAYED:
        return GONE
    locked = standing.due_ms <= standing.now_ms and not expired
    return now_ms + (LOCKED_RETRY_MS if locked else max(standing.due_ms - standing.now_ms, 0))


def shortened(error: BaseException) -> str:
    """The traceback, with its middle left out if it is long; without NULs, which PostgreSQL refuses."""
    whole = "".join(traceback.format_exception(error)).replace("\x00", "\\x00")
    whole = whole.encode(errors="backslashreplace").decode()
    if len(whole) <= TRACEBACK_CHARS:
        return whole
    half = TRACEBACK_CHARS // 2
    return f"{whole[:half]}\n... {len(whole) - 2 * half} characters left out ...\n{whole[-half:]}"


def drop_connections() -> None:
    """Cancel what the interrupted database connections were doing, and close them: their locks must not linger."""
    for connection in connections.all(initialized_only=True):
        raw = connection.connection
        if raw is None:
            continue
        if connection.vendor == "postgresql" and raw.info.transaction_status.name == "ACTIVE":
            raw.cancel_safe(timeout=2)
        connection.close()
