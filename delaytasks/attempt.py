"""What a handler gets as `job`: one attempt at a job, with its fence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from django.db import connections, transaction

from . import clock, engine, statements, ttr, watching
from .endings import Told, Verdict, conclude, one_commit
from .exceptions import LeaseLost, Reserved
from .places import Settlement
from .statements import Claimed
from .states import Outcome, State

_in_hand: ContextVar[tuple["Attempt", ...]] = ContextVar("delaytasks_in_hand", default=())


class Attempt:
    """One attempt at a job. (id, attempt) is the fence: only who holds it may end the job.

    id, topic, key, body, attempt, failures; due_at, created_at, deadline: aware datetimes.
    """

    def __init__(self, claimed: Claimed, using: str, worker: str) -> None:
        self.id, self.topic, self.key = claimed.id, claimed.topic, claimed.key
        self.body: Any = claimed.body
        self.attempt, self.failures, self.ttr_ms = claimed.attempt, claimed.failures, claimed.ttr_ms
        self.due_ms, self.created_ms = claimed.due_ms, claimed.created_ms
        self.reserved_ms, self.lease_ms = claimed.reserved_ms, claimed.lease_ms
        self.entry_ms = claimed.lease_ms  # where the mirror's entry is, as far as this process told it
        self.using, self.worker = using, worker
        self.actor = ""  # who ends it, when that is not the worker
        self.ended = False  # as far as this process knows; the row decides
        self.on_renewal: Callable[[], Any] = lambda: None

    def __repr__(self) -> str:
        return f"<Attempt {self.attempt} of {self.topic} {self.key} (id {self.id})>"

    @property
    def due_at(self) -> datetime:
        return clock.from_ms(self.due_ms)

    @property
    def created_at(self) -> datetime:
        return clock.from_ms(self.created_ms)

    @property
    def deadline(self) -> datetime:
        """When the lease ends and the job may be taken back."""
        return clock.from_ms(self.lease_ms)

    def touch(self) -> None:
        """Begin the TTR anew, from now. Raises LeaseLost if this attempt no longer holds the job.

        Inside a transaction it is seen by others when that commits; until then the locked row
        keeps them away. In a batch it begins the TTR of the call anew, so touch every job of it.
        """
        leases = statements.renew_if_held(self.using, [(self.id, self.attempt)])
        if self.id not in leases:
            raise LeaseLost(f"{self!r} was lost before it could be touched.")
        self.renewed(leases[self.id])

    def renewed(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        ttr.rearm(self.ttr_ms)
        self.on_renewal()
        transaction.on_commit(lambda: self._move_entry(lease_ms), using=self.using, robust=True)

    def _move_entry(self, lease_ms: int) -> None:
        seen_ms, self.entry_ms = self.entry_ms, lease_ms
        engine.tell(self.using).settle([Settlement(self.id, self.topic, seen_ms, lease_ms)])

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """The fenced last part of a handler with atomic=False: a transaction whose commit is also the job's finish.

        Raises LeaseLost at its end, and rolls back, if this attempt no longer holds the job.
        """
        if self.ended:
            raise LeaseLost(f"{self!r} has ended already.")
        told = None
        try:
            with one_commit(self.using) as told:
                yield
                self.finish(told)
        except BaseException:
            self.ended = told is not None and told.committed
            raise

    def finish(self, told: Told | None = None) -> None:
        """Finish now, in the transaction at hand; once. Raises LeaseLost."""
        if not self.ended:
            conclude(self.using, [Verdict(self, Outcome.FINISHED)], told)
            self.ended = True

    def still_held(self) -> bool:
        """Whether the row says that this attempt holds the job: its finish may have been rolled back to a savepoint."""
        standing = next(iter(watching.stand(self.using, [self.id])), None)
        return standing is not None and (standing.state, standing.attempt) == (State.RESERVED, self.attempt)


@contextmanager
def in_hand(*attempts: Attempt) -> Iterator[None]:
    """While a handler runs with these attempts, schedule() knows its own keys."""
    token = _in_hand.set(attempts)
    try:
        yield
    finally:
        _in_hand.reset(token)


def make_way(using: str, topic: str, key: str) -> None:
    """Finish the attempt that a running handler holds at (topic, key), so that it can schedule its own next one.

    Both are one commit. Raises Reserved outside a transaction, where they could not be.
    """
    for attempt in _in_hand.get():
        if (attempt.topic, attempt.key, attempt.using) == (topic, key, using) and not attempt.ended:
            if not connections[using].in_atomic_block:
                raise Reserved(
                    f"{attempt!r} is running. To schedule its own next one from a handler with atomic=False, "
                    "do it inside `with job.finishing():`."
                )
            attempt.finish()
