"""The states of a job and the allowed moves between them.

`READY` is never stored: a row stored as `DELAYED` is ready when its due time has passed. The database's CHECK
constraint, the admin's filter and docs/lifecycle.md are generated from this module or tested against it.
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


# A job of priority p runs before jobs of priority 0 that were due up to p × AGE_MS earlier. Not a setting, because the
# scores that Redis stores contain it (score.lua).
AGE_MS = 60_000
MAX_PRIORITY = 9

STORED = tuple(state for state in State if state is not State.READY)
LIVE = (State.DELAYED, State.READY, State.RESERVED)
STORED_LIVE = tuple(state for state in LIVE if state in STORED)
ENDED = tuple(state for state in State if state not in LIVE)


def shown(stored: int, *, due_ms: int, now_ms: int) -> State:
    """Return the state to display: READY for a delayed job whose due time has passed, otherwise the stored state."""
    if stored == State.DELAYED and due_ms <= now_ms:
        return State.READY
    return State(stored)


class Outcome(StrEnum):
    """The kinds of a job's events; stored in JobEvent.outcome."""

    SCHEDULED = "scheduled"  # only if a person or a token scheduled it
    FINISHED = "finished"
    FAILED = "failed"
    SNOOZED = "snoozed"
    RELEASED = "released"
    EXPIRED = "expired"
    RESCHEDULED = "rescheduled"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    RETRIED = "retried"
    DEAD = "dead"


FAILURES = (Outcome.FAILED, Outcome.EXPIRED, Outcome.DEAD)  # of attempts; DEAD: of the job's last one


class Move(NamedTuple):
    before: State
    after: State
    outcome: Outcome | None  # of the JobEvent of this move; None: no event is written
    why: str


MOVES = (
    Move(State.DELAYED, State.READY, None, "its due time passes; nothing is written"),
    Move(State.READY, State.RESERVED, None, "a worker or a consumer claims it: attempt + 1, the lease begins"),
    Move(State.RESERVED, State.FINISHED, Outcome.FINISHED, "its handler or consumer finishes it"),
    Move(State.RESERVED, State.DELAYED, Outcome.SNOOZED, "the handler returns a Snooze"),
    Move(State.RESERVED, State.DELAYED, Outcome.FAILED, "the attempt fails: retry after the backoff"),
    Move(State.RESERVED, State.READY, Outcome.RELEASED, "its worker or consumer releases it"),
    Move(State.RESERVED, State.DELAYED, Outcome.RELEASED, "its consumer releases it with a delay"),
    Move(State.RESERVED, State.READY, Outcome.EXPIRED, "its TTR ends, or its worker dies, before it is finished"),
    Move(
        State.RESERVED, State.DELAYED, Outcome.EXPIRED, "the same happens to the next attempt: retry after the backoff"
    ),
    Move(State.RESERVED, State.READY, None, "its worker hands it back before its handler is called"),
    Move(
        State.RESERVED,
        State.DELAYED,
        None,
        "it waits for a locked row or another run of its schedule: its worker tries it again",
    ),
    Move(State.RESERVED, State.DELAYED, Outcome.RESCHEDULED, "the row of its declared timeout has another time now"),
    Move(
        State.RESERVED, State.CANCELLED, Outcome.SKIPPED, "its handler returns a Skip, or it expires before it begins"
    ),
    Move(State.RESERVED, State.DEAD, Outcome.DEAD, "max_attempts failures, or its consumer buries it"),
    Move(State.DELAYED, State.CANCELLED, Outcome.CANCELLED, "cancelled before its due time"),
    Move(State.READY, State.CANCELLED, Outcome.CANCELLED, "cancelled before it is claimed"),
    Move(State.DELAYED, State.DELAYED, Outcome.RESCHEDULED, "rescheduled or replaced"),
    Move(State.DELAYED, State.READY, Outcome.RESCHEDULED, "run now"),
    Move(State.READY, State.DELAYED, Outcome.RESCHEDULED, "postponed before it is claimed"),
    Move(State.READY, State.READY, Outcome.RESCHEDULED, "run now or replaced while it is ready"),
    Move(State.RESERVED, State.CANCELLED, Outcome.CANCELLED, "cancelled with running='fence': its effects are undone"),
    Move(State.DEAD, State.CANCELLED, Outcome.CANCELLED, "cancelled instead of retried"),
    Move(State.DEAD, State.READY, Outcome.RETRIED, "staff retry it; its failures are 0 again"),
)
