"""Allowed histories that look like a breach."""

from delaytasks.states import Outcome, State

from ..constants import MOST_ATTEMPTS
from . import sound
from .forge import ENDS_MS, Forge


@sound
def nothing_else(forge: Forge) -> None:
    """Only the jobs that all forged evidence has."""


@sound
def a_cancel_without_an_answer_that_took_effect(forge: Forge) -> None:
    forge.promised(1)
    forge.asks("cancel", 1, 500)
    forge.event(1, Outcome.CANCELLED, done=501)
    forge.row(1, State.CANCELLED)


@sound
def a_cancel_without_an_answer_that_took_no_effect(forge: Forge) -> None:
    forge.done(1)
    forge.asks("cancel", 1, 500)


@sound
def a_schedule_without_an_answer_and_without_a_job(forge: Forge) -> None:
    forge.asks("schedule", 1, 0)


@sound
def a_schedule_without_an_answer_and_with_a_job(forge: Forge) -> None:
    forge.promised(1, said="broken")
    forge.finished(1)


@sound
def an_outside_effect_that_happened_twice(forge: Forge) -> None:
    forge.promised(1, topic="torture.http")
    forge.attempt_over_http(1, 1_000, Outcome.EXPIRED)
    forge.attempt_over_http(1, 6_000, Outcome.FINISHED, attempt=2)
    forge.write("finishes", 6_100, job=1, attempt=2)
    forge.row(1, State.FINISHED, attempt=2, topic="torture.http", failures=1)


@sound
def a_late_finisher_that_was_refused(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.EXPIRED, next_due=1_000)
    forge.finished(1, attempt=2, ms=6_000)
    forge.write("ends", 9_000, job=1, attempt=1, how="NoneType")


@sound
def a_retry_after_its_backoff(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=2_000)
    forge.finished(1, attempt=2, due=2_000)
    forge.evidence.rows[-1].failures = 1


@sound
def a_retry_that_was_moved_forward(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=9_000)
    n = forge.asks("run now", 1, 2_000, delay_ms=0)
    forge.answers(n, "moved", 2_002, 1, due=2_001)
    forge.event(1, Outcome.RESCHEDULED, attempt=1, due=9_000, done=2_001, next_due=2_001)
    forge.finished(1, attempt=2, due=2_001)


@sound
def an_attempt_whose_process_was_killed_before_the_handler_started(forge: Forge) -> None:
    forge.promised(1)
    forge.event(1, Outcome.EXPIRED, attempt=1, reserved=1_000, done=5_000, next_due=1_000)
    forge.finished(1, attempt=2, ms=5_100)


@sound
def an_attempt_that_was_handed_back_before_the_handler_was_called(forge: Forge) -> None:
    forge.promised(1)
    forge.finished(1, attempt=2, ms=1_200)


@sound
def a_key_that_was_used_again(forge: Forge) -> None:
    forge.done(1)
    n = forge.asks("schedule", 1, 3_000, delay_ms=1_000)
    forge.answers(n, "scheduled", 3_002, 2, due=4_000)
    forge.finished(2, due=4_000)
    forge.evidence.rows[-1].key = "k1"


@sound
def a_job_that_was_replaced_by_a_later_one(forge: Forge) -> None:
    forge.promised(1)
    n = forge.asks("schedule", 1, 500, delay_ms=2_500)
    forge.answers(n, "moved", 502, 1, due=3_000)
    forge.event(1, Outcome.RESCHEDULED, done=501, next_due=3_000)
    forge.finished(1, due=3_000)


@sound
def a_move_that_is_under_way_while_the_job_begins(forge: Forge) -> None:
    """Its answer comes after the job has started; until then the old due time may be valid."""
    forge.promised(1)
    n = forge.asks("move", 1, 990, delay_ms=5_000)
    forge.finished(1)
    forge.answers(n, "refused", 1_010, 1, why="Reserved")


@sound
def a_move_back_and_forth_whose_answers_were_lost(forge: Forge) -> None:
    forge.promised(1, due=9_000)
    forge.answers(forge.asks("move", 1, 500, delay_ms=100), "broken", 502, 1)
    forge.finished(1, due=700)


@sound
def a_batch_that_failed_and_ran_again_one_by_one(forge: Forge) -> None:
    forge.begins(1, 1_002)
    forge.done(1)


@sound
def a_job_that_was_cancelled_after_a_failed_attempt(forge: Forge) -> None:
    forge.promised(1)
    forge.attempt(1, 1_000, Outcome.FAILED, next_due=2_000)
    forge.request("cancel", 1, 1_500, "cancelled")
    forge.event(1, Outcome.CANCELLED, attempt=1, due=2_000, done=1_501)
    forge.row(1, State.CANCELLED, attempt=1, due=2_000, failures=1)


