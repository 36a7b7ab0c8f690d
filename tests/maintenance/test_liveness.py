"""Dead workers and processes are told from living ones, and what they held is freed."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from delaytasks import conf, databases, mirror, schedule
from delaytasks.celery import heartbeat
from delaytasks.celery.heartbeat import HeartbeatThread, Processes
from delaytasks.maintenance import liveness
from delaytasks.models import Job, JobEvent, Worker
from delaytasks.outcomes import ErrorCode
from delaytasks.states import State
from delaytasks.worker import claim, process_name, runner

from ..support.forks import record_blocks
from ..support.servers import wait_until
from ..support.stage import Boom, outcomes


@pytest.fixture
def monotonic(monkeypatch):
    """The observer's clock: a list with one number."""
    now = [1000.0]
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now[0])
    return now


def observe(observer: liveness.Observer, monotonic: list[float], seconds: float) -> dict[str, int]:
    """Observe once a second. Return the workers that are dead then."""
    dead: dict[str, int] = {}
    for _ in range(int(seconds)):
        monotonic[0] += 1
        dead = observer.find_dead()
    return dead


@pytest.mark.django_db
def test_a_worker_is_dead_when_its_counter_stands_still_for_the_lease(monotonic):
    lease = conf.get().lease_seconds
    observer = liveness.Observer("default")
    liveness.beat("default", "w1")
    assert observer.find_dead() == {}
    assert observe(observer, monotonic, lease - 1) == {}
    liveness.beat("default", "w1")
    assert observe(observer, monotonic, lease) == {}
    assert observe(observer, monotonic, 1) == {"w1": 2}


@pytest.mark.django_db
def test_an_observer_that_was_away_observes_anew(monotonic):
    """After an outage of the database, or of the observer's host, nobody is dead at once."""
    observer = liveness.Observer("default")
    liveness.beat("default", "w1")
    observer.find_dead()
    monotonic[0] += 3600
    assert observer.find_dead() == {}
    assert observe(observer, monotonic, conf.get().lease_seconds) == {"w1": 1}


@pytest.mark.django_db
def test_while_the_observers_own_worker_cannot_beat_nobody_is_dead(monotonic):
    """The database can only be read: a standby before its promotion, or SQLite during a long transaction."""
    lease = conf.get().lease_seconds
    observer = liveness.Observer("default", "own")
    for worker in ("own", "w1"):
        liveness.beat("default", worker)
    for _ in range(lease * 3):
        assert observe(observer, monotonic, 1) == {}
    for _ in range(lease):
        liveness.beat("default", "own")
        assert observe(observer, monotonic, 1) == {}
    liveness.beat("default", "own")
    assert observe(observer, monotonic, 1) == {"w1": 1}


@pytest.mark.django_db
def test_a_worker_that_was_taken_for_dead_gets_its_row_again():
    liveness.beat("default", "w1")
    Worker.objects.all().delete()
    liveness.beat("default", "w1")
    assert Worker.objects.get().beat == 1


def hold(stage, key: str, worker: str, *, ttr: int = 3600) -> None:
    """Let a process claim a job and take a run slot."""
    schedule("t", key, delay=0, ttr=ttr)
    stage.mover.move_due()
    index = mirror.choose("default")
    candidates = claim.Candidates(index, "t", using="default", worker=worker)
    assert candidates.reserve(1)
    assert candidates.claim() is not None
    index.take_slot("t", f"{worker}#1", 0, 2**53, 9)


@pytest.mark.on_both
def test_the_jobs_and_run_slots_of_a_dead_worker_are_taken_back_before_their_ttr(stage, monotonic):
    stage.recorder("t")
    hold(stage, "a", "dead:1:x/7")
    hold(stage, "b", "dead:1:x/8.81")
    hold(stage, "c", "alive:1:x/7")
    observer = liveness.Observer("default")
    for worker in ("dead:1:x", "alive:1:x"):
        liveness.beat("default", worker)
    for _ in range(conf.get().lease_seconds + 2):
        observer.clean_up_dead()
        liveness.beat("default", "alive:1:x")
        monotonic[0] += 1

    assert mirror.choose("default").slot_tokens("t") == ["alive:1:x/7#1"]
    assert list(Job.objects.order_by("key").values_list("key", "state", "failures")) == [
        ("a", State.DELAYED, 1), ("b", State.DELAYED, 1), ("c", State.RESERVED, 0),
    ]  # fmt: skip
    assert [event.error for event in JobEvent.objects.all()] == [ErrorCode.WORKER_LOST] * 2
    assert list(Worker.objects.values_list("name", flat=True)) == ["alive:1:x"]
    stage.go()
    assert outcomes("a") == ["expired", "finished"]


