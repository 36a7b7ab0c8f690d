"""The description of job events in the terminal."""

from datetime import timedelta

import pytest
from django.utils import timezone

from delaytasks import cancel, clock, reschedule
from delaytasks.models import JobEvent
from delaytasks.states import Outcome
from project.demo import narrator
from project.shop.models import Order, Refund
from project.shop.services import pay_order, request_refund


def make_event(row, topic, outcome, **columns):
    """Return an event as the engine writes it; the attempt began 4 ms after the due time."""
    from delaytasks.models import Job

    job = Job.objects.get(topic=topic, key=row.key)
    due_ms = clock.to_ms(job.due_at)
    values = {"reserved_ms": due_ms + 4, "done_ms": due_ms + 6} | columns
    return JobEvent(job=job, outcome=outcome, attempt=1, due_ms=due_ms, **values)


@pytest.fixture
def describe():
    return narrator.Narrator(since_ms=0).describe


def test_a_close_says_the_time_to_pay_and_its_lateness(order, describe):
    order.close()

    text = describe(make_event(order, "order.close", "finished"))

    assert text == f"order {order.pk} closed: not paid within 30 min; 4 ms late"


def test_a_replay_uses_the_shops_time(order):
    Order.objects.filter(pk=order.pk).update(pay_by=order.created_at + timedelta(seconds=0.5))
    order.close()

    text = narrator.Narrator(since_ms=0, speed=3600).describe(make_event(order, "order.close", "finished"))

    assert text == f"order {order.pk} closed: not paid within 30 min; 4 ms late"


def test_a_job_due_before_the_start_has_no_lateness(order):
    order.close()

    text = narrator.Narrator(since_ms=clock.to_ms(order.pay_by) + 60_000).describe(
        make_event(order, "order.close", "finished")
    )

    assert text.endswith("it fell due while the shop was not running")


def test_a_payment_says_that_the_close_was_cancelled(order, describe):
    payment = pay_order(order.pk)
    payment.paid_at = order.created_at + timedelta(seconds=6.2)
    payment.save()

    text = describe(make_event(order, "order.close", "cancelled", reserved_ms=None))

    assert text == f"order {order.pk} paid after 6.2 s; close cancelled"


def test_a_payment_at_the_last_moment_is_described_as_such(order, describe):
    pay_order(order.pk)

    assert "it stays paid" in describe(make_event(order, "order.close", "skipped"))


def test_a_cancellation_names_the_user(order, describe):
    cancel("order.close", key=order.key, by="ada")

    text = describe(JobEvent.objects.select_related("job").get())

    assert text == f"order {order.pk}: order.close was cancelled by ada"


def test_a_rescheduled_job_says_its_new_due_time(order, describe):
    due_at = timezone.now() + timedelta(hours=3)
    reschedule("order.close", order.key, due_at=due_at, by="ada")

    text = describe(JobEvent.objects.select_related("job").get())

    assert text == f"order {order.pk}: order.close was rescheduled to run at {narrator.format_time(due_at)} by ada"


def test_a_failure_shows_the_last_line_of_its_error(order, describe):
    failed = make_event(order, "order.close", "failed", error="Traceback\n  ...\nKeyError: 'order'\n", next_due_ms=None)

    assert describe(failed) == f"order {order.pk}: order.close failed, will be retried (KeyError: 'order')"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (Refund.State.SETTLED, "settled by the gateway; 4 ms late"),
        (Refund.State.FAILED, "declined by the gateway; 4 ms late"),
        (Refund.State.NEEDS_REVIEW, "no decision in time, needs review; 4 ms late"),
    ],
)
def test_the_end_of_a_refund_says_how_it_ended(order, describe, state, text):
    pay_order(order.pk)
    refund = request_refund(order.pk)
    refund.end(state)

    assert describe(make_event(refund, "refund.check", "finished")) == f"refund {refund.pk}: {text}"


def test_a_hanging_gateway_is_described_with_the_length_of_the_wait(order, describe):
    pay_order(order.pk)
    refund = request_refund(order.pk)
    due_ms = clock.to_ms(refund.created_at)
    snoozed = make_event(
        refund, "refund.check", "snoozed", reserved_ms=due_ms, done_ms=due_ms + 3100, next_due_ms=due_ms
    )

    assert f"refund {refund.pk}: no decision by the gateway after a wait of 3.1 s; next check at " in describe(snoozed)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_text_whatever_the_key_is(order, describe, outcome):
    event = make_event(order, "order.close", outcome.value, actor="php", next_due_ms=1_893_456_000_000)
    assert f"order {order.pk}" in describe(event)

    for key in ("order:seven", "order:", "order", "refund:1", f"order:{10**30}", "order:²"):
        event.job.key = key
        assert key.replace(":", " ") in describe(event)


def test_each_event_is_read_once(order, customer, tea):
    from project.shop.services import place_order

    reader = narrator.EventReader()
    pay_order(order.pk)
    first, empty = reader.read(), reader.read()
    pay_order(place_order(customer, [(tea, 1)]).pk)
    second = reader.read()

    assert [event.job.key for event in first + second] == [order.key, f"order:{order.pk + 1}"]
    assert empty == []


def test_earlier_events_are_not_read(order):
    pay_order(order.pk)

    assert narrator.EventReader().read() == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0018, "1.8 ms"),
        (0, "0 ms"),
        (0.1, "0.1 s"),
        (20, "20 s"),
        (6.24, "6.2 s"),
        (1800, "30 min"),
        (18_540, "5 h 9 min"),
        (63_000_000, "729 days"),
    ],
)
def test_durations_are_formatted_for_reading(seconds, text):
    assert narrator.format_duration(timedelta(seconds=seconds)) == text
