"""The client's Consumer, against a small server that can misbehave."""

import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import delaytasks
from delaytasks import client as module
from delaytasks.client import Client, Consumer, Job, Refused, Retry, Snooze, Unauthorized
from tests.support.servers import wait_until

from .support.fake_queue import TOKEN, Bad, FakeQueue, running


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(module, "MIN_POLL_SECONDS", 0.05)
    monkeypatch.setattr(module, "POLL_STOP_SECONDS", 0.5)


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    with running() as fake:
        yield fake


@pytest.fixture
def client(fake: FakeQueue) -> Iterator[Client]:
    with Client(fake.url, TOKEN, timeout_seconds=5) as client:
        yield client


class Running:
    """A consumer in a thread. `result` is what run() returned or raised."""

    def __init__(self, client: Client, handle: Callable[[Job], Any], **options: Any) -> None:
        self.consumer = Consumer(client, "t", handle, **{"grace_seconds": 5, "name": "test"} | options)
        self.result: Any = "still running"
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.consumer.run()
        except BaseException as error:
            self.result = error

    def stop(self) -> Any:
        self.consumer.stop()
        self.thread.join(20)
        return self.result


@contextmanager
def consuming(client: Client, handle: Callable[[Job], Any], **options: Any) -> Iterator[Running]:
    running = Running(client, handle, **options)
    try:
        yield running
    finally:
        running.stop()


class BlockingHandler:
    """A handler that does not return before `go` is set."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.go = threading.Event()

    def __call__(self, job: Job) -> None:
        self.jobs.append(job)
        self.go.wait(20)


class PassingTime(threading.Event):
    """A clock, and an event that is never set: each wait() for it moves the clock on at once.

    waits   seconds after the beginning at which a wait ended
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = self.began = time.monotonic()
        self.waits: list[float] = []
        monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        self.waits.append(round(self.now - self.began, 3))
        return self.is_set()


def until(done: Callable[[], Any], what: str) -> Any:
    return wait_until(done, seconds=10, what=what)


def await_state(fake: FakeQueue, id: str, expected: str = "finished") -> None:
    until(lambda: fake.jobs[id].state == expected, f"{id} to be {expected}")


# Results of a handler


def test_jobs_are_handled_and_finished_until_a_stop(client: Client, fake: FakeQueue) -> None:
    handled = []
    with consuming(client, lambda job: handled.append((job.id, job.body))) as running:
        for number in range(5):
            fake.put(f"a{number}", body=number)
        for number in range(5):
            await_state(fake, f"a{number}")
        assert running.stop() == 0
    assert sorted(handled) == [(f"a{number}", number) for number in range(5)]
    assert fake.asked("pop")[0]["consumer"] == "test"
    assert fake.asked("touch") == [], "short jobs need no heartbeat"


def test_an_exception_releases_the_job_with_its_traceback(client: Client, fake: FakeQueue) -> None:
    def handle(job: Job) -> None:
        raise LookupError("no such order")

    fake.put("a")
    with consuming(client, handle):
        (released,) = until(lambda: fake.asked("release"), "the job to be released")
    assert "no such order" in released["error"]
    assert "in handle" in released["error"]
    assert "delay" not in released, "the topic's backoff decides"
    assert fake.asked("finish") == []


def test_snooze_and_retry_choose_the_delay(client: Client, fake: FakeQueue) -> None:
    def handle(job: Job) -> Snooze:
        if job.id == "failed":
            raise Retry("the bank is closed", delay=3600)
        return Snooze(600)

    fake.put("failed")
    fake.put("early")
    with consuming(client, handle):
        until(lambda: len(fake.asked("release")) == 2, "both to be released")
    failed, early = fake.asked("release")
    assert (failed["delay"], early["delay"]) == (3600, 600)
    assert "the bank is closed" in failed["error"]
    assert "error" not in early, "it costs no attempt"


async def coroutine(job: Job) -> None: ...


def generator(job: Job) -> Iterator[None]:
    yield


async def async_generator(job: Job) -> AsyncIterator[None]:
    yield