@pytest.mark.on_both
def test_only_the_job_of_the_process_that_ended_is_taken_back(stage):
    stage.recorder("t")
    hold(stage, "a", "host:1:x/7")
    hold(stage, "b", "host:1:x/77")
    assert liveness.take_back_jobs("default", "host:1:x/7") == 1
    liveness.free_slots("default", "host:1:x/7")
    assert Job.objects.get(key="b").state == State.RESERVED
    assert mirror.choose("default").slot_tokens("t") == ["host:1:x/77#1"]


def test_a_job_that_its_dead_process_had_ended_is_not_taken_back(stage):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.go()
    assert liveness.take_back_jobs("default", "w1") == 0
    assert outcomes("a") == ["finished"]


@pytest.fixture
def worker() -> Iterator[str]:
    """The name of a worker to which this process belongs."""
    yield process_name.start_worker()
    process_name.stop_worker()


@pytest.mark.on_both
def test_stale_run_slots_are_freed(stage, worker):
    """Those of ended processes and workers, and of runs that have ended in a living process."""
    stage.recorder("t")
    index = mirror.choose("default")
    current, ended = process_name.new_slot_token(), process_name.new_slot_token()
    with process_name.in_run(current, "default"):
        for token in [current, ended, f"{worker}/8#1", "host:9:gone/7#1", "of-an-older-version"]:
            index.take_slot("t", token, 0, 2**53, 9)
        liveness.free_stale_slots("default", worker, [os.getpid()])
        assert sorted(index.slot_tokens("t")) == sorted([current, "of-an-older-version"])
    liveness.free_stale_slots("default", worker, [os.getpid()])
    assert index.slot_tokens("t") == ["of-an-older-version"]


@pytest.mark.on_both
def test_jobs_that_a_living_process_holds_outside_a_run_are_taken_back(stage, worker):
    stage.recorder("t")
    hold(stage, "a", process_name.process_name())
    with process_name.in_run("1", "default"):
        liveness.take_back_abandoned_jobs("default", worker)
    assert Job.objects.get().state == State.RESERVED
    with process_name.in_run("1", "other"):  # the run of another database says nothing about this one
        assert liveness.take_back_abandoned_jobs("default", worker)
    assert Job.objects.get().state == State.DELAYED


def test_jobs_of_a_failed_run_that_were_locked_are_taken_back_by_a_later_run(stage, worker, monkeypatch):
    stage.recorder("t")
    own = process_name.process_name()
    hold(stage, "a", own)
    monkeypatch.setattr(runner, "_unfinished", {("default", own)})
    with monkeypatch.context() as patch:
        patch.setattr(liveness, "take_back", lambda *_, **__: 0)
        stage.run("t", worker_name=own)
    assert runner._unfinished == {("default", own)}
    assert Job.objects.get().state == State.RESERVED
    stage.run("t", worker_name=own)
    assert runner._unfinished == set()
    assert outcomes("a")[0] == "expired"


def test_jobs_whose_rows_were_locked_are_looked_for_again(stage, worker, monkeypatch):
    stage.recorder("t")
    hold(stage, "a", process_name.process_name())
    thread, locked = HeartbeatThread("default", worker, list, lambda: None), [True]
    real = liveness.take_back
    monkeypatch.setattr(liveness, "take_back", lambda *args, **more: 0 if locked.pop() else real(*args, **more))
    thread._try_pass(True)
    assert thread._look_for_unseen
    locked.append(False)
    thread._look_for_unseen = False
    thread._try_pass(True)
    assert not thread._look_for_unseen
    assert Job.objects.get().state == State.DELAYED


def test_a_run_that_fails_is_noticed_by_the_heartbeat(stage, worker):
    stage.recorder("t")
    hold(stage, "a", process_name.process_name())
    thread = HeartbeatThread("default", worker, list, lambda: None)
    with process_name.in_run("1", "default"):
        pass
    assert not thread._a_run_has_failed()
    with pytest.raises(Boom), process_name.in_run(process_name.new_slot_token(), "default"):
        raise Boom
    assert thread._a_run_has_failed()
    assert not thread._a_run_has_failed()


def test_names_of_processes_and_run_slots():
    assert process_name.worker_name() is None
    assert "#" not in process_name.new_slot_token()
    worker = process_name.start_worker()
    try:
        assert process_name.process_name() == f"{worker}/{os.getpid()}"
        token = process_name.new_slot_token()
        assert process_name.slot_owner(token) == (worker, os.getpid())
        assert process_name.is_slot_of(token, f"{worker}/")
        assert not process_name.is_slot_of(token, f"{worker}/{os.getpid()}1")
    finally:
        process_name.stop_worker()


