"""Of a topic's jobs that are due, those of a higher priority run first, with and without a mirror; old ones pass."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, transaction

from delaytasks import (
    Retry,
    Snooze,
    aschedule,
    handlers,
    mirror,
    reschedule,
    retry_dead,
    run_now,
    schedule,
    schedule_many,
)
from delaytasks.bulk import moves
from delaytasks.db import lookups
from delaytasks.exceptions import BadInput, BadSchedule
from delaytasks.jobs.control import Origin
from delaytasks.jobs.schedule import schedule_unique
from delaytasks.maintenance import audit, feed
from delaytasks.models import Job
from delaytasks.states import AGE_MS, State
from delaytasks.worker import leases

pytestmark = pytest.mark.on_both
MINUTE = AGE_MS / 1000
# (minute in which it is due, priority). They run in the order of the difference.
DUE = {"old": (0, 0), "high": (8.8, 9), "newer": (9.1, 9), "middle": (4.6, 5), "low": (9, 1)}
ORDER = ["middle", "high", "old", "newer", "low"]


def schedule_due(stage: Any, clock: Any) -> None:
    for key, (minute, priority) in DUE.items():
        schedule("t", key, delay=minute * MINUTE, priority=priority)
    clock.advance(seconds=9.1 * MINUTE)
    stage.mover.move_due()


@pytest.mark.parametrize("options", [{}, {"one_commit": True}, {"atomic": False}], ids=str)
def test_due_jobs_run_by_priority_and_age(stage: Any, db_clock: Any, options: Any) -> None:
    ran = stage.recorder("t", ttr=10, **options)
    schedule_due(stage, db_clock)
    stage.run("t")
    assert ran == ORDER


def test_consumers_get_the_jobs_in_the_same_order(stage: Any, db_clock: Any) -> None:
    stage.recorder("t")
    schedule_due(stage, db_clock)
    taken = [[job.key for job in stage.take("t", 2)] for _ in range(3)]
    assert taken == [ORDER[:2], ORDER[2:4], ORDER[4:]]


def test_the_first_of_many_jobs_are_those_of_the_highest_priority(stage: Any, db_clock: Any) -> None:
    stage.recorder("t")
    levels = {7: 1, 8: 9}  # of the jobs 70 to 79 and 80 to 89
    schedule_many([
        {"topic": "t", "key": f"{n}", "delay": 1 + n / 1000, "priority": levels.get(n // 10, 0)} for n in range(100)
    ])  # fmt: skip
    db_clock.advance(seconds=2)
    taken = [int(job.key) for job in stage.take("t", 30)]
    assert taken == [*range(80, 90), *range(70, 80), *range(10)]


def test_a_job_of_the_highest_priority_is_never_claimed_a_millisecond_early(stage: Any, db_clock: Any) -> None:
    stage.recorder("t")
    schedule("t", "a", delay=1.5, priority=9)
    db_clock.advance(ms=1499)
    assert stage.take("t") == []
    db_clock.advance(ms=1)
    assert [job.key for job in stage.take("t")] == ["a"]


# -- the priority is kept -------------------------------------------------------------------------


def entry() -> tuple[int, int, int]:
    """The due time and the priority of the only job's entry, and the priority of its row."""
    job = Job.objects.live().get()
    found = mirror.connect()
    if found is None:
        return job.due_ms, job.priority, job.priority
    [of_job] = [each for page in found.entries() for each in page]
    return of_job.at_ms, of_job.priority, job.priority


def assert_kept(clock: Any, seconds: float, priority: int = 7) -> None:
    assert entry() == (clock.now_ms + round(seconds * 1000), priority, priority)


@pytest.fixture
def waiting(stage: Any, db_clock: Any) -> Job:
    stage.recorder("t")
    return schedule("t", "a", delay=60, priority=7)


def test_moving_a_job_keeps_its_priority(waiting: Job, db_clock: Any) -> None:
    assert waiting.priority == 7
    reschedule("t", "a", delay=30)
    assert_kept(db_clock, 30)
    run_now("t", "a")
    assert_kept(db_clock, 0)


def test_moving_and_retrying_many_jobs_keeps_their_priorities(waiting: Job, db_clock: Any) -> None:
    moves.run_now("default", [waiting.id], Origin("", ""))
    assert_kept(db_clock, 0)
    ended = db_clock.now_ms
    Job.objects.update(state=State.DEAD, ended_at=waiting.created_at, died_at=waiting.created_at)
    db_clock.advance(seconds=1)
    moves.retry("default", [waiting.id], Origin("", ""))
    assert Job.objects.get().due_ms == ended + 1000
    assert entry()[1:] == (7, 7)


def test_a_dead_job_that_is_retried_has_its_priority(waiting: Job, db_clock: Any) -> None:
    found = mirror.connect()
    if found is not None:
        found.clear()
    Job.objects.update(state=State.DEAD, ended_at=waiting.created_at, died_at=waiting.created_at)
    retry_dead("t", "a")
    assert_kept(db_clock, 0)