@sound
def a_job_that_was_cancelled_twice(forge: Forge) -> None:
    forge.cancelled(1)
    forge.request("cancel", 1, 600, "cancelled")


@sound
def a_running_job_that_was_fenced(forge: Forge) -> None:
    forge.fenced(1)
    forge.write("ends", 1_200, job=1, attempt=1, how="NoneType")


@sound
def a_job_that_was_fenced_between_its_claim_and_the_call_of_its_handler(forge: Forge) -> None:
    forge.fenced(1, begins=1_104)


@sound
def a_cancel_of_a_running_job_and_of_an_ended_one(forge: Forge) -> None:
    forge.done(1)
    forge.request("cancel", 1, 1_010, "running")
    forge.request("cancel", 1, 1_500, "already finished")
    forge.request("move", 1, 1_600, "refused", why="NotLive")


@sound
def a_job_that_used_up_its_attempts(forge: Forge) -> None:
    forge.promised(1)
    for attempt in range(1, MOST_ATTEMPTS):
        forge.attempt(1, attempt * 1_000, Outcome.EXPIRED, attempt=attempt)
    forge.attempt(1, MOST_ATTEMPTS * 1_000, Outcome.DEAD, attempt=MOST_ATTEMPTS)
    forge.row(1, State.DEAD, attempt=MOST_ATTEMPTS, failures=MOST_ATTEMPTS)


@sound
def an_entry_that_is_too_early(forge: Forge) -> None:
    forge.pending(1)
    forge.evidence.places[-1].score -= 50_000  # type: ignore[index]


@sound
def a_ready_entry_of_a_job_that_was_moved_later(forge: Forge) -> None:
    forge.pending(1)
    forge.evidence.places[-1].ready = True  # type: ignore[index]


@sound
def a_job_beyond_the_horizon_that_is_not_in_the_mirror(forge: Forge) -> None:
    forge.pending(1, due=ENDS_MS + 3_600_001)
    forge.evidence.places.pop()  # type: ignore[union-attr]


@sound
def no_mirror_at_all(forge: Forge) -> None:
    forge.evidence.places = None


@sound
def a_bulk_call_without_any_job(forge: Forge) -> None:
    for job in (1, 2):
        forge.asks("schedule", job, 0, group="together")


@sound
def a_bulk_call_without_an_answer_and_with_its_jobs(forge: Forge) -> None:
    for job in (1, 2):
        forge.answers(forge.asks("schedule", job, 0, delay_ms=1_000, group="together"), "broken", 500)
        forge.finished(job)


@sound
def a_request_that_the_next_primary_answers_by_an_earlier_clock(forge: Forge) -> None:
    """Asked at 1,480, before the clock jumped back, and done at 1,600, which is 1,200 by the new clock."""
    forge.evidence.jumps = ((1_500_000_000, -400_000_000), (50_000_000_000, 400_000_000))
    forge.promised(1, due=2_000)
    n = forge.asks("run now", 1, 1_480, delay_ms=0)
    forge.answers(n, "moved", 1_602, 1, due=1_200)
    forge.begins(1, 1_610, due=1_200)["now_ms"] -= 400
    forge.event(1, Outcome.FINISHED, attempt=1, due=1_200, reserved=1_206, done=1_220)
    forge.effect(1, ms=1_215)
    forge.row(1, State.FINISHED, attempt=1, due=1_200)


@sound
def a_group_that_was_rolled_back_and_handed_back(forge: Forge) -> None:
    topic = "torture.together"
    forge.promised(1, topic=topic)
    forge.begins(1, 1_005, topic=topic)
    forge.begins(1, 1_505, attempt=2, topic=topic)
    forge.event(1, Outcome.FINISHED, attempt=2, reserved=1_500, done=1_520)
    forge.effect(1, attempt=2, ms=1_515)
    forge.row(1, State.FINISHED, attempt=2, topic=topic)


@sound
def an_overdue_job_that_is_to_run_now_when_the_clock_jumps_back(forge: Forge) -> None:
    """It was due at 1,000 and keeps that due time. It begins at 1,850, which is 1,450 by the new clock."""
    forge.evidence.jumps = ((1_500_000_000, -400_000_000), (50_000_000_000, 400_000_000))
    forge.promised(1)
    forge.answers(forge.asks("run now", 1, 1_490, delay_ms=0), "moved", 1_492, 1, due=1_000)
    forge.begins(1, 1_850)["now_ms"] -= 400
    forge.event(1, Outcome.FINISHED, attempt=1, reserved=1_446, done=1_460)
    forge.effect(1, ms=1_455)
    forge.row(1, State.FINISHED, attempt=1)
