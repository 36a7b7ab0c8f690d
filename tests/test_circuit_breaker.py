"""The circuit breaker: after a failure calls are refused for a pause, then one caller tries again."""

import threading
from collections.abc import Callable

import pytest

from delaytasks.circuit_breaker import CircuitBreaker, CircuitOpen
from tests.support.forks import succeeds_in_fork

SECONDS = 5  # time limit of a thread


class Down(Exception):
    """The service does not answer."""


class Service:
    """Answers, or raises `failure`, behind a breaker whose clock is set by hand."""

    def __init__(self, *pauses_seconds: float) -> None:
        self.now = 0.0
        self.failure: BaseException | None = None
        self.calls = 0
        self.breaker = CircuitBreaker(Down, *pauses_seconds, monotonic=lambda: self.now)

    def answer(self) -> str:
        self.calls += 1
        if self.failure:
            raise self.failure
        return "answer"

    def ask(self) -> str:
        return self.breaker.call(self.answer)

    def fail(self) -> None:
        self.failure = Down()
        with pytest.raises(Down):
            self.ask()
        self.failure = None


class Call:
    """A call in its own thread, which stays in the service until end()."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.failure: BaseException | None = None
        self.raised: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.begun.wait(SECONDS), "the call was refused"

    def _run(self) -> None:
        try:
            self.breaker.call(self._serve)
        except BaseException as error:
            self.raised = error

    def _serve(self) -> None:
        self.begun.set()
        assert self.may_end.wait(SECONDS)
        if self.failure:
            raise self.failure

    def end(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.may_end.set()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        assert self.raised is failure


@pytest.fixture
def service() -> Service:
    return Service(10.0)


@pytest.fixture
def call(service: Service) -> Callable[[], Call]:
    return lambda: Call(service.breaker)


# One caller


def test_while_the_service_answers_every_call_is_made(service: Service) -> None:
    assert [service.ask(), service.ask(), service.calls] == ["answer", "answer", 2]
    assert service.breaker.closed
    assert not service.breaker.refuses


def test_arguments_are_passed_on(service: Service) -> None:
    assert service.breaker.call(divmod, 7, 2) == (3, 1)
    assert service.breaker.call(sorted, [1, 2], reverse=True) == [2, 1]


def test_after_a_failure_calls_are_refused_until_the_pause_is_over(service: Service) -> None:
    service.fail()
    service.now = 9.9
    assert service.breaker.refuses
    with pytest.raises(CircuitOpen):
        service.ask()
    assert service.calls == 1
    service.now = 10.0
    assert not service.breaker.refuses
    assert not service.breaker.closed
    assert service.ask() == "answer"
    assert service.breaker.closed


def test_each_failure_in_a_row_has_its_own_pause_and_the_last_pause_repeats() -> None:
    service = Service(1.0, 2.0, 3.0)
    refused_until = []
    for _ in range(5):
        service.fail()
        refused_until.append(next(second for second in range(100) if not refuses_at(service, second)))
    assert refused_until == [1, 3, 6, 9, 12]


def refuses_at(service: Service, second: float) -> bool:
    service.now = max(service.now, second)
    return service.breaker.refuses


def test_after_a_success_the_pauses_start_again() -> None:
    service = Service(1.0, 60.0)
    service.fail()
    service.now = 1.0
    service.ask()
    service.fail()
    service.now = 2.0
    assert service.ask() == "answer"


@pytest.mark.parametrize("error", [KeyError("key"), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_another_error_does_not_open_the_circuit(service: Service, error: BaseException) -> None:
    service.failure = error
    with pytest.raises(type(error)):
        service.ask()
    assert service.breaker.closed


def test_after_a_probe_with_another_error_the_next_caller_probes(service: Service, call: Callable[[], Call]) -> None:
    service.fail()
    service.now = 10.0
    call().end(SystemExit())
    assert not service.breaker.closed
    assert service.ask() == "answer"


def test_a_reset_forgets_the_failures(service: Service) -> None:
    service.fail()
    service.breaker.reset()
    assert service.ask() == "answer"


# Several callers


def test_after_the_pause_one_caller_probes_and_the_others_are_refused(service: Service) -> None:
    service.fail()
    service.now = 10.0
    ready, probing, refused = threading.Barrier(20), [], []
    all_others_are_refused = threading.Event()

    def probe() -> None:
        probing.append(threading.get_ident())
        assert all_others_are_refused.wait(SECONDS)

    def ask() -> None:
        ready.wait(SECONDS)
        try:
            service.breaker.call(probe)
        except CircuitOpen:
            refused.append(threading.get_ident())
            if len(refused) == 19:
                all_others_are_refused.set()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert (len(probing), len(refused)) == (1, 19)
    assert service.breaker.closed


def test_the_others_are_refused_while_the_probe_runs(service: Service, call: Callable[[], Call]) -> None:
    service.fail()
    service.now = 10.0
    probe = call()
    service.now = 1_000_000.0
    assert service.breaker.refuses
    with pytest.raises(CircuitOpen):
        service.ask()
    probe.end()
    assert service.ask() == "answer"


def test_a_failed_probe_starts_the_next_pause(service: Service, call: Callable[[], Call]) -> None:
    service.fail()
    service.now = 10.0
    probe = call()
    service.now = 12.0
    probe.end(Down())
    service.now = 21.9
    assert service.breaker.refuses
    service.now = 22.0
    assert service.ask() == "answer"


def test_calls_that_fail_together_count_once() -> None:
    service = Service(1.0, 60.0)
    calls = [Call(service.breaker) for _ in range(5)]
    for each in calls:
        each.end(Down())
    service.now = 1.0
    assert service.ask() == "answer"


def test_a_success_of_a_call_that_began_before_the_failure_does_not_close_the_circuit(
    service: Service, call: Callable[[], Call]
) -> None:
    slow = call()
    service.fail()
    slow.end()
    with pytest.raises(CircuitOpen):
        service.ask()


def test_the_probing_thread_may_call_again(service: Service) -> None:
    service.fail()
    service.now = 10.0
    assert service.breaker.call(service.ask) == "answer"
    assert service.breaker.closed


def test_a_forked_process_does_not_wait_for_a_probe_of_its_parent(service: Service, call: Callable[[], Call]) -> None:
    service.fail()
    service.now = 10.0
    probe = call()
    assert succeeds_in_fork(lambda: not service.breaker.refuses and service.ask() == "answer")
    assert service.breaker.refuses
    probe.end()
