"""The consumer loop of the client, against a small server that can behave badly."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from delaytasks import client as module
from delaytasks.client import Client, Consumer, Job, Refused, Retry, Snooze, Unauthorized
from tests.servers import wait_until

from .fake_queue import TOKEN, Bad, FakeQueue, running


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_REST_SECONDS", 0.05)
    monkeypatch.setattr(module, "EMPTY_SECONDS", 0.05)
    monkeypatch.setattr(module, "PARTING_SECONDS", 0.5)


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    with running() as fake:
        yield fake


@pytest.fixture
def client(fake: FakeQueue) -> Iterator[Client]:
    with Client(fake.url, TOKEN, timeout_seconds=5) as client:
        yield client


class Running:
    """A consumer in a thread. `result`: what run() returned or raised."""

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


class InHand:
    """A handler that holds its jobs until `go`."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.go = threading.Event()

    def __call__(self, job: Job) -> None:
        self.jobs.append(job)
        self.go.wait(20)


def until(done: Callable[[], Any], what: str) -> Any:
    return wait_until(done, seconds=10, what=what)


def state(fake: FakeQueue, id: str, wanted: str = "finished") -> None:
    until(lambda: fake.jobs[id].state == wanted, f"{id} to be {wanted}")


# What a handler can do


def test_jobs_are_handled_and_finished_until_it_is_stopped(client: Client, fake: FakeQueue) -> None:
    handled = []
    with consuming(client, lambda job: handled.append((job.id, job.body))) as running:
        for number in range(5):
            fake.put(f"a{number}", body=number)
        for number in range(5):
            state(fake, f"a{number}")
        assert running.stop() == 0
    assert sorted(handled) == [(f"a{number}", number) for number in range(5)]
    assert fake.asked("pop")[0]["consumer"] == "test"
    assert fake.asked("touch") == [], "short jobs need no heartbeat"


def test_a_handler_that_raises_gives_the_job_back_with_its_traceback(client: Client, fake: FakeQueue) -> None:
    def handle(job: Job) -> None:
        raise LookupError("no such order")

    fake.put("a")
    with consuming(client, handle):
        (released,) = until(lambda: fake.asked("release"), "the job to be given back")
    assert "no such order" in released["error"]
    assert "in handle" in released["error"]
    assert "delay" not in released, "the topic's backoff decides"
    assert fake.asked("finish") == []


def test_a_handler_chooses_when_to_be_asked_again(client: Client, fake: FakeQueue) -> None:
    def handle(job: Job) -> Snooze:
        if job.id == "failed":
            raise Retry("the bank is closed", delay=3600)
        return Snooze(600)

    fake.put("failed")
    fake.put("early")
    with consuming(client, handle):
        until(lambda: len(fake.asked("release")) == 2, "both to be given back")
    failed, early = fake.asked("release")
    assert (failed["delay"], early["delay"]) == (3600, 600)
    assert "the bank is closed" in failed["error"]
    assert "error" not in early, "it costs no attempt"


def test_a_handler_that_ends_its_thread_loses_a_job_and_not_the_thread(client: Client, fake: FakeQueue) -> None:
    def handle(job: Job) -> None:
        if job.id == "bad":
            raise SystemExit("at once")

    fake.put("bad")
    with consuming(client, handle):
        until(lambda: fake.asked("release"), "the job to be given back")
        fake.put("good")
        state(fake, "good")


# How many


def test_it_takes_no_more_jobs_than_it_has_free_threads(client: Client, fake: FakeQueue) -> None:
    in_hand = InHand()
    for number in range(5):
        fake.put(f"a{number}")
    with consuming(client, in_hand, threads=2):
        until(lambda: len(in_hand.jobs) == 2, "two jobs in hand")
        assert [given["count"] for given in fake.asked("pop")] == [2], "and it does not ask for more"
        in_hand.go.set()
        for number in range(5):
            state(fake, f"a{number}")
    assert max(given["count"] for given in fake.asked("pop")) == 2


