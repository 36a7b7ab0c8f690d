"""What a process costs, read from /proc."""

import os
import subprocess
import sys
import time
from itertools import count

import pytest

from benchmarks.scenarios.usage import cpu_seconds, family, pss_bytes, settled

BURN = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"


def test_work_of_an_ended_child_is_counted_with_its_parent():
    before = cpu_seconds([os.getpid()])
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert 0.15 < cpu_seconds([os.getpid()]) - before < 5


def test_a_family_is_a_process_with_its_children_and_theirs():
    nested = f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as child:
        deadline = time.monotonic() + 20
        while len(family(child.pid)) < 2 and time.monotonic() < deadline:
            pass
        found = family(child.pid)
        assert len(found) == 2
        assert set(found) < set(family(os.getpid()))
        child.communicate(b"\n")


def test_a_process_that_has_ended_costs_nothing():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        pass
    assert (cpu_seconds([child.pid]), pss_bytes([child.pid]), family(child.pid)) == (0, 0, [child.pid])


def test_this_process_has_memory():
    assert pss_bytes([os.getpid()]) > 1_000_000


def test_a_number_is_settled_once_it_moves_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    numbers = iter([100, 60, 41, 40, 7])
    assert settled(lambda: next(numbers), within=1) == 40


def test_a_number_that_never_settles_is_read_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch):
    clock = count(0, 5)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert settled(lambda: next(clock) * 100, within=1, seconds=20) > 0
