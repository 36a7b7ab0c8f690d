"""CPU time and memory of processes, read from /proc."""

import os
import subprocess
import sys
import time
from itertools import count

import pytest

from benchmarks.scenarios.usage import cpu_seconds, process_tree, pss_bytes, wait_until_stable

pytestmark = pytest.mark.tools

BURN = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"


def test_cpu_time_of_an_exited_child_counts_for_its_parent():
    before = cpu_seconds([os.getpid()])
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert 0.15 < cpu_seconds([os.getpid()]) - before < 5


def test_a_process_tree_has_all_descendants():
    nested = f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as child:
        deadline = time.monotonic() + 20
        while len(process_tree(child.pid)) < 2 and time.monotonic() < deadline:
            pass
        found = process_tree(child.pid)
        assert len(found) == 2
        assert set(found) < set(process_tree(os.getpid()))
        child.communicate(b"\n")


def test_an_exited_process_has_no_usage():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        pass
    assert (cpu_seconds([child.pid]), pss_bytes([child.pid]), process_tree(child.pid)) == (0, 0, [child.pid])


def test_this_process_has_memory():
    assert pss_bytes([os.getpid()]) > 1_000_000


def test_a_number_is_returned_once_it_is_stable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    numbers = iter([100, 60, 41, 40, 7])
    assert wait_until_stable(lambda: next(numbers), within=1) == 40


def test_a_number_that_is_never_stable_is_returned_after_the_timeout(monkeypatch: pytest.MonkeyPatch):
    clock = count(0, 5)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert wait_until_stable(lambda: next(clock) * 100, within=1, seconds=20) > 0