def test_a_free_thread_is_used_while_another_is_busy(client: Client, fake: FakeQueue) -> None:
    go = threading.Event()
    with consuming(client, lambda job: go.wait(10) if job.id == "slow" else None, threads=2):
        fake.put("slow")
        until(lambda: fake.held() == ["slow"], "the slow one in hand")
        fake.put("quick")
        state(fake, "quick")
        go.set()


def test_an_empty_queue_that_answers_at_once_is_not_asked_without_a_rest(client: Client, fake: FakeQueue) -> None:
    fake.waits = False
    started = time.monotonic()
    with consuming(client, print):
        until(lambda: len(fake.asked("pop")) >= 4, "four questions")
        assert len(fake.asked("pop")) <= 2 + (time.monotonic() - started) / module.EMPTY_SECONDS


# The heartbeat


def test_the_heartbeat_keeps_a_job_for_longer_than_its_ttr(client: Client, fake: FakeQueue) -> None:
    lost = []

    def handle(job: Job) -> None:
        lost.append(job.lost.wait(2.5))

    fake.put("a", ttr=1)
    with consuming(client, handle):
        state(fake, "a")
    assert lost == [False]
    assert fake.jobs["a"].attempt == 1
    assert 4 <= len(fake.asked("touch")) <= 8, "at a third of the TTR"


def test_without_a_heartbeat_a_late_finish_is_refused(client: Client, fake: FakeQueue) -> None:
    fake.put("a", ttr=1)
    attempts: list[Job] = []

    def handle(job: Job) -> None:
        attempts.append(job)
        if job.attempt == 1:
            job.lost.wait(1.5)

    with consuming(client, handle, heartbeat=False):
        state(fake, "a")
    assert fake.asked("touch") == []
    assert attempts[0].lost.is_set()
    assert [job.attempt for job in attempts] == [1, 2]


def test_a_handler_is_told_when_its_lease_is_lost(client: Client, fake: FakeQueue) -> None:
    told = []

    def handle(job: Job) -> None:
        fake.jobs["a"].attempt = 7  # somebody else has it
        told.append(job.lost.wait(5))

    fake.put("a", ttr=0.3)
    with consuming(client, handle):
        until(lambda: told, "the handler to end")
        until(lambda: fake.asked("finish"), "its finish to be refused")
    assert told[0]
    assert fake.jobs["a"].state == "live"


def test_a_lease_that_could_not_be_renewed_in_time_is_lost(client: Client, fake: FakeQueue) -> None:
    told = []

    def handle(job: Job) -> None:
        started = time.monotonic()
        told.append((job.lost.wait(5), time.monotonic() - started))

    fake.bad["touch"].extend([Bad(status=503)] * 100)
    fake.put("a", ttr=0.5)
    with consuming(client, handle):
        until(lambda: told, "the handler to end")
    lost, after = told[0]
    assert lost
    assert 0.4 <= after <= 1.5
    assert len([given for given in fake.asked("touch") if given["attempt"] == 1]) <= 20, "it rests between its tries"


def test_a_touch_that_fails_once_is_tried_again_before_the_lease_is_over(client: Client, fake: FakeQueue) -> None:
    fake.bad["touch"].extend([Bad(status=503), Bad(mute=True)])
    fake.put("a", ttr=3)
    with consuming(client, lambda job: job.lost.wait(4)):
        state(fake, "a")
    assert fake.jobs["a"].attempt == 1


def test_a_handler_that_hangs_does_not_hold_up_the_heartbeat_of_others(client: Client, fake: FakeQueue) -> None:
    go = threading.Event()
    fake.bad["touch"].append(Bad(mute=True))  # nor does a touch that hangs
    fake.put("hangs", ttr=1)
    fake.put("long", ttr=1)

    def handle(job: Job) -> None:
        if job.id == "hangs":
            go.wait(20)
        else:
            job.lost.wait(2.5)

    with consuming(client, handle, threads=2):
        state(fake, "long")
        assert fake.jobs["long"].attempt == 1
        go.set()


