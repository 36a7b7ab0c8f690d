"""The arguments and results of the statements. Times are in ms since 1970."""

import json
from typing import Any, NamedTuple

from ...states import AGE_MS, Outcome, State

DELAYED, RESERVED, FINISHED = int(State.DELAYED), int(State.RESERVED), int(State.FINISHED)
CANCELLED, DEAD = int(State.CANCELLED), int(State.DEAD)


class NewJob(NamedTuple):
    """A job to insert. Exactly one of due_ms and delay_ms is None."""

    topic: str
    key: str
    due_ms: int | None
    delay_ms: int | None
    ttr_ms: int
    body: str  # JSON
    subject_label: str = ""  # "": no subject, stored as NULL
    subject_pk: str = ""
    expires_ms: int | None = None
    trace_context: str = ""  # "": none, stored as NULL
    priority: int = 0


class StoredJob(NamedTuple):
    """A job that was inserted or replaced."""

    id: int
    topic: str
    key: str
    due_ms: int
    stored_ms: int  # the time of the statement, in ms since 1970
    priority: int = 0


class JobRow(NamedTuple):
    """A job's key, state, due time and attempt; live or ended."""

    id: int
    topic: str
    key: str
    state: int
    due_ms: int
    attempt: int
    again: bool = False  # it was scheduled again while its handler was running
    priority: int = 0


class Ended(NamedTuple):
    """An attempt that has ended. Times in ms since 1970.

    due_ms   the job's due time: that of the next attempt, if the job is still live
    now_ms   time of the statement
    again    the job has ended and was scheduled again: the caller inserts its next run with insert_next_runs()
    """

    due_ms: int
    now_ms: int
    again: bool


class Abandoned(NamedTuple):
    """An attempt to take back.

    delay_ms     until the next attempt, if the attempt before this one was taken back as well
    within_ms    the latest due time of the next attempt, from when the job was scheduled or replaced; None: no limit
    was_called   0: its handler was not called, so no failure is counted
    """

    id: int
    attempt: int
    max_attempts: int
    delay_ms: int = 0
    within_ms: int | None = None
    was_called: int = 1


class TakenBack(NamedTuple):
    """A job that was taken back: its new state, the time of the statement, and `again` as in Ended."""

    state: int
    now_ms: int
    again: bool


class Claimed(NamedTuple):
    id: int
    topic: str
    key: str
    body: Any
    attempt: int
    failures: int
    ttr_ms: int
    due_ms: int
    created_ms: int
    reserved_ms: int
    lease_ms: int
    subject_label: str | None = None
    subject_pk: str | None = None
    expires_ms: int | None = None
    polls: int = 0
    replaced_ms: int | None = None
    trace_context: str | None = None
    priority: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """The place among jobs that are due, as lookups.run_order() sorts them."""
        return self.due_ms - self.priority * AGE_MS, self.id


def with_body(claimed: Claimed) -> Claimed:
    """Parse the body if the database returns JSON as text."""
    return claimed._replace(body=json.loads(claimed.body)) if isinstance(claimed.body, str) else claimed


class AttemptRow(NamedTuple):
    """A job with its latest attempt. held_by() returns whether an attempt holds the job."""

    claimed: Claimed
    state: int
    worker: str
    now_ms: int

    def held_by(self, attempt: int) -> bool:
        return self.state == RESERVED and self.claimed.attempt == attempt and self.claimed.lease_ms > self.now_ms


class Ending(NamedTuple):
    """How a held attempt ends, with the values of the event.

    With the state DELAYED and delay_ms None, the job keeps its due time: it is released.
    """

    id: int
    attempt: int
    state: int
    delay_ms: int | None
    failed: int
    error: str  # one line, for the job's row
    outcome: Outcome = Outcome.FINISHED
    due_ms: int = 0
    reserved_ms: int | None = None
    worker: str = ""
    actor: str = ""
    trace: str = ""  # the whole error, for the event
    reason: str = ""
    until_ms: int | None = None  # the job is due again at this time at the latest, or at once if it has passed
    polled: int = 0  # 1: a poll was answered "not yet"


class Event(NamedTuple):
    job_id: int
    outcome: Outcome
    attempt: int
    due_ms: int
    done_ms: int
    reserved_ms: int | None = None
    next_due_ms: int | None = None
    worker: str = ""
    actor: str = ""
    error: str = ""
    reason: str = ""


class Cancelled(NamedTuple):
    id: int
    topic: str
    attempt: int
    due_ms: int
    done_ms: int
    reserved_ms: int | None = None  # start of the attempt that the cancel ended; None: none was running
