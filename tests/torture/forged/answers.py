"""Answers that cannot have been true."""

from delaytasks.states import Outcome

from . import breach, sound
from .forge import ENDS_MS, Forge


@breach("untrue answer", "its caller was told 'unknown', but there is a row")
def told_unknown_although_it_exists(forge: Forge) -> None:
    forge.done(1)
    forge.request("cancel", 1, 500, "unknown")


@breach("untrue answer", "its caller was told 'already finished', but it is delayed")
def told_finished_although_it_is_delayed(forge: Forge) -> None:
    forge.pending(1)
    forge.request("cancel", 1, 500, "already finished")


@breach("untrue answer", "its caller was told 'NotLive', but it is delayed")
def refused_as_ended_although_it_is_delayed(forge: Forge) -> None:
    forge.pending(1)
    forge.request("move", 1, 500, "refused", why="NotLive")


@breach("untrue answer", "its caller was told 'running', but no attempt held it at that time")
def told_running_before_it_ran(forge: Forge) -> None:
    forge.promised(1, due=5_000)
    forge.finished(1, due=5_000)
    forge.request("cancel", 1, 500, "running")


@breach("untrue answer", "its caller was told 'Reserved', but no attempt held it at that time")
def refused_as_reserved_between_two_attempts(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=9_000)
    forge.finished(1, attempt=2, due=9_000)
    forge.request("move", 1, 4_000, "refused", why="Reserved")


@sound
def refused_as_reserved_while_a_handler_ran_that_was_called_again_after_a_deadlock(forge: Forge) -> None:
    forge.promised(1)
    forge.begins(1, 1_005)
    forge.request("move", 1, 1_100, "refused", why="Reserved")
    forge.finished(1, ms=4_000)


@breach("untrue answer", "its caller was told a due time that differs by 500 ms from the real one")
def a_lost_move(forge: Forge) -> None:
    forge.done(1)
    forge.request("run now", 1, 500, "moved", due=500)


@breach("untrue answer", "its caller was told a due time that differs by 1000 ms from the real one")
def a_lost_move_of_a_pending_job(forge: Forge) -> None:
    forge.pending(1, due=ENDS_MS + 60_000)
    forge.request("move", 1, 500, "moved", due=ENDS_MS + 59_000)
