"""Codes for the errors and results that the engine stores, and the English text of each.

    ErrorCode      why an attempt or a bulk change failed, if the engine ended it: stored in the column `error`
    Result         the result of a change to one job: keys of BulkChange.outcomes and BulkChange.samples
    CancelResult   the result of cancel()

Rows store codes, never sentences, so a text can be reworded or translated without changing a row. The events of a
job have codes of their own, states.Outcome. formatting.py shows a code in the reader's language; error_text() and
result_text() return it in English, for logs, signals, commands and the HTTP API.

Earlier versions stored sentences. A migration replaces them by codes, but a worker of the older version may still
write them during an upgrade, and the archive keeps them. FORMER_ERRORS and FORMER_RESULTS list these sentences:
never change or remove an entry there.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from .exceptions import DelaytasksError, KeyIsLive, MovedMeanwhile, NotDead, Reserved
from .states import State


def gettext_noop(text: str) -> str:
    """Mark a text for the catalogues. Django's function of this name would make this module import Django."""
    return text


# -- errors -------------------------------------------------------------------------------------

PREFIX = "delaytasks:"  # distinguishes a code from the error text of a handler or a consumer


class ErrorCode(StrEnum):
    """The reasons why the engine failed an attempt or a bulk change; stored in `error` instead of a traceback."""

    TIMED_OUT = PREFIX + "timed_out"
    WORKER_LOST = PREFIX + "worker_lost"
    RUN_FAILED = PREFIX + "run_failed"
    TOO_LATE = PREFIX + "too_late"
    GAVE_UP = PREFIX + "gave_up"
    BURIED = PREFIX + "buried"
    NOT_ALLOWED = PREFIX + "not_allowed"

    @property
    def short(self) -> str:
        """The code without its prefix, as in the HTTP API and the commands: "timed_out"."""
        return self.removeprefix(PREFIX)


ERROR_TEXTS = {
    ErrorCode.TIMED_OUT: gettext_noop("Timed out: the attempt exceeded its TTR."),
    ErrorCode.WORKER_LOST: gettext_noop("The worker process ended while it ran the job."),
    ErrorCode.RUN_FAILED: gettext_noop("The worker could not record the end of the attempt."),
    ErrorCode.TOO_LATE: gettext_noop("Not run: it could not begin before it expired."),
    ErrorCode.GAVE_UP: gettext_noop("Gave up: it was not settled by its deadline."),
    ErrorCode.BURIED: gettext_noop("Buried by its consumer."),
    ErrorCode.NOT_ALLOWED: gettext_noop("The requester no longer has permission."),
}
TAKEN_BACK_ERRORS = (ErrorCode.TIMED_OUT, ErrorCode.WORKER_LOST, ErrorCode.RUN_FAILED)  # of attempts
FORMER_ERRORS = {
    "Its TTR was over and nobody had finished it.": ErrorCode.TIMED_OUT,
    "Buried by its consumer.": ErrorCode.BURIED,
    "Who asked for this may not change jobs any more.": ErrorCode.NOT_ALLOWED,
}


def error_code(stored: str) -> ErrorCode | None:
    """Return the code of a stored error; None for the error text of a handler or a consumer, and for "" (no error)."""
    if stored in FORMER_ERRORS:
        return FORMER_ERRORS[stored]
    return ErrorCode(stored) if stored in _CODES else None


_CODES = frozenset(code.value for code in ErrorCode)


def error_text(stored: str) -> str:
    """Return the English text of a stored error code. Return other error texts unchanged."""
    code = error_code(stored)
    return stored if code is None else ERROR_TEXTS[code]


def short_error_code(stored: str) -> str | None:
    """Return the code of a stored error without its prefix, or None if the stored error is not a code."""
    code = error_code(stored)
    return None if code is None else code.short


def to_stored_error(error: str) -> str:
    """Return the value to store for an error. A text that begins like a code is put in quotes."""
    if not isinstance(error, ErrorCode) and error.startswith(PREFIX):
        return f"'{error}'"
    return str(error)


# -- results ------------------------------------------------------------------------------------


class Result(StrEnum):
    """The result of a change to one job, as it was at the time of the SQL statement.

    If the change raised an exception without a code, "error:" and the exception's type are stored instead; see
    error_result().
    """

    CANCELLED = "cancelled"
    POSTPONED = "postponed"
    RESCHEDULED = "rescheduled"
    MADE_READY = "made_ready"
    RETRIED = "retried"
    RUNNING = "running"  # reserved: its handler is running and was not disturbed
    MOVED = "moved"  # its due time has changed since the caller read it
    ALREADY_READY = "already_ready"
    ALREADY_FINISHED = "already_finished"
    ALREADY_CANCELLED = "already_cancelled"
    DEAD = "dead"
    NOT_DEAD = "not_dead"
    KEY_IS_LIVE = "key_is_live"
    NOT_FOUND = "not_found"  # no such job, or the caller may not see its topic
    NEEDS_REASON = "needs_reason"
    BUSY = "busy"  # the database reported a conflict twice, or another transaction has locked the job


