"""Attempts that start before the due time."""

from delaytasks.states import Outcome

from . import breach
from .forge import BEGAN_MS, Forge


@breach("early", "attempt 1 started 10 ms before the due time of the row")
def before_the_rows_due_time(forge: Forge) -> None:
    forge.request("schedule", 1, 0, "scheduled")
    forge.finished(1)
    next(e for e in forge.evidence.entries if e["kind"] == "begins" and e["job"] == 1)["now_ms"] -= 15


@breach("early", "attempt 1 started 495 ms before the due time that its caller was told")
def before_the_due_time_in_the_answer(forge: Forge) -> None:
    forge.request("schedule", 1, 0, "scheduled", due=1_000)
    forge.finished(1, due=500)


@breach("early", "attempt 2 started 895 ms before the due time that its caller was told")
def a_move_that_the_next_attempt_ignores(forge: Forge) -> None:
    forge.request("schedule", 1, 0, "scheduled", due=1_000)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=2_100)
    forge.request("move", 1, 1_500, "moved", due=3_000)
    forge.finished(1, attempt=2, due=2_100)


@breach("early", "attempt 1 started 495 ms before the requested delay was over")
def before_the_delay_by_the_ledgers_clock(forge: Forge) -> None:
    n = forge.asks("schedule", 1, 0, delay_ms=1_000)
    forge.answers(n, "scheduled", 2, 1, due=500)
    forge.finished(1, due=500)


@breach("early", "attempt 1 started 495 ms before the requested delay was over")
def before_the_delay_of_a_job_of_a_bulk_call(forge: Forge) -> None:
    n = forge.asks("schedule", 1, 0, delay_ms=1_000, group="together")
    forge.answers(n, "scheduled", 2)
    forge.finished(1, due=500)


@breach("early", "attempt 2 started 995 ms before its retry was due")
def a_retry_before_its_due_time(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=3_000)
    forge.finished(1, attempt=2, due=2_000)


@breach("early", "attempt 1 was reserved 10 ms before its due time")
def reserved_before_its_due_time(forge: Forge) -> None:
    forge.done(1)
    forge.evidence.events[-1].reserved_ms = BEGAN_MS + 990