def test_a_handler_that_runs_too_long_is_touched_no_more_and_its_job_is_taken_back(
    client: Client, fake: FakeQueue
) -> None:
    go, attempts = threading.Event(), []

    def handle(job: Job) -> None:
        attempts.append(job)
        if job.attempt == 1:
            go.wait(20)

    fake.put("a", ttr=1)
    with consuming(client, handle, threads=2, longest_seconds=1.5):
        state(fake, "a")
        assert [job.attempt for job in attempts] == [1, 2]
        until(attempts[0].lost.is_set, "the first to be told")
        assert not attempts[1].lost.is_set()
        go.set()


# Trouble


def test_the_end_of_a_job_is_told_again_while_the_server_is_away(client: Client, fake: FakeQueue) -> None:
    fake.bad["finish"].extend([Bad(status=503), Bad(lose=True), Bad(status=429, headers={"Retry-After": "0"})])
    fake.put("a")
    with consuming(client, lambda job: None):
        until(lambda: len(fake.asked("finish")) >= 3, "three tries")
    assert fake.jobs["a"].state == "finished"


def test_a_finish_is_not_told_again_after_the_lease(client: Client, fake: FakeQueue) -> None:
    fake.bad["finish"].extend([Bad(status=503)] * 100)
    fake.put("a", ttr=0.4)
    fake.put("b")
    with consuming(client, lambda job: None, heartbeat=False):
        until(lambda: any(given["id"] == "b" for given in fake.asked("finish")), "the next job to be handled")
        fake.bad["finish"].clear()
    first = [
        at
        for at, given in fake.received
        if given["command"] == "finish" and (given["id"], given["attempt"]) == ("a", 1)
    ]
    assert max(first) - fake.times("pop")[0] <= 2  # it is refused, and would be told again, for longer


def test_it_rests_longer_each_time_while_the_server_is_away(client: Client, fake: FakeQueue) -> None:
    fake.bad["pop"].extend([Bad(status=502)] * 4)
    fake.put("a")
    with consuming(client, lambda job: None):
        state(fake, "a")
    asked = fake.times("pop")
    rests = [later - earlier for earlier, later in pairwise(asked[:5])]
    for rest, least in zip(rests, (0.025, 0.05, 0.1, 0.2), strict=True):
        assert least <= rest, rests


@pytest.mark.parametrize("status", [429, 503])
def test_it_asks_again_when_the_server_said_and_not_before(client: Client, fake: FakeQueue, status: int) -> None:
    fake.bad["pop"].append(Bad(status=status, headers={"Retry-After": "0.7"}))
    fake.put("a")
    with consuming(client, lambda job: None):
        state(fake, "a")
    first, second = fake.times("pop")[:2]
    assert second - first >= 0.7


def test_a_server_that_comes_back_is_found(client: Client, fake: FakeQueue) -> None:
    with consuming(client, lambda job: None):
        until(lambda: fake.asked("pop"), "a pop")
        fake.bad["pop"].extend([Bad(lose=True)] * 3)
        fake.close_idle_connections()
        until(lambda: len(fake.asked("pop")) >= 4, "it to ask again")
        fake.put("a")
        state(fake, "a")


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (403, Unauthorized), (400, Refused)])
def test_what_makes_going_on_useless_ends_it_with_that_error(
    client: Client, fake: FakeQueue, status: int, kind: type
) -> None:
    fake.bad["pop"].append(Bad(status=status))
    with consuming(client, print) as running:
        running.thread.join(10)
        assert type(running.result) is kind
        assert "for a test" in str(running.result)
    assert len(fake.asked("pop")) == 1


@pytest.mark.parametrize("command", ["touch", "finish"])
def test_a_token_revoked_while_a_job_is_in_hand_ends_it_too(client: Client, fake: FakeQueue, command: str) -> None:
    fake.bad[command].append(Bad(status=401))
    fake.put("a", ttr=1)

    def handle(job: Job) -> None:
        until(lambda: fake.asked("touch"), "a touch")

    with consuming(client, handle) as running:
        running.thread.join(10)
        assert type(running.result) is Unauthorized
    assert fake.asked("finish"), "what is in hand is ended first"


