"""The TTR, enforced: with the real timer in this process, and the watchdog in a process of its own."""

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

from delaytasks import ttr
from delaytasks.exceptions import TTRExceeded

ROOT = Path(__file__).parents[2]
FOREVER_SECONDS = 5  # of a handler that is to be interrupted long before


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module as it is in a process that has just begun."""
    for name in ("_enforced", "_watched", "_grace_seconds", "_before_interrupt", "_armed", "_stays", "_watched_until"):
        monkeypatch.setattr(ttr, name, getattr(ttr, name))
    assert not ttr._enforced, "a test before this one left it on"


@pytest.fixture
def enforced(fresh: None) -> Iterator[None]:
    """The interrupt is on, without the watchdog; afterwards no timer and no handler of ours is left."""
    before = signal.getsignal(signal.SIGALRM)
    ttr.enforce(watchdog=False, grace_seconds=1)
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "a timer was left running"
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.fixture
def watchdog(fresh: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What was asked of the watchdog, in order; it is a recorder here, and bites nobody."""
    calls: list[tuple] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda after, **how: calls.append(("arm", after, how)))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: calls.append(("cancel",)))
    ttr.enforce(watchdog=True, grace_seconds=2)
    return calls


def wait_for_ever() -> None:
    threading.Event().wait(FOREVER_SECONDS)


def spin_for_ever() -> None:
    end = time.monotonic() + FOREVER_SECONDS
    while time.monotonic() < end:
        pass


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What `call()` answers or raises in another thread."""
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return answers[0]


# The interrupt


@pytest.mark.parametrize("work", [wait_for_ever, spin_for_ever])
def test_a_handler_that_outlives_its_ttr_is_interrupted(enforced: None, work: Any) -> None:
    began = time.monotonic()
    with pytest.raises(TTRExceeded, match="longer than its TTR"), ttr.limit(40):
        work()
    assert 0.039 <= time.monotonic() - began < FOREVER_SECONDS / 2


def test_a_handler_that_catches_every_exception_is_interrupted_all_the_same(enforced: None) -> None:
    caught = []
    with pytest.raises(TTRExceeded), ttr.limit(20):
        try:
            wait_for_ever()
        except Exception as error:
            caught.append(error)
    assert caught == []


def test_a_handlers_own_cleaning_up_still_happens(enforced: None) -> None:
    cleaned = []
    with pytest.raises(TTRExceeded), ttr.limit(20):
        try:
            wait_for_ever()
        finally:
            cleaned.append("closed the file")
    assert cleaned == ["closed the file"]


def test_a_quick_handler_is_left_alone_and_nothing_comes_after_it(enforced: None) -> None:
    with ttr.limit(60_000):
        left = signal.getitimer(signal.ITIMER_REAL)[0]
    assert 59 < left <= 60
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_handlers_own_exception_comes_out_as_it_is(enforced: None) -> None:
    with pytest.raises(ZeroDivisionError), ttr.limit(60_000):
        _ = 1 / 0


def test_an_alarm_of_somebody_else_is_handed_back_afterwards(enforced: None) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    try:
        with ttr.limit(60_000):
            pass
        signal.raise_signal(signal.SIGALRM)
        assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("ms", [1, 0, -60_000])
def test_a_lease_that_is_over_already_is_interrupted_at_once(enforced: None, ms: int) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(ms):
        wait_for_ever()


def test_an_interrupt_that_comes_just_as_the_handler_ends_leaves_nothing_armed(enforced: None) -> None:
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


def test_one_limit_after_the_other_has_its_own_time(enforced: None) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(10):
        wait_for_ever()
    with ttr.limit(60_000):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 59


def test_what_runs_elsewhere_is_stopped_before_the_interrupt(fresh: None) -> None:
    events = []
    ttr.enforce(watchdog=False, grace_seconds=60, before_interrupt=lambda: events.append("query cancelled"))
    with ttr.limit(60_000):
        pass
    assert events == [], "nothing is stopped for a handler that was in time"
    try:
        with ttr.limit(10):
            wait_for_ever()
    except TTRExceeded:
        events.append("interrupted")
    assert events == ["query cancelled", "interrupted"]


def test_an_interrupt_that_is_swallowed_comes_again(fresh: None) -> None:
    ttr.enforce(watchdog=False, grace_seconds=0.4)
    swallowed = []
    with pytest.raises(TTRExceeded), ttr.limit(10):
        for _ in range(2):
            try:
                wait_for_ever()
            except TTRExceeded as interrupt:
                swallowed.append(interrupt)
        wait_for_ever()
    assert len(swallowed) == 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# Renewed leases


def test_a_renewed_lease_begins_anew(enforced: None) -> None:
    with ttr.limit(1_000):
        ttr.rearm(60_000)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 59


def test_a_renewed_lease_ends_too(enforced: None) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(60_000):
        ttr.rearm(20)
        wait_for_ever()


def test_a_lease_that_is_renewed_where_no_limit_is_in_force_starts_no_timer(enforced: None) -> None:
    ttr.rearm(60_000)
    with ttr.limit(60_000):
        pass
    ttr.rearm(60_000)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# Where it cannot be enforced


def test_without_being_switched_on_a_limit_is_only_a_block(fresh: None) -> None:
    with ttr.limit(1):
        ttr.rearm(1)
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_in_a_thread_the_lease_alone_counts(enforced: None) -> None:
    def work() -> Any:
        with ttr.limit(1):
            ttr.rearm(1)
            return signal.getitimer(signal.ITIMER_REAL)

    assert in_a_thread(work) == (0, 0)


def test_a_thread_that_renews_a_lease_does_not_touch_the_main_threads_limit(enforced: None) -> None:
    with ttr.limit(60_000):
        in_a_thread(lambda: ttr.rearm(600_000))
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= 60


# The watchdog


def test_the_watchdog_gives_a_grace_beyond_the_ttr_and_is_called_off_at_the_end(watchdog: list[tuple]) -> None:
    with ttr.limit(60_000):
        assert watchdog == [("arm", 62.0, {"exit": True, "file": sys.__stderr__})]
    assert watchdog[1:] == [("cancel",)]


def test_the_watchdog_is_called_off_after_an_interrupt_too(watchdog: list[tuple]) -> None:
    with pytest.raises(TTRExceeded), ttr.limit(10):
        wait_for_ever()
    assert [call[0] for call in watchdog] == ["arm", "cancel"]


def test_a_renewed_lease_moves_the_watchdog(watchdog: list[tuple]) -> None:
    with ttr.limit(60_000):
        ttr.rearm(120_000)
    assert [call[:2] for call in watchdog] == [("arm", 62.0), ("arm", 122.0), ("cancel",)]


def test_no_watchdog_is_let_loose_where_none_was_asked_for(watchdog: list[tuple]) -> None:
    ttr.enforce(watchdog=False, grace_seconds=2)
    with ttr.limit(60_000):
        ttr.rearm(60_000)
    assert watchdog == []


LISTENS = """
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
    deaf()
