"""Running handlers: in one transaction with the finish, under the TTR, and what becomes of each result or error."""

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from . import engine, watching
from .attempt import Attempt, in_hand
from .conflicts import retried_once
from .endings import Told, Verdict, conclude, expire, one_commit, remove
from .exceptions import LeaseLost, TTRExceeded
from .interrupted import forget_broken
from .leftovers import guarded
from .places import Places
from .states import Outcome
from .topics import Handler, Retry, Snooze

logger = logging.getLogger("delaytasks")
TRACEBACK_CHARS = 4000
LINE_CHARS = 1000  # of one part of a traceback: a long message is not to push out what it is the message of
FAILURES = (Exception, SystemExit, asyncio.CancelledError, TTRExceeded)  # anything else ends the process, too
NEVER_RAN = (Generator, Coroutine, AsyncGenerator)  # what a call returns that has run nothing of the handler's body


class Handling:
    """How one topic's jobs are run."""

    def __init__(self, handler: Handler, places: Places, using: str, stopping: Callable[[], bool]) -> None:
        self.handler, self.places, self.using, self.stopping = handler, places, using, stopping
        self.connection = connections[using]
        self.inside = self.connection.in_atomic_block  # somebody else's transaction is theirs to end
        self.gone: list[Attempt] = []  # the mirror does not know yet that they have ended

    def settle(self) -> None:
        """Tell the mirror of the jobs that have ended, all in one call."""
        gone, self.gone = self.gone, []
        if gone:
            remove(self.using, gone)

    def run_together(self, group: Sequence[Attempt]) -> bool:
        """Run the group in one transaction; False if it has to be done again one by one."""
        told = None
        try:
            with in_hand(*group), ExitStack() as after, one_commit(self.using, self.gone) as told:
                if self.handler.batch:
                    lease_ms = min(attempt.lease_ms for attempt in group)
                    results = self.results_of_batch(group, self.call(list(group), lease_ms))
                else:
                    results = [self.call(attempt, attempt.lease_ms) for attempt in group]
                conclude(self.using, self.verdicts(group, results), told, relaxed=self.handler.relaxed_commit)
                self.guard_callbacks(after, told)
        except BaseException as error:
            if told is not None and told.committed:
                self.callback_failed(error)
                return True
            self.leave_if_shutting_down(error)
            self.mend_connection(error)
            logger.info("%s: %s jobs go one by one after %s", self.handler.topic, len(group), type(error).__name__)
            return False
        return True

    def run_one(self, attempt: Attempt) -> None:
        """One attempt, whatever happens in it."""
        try:
            with in_hand(attempt):
                if self.handler.atomic:
                    retried_once(lambda: self.run_in_transaction(attempt))
                else:
                    self.run_outside(attempt)
        except LeaseLost as lost:
            logger.warning("%s", lost)
            self.places.count("lease_lost")
        except BaseException as error:
            self.leave_if_shutting_down(error)
            self.mend_connection(error)
            self.after_error(attempt, error)
            if not isinstance(error, FAILURES):
                raise
        finally:
            self.forget_broken()

    def run_in_transaction(self, attempt: Attempt) -> None:
        attempt.ended, told = False, None
        try:
            with ExitStack() as after, one_commit(self.using, self.gone) as told:
                if self.handler.batch:
                    results = self.results_of_batch([attempt], self.call([attempt], attempt.lease_ms))
                else:
                    results = [self.call(attempt, attempt.lease_ms)]
                conclude(self.using, self.verdicts([attempt], results), told, relaxed=self.handler.relaxed_commit)
                self.guard_callbacks(after, told)
        except BaseException as error:
            if told is None or not told.committed:
                raise
            attempt.ended = True
            self.callback_failed(error)

    def run_outside(self, attempt: Attempt) -> None:
        """atomic=False: the handler is never repeated here, it talks to the outside; its finish may be."""
        result = self.call(attempt, attempt.lease_ms)
        verdicts = self.verdicts([attempt], [result])
        retried_once(lambda: conclude(self.using, verdicts))

    def call(self, argument: Any, lease_ms: int) -> Any:
        """What the handler returns, called under its TTR."""
        rest_ms = max(1, lease_ms - engine.now_ms(self.using))
        with guarded(rest_ms):
            result = self.handler.function(argument)
        if isinstance(result, NEVER_RAN):
            if isinstance(result, Coroutine):
                result.close()
            raise TypeError(
                f"{self.handler.name} returned a {type(result).__name__}, so nothing of it has run: "
                "a handler is a plain function, without yield and async."
            )
        return result

    def guard_callbacks(self, after: ExitStack, told: Told) -> None:
        """What the handler left to be done on commit has a TTR of its own, from the commit until `after` is closed."""
        if len(self.connection.run_on_commit) > 1:  # beside our own
            told.on_commit = lambda: after.enter_context(guarded(self.handler.ttr_ms))

    def callback_failed(self, error: BaseException) -> None:
        """The job has ended all the same. Raises what is to end the process, too."""
        self.leave_if_shutting_down(error)
        logger.error("%s: an on_commit callback of the handler failed", self.handler.topic, exc_info=error)
        self.mend_connection(error)
        if not isinstance(error, FAILURES):
            raise error

    def verdicts(self, group: Sequence[Attempt], results: Sequence[Any]) -> list[Verdict]:
        """What the handler's results mean; attempts that ended inside the handler need nothing more."""
        found = []
        for attempt, result in zip(group, results, strict=True):
            if isinstance(result, Retry):
                raise result
            if attempt.ended and not attempt.still_held():
                if isinstance(result, Snooze):
                    raise TypeError(
                        f"{self.handler.name} finished {attempt!r} and then returned a Snooze: do only one."
                    )
            elif isinstance(result, Snooze):
                found.append(Verdict(attempt, Outcome.SNOOZED, result.delay_ms))
            else:
                if result is not None:
                    self.warn_of_result(result)
                found.append(Verdict(attempt, Outcome.FINISHED))
        return found

    def warn_of_result(self, result: Any) -> None:
        try:
            said = f"{result!r:.80}"
        except Exception:
            said = f"a {type(result).__name__} that cannot be printed"
        logger.warning("%s returned %s; it is to return nothing or a Snooze. Finished.", self.handler.name, said)

    def results_of_batch(self, group: Sequence[Attempt], result: Any) -> list[Any]:
        """A batch handler returns nothing, one Snooze for all, or {job.id: Snooze} for some. Raises TypeError."""
        if not isinstance(result, dict):
            return [result] * len(group)
        unknown = result.keys() - {attempt.id for attempt in group}
        if unknown:
            raise TypeError(
                f"{self.handler.name} returned results for {sorted(map(str, unknown))[:3]}: no ids of its jobs."
            )
        return [result.get(attempt.id) for attempt in group]

    # -- after an error -------------------------------------------------------------------------

    def after_error(self, attempt: Attempt, error: BaseException) -> None:
        if attempt.ended and not attempt.still_held():
            logger.error("%s raised after it had finished %r", self.handler.name, attempt, exc_info=error)
        elif isinstance(error, TTRExceeded):
            self.expire_now(attempt)
        else:
            self.fail(attempt, error)

    def fail(self, attempt: Attempt, error: BaseException) -> None:
        """Retry after the handler's own delay or the topic's backoff, until max_attempts; then dead."""
        trace = shortened(error)
        if attempt.failures + 1 >= self.handler.max_attempts:
            verdict = Verdict(attempt, Outcome.DEAD, None, trace)
        else:
            delay_ms = error.delay_ms if isinstance(error, Retry) else None
            if delay_ms is None:
                delay_ms = self.handler.backoff.delay_ms(attempt.failures + 1)
            verdict = Verdict(attempt, Outcome.FAILED, delay_ms, trace)
        try:
            retried_once(lambda: conclude(self.using, [verdict]))
        except LeaseLost as lost:
            logger.warning("%s", lost)
            self.places.count("lease_lost")

    def expire_now(self, attempt: Attempt) -> None:
        """The handler was interrupted at its TTR: the lease is over, take the job back without waiting for a guard."""
        self.places.count("ttr_exceeded")
        expire(self.using, watching.stand(self.using, [attempt.id]))

    def forget_broken(self) -> None:
        if not self.inside:
            forget_broken()

    def mend_connection(self, error: BaseException) -> None:
        """Leave a connection that can be used. Raises the error if the database itself is gone."""
        self.forget_broken()
        connection = self.connection
        if connection.connection is None or connection.is_usable():
            return
        connection.close()
        if isinstance(error, DatabaseError | InterfaceError):
            connection.ensure_connection()

    def leave_if_shutting_down(self, error: BaseException) -> None:
        """Celery's cold shutdown arrives as SystemExit in the middle of a handler: not the handler's failure."""
        if isinstance(error, SystemExit) and self.stopping():
            raise error


def shortened(error: BaseException) -> str:
    """The traceback, with its middle left out if it is long; without NULs, which PostgreSQL refuses."""
    try:
        parts = traceback.format_exception(error)
    except Exception:  # of an exception that has more in it than a message, such as a SyntaxError
        parts = [f"{type(error).__name__}, which cannot be printed"]
    whole = "".join(map(_cut, parts)).replace("\x00", "\\x00")
    whole = whole.encode(errors="backslashreplace").decode()
    if len(whole) <= TRACEBACK_CHARS:
        return whole
    half = TRACEBACK_CHARS // 2
    return f"{whole[:half]}\n... {len(whole) - 2 * half} characters left out ...\n{whole[-half:]}"


def _cut(part: str) -> str:
    if len(part) <= LINE_CHARS:
        return part
    return f"{part[:LINE_CHARS]} ... {len(part) - LINE_CHARS} characters left out\n"
