"""Forwarded jobs that are lost, confirmed by nobody, sent under a wrong id or to a topic that stays held."""

from delaytasks.states import Outcome, State

from ..evidence import Hold
from . import breach, sound
from .forge import BEGAN_MS, ENDS_MS, Forge

AMQP, WEBHOOK, RABBIT = "torture.to.amqp", "torture.to.webhook", "torture.to.rabbit"


def _receipt(
    forge: Forge, job: int, ms: int, *, id: int | None = None, confirmed: int | None, topic: str = AMQP
) -> None:
    """A message that a target received at ms, with the id of the job unless another one is given."""
    n = f"r{len(forge.evidence.entries)}"
    forge.write("received", ms, n=n, id=str(job if id is None else id), topic=topic, key=f"k{job}")
    if confirmed is not None:
        forge.write("confirms", confirmed, n=n, topic=topic)


def _sent(forge: Forge, outcome: Outcome, ms: int, done: int, *, attempt: int = 1, next_due: int | None = None) -> None:
    """An attempt of job 1 from ms to done. It was due at ms."""
    forge.event(1, outcome, attempt=attempt, due=ms, reserved=ms, done=done, next_due=next_due)


def _delivered(forge: Forge, *, topic: str = AMQP, id: int | None = None, confirmed: int | None = 1_010) -> None:
    """Scheduled, received by its target, and finished."""
    forge.promised(1, topic=topic)
    _receipt(forge, 1, 1_005, id=id, confirmed=confirmed, topic=topic)
    _sent(forge, Outcome.FINISHED, 1_000, 1_020)
    forge.row(1, State.FINISHED, attempt=1, topic=topic)


@sound
def delivered_and_confirmed(forge: Forge) -> None:
    _delivered(forge)


@sound
def delivered_to_a_broker_whose_confirmation_nobody_records(forge: Forge) -> None:
    _delivered(forge, topic=RABBIT, confirmed=None)


@sound
def taken_and_given_back_because_its_topic_became_held(forge: Forge) -> None:
    forge.promised(1, topic=AMQP)
    forge.request("cancel", 1, 1_003, "running", topic=AMQP)
    _receipt(forge, 1, 8_005, confirmed=8_010)
    _sent(forge, Outcome.FINISHED, 8_000, 8_020)
    forge.row(1, State.FINISHED, attempt=1, topic=AMQP)


@breach("lost", "it is finished, but its target never received it")
def finished_without_a_message(forge: Forge) -> None:
    forge.promised(1, topic=AMQP)
    _sent(forge, Outcome.FINISHED, 1_000, 1_020)
    forge.row(1, State.FINISHED, attempt=1, topic=AMQP)


@breach("unconfirmed", "attempt 1 finished it, but its target had not confirmed a message of that attempt")
def finished_by_a_confirmation_of_another_message(forge: Forge) -> None:
    _delivered(forge, confirmed=None)


@breach("unconfirmed", "attempt 1 finished it, but its target had not confirmed a message of that attempt")
def finished_before_it_was_confirmed(forge: Forge) -> None:
    _delivered(forge, confirmed=9_000)


def _late_and_repeated(forge: Forge, *, confirmed: int | None, id: int | None = None) -> None:
    """The first message is confirmed after the attempt was given up; then it is sent again."""
    forge.promised(1, topic=AMQP)
    _receipt(forge, 1, 1_005, confirmed=4_000)
    _sent(forge, Outcome.SNOOZED, 1_000, 3_000, next_due=8_000)
    _receipt(forge, 1, 8_005, confirmed=confirmed, id=id)
    _sent(forge, Outcome.FINISHED, 8_000, 8_020, attempt=2)
    forge.row(1, State.FINISHED, attempt=2, due=8_000, topic=AMQP)


@sound
def confirmed_too_late_and_sent_again_with_the_same_id(forge: Forge) -> None:
    _late_and_repeated(forge, confirmed=8_010)


@breach("unconfirmed", "attempt 2 finished it, but its target had not confirmed a message of that attempt")
def finished_by_the_late_confirmation_of_an_earlier_attempt(forge: Forge) -> None:
    _late_and_repeated(forge, confirmed=None)


@breach("wrong id", "its target received its message with the id 17")
def a_repetition_with_another_id(forge: Forge) -> None:
    _late_and_repeated(forge, confirmed=8_010)
    _receipt(forge, 1, 8_006, id=17, confirmed=8_011)


@breach("phantom", "its target received a message, but there is no job", job=None)
def a_message_of_a_job_that_was_rolled_back(forge: Forge) -> None:
    forge.answers(forge.asks("rolled back", 1, 0, topic=AMQP, delay_ms=1_000), "rolled back", 2)
    _receipt(forge, 1, 1_005, confirmed=1_010)


@breach("early", "its target received it 400 ms before the requested delay was over")
def received_before_it_was_due(forge: Forge) -> None:
    forge.promised(1, topic=AMQP)
    _receipt(forge, 1, 600, confirmed=610)
    forge.event(1, Outcome.FINISHED, attempt=1, due=600, reserved=600, done=620)
    forge.row(1, State.FINISHED, attempt=1, due=600, topic=AMQP)


