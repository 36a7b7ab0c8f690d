"""The parts of `make run` under supervisord: how each is started, when it is up, how all of them end."""

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
NO_ANSWER = (OSError, RpcError, HTTPException)  # what asking a supervisord that is not there, or is ending, raises


class Stopped(Exception):
    """The viewer has had enough."""


@dataclass(frozen=True)
class Part:
    """One program.

    priority       started in this order, stopped in the opposite one
    is_up          asked until it says yes
    stop_seconds   after SIGTERM, before it is killed
    """

    name: str
    command: list[str]
    priority: int
    is_up: Callable[[], bool] = lambda: True
    stop_seconds: int = 10


def config(parts: list[Part], directory: Path, var: Path, control: Path) -> str:
    """supervisord's configuration. `%` is doubled: a single one would be read as the beginning of a variable."""
    log = var / "log"
    head = f"""\
[unix_http_server]
file={control}
chmod=0700

[supervisord]
nodaemon=true
logfile={log}/supervisord.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile={var}/run/supervisord.pid
minfds=256
minprocs=64

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    programs = [
        f"""
[program:{part.name}]
command={shlex.join(part.command)}
directory={directory}
priority={part.priority}
autostart=false
autorestart=true
startsecs=1
startretries=4
stopsignal=TERM
stopwaitsecs={part.stop_seconds}
stopasgroup=false
killasgroup=true
redirect_stderr=true
stdout_logfile={log}/{part.name}.log
stdout_logfile_maxbytes=5MB
stdout_logfile_backups=1
"""
        for part in parts
    ]
    return (head + "".join(programs)).replace("%", "%%")


class Supervisor:
    """A running supervisord and its parts."""

    def __init__(self, parts: list[Part], *, directory: Path, var: Path, sockets: Path, stop: Event) -> None:
        self.parts = {part.name: part for part in parts}
        self._directory, self._var, self._stop = directory, var, stop
        self._control = sockets / "supervisor.sock"
        self._seen: dict[str, dict[str, Any]] = {}

    def launch(self) -> None:
        """Start supervisord, with none of its parts yet. Raises CannotRun."""
        path = self._var / "run" / "supervisord.conf"
        path.write_text(config(list(self.parts.values()), self._directory, self._var, self._control))
        with (self._var / "log" / "supervisord.out").open("w") as out:
            self._process = subprocess.Popen(  # a session of its own: the viewer's Ctrl-C is for us alone
                [sys.executable, "-m", "supervisor.supervisord", "-c", str(path)],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self._directory, start_new_session=True,
            )  # fmt: skip
        self._wait("supervisord", self._answers)

    def start(self, *names: str) -> None:
        """Start parts and wait until each is up. Raises CannotRun that names the one that is not."""
        for name in names:
            self._ask("startProcess", name, False)
        for name in names:
            self._wait(name, partial(self._is_up, name))
        self._remember()

    def look(self, say: Callable[[str], None]) -> None:
        """Tell what ended and was started again since the last look; start what supervisord has given up.

        Raises CannotRun when supervisord itself has ended.
        """
        if self._process.poll() is not None:
            raise CannotRun(f"The supervisor ended by itself. {self.tail('supervisord')}")
        for info in self._infos():
            name, before = info["name"], self._seen.get(info["name"])
            if before and info["statename"] == "RUNNING" and info["pid"] != before["pid"]:
                say(f"The {name} part had ended and was started again; its log is {self.log(name)}.")
            if info["statename"] == "FATAL":
                say(f"The {name} part ends as soon as it is started; trying again. {self.tail(name)}")
                with suppress(*NO_ANSWER):
                    self._ask("startProcess", name, False)
            if info["statename"] == "RUNNING":
                self._seen[name] = info

    def stop(self, hurry: Event) -> None:
        """Stop every part, the last started first, and supervisord; kill what is left, at once if in a hurry."""
        deadline = time.monotonic() + sum(part.stop_seconds for part in self.parts.values()) + 10
        self._remember()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        while self._process.poll() is None and time.monotonic() < deadline and not hurry.is_set():
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """End whatever is left of the parts, by their process groups."""
        self._remember()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for info in self._seen.values():
            with suppress(ProcessLookupError, PermissionError):
                if info["pid"] and os.getpgid(info["pid"]) == info["pid"]:  # it is still the leader that we knew
                    os.killpg(info["pid"], signal.SIGKILL)

    def log(self, name: str) -> Path:
        return self._var / "log" / f"{name}.log"

    def tail(self, name: str) -> str:
        """The end of a part's log, for people."""
        path = self.log(name)
        lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if path.exists() else []
        if not lines:
            return f"Its log, {path}, is empty."
        return f"The end of its log, {path}:\n" + "\n".join(f"  | {line}" for line in lines)

    def _ask(self, method: str, *arguments: object) -> Any:
        """A new connection each time: the transport does not recover from one that failed."""
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
                raise CannotRun(f"The supervisor did not start: {out[-500:] or 'it said nothing'}")
            if self._has_failed(name) or time.monotonic() > deadline:
                raise CannotRun(f"The {name} part did not come up. {self.tail(name)}")
            time.sleep(0.05)

    def _is_up(self, name: str) -> bool:
        return self._state(name) == "RUNNING" and self.parts[name].is_up()

    def _has_failed(self, name: str) -> bool:
        return name in self.parts and self._state(name) == "FATAL"

    def _state(self, name: str) -> str:
        return next((info["statename"] for info in self._infos() if info["name"] == name), "")

    def _infos(self) -> list[dict[str, Any]]:
        try:
            return self._ask("getAllProcessInfo")
        except NO_ANSWER:
            return []

    def _remember(self) -> None:
        self._seen |= {info["name"]: info for info in self._infos() if info["pid"]}

    def _answers(self) -> bool:
        try:
            return self._ask("getState")["statename"] == "RUNNING"
        except NO_ANSWER:
            return False
