"""A release of delaytasks installed into a directory, and the processes of a site that run it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from project.run.programs import answers_http, web
from tests.support.installation import START_SECONDS, Process
from tests.support.servers import die_with_parent, free_port, stop_process, tail, wait_until

from .wheels import run

PROJECT = Path(__file__).parent / "upgrade"
SERVE = "import django; django.setup(); import calls; calls.serve()"


class Release:
    """A site's processes under one release: management commands, calls, web processes, workers and beats.

    other   name of the other release, whose messages this one's workers consume
    port    of the web process
    """

    def __init__(self, name: str, other: str, installed: Path, directory: Path, environment: dict[str, str]) -> None:
        self.name, self.other, self.directory = name, other, directory
        self.environment = environment | {
            "PYTHONPATH": os.pathsep.join([str(installed), str(PROJECT)]),
            "DJANGO_SETTINGS_MODULE": "shipping.settings",
            "PARCELS_RELEASE": name,
            "PARCELS_INSTALLED": str(installed),
            "PARCELS_DIRECTORY": str(directory),
        }
        self.processes: list[Process] = []
        self.caller: subprocess.Popen[str] | None = None
        self.port = 0

    def manage(self, *arguments: str) -> str:
        return run(sys.executable, "-m", "django", *arguments, cwd=self.directory, **self.environment)

    def environment_of(self, queue: str) -> dict[str, str]:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.directory)}
        return own | self.environment | {"PYTHONUNBUFFERED": "1", "PARCELS_QUEUE": queue}

    # Processes

    def start_celery(self, name: str, *arguments: str, queue: str) -> Process:
        # At INFO, the lines about move_due are left out.
        command = [sys.executable, "-m", "celery", "-A", "shipping", *arguments, "--loglevel=DEBUG"]
        process = Process(f"{self.name}-{name}", command, self.directory, self.environment_of(queue))
        self.processes.append(process)
        return process

    def start_worker(self, name: str = "worker") -> Process:
        """Start a worker that consumes the site's queue and the messages of the other release's callers and beat."""
        hostname, queues = f"--hostname={self.name}@test", f"celery,from-{self.other}"
        return self.start_celery(name, "worker", hostname, "--concurrency=2", f"--queues={queues}", queue="celery")

    def start_beat(self, name: str = "beat", schedule: str = "") -> Process:
        """Start beat.

        schedule   beat's schedule file; default: this release's own
        """
        file = f"--schedule={schedule or self.schedule}"
        return self.start_celery(name, "beat", file, "--pidfile=", queue=f"from-{self.name}")

    def start_web(self) -> None:
        """Start a web process on a free port, with the command of `make run`, and wait until it responds."""
        self.port = free_port()
        command = [*web(self.port).command[:-1], "shipping.asgi:application"]
        process = Process(f"{self.name}-web", command, self.directory, self.environment_of(f"from-{self.name}"))
        self.processes.append(process)

        def up() -> bool:
            assert process.popen.poll() is None, f"{process.name} ended:\n{tail(process.log)}"
            return answers_http(self.port, "/api/health/")

        wait_until(up, seconds=START_SECONDS, what=lambda: f"{process.name} to respond:\n{tail(process.log)}")

    @property
    def schedule(self) -> str:
        return str(self.directory / f"{self.name}-schedule")

    def await_line(self, name: str, text: str) -> None:
        """Wait until the log of this process contains `text`."""
        next(process for process in self.processes if process.name == f"{self.name}-{name}").await_line(text)

    def await_ready(self) -> None:
        self.await_line("worker", "ready.")
        self.await_line("beat", "beat: Starting")

    def start_caller(self) -> "subprocess.Popen[str]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", SERVE], cwd=self.directory, env=self.environment_of(f"from-{self.name}"),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=die_with_parent(),
            )  # fmt: skip

    def stop(self) -> None:
        """Terminate the processes as a supervisor does; each finishes its running jobs."""
        self.close_caller()
        for process in self.processes:
            status = process.terminate()
            # uvicorn ends by the signal that it was sent, not by -9
            assert status in (0, -signal.SIGTERM), f"{process.name} ended with {status}:\n{tail(process.log)}"

    def close_caller(self) -> None:
        if self.caller is not None and self.caller.stdin and self.caller.stdout:
            self.caller.stdin.close()
            self.caller.stdout.close()
            stop_process(self.caller)
            self.caller = None

    def kill(self) -> None:
        self.close_caller()
        for process in self.processes:
            process.kill()

    # Calls

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}-calls.log"

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a function of upgrade/calls.py under this release."""
        self.caller = self.caller or self.start_caller()
        assert self.caller.stdin
        assert self.caller.stdout
        print(json.dumps([name, arguments, options]), file=self.caller.stdin, flush=True)
        answer = self.caller.stdout.readline()
        assert answer, f"{name}{arguments} failed under the {self.name} release:\n{tail(self.log, 80)}"
        return json.loads(answer)

    def command(self, *arguments: str) -> Any:
        """Return what `manage.py delaytasks ... --json` prints."""
        return json.loads(self.call("command", *arguments, "--json"))

    def until(self, name: str, *arguments: Any, is_: Any, seconds: float) -> None:
        """Wait until the call returns `is_`."""
        last: list[Any] = [None]

        def returns_it() -> bool:
            last[0] = self.call(name, *arguments)
            return bool(last[0] == is_)

        wait_until(returns_it, seconds=seconds, what=lambda: f"{name}{arguments} to be {is_!r}; it is {last[0]!r}")

    def logs(self) -> dict[str, str]:
        """Return the log of each process by name."""
        paths = [*(process.log for process in self.processes), self.log]
        return {path.stem: path.read_text(errors="replace") for path in paths if path.exists()}
