"""Rows that the database constraints refuse."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from delaytasks import states
from delaytasks.models import STATE_CHOICES, Job, JobEvent
from delaytasks.states import State
from tests.support.notices import collected_notices

pytestmark = pytest.mark.usefixtures("transactional_db")


def row(**changes: Any) -> Job:
    now = timezone.now()
    return Job(**({"topic": "t", "key": "k", "due_at": now, "ttr_ms": 1000, "created_at": now} | changes))


def ended() -> dict[str, Any]:
    return {"ended_at": timezone.now()}


NOW = {"ended_at": timezone.now(), "lease_until": timezone.now(), "died_at": timezone.now()}


def at(*columns: str, **others: Any) -> dict[str, Any]:
    """Return values of a row: a time for each of these columns, and others."""
    return {column: NOW[column] for column in columns} | others


# Each row breaks one rule. The former constraint of the rule is the first word.
REFUSED: dict[str, dict[str, Any]] = {
    "state_known: ready, which is never stored": {"state": State.READY},
    "state_known: an unknown state": {"state": 99},
    "state_known: an unknown state that has ended": at("ended_at", state=0),
    "live_or_ended: delayed and ended": at("ended_at", state=State.DELAYED),
    "live_or_ended: reserved and ended": at("ended_at", "lease_until", state=State.RESERVED, attempt=1),
    "live_or_ended: finished without ended_at": {"state": State.FINISHED},
    "live_or_ended: cancelled without ended_at": {"state": State.CANCELLED},
    "live_or_ended: dead without ended_at": at("died_at", state=State.DEAD),
    "lease_if_reserved: reserved without a lease": {"state": State.RESERVED, "attempt": 1},
    "lease_if_reserved: reserved without an attempt": at("lease_until", state=State.RESERVED),
    "lease_if_reserved: delayed with a lease": at("lease_until", attempt=1),
    "lease_if_reserved: finished with a lease": at("lease_until", "ended_at", state=State.FINISHED, attempt=1),
    "died_if_dead: dead without died_at": at("ended_at", state=State.DEAD),
    "died_if_dead: finished with died_at": at("ended_at", "died_at", state=State.FINISHED),
    "died_if_dead: delayed with died_at": at("died_at"),
    "sane: a TTR of 0": {"ttr_ms": 0},
    "sane: a negative TTR": {"ttr_ms": -1},
    "sane: more failures than attempts": {"attempt": 1, "failures": 2},
    "sane: negative failures": {"failures": -1},
    "sane: negative attempts": {"attempt": -1},
    "sane: an empty key": {"key": ""},
    "priority_known: a negative priority": {"priority": -1},
    "priority_known: a priority above the highest": {"priority": states.MAX_PRIORITY + 1},
}
ACCEPTED: list[dict[str, Any]] = [
    {},
    {"attempt": 3, "failures": 3, "priority": states.MAX_PRIORITY},
    at("lease_until", state=State.RESERVED, attempt=1),
    at("ended_at", state=State.FINISHED, attempt=1),
    at("ended_at", state=State.CANCELLED),
    at("ended_at", "died_at", state=State.DEAD),
]


@pytest.mark.parametrize("case", REFUSED)
def test_the_database_refuses(case):
    with pytest.raises(IntegrityError, match="delaytasks_job_valid"), transaction.atomic():
        row(**REFUSED[case]).save(force_insert=True)
    assert not Job.objects.exists()


@pytest.mark.parametrize("case", REFUSED)
def test_a_change_to_a_row_that_would_be_refused_is_refused(case):
    row().save()
    with pytest.raises(IntegrityError, match="delaytasks_job_valid"), transaction.atomic():
        Job.objects.update(**REFUSED[case])


@pytest.mark.parametrize("changes", ACCEPTED, ids=lambda changes: "-".join(changes) or "delayed")
def test_the_database_accepts_each_stored_state(changes):
    row(**changes).save(force_insert=True)
    Job.objects.get().validate_constraints()


@pytest.mark.parametrize("case", REFUSED)
def test_django_validates_the_constraint_without_writing(case):
    with pytest.raises(ValidationError, match="delaytasks_job_valid"):
        row(**REFUSED[case]).validate_constraints()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"state": 99}, "its state is unknown"),
        ({"priority": 10}, "its priority is not between 0 and 9"),
        ({"key": ""}, "its key is empty"),
        (at("died_at"), "it has died_at if, and only if, it is dead"),
    ],
)
def test_postgresqls_log_says_which_rule_a_refused_row_breaks(changes: dict[str, Any], rule: str) -> None:
    """Its default is to log warnings."""
    with collected_notices() as notices, pytest.raises(IntegrityError), transaction.atomic():
        row(**changes).save()
    assert [text.rpartition(": ")[2] for text in notices] == [rule]


# Two priorities, and six pairs of attempts and failures in each of five states, but not 0 attempts of a reserved job.
VALID_COMBINATIONS = 2 * (5 * 6 - 1)


@pytest.mark.only_on("postgresql")
def test_the_function_and_the_models_condition_refuse_the_same_rows() -> None:
    """Compared for all combinations of the columns' values, on both sides of each limit."""
    constraint = next(each for each in Job._meta.constraints if each.name == "delaytasks_job_valid")
    with connection.schema_editor() as editor:
        condition = constraint._get_check_sql(Job, editor)
    values = {
        "state": "generate_series(0, 7)", "attempt": "generate_series(-1, 2)", "failures": "generate_series(-1, 2)",
        "priority": "unnest(ARRAY[-1, 0, 9, 10])", "ttr_ms": "generate_series(0::bigint, 1)",
        "key": "unnest(ARRAY['', 'k'])", **dict.fromkeys(NOW, "unnest(ARRAY[NULL, now()])"),
    }  # fmt: skip
    rows = " CROSS JOIN ".join(f'{sql} AS "_{column}"("{column}")' for column, sql in values.items())
    called = (
        "delaytasks_job_is_valid("
        "state, attempt, failures, priority, ttr_ms, key, now(), NULL, lease_until, ended_at, died_at)"
    )
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL client_min_messages = error")
        cursor.execute(
            f"SELECT count(*), count(*) FILTER (WHERE {called}), count(*) FILTER (WHERE {called} <> {condition}) "
            f"FROM {rows}"
        )
        assert cursor.fetchone() == (8 * 4**3 * 2**5, VALID_COMBINATIONS, 0)


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


@pytest.mark.parametrize("prefix", ["order:", "order:10%", "order_", "Order:", "orde\\r", "last"])
def test_a_key_prefix_finds_exactly_the_keys_that_begin_with_it(prefix):
    keys = ["order:1", "order:10%off", "order_x", "Order:1", "orde\\r", "shipment:order:1"]
    keys += ["last", "last\U0010ffff:1", "last".ljust(255, "\U0010ffff"), "lasu"]
    for key in keys:
        row(key=key).save()
    found = Job.objects.key_starts(prefix, topics=["t"]).values_list("key", flat=True)
    assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))