def _cancelled(forge: Forge, *, topic: str) -> None:
    """Cancelled after an attempt that was not confirmed. A message comes three seconds after the answer."""
    forge.promised(1, topic=topic)
    _sent(forge, Outcome.SNOOZED, 1_000, 3_000, next_due=8_000)
    forge.request("cancel", 1, 4_000, "cancelled", topic=topic)
    forge.event(1, Outcome.CANCELLED, attempt=1, due=8_000, done=4_001)
    forge.row(1, State.CANCELLED, attempt=1, due=8_000, topic=topic)
    _receipt(forge, 1, 7_002, confirmed=7_003, topic=topic)


@breach("ran after cancelled", "its target received it 3000 ms after its caller was told that it was cancelled")
def received_after_the_answer_to_a_cancel(forge: Forge) -> None:
    _cancelled(forge, topic=AMQP)


@sound
def read_from_a_queue_after_the_answer_to_a_cancel(forge: Forge) -> None:
    _cancelled(forge, topic=RABBIT)


@sound
def received_and_not_confirmed_before_it_was_cancelled(forge: Forge) -> None:
    forge.promised(1, topic=AMQP)
    _receipt(forge, 1, 1_005, confirmed=None)
    _sent(forge, Outcome.SNOOZED, 1_000, 3_000, next_due=8_000)
    forge.request("cancel", 1, 4_000, "cancelled", topic=AMQP)
    forge.event(1, Outcome.CANCELLED, attempt=1, due=8_000, done=4_001)
    forge.row(1, State.CANCELLED, attempt=1, due=8_000, topic=AMQP)


def _failed(forge: Forge, outcome: Outcome, *, topic: str, received: bool, confirmed: int | None = None) -> None:
    """A failure at the first attempt; the second one delivers it."""
    forge.promised(1, topic=topic)
    if received:
        _receipt(forge, 1, 1_005, confirmed=confirmed, topic=topic)
    _sent(forge, outcome, 1_000, 3_000, next_due=4_000)
    _receipt(forge, 1, 4_005, confirmed=4_010, topic=topic)
    _sent(forge, Outcome.FINISHED, 4_000, 4_020, attempt=2)
    forge.row(1, State.FINISHED, attempt=2, due=4_000, topic=topic, failures=1)


NOT_THE_REASON = "attempt 1 was charged a failure, although the job was not the reason"


@breach("charged", NOT_THE_REASON)
def a_failure_for_a_broker_that_was_away(forge: Forge) -> None:
    _failed(forge, Outcome.FAILED, topic=AMQP, received=True)


@breach("charged", NOT_THE_REASON)
def a_failure_for_a_receiver_that_was_away(forge: Forge) -> None:
    _failed(forge, Outcome.FAILED, topic=WEBHOOK, received=False)


@breach("charged", NOT_THE_REASON)
def a_failure_although_the_receiver_had_confirmed(forge: Forge) -> None:
    _failed(forge, Outcome.FAILED, topic=WEBHOOK, received=True, confirmed=1_010)


@breach("charged", NOT_THE_REASON)
def an_attempt_for_which_the_target_took_longer_than_the_ttr(forge: Forge) -> None:
    _failed(forge, Outcome.EXPIRED, topic=WEBHOOK, received=True)


@sound
def a_failure_for_a_receiver_that_took_the_message_and_did_not_answer(forge: Forge) -> None:
    _failed(forge, Outcome.FAILED, topic=WEBHOOK, received=True)


@sound
def a_failure_for_a_receiver_that_confirmed_too_late(forge: Forge) -> None:
    _failed(forge, Outcome.FAILED, topic=WEBHOOK, received=True, confirmed=3_900)


@sound
def a_failure_for_a_target_that_refused_the_job_again_and_took_others(forge: Forge) -> None:
    forge.promised(1, topic=AMQP)
    _sent(forge, Outcome.SNOOZED, 1_000, 1_010, next_due=2_000)
    _sent(forge, Outcome.FAILED, 2_000, 2_010, attempt=2, next_due=4_000)
    _receipt(forge, 1, 4_005, confirmed=4_010)
    _sent(forge, Outcome.FINISHED, 4_000, 4_020, attempt=3)
    forge.row(1, State.FINISHED, attempt=3, due=4_000, topic=AMQP, failures=1)


def _waiting(forge: Forge, *, due: int) -> None:
    """Due at `due`, handed back, and due again after the end."""
    forge.promised(1, topic=AMQP, due=due)
    _sent(forge, Outcome.SNOOZED, due, due + 10, next_due=ENDS_MS + 5_000)
    forge.row(1, State.DELAYED, attempt=1, due=ENDS_MS + 5_000, topic=AMQP)
    forge.place(1, ENDS_MS + 5_000, topic=AMQP)
    forge.evidence.entries = [
        e | {"delay_ms": None, "due_ms": None} if e.get("n") else e for e in forge.evidence.entries
    ]


@breach("stuck", "its topic was held, and 50000 ms after its due time it has not ended")
def a_topic_that_does_not_resume(forge: Forge) -> None:
    _waiting(forge, due=ENDS_MS - 50_000)


@sound
def a_topic_that_was_held_a_moment_ago(forge: Forge) -> None:
    _waiting(forge, due=ENDS_MS - 10_000)


def _held(forge: Forge, *, since: int) -> None:
    _delivered(forge)
    forge.evidence.holds.append(Hold(AMQP, BEGAN_MS + since, "No connection"))


@breach("stuck", "its target confirmed it, but the topic is still held: No connection")
def a_topic_that_is_held_although_its_target_is_back(forge: Forge) -> None:
    _held(forge, since=-500)


@sound
def a_topic_that_was_held_after_its_last_message(forge: Forge) -> None:
    _held(forge, since=1_100)