@pytest.mark.filterwarnings("ignore:coroutine 'coroutine' was never awaited")
@pytest.mark.parametrize("handle", [coroutine, generator, async_generator])
def test_a_job_is_not_finished_if_the_body_of_its_handler_has_not_run(
    client: Client, fake: FakeQueue, handle: Callable[[Job], Any]
) -> None:
    fake.put("a")
    with consuming(client, handle):
        (ended,) = until(lambda: [*fake.asked("release"), *fake.asked("finish")], "the job to be ended")
    assert "so its body has not run" in ended["error"]


@pytest.mark.parametrize(
    ("error", "delay"), [(Retry("the bank is closed", delay=3600), 3600), (ValueError("the bank is closed"), None)]
)
def test_an_exception_that_is_returned_fails_the_job_as_if_it_was_raised(
    client: Client, fake: FakeQueue, error: Exception, delay: int | None
) -> None:
    fake.put("a")
    with consuming(client, lambda job: error):
        (ended,) = until(lambda: [*fake.asked("release"), *fake.asked("finish")], "the job to be ended")
    assert ended.get("delay") == delay
    assert "the bank is closed" in ended["error"]


@pytest.mark.parametrize("delay", ["5m", -1, float("nan"), float("inf"), timedelta(-1), True])
@pytest.mark.parametrize("answer", [lambda delay: Snooze(delay), lambda delay: Retry("no", delay=delay)])
def test_a_wrong_delay_fails_the_attempt(client: Client, fake: FakeQueue, answer: Any, delay: Any) -> None:
    """The server would refuse it, and the job would look as if its handler had hung until the end of the TTR."""
    fake.put("a")
    with consuming(client, lambda job: answer(delay)):
        (released,) = until(lambda: fake.asked("release"), "the job to be released")
    assert "give a timedelta or a number of seconds" in released["error"]
    assert "delay" not in released


