"""die_in() and lose_mirror(): what a test asks to go wrong."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from delaytasks import schedule
from delaytasks.backoff import Backoff
from delaytasks.exceptions import BadInput, UnknownTopic
from delaytasks.mirror import connect
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.testing import Timeouts, minutes
from delaytasks.testing.exceptions import RedisInUse, TestKitError
from tests.support.stage import effect, effects, outcomes

Register = Callable[..., Any]


def test_a_death_before_the_commit_leaves_nothing_and_the_job_runs_again(
    timeouts: Timeouts, register: Register
) -> None:
    calls: list[int] = []

    def handler(job: Any) -> None:
        calls.append(job.attempt)
        effect(f"effect {job.attempt}")
        transaction.on_commit(lambda: effect("effect on commit"))

    register("t", handler, ttr=60)
    timeouts.die_in("t", before="commit")
    schedule("t", "1", delay=minutes(30))
    start = timeouts.now
    assert timeouts.advance(minutes=30).outcomes == {"died": 1}
    assert (calls, effects(), Job.objects.get().state) == ([1], [], State.RESERVED)
    assert not timeouts.advance(seconds=59)
    (taken_back, finished) = timeouts.advance(seconds=1)
    assert (taken_back.outcome, finished.outcome, finished.at - start) == ("expired", "finished", timedelta(minutes=31))
    assert (calls, effects(), outcomes("1")) == ([1, 2], ["effect 2", "effect on commit"], ["expired", "finished"])


def test_a_death_before_the_handler_does_not_call_it(timeouts: Timeouts, ran: list[str]) -> None:
    timeouts.die_in("t", before="handler")
    schedule("t", "1", delay=1)
    assert timeouts.advance(seconds=1).outcomes == {"died": 1}
    assert ran == []
    assert timeouts.advance(minutes=2).outcomes == {"expired": 1, "finished": 1}
    assert ran == ["1"]


def test_a_job_whose_processes_die_again_and_again_is_dead(timeouts: Timeouts, register: Register) -> None:
    handle = register("t", max_attempts=2, ttr=10)
    timeouts.die_in(handle, times=2)
    schedule("t", "1", delay=1)
    assert timeouts.advance(hours=1).outcomes == {"died": 2, "expired": 1, "dead": 1}


def test_the_delay_after_a_second_death_has_no_jitter(timeouts: Timeouts, register: Register) -> None:
    register("t", ttr=10, backoff=Backoff(base_seconds=10, factor=2, jitter=0.5))
    timeouts.die_in("t", times=2)
    start = timeouts.now
    schedule("t", "1", delay=1)
    *_, finished = timeouts.advance(hours=1)
    assert (finished.outcome, finished.at - start) == ("finished", timedelta(seconds=1 + 10 + 10 + 20))


def test_a_death_in_finishing_rolls_its_transaction_back(timeouts: Timeouts, register: Register) -> None:
    def handler(job: Any) -> None:
        effect(f"effect outside {job.attempt}")
        with job.finishing():
            effect("effect inside")

    register("t", handler, atomic=False)
    timeouts.die_in("t")
    schedule("t", "1", delay=1)
    timeouts.advance(seconds=1)
    assert effects() == ["effect outside 1"]
    timeouts.advance(minutes=2)
    assert effects() == ["effect inside", "effect outside 1", "effect outside 2"]


def test_only_the_named_topic_dies(timeouts: Timeouts, ran: list[str], register: Register) -> None:
    register("other")
    timeouts.die_in("other")
    schedule("t", "1", delay=1)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}


def test_a_death_of_an_unknown_topic_or_kind_is_refused(timeouts: Timeouts, ran: list[str]) -> None:
    with pytest.raises(UnknownTopic, match="has no handler"):
        timeouts.die_in("order.clsoe")
    with pytest.raises(BadInput, match="use 'handler' or 'commit'"):
        timeouts.die_in("t", before="breakfast")  # type: ignore[arg-type]


# The mirror


def test_the_mirror_is_off_unless_asked_for(with_redis: Any, timeouts: Timeouts) -> None:
    assert connect() is None
    with pytest.raises(TestKitError, match="mirror=True"):
        timeouts.lose_mirror()


def test_the_mirror_that_was_asked_for_needs_an_address(db: None) -> None:
    with pytest.raises(TestKitError, match="REDIS_URL"), Timeouts(mirror=True):
        pass


@pytest.mark.django_db(transaction=True)
def test_with_the_mirror_jobs_run_on_time_with_a_prefix_of_their_own(with_redis: Any, ran: list[str]) -> None:
    with Timeouts(mirror=True) as timeouts:
        start = timeouts.now
        mirror = connect()
        assert mirror is not None
        assert mirror.keys.prefix.startswith(with_redis["PREFIX"] + "-test-")
        schedule("t", "1", delay=minutes(30))
        schedule("t", "far", delay=minutes(300))
        assert sum(map(len, mirror.entries())) == 1
        (run,) = timeouts.advance(minutes=30)
        assert run.at == start + minutes(30)
        assert sum(map(len, mirror.entries())) == 0
        assert timeouts.advance(days=1)[0].at == start + minutes(300)
        schedule("t", "left", delay=minutes(30))
    after = connect()
    assert after is not None
    keys = after._redis.ask(lambda client: list(client.scan_iter(f"{with_redis['PREFIX']}*")))
    assert [key for key in keys if "-test-" in key] == []


@pytest.mark.django_db(transaction=True)
def test_jobs_run_a_tick_late_when_the_mirror_is_lost(with_redis: Any, ran: list[str]) -> None:
    with Timeouts(mirror=True) as timeouts:
        start = timeouts.now
        schedule("t", "1", delay=minutes(30))
        timeouts.lose_mirror()
        (run,) = timeouts.advance(minutes=31)
    late = run.at - start - minutes(30)
    assert run.outcome == "finished"
    assert timedelta(0) < late <= timedelta(seconds=2)


@pytest.mark.django_db(transaction=True)
def test_the_kit_refuses_a_redis_that_a_live_worker_uses(with_redis: Any) -> None:
    mirror = connect()
    assert mirror is not None
    listener = mirror.listen()  # what the thread of a worker's mover does
    listener.wait(0)
    with pytest.raises(RedisInUse, match="A live worker uses the Redis"), Timeouts(mirror=True):
        pass
    listener._pubsub.close()
    with Timeouts(mirror=True):
        pass
    assert mirror.lock("guard", 5_000).acquire()  # a guard has just run, perhaps that of beat
    with pytest.raises(RedisInUse), Timeouts(mirror=True):
        pass
