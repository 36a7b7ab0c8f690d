"""A shop's whole world for a test: a Redis, a database, and real beat, worker and web processes on them."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection

from delaytasks.models import Job, JobEvent
from project.parts import answers_http, web
from tests.servers import RedisServer, die_with_parent, free_port, stop_process, tail, wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 30


class Effect(NamedTuple):
    job_id: int
    topic: str
    key: str
    attempt: int
    due_ms: int
    at_ms: int
    pid: int


def environment(directory: Path, database_url: str, redis_url: str = "") -> dict[str, str]:
    """What a process of the project sees: nothing of the caller's own configuration."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
        "SECRET_KEY": "of a test",
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "VAR_DIR": str(directory),
        "SHOP_PAY_WITHIN_SECONDS": "2",
    }


class Process:
    """A beat, worker or web process with a log of its own, in a process group of its own."""

    def __init__(self, name: str, command: list[str], directory: Path, env: dict[str, str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                command,
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def await_line(self, text: str) -> None:
        """Return when the log holds `text`."""

        def seen() -> bool:
            assert self.popen.poll() is None, f"{self.name} ended with {self.popen.returncode}:\n{tail(self.log)}"
            return text in self.log.read_text(errors="replace")

        wait_until(seen, seconds=START_SECONDS, what=lambda: f"{text!r} in {self.name}'s log:\n{tail(self.log)}")

    def terminate(self, seconds: float) -> int:
        """Ask it to stop, as a supervisor does; the exit status, -9 if it had to be killed."""
        return stop_process(self.popen, how=signal.SIGTERM, seconds=seconds)

    def kill(self) -> None:
        """SIGKILL it with all its children: the machine is gone."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the whole group has ended
        self.popen.wait()


class World:
    """What a test has: `redis`, the database (through Django's default connection), and processes that it starts."""

    def __init__(self, directory: Path, redis: RedisServer, database_url: str, **env: str) -> None:
        self.directory = directory
        self.redis = redis
        self.env = environment(directory, database_url, redis.url()) | env
        self.processes: list[Process] = []
        self.port = 0

    def start(self, name: str, command: list[str]) -> Process:
        process = Process(name, command, self.directory, self.env)
        self.processes.append(process)
        return process

    def start_celery(self, name: str, *arguments: str) -> Process:
        return self.start(name, [sys.executable, "-m", "celery", "-A", "project", *arguments, "--loglevel=INFO"])

    def start_web(self) -> Process:
        """A web process as `make run` has it, on a free port, answering."""
        self.port = free_port()
        process = self.start("web", web(self.port).command)

        def up() -> bool:
            assert process.popen.poll() is None, f"The web process ended:\n{tail(process.log)}"
            return answers_http(self.port, "/api/health/")

        wait_until(up, seconds=START_SECONDS, what=lambda: f"the web process to answer:\n{tail(process.log)}")
        return process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_beat(self) -> Process:
        return self.start_celery("beat", "beat", f"--schedule={self.directory}/beat-schedule", "--pidfile=")

    def start_worker(self, name: str = "worker", *arguments: str, concurrency: int = 2) -> Process:
        """A worker that is starting; await_workers() waits until it is there."""
        return self.start_celery(name, "worker", f"--hostname={name}@test", f"--concurrency={concurrency}", *arguments)

    def await_workers(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None and process.name != "web":
                process.await_line("beat: Starting" if process.name == "beat" else "ready.")

    def start_all(self, *, concurrency: int = 2) -> Process:
        """Beat and one worker, ready. The worker."""
        self.start_beat()
        worker = self.start_worker(concurrency=concurrency)
        self.await_workers()
        return worker

    def until(self, done: Callable[[], Any], *, seconds: float, what: str) -> Any:
        """The first true answer of `done()`; on failure, what every process last said."""
        return wait_until(done, seconds=seconds, what=lambda: f"{what}.\n{self.report()}")

    def report(self) -> str:
        """Where every job stands and the end of every log."""
        jobs = Counter(Job.objects.values_list("topic", "state", "attempt"))
        said = [f"(topic, state, attempt) of the jobs: {dict(jobs)}"]
        said += [f"--- {p.name} (pid {p.pid}, exit {p.popen.poll()}):\n{tail(p.log)}" for p in self.processes]
        return "\n".join(said)

    def logs(self) -> list[tuple[str, str]]:
        """(name, end of the log) of each process, for a failure's report."""
        return [(process.name, process.log.read_text(errors="replace")[-6000:]) for process in self.processes]

    def mark(self, topic: str, key: str, attempt: int) -> int | None:
        """The pid of the process that began this attempt; None if none did."""
        found = self.directory / f"{topic}-{key}-{attempt}"
        return int(found.read_text()) if found.exists() else None

    def effects(self, *topics: str) -> list[Effect]:
        """What the handlers did and committed, in the order of the rows."""
        columns = ", ".join(Effect._fields)
        marks = ", ".join(["%s"] * len(topics))
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM acceptance_effect WHERE topic IN ({marks}) ORDER BY id", topics)
            return [Effect(*row) for row in cursor.fetchall()]

    def ended(self, count: int, *, state: int) -> bool:
        return Job.objects.filter(state=state).count() == count

    def outcomes(self, key: str) -> list[tuple[str, int]]:
        """(outcome, attempt) of a job's events, the oldest first."""
        return list(JobEvent.objects.filter(job__key=key).order_by("id").values_list("outcome", "attempt"))

    def stop_all(self) -> None:
        for process in self.processes:
            process.kill()
