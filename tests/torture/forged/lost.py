"""Jobs that are missing or ended wrongly."""

from delaytasks.states import Outcome, State

from ..constants import MOST_ATTEMPTS
from . import breach
from .forge import ENDS_MS, Forge


@breach("lost", "it was scheduled, but there is no row")
def no_row(forge: Forge) -> None:
    forge.promised(1)


@breach("lost", "it was scheduled, but there is no row")
def a_row_that_is_deleted_after_it_ran(forge: Forge) -> None:
    forge.promised(1)
    forge.begins(1, 1_005)


@breach("lost", "it was scheduled, but there is no row", job=None)
def no_row_for_a_job_of_a_bulk_call(forge: Forge) -> None:
    forge.answers(forge.asks("schedule", 1, 0), "scheduled", 2)


@breach("lost", "it is finished, but its effect is missing")
def no_effect(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FINISHED)
    forge.row(1, State.FINISHED, attempt=1)


@breach("lost", "it is finished, but its effect is missing")
def no_effect_of_a_consumer(forge: Forge) -> None:
    forge.promised(1, topic="torture.http")
    forge.begins(1, 1_005, topic="torture.http")
    forge.event(1, Outcome.FINISHED, attempt=1, reserved=1_000)
    forge.row(1, State.FINISHED, attempt=1, topic="torture.http")


@breach("lost", "it is finished, but the event is missing")
def finished_by_an_attempt_that_expired(forge: Forge) -> None:
    forge.consumed(1)
    forge.evidence.entries = [entry for entry in forge.evidence.entries if entry["kind"] != "finishes"]
    forge.evidence.events.pop()
    forge.event(1, Outcome.EXPIRED, attempt=1, reserved=1_000)


@breach("lost", "attempt 1 finished it, but never started")
def finished_but_never_run(forge: Forge) -> None:
    forge.promised(1)
    forge.event(1, Outcome.FINISHED, attempt=1, reserved=1_000)
    forge.effect(1)
    forge.row(1, State.FINISHED, attempt=1)


@breach("lost", "its consumer was told that it had finished, but it is delayed")
def a_consumers_finish_that_was_lost(forge: Forge) -> None:
    forge.promised(1, topic="torture.http", due=ENDS_MS - 100)
    forge.attempt_over_http(1, ENDS_MS - 90, Outcome.EXPIRED, due=ENDS_MS - 100)
    forge.write("finishes", ENDS_MS - 80, job=1, attempt=1)
    forge.row(1, State.DELAYED, attempt=1, due=ENDS_MS - 100, topic="torture.http")
    forge.place(1, ENDS_MS - 100, topic="torture.http")


@breach("lost", "it is cancelled, but no caller cancelled it")
def cancelled_by_itself(forge: Forge) -> None:
    forge.promised(1)
    forge.event(1, Outcome.CANCELLED, done=501)
    forge.row(1, State.CANCELLED)


@breach("lost", "it is cancelled, but no caller cancelled it")
def cancelled_although_the_answer_was_running(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=3_000)
    forge.request("cancel", 1, 1_010, "running")
    forge.event(1, Outcome.CANCELLED, attempt=1, done=1_030)
    forge.row(1, State.CANCELLED, attempt=1)


@breach("lost", f"it is dead after 1 failures of {MOST_ATTEMPTS}")
def given_up_too_soon(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.DEAD)
    forge.row(1, State.DEAD, attempt=1, failures=1)


@breach("lost", "it has 2 failures, but 1 events of a failure")
def a_snooze_that_costs_a_failure(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.SNOOZED, next_due=2_000)
    forge.attempt(1, 2_000, Outcome.FAILED, attempt=2, due=2_000, next_due=3_000)
    forge.finished(1, due=3_000, attempt=3)
    forge.evidence.rows[-1].failures = 2


@breach("lost", "1 of 3 jobs of one call are missing", job=None)
def a_part_of_a_bulk_call(forge: Forge) -> None:
    for job in (1, 2, 3):
        forge.asks("schedule", job, 0, group="together")
    forge.finished(2)
    forge.finished(3)
