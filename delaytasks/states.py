"""The states of a job and the moves between them: the one list that everything else is tested against.

`READY` is a fact of time and never written: a row stored as `DELAYED` whose due time has
passed is ready. The database's CHECK constraint, the admin's filter and docs/lifecycle.md
are generated from this module or tested to agree with it.
"""

from enum import IntEnum, StrEnum
from typing import NamedTuple


class State(IntEnum):
    DELAYED = 1
    READY = 2  # never stored
    RESERVED = 3
    FINISHED = 4
    CANCELLED = 5
    DEAD = 6

    @property
    def word(self) -> str:
        return self.name.lower()


STORED = tuple(state for state in State if state is not State.READY)
LIVE = (State.DELAYED, State.READY, State.RESERVED)
STORED_LIVE = tuple(state for state in LIVE if state in STORED)
ENDED = tuple(state for state in State if state not in LIVE)


def shown(stored: int, *, due_ms: int, now_ms: int) -> State:
    """The state as people see it: a delayed job whose due time has passed is ready."""
    if stored == State.DELAYED and due_ms <= now_ms:
        return State.READY
    return State(stored)


class Outcome(StrEnum):
    """What a row of JobEvent says happened."""

    SCHEDULED = "scheduled"  # only where the promise was made in somebody's name
    FINISHED = "finished"
    FAILED = "failed"
    SNOOZED = "snoozed"
    RELEASED = "released"
    EXPIRED = "expired"
    RESCHEDULED = "rescheduled"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    DEAD = "dead"


class Move(NamedTuple):
    before: State
    after: State
    outcome: Outcome | None  # the JobEvent it leaves; None where nothing is written or only the attempt begins
    why: str


MOVES = (
    Move(State.DELAYED, State.READY, None, "its due time passes; nothing is written"),
    Move(State.READY, State.RESERVED, None, "a worker or a consumer claims it: attempt + 1, the lease begins"),
    Move(State.RESERVED, State.FINISHED, Outcome.FINISHED, "its holder finishes it"),
    Move(State.RESERVED, State.DELAYED, Outcome.SNOOZED, "the handler asks to be called again later"),
    Move(State.RESERVED, State.DELAYED, Outcome.FAILED, "the handler raised: retry after the backoff"),
    Move(State.RESERVED, State.READY, Outcome.RELEASED, "its holder gives it back"),
    Move(State.RESERVED, State.DELAYED, Outcome.RELEASED, "its consumer gives it back for later"),
    Move(State.RESERVED, State.READY, Outcome.EXPIRED, "its TTR is over and nobody finished it"),
    Move(State.RESERVED, State.DEAD, Outcome.DEAD, "max_attempts failures, or its consumer buries it"),
    Move(State.DELAYED, State.CANCELLED, Outcome.CANCELLED, "called off"),
    Move(State.READY, State.CANCELLED, Outcome.CANCELLED, "called off at the last moment"),
    Move(State.DELAYED, State.DELAYED, Outcome.RESCHEDULED, "moved to another due time, or replaced"),
    Move(State.DELAYED, State.READY, Outcome.RESCHEDULED, "run now"),
    Move(State.READY, State.DELAYED, Outcome.RESCHEDULED, "postponed before anybody claimed it"),
    Move(State.READY, State.READY, Outcome.RESCHEDULED, "run now, or replaced, when it is ready already"),
    Move(State.DEAD, State.READY, Outcome.RETRIED, "staff retry it: failures start at 0 again"),
)


def allowed(before: State, after: State) -> bool:
    return any(move.before == before and move.after == after for move in MOVES)