def test_a_result_that_means_nothing_is_logged(
    client: Client, fake: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """For example the Snooze that handlers in workers return: the job is finished, and would not run again."""
    fake.put("a")
    with consuming(client, lambda job: delaytasks.Snooze(60)):
        await_state(fake, "a")
    assert "the handler returned Snooze(delay=60, reason=''), no Snooze of this module: finished." in caplog.text


def test_a_system_exit_fails_the_job_but_does_not_end_the_thread(client: Client, fake: FakeQueue) -> None:
    def handle(job: Job) -> None:
        if job.id == "bad":
            raise SystemExit("at once")

    fake.put("bad")
    with consuming(client, handle):
        until(lambda: fake.asked("release"), "the job to be released")
        fake.put("good")
        await_state(fake, "good")


# Number of jobs


def test_no_more_jobs_are_reserved_than_threads_are_free(client: Client, fake: FakeQueue) -> None:
    handler = BlockingHandler()
    for number in range(5):
        fake.put(f"a{number}")
    with consuming(client, handler, threads=2):
        until(lambda: len(handler.jobs) == 2, "two running jobs")
        assert [command["count"] for command in fake.asked("pop")] == [2], "it asks for no more"
        handler.go.set()
        for number in range(5):
            await_state(fake, f"a{number}")
    assert max(command["count"] for command in fake.asked("pop")) == 2


def test_a_free_thread_is_used_while_another_is_busy(client: Client, fake: FakeQueue) -> None:
    go = threading.Event()
    with consuming(client, lambda job: go.wait(10) if job.id == "slow" else None, threads=2):
        fake.put("slow")
        until(lambda: fake.held() == ["slow"], "the slow job to run")
        fake.put("quick")
        await_state(fake, "quick")
        go.set()


def test_an_empty_queue_that_answers_at_once_is_polled_with_pauses(client: Client, fake: FakeQueue) -> None:
    fake.waits = False
    started = time.monotonic()
    with consuming(client, print):
        until(lambda: len(fake.asked("pop")) >= 4, "four polls")
        assert len(fake.asked("pop")) <= 2 + (time.monotonic() - started) / module.MIN_POLL_SECONDS


# The heartbeat


def test_the_heartbeat_keeps_a_job_for_longer_than_its_ttr(client: Client, fake: FakeQueue) -> None:
    lost = []

    def handle(job: Job) -> None:
        lost.append(job.lost.wait(4.5))

    fake.put("a", ttr=3)
    with consuming(client, handle):
        await_state(fake, "a")
    assert lost == [False]
    assert fake.jobs["a"].attempt == 1
    touches = fake.times("touch")
    assert 2 <= len(touches) <= touches[-1] - fake.times("pop")[0], "at a third of the TTR"


def test_without_a_heartbeat_a_late_finish_is_refused(client: Client, fake: FakeQueue) -> None:
    fake.put("a", ttr=1)
    attempts: list[Job] = []

    def handle(job: Job) -> None:
        attempts.append(job)
        if job.attempt == 1:
            job.lost.wait(1.5)

    with consuming(client, handle, heartbeat=False):
        await_state(fake, "a")
    assert fake.asked("touch") == []
    assert attempts[0].lost.is_set()
    assert [job.attempt for job in attempts][:2] == [1, 2]


def test_lost_is_set_when_another_consumer_has_the_job(client: Client, fake: FakeQueue) -> None:
    results = []

    def handle(job: Job) -> None:
        fake.jobs["a"].attempt = 7  # another consumer has it
        results.append(job.lost.wait(5))

    fake.put("a", ttr=0.3)
    with consuming(client, handle):
        until(lambda: results, "the handler to end")
        until(lambda: fake.asked("finish"), "its finish to be refused")
    assert results[0]
    assert fake.jobs["a"].state == "live"


def test_lost_is_set_when_the_lease_could_not_be_renewed_in_time(client: Client, fake: FakeQueue) -> None:
    results = []

    def handle(job: Job) -> None:
        started = time.monotonic()
        results.append((job.lost.wait(20), time.monotonic() - started))

    fake.bad["touch"].extend([Bad(status=503)] * 100)
    fake.put("a", ttr=0.5)
    with consuming(client, handle):
        until(lambda: results, "the handler to end")
    lost, after = results[0]
    assert lost
    assert after >= 0.4
    assert len([touch for touch in fake.asked("touch") if touch["attempt"] == 1]) <= 20, "it pauses between tries"


def test_a_failed_touch_is_retried_before_the_lease_ends(client: Client, fake: FakeQueue) -> None:
    """It is refused, and then without an answer for a third of the TTR: that leaves another third."""
    fake.bad["touch"].extend([Bad(status=503), Bad(mute=True)])
    fake.put("a", ttr=9)
    with consuming(client, lambda job: until(lambda: len(fake.asked("touch")) == 3, "the third touch")):
        await_state(fake, "a")
    assert fake.jobs["a"].attempt == 1


def test_a_touch_is_tried_a_last_time_if_the_server_asks_for_a_pause_longer_than_the_lease(
    client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.bad["touch"].extend([Bad(status=503, headers={"Retry-After": "60"}), Bad(status=401)])
    fake.put("a", ttr=60)
    job, passing = client.pop("t"), PassingTime(monkeypatch)
    assert job is not None
    Consumer(client, "t", print)._renew_lease(module._HeldJob(job, passing.now + 60, done=passing))
    assert passing.waits[:2] == [20, 59.5]
    assert len(fake.asked("touch")) == 2


def test_a_hanging_handler_does_not_block_the_heartbeat_of_others(client: Client, fake: FakeQueue) -> None:
    go = threading.Event()
    fake.bad["touch"].append(Bad(mute=True))  # a hanging touch does not either
    fake.put("hangs", ttr=6)
    fake.put("long", ttr=6)

    def handle(job: Job) -> None:
        if job.id == "hangs":
            go.wait(20)
        else:
            job.lost.wait(7)

    with consuming(client, handle, threads=2):
        await_state(fake, "long")
        assert fake.jobs["long"].attempt == 1
        go.set()


def test_a_handler_that_exceeds_longest_seconds_loses_its_job(client: Client, fake: FakeQueue) -> None:
    go, attempts = threading.Event(), []

    def handle(job: Job) -> None:
        attempts.append(job)
        if job.attempt == 1:
            go.wait(20)

    fake.put("a", ttr=1)
    with consuming(client, handle, threads=2, longest_seconds=1.5):
        await_state(fake, "a")
        assert [job.attempt for job in attempts] == [1, 2]
        until(attempts[0].lost.is_set, "the first attempt to lose its lease")
        assert not attempts[1].lost.is_set()
        go.set()


# Failures


def test_an_outcome_is_reported_again_while_the_server_is_unavailable(client: Client, fake: FakeQueue) -> None:
    fake.bad["finish"].extend([Bad(status=503), Bad(lose=True), Bad(status=429, headers={"Retry-After": "0"})])
    fake.put("a")
    with consuming(client, lambda job: None):
        until(lambda: len(fake.asked("finish")) >= 3, "three tries")
    assert fake.jobs["a"].state == "finished"


def test_an_outcome_is_reported_a_last_time_if_the_server_asks_for_a_pause_longer_than_the_lease(
    client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.bad["finish"].append(Bad(status=503, headers={"Retry-After": "60"}))
    fake.put("a", ttr=60)
    popped, passing = client.pop("t"), PassingTime(monkeypatch)
    assert popped is not None
    job = replace(popped, lost=passing)
    Consumer(client, "t", print)._report(module._HeldJob(job, passing.now + 60), lambda: client.finish(job))
    assert passing.waits == [59.5]
    assert fake.jobs["a"].state == "finished"


def test_a_finish_is_not_reported_again_after_the_lease(client: Client, fake: FakeQueue) -> None:
    fake.bad["finish"].extend([Bad(status=503)] * 100)
    fake.put("a", ttr=0.4)
    fake.put("b")
    with consuming(client, lambda job: None, heartbeat=False):
        until(lambda: any(finish["id"] == "b" for finish in fake.asked("finish")), "the next job to be handled")
        fake.bad["finish"].clear()
    tries = [finish for finish in fake.asked("finish") if (finish["id"], finish["attempt"]) == ("a", 1)]
    assert len(tries) <= 20  # without the end of the lease all failures would be used up


def test_an_outcome_that_the_server_cannot_store_does_not_hold_its_job_for_ever(
    client: Client, fake: FakeQueue
) -> None:
    """The heartbeat still succeeds."""
    fake.bad["finish"].extend([Bad(status=500)] * 1000)
    fake.put("a", ttr=0.4)
    fake.put("b")
    with consuming(client, lambda job: None) as running:
        until(lambda: any(finish["id"] == "b" for finish in fake.asked("finish")), "the next job to be handled")
        assert [held.job.id for held in running.consumer._held] == ["b"]
        fake.bad["finish"].clear()


def test_the_pauses_grow_while_the_server_is_unavailable(client: Client, fake: FakeQueue) -> None:
    fake.bad["pop"].extend([Bad(status=502)] * 4)
    fake.put("a")
    with consuming(client, lambda job: None):
        await_state(fake, "a")
    times = fake.times("pop")
    pauses = [later - earlier for earlier, later in pairwise(times[:5])]
    for pause, shortest in zip(pauses, (0.025, 0.05, 0.1, 0.2), strict=True):
        assert shortest <= pause, pauses


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected(client: Client, fake: FakeQueue, status: int) -> None:
    fake.bad["pop"].append(Bad(status=status, headers={"Retry-After": "0.7"}))
    fake.put("a")
    with consuming(client, lambda job: None):
        await_state(fake, "a")
    first, second = fake.times("pop")[:2]
    assert second - first >= 0.7


def test_jobs_are_handled_again_when_the_server_is_back(client: Client, fake: FakeQueue) -> None:
    with consuming(client, lambda job: None):
        until(lambda: fake.asked("pop"), "a pop")
        fake.bad["pop"].extend([Bad(lose=True)] * 3)
        fake.close_idle_connections()
        until(lambda: len(fake.asked("pop")) >= 4, "another poll")
        fake.put("a")
        await_state(fake, "a")


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (403, Unauthorized), (400, Refused)])
def test_a_permanent_error_ends_the_consumer(client: Client, fake: FakeQueue, status: int, kind: type) -> None:
    fake.bad["pop"].append(Bad(status=status))
    with consuming(client, print) as running:
        running.thread.join(10)
        assert type(running.result) is kind
        assert "for a test" in str(running.result)
    assert len(fake.asked("pop")) == 1


@pytest.mark.parametrize("command", ["touch", "finish"])
def test_a_token_revoked_while_a_job_runs_ends_the_consumer(client: Client, fake: FakeQueue, command: str) -> None:
    fake.bad[command].append(Bad(status=401))
    fake.put("a", ttr=3)

    def handle(job: Job) -> None:
        until(lambda: fake.asked("touch"), "a touch")

    with consuming(client, handle) as running:
        running.thread.join(10)
        assert type(running.result) is Unauthorized
    assert fake.asked("finish"), "the running job is reported first"


# Stopping


def test_a_waiting_poll_ends_at_once(client: Client, fake: FakeQueue) -> None:
    with consuming(client, print, wait=30) as running:
        until(lambda: fake.asked("pop"), "a pop")
        started = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started < 15
    until(lambda: fake.goodbyes == 1, "the server to notice")
    assert len(fake.asked("pop")) == 1


def test_a_job_that_arrives_during_the_stop_is_released(
    client: Client, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_STOP_SECONDS", 20)  # a busy machine may answer late
    fake.put("late")
    fake.parting_gift = "late"
    handled: list[Job] = []
    with consuming(client, handled.append, grace_seconds=20) as running:
        until(lambda: fake.asked("pop"), "a pop")
        assert running.stop() == 0
    assert fake.asked("release") == [{"command": "release", "topic": "t", "id": "late", "attempt": 1}]
    assert handled == []


def test_a_server_that_does_not_end_the_poll_does_not_delay_the_stop(client: Client, fake: FakeQueue) -> None:
    fake.hears_goodbyes = False
    with consuming(client, print) as running:
        until(lambda: fake.asked("pop"), "a pop")
        started = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started < 15
    fake.hears_goodbyes = True


def test_running_jobs_are_finished_before_run_returns(client: Client, fake: FakeQueue) -> None:
    handler = BlockingHandler()
    fake.put("a")
    fake.put("b")
    with consuming(client, handler, threads=2) as running:
        until(lambda: len(handler.jobs) == 2, "two running jobs")
        fake.put("c")
        running.consumer.stop()
        running.thread.join(3 * module.POLL_STOP_SECONDS)
        assert running.thread.is_alive(), "it waits for the handlers, not only for the poll"
        handler.go.set()
        assert running.stop() == 0
    assert [fake.jobs[id].state for id in "abc"] == ["finished", "finished", "live"]
    assert fake.jobs["c"].attempt == 0


def test_after_the_grace_time_run_returns_the_number_of_running_jobs(
    client: Client, fake: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    handler = BlockingHandler()
    fake.put("a")
    with consuming(client, handler, grace_seconds=0.1) as running:
        until(lambda: handler.jobs, "a running job")
        assert running.stop() == 1
        assert "t a, attempt 1" in caplog.text
        handler.go.set()
        await_state(fake, "a")  # the process lives on, so the job still finishes


def test_a_stop_interrupts_a_pause(client: Client, fake: FakeQueue) -> None:
    fake.bad["pop"].append(Bad(status=429, headers={"Retry-After": "60"}))
    with consuming(client, print) as running:
        until(lambda: fake.asked("pop"), "a pop")
        started = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started < 15


def test_a_consumer_runs_once(client: Client) -> None:
    with consuming(client, print) as running:
        running.stop()
        with pytest.raises(RuntimeError, match="once"):
            running.consumer.run()


def test_signals_stop_it_and_the_previous_signal_handlers_are_restored(client: Client, fake: FakeQueue) -> None:
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, lambda number, _: caught.append(number))
        for number in before:
            fake.put(f"job {number}")
            consumer = Consumer(client, "t", lambda job, n=number: os.kill(os.getpid(), n))
            assert consumer.run() == 0
            await_state(fake, f"job {number}")
        assert caught == [], "the consumer handles them"
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught == [signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signal_handlers_are_left_alone_on_request_and_in_other_threads(client: Client, fake: FakeQueue) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    fake.put("a")
    with consuming(client, lambda job: seen.append(signal.getsignal(signal.SIGTERM))):
        await_state(fake, "a")
    fake.put("b")
    consumer = Consumer(client, "t", lambda job: None, install_signal_handlers=False)

    def record_and_stop(job: Job) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        consumer.stop()

    consumer._handle = record_and_stop
    assert consumer.run() == 0
    assert seen == [before, before]


@pytest.mark.parametrize("options", [{"threads": 0}, {"wait": -1}])
def test_invalid_options_are_refused(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs threads"):
        Consumer(client, "t", print, **options)
