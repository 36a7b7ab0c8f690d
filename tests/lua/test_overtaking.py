"""The public verbs' messages to the mirror overtake each other, as those of several processes may."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from delaytasks import Retry, Snooze, cancel, conf, handler, reschedule, retry_dead, run_now, schedule, topics, worker
from delaytasks.claiming import take
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
    assert take(mirrored, TOPIC, 10, using="default", worker="w") == []
    assert mirrored.scores([(job.id, TOPIC)]) == [(None, None)]


def test_a_reschedule_that_overtakes_the_answer_to_a_refused_claim_leaves_no_late_entry(
    mirrored, db_clock, django_capture_on_commit_callbacks, monkeypatch
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        job = schedule(TOPIC, key="order:1", due_at=due_in(30))
        reschedule(TOPIC, "order:1", due_at=due_in(40))
    db_clock.advance(seconds=30 * 60)
    mirrored.promote_due(db_clock.now_ms, [TOPIC])
    answers: list[Any] = []
    with monkeypatch.context() as held_up:
        held_up.setattr(mirrored, "settle", lambda settlements: answers.extend(settlements))
        assert take(mirrored, TOPIC, 10, using="default", worker="w") == []
    with django_capture_on_commit_callbacks(execute=True):
        reschedule(TOPIC, "order:1", due_at=due_in(35))
    assert answers, "the worker has an answer: due in ten minutes"
    mirrored.settle(answers)
    assert mirrored.scores([(job.id, TOPIC)])[0][0] <= to_ms(due_in(35))


# A handler that renews its lease


class Touching:
    """A handler that touches its job twice, and then does as it is told."""

    def __init__(self, mirror: Any, db_clock: Any, then: Callable[[], Any]) -> None:
        self.mirror, self.db_clock, self.then = mirror, db_clock, then
        self.leases: list[int] = []
        self.entries: list[int] = []

    def handle(self, job: Any) -> Any:
        for _ in range(2):
            self.note(job)
            self.db_clock.advance(ms=100)
            job.touch()
        self.note(job)
        return self.then()

    def note(self, job: Any) -> None:
        self.leases.append(to_ms(job.deadline))
        self.entries.append(self.mirror.scores([(job.id, TOPIC)])[0][0])


def run_touching(
    mirror: Any, db_clock: Any, then: Callable[[], Any] = lambda: None, *, atomic: bool, pace: int = 1, ttr: int = 60
) -> tuple[Touching, Job, tuple[int | None, int | None]]:
    """The handler, the job's row and its places in the mirror afterwards."""
    touching = Touching(mirror, db_clock, then)
    handler(TOPIC, ttr=ttr, atomic=atomic)(touching.handle)
    worker._paces[TOPIC] = worker.Pace(size=pace)
    try:
        made_now = schedule(TOPIC, key="order:1", delay=0)
        mirror.promote_due(db_clock.now_ms, [TOPIC])
        worker.run_topic(TOPIC, using="default", worker="w", ring=lambda topic: None)
    finally:
        topics.forget(TOPIC)
    return touching, Job.objects.get(pk=made_now.pk), mirror.scores([(made_now.pk, TOPIC)])[0]


@pytest.mark.django_db(transaction=True)
def test_of_quick_jobs_the_mirror_hears_no_lease_but_their_end(mirror, db_clock) -> None:
    """What is expected to be over within the claim grace stays where reserving put it: early, never late."""
    began_ms = db_clock.now_ms
    touching, _, places = run_touching(mirror, db_clock, atomic=True, pace=8)
    assert touching.entries == [began_ms + conf.get().claim_grace_ms] * 3
    assert places == (None, None), "a touch moved the entry on the way"


@pytest.mark.django_db(transaction=True)
def test_of_a_quick_job_whose_lease_ends_before_the_claim_grace_the_mirror_hears(mirror, db_clock) -> None:
    touching, _, places = run_touching(mirror, db_clock, atomic=True, pace=8, ttr=2)
    assert touching.entries == [touching.leases[0]] * 3
    assert places == (None, None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("then", [lambda: Snooze(1), lambda: (_ for _ in ()).throw(Retry("no", delay=1))])
def test_a_quick_job_that_was_not_quick_and_goes_on_has_no_late_entry(mirror, db_clock, then: Any) -> None:
    """Its entry became ready at the claim grace, and who reserved it in vain put it at the end of the lease."""

    def outlive_the_grace() -> Any:
        db_clock.advance(ms=conf.get().claim_grace_ms + 1)
        mirror.promote_due(db_clock.now_ms, [TOPIC])
        assert take(mirror, TOPIC, 5, using="default", worker="another") == []
        return then()

    handler(TOPIC, ttr=60, max_attempts=9)(lambda job: outlive_the_grace())
    worker._paces[TOPIC] = worker.Pace(size=8)
    try:
        made = schedule(TOPIC, key="order:1", delay=0)
        mirror.promote_due(db_clock.now_ms, [TOPIC])
        worker.run_topic(TOPIC, using="default", worker="w", ring=lambda topic: None)
    finally:
        topics.forget(TOPIC)
    due_ms = Job.objects.get(pk=made.pk).due_ms
    assert due_ms == db_clock.now_ms + 1000
    assert mirror.scores([(made.pk, TOPIC)]) == [(due_ms, None)]


def fail() -> None:
    raise Retry("not today", delay=1)


@pytest.mark.django_db(transaction=True)
def test_a_touch_inside_a_transaction_is_not_told_to_the_mirror_before_its_commit(mirror, db_clock) -> None:
    touching, _, _ = run_touching(mirror, db_clock, atomic=True)
    assert touching.entries == [touching.leases[0]] * 3


@pytest.mark.django_db(transaction=True)
def test_a_touch_outside_a_transaction_is_told_to_the_mirror_at_once(mirror, db_clock) -> None:
    touching, _, _ = run_touching(mirror, db_clock, atomic=False)
    assert touching.entries == touching.leases
    assert len(set(touching.leases)) == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "outside"])
def test_a_handler_that_touched_its_job_and_finished_leaves_no_entry(mirror, db_clock, atomic: bool) -> None:
    _, job, places = run_touching(mirror, db_clock, atomic=atomic)
    assert (State(job.state), places) == (State.FINISHED, (None, None))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "outside"])
@pytest.mark.parametrize("then", [fail, lambda: Snooze(1)], ids=["failed", "snoozed"])
def test_a_handler_that_touched_its_job_and_is_to_be_called_again_leaves_no_late_entry(
    mirror, db_clock, then: Callable[[], Any], atomic: bool
) -> None:
    _, job, places = run_touching(mirror, db_clock, then, atomic=atomic)
    assert to_ms(job.due_at) == db_clock.now_ms + 1000
    assert places == (to_ms(job.due_at), None)
