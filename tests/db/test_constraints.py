"""Rows that the database constraints refuse."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from delaytasks import states
from delaytasks.models import STATE_CHOICES, Job, JobEvent
from delaytasks.states import State

pytestmark = pytest.mark.usefixtures("transactional_db")


def row(**changes: Any) -> Job:
    now = timezone.now()
    return Job(**({"topic": "t", "key": "k", "due_at": now, "ttr_ms": 1000, "created_at": now} | changes))


def ended() -> dict[str, Any]:
    return {"ended_at": timezone.now()}


REFUSED = {
    "ready, which is never stored": {"state": State.READY},
    "an unknown state": {"state": 99},
    "live and ended": {"state": State.DELAYED, "ended_at": timezone.now()},
    "finished without ended_at": {"state": State.FINISHED},
    "reserved without a lease": {"state": State.RESERVED, "attempt": 1},
    "reserved without an attempt": {"state": State.RESERVED, "lease_until": timezone.now()},
    "a lease without an attempt": {"lease_until": timezone.now()},
    "a TTR of 0": {"ttr_ms": 0},
    "dead without died_at": {"state": State.DEAD, "ended_at": timezone.now()},
    "finished with died_at": {"state": State.FINISHED, "ended_at": timezone.now(), "died_at": timezone.now()},
    "more failures than attempts": {"attempt": 1, "failures": 2},
    "an empty key": {"key": ""},
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_database_refuses(case):
    with pytest.raises(IntegrityError), transaction.atomic():
        row(**REFUSED[case]).save(force_insert=True)
    assert not Job.objects.exists()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("column", ["due_at", "declared_due"])
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "12000-01-01"])
def test_the_database_refuses_a_due_time_that_python_cannot_read(column: str, moment: str) -> None:
    """One such job kept all others from running."""
    row().save()
    with pytest.raises(IntegrityError), connection.cursor() as cursor:
        cursor.execute(f"UPDATE delaytasks_job SET {column} = %s", [moment])
    row(key="far", due_at=datetime.max.replace(tzinfo=UTC), declared_due=datetime.min.replace(tzinfo=UTC)).save()


def test_one_live_job_per_topic_and_key_and_any_number_of_ended_ones():
    row().save()
    row(state=State.FINISHED, **ended()).save()
    row(state=State.DEAD, died_at=timezone.now(), **ended()).save()
    with pytest.raises(IntegrityError), transaction.atomic():
        row().save()
    assert Job.objects.count() == 3


def test_events_are_append_only():
    for write in (
        lambda: JobEvent().save(),
        lambda: JobEvent().delete(),
        lambda: JobEvent.objects.update(error=""),
        lambda: JobEvent.objects.all().delete(),
    ):
        with pytest.raises(TypeError, match="append-only"):
            write()


def test_the_model_choices_agree_with_the_list_of_states():
    assert [value for value, _ in STATE_CHOICES] == list(states.STORED)
    assert [str(label) for _, label in STATE_CHOICES] == [state.word for state in states.STORED]


def test_a_job_stored_as_delayed_is_shown_as_ready_after_its_due_time():
    now = timezone.now()
    job = row(due_at=now)
    assert job.shown_state(now) is State.READY
    assert job.shown_state(now - timezone.timedelta(seconds=1)) is State.DELAYED
    job.save()
    assert Job.objects.in_state(State.READY, timezone.now()).count() == 1
    assert Job.objects.in_state(State.DELAYED, timezone.now()).count() == 0


@pytest.mark.parametrize("prefix", ["order:", "order:10%", "order_", "Order:", "orde\\r"])
def test_a_key_prefix_finds_exactly_the_keys_that_begin_with_it(prefix):
    keys = ["order:1", "order:10%off", "order_x", "Order:1", "orde\\r", "shipment:order:1"]
    for key in keys:
        row(key=key).save()
    found = Job.objects.key_starts(prefix, topics=["t"]).values_list("key", flat=True)
    assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))
