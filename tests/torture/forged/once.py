"""Attempts and effects that happen twice, after a cancel, or by the wrong attempt."""

from delaytasks.states import Outcome, State

from . import breach
from .forge import ENDS_MS, Forge


@breach("effect twice", "its effect exists 2 times, of attempts [1, 1]")
def two_effects(forge: Forge) -> None:
    forge.done(1)
    forge.effect(1)


@breach("ran after cancelled", "its caller was told that it was cancelled, but it is finished")
def finished_although_the_answer_was_cancelled(forge: Forge) -> None:
    forge.consumed(1)
    forge.request("cancel", 1, 1_100, "cancelled", topic="torture.http")


@breach("ran after cancelled", "its caller was told that it was cancelled, but it is delayed")
def a_cancel_that_is_undone(forge: Forge) -> None:
    forge.pending(1)
    forge.request("cancel", 1, 500, "cancelled")


@breach("ran after cancelled", "an event says that it was cancelled, but it is delayed")
def a_cancel_with_only_its_event(forge: Forge) -> None:
    forge.pending(1)
    forge.asks("cancel", 1, 500)
    forge.event(1, Outcome.CANCELLED, done=501)


@breach("ran after cancelled", "attempts [1] started after it was cancelled")
def started_after_the_answer_to_a_cancel(forge: Forge) -> None:
    forge.cancelled(1)
    forge.attempt(1, 1_000, Outcome.EXPIRED)
    forge.evidence.rows[-1].attempt = 1


@breach("ran after cancelled", "attempts [2] started after it was cancelled")
def started_after_a_cancel_without_an_answer(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=1_500)
    forge.asks("cancel", 1, 1_100)
    forge.event(1, Outcome.CANCELLED, attempt=1, done=1_101)
    forge.attempt(1, 1_500, Outcome.EXPIRED, attempt=2, due=1_500)
    forge.row(1, State.CANCELLED, attempt=2)


@breach("ran after cancelled", "it was cancelled, but its effect exists")
def an_effect_of_a_cancelled_job(forge: Forge) -> None:
    forge.cancelled(1)
    forge.effect(1)


@breach("ran after cancelled", "it was cancelled, but its effect exists")
def an_effect_of_a_fenced_attempt(forge: Forge) -> None:
    forge.fenced(1)
    forge.effect(1)


@breach("ran after cancelled", "attempts [2] started after it was cancelled")
def started_again_after_it_was_fenced(forge: Forge) -> None:
    forge.fenced(1)
    forge.attempt(1, 6_000, Outcome.EXPIRED, attempt=2)
    forge.evidence.rows[-1].attempt = 2


@breach("lost fence", "attempts [1] ended more than once")
def a_late_end_of_a_fenced_attempt(forge: Forge) -> None:
    forge.fenced(1)
    forge.event(1, Outcome.FAILED, attempt=1, reserved=1_000, done=1_200)


@breach("ran after cancelled", "it is cancelled, but the event is missing")
def a_cancel_without_its_event(forge: Forge) -> None:
    forge.promised(1)
    forge.request("cancel", 1, 500, "cancelled")
    forge.row(1, State.CANCELLED)


@breach("lost fence", "it was finished by attempts [1, 2]")
def two_finishes(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FINISHED)
    forge.finished(1, attempt=2, ms=6_000)


@breach("lost fence", "consumers were told that attempts [1] finished it, but the events say [2]")
def a_late_finisher_over_http_that_was_accepted(forge: Forge) -> None:
    forge.promised(1, topic="torture.http")
    forge.attempt_over_http(1, 1_000, Outcome.EXPIRED)
    forge.attempt_over_http(1, 6_000, Outcome.FINISHED, attempt=2)
    forge.write("finishes", 6_100, job=1, attempt=1)
    forge.row(1, State.FINISHED, attempt=2, topic="torture.http")


@breach("lost fence", "attempt 1 finished it, but it is delayed")
def a_finish_that_is_undone(forge: Forge) -> None:
    forge.pending(1, due=ENDS_MS - 100)
    forge.attempt(1, ENDS_MS - 100, Outcome.FINISHED, due=ENDS_MS - 100)
    forge.effect(1)
    forge.evidence.rows[-1].attempt = 1


@breach("lost fence", "attempt 1 finished it after attempt 2 had started")
def a_late_finisher_that_was_accepted(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FINISHED)
    forge.attempt(1, 6_000, Outcome.EXPIRED, attempt=2)
    forge.effect(1)
    forge.row(1, State.FINISHED, attempt=2)


@breach("lost fence", "there is an effect of attempts [1], but attempts [2] finished it")
def an_effect_of_the_wrong_attempt(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.EXPIRED)
    forge.attempt(1, 6_000, Outcome.FINISHED, attempt=2)
    forge.effect(1, attempt=1)
    forge.row(1, State.FINISHED, attempt=2)


@breach("lost fence", "there is an effect of attempts [1], but attempts [] finished it")
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


@breach("lost fence", "attempt 2 started, but the last attempt of the row is 1")
def an_attempt_that_the_row_does_not_count(forge: Forge) -> None:
    forge.done(1)
    forge.begins(1, 6_000, attempt=2)


@breach("lost fence", "attempts [1] ended more than once")
def two_ends_of_one_attempt(forge: Forge) -> None:
    forge.done(1)
    forge.event(1, Outcome.EXPIRED, attempt=1, reserved=1_000, done=6_000)


@breach("lost fence", "attempts [1] began, but have no event of their end")
def an_attempt_without_an_end(forge: Forge) -> None:
    forge.promised(1)
    forge.begins(1, 1_005)
    forge.finished(1, attempt=2, ms=2_000)


@breach("lost fence", "attempt 1 has ended, but still holds the lease")
def a_lease_that_outlives_its_attempt(forge: Forge) -> None:
    forge.held(1)
    forge.event(1, Outcome.RELEASED, attempt=1, due=ENDS_MS - 2_000, reserved=ENDS_MS - 2_000, done=ENDS_MS - 1_000)
