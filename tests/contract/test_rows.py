"""What the tables refuse, whoever writes to them."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from delaytasks import states
from delaytasks.models import STATE_CHOICES, Job, JobEvent
from delaytasks.states import State


def row(**changes: Any) -> Job:
    now = timezone.now()
    return Job(**({"topic": "t", "key": "k", "due_at": now, "ttr_ms": 1000, "created_at": now} | changes))


def ended() -> dict[str, Any]:
    return {"ended_at": timezone.now()}


REFUSED = {
    "ready, which is never stored": {"state": State.READY},
    "a state that nobody knows": {"state": 99},
    "live and ended at once": {"state": State.DELAYED, "ended_at": timezone.now()},
    "finished without an end": {"state": State.FINISHED},
    "reserved without a lease": {"state": State.RESERVED, "attempt": 1},
    "reserved without an attempt": {"state": State.RESERVED, "lease_until": timezone.now()},
    "a lease that nobody holds": {"lease_until": timezone.now()},
    "no time to run": {"ttr_ms": 0},
    "dead without a time of death": {"state": State.DEAD, "ended_at": timezone.now()},
    "finished and died": {"state": State.FINISHED, "ended_at": timezone.now(), "died_at": timezone.now()},
    "more failures than attempts": {"attempt": 1, "failures": 2},
    "an empty key": {"key": ""},
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_database_refuses(what):
    with pytest.raises(IntegrityError), transaction.atomic():
        row(**REFUSED[what]).save(force_insert=True)
    assert not Job.objects.exists()


def test_one_live_job_per_topic_and_key_and_any_number_of_ended_ones():
    row().save()
    row(state=State.FINISHED, **ended()).save()
    row(state=State.DEAD, died_at=timezone.now(), **ended()).save()
    with pytest.raises(IntegrityError), transaction.atomic():
        row().save()
    assert Job.objects.count() == 3


def test_events_are_append_only():
    for do in (
        lambda: JobEvent().save(),
        lambda: JobEvent().delete(),
        lambda: JobEvent.objects.update(error=""),
        lambda: JobEvent.objects.all().delete(),
    ):
        with pytest.raises(TypeError, match="append-only"):
            do()


def test_the_choices_and_the_one_list_of_states_agree():
    assert [value for value, _ in STATE_CHOICES] == list(states.STORED)
    assert [str(label) for _, label in STATE_CHOICES] == [state.word for state in states.STORED]


def test_people_see_ready_where_delayed_is_stored_and_its_time_has_come():
    now = timezone.now()
    job = row(due_at=now)
    assert job.shown_state(now) is State.READY
    assert job.shown_state(now - timezone.timedelta(seconds=1)) is State.DELAYED
    job.save()
    assert Job.objects.in_state(State.READY, timezone.now()).count() == 1
    assert Job.objects.in_state(State.DELAYED, timezone.now()).count() == 0


@pytest.mark.parametrize("prefix", ["order:", "order:10%", "order_", "Order:", "orde\\r"])
def test_a_key_prefix_finds_exactly_what_begins_with_it(prefix):
    keys = ["order:1", "order:10%off", "order_x", "Order:1", "orde\\r", "shipment:order:1"]
    for key in keys:
        row(key=key).save()
    found = Job.objects.key_starts(prefix, topics=["t"]).values_list("key", flat=True)
    assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))
