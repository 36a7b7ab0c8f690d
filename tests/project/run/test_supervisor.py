"""The supervisor of `make run`, with small test programs."""

import configparser
import os
import signal
import sys
from threading import Event

import pytest

from project.run import preflight
from project.run.preflight import CannotRun
from project.run.supervisor import Program, Stopped, Supervisor, config
from tests.support.servers import wait_until

pytestmark = pytest.mark.only_on("sqlite")  # uses no database
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def supervise(tmp_path):
    """Launch a supervisor with these programs; stop everything after the test."""
    preflight.make_directories(tmp_path)
    launched = []

    with preflight.socket_directory(tmp_path / "run") as sockets:

        def launch(*programs, stop=None):
            supervisor = Supervisor(
                list(programs), directory=tmp_path, var=tmp_path, sockets=sockets, stop=stop or Event()
            )
            launched.append(supervisor)
            supervisor.launch()
            return supervisor

        yield launch
        for supervisor in launched:
            supervisor.stop(Event())


def pid_of(supervisor, name):
    return next(info["pid"] for info in supervisor._infos() if info["name"] == name)


def has_exited(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_percent_sign_in_a_path_is_escaped(tmp_path):
    text = config([Program("x", ["run", "a %h"], 1)], tmp_path, tmp_path / "50%", tmp_path / "s")

    parser = configparser.RawConfigParser()
    parser.read_string(text)
    assert parser["program:x"]["command"] == "run 'a %%h'"
    assert parser["program:x"]["stdout_logfile"].endswith("50%%/log/x.log")


def test_a_program_that_exits_is_restarted_and_reported(supervise):
    supervisor = supervise(Program("sleeper", SLEEP, 1))
    supervisor.start("sleeper")
    lines = []
    supervisor.check(lines.append)
    first = pid_of(supervisor, "sleeper")

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: supervisor.check(lines.append) or lines, seconds=30, what="the restart to be reported")

    assert "The sleeper process exited and was restarted" in lines[0]
    assert pid_of(supervisor, "sleeper") != first


def test_stopping_leaves_no_process(supervise):
    supervisor = supervise(Program("first", SLEEP, 1), Program("second", SLEEP, 2))
    supervisor.start("first", "second")
    pids = [pid_of(supervisor, name) for name in ("first", "second")]

    supervisor.stop(Event())

    assert all(has_exited(pid) for pid in pids)


def test_a_killed_supervisor_leaves_no_process_either(supervise):
    supervisor = supervise(Program("sleeper", SLEEP, 1))
    supervisor.start("sleeper")
    supervisor.check(lambda line: None)
    pid = pid_of(supervisor, "sleeper")

    supervisor._process.kill()
    supervisor._process.wait()
    with pytest.raises(CannotRun, match="The supervisor exited unexpectedly"):
        supervisor.check(lambda line: None)
    supervisor.stop(Event())

    wait_until(lambda: has_exited(pid), seconds=30, what="the program to exit")


def test_a_program_that_does_not_start_is_reported_with_the_end_of_its_log(supervise, monkeypatch):
    monkeypatch.setattr("project.run.supervisor.UP_SECONDS", 2.0)
    supervisor = supervise(Program("broken", [sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"], 1))

    with pytest.raises(CannotRun, match="The broken process did not start") as refusal:
        supervisor.start("broken")
    assert "  | no such thing" in str(refusal.value)


def test_ctrl_c_ends_the_wait_for_a_program(supervise):
    stop = Event()
    supervisor = supervise(Program("slow", SLEEP, 1, is_up=lambda: stop.set() or False), stop=stop)

    with pytest.raises(Stopped):
        supervisor.start("slow")


def test_the_reaper_stops_all_programs_when_make_run_is_killed(supervise, tmp_path):
    from project.run.programs import reaper

    lock = preflight.acquire_lock(tmp_path, lambda line: None)
    supervisor = supervise(reaper(tmp_path / "run" / "lock"), Program("sleeper", SLEEP, 2))
    supervisor.start("reaper", "sleeper")
    pid = pid_of(supervisor, "sleeper")

    lock.close()  # as the kernel does when the process that holds it is killed

    assert supervisor._process.wait(120) == 0
    assert has_exited(pid)