@pytest.mark.parametrize("error", [None, AttributeError, PermissionError])
def test_the_end_of_a_process_is_noticed_at_once_also_if_nobody_has_waited_for_it(monkeypatch, error):
    """Without descriptors too: they exist on Linux only, and a sandbox may refuse them."""

    def refuse(pid: int) -> int:
        raise error

    if error is not None:
        monkeypatch.setattr(heartbeat.os, "pidfd_open", refuse)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    processes = Processes()
    processes.watch([child.pid])
    assert processes.wait(0) == set()
    child.kill()
    wait_until(lambda: processes.wait(0.01 if error else 60) == {child.pid}, seconds=10, what="the end")
    child.communicate()
    processes.watch([child.pid])
    assert processes.wait(60) == {child.pid}


@pytest.mark.only_on("postgresql")  # SQLite's only writer is the transaction in which the callback hangs
def test_an_on_dead_callback_that_hangs_does_not_stop_the_beats(stage, worker, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LEASE_SECONDS": 1}
    hanging, release = threading.Event(), threading.Event()

    def hang(job):
        hanging.set()
        release.wait(60)

    stage.handler("t", max_attempts=1, on_dead=hang)(lambda job: None)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    hold(stage, "a", f"{worker}/{ended.pid}")
    thread = HeartbeatThread("default", worker, lambda: [ended.pid], lambda: None)
    thread.start()
    try:
        assert hanging.wait(10)
        beats = Worker.objects.filter(name=worker, beat__gte=3)
        wait_until(beats.exists, seconds=10, what="beats while the callback hangs")
    finally:
        release.set()
        thread.stop()
        thread.join(10)
    assert Job.objects.get().state == State.DEAD


@pytest.mark.on_both
def test_a_process_that_began_and_ended_unseen_is_found_by_its_jobs(stage, worker):
    """A job that kills its process at once: the pool's new process is gone before the next pass."""
    stage.recorder("t")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    hold(stage, "a", f"{worker}/{ended.pid}")
    hold(stage, "b", process_name.process_name())
    hold(stage, "c", "host:1:y/1")
    thread = HeartbeatThread("default", worker, list, lambda: None)
    with process_name.in_run("1", "default"):
        thread._try_pass(True)
    assert Job.objects.get(key="a").state == State.DELAYED
    assert set(Job.objects.filter(state=State.RESERVED).values_list("key", flat=True)) == {"b", "c"}


@pytest.mark.on_both
def test_the_slot_of_a_worker_that_has_just_started_is_not_freed(stage, worker, monkeypatch):
    """It starts after the workers are read for the first slot, or before."""
    stage.recorder("t")
    index = mirror.choose("default")
    real = index.slot_tokens

    def and_start_one(topic):
        tokens = real(topic)
        if topic == "t":
            Worker.objects.get_or_create(name="host:2:new")
        return tokens

    monkeypatch.setattr(mirror, "choose", lambda using: index)
    monkeypatch.setattr(index, "slot_tokens", and_start_one)
    now_ms = databases.now_ms("default")
    for owner in ("host:2:new", "host:3:gone"):
        assert index.take_slot("t", f"{owner}/7#1", now_ms, now_ms + 60_000, 9)
    liveness.free_stale_slots("default", worker, [os.getpid()])
    assert real("t") == ["host:2:new/7#1"]


def test_each_query_of_a_pass_delays_the_pools_forks(worker, monkeypatch):
    """On SQLite a process that is forked during a query may hang at its first one."""
    asked: dict[str, bool] = {}
    delays_forks = record_blocks(monkeypatch, heartbeat)
    for name in ("delete_old_touches", "free_stale_slots", "take_back_jobs", "free_slots", "holds_jobs"):

        def ask(*_, name=name):
            asked[name] = delays_forks()
            return name == "holds_jobs" and len(asked) < 5

        monkeypatch.setattr(liveness, name, ask)
    thread = HeartbeatThread("default", worker, list, lambda: None)
    thread._dead = {1}
    monkeypatch.setattr(thread._observer, "clean_up_dead", lambda: None)
    thread._try_pass(False)
    assert list(asked) == ["delete_old_touches", "free_stale_slots", "take_back_jobs", "free_slots", "holds_jobs"]
    assert all(asked.values())
    assert thread._dead == set()