def test_replacing_a_job_gives_it_the_new_priority(waiting: Job, db_clock: Any) -> None:
    schedule("t", "a", delay=60, priority=3, on_conflict="keep")
    assert_kept(db_clock, 60)
    schedule("t", "a", delay=50, priority=3, on_conflict="replace")
    assert_kept(db_clock, 50, 3)
    schedule("t", "a", delay=40, on_conflict="replace")
    assert_kept(db_clock, 40, 0)


@pytest.mark.parametrize("answer", [Snooze(20), Retry(delay=20)], ids=["snoozed", "failed"])
def test_a_job_that_runs_later_again_keeps_its_priority(stage: Any, db_clock: Any, answer: Any) -> None:
    @stage.handler("t")
    def again(job: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    schedule("t", "a", delay=0, priority=7)
    stage.mover.move_due()
    stage.run("t")
    assert_kept(db_clock, 20)


def test_a_released_job_keeps_its_priority(waiting: Job, stage: Any, db_clock: Any) -> None:
    db_clock.advance(seconds=60)
    [held] = stage.take("t")
    leases.release(held.id, held.attempt, delay=5, using="default")
    assert_kept(db_clock, 5)


@pytest.mark.parametrize("end", [leases.finish, leases.bury], ids=["finished", "dead"])
def test_the_next_run_has_the_priority_with_which_it_was_scheduled(
    waiting: Job, stage: Any, db_clock: Any, end: Any
) -> None:
    db_clock.advance(seconds=60)
    [held] = stage.take("t")
    schedule("t", "a", delay=30, priority=2, on_conflict="again")
    end(held.id, held.attempt, using="default")
    assert_kept(db_clock, 30, 2)


def test_a_rebuilt_and_an_audited_mirror_have_the_priorities(waiting: Job, db_clock: Any) -> None:
    found = mirror.connect()
    if found is None:
        return
    found.clear()
    assert feed.rebuild() == 1
    assert_kept(db_clock, 60)
    found.clear()
    assert audit.audit()["missing"] == 1
    assert_kept(db_clock, 60)
    assert audit.audit() == {"missing": 0, "late": 0, "ghosts": 0, "doubled": 0, "checked": 1}


# -- the argument ---------------------------------------------------------------------------------


def test_each_verb_takes_a_priority(stage: Any) -> None:
    handle = stage.handler("t")(lambda job: None)
    schedule_many([{"topic": "t", "key": "many", "delay": 1, "priority": 1}])
    handle.schedule("handle", delay=1, priority=2)
    async_to_sync(aschedule)("t", "async", delay=1, priority=3)
    schedule_unique("t", "unique", among=["t"], delay=1, priority=4)
    schedule("t", "by", delay=1, priority=5, by="alice")
    schedule("t", "none", delay=1)
    assert dict(Job.objects.values_list("key", "priority")) == {
        "many": 1, "handle": 2, "async": 3, "unique": 4, "by": 5, "none": 0,
    }  # fmt: skip


@pytest.mark.parametrize("bad", [-1, 10, True, False, 1.0, "5", None, 10**30, float("nan")], ids=repr)
def test_a_priority_is_an_int_from_0_to_9(stage: Any, bad: Any) -> None:
    handlers.handler("t")(lambda job: None)
    stage.registered.append("t")
    with pytest.raises(BadInput, match=r"^priority is .*: give an int from 0 to 9"):
        schedule("t", "a", delay=0, priority=bad)
    with pytest.raises(BadInput, match=r"^Item 0: priority is "):
        schedule_many([{"topic": "t", "key": "a", "delay": 0, "priority": bad}])
    assert not Job.objects.exists()


def test_a_series_takes_no_priority(stage: Any) -> None:
    stage.recorder("t")
    with pytest.raises(BadSchedule, match="priority"):
        schedule("t", "a", period=60, priority=1)


def test_the_database_refuses_other_priorities_and_older_workers_insert_jobs(waiting: Job) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.update(priority=10)
    with connection.cursor() as cursor:
        cursor.execute("""
            INSERT INTO delaytasks_job
                (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error)
            SELECT topic, 'old', state, due_at, ttr_ms, body, created_at, 0, 0, '', '' FROM delaytasks_job""")
    assert Job.objects.get(key="old").priority == 0


def test_postponed_jobs_are_left_out_of_the_ready_ones(waiting: Job, db_clock: Any) -> None:
    others = [schedule("t", f"{n}", delay=60, priority=n % 3).id for n in range(6)]
    db_clock.advance(seconds=61)
    order = [waiting.id, others[2], others[5], others[1], others[4], others[0], others[3]]
    assert lookups.ready_ids("default", "t", limit=9) == order
    assert lookups.ready_ids("default", "t", limit=2, without={others[2], waiting.id}) == [others[5], others[1]]
