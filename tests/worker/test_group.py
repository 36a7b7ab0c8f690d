"""Jobs of a group that wait behind a slow call are handed back, so that idle run slots can run them."""

import threading
from collections.abc import Callable

import pytest
from django.db import OperationalError, connection

from delaytasks import cancel, mirror, schedule, schedule_many
from delaytasks.db import transitions
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from delaytasks.worker import group, runner
from tests.support.locks import somebody_waits

from ..support.servers import wait_until
from ..support.stage import Boom, effect, effects, outcomes, state_of


def schedule_group(stage, count: int) -> None:
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(count))
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=count)


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, seconds=15, what="the other thread")


def waiting_rows() -> list[tuple[int, int, int]]:
    return list(Job.objects.filter(state=State.DELAYED).values_list("attempt", "failures", "grouped").distinct())


@pytest.mark.only_on("postgresql")  # on SQLite the handler's transaction may hold the only write lock
def test_jobs_behind_a_call_that_blocks_are_handed_back_while_it_runs(stage, monkeypatch):
    keys, answers = [], []
    monkeypatch.setattr(group, "WAIT_SECONDS", 0.05)

    @stage.handler("t", one_commit=True)
    def slow(job):
        effect(f"effect-{job.key}")
        keys.append(job.key)
        if job.key == "k0":
            until(lambda: Job.objects.filter(state=State.DELAYED).count() == 4)
            answers.append(cancel("t", "k3"))

    schedule_group(stage, 5)
    stage.run("t")
    assert keys[0] == "k0"
    assert answers == ["cancelled"]
    stage.go()
    assert sorted(keys) == ["k0", "k1", "k2", "k4"], "each job is called once"
    assert sorted(effects()) == [f"effect-k{n}" for n in (0, 1, 2, 4)]
    assert [outcomes(f"k{n}") for n in (0, 1, 2, 4)] == [["finished"]] * 4
    assert state_of("k3") == "cancelled"
    assert not Job.objects.filter(failures__gt=0).exists()


@pytest.mark.on_both
def test_a_group_whose_time_is_over_begins_no_further_job(stage, monkeypatch):
    keys: list[str] = []
    monkeypatch.setattr(group, "WAIT_SECONDS", 0)
    monkeypatch.setattr(group.Group, "_unclaim_waiting", lambda _: None)  # as if the timer was late

    @stage.handler("t", one_commit=True)
    def quick(job):
        keys.append(job.key)

    schedule_group(stage, 4)
    stage.run("t", stopping=lambda: bool(keys))
    assert keys == ["k0"]
    assert waiting_rows() == [(1, 0, False)]
    assert JobEvent.objects.count() == 1

    stage.go(rounds=50)
    assert sorted(keys) == ["k0", "k1", "k2", "k3"]
    assert [outcomes(f"k{n}") for n in range(4)] == [["finished"]] * 4


@pytest.mark.on_both
def test_a_run_that_hands_jobs_back_at_its_end_is_followed_by_another(stage, settings, monkeypatch):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RUN_BUDGET_SECONDS": 0.5}
    monkeypatch.setattr(group, "WAIT_SECONDS", 0)

    @stage.handler("t", one_commit=True)
    def slow(job):
        stage.seconds += 0.6

    schedule_group(stage, 4)
    stage.dispatched.clear()
    assert stage.run("t") == 1
    if mirror.connect() is not None:  # otherwise no message to the mover follows
        stage.mover.move_due()
    assert stage.dispatched


@pytest.mark.on_both
def test_the_jobs_of_a_failed_group_that_wait_too_long_are_handed_back(stage, monkeypatch):
    keys: list[str] = []

    @stage.handler("t", one_commit=True, max_attempts=1)
    def bad(job):
        keys.append(job.key)
        if job.key == "k2":
            monkeypatch.setattr(group, "WAIT_SECONDS", 0)
            raise Boom

    schedule_group(stage, 4)
    stage.run("t", stopping=lambda: len(keys) >= 4)
    assert keys == ["k0", "k1", "k2", "k0"], "the group, then its first job alone"
    assert state_of("k0") == "finished"
    assert waiting_rows() == [(1, 0, False)]
    assert Job.objects.filter(state=State.DELAYED).count() == 3


@pytest.mark.only_on("postgresql")
def test_a_job_whose_cancellation_makes_its_group_fail_is_not_begun_again(stage):
    keys: list[str] = []
    answers: list[str] = []

    def cancel_next() -> None:
        answers.append(cancel("t", "k1", running="fence"))
        connection.close()

    @stage.handler("t", one_commit=True)
    def record(job):
        keys.append(job.key)
        if not answers:
            thread = threading.Thread(target=cancel_next)
            thread.start()
            thread.join()

    schedule_group(stage, 3)
    stage.run("t")
    assert answers == ["cancelled"]
    assert keys == ["k0", "k1", "k2", "k0", "k2"]
    assert [outcomes(f"k{n}") for n in range(3)] == [["finished"], ["cancelled"], ["finished"]]


@pytest.mark.only_on("postgresql")
def test_a_waiting_job_that_the_transaction_has_locked_is_handed_back_after_the_commit(stage, monkeypatch):
    keys: list[str] = []
    locked, unclaim_waiting = threading.Event(), group.Group._unclaim_waiting
    monkeypatch.setattr(group, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(group.Group, "_unclaim_waiting", lambda each: locked.wait(30) and unclaim_waiting(each))

    @stage.handler("t", one_commit=True)
    def slow(job):
        keys.append(job.key)
        if keys == ["k0"]:
            schedule("t", "k1", delay=3600, body={"new": 1}, on_conflict="again")
            locked.set()
            until(somebody_waits)

    schedule_group(stage, 2)
    stage.run("t", stopping=lambda: bool(keys))
    assert keys == ["k0"]
    k1 = Job.objects.get(key="k1")
    assert (k1.state, k1.body, k1.failures) == (State.DELAYED, {"new": 1}, 0)


@pytest.mark.only_on("postgresql")
def test_a_run_fails_if_the_waiting_jobs_could_not_be_handed_back(stage, monkeypatch):
    """They stay claimed. A run that fails is followed by the take-back of what it holds."""
    refused = threading.Event()

    def refuse(*_):
        refused.set()
        raise OperationalError("gone")

    monkeypatch.setattr(group, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(transitions, "unclaim", refuse)
    stage.handler("t", one_commit=True)(lambda job: until(refused.is_set))
    schedule_group(stage, 3)
    with pytest.raises(OperationalError, match="gone"):
        stage.run("t")
    assert state_of("k0") == "finished"


def test_a_group_leaves_no_thread_behind(stage):
    before = set(threading.enumerate())
    stage.handler("t", one_commit=True)(lambda job: None)
    schedule_group(stage, 3)
    stage.run("t")
    until(lambda: set(threading.enumerate()) <= before)
