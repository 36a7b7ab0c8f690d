"""The supervisor under `make run`, with small parts of its own."""

import configparser
import os
import signal
import sys
from threading import Event

import pytest

from project import preflight
from project.preflight import CannotRun
from project.supervise import Part, Stopped, Supervisor, config
from tests.servers import wait_until

pytestmark = pytest.mark.only_on("sqlite")  # no part of it has a database
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def supervise(tmp_path):
    """Launches a supervisor with these parts; everything is stopped at the end."""
    preflight.make_directories(tmp_path)
    launched = []

    with preflight.socket_directory(tmp_path / "run") as sockets:

        def launch(*parts, stop=None):
            made = Supervisor(list(parts), directory=tmp_path, var=tmp_path, sockets=sockets, stop=stop or Event())
            launched.append(made)
            made.launch()
            return made

        yield launch
        for made in launched:
            made.stop(Event())


def pid_of(supervisor, name):
    return next(info["pid"] for info in supervisor._infos() if info["name"] == name)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_percent_sign_in_a_path_is_not_taken_for_a_variable(tmp_path):
    text = config([Part("x", ["run", "a %h"], 1)], tmp_path, tmp_path / "50%", tmp_path / "s")

    parser = configparser.RawConfigParser()
    parser.read_string(text)
    assert parser["program:x"]["command"] == "run 'a %%h'"
    assert parser["program:x"]["stdout_logfile"].endswith("50%%/log/x.log")


def test_what_ends_is_started_again_and_told(supervise):
    supervisor = supervise(Part("sleeper", SLEEP, 1))
    supervisor.start("sleeper")
    said = []
    supervisor.look(said.append)
    first = pid_of(supervisor, "sleeper")

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: supervisor.look(said.append) or said, seconds=30, what="a part to be missed")

    assert "The sleeper part had ended and was started again" in said[0]
    assert pid_of(supervisor, "sleeper") != first


def test_stopping_leaves_no_process(supervise):
    supervisor = supervise(Part("first", SLEEP, 1), Part("second", SLEEP, 2))
    supervisor.start("first", "second")
    pids = [pid_of(supervisor, name) for name in ("first", "second")]

    supervisor.stop(Event())

    assert all(is_gone(pid) for pid in pids)


def test_a_supervisor_that_was_killed_leaves_no_process_either(supervise):
    supervisor = supervise(Part("sleeper", SLEEP, 1))
    supervisor.start("sleeper")
    supervisor.look(lambda sentence: None)
    pid = pid_of(supervisor, "sleeper")

    supervisor._process.kill()
    supervisor._process.wait()
    with pytest.raises(CannotRun, match="The supervisor ended by itself"):
        supervisor.look(lambda sentence: None)
    supervisor.stop(Event())

    wait_until(lambda: is_gone(pid), seconds=30, what="the part to end")


def test_a_part_that_does_not_come_up_is_named_with_the_end_of_its_log(supervise, monkeypatch):
    monkeypatch.setattr("project.supervise.UP_SECONDS", 2.0)
    supervisor = supervise(Part("broken", [sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"], 1))

    with pytest.raises(CannotRun, match="The broken part did not come up") as refusal:
        supervisor.start("broken")
    assert "  | no such thing" in str(refusal.value)


def test_waiting_for_a_part_ends_when_the_viewer_has_had_enough(supervise):
    stop = Event()
    supervisor = supervise(Part("slow", SLEEP, 1, is_up=lambda: stop.set() or False), stop=stop)

    with pytest.raises(Stopped):
        supervisor.start("slow")


def test_when_make_run_is_killed_its_parts_end(supervise, tmp_path):
    from project.parts import keeper
    from project.run import BASE

    lock = preflight.take_lock(tmp_path, lambda sentence: None)
    supervisor = supervise(keeper(BASE, tmp_path / "run" / "lock"), Part("sleeper", SLEEP, 2))
    supervisor.start("keeper", "sleeper")
    pid = pid_of(supervisor, "sleeper")

    lock.close()  # what the system does when the process that holds it is killed

    assert supervisor._process.wait(30) == 0
    assert is_gone(pid)
