"""`make run` as a whole: real parts, real processes."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from project.preflight import any_port
from project.run import BASE

pytestmark = [
    pytest.mark.only_on("sqlite"),  # it chooses its database itself, the same one in each pass
    pytest.mark.xdist_group("make-run"),  # many processes each: one after the other
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leftovers in Linux's /proc"),
]
SAMPLE = Path("project/shop/sample_orders.csv")
OURS = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "PORT", "ORDERS", "SPEED", "DJANGO_SETTINGS_MODULE")


class MakeRun:
    """One run of it, in a var/ of its own."""

    def __init__(self, var, **env):
        self.var = var
        clean = {name: value for name, value in os.environ.items() if name not in OURS}
        self.said = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "project.run"],
            cwd=BASE,
            env=clean | {"VAR_DIR": str(var), "PORT": str(any_port())} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, words):
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if words in line:
                return line
        raise AssertionError(f"It never said {words!r}:\n" + "\n".join(self.said))

    def ended(self):
        """The exit status, once it has ended by itself or by a signal."""
        self.said += self.process.stdout.read().splitlines()
        return self.process.wait(60)

    def processes(self):
        """Those whose environment names this var/: every part of it."""
        mark = f"VAR_DIR={self.var}".encode()
        return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in environ(path)]


def environ(path):
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture
def make_run(tmp_path):
    """Starts `make run` with this environment; killed at the end if it is still there."""
    started = []

    def start(**env):
        started.append(MakeRun(tmp_path / "var", **env))
        return started[-1]

    yield start
    for run in started:
        run.process.send_signal(signal.SIGINT)  # does nothing where it has ended
        with run.process.stdout:
            run.process.stdout.read()
        run.process.wait(60)


def test_the_shop_plays_until_ctrl_c_and_is_found_again(make_run, tmp_path):
    run = make_run(SHOP_PAY_WITHIN_SECONDS="1", SHOP_SEED="7")
    places = {name: re.search(r"http://\S+", run.read_until(f"{name}: "))[0] for name in ("Shop", "Admin", "Board")}
    run.read_until("will be closed at")
    run.read_until("its 1 s were over")
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for name, word in (("Shop", b"The tea shop"), ("Admin", b"delaytasks"), ("Board", b"delaytasks")):
        with browser.open(places[name], timeout=10) as page:
            assert word in page.read(), name
    assert places["Board"] == places["Admin"] + "delaytasks/board/"

    second = make_run()
    assert second.ended() == 1
    assert second.said[-1].startswith("Another copy is running in ")

    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 0
    assert run.said[-1] == "Stopped."
    assert any(line.startswith("Orders in this run: ") for line in run.said)
    assert run.processes() == []

    again = make_run()
    again.read_until("Found again: ")
    again.process.send_signal(signal.SIGTERM)
    assert again.ended() == 0
    assert again.processes() == []


def test_a_history_is_replayed_proved_and_everything_ends(make_run):
    run = make_run(ORDERS=str(BASE / SAMPLE), SPEED="3600")

    assert run.ended() == 0
    assert "  40 orders placed." in run.said
    assert "  checked: no order was both paid in time and closed." in run.said
    assert run.processes() == []
