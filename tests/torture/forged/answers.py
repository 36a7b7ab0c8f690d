"""Answers that cannot have been true."""

from delaytasks.states import Outcome

from . import breach
from .forge import ENDS_MS, Forge


@breach("untrue answer", "its caller heard 'unknown', and there is a row")
def said_to_be_unknown(forge: Forge) -> None:
    forge.done(1)
    forge.told("cancel", 1, 500, "unknown")


@breach("untrue answer", "its caller heard 'already finished', and it is delayed")
def said_to_be_finished(forge: Forge) -> None:
    forge.pending(1)
    forge.told("cancel", 1, 500, "already finished")


@breach("untrue answer", "its caller heard 'NotLive', and it is delayed")
def refused_as_if_it_had_ended(forge: Forge) -> None:
    forge.pending(1)
    forge.told("move", 1, 500, "refused", why="NotLive")


@breach("untrue answer", "its caller heard 'running', and nobody held it at that time")
def said_to_be_running_before_it_ran(forge: Forge) -> None:
    forge.promised(1, due=5_000)
    forge.finished(1, due=5_000)
    forge.told("cancel", 1, 500, "running")


@breach("untrue answer", "its caller heard 'Reserved', and nobody held it at that time")
def refused_as_if_it_were_held_between_two_attempts(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=9_000)
    forge.finished(1, attempt=2, due=9_000)
    forge.told("move", 1, 4_000, "refused", why="Reserved")


@breach("untrue answer", "its caller heard a due time that is 500 ms from what it was given")
def a_move_that_was_lost(forge: Forge) -> None:
    forge.done(1)
    forge.told("run now", 1, 500, "moved", due=500)


@breach("untrue answer", "its caller heard a due time that is 1000 ms from what it was given")
def a_move_that_was_lost_of_what_still_waits(forge: Forge) -> None:
    forge.pending(1, due=ENDS_MS + 60_000)
    forge.told("move", 1, 500, "moved", due=ENDS_MS + 59_000)
