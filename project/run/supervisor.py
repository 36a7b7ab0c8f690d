"""Run the programs of `make run` under supervisord: start them, wait until they are up, stop them."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from threading import Event
from typing import Any
from xmlrpc.client import Error as RpcError
from xmlrpc.client import ServerProxy

from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]

from .preflight import CannotRun

UP_SECONDS = 60.0
TAIL_LINES = 12
NO_ANSWER = (OSError, RpcError, HTTPException)  # raised by a call to a supervisord that is stopping or gone


class Stopped(Exception):
    """The user stopped `make run` with Ctrl-C."""


@dataclass(frozen=True)
class Program:
    """One program under supervisord.

    priority       start order; programs stop in reverse order
    is_up          health check, polled after the start until it returns True
    stop_seconds   time between SIGTERM and SIGKILL
    """

    name: str
    command: list[str]
    priority: int
    is_up: Callable[[], bool] = lambda: True
    stop_seconds: int = 10


def config(programs: list[Program], directory: Path, var: Path, control: Path) -> str:
    """Return supervisord's configuration file. `%` is escaped as `%%`: supervisord expands variables."""
    log = var / "log"
    head = f"""\
[unix_http_server]
file={control}
chmod=0700

[supervisord]
nodaemon=true
umask=077
logfile={log}/supervisord.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile={var}/run/supervisord.pid
minfds=256
minprocs=64

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    sections = [
        f"""
[program:{program.name}]
command={shlex.join(program.command)}
directory={directory}
priority={program.priority}
autostart=false
autorestart=true
startsecs=1
startretries=4
stopsignal=TERM
stopwaitsecs={program.stop_seconds}
stopasgroup=false
killasgroup=true
redirect_stderr=true
stdout_logfile={log}/{program.name}.log
stdout_logfile_maxbytes=5MB
stdout_logfile_backups=1
"""
        for program in programs
    ]
    return (head + "".join(sections)).replace("%", "%%")


class Supervisor:
    """A supervisord process and its programs."""

    def __init__(self, programs: list[Program], *, directory: Path, var: Path, sockets: Path, stop: Event) -> None:
        self.programs = {program.name: program for program in programs}
        self._directory, self._var, self._stop = directory, var, stop
        self._control = sockets / "supervisor.sock"
        self._last_info: dict[str, dict[str, Any]] = {}  # program -> its last known process info from supervisord

    def launch(self) -> None:
        """Start supervisord without starting any program. Raises CannotRun."""
        path = self._var / "run" / "supervisord.conf"
        path.write_text(config(list(self.programs.values()), self._directory, self._var, self._control))
        with (self._var / "log" / "supervisord.out").open("w") as out:
            self._process = subprocess.Popen(  # in its own session, so that Ctrl-C does not signal it
                [sys.executable, "-m", "supervisor.supervisord", "-c", str(path)],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self._directory, start_new_session=True,
            )  # fmt: skip
        self._wait("supervisord", self._is_ready)

    def start(self, *names: str) -> None:
        """Start programs and wait until each is up.

        Raises CannotRun with the name of a program that fails, and Stopped on Ctrl-C.
        """
        for name in names:
            self._call("startProcess", name, False)
        for name in names:
            self._wait(name, partial(self._is_up, name))
        self._save_infos()

    def check(self, echo: Callable[[str], None]) -> None:
        """Report programs that were restarted since the last check; start those that supervisord gave up on.

        Raises CannotRun if supervisord itself has exited.
        """
        if self._process.poll() is not None:
            raise CannotRun(f"The supervisor exited unexpectedly. {self.tail('supervisord')}")
        for info in self._infos():
            name, last = info["name"], self._last_info.get(info["name"])
            if last and info["statename"] == "RUNNING" and info["pid"] != last["pid"]:
                echo(f"The {name} process exited and was restarted; see its log, {self.log_path(name)}.")
            if info["statename"] == "FATAL":
                echo(f"The {name} process exits as soon as it starts; trying again. {self.tail(name)}")
                with suppress(*NO_ANSWER):
                    self._call("startProcess", name, False)
            if info["statename"] == "RUNNING":
                self._last_info[name] = info

    def stop(self, kill_now: Event) -> None:
        """Stop all programs in reverse start order, then supervisord. Kill them after a timeout or on `kill_now`."""
        deadline = time.monotonic() + sum(program.stop_seconds for program in self.programs.values()) + 10
        self._save_infos()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        while self._process.poll() is None and time.monotonic() < deadline and not kill_now.is_set():
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Kill supervisord and the process groups of all programs that are still running."""
        self._save_infos()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for info in self._last_info.values():
            with suppress(ProcessLookupError, PermissionError):
                if info["pid"] and os.getpgid(info["pid"]) == info["pid"]:  # the process id was not reused
                    os.killpg(info["pid"], signal.SIGKILL)

    def log_path(self, name: str) -> Path:
        return self._var / "log" / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the last lines of a program's log, for an error message."""
        path = self.log_path(name)
        lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if path.exists() else []
        if not lines:
            return f"Its log, {path}, is empty."
        return f"The end of its log, {path}:\n" + "\n".join(f"  | {line}" for line in lines)

    def _call(self, method: str, *arguments: object) -> Any:
        """Call supervisord's RPC. Uses a new connection each time: the transport cannot recover from a failed one."""
        transport = SupervisorTransport(None, None, f"unix://{self._control}")
        with closing(transport):
            return getattr(ServerProxy("http://localhost", transport).supervisor, method)(*arguments)

    def _wait(self, name: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + UP_SECONDS
        while not done():
            if self._stop.is_set():
                raise Stopped
            if self._process.poll() is not None:
                out = (self._var / "log" / "supervisord.out").read_text(errors="replace").strip()
                raise CannotRun(f"The supervisor did not start: {out[-500:] or 'no output'}")
            if self._has_failed(name) or time.monotonic() > deadline:
                raise CannotRun(f"The {name} process did not start. {self.tail(name)}")
            time.sleep(0.05)

    def _is_up(self, name: str) -> bool:
        return self._state(name) == "RUNNING" and self.programs[name].is_up()

    def _has_failed(self, name: str) -> bool:
        return name in self.programs and self._state(name) == "FATAL"

    def _state(self, name: str) -> str:
        return next((info["statename"] for info in self._infos() if info["name"] == name), "")

    def _infos(self) -> list[dict[str, Any]]:
        try:
            return self._call("getAllProcessInfo")
        except NO_ANSWER:
            return []

    def _save_infos(self) -> None:
        self._last_info |= {info["name"]: info for info in self._infos() if info["pid"]}

    def _is_ready(self) -> bool:
        try:
            return self._call("getState")["statename"] == "RUNNING"
        except NO_ANSWER:
            return False
