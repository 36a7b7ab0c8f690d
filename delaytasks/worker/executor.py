"""Run handlers under their TTR, in one transaction with the finish of their jobs, and handle results and errors."""

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from .. import databases, tracing
from ..db import dialects, lookups, transitions
from ..db.retries import retry_conflicts, retry_once, try_twice
from ..exceptions import LeaseLost, TTRExceeded
from ..handlers import Expired, Finished, Handler, NotBegun, Polled, Retry, Skip, Snooze
from ..jobs.next_runs import running_jobs
from ..outcomes import ErrorCode
from ..states import Outcome
from .attempt import Defer, RunningJob
from .claim import Candidates
from .completion import (
    Completed,
    Completion,
    after_end,
    any_receivers,
    complete,
    complete_and_claim,
    completing_transaction,
    defer,
    expire,
    remove_entries,
    take_back,
)
from .coroutines import await_result
from .group import Group
from .isolation import close_connections, isolated, reset_broken_connections
from .process_name import worker_name

logger = logging.getLogger("delaytasks")
TRACEBACK_CHARS = 4000
LINE_CHARS = 1000  # limit for one part of a traceback: a long message must not displace the exception's name
FAILURES = (Exception, SystemExit, asyncio.CancelledError, TTRExceeded)  # any other error also ends the process
NEVER_RAN = (Generator, AsyncGenerator)  # types of results that mean: the body of the handler has not run


