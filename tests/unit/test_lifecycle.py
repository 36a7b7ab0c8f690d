"""The lifecycle page, the model and the table of moves say the same."""

from pathlib import Path

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.utils import timezone

from delaytasks import lifecycle, words
from delaytasks.models import Job, JobEvent
from delaytasks.states import ENDED, LIVE, MOVES, STORED, Outcome, State, allowed

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"


def test_the_lifecycle_page_is_current():
    assert PAGE.read_text() == lifecycle.render(), "python -m delaytasks.lifecycle > docs/lifecycle.md"


def test_the_page_draws_every_move_and_names_every_state():
    page = lifecycle.render()
    for move in MOVES:
        assert f"    {move.before.word} --> {move.after.word}: " in page
        assert move.why in page
    for state in State:
        assert f"| `{state.word}` |" in page


def test_every_state_and_outcome_has_a_word_for_people():
    assert set(words.STATES) == set(State)
    assert set(words.OUTCOMES) == set(Outcome)


def test_the_models_choices_are_the_states_that_are_stored():
    assert [value for value, _ in Job._meta.get_field("state").choices] == list(STORED)


def test_the_events_choices_are_the_outcomes():
    assert [value for value, _ in JobEvent._meta.get_field("outcome").choices] == [o.value for o in Outcome]


def test_every_outcome_belongs_to_a_move():
    before_any_move = {Outcome.SCHEDULED}
    assert {move.outcome for move in MOVES} - {None} == set(Outcome) - before_any_move


def test_every_state_can_be_reached_and_every_live_one_left():
    assert {move.after for move in MOVES} == set(State)
    assert {move.before for move in MOVES} >= set(LIVE)


def test_what_has_ended_stays_so_but_for_a_retry():
    assert [(m.before, m.after) for m in MOVES if m.before in ENDED] == [(State.DEAD, State.READY)]


def test_a_reserved_job_can_be_neither_cancelled_nor_moved():
    assert not allowed(State.RESERVED, State.CANCELLED)
    assert not [m for m in MOVES if m.before is State.RESERVED and m.outcome is Outcome.RESCHEDULED]


def row(state: int) -> Job:
    """A row that fits every constraint but, perhaps, the ones about the state."""
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
def test_the_database_takes_the_stored_states_and_no_others(state):
    if state in STORED:
        row(state).save()
        assert Job.objects.get().state == state
        return
    with pytest.raises(IntegrityError), transaction.atomic():
        row(state).save()


@pytest.mark.django_db
def test_the_database_refuses_a_job_that_has_ended_and_lives():
    job = row(State.DELAYED)
    job.ended_at = timezone.now()
    with pytest.raises(IntegrityError), transaction.atomic():
        job.save()


def test_the_check_constraint_is_made_from_the_states():
    known = next(c for c in Job._meta.constraints if c.name == "delaytasks_job_state_known")
    assert known.condition == models.Q(state__in=[int(state) for state in STORED])


def named_in_database() -> str:
    """The text in which the database keeps the names of the job table's constraints and indexes."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT group_concat(sql) FROM sqlite_master WHERE tbl_name = 'delaytasks_job'")
            return cursor.fetchone()[0]
        return " ".join(connection.introspection.get_constraints(cursor, "delaytasks_job"))


@pytest.mark.django_db
def test_the_migrated_table_has_the_constraints_and_indexes_of_the_model():
    there = named_in_database()
    for wanted in [*Job._meta.constraints, *Job._meta.indexes]:
        assert wanted.name in there
