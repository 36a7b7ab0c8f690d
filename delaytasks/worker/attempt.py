"""RunningJob: the job that a handler receives, and the attempt that holds it."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from .. import clock, databases, mirror
from ..db import lookups, transitions
from ..db.retries import retry_conflicts
from ..db.transitions import Claimed
from ..exceptions import LeaseLost
from ..mirror.base import Settlement
from ..querysets import find_subject
from ..states import Outcome, State
from . import ttr
from .completion import Completed, Completion, complete, completing_transaction


class Defer(Exception):
    """Raised instead of calling a handler: the job is delayed again. The attempt has no event and counts no failure.

    delay_ms      from now until the next attempt
    declared_ms   instead of delay_ms: the new due time of a declared timeout, in ms since 1970; an event records that
                  the job was rescheduled
    """

    def __init__(self, *, delay_ms: int = 0, declared_ms: int | None = None) -> None:
        super().__init__(delay_ms, declared_ms)
        self.delay_ms, self.declared_ms = delay_ms, declared_ms


class RunningJob:
    """The job that a handler receives, with the attempt that is running.

    id          int, the primary key of the row (delaytasks.models.Job)
    topic, key  str, as they were scheduled
    body        the body that was scheduled, as JSON data: dict, list, str, int, float, bool or None
    attempt     int from 1 on: how often the job was claimed. Together with the id it is the fencing
                token: only the latest attempt can end the job
    failures    int: the attempts before this one that failed or exceeded the TTR
    polls       int: with @poll, the polls before this one that were answered "not yet"; otherwise 0
    using       str, the database alias in which the job lives
    worker      str, the name of the process that runs the job
    subject     the model instance that the job is about, read at the first access; None if the job has no
                subject or its row is gone
    subject_label, subject_pk  str: the model's label in lower case ("shop.order") and the primary key as text; None
                without subject. To lock the row: select_for_update().get(pk=job.subject_pk)

    A RunningJob is a snapshot of the row at the claim; changes to it are not saved. Never use it after
    the handler has returned, and never in another process.

    The term fencing token comes from Martin Kleppmann ("How to do distributed locking").
    """

    id: int
    topic: str
    key: str
    body: Any
    attempt: int
    failures: int
    polls: int
    using: str
    worker: str
    subject_label: str | None
    subject_pk: str | None

    def __init__(self, claimed: Claimed, using: str, worker: str, actor: str = "") -> None:
        self.id, self.topic, self.key = claimed.id, claimed.topic, claimed.key
        self.body = claimed.body
        self.attempt, self.failures, self.ttr_ms = claimed.attempt, claimed.failures, claimed.ttr_ms
        self.due_ms, self.created_ms = claimed.due_ms, claimed.created_ms
        self.reserved_ms, self.lease_ms = claimed.reserved_ms, claimed.lease_ms
        self.entry_ms = claimed.lease_ms  # the score of the job's entry in the mirror, as this process last set it
        self.using, self.worker = using, worker
        self.subject_label, self.subject_pk = claimed.subject_label, claimed.subject_pk
        self.expires_ms, self.polls = claimed.expires_ms, claimed.polls
        self.trace_context = claimed.trace_context
        self.planned_ms = claimed.replaced_ms  # of a schedule's run: the time for which the schedule made it
        # When it was scheduled or last replaced; the time of a schedule's run, if it was made before that.
        self.scheduled_ms = max(claimed.replaced_ms or 0, claimed.created_ms)
        self.until_ms: int | None = None  # a snooze or retry is due at this time at the latest
        self.may_fire_later = False  # True: a declared timeout was skipped because no row matches at present
        self.actor = actor  # the person or token that ends the attempt, if it is not the worker
        self.ended = False  # what this process knows; only the row is certain
        self.on_renewal: Callable[[], Any] = lambda: None

    def __repr__(self) -> str:
        return f"<RunningJob {self.topic} {self.key}, attempt {self.attempt} (id {self.id})>"

    @cached_property
    def subject(self) -> Any:
        return find_subject(self.using, self.subject_label, self.subject_pk)

    @property
    def due_at(self) -> datetime:
        """When this attempt was due: aware, in UTC, to the millisecond. Never later than the handler's start."""
        return clock.from_ms(self.due_ms)

    @property
    def created_at(self) -> datetime:
        """When the job was scheduled: aware, in UTC, to the millisecond."""
        return clock.from_ms(self.created_ms)

    @property
    def deadline(self) -> datetime:
        """When the TTR of this attempt ends: aware, in UTC, to the millisecond. touch() moves the deadline."""
        return clock.from_ms(self.lease_ms)

    def touch(self) -> None:
        """Restart the TTR from now, which moves `deadline`.

        In a transaction the job's row is not written: the worker's main process records the new deadline
        a moment later. In a process without a worker (a test, or a gevent pool) the row is written, and
        locked until the end of the transaction, so that the job cannot be taken back. In a batch, touch
        every job: each touch() restarts the TTR of the call, but moves the deadline of its own job only.

        Raises LeaseLost if this attempt no longer holds the job.
        """
        if connections[self.using].in_atomic_block and self._notify_main_process():
            return
        leases = transitions.renew_if_held(self.using, [(self.id, self.attempt)])
        if self.id not in leases:
            raise LeaseLost(f"{self!r} is lost: its TTR passed before it was touched.")
        self.renewed(leases[self.id])

    def _notify_main_process(self) -> bool:
        """Let the main process record the new deadline. Return False if there is none. Raises LeaseLost."""
        from ..maintenance import (
            liveness,  # here: it needs Django's apps, and this module is imported before they are loaded
        )

        pipe = liveness.touches.get(self.using)
        if pipe is None:
            return False
        if not self.still_held():
            raise LeaseLost(f"{self!r} is lost: its TTR passed before it was touched.")
        lease_ms = databases.now_ms(self.using) + self.ttr_ms
        pipe.write(liveness.Touched(self.id, self.attempt, lease_ms))
        self.renewed(lease_ms)
        return True

    async def atouch(self) -> None:
        """Await touch(), in an `async def` handler. Raises LeaseLost."""
        await sync_to_async(self.touch)()

    def renewed(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        ttr.rearm(self.ttr_ms)
        self.on_renewal()
        transaction.on_commit(lambda: self._move_entry(lease_ms), using=self.using, robust=True)

    def _move_entry(self, lease_ms: int) -> None:
        old_ms, self.entry_ms = self.entry_ms, lease_ms
        mirror.writable(self.using).settle([Settlement(self.id, self.topic, old_ms, lease_ms)])

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Open a transaction that also finishes the job; for the last part of a handler with atomic=False.

            answer = bank.ask(...)                # no transaction is open
            with job.finishing():
                refund.end(answer)                # committed with the finish, or rolled back with it

        The handler returns None afterwards, never a Snooze. An error inside the block rolls the
        transaction back, and the attempt fails as if the handler had raised it.

        Raises LeaseLost, and rolls back, if this attempt no longer holds the job or has finished it.
        """
        if self.ended:
            raise LeaseLost(f"{self!r} has ended already.")
        with self.ending(Completion(self, Outcome.FINISHED)):
            yield

    @contextmanager
    def ending(self, completion: Completion) -> Iterator[None]:
        # For the package: as finishing(), with any end of the attempt.
        completed = None
        try:
            with completing_transaction(self.using) as completed:
                yield
                if not self.ended:
                    self.end(completion, completed)
        except BaseException:
            self.ended = completed is not None and completed.committed
            raise

    @asynccontextmanager
    async def afinishing(self) -> AsyncIterator[None]:
        """Open the transaction of finishing() in an `async def` handler with atomic=False.

            answer = await bank.ask(...)          # no transaction is open
            async with job.afinishing():
                await refund.asave()              # committed with the finish, or rolled back with it

        Raises LeaseLost, as finishing().
        """
        block = self.finishing()
        await sync_to_async(block.__enter__)()
        try:
            yield
        except BaseException:
            if not await sync_to_async(block.__exit__)(*sys.exc_info()):
                raise
        else:
            await sync_to_async(block.__exit__)(None, None, None)

    def finish(self, completed: Completed | None = None) -> None:
        """Finish the job now, in the current transaction if there is one. Raises LeaseLost.

        A second call does nothing. Handlers need not call finish(): the job is finished when they return. With
        atomic=False they can use finishing().
        """
        if not self.ended:
            self.end(Completion(self, Outcome.FINISHED), completed)

    def end(self, completion: Completion, completed: Completed | None = None) -> None:
        # For the package: end the attempt now, in the current transaction if there is one.
        retry_conflicts(lambda: complete(self.using, [completion], completed), self.using)
        self.ended = True

    def check_held(self) -> None:
        """Raise LeaseLost if this attempt does not hold the job any more according to the row."""
        if not self.still_held():
            raise LeaseLost(f"{self!r} is lost: the job was cancelled or taken back meanwhile.")

    def still_held(self) -> bool:
        """Return whether this attempt still holds the job according to the row.

        The row may contradict `ended`, if a savepoint has rolled the finish back.
        """
        snapshot = next(iter(lookups.get_snapshots(self.using, [self.id])), None)
        return snapshot is not None and (snapshot.state, snapshot.attempt) == (State.RESERVED, self.attempt)
