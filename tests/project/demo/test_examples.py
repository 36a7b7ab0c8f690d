"""The other timeouts of the shop in the demo."""

from collections import Counter
from datetime import timedelta

import pytest

from delaytasks.models import Job
from delaytasks.states import State
from project.demo import examples
from project.demo.simulation import ensure_shop
from project.shop.models import Device, Message, Ticket
from project.shop.tickets import answer


@pytest.fixture
def demo(timeouts, fake_gateway):
    lines: list[str] = []
    return examples.Examples(*ensure_shop(), lines.append), lines


def test_the_rounds_play_every_example_and_one_topic_fails_retries_and_dies(timeouts, demo, settings):
    played, lines = demo
    outcomes: Counter[tuple[str, str]] = Counter()
    for _ in range(6):
        played.play()
        timeouts.reconcile()  # in place of the triggers
        outcomes.update((run.topic, run.outcome) for run in timeouts.advance(seconds=examples.ROUND_SECONDS))
    outcomes.update((run.topic, run.outcome) for run in timeouts.advance(days=16))

    assert outcomes["device.tell", "finished"] == outcomes["device.tell", "dead"] == 6
    assert outcomes["device.tell", "failed"] == 12
    assert outcomes["lesson.remind", "finished"] == 6
    assert outcomes["ticket.escalate", "finished"] == 1  # of the last ticket; the others were answered
    assert outcomes["ticket.answer", "finished"] == 3  # two warnings and the breach
    assert set(Message.objects.values_list("kind", flat=True)) == set(Message.Kind) - {"review"}
    assert any("is postponed by 6 s" in line for line in lines)
    assert Device.objects.get(name="old kettle").told_at is None
    assert Job.objects.filter(state=State.DEAD).values_list("topic", flat=True).distinct().get() == "device.tell"


def test_a_moved_lesson_is_announced_later(timeouts, demo):
    played, _ = demo
    played.play()
    job = Job.objects.get(topic="lesson.remind")
    timeouts.advance(seconds=examples.ROUND_SECONDS)
    played.play()
    timeouts.reconcile()

    moved = Job.objects.get(pk=job.pk)
    assert moved.due_at - job.due_at == timedelta(seconds=examples.SOON.seconds)


def test_the_next_run_continues_with_the_same_devices_and_seller(demo):
    examples.Examples(*ensure_shop(), print)
    assert Device.objects.count() == 2


def test_staff_may_answer_the_ticket_and_delete_the_devices_between_two_rounds(timeouts, demo):
    played, lines = demo
    played.play()
    answer(Ticket.objects.get().pk)
    Device.objects.all().delete()
    lines.clear()
    played.play()
    assert [ticket.state for ticket in Ticket.objects.order_by("pk")] == ["answered", "open"]
    assert not any("is answered" in line for line in lines)