# The end


def test_a_poll_that_waits_is_called_off_at_once(client: Client, fake: FakeQueue) -> None:
    with consuming(client, print, wait=30) as running:
        until(lambda: fake.asked("pop"), "a pop")
        started = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started < 2
    until(lambda: fake.goodbyes == 1, "the server to notice")
    assert len(fake.asked("pop")) == 1


def test_a_job_that_arrives_while_it_stops_is_given_back(client: Client, fake: FakeQueue) -> None:
    fake.put("late")
    fake.parting_gift = "late"
    handled: list[Job] = []
    with consuming(client, handled.append) as running:
        until(lambda: fake.asked("pop"), "a pop")
        assert running.stop() == 0
    assert fake.asked("release") == [{"command": "release", "topic": "t", "id": "late", "attempt": 1}]
    assert handled == []


def test_a_server_that_does_not_hear_a_goodbye_is_left(client: Client, fake: FakeQueue) -> None:
    fake.hears_goodbyes = False
    with consuming(client, print) as running:
        until(lambda: fake.asked("pop"), "a pop")
        started = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started < 3
    fake.hears_goodbyes = True


def test_what_is_in_hand_is_finished_before_it_returns(client: Client, fake: FakeQueue) -> None:
    in_hand = InHand()
    fake.put("a")
    fake.put("b")
    with consuming(client, in_hand, threads=2) as running:
        until(lambda: len(in_hand.jobs) == 2, "two jobs in hand")
        fake.put("c")
        running.consumer.stop()
        running.thread.join(3 * module.PARTING_SECONDS)
        assert running.thread.is_alive(), "it waits for them, and not only for its poll"
        in_hand.go.set()
        assert running.stop() == 0
    assert [fake.jobs[id].state for id in "abc"] == ["finished", "finished", "live"]
    assert fake.jobs["c"].attempt == 0


def test_after_the_grace_it_returns_and_says_how_many_are_still_in_hand(
    client: Client, fake: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    in_hand = InHand()
    fake.put("a")
    with consuming(client, in_hand, grace_seconds=0.1) as running:
        until(lambda: in_hand.jobs, "a job in hand")
        assert running.stop() == 1
        assert "t a, attempt 1" in caplog.text
        in_hand.go.set()
        state(fake, "a")  # the process lives on, so it does end


def test_a_rest_is_cut_short(client: Client, fake: FakeQueue) -> None:
    fake.bad["pop"].append(Bad(status=429, headers={"Retry-After": "60"}))
    with consuming(client, print) as running:
        until(lambda: fake.asked("pop"), "a pop")
        started = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started < 2


def test_it_runs_once(client: Client) -> None:
    with consuming(client, print) as running:
        running.stop()
        with pytest.raises(RuntimeError, match="once"):
            running.consumer.run()


def test_sigterm_stops_it_and_the_handlers_of_before_are_put_back(client: Client, fake: FakeQueue) -> None:
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, lambda number, _: caught.append(number))
        for number in before:
            fake.put(f"job {number}")
            consumer = Consumer(client, "t", lambda job, n=number: os.kill(os.getpid(), n))
            assert consumer.run() == 0
            state(fake, f"job {number}")
        assert caught == [], "it was the consumer's"
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught == [signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signals_are_left_alone_on_request_and_outside_the_main_thread(client: Client, fake: FakeQueue) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    fake.put("a")
    with consuming(client, lambda job: seen.append(signal.getsignal(signal.SIGTERM))):
        state(fake, "a")
    fake.put("b")
    consumer = Consumer(client, "t", lambda job: None, install_signal_handlers=False)

    def look_and_stop(job: Job) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        consumer.stop()

    consumer._handle = look_and_stop
    assert consumer.run() == 0
    assert seen == [before, before]


@pytest.mark.parametrize("options", [{"threads": 0}, {"wait": -1}])
def test_a_consumer_that_could_not_work_is_refused(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs threads"):
        Consumer(client, "t", print, **options)
