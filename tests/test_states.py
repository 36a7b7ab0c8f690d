"""The lifecycle page, the model and the table of moves agree."""

from pathlib import Path

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.utils import timezone

from delaytasks import formatting
from delaytasks.models import Job, JobEvent
from delaytasks.states import ENDED, LIVE, MOVES, STORED, Outcome, State
from tests.support import ci_scripts

lifecycle = ci_scripts.load("lifecycle")
PAGE = Path(__file__).parents[1] / "docs" / "lifecycle.md"


def test_the_lifecycle_page_is_current():
    assert PAGE.read_text() == lifecycle.render(), "make lifecycle"


def test_the_page_shows_every_move_and_every_state():
    page = lifecycle.render()
    for move in MOVES:
        assert f"    {move.before.word} --> {move.after.word}: " in page
        assert move.why in page
    for state in State:
        assert f"| `{state.word}` |" in page


def test_every_state_and_outcome_has_a_label():
    assert set(formatting.STATES) == set(State)
    assert set(formatting.OUTCOMES) == set(Outcome)


def test_the_models_choices_are_the_stored_states():
    assert [value for value, _ in Job._meta.get_field("state").choices] == list(STORED)


def test_the_events_choices_are_the_outcomes():
    assert [value for value, _ in JobEvent._meta.get_field("outcome").choices] == [o.value for o in Outcome]


def test_every_outcome_belongs_to_a_move():
    before_any_move = {Outcome.SCHEDULED}
    assert {move.outcome for move in MOVES} - {None} == set(Outcome) - before_any_move


def test_every_state_can_be_reached_and_every_live_state_can_be_left():
    assert {move.after for move in MOVES} == set(State)
    assert {move.before for move in MOVES} >= set(LIVE)


def test_only_a_dead_job_leaves_its_ended_state():
    assert {(m.before, m.after) for m in MOVES if m.before in ENDED} == {
        (State.DEAD, State.READY), (State.DEAD, State.CANCELLED),
    }  # fmt: skip


def test_a_reserved_job_is_rescheduled_only_by_its_declared_timeout():
    moves = [m for m in MOVES if m.before is State.RESERVED and m.outcome is Outcome.RESCHEDULED]
    assert [m.why for m in moves] == ["the row of its declared timeout has another time now"]


def row(state: int) -> Job:
    """Return a job that satisfies all constraints except perhaps those on the state."""
    now = timezone.now()
    return Job(
        topic="test.topic",
        key=f"state:{state}",
        state=state,
        due_at=now,
        ttr_ms=1000,
        attempt=1,
        created_at=now,
        lease_until=now if state == State.RESERVED else None,
        ended_at=now if state in ENDED else None,
        died_at=now if state == State.DEAD else None,
    )


@pytest.mark.django_db
@pytest.mark.parametrize("state", range(9))
def test_the_database_accepts_only_stored_states(state):
    if state in STORED:
        row(state).save()
        assert Job.objects.get().state == state
        return
    with pytest.raises(IntegrityError), transaction.atomic():
        row(state).save()


@pytest.mark.django_db
def test_the_database_refuses_a_live_state_with_ended_at():
    job = row(State.DELAYED)
    job.ended_at = timezone.now()
    with pytest.raises(IntegrityError), transaction.atomic():
        job.save()


def test_the_check_constraint_is_built_from_the_states():
    [constraint] = [c for c in Job._meta.constraints if isinstance(c, models.CheckConstraint)]
    times, *_ = constraint.condition.children
    assert [dict(each.children)["state"] for each in times.children] == [int(state) for state in STORED]


def schema_text() -> str:
    """Return text from the database's schema that contains the job table's constraint and index names."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT group_concat(sql) FROM sqlite_master WHERE tbl_name = 'delaytasks_job'")
            return cursor.fetchone()[0]
        return " ".join(connection.introspection.get_constraints(cursor, "delaytasks_job"))


@pytest.mark.django_db
def test_the_migrated_table_has_the_constraints_and_indexes_of_the_model():
    schema = schema_text()
    for expected in [*Job._meta.constraints, *Job._meta.indexes]:
        assert expected.name in schema
