"""Consumers reserve jobs and finish, release, bury and touch them by id and attempt, until the lease ends."""

from datetime import timedelta
from typing import Any

import pytest

from delaytasks import cancel, clock, conf, mirror, reschedule, retry_dead, schedule
from delaytasks.exceptions import BadDelay, BadTopic, LeaseLost, Reserved
from delaytasks.maintenance import sweep
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.states import State
from delaytasks.worker import leases

from ..support.stage import Stage, outcomes, state_of

TOPIC = "mail.send"


@pytest.fixture(autouse=True)
def _topic(settings: Any, stage: Stage) -> None:
    """A topic that has no handler in Python."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {"ttr": 30, "max_attempts": 2}}}


def reserve(stage: Stage, count: int = 1, worker: str = "php/1") -> list[Any]:
    stage.mover.move_due()
    return leases.reserve(TOPIC, count, using=stage.using, worker=worker)


def reserve_new(stage: Stage, key: str = "a", **options: Any) -> Any:
    schedule(TOPIC, key=key, delay=0, **options)
    (held,) = reserve(stage)
    return held


def entry_of(job_id: int) -> tuple[int | None, int | None]:
    found = mirror.connect("default")
    assert found is not None
    return found.scores([(job_id, TOPIC)])[0]


def last_event(key: str = "a") -> JobEvent:
    return JobEvent.objects.filter(job__key=key).latest("id")


def test_a_reserved_job_has_its_body_ttr_and_deadline(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage, body={"to": "x@example.org"})
    assert (held.key, held.attempt, held.body, held.ttr_ms) == ("a", 1, {"to": "x@example.org"}, 30_000)
    assert clock.to_ms(held.deadline) == db_clock.now_ms + 30_000
    assert Job.objects.get().worker == "php/1"
    assert reserve(stage) == []


def test_the_oldest_due_jobs_come_first_and_no_more_than_requested(stage: Stage, db_clock: Any) -> None:
    for key, delay in (("late", 3), ("early", 1), ("middle", 2)):
        schedule(TOPIC, key=key, delay=delay)
    db_clock.advance(seconds=5)
    assert [held.key for held in reserve(stage, 2)] == ["early", "middle"]
    assert [held.key for held in reserve(stage, 9)] == ["late"]


def test_nothing_is_reserved_of_a_paused_topic(stage: Stage) -> None:
    schedule(TOPIC, key="a", delay=0)
    Topic.objects.update_or_create(name=TOPIC, defaults={"paused": True})
    assert reserve(stage) == []
    assert state_of("a") == "delayed"


def test_an_invalid_topic_name_is_refused(stage: Stage) -> None:
    with pytest.raises(BadTopic):
        leases.reserve("no topic", 1, using=stage.using, worker="w")


def test_finish_ends_the_job_and_records_the_consumer(stage: Stage) -> None:
    held = reserve_new(stage)
    leases.finish(held.id, held.attempt, using=stage.using, by="php")
    assert state_of("a") == "finished"
    event = last_event()
    assert (event.outcome, event.attempt, event.worker, event.actor) == ("finished", 1, "php/1", "php")
    if conf.get().redis_url:
        assert entry_of(held.id) == (None, None)


def test_a_finish_after_the_ttr_is_refused_even_if_the_job_was_not_taken_back(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage)
    db_clock.advance(seconds=30)
    with pytest.raises(LeaseLost, match=r"its TTR of 30 s ended at 2030-01-01T00:00:30\.000Z"):
        leases.finish(held.id, held.attempt, using=stage.using)
    assert state_of("a") == "reserved"


def test_the_last_millisecond_of_the_ttr_is_in_time(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage)
    db_clock.advance(ms=29_999)
    leases.finish(held.id, held.attempt, using=stage.using)
    assert state_of("a") == "finished"


def test_a_job_whose_ttr_has_ended_is_reserved_again_and_its_first_attempt_refused(stage: Stage, db_clock: Any) -> None:
    first = reserve_new(stage)
    db_clock.advance(seconds=31)
    (second,) = reserve(stage, worker="php/2")
    assert (second.id, second.attempt, second.failures) == (first.id, 2, 1)
    with pytest.raises(LeaseLost, match="its latest attempt is 2"):
        leases.finish(first.id, first.attempt, using=stage.using)
    leases.finish(second.id, second.attempt, using=stage.using)
    assert outcomes("a") == ["expired", "finished"]


def test_an_attempt_whose_job_the_sweep_took_back_is_refused(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage)
    db_clock.advance(seconds=31)
    sweep.sweep(stage.using)
    with pytest.raises(LeaseLost, match="its TTR ended, or the job was released"):
        leases.finish(held.id, held.attempt, using=stage.using)


@pytest.mark.parametrize("attempt", [0, 2, -1])
def test_another_attempt_number_is_refused(stage: Stage, attempt: int) -> None:
    held = reserve_new(stage)
    with pytest.raises(LeaseLost, match="its latest attempt is 1"):
        leases.finish(held.id, attempt, using=stage.using)
    assert state_of("a") == "reserved"


def test_an_ended_or_unknown_job_is_refused_with_the_reason(stage: Stage) -> None:
    held = reserve_new(stage)
    leases.finish(held.id, held.attempt, using=stage.using)
    with pytest.raises(LeaseLost, match="the job is finished already"):
        leases.finish(held.id, held.attempt, using=stage.using)
    with pytest.raises(LeaseLost, match="is unknown"):
        leases.touch(held.id + 1000, 1, using=stage.using)
    assert outcomes("a") == ["finished"]


def test_a_released_job_is_ready_at_once_and_without_a_failure(stage: Stage) -> None:
    held = reserve_new(stage)
    assert leases.release(held.id, held.attempt, using=stage.using, by="php") is State.DELAYED
    (again,) = reserve(stage)
    assert (again.id, again.attempt, again.failures) == (held.id, 2, 0)
    assert outcomes("a") == ["released"]


def test_a_job_released_with_a_delay_is_ready_after_it(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage)
    leases.release(held.id, held.attempt, using=stage.using, delay=timedelta(seconds=10))
    db_clock.advance(ms=9_999)
    assert reserve(stage) == []
    db_clock.advance(ms=1)
    assert [again.id for again in reserve(stage)] == [held.id]


def test_a_release_with_an_error_is_a_failure_with_backoff(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage)
    assert leases.release(held.id, held.attempt, using=stage.using, by="php", error="no route\nto host") is (
        State.DELAYED
    )
    job, event = Job.objects.get(), last_event()
    assert (job.failures, job.error) == (1, "to host")
    assert (event.outcome, event.error, event.actor) == ("failed", "no route\nto host", "php")
    assert 4_000 <= job.due_ms - db_clock.now_ms <= 6_000


def test_the_last_failure_makes_the_job_dead_and_staff_can_retry_it(stage: Stage) -> None:
    for attempt in (1, 2):
        held = reserve_new(stage) if attempt == 1 else reserve(stage)[0]
        state = leases.release(held.id, attempt, using=stage.using, delay=0, error="no")
    assert state is State.DEAD
    assert outcomes("a") == ["failed", "dead"]
    retry_dead(TOPIC, "a")
    assert [again.attempt for again in reserve(stage)] == [3]


def test_bury_makes_a_job_dead_with_the_reason(stage: Stage) -> None:
    held = reserve_new(stage)
    leases.bury(held.id, held.attempt, using=stage.using, by="php", reason="no such address\x00")
    assert state_of("a") == "dead"
    assert (last_event().outcome, last_event().error, last_event().actor) == ("dead", "no such address\\x00", "php")


def test_touch_restarts_the_ttr(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage)
    db_clock.advance(seconds=20)
    assert clock.to_ms(leases.touch(held.id, held.attempt, using=stage.using)) == db_clock.now_ms + 30_000
    db_clock.advance(seconds=20)
    assert reserve(stage) == []
    leases.finish(held.id, held.attempt, using=stage.using)
    assert outcomes("a") == ["finished"]


def test_touch_moves_the_mirrors_entry_so_that_finish_removes_it(stage: Stage, db_clock: Any) -> None:
    if not conf.get().redis_url:
        return
    held = reserve_new(stage)
    db_clock.advance(seconds=20)
    leases.touch(held.id, held.attempt, using=stage.using)
    assert entry_of(held.id) == (db_clock.now_ms + 30_000, None)
    leases.finish(held.id, held.attempt, using=stage.using)
    assert entry_of(held.id) == (None, None)


def test_touch_after_the_ttr_is_refused(stage: Stage, db_clock: Any) -> None:
    held = reserve_new(stage)
    db_clock.advance(seconds=30)
    with pytest.raises(LeaseLost, match="ended at"):
        leases.touch(held.id, held.attempt, using=stage.using)


def test_a_bad_delay_leaves_the_job_held(stage: Stage) -> None:
    held = reserve_new(stage)
    with pytest.raises(BadDelay):
        leases.release(held.id, held.attempt, using=stage.using, delay=-1)
    assert state_of("a") == "reserved"


def test_a_held_job_is_neither_cancelled_nor_moved(stage: Stage) -> None:
    reserve_new(stage)
    assert cancel(TOPIC, key="a") == "running"
    with pytest.raises(Reserved):
        reschedule(TOPIC, "a", delay=5)


def test_the_topics_own_on_dead_is_called_for_a_buried_job(stage: Stage) -> None:
    seen: list[Any] = []
    stage.handler("seat.free", on_dead=lambda job: seen.append(job.body))(lambda job: None)
    schedule("seat.free", key="o", delay=0, body={"order": 7})
    stage.mover.move_due()
    (held,) = leases.reserve("seat.free", 1, using=stage.using, worker="w")
    leases.bury(held.id, held.attempt, using=stage.using)
    assert seen == [{"order": 7}]


def test_a_job_scheduled_by_a_person_has_an_event_with_the_name(stage: Stage) -> None:
    schedule(TOPIC, key="a", delay=0, by="php")
    event = last_event()
    assert (event.outcome, event.actor, event.attempt, event.next_due_ms) == ("scheduled", "php", 0, event.due_ms)
    schedule(TOPIC, key="b", delay=0)
    assert outcomes("b") == []
