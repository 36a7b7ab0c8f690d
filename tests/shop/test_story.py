"""What the terminal says about a promise."""

from datetime import timedelta

import pytest
from django.utils import timezone

from delaytasks import cancel, clock, reschedule
from delaytasks.models import JobEvent
from delaytasks.states import Outcome
from project.shop import story
from project.shop.models import Order, Refund
from project.shop.services import ask_refund, pay_order
from project.shop.timeouts import close_unpaid_order


def event_of(row, topic, outcome, **more):
    """An event as the engine writes it: the attempt began 4 ms after the job was due."""
    from delaytasks.models import Job

    job = Job.objects.get(topic=topic, key=row.key)
    due_ms = clock.to_ms(job.due_at)
    values = {"reserved_ms": due_ms + 4, "done_ms": due_ms + 6} | more
    return JobEvent(job=job, outcome=outcome, attempt=1, due_ms=due_ms, **values)


@pytest.fixture
def teller():
    return story.Teller(since_ms=0)


def test_a_close_says_what_was_over_and_how_late_it_was(order, handed, teller):
    close_unpaid_order(handed(order=order.pk))

    told = teller.tell(event_of(order, "order.close", "finished"))

    assert told == f"order {order.pk} closed: its 30 min were over; 4 ms late"


def test_in_a_replay_the_time_is_the_shops(order, handed):
    Order.objects.filter(pk=order.pk).update(pay_by=order.created_at + timedelta(seconds=0.5))
    close_unpaid_order(handed(order=order.pk))

    told = story.Teller(since_ms=0, speed=3600).tell(event_of(order, "order.close", "finished"))

    assert told == f"order {order.pk} closed: its 30 min were over; 4 ms late"


def test_what_fell_due_while_the_shop_was_shut_is_not_called_late(order, handed):
    close_unpaid_order(handed(order=order.pk))

    told = story.Teller(since_ms=clock.to_ms(order.pay_by) + 60_000).tell(event_of(order, "order.close", "finished"))

    assert told.endswith("it fell due while the shop was shut")


def test_a_payment_says_what_was_called_off(order, teller):
    payment = pay_order(order.pk)
    payment.paid_at = order.created_at + timedelta(seconds=6.2)
    payment.save()

    told = teller.tell(event_of(order, "order.close", "cancelled", reserved_ms=None))

    assert told == f"order {order.pk} paid after 6.2 s: its close was called off"


def test_a_payment_at_the_last_moment_is_told_as_such(order, handed, teller):
    pay_order(order.pk)
    close_unpaid_order(handed(order=order.pk))

    assert "it stays paid" in teller.tell(event_of(order, "order.close", "finished"))


def test_what_a_person_did_names_the_person(order, teller):
    cancel("order.close", key=order.key, by="ada")

    told = teller.tell(JobEvent.objects.select_related("job").get())

    assert told == f"order {order.pk}: order.close was called off by ada"


def test_a_job_that_was_moved_says_where_to(order, teller):
    due_at = timezone.now() + timedelta(hours=3)
    reschedule("order.close", order.key, due_at=due_at, by="ada")

    told = teller.tell(JobEvent.objects.select_related("job").get())

    assert told == f"order {order.pk}: order.close was moved, runs at {story.at(due_at)} by ada"


def test_a_failure_shows_the_last_line_of_its_error(order, teller):
    failed = event_of(order, "order.close", "failed", error="Traceback\n  ...\nKeyError: 'order'\n", next_due_ms=None)

    assert teller.tell(failed) == f"order {order.pk}: order.close failed, tried again (KeyError: 'order')"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Refund.State.SETTLED, "the gateway says settled: done; 4 ms late"),
        (Refund.State.FAILED, "the gateway says failed: done; 4 ms late"),
        (Refund.State.NEEDS_A_PERSON, "no decision in time: marked for a person; 4 ms late"),
    ],
)
def test_the_end_of_a_refund_says_how_it_ended(order, teller, state, words):
    pay_order(order.pk)
    refund = ask_refund(order.pk)
    refund.end(state)

    assert teller.tell(event_of(refund, "refund.check", "finished")) == f"refund {refund.pk}: {words}"


def test_a_hanging_gateway_is_told_with_how_long_it_was_waited_for(order, teller):
    pay_order(order.pk)
    refund = ask_refund(order.pk)
    due_ms = clock.to_ms(refund.created_at)
    snoozed = event_of(refund, "refund.check", "snoozed", reserved_ms=due_ms, done_ms=due_ms + 3100, next_due_ms=due_ms)

    assert f"refund {refund.pk}: no decision yet after 3.1 s of waiting; asked again at " in teller.tell(snoozed)


@pytest.mark.parametrize("outcome", Outcome)
def test_there_are_words_for_whatever_callers_over_http_do_to_a_job(order, teller, outcome):
    event = event_of(order, "order.close", outcome.value, actor="php", next_due_ms=1_893_456_000_000)

    for body in ({"order": order.pk}, {"order": "seven"}, {}, [], None, "text"):
        event.job.body = body
        assert f"order {order.pk}" in teller.tell(event)


def test_each_event_is_read_once(order, customer, tea):
    from project.shop.services import place_order

    reader = story.EventReader()
    pay_order(order.pk)
    first, nothing = reader.read(), reader.read()
    pay_order(place_order(customer, [(tea, 1)]).pk)
    second = reader.read()

    assert [event.job.key for event in first + second] == [order.key, f"order:{order.pk + 1}"]
    assert nothing == []


def test_what_happened_before_is_not_read(order):
    pay_order(order.pk)

    assert story.EventReader().read() == []


@pytest.mark.parametrize(
    ("seconds", "words"),
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
def test_a_length_of_time_reads_well(seconds, words):
    assert story.length(timedelta(seconds=seconds)) == words