"""
HOLDS_THE_GIL = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
with ttr.limit(20):
    ctypes.PyDLL(None).sleep(20)
"""


def run_in_a_process_of_its_own(handler: str, *, grace: float = 0.2) -> tuple[int, str, str, float]:
    """Exit status, output, errors and seconds of a child whose watchdog gives that many seconds of grace."""
    program = (
        "import ctypes, signal, time\n"
        "from delaytasks import ttr\n"
        "from delaytasks.exceptions import TTRExceeded\n"
        "def deaf(): time.sleep(20)\n"
        f"ttr.enforce(watchdog=True, grace_seconds={grace})\n{handler}"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def test_a_handler_that_listens_keeps_its_process() -> None:
    status, said, errors, _ = run_in_a_process_of_its_own(LISTENS, grace=10)
    assert (status, said.split(), errors) == (0, ["interrupted", "alive"], "")


@pytest.mark.parametrize(
    ("handler", "shows"),
    [
        pytest.param(SWALLOWS, "<module>", id="swallows-everything"),
        pytest.param(MASKS, "in deaf", id="blocks-the-signal"),
        pytest.param(HOLDS_THE_GIL, "<module>", id="holds-the-gil"),
    ],
)
def test_a_deaf_handlers_process_is_ended_with_a_traceback_of_where_it_hung(handler: str, shows: str) -> None:
    status, _, errors, seconds = run_in_a_process_of_its_own(handler)
    assert status == 1
    assert "Timeout (0:00:00.2" in errors
    assert shows in errors
    assert seconds < 10


# One watchdog for many


def test_the_watchdog_is_armed_once_for_hundreds_of_quick_handlers(watchdog: list[tuple]) -> None:
    with ttr.watching():
        for rest_ms in range(60_000, 59_700, -1):
            with ttr.limit(rest_ms):
                pass
    assert [call[0] for call in watchdog] == ["arm", "cancel"]
    assert 62 <= watchdog[0][1] <= 63.1, "of the TTR and the grace, not earlier"


def test_the_watchdog_is_armed_anew_for_a_handler_with_another_ttr(watchdog: list[tuple]) -> None:
    with ttr.watching():
        for seconds in (60, 5, 60):
            with ttr.limit(seconds * 1000):
                pass
    assert [round(call[1]) for call in watchdog if call[0] == "arm"] == [63, 8, 63]


def test_a_renewed_lease_arms_the_watchdog_for_longer(watchdog: list[tuple]) -> None:
    with ttr.watching(), ttr.limit(5_000):
        ttr.rearm(60_000)
    assert [round(call[1]) for call in watchdog if call[0] == "arm"] == [8, 63]


def test_another_thread_has_nothing_to_do_with_the_watchdog(watchdog: list[tuple]) -> None:
    """Of two that overlap the second would leave it on for ever."""

    def work() -> None:
        with ttr.watching():
            assert not ttr._stays

    assert in_a_thread(work) is None
