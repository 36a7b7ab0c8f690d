"""`make run` as a whole, with real processes."""

import io
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from project.run.__main__ import BASE, echo
from project.run.preflight import find_free_port

pytestmark = [
    pytest.mark.only_on("sqlite"),  # it uses its own database, the same in both passes
    pytest.mark.xdist_group("make-run"),  # each starts many processes: run them one after another
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds leftover processes in Linux's /proc"),
]
SAMPLE = Path("project/demo/sample_orders.csv")
REMOVED = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "PORT", "ORDERS", "SPEED", "DJANGO_SETTINGS_MODULE")


class MakeRun:
    """One `make run` in its own var/."""

    def __init__(self, var, **env):
        self.var = var
        environment = {name: value for name, value in os.environ.items() if name not in REMOVED}
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "project.run"],
            cwd=BASE,
            env=environment | {"VAR_DIR": str(var), "PORT": str(find_free_port())} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, text):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return line
        raise AssertionError(f"It never printed {text!r}:\n" + "\n".join(self.lines))

    def wait(self):
        """Wait until it exits; return the exit status."""
        self.lines += self.process.stdout.read().splitlines()
        return self.process.wait(240)

    def processes(self):
        """Return the ids of all processes whose environment names this var/."""
        variable = f"VAR_DIR={self.var}".encode()
        return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if variable in environ(path)]


def environ(path):
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture
def make_run(tmp_path):
    """Start `make run` with this environment; stop it after the test if it is still running."""
    started = []

    def start(**env):
        started.append(MakeRun(tmp_path / "var", **env))
        return started[-1]

    yield start
    for run in started:
        run.process.send_signal(signal.SIGINT)  # does nothing if it has exited
        with run.process.stdout:
            run.process.stdout.read()
        run.process.wait(240)


def test_the_shop_runs_until_ctrl_c_and_the_next_run_continues_with_its_data(make_run, tmp_path):
    run = make_run(SHOP_PAY_WITHIN_SECONDS="1", SHOP_SEED="7")
    urls = {name: re.search(r"http://\S+", run.read_until(f"{name}: "))[0] for name in ("Shop", "Admin", "Board")}
    run.read_until("will be closed at")
    run.read_until("not paid within 1 s")
    assert any("the kettles are set for" in line for line in run.lines)
    assert "shop_lesson" in tables_with_triggers(tmp_path / "var" / "db.sqlite3")
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for name, word in (("Shop", b"The tea shop"), ("Admin", b"delaytasks"), ("Board", b"delaytasks")):
        with browser.open(urls[name], timeout=60) as page:
            assert word in page.read(), name
    assert urls["Board"] == urls["Admin"] + "delaytasks/board/"

    assert any(re.match(r"The embedded Redis is \d+\.\d+\.\d+ \(/", line) for line in run.lines)
    readable = [path for path in (tmp_path / "var").rglob("*") if path.stat().st_mode & 0o077]
    assert readable == []

    second = make_run()
    assert second.wait() == 1
    assert second.lines[-1].startswith("Another copy is running in ")

    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 0
    assert run.lines[-1] == "Stopped."
    assert any(line.startswith("Orders in this run: ") for line in run.lines)
    assert run.processes() == []

    again = make_run()
    again.read_until("Existing data: ")
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 0
    assert again.processes() == []


def tables_with_triggers(database):
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT tbl_name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    return {table for (table,) in rows}


def test_a_replay_is_checked_and_leaves_no_process(make_run):
    run = make_run(ORDERS=str(BASE / SAMPLE), SPEED="3600")

    assert run.wait() == 0
    assert "  40 orders placed." in run.lines
    assert "  passed: no order was both paid in time and closed." in run.lines
    assert run.processes() == []


def test_a_virtual_replay_that_cannot_write_its_files_says_so(make_run, tmp_path):
    (tmp_path / "var").write_text("a file is in the way")
    run = make_run(ORDERS=str(BASE / SAMPLE), SPEED="virtual")

    assert run.wait() == 1
    assert [line.partition(": ")[0] for line in run.lines] == [f"{tmp_path / 'var'} is not writable"]


def test_what_the_terminal_cannot_show_is_printed_as_a_question_mark(monkeypatch):
    terminal = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(terminal, encoding="ascii"))

    echo("Chloé was here")

    assert terminal.getvalue() == b"Chlo? was here\n"


def test_nothing_is_printed_where_there_is_no_stdout(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)

    echo("order 1 closed")
