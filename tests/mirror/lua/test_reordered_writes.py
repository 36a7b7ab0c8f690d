"""The public API's mirror writes arrive in any order, as those of several processes may."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from delaytasks import Retry, Snooze, cancel, handler, handlers, reschedule, retry_dead, run_now, schedule
from delaytasks.clock import to_ms
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.worker import runner
from delaytasks.worker.claim import RESERVE_MS, take

TOPIC = "test.reordered"
STARTED = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
Change = Callable[[str], Any]


@pytest.fixture
def mirrored(mirror, db, db_clock, settings) -> Any:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {}}}
    return mirror


def due_in(minutes: int) -> datetime:
    return STARTED + timedelta(minutes=minutes)


def scheduled(minutes: int) -> Change:
    return lambda key: schedule(TOPIC, key=key, due_at=due_in(minutes))


def replaced(minutes: int) -> Change:
    return lambda key: schedule(TOPIC, key=key, due_at=due_in(minutes), on_conflict="replace")


def moved(minutes: int) -> Change:
    return lambda key: reschedule(TOPIC, key, due_at=due_in(minutes))


def run_at_once() -> Change:
    return lambda key: run_now(TOPIC, key)


def dead_and_retried() -> Change:
    def retry(key: str) -> None:
        Job.objects.filter(key=key).update(state=State.DEAD, ended_at=STARTED, died_at=STARTED)
        retry_dead(TOPIC, key)

    return retry


SEQUENCES = [
    pytest.param([scheduled(30), moved(20)], id="earlier"),
    pytest.param([scheduled(30), moved(40)], id="later"),
    pytest.param([scheduled(30), run_at_once()], id="now"),
    pytest.param([scheduled(30), moved(20), moved(40)], id="earlier-later"),
    pytest.param([scheduled(30), moved(40), moved(50)], id="later-later"),
    pytest.param([scheduled(30), moved(40), moved(35)], id="later-and-half-back"),
    pytest.param([scheduled(30), moved(40), moved(30)], id="later-and-back"),
    pytest.param([scheduled(30), moved(40), run_at_once()], id="later-now"),
    pytest.param([scheduled(30), moved(40), replaced(35)], id="later-replaced"),
    pytest.param([scheduled(30), replaced(40), moved(50), replaced(45)], id="replaced-later-replaced"),
    pytest.param([scheduled(30), moved(50), moved(20), moved(30)], id="later-earlier-and-as-it-was"),
    pytest.param([scheduled(30), dead_and_retried()], id="dead-and-retried"),
]


@pytest.mark.parametrize("changes", SEQUENCES)
def test_in_any_order_of_the_writes_the_entry_is_never_later_than_the_row(
    mirrored, django_capture_on_commit_callbacks, changes: list[Change]
) -> None:
    late = {}
    for number, order in enumerate(permutations(range(len(changes)))):
        writes = []
        for change in changes:
            with django_capture_on_commit_callbacks() as callbacks:
                change(f"order:{number}")
            writes.append(callbacks)
        for index in order:
            for write in writes[index]:
                write()
        job = Job.objects.get(key=f"order:{number}")
        scores = [ms for ms in mirrored.scores([(job.id, TOPIC)])[0] if ms is not None]
        assert len(scores) <= 1, f"two entries after {order}"
        if not scores or scores[0] > to_ms(job.due_at):
            late[order] = f"{scores[0] - to_ms(job.due_at)} ms late" if scores else "no entry"
    assert late == {}


def test_a_cancel_written_before_its_schedule_leaves_an_entry_that_the_claim_removes(
    mirrored, django_capture_on_commit_callbacks
) -> None:
    with django_capture_on_commit_callbacks() as schedule_writes:
        job = schedule(TOPIC, key="order:1", delay=0)
    with django_capture_on_commit_callbacks(execute=True):
        cancel(TOPIC, key="order:1")
    for write in schedule_writes:
        write()
    mirrored.promote_due(to_ms(STARTED), [TOPIC])
    assert take(mirrored, TOPIC, 10, using="default", worker="w") == []
    assert mirrored.scores([(job.id, TOPIC)]) == [(None, None)]


def test_a_reschedule_written_before_a_refused_claim_leaves_no_late_entry(
    mirrored, db_clock, django_capture_on_commit_callbacks, monkeypatch
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        job = schedule(TOPIC, key="order:1", due_at=due_in(30))
        reschedule(TOPIC, "order:1", due_at=due_in(40))
    db_clock.advance(seconds=30 * 60)
    mirrored.promote_due(db_clock.now_ms, [TOPIC])
    delayed: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(mirrored, "settle", lambda settlements: delayed.extend(settlements))
        assert take(mirrored, TOPIC, 10, using="default", worker="w") == []
    with django_capture_on_commit_callbacks(execute=True):
        reschedule(TOPIC, "order:1", due_at=due_in(35))
    assert delayed, "the claim was refused: the job is due in ten minutes"
    mirrored.settle(delayed)
    assert mirrored.scores([(job.id, TOPIC)])[0][0] <= to_ms(due_in(35))


# A handler that renews its lease


class Touching:
    """A handler that touches its job twice and then calls `then`."""

    def __init__(self, mirror: Any, db_clock: Any, then: Callable[[], Any]) -> None:
        self.mirror, self.db_clock, self.then = mirror, db_clock, then
        self.leases: list[int] = []
        self.entries: list[int] = []

    def handle(self, job: Any) -> Any:
        for _ in range(2):
            self.record(job)
            self.db_clock.advance(ms=100)
            job.touch()
        self.record(job)
        return self.then()

    def record(self, job: Any) -> None:
        self.leases.append(to_ms(job.deadline))
        self.entries.append(self.mirror.scores([(job.id, TOPIC)])[0][0])


def run_touching(
    mirror: Any, db_clock: Any, then: Callable[[], Any] = lambda: None, *, atomic: bool, pace: int = 1, ttr: int = 60
) -> tuple[Touching, Job, tuple[int | None, int | None]]:
    """Run a job. Return the handler, the row afterwards, and its scores in the mirror."""
    touching = Touching(mirror, db_clock, then)
    handler(TOPIC, ttr=ttr, atomic=atomic)(touching.handle)
    runner._paces[TOPIC] = runner.Pace(size=pace)
    try:
        job = schedule(TOPIC, key="order:1", delay=0)
        mirror.promote_due(db_clock.now_ms, [TOPIC])
        runner.run_topic(TOPIC, using="default", worker="w", dispatch_topic=lambda topic: None)
    finally:
        handlers.unregister(TOPIC)
    return touching, Job.objects.get(pk=job.pk), mirror.scores([(job.pk, TOPIC)])[0]


@pytest.mark.usefixtures("transactional_db")
def test_the_leases_of_quick_jobs_are_not_written_to_the_mirror(mirror, db_clock) -> None:
    """A job that should finish before its reservation ends keeps the entry of it: early, never late."""
    began_ms = db_clock.now_ms
    touching, _, scores = run_touching(mirror, db_clock, atomic=True, pace=8)
    assert touching.entries == [began_ms + RESERVE_MS] * 3
    assert scores == (None, None), "a touch moved the entry"


@pytest.mark.usefixtures("transactional_db")
def test_the_lease_of_a_quick_job_is_written_if_it_ends_before_the_reservation(mirror, db_clock) -> None:
    touching, _, scores = run_touching(mirror, db_clock, atomic=True, pace=8, ttr=0.1)
    assert touching.entries == [touching.leases[0]] * 3
    assert scores == (None, None)


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("then", [lambda: Snooze(1), lambda: (_ for _ in ()).throw(Retry("no", delay=1))])
def test_a_job_that_outlives_its_reservation_and_will_run_again_has_no_late_entry(mirror, db_clock, then: Any) -> None:
    """Its entry becomes ready after the reservation, and a refused claim moves it to the end of the lease."""

    def outlive_the_reservation() -> Any:
        db_clock.advance(ms=RESERVE_MS + 1)
        mirror.promote_due(db_clock.now_ms, [TOPIC])
        assert take(mirror, TOPIC, 5, using="default", worker="another") == []
        return then()

    handler(TOPIC, ttr=60, max_attempts=9)(lambda job: outlive_the_reservation())
    runner._paces[TOPIC] = runner.Pace(size=8)
    try:
        job = schedule(TOPIC, key="order:1", delay=0)
        mirror.promote_due(db_clock.now_ms, [TOPIC])
        runner.run_topic(TOPIC, using="default", worker="w", dispatch_topic=lambda topic: None)
    finally:
        handlers.unregister(TOPIC)
    due_ms = Job.objects.get(pk=job.pk).due_ms
    assert due_ms == db_clock.now_ms + 1000
    assert mirror.scores([(job.pk, TOPIC)]) == [(due_ms, None)]


def fail() -> None:
    raise Retry("not today", delay=1)


@pytest.mark.usefixtures("transactional_db")
def test_a_touch_inside_a_transaction_is_written_to_the_mirror_after_the_commit_only(mirror, db_clock) -> None:
    touching, _, _ = run_touching(mirror, db_clock, atomic=True)
    assert touching.entries == [touching.leases[0]] * 3


@pytest.mark.usefixtures("transactional_db")
def test_a_touch_outside_a_transaction_is_written_to_the_mirror_at_once(mirror, db_clock) -> None:
    touching, _, _ = run_touching(mirror, db_clock, atomic=False)
    assert touching.entries == touching.leases
    assert len(set(touching.leases)) == 3


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "outside"])
def test_a_handler_that_touched_its_job_and_finished_leaves_no_entry(mirror, db_clock, atomic: bool) -> None:
    _, job, scores = run_touching(mirror, db_clock, atomic=atomic)
    assert (State(job.state), scores) == (State.FINISHED, (None, None))


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "outside"])
@pytest.mark.parametrize("then", [fail, lambda: Snooze(1)], ids=["failed", "snoozed"])
def test_a_handler_that_touched_its_job_and_will_run_again_leaves_no_late_entry(
    mirror, db_clock, then: Callable[[], Any], atomic: bool
) -> None:
    _, job, scores = run_touching(mirror, db_clock, then, atomic=atomic)
    assert to_ms(job.due_at) == db_clock.now_ms + 1000
    assert scores == (to_ms(job.due_at), None)
