"""What happens twice, after it was called off, or by whom it should not."""

from delaytasks.states import Outcome, State

from . import breach
from .forge import ENDS_MS, Forge


@breach("effect twice", "its effect is there 2 times, of attempts [1, 1]")
def an_effect_that_is_there_twice(forge: Forge) -> None:
    forge.done(1)
    forge.effect(1)


@breach("ran after cancelled", "its caller heard that it was cancelled, and it is finished")
def finished_although_it_was_said_to_be_cancelled(forge: Forge) -> None:
    forge.consumed(1)
    forge.told("cancel", 1, 1_100, "cancelled", topic="torture.http")


@breach("ran after cancelled", "its caller heard that it was cancelled, and it is delayed")
def a_cancel_that_is_undone(forge: Forge) -> None:
    forge.pending(1)
    forge.told("cancel", 1, 500, "cancelled")


@breach("ran after cancelled", "an event says that it was cancelled, and it is delayed")
def a_cancel_whose_event_alone_is_there(forge: Forge) -> None:
    forge.pending(1)
    forge.asks("cancel", 1, 500)
    forge.event(1, Outcome.CANCELLED, done=501)


@breach("ran after cancelled", "attempts [1] began after it was cancelled")
def begun_after_its_caller_had_heard(forge: Forge) -> None:
    forge.cancelled(1)
    forge.attempt(1, 1_000, Outcome.EXPIRED)
    forge.evidence.rows[-1].attempt = 1


@breach("ran after cancelled", "attempts [2] began after it was cancelled")
def begun_after_a_cancel_that_was_never_answered(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=1_500)
    forge.asks("cancel", 1, 1_100)
    forge.event(1, Outcome.CANCELLED, attempt=1, done=1_101)
    forge.attempt(1, 1_500, Outcome.EXPIRED, attempt=2, due=1_500)
    forge.row(1, State.CANCELLED, attempt=2)


@breach("ran after cancelled", "it was cancelled, and its effect is there")
def an_effect_of_what_was_cancelled(forge: Forge) -> None:
    forge.cancelled(1)
    forge.effect(1)


@breach("ran after cancelled", "it is cancelled, and no event says when")
def a_cancel_without_its_event(forge: Forge) -> None:
    forge.promised(1)
    forge.told("cancel", 1, 500, "cancelled")
    forge.row(1, State.CANCELLED)


@breach("lost fence", "it was finished by attempts [1, 2]")
def two_finishes(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FINISHED)
    forge.finished(1, attempt=2, ms=6_000)


@breach("lost fence", "consumers heard that attempts [1] finished it; the events say [2]")
def a_late_finisher_over_http_that_was_told_that_all_is_well(forge: Forge) -> None:
    forge.promised(1, topic="torture.http")
    forge.attempt_over_http(1, 1_000, Outcome.EXPIRED)
    forge.attempt_over_http(1, 6_000, Outcome.FINISHED, attempt=2)
    forge.write("finishes", 6_100, job=1, attempt=1)
    forge.row(1, State.FINISHED, attempt=2, topic="torture.http")


@breach("lost fence", "attempt 1 finished it, and it is delayed")
def a_finish_that_is_undone(forge: Forge) -> None:
    forge.pending(1, due=ENDS_MS - 100)
    forge.attempt(1, ENDS_MS - 100, Outcome.FINISHED, due=ENDS_MS - 100)
    forge.effect(1)
    forge.evidence.rows[-1].attempt = 1


@breach("lost fence", "attempt 1 finished it after attempt 2 had begun")
def a_late_finisher_that_is_let_in(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FINISHED)
    forge.attempt(1, 6_000, Outcome.EXPIRED, attempt=2)
    forge.effect(1)
    forge.row(1, State.FINISHED, attempt=2)


@breach("lost fence", "there is an effect of attempts [1], and attempts [2] finished it")
def an_effect_of_the_wrong_attempt(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.EXPIRED)
    forge.attempt(1, 6_000, Outcome.FINISHED, attempt=2)
    forge.effect(1, attempt=1)
    forge.row(1, State.FINISHED, attempt=2)


@breach("lost fence", "there is an effect of attempts [1], and attempts [] finished it")
def an_effect_of_a_failed_attempt(forge: Forge) -> None:
    forge.pending(1, due=ENDS_MS + 500)
    forge.attempt(1, ENDS_MS - 1_000, Outcome.FAILED, due=ENDS_MS - 1_000, next_due=ENDS_MS + 500)
    forge.effect(1)
    forge.evidence.rows[-1].attempt = 1
    forge.evidence.entries = [
        e | {"delay_ms": None, "due_ms": None} if e.get("n") else e for e in forge.evidence.entries
    ]


@breach("lost fence", "attempt 1 was handed out to 7/1 and 8/1")
def one_attempt_for_two_processes(forge: Forge) -> None:
    forge.done(1)
    forge.begins(1, 1_006, pid=8)


@breach("lost fence", "attempt 1 was handed out to 7/1 and 7/2")
def one_attempt_for_two_threads_of_a_worker(forge: Forge) -> None:
    forge.done(1)
    forge.begins(1, 1_006)["thread"] = 2


@breach("lost fence", "attempt 1 was handed out 2 times")
def one_attempt_twice_for_a_thread_of_a_consumer(forge: Forge) -> None:
    forge.consumed(1)
    forge.begins(1, 1_006, topic="torture.http")


@breach("lost fence", "attempt 2 began, and the row knows of 1")
def an_attempt_that_the_row_forgot(forge: Forge) -> None:
    forge.done(1)
    forge.begins(1, 6_000, attempt=2)


@breach("lost fence", "attempts [1] ended more than once")
def two_ends_of_one_attempt(forge: Forge) -> None:
    forge.done(1)
    forge.event(1, Outcome.EXPIRED, attempt=1, reserved=1_000, done=6_000)


@breach("lost fence", "attempts [1] were reserved, and no event says how they ended")
def an_attempt_without_an_end(forge: Forge) -> None:
    forge.pending(1)
    forge.evidence.rows[-1].attempt = 1


@breach("lost fence", "attempt 1 has ended, and still holds it")
def a_lease_that_outlives_its_attempt(forge: Forge) -> None:
    forge.held(1)
    forge.event(1, Outcome.RELEASED, attempt=1, due=ENDS_MS - 2_000, reserved=ENDS_MS - 2_000, done=ENDS_MS - 1_000)
