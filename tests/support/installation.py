"""A complete installation for a test: Redis, a database, and real beat, worker and web processes."""

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
from project.run.programs import answers_http, web
from tests.support.servers import RedisServer, die_with_parent, free_port, stop_process, tail, wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 30
# A process of Celery's pool may wait 30 s for its main process to read its last result, which that no longer does.
STOP_SECONDS = 60


class Effect(NamedTuple):
    job_id: int
    topic: str
    key: str
    attempt: int
    due_ms: int
    at_ms: int
    pid: int


def environment(directory: Path, database_url: str, redis_url: str = "") -> dict[str, str]:
    """Return the environment of a process of the project, without the caller's own configuration."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
        "SECRET_KEY": "of a test",
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "VAR_DIR": str(directory),
        "SHOP_PAY_WITHIN_SECONDS": "2",
    }


class Process:
    """A beat, worker or web process with its own log in `directory`, in its own process group.

    cwd   None: `directory`
    """

    def __init__(
        self, name: str, command: list[str], directory: Path, env: dict[str, str], *, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                command,
                cwd=cwd or directory,
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
        """Wait until the log contains `text`. The process may have ended after writing it."""

        def seen() -> bool:
            has_ended = self.popen.poll() is not None
            if text in self.log.read_text(errors="replace"):
                return True
            assert not has_ended, f"{self.name} ended with {self.popen.returncode}:\n{tail(self.log)}"
            return False

        wait_until(seen, seconds=START_SECONDS, what=lambda: f"{text!r} in {self.name}'s log:\n{tail(self.log)}")

    def terminate(self, seconds: float = STOP_SECONDS) -> int:
        """Stop the process as a supervisor does. Return its exit status, which is -9 if it had to be killed."""
        return stop_process(self.popen, how=signal.SIGTERM, seconds=seconds)

    def kill(self) -> None:
        """Kill the process and all its children with SIGKILL, as if the machine had failed."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the whole group has ended
        self.popen.wait()


class World:
    """An installation: `redis`, the database (Django's default connection) and the processes that the test starts."""

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

    def start_celery(self, name: str, *arguments: str, loglevel: str = "INFO") -> Process:
        command = [sys.executable, "-m", "celery", "-A", "project", *arguments, f"--loglevel={loglevel}"]
        return self.start(name, command)

    def start_web(self, port: int | None = None, *, http: str = "h11") -> Process:
        """Start a web process as `make run` does, on this or a free port. Return the process when it responds.

        http   uvicorn's parser, as in web()
        """
        self.port = port or free_port()
        process = self.start("web", web(self.port, http=http).command)

        def up() -> bool:
            assert process.popen.poll() is None, f"The web process ended:\n{tail(process.log)}"
            return answers_http(self.port, "/api/health/")

        wait_until(up, seconds=START_SECONDS, what=lambda: f"the web process to respond:\n{tail(process.log)}")
        return process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_beat(self, loglevel: str = "INFO") -> Process:
        arguments = ["beat", f"--schedule={self.directory}/beat-schedule", "--pidfile="]
        return self.start_celery("beat", *arguments, loglevel=loglevel)

    def start_worker(self, name: str = "worker", *arguments: str, concurrency: int = 2) -> Process:
        """Start a worker; await_workers() waits until it is ready."""
        return self.start_celery(name, "worker", f"--hostname={name}@test", f"--concurrency={concurrency}", *arguments)

    def await_workers(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None and process.name != "web":
                process.await_line("beat: Starting" if process.name == "beat" else "ready.")

    def start_all(self, *, concurrency: int = 2) -> Process:
        """Start beat and one worker, and wait until they are ready. Return the worker."""
        self.start_beat()
        worker = self.start_worker(concurrency=concurrency)
        self.await_workers()
        return worker

    def until(self, done: Callable[[], Any], *, seconds: float, what: str) -> Any:
        """Wait until done() is true and return its value. The message of a failure contains report()."""
        return wait_until(done, seconds=seconds, what=lambda: f"{what}.\n{self.report()}")

    def report(self) -> str:
        """Return the number of jobs by topic, state and attempt, and the end of each process's log."""
        jobs = Counter(Job.objects.values_list("topic", "state", "attempt"))
        lines = [f"(topic, state, attempt) of the jobs: {dict(jobs)}"]
        lines += [f"--- {p.name} (pid {p.pid}, exit {p.popen.poll()}):\n{tail(p.log)}" for p in self.processes]
        return "\n".join(lines)

    def logs(self) -> list[tuple[str, str]]:
        """Return (name, end of the log) of each process, for failure reports."""
        return [(process.name, process.log.read_text(errors="replace")[-6000:]) for process in self.processes]

    def mark(self, topic: str, key: str, attempt: int) -> int | None:
        """Return the pid of the process that began this attempt; None if it has not begun."""
        path = self.directory / f"{topic}-{key}-{attempt}"
        return int(path.read_text()) if path.exists() else None

    def effects(self, *topics: str) -> list[Effect]:
        """Return the committed effects of the handlers of these topics, in the order of their ids."""
        columns = ", ".join(Effect._fields)
        placeholders = ", ".join(["%s"] * len(topics))
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {columns} FROM acceptance_effect WHERE topic IN ({placeholders}) ORDER BY id", topics
            )
            return [Effect(*row) for row in cursor.fetchall()]

    def ended(self, count: int, *, state: int) -> bool:
        return Job.objects.filter(state=state).count() == count

    def outcomes(self, key: str) -> list[tuple[str, int]]:
        """Return (outcome, attempt) of a key's events, oldest first."""
        return list(JobEvent.objects.filter(job__key=key).order_by("id").values_list("outcome", "attempt"))

    def stop_all(self) -> None:
        for process in self.processes:
            process.kill()