RESULT_TEXTS = {
    Result.CANCELLED: gettext_noop("cancelled"),
    Result.POSTPONED: gettext_noop("postponed"),
    Result.RESCHEDULED: gettext_noop("rescheduled"),
    Result.MADE_READY: gettext_noop("made ready"),
    Result.RETRIED: gettext_noop("retried"),
    Result.RUNNING: gettext_noop("already running"),
    Result.MOVED: gettext_noop("moved meanwhile"),
    Result.ALREADY_READY: gettext_noop("already ready"),
    Result.ALREADY_FINISHED: gettext_noop("already finished"),
    Result.ALREADY_CANCELLED: gettext_noop("already cancelled"),
    Result.DEAD: gettext_noop("dead"),
    Result.NOT_DEAD: gettext_noop("not dead"),
    Result.KEY_IS_LIVE: gettext_noop("its key is live again"),
    Result.NOT_FOUND: gettext_noop("no longer there"),
    Result.NEEDS_REASON: gettext_noop("its topic asks for a reason"),
    Result.BUSY: gettext_noop("the database was busy"),
}
DONE = {  # the result of a change that was made, by BulkChange.Operation
    "cancel": Result.CANCELLED,
    "postpone": Result.POSTPONED,
    "run_now": Result.MADE_READY,
    "retry": Result.RETRIED,
}
REFUSALS: Mapping[type[DelaytasksError], Result] = {
    Reserved: Result.RUNNING,
    MovedMeanwhile: Result.MOVED,
    NotDead: Result.NOT_DEAD,
    KeyIsLive: Result.KEY_IS_LIVE,
}
NOT_DELAYED = {  # why a job in this state cannot be cancelled or moved
    State.RESERVED: Result.RUNNING,
    State.FINISHED: Result.ALREADY_FINISHED,
    State.CANCELLED: Result.ALREADY_CANCELLED,
    State.DEAD: Result.DEAD,
}
FORMER_RESULTS = {
    "made ready": Result.MADE_READY,
    "already running": Result.RUNNING,
    "moved meanwhile": Result.MOVED,
    "already ready": Result.ALREADY_READY,
    "already finished": Result.ALREADY_FINISHED,
    "already cancelled": Result.ALREADY_CANCELLED,
    "not dead": Result.NOT_DEAD,
    "its key is live again": Result.KEY_IS_LIVE,
    "no longer there": Result.NOT_FOUND,
}
ERROR = "error:"
FORMER_ERROR = "error: "


class CancelResult(StrEnum):
    """The result of cancel(): a str. It describes the job at the time of the SQL statement.

    CANCELLED          "cancelled": the job will not run; also if it had been cancelled before
    RUNNING            "running": the handler of the job is running and was not disturbed
    ALREADY_FINISHED   "already finished": the job has finished
    UNKNOWN            "unknown": the topic has no job with this key, or its row was pruned or archived
    """

    CANCELLED = "cancelled"
    RUNNING = "running"
    ALREADY_FINISHED = "already finished"
    UNKNOWN = "unknown"


CANCEL_RESULTS = {
    Result.CANCELLED: CancelResult.CANCELLED,
    Result.ALREADY_CANCELLED: CancelResult.CANCELLED,
    Result.RUNNING: CancelResult.RUNNING,
    Result.ALREADY_FINISHED: CancelResult.ALREADY_FINISHED,
    Result.DEAD: CancelResult.ALREADY_FINISHED,
    Result.NOT_FOUND: CancelResult.UNKNOWN,
}


def error_result(error: BaseException) -> str:
    """Return the result for a job whose change raised this error: a code, or "error:" and the error's type."""
    result = REFUSALS.get(type(error)) if isinstance(error, DelaytasksError) else None
    return result or f"{ERROR}{type(error).__name__}"


def to_result_code(stored: str) -> str:
    """Return the code of a stored result, which may be a sentence of an earlier version. Return others unchanged."""
    if stored.startswith(FORMER_ERROR):
        return ERROR + stored.removeprefix(FORMER_ERROR)
    return FORMER_RESULTS.get(stored, stored)


def result_text(stored: str) -> str:
    """Return the English text of a stored result. Return a text that is not a code unchanged."""
    code = to_result_code(stored)
    return RESULT_TEXTS[Result(code)] if code in RESULT_TEXTS else stored


def counts_by_code(stored: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of BulkChange.outcomes by code, with those that an earlier version stored under sentences."""
    counts: dict[str, int] = {}
    for result, count in stored.items():
        code = to_result_code(result)
        counts[code] = counts.get(code, 0) + count
    return counts


def samples_by_code(stored: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the jobs of BulkChange.samples by code, with those that an earlier version stored under sentences."""
    samples: dict[str, list[Any]] = {}
    for result, jobs in stored.items():
        samples.setdefault(to_result_code(result), []).extend(jobs)
    return samples
