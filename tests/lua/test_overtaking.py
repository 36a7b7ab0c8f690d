"""The public verbs' messages to the mirror overtake each other, as those of several processes may."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from delaytasks import cancel, handler, reschedule, retry_dead, run_now, schedule, topics, worker
from delaytasks.clock import to_ms
from delaytasks.models import Job
from delaytasks.states import State

TOPIC = "test.overtaking"
STARTED = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
Verb = Callable[[str], Any]


@pytest.fixture
def mirrored(mirror, db, db_clock, settings) -> Any:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {}}}
    return mirror


def due_in(minutes: int) -> datetime:
    return STARTED + timedelta(minutes=minutes)


def made(minutes: int) -> Verb:
    return lambda key: schedule(TOPIC, key=key, due_at=due_in(minutes))


def replaced(minutes: int) -> Verb:
    return lambda key: schedule(TOPIC, key=key, due_at=due_in(minutes), on_conflict="replace")


def moved(minutes: int) -> Verb:
    return lambda key: reschedule(TOPIC, key, due_at=due_in(minutes))


def now() -> Verb:
    return lambda key: run_now(TOPIC, key)


def dead_and_retried() -> Verb:
    def retry(key: str) -> None:
        Job.objects.filter(key=key).update(state=State.DEAD, ended_at=STARTED, died_at=STARTED)
        retry_dead(TOPIC, key)

    return retry


STORIES = [
    pytest.param([made(30), moved(20)], id="earlier"),
    pytest.param([made(30), moved(40)], id="later"),
    pytest.param([made(30), now()], id="now"),
    pytest.param([made(30), moved(20), moved(40)], id="earlier-later"),
    pytest.param([made(30), moved(40), moved(50)], id="later-later"),
    pytest.param([made(30), moved(40), moved(35)], id="later-and-half-back"),
    pytest.param([made(30), moved(40), moved(30)], id="later-and-back"),
    pytest.param([made(30), moved(40), now()], id="later-now"),
    pytest.param([made(30), moved(40), replaced(35)], id="later-replaced"),
    pytest.param([made(30), replaced(40), moved(50), replaced(45)], id="replaced-later-replaced"),
    pytest.param([made(30), moved(50), moved(20), moved(30)], id="later-earlier-and-as-it-was"),
    pytest.param([made(30), dead_and_retried()], id="dead-and-retried"),
]


@pytest.mark.parametrize("story", STORIES)
def test_whatever_arrives_first_the_entry_is_never_later_than_the_row(
    mirrored, django_capture_on_commit_callbacks, story: list[Verb]
) -> None:
    late = {}
    for number, order in enumerate(permutations(range(len(story)))):
        messages = []
        for verb in story:
            with django_capture_on_commit_callbacks() as callbacks:
                verb(f"order:{number}")
            messages.append(callbacks)
        for which in order:
            for message in messages[which]:
                message()
        job = Job.objects.get(key=f"order:{number}")
        places = [ms for ms in mirrored.scores([(job.id, TOPIC)])[0] if ms is not None]
        assert len(places) <= 1, f"in two places after {order}"
        if not places or places[0] > to_ms(job.due_at):
            late[order] = f"{places[0] - to_ms(job.due_at)} ms late" if places else "nowhere"
    assert late == {}


def test_a_cancel_that_overtakes_its_schedule_leaves_an_entry_that_the_claim_removes(
    mirrored, django_capture_on_commit_callbacks
) -> None:
    with django_capture_on_commit_callbacks() as told_of_schedule:
        job = schedule(TOPIC, key="order:1", delay=0)
    with django_capture_on_commit_callbacks(execute=True):
        cancel(TOPIC, key="order:1")
    for message in told_of_schedule:
        message()
    mirrored.promote_due(to_ms(STARTED), [TOPIC])
    assert worker.take(mirrored, TOPIC, 10, using="default", worker="w") == []
    assert mirrored.scores([(job.id, TOPIC)]) == [(None, None)]


@pytest.mark.django_db(transaction=True)
def test_a_handler_that_touched_its_job_and_then_failed_leaves_no_late_entry(mirror, db_clock) -> None:
    def touch_and_fail(job: Any) -> None:
        db_clock.advance(ms=100)
        job.touch()
        raise topics.Retry("not today", delay=1)

    handler(TOPIC, ttr=60)(touch_and_fail)
    try:
        made_now = schedule(TOPIC, key="order:1", delay=0)
        mirror.promote_due(db_clock.now_ms, [TOPIC])
        worker.run_topic(TOPIC, using="default", worker="w", ring=lambda topic: None)
    finally:
        topics.forget(TOPIC)
    job = Job.objects.get(pk=made_now.pk)
    assert (job.failures, to_ms(job.due_at)) == (1, db_clock.now_ms + 1000)
    ((due, ready),) = mirror.scores([(job.id, TOPIC)])
    assert ready is None
    assert due <= to_ms(job.due_at), f"{due - to_ms(job.due_at)} ms late"