class Executor:
    """Runs the handler of one topic.

    may_claim   returns whether the statement that ends a job may also claim the next of the candidates
    """

    def __init__(
        self, handler: Handler, candidates: Candidates, may_claim: Callable[[], bool], stopping: Callable[[], bool]
    ) -> None:
        self.handler, self.candidates, self.index = handler, candidates, candidates.index
        self.using, self.may_claim, self.stopping = candidates.using, may_claim, stopping
        self.connection = connections[self.using]
        self.claims_next = False  # the statement that ends the current job may claim the next one
        self.offered: list[int] = []  # the candidates of that statement
        self.next: RunningJob | None = None  # the job that the last statement has claimed
        self.inside = self.connection.in_atomic_block  # True: the caller has a transaction open, which only it may end
        self.called: int | None = None  # the id of the job whose handler was called and that has not ended yet
        self.removals: list[RunningJob] = []  # attempts whose jobs have ended but are still in the mirror
        self.not_begun: list[RunningJob] = []  # claimed, but the topic is held: the run unclaims them and looks again

    def flush_removals(self) -> None:
        """Remove the entries of the collected ended jobs from the mirror, in one call."""
        removals, self.removals = self.removals, []
        if removals:
            remove_entries(self.using, removals)

    def pop_next(self) -> RunningJob | None:
        """Return the job that was claimed with the end of the last one, or None."""
        attempt, self.next = self.next, None
        return attempt

    def run_together(self, group: Group) -> bool:
        """Run the group in one call or commit. Return False if the begun jobs must be run again one by one."""
        with tracing.attempts(group.waiting):
            return self._run_together(group)

    def _run_together(self, group: Group) -> bool:
        completed = None
        try:
            if not self.handler.atomic:
                self.run_without_transaction(group.begin_all())
                return True
            with ExitStack() as after_commit, completing_transaction(self.using, self.removals) as completed:
                results = self.results(group.begin_all() if self.handler.batch else group)
                completions = self.completions(group.begun, results)
                complete(self.using, completions, completed, relaxed=self.handler.relaxed_commit)
                self.limit_callbacks(after_commit, completed)
        except BaseException as error:
            if completed is not None and completed.committed:
                self.handle_callback_error(error)
                return True
            self.reraise_if_stopping(error)
            if not isinstance(error, Defer):
                tracing.failed(error, format_error)
            self.repair_connection(error)
            count = len(group.begun) + len(group.waiting)
            logger.info("%s: running %s jobs one by one after %s", self.handler.topic, count, type(error).__name__)
            return False
        return True

    def run_one(self, attempt: RunningJob) -> None:
        """Run one attempt and end it according to its result or error."""
        with tracing.attempts([attempt]):
            self._run_one(attempt)

    def _run_one(self, attempt: RunningJob) -> None:
        self.claims_next, self.offered = self.supports_claim_with_end(), []
        self.called = attempt.id
        try:
            if self.handler.atomic:
                completed = retry_once(lambda: self.run_in_transaction(attempt), attempt.check_held)
                if completed.offered:
                    attempt.ended = True
                    self.hold_next(completed)  # not repeated with the handler: the end is committed
            else:
                self.run_without_transaction([attempt])
        except LeaseLost as error:
            tracing.failed(error, format_error)
            self.note_lost(error)
        except Defer as error:
            self.defer(attempt, error)
        except BaseException as error:
            tracing.failed(error, format_error)
            self.repair_connection(error)
            self.handle_error(attempt, error)
            self.find_lost_claim(error)
            self.reraise_if_stopping(error)
            if not isinstance(error, FAILURES):
                raise
        finally:
            self.reset_broken_connections()
        self.called = None

    def supports_claim_with_end(self) -> bool:
        """Return whether this handler and its connection let the statement that ends a job claim the next one.

        They do not if callbacks or signal receivers may have to run before the next handler is called, or if a relaxed
        commit could lose the claim.
        """
        in_turn = not (self.handler.batch or self.handler.one_commit)
        return (
            in_turn and self.handler.atomic and not self.inside and not self.handler.relaxed_commit
            and self.handler.on_dead is None and self.handler.topic not in after_end
            and not any_receivers() and dialects.reads_committed(self.using)
        )  # fmt: skip

    def find_lost_claim(self, error: BaseException) -> None:
        """After a commit whose answer was lost, find the job that it may have claimed."""
        # Without a worker's name other runs may have its name, and the claim found could be theirs.
        if self.offered and worker_name() is not None and isinstance(error, DatabaseError | InterfaceError):
            self.next = self.candidates.lost(self.offered)

    def run_in_transaction(self, attempt: RunningJob) -> Completed:
        attempt.ended, completed = False, None
        try:
            with ExitStack() as after_commit, completing_transaction(self.using, self.removals) as completed:
                completions = self.completions([attempt], self.results([attempt]))
                self.complete(completions, completed)
                self.limit_callbacks(after_commit, completed)
        except BaseException as error:
            if completed is None or not completed.committed:
                raise
            attempt.ended = True
            self.handle_callback_error(error)
        return completed

    def complete(self, completions: list[Completion], completed: Completed) -> None:
        """End the attempt and, where that is possible, claim the next job in the same statement.

        If the statement fails and the transaction is repeated, it is repeated without the claim.
        """
        # The one on_commit callback is our own: see completing_transaction().
        only_commit_follows = len(completions) == 1 and len(self.connection.run_on_commit) == 1
        if self.claims_next and only_commit_follows and self.may_claim():
            self.claims_next, self.offered = False, self.candidates.next_few()
            complete_and_claim(self.using, completions[0], completed, self.candidates, self.offered)
            return
        complete(self.using, completions, completed, relaxed=self.handler.relaxed_commit)

    def hold_next(self, completed: Completed) -> None:
        if completed.claimed is None:
            self.candidates.miss(completed.offered)
        else:
            self.next = self.candidates.hold_first(transitions.with_body(completed.claimed))

    def run_without_transaction(self, group: Sequence[RunningJob]) -> None:
        """Run a handler with atomic=False, then end its jobs: with batch= several, otherwise one.

        After a conflict the end is repeated, but never the handler, because it has side effects.
        """
        results = dict(zip(group, self.results(group), strict=True))
        interrupted = [attempt for attempt in group if isinstance(results[attempt], TTRExceeded)]
        if interrupted:
            close_connections()
        self.not_begun += [attempt for attempt in group if isinstance(results[attempt], NotBegun)]
        ended = [attempt for attempt in group if attempt not in (*interrupted, *self.not_begun)]
        self.end_each(self.completions(ended, [results[attempt] for attempt in ended]))
        if interrupted:
            self.take_back(interrupted, results[interrupted[0]])

    def end_each(self, completions: Sequence[Completion]) -> None:
        """End these attempts in one statement. If one of them is lost, end the others one by one.

        The handlers have run, so a lost connection must not make them run again: the statement is repeated with a new
        one. If the first statement was committed after all, the repeated one finds the attempt ended.

        Raises LeaseLost for a single one.
        """
        try:
            try_twice(lambda: retry_conflicts(lambda: complete(self.using, completions), self.using), self.using)
        except LeaseLost:
            if len(completions) == 1:
                raise
            for completion in completions:
                self.end_or_note([completion])

    def end_or_note(self, completions: Sequence[Completion]) -> None:
        try:
            self.end_each(completions)
        except LeaseLost as error:
            self.note_lost(error)

    def note_lost(self, error: LeaseLost) -> None:
        logger.warning("%s", error)
        self.index.count("lease_lost")

    def results(self, group: Iterable[RunningJob]) -> list[Any]:
        """Call the handler, with batch= once and otherwise for each job. Return the result of each job."""
        if self.handler.batch:
            jobs = list(group)
            return self.batch_results(jobs, self.call(jobs, list(jobs)))
        return [self.call([attempt], attempt) for attempt in group]

    def call(self, attempts: Sequence[RunningJob], argument: Any) -> Any:
        """Call the handler, limited to the time until the first lease of these jobs ends, and return its result."""
        now_ms = databases.now_ms(self.using)
        for attempt in attempts:
            attempt.reserved_ms = max(now_ms, attempt.reserved_ms)
        remaining_ms = max(1, min(attempt.lease_ms for attempt in attempts) - now_ms)
        with running_jobs(*attempts), isolated(remaining_ms):
            return await_result(self.handler.call(argument))

    def limit_callbacks(self, after_commit: ExitStack, completed: Completed) -> None:
        """Give the handler's on_commit callbacks a TTR of their own, from the commit until `after_commit` is closed.

        Inside a transaction of the caller they run at its commit, after that.
        """
        if not self.inside and len(self.connection.run_on_commit) > 1:  # the first one is our own
            completed.on_commit = lambda: after_commit.enter_context(isolated(self.handler.ttr_ms))

    def handle_callback_error(self, error: BaseException) -> None:
        """Log the error of an on_commit callback; the job has ended. Raise the error again if it ends the process."""
        self.reraise_if_stopping(error)
        logger.error("%s: an on_commit callback of the handler failed", self.handler.topic, exc_info=error)
        self.repair_connection(error)
        if not isinstance(error, FAILURES):
            raise error

    def completions(self, group: Sequence[RunningJob], results: Sequence[Any]) -> list[Completion]:
        """Return the completions for these results. Attempts that the handler itself has ended have none."""
        completions = []
        for attempt, result in zip(group, map(self.result_or_error, results), strict=True):
            failed = self.handler.batch and not self.handler.atomic and isinstance(result, BaseException)
            if isinstance(result, Exception) and not failed:
                raise result
            if attempt.ended and not attempt.still_held():
                if isinstance(result, Snooze | Skip):
                    raise TypeError(
                        f"{self.handler.name} finished {attempt!r} and then returned a {type(result).__name__}. "
                        "Do only one of them."
                    )
            elif isinstance(result, Snooze):
                polled = isinstance(result, Polled)
                snoozed = Completion(
                    attempt, Outcome.SNOOZED, result.delay_ms, reason=result.reason, until_ms=attempt.until_ms,
                    polled=polled,
                )  # fmt: skip
                completions.append(snoozed)
            elif isinstance(result, Skip):
                completions.append(Completion(attempt, Outcome.SKIPPED, reason=result.reason))
            elif isinstance(result, Expired):
                completions.append(Completion(attempt, Outcome.SKIPPED, error=ErrorCode.TOO_LATE))
            elif isinstance(result, Finished):
                completions.append(Completion(attempt, Outcome.FINISHED, reason=result.reason))
            elif failed:
                completions.append(self.failure(attempt, result))
            else:
                if result is not None:
                    self.warn_about_result(result)
                completions.append(Completion(attempt, Outcome.FINISHED))
        return completions

    def result_or_error(self, result: Any) -> Any:
        """Return the result of a job, or a TypeError if the handler's body has not run."""
        if not isinstance(result, NEVER_RAN):
            return result
        return TypeError(
            f"{self.handler.name} returned a {type(result).__name__}, so its body has not run. "
            "Make the handler a function without yield."
        )

    def warn_about_result(self, result: Any) -> None:
        try:
            text = f"{result!r:.80}"
        except Exception:
            text = f"a {type(result).__name__} that cannot be printed"
        logger.warning("%s returned %s; return None, a Snooze or a Skip. The job is finished.", self.handler.name, text)

    def batch_results(self, group: Sequence[RunningJob], result: Any) -> list[Any]:
        """Return one result for each job of a batch.

        A batch handler returns None, a Snooze or a Skip for all jobs, or a mapping {job.id: one of these}; a job that
        is not in the mapping gets None. Raises TypeError for ids that are not in the batch.
        """
        if not isinstance(result, Mapping):
            return [result] * len(group)
        unknown = result.keys() - {attempt.id for attempt in group}
        if unknown:
            raise TypeError(
                f"{self.handler.name} returned results for ids that are not in its batch: "
                f"{sorted(map(str, unknown))[:3]}."
            )
        return [result.get(attempt.id) for attempt in group]

    # -- after an error -------------------------------------------------------------------------

    def handle_error(self, attempt: RunningJob, error: BaseException) -> None:
        if attempt.ended and not attempt.still_held():
            logger.error("%s raised after it had finished %r", self.handler.name, attempt, exc_info=error)
        elif isinstance(error, TTRExceeded):
            self.expire_now(attempt, error)
        elif self.is_cold_shutdown(error):
            self.end_or_note([Completion(attempt, Outcome.RELEASED)])
        else:
            self.end_or_note([self.failure(attempt, error)])

    def defer(self, attempt: RunningJob, error: Defer) -> None:
        try:
            retry_conflicts(
                lambda: defer(self.using, attempt, delay_ms=error.delay_ms, declared_ms=error.declared_ms), self.using
            )
        except LeaseLost as lost:
            self.note_lost(lost)

    def failure(self, attempt: RunningJob, error: BaseException) -> Completion:
        """Return the end of a failed attempt.

        The job is retried after the delay of the Retry or the topic's backoff. After max_attempts failures, or after
        an exception that the topic gives up on, it is dead.
        """
        trace = format_error(error)
        if attempt.failures + 1 >= self.handler.max_attempts or self.handler.gives_up_on(error):
            return Completion(attempt, Outcome.DEAD, None, trace, exception=error)
        delay_ms = error.delay_ms if isinstance(error, Retry) else None
        if delay_ms is None:
            delay_ms = self.handler.backoff.delay_ms(attempt.failures + 1)
        return Completion(attempt, Outcome.FAILED, delay_ms, trace, until_ms=attempt.until_ms)

    def expire_now(self, attempt: RunningJob, error: TTRExceeded) -> None:
        """Take the job back after its TTR has interrupted the handler, without waiting for the sweep.

        The event keeps the traceback, which shows where the handler was.
        """
        self.index.count("ttr_exceeded")
        snapshots, trace = lookups.get_snapshots(self.using, [attempt.id]), format_error(error)
        retry_conflicts(lambda: expire(self.using, snapshots, trace), self.using)

    def take_back(self, group: Sequence[RunningJob], error: TTRExceeded) -> None:
        """Take jobs of a group back after the first TTR has interrupted their common call.

        The TTRs of the other jobs may end later, so no failure is counted. Each job runs alone next time.
        """
        self.index.count("ttr_exceeded")
        held = {(attempt.id, attempt.attempt) for attempt in group}
        snapshots = [s for s in lookups.get_snapshots(self.using, [a.id for a in group]) if (s.id, s.attempt) in held]
        trace = format_error(error)
        retry_conflicts(lambda: take_back(self.using, snapshots, ErrorCode.TIMED_OUT, trace=trace), self.using)

    def reset_broken_connections(self) -> None:
        if not self.inside:
            reset_broken_connections()

    def repair_connection(self, error: BaseException) -> None:
        """Make the connection usable again. Raises a database error if the database cannot be reached."""
        self.reset_broken_connections()
        connection = self.connection
        if connection.connection is None or connection.is_usable():
            return
        connection.close()
        if isinstance(error, DatabaseError | InterfaceError):
            connection.ensure_connection()

    def is_cold_shutdown(self, error: BaseException) -> bool:
        """Return whether the error is the SystemExit of Celery's cold shutdown: the handler has not failed then."""
        return isinstance(error, SystemExit) and self.stopping()

    def reraise_if_stopping(self, error: BaseException) -> None:
        if self.is_cold_shutdown(error):
            raise error


def format_error(error: BaseException) -> str:
    """Return the traceback: about 4,000 characters at most, without NULs, which PostgreSQL refuses."""
    try:
        parts = traceback.format_exception(error)
    except Exception:  # formatting reads more than the message of some exceptions, such as SyntaxError
        parts = [f"{type(error).__name__}, which cannot be printed"]
    text = "".join(map(_shorten_part, parts)).replace("\x00", "\\x00")
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= TRACEBACK_CHARS:
        return text
    half = TRACEBACK_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _shorten_part(part: str) -> str:
    if len(part) <= LINE_CHARS:
        return part
    return f"{part[:LINE_CHARS]} ... {len(part) - LINE_CHARS} characters left out\n"
