"""The TTR is enforced: with the real timer in this process and the watchdog in child processes."""

import faulthandler
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delaytasks.exceptions import TTRExceeded
from delaytasks.worker import ttr

# An interrupt that comes inside a __del__, or a callback of the garbage collector, is swallowed and then repeated.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
ROOT = Path(__file__).parents[2]
FOREVER_SECONDS = 20  # the handler is interrupted long before


@pytest.fixture
def enforced(ttr_state: None) -> Iterator[None]:
    """Switch the interrupt on, without the watchdog. Afterwards no timer and no signal handler is left."""
    before = signal.getsignal(signal.SIGALRM)
    ttr.enforce(watchdog=False, grace_seconds=1)
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "a timer was left running"
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.fixture
def watchdog(ttr_state: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The calls to the watchdog, in order; it is only a recorder here."""
    calls: list[tuple] = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda after, **kwargs: calls.append(("arm", after, kwargs))
    )
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: calls.append(("cancel",)))
    ttr.enforce(watchdog=True, grace_seconds=2)
    return calls


def wait_forever() -> None:
    threading.Event().wait(FOREVER_SECONDS)


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def spin_forever() -> None:
    spin(FOREVER_SECONDS)


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Call `call` in another thread. Return its result or its exception."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


# The interrupt


@pytest.mark.parametrize("work", [wait_forever, spin_forever])
def test_a_handler_that_exceeds_its_ttr_is_interrupted(enforced: None, work: Any) -> None:
    began = time.monotonic()
    with pytest.raises(TTRExceeded, match="longer than its TTR"), ttr.limit(40):
        work()
    assert 0.039 <= time.monotonic() - began < FOREVER_SECONDS / 2


def test_a_handler_that_catches_every_exception_is_interrupted_as_well(enforced: None) -> None:
    caught = []
    with pytest.raises(TTRExceeded), ttr.limit(20):
        try:
            wait_forever()
        except Exception as error:
            caught.append(error)
    assert caught == []


def test_the_finally_blocks_of_an_interrupted_handler_run(enforced: None) -> None:
    cleaned = []
    with pytest.raises(TTRExceeded), ttr.limit(20):
        try:
            wait_forever()
        finally:
            cleaned.append("closed the file")
    assert cleaned == ["closed the file"]


def test_a_quick_handler_is_not_interrupted_and_leaves_no_timer(enforced: None) -> None:
    with ttr.limit(60_000):
        left = signal.getitimer(signal.ITIMER_REAL)[0]
    assert 59 < left <= 60
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_the_exception_of_a_handler_is_raised_unchanged(enforced: None) -> None:
    with pytest.raises(ZeroDivisionError), ttr.limit(60_000):
        _ = 1 / 0


def test_another_signal_handler_is_restored_afterwards(enforced: None) -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: received.append(number))
    try:
        with ttr.limit(60_000):
            pass
        signal.raise_signal(signal.SIGALRM)
        assert received == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("ms", [1, 0, -60_000])
def test_a_lease_that_has_ended_is_interrupted_at_once(enforced: None, ms: int) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(ms):
        wait_forever()


def test_an_interrupt_at_the_end_of_the_handler_leaves_nothing_armed(enforced: None) -> None:
    before = signal.getsignal(signal.SIGALRM)
    interrupted = 0
    for microseconds in range(800, 1200, 2):
        end = time.monotonic() + microseconds / 1_000_000
        try:
            with ttr.limit(1):
                while time.monotonic() < end:
                    pass
        except TTRExceeded:
            interrupted += 1
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        assert signal.getsignal(signal.SIGALRM) is before
    assert interrupted


def test_each_of_two_successive_limits_has_its_own_time(enforced: None) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(10):
        wait_forever()
    with ttr.limit(60_000):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 59


def test_a_running_query_is_cancelled_before_the_interrupt(ttr_state: None) -> None:
    events = []
    ttr.enforce(watchdog=False, grace_seconds=60, before_interrupt=lambda: events.append("query cancelled"))
    with ttr.limit(60_000):
        pass
    assert events == [], "nothing is cancelled for a handler that ends in time"
    try:
        with ttr.limit(10):
            wait_forever()
    except TTRExceeded:
        events.append("interrupted")
    assert events == ["query cancelled", "interrupted"]


def test_a_swallowed_interrupt_is_repeated(ttr_state: None) -> None:
    ttr.enforce(watchdog=False, grace_seconds=0.4)
    swallowed = []
    with pytest.raises(TTRExceeded), ttr.limit(10):
        for _ in range(2):
            try:
                wait_forever()
            except TTRExceeded as interrupt:
                swallowed.append(interrupt)
        wait_forever()
    assert len(swallowed) == 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# Renewed leases


def test_a_renewed_lease_restarts_the_limit(enforced: None) -> None:
    with ttr.limit(20):
        ttr.rearm(60_000)
        spin(0.06)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 59


def test_a_renewed_lease_is_interrupted_at_its_end(enforced: None) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(60_000):
        ttr.rearm(20)
        wait_forever()


def test_a_lease_that_is_renewed_without_a_limit_starts_no_timer(enforced: None) -> None:
    ttr.rearm(60_000)
    with ttr.limit(60_000):
        pass
    ttr.rearm(60_000)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# Where it cannot be enforced


def test_a_limit_has_no_effect_unless_it_is_enforced(ttr_state: None) -> None:
    with ttr.limit(1):
        ttr.rearm(1)
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_limit_has_no_effect_in_a_thread(enforced: None) -> None:
    def work() -> Any:
        with ttr.limit(1):
            ttr.rearm(1)
            return signal.getitimer(signal.ITIMER_REAL)

    assert in_a_thread(work) == (0, 0)


def test_a_thread_that_renews_a_lease_does_not_change_the_main_threads_limit(enforced: None) -> None:
    with ttr.limit(60_000):
        in_a_thread(lambda: ttr.rearm(600_000))
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= 60


# The watchdog


def test_the_watchdog_is_armed_with_a_grace_after_the_ttr_and_disarmed_at_the_end(watchdog: list[tuple]) -> None:
    with ttr.limit(60_000):
        assert watchdog == [("arm", 62.0, {"exit": True, "file": sys.__stderr__})]
    assert watchdog[1:] == [("cancel",)]


def test_the_watchdog_is_disarmed_after_an_interrupt_too(watchdog: list[tuple]) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(10):
        wait_forever()
    assert [call[0] for call in watchdog] == ["arm", "cancel"]


def test_a_renewed_lease_moves_the_watchdog(watchdog: list[tuple]) -> None:
    with ttr.limit(60_000):
        ttr.rearm(120_000)
    assert [call[:2] for call in watchdog] == [("arm", 62.0), ("arm", 122.0), ("cancel",)]


def test_no_watchdog_is_armed_unless_it_is_enabled(watchdog: list[tuple]) -> None:
    ttr.enforce(watchdog=False, grace_seconds=2)
    with ttr.limit(60_000):
        ttr.rearm(60_000)
    assert watchdog == []


OBEYS = """
with ttr.limit(20):
    try:
        time.sleep(20)
    except TTRExceeded:
        print("interrupted")
print("alive")
"""
SWALLOWS = """
with ttr.limit(20):
    while True:
        try:
            time.sleep(20)
        except BaseException:
            print("swallowed", flush=True)
"""
MASKS = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
with ttr.limit(20):
    hang()
"""
HOLDS_THE_GIL = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
with ttr.limit(20):
    ctypes.PyDLL(None).sleep(20)
"""


def run_in_child(handler: str, *, grace: float = 0.2) -> tuple[int, str, str, float]:
    """Run the handler in a child. Return its exit status, output, errors and duration in seconds."""
    program = (
        "import ctypes, signal, time\n"
        "from delaytasks.worker import ttr\n"
        "from delaytasks.exceptions import TTRExceeded\n"
        "def hang(): time.sleep(20)\n"
        f"ttr.enforce(watchdog=True, grace_seconds={grace})\n{handler}"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def test_the_process_of_a_handler_that_obeys_the_interrupt_goes_on() -> None:
    status, output, errors, _ = run_in_child(OBEYS, grace=10)
    assert (status, output.split(), errors) == (0, ["interrupted", "alive"], "")


@pytest.mark.parametrize(
    ("handler", "shows"),
    [
        pytest.param(SWALLOWS, "<module>", id="swallows-everything"),
        pytest.param(MASKS, "in hang", id="blocks-the-signal"),
        pytest.param(HOLDS_THE_GIL, "<module>", id="holds-the-gil"),
    ],
)
def test_a_process_whose_handler_ignores_the_interrupt_ends_with_a_traceback(handler: str, shows: str) -> None:
    status, _, errors, seconds = run_in_child(handler)
    assert status == 1
    assert "Timeout (0:00:00.2" in errors
    assert shows in errors
    assert seconds < 10


# One timer and one watchdog for many


@pytest.fixture
def timers(enforced: None, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times in seconds for which the timer was set; 0: it was stopped."""
    times: list[float] = []
    setitimer = signal.setitimer

    def record(which: int, seconds: float, interval: float = 0.0) -> Any:
        times.append(round(seconds, 3))
        return setitimer(which, seconds, interval)

    monkeypatch.setattr(signal, "setitimer", record)
    return times


def test_the_timer_is_set_once_for_hundreds_of_quick_handlers(timers: list[float]) -> None:
    with ttr.keeping_armed():
        for _ in range(300):
            with ttr.limit(60_000):
                pass
    assert timers == [60, 0]


def test_a_handler_with_a_shorter_ttr_sets_the_timer_anew(timers: list[float]) -> None:
    with ttr.keeping_armed():
        with ttr.limit(60_000):
            pass
        with pytest.raises(TTRExceeded), ttr.limit(20):
            wait_forever()
    assert timers == [60, 0.02, 0]


def test_a_handler_is_not_interrupted_by_the_timer_of_an_earlier_one(enforced: None) -> None:
    with ttr.keeping_armed():
        with ttr.limit(20):
            pass
        with ttr.limit(60_000):
            spin(0.06)
        with ttr.limit(20):
            pass
        spin(0.06)  # between two handlers
        with pytest.raises(TTRExceeded), ttr.limit(40):
            wait_forever()


def test_a_handler_that_uses_the_timer_itself_leaves_the_next_one_limited(enforced: None) -> None:
    """A handler that calls signal.alarm() stops our timer and replaces our signal handler."""
    received: list[int] = []
    with ttr.keeping_armed():
        with ttr.limit(60_000):
            signal.signal(signal.SIGALRM, lambda number, frame: received.append(number))
            signal.setitimer(signal.ITIMER_REAL, 0.02)
        spin(0.06)
        with pytest.raises(TTRExceeded), ttr.limit(20):
            wait_forever()
    assert received == []


def test_a_handler_that_replaces_the_signal_handler_leaves_the_next_one_limited(enforced: None) -> None:
    with ttr.keeping_armed():
        with ttr.limit(60_000):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        with pytest.raises(TTRExceeded), ttr.limit(20):
            wait_forever()


def test_a_renewed_lease_is_limited_after_the_handler_has_stopped_the_timer(enforced: None) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(60_000):
        signal.alarm(0)
        ttr.rearm(60_000)
        ttr.rearm(20)
        wait_forever()
    with ttr.limit(60_000):
        signal.alarm(0)
        ttr.rearm(60_000)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 59


def test_a_timer_of_an_earlier_handler_that_fires_at_the_beginning_is_ignored(
    enforced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ttr._start

    def start_late(seconds: float) -> None:
        signal.raise_signal(signal.SIGALRM)
        start(seconds)

    with ttr.keeping_armed():
        with ttr.limit(10):
            pass
        spin(0.02)
        monkeypatch.setattr(ttr, "_start", start_late)
        with ttr.limit(60_000):
            pass


def test_a_process_without_limits_keeps_the_timer_of_the_project(ttr_state: None) -> None:
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        with ttr.keeping_armed(), ttr.limit(1_000):
            pass
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 59
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_an_interrupt_between_two_of_many_handlers_leaves_nothing_armed(enforced: None) -> None:
    interrupted = 0
    with ttr.keeping_armed():
        for microseconds in range(800, 1200, 2):
            try:
                with ttr.limit(1):
                    spin(microseconds / 1_000_000)
            except TTRExceeded:
                interrupted += 1
            assert not ttr._armed
    assert interrupted


def test_the_watchdog_is_armed_once_for_hundreds_of_quick_handlers(watchdog: list[tuple]) -> None:
    with ttr.keeping_armed():
        for remaining_ms in range(60_000, 59_700, -1):
            with ttr.limit(remaining_ms):
                pass
    assert [call[0] for call in watchdog] == ["arm", "cancel"]
    assert 62 <= watchdog[0][1] <= 63.1, "after the TTR and the grace, not earlier"


def test_the_watchdog_is_armed_again_for_a_handler_with_another_ttr(watchdog: list[tuple]) -> None:
    with ttr.keeping_armed():
        for seconds in (60, 5, 60):
            with ttr.limit(seconds * 1000):
                pass
    assert [round(call[1]) for call in watchdog if call[0] == "arm"] == [63, 8, 63]


def test_a_renewed_lease_arms_the_watchdog_for_longer(watchdog: list[tuple]) -> None:
    with ttr.keeping_armed(), ttr.limit(5_000):
        ttr.rearm(60_000)
    assert [round(call[1]) for call in watchdog if call[0] == "arm"] == [8, 63]


def test_another_thread_does_not_use_the_watchdog(watchdog: list[tuple]) -> None:
    """Of two overlapping threads the second one would leave it armed forever."""

    def work() -> None:
        with ttr.keeping_armed():
            assert not ttr._stays_armed

    assert in_a_thread(work) is None
