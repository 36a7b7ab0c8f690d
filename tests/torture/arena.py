"""A whole installation under load, to be hurt: servers, workers, beat, web, callers and consumers as processes.

A supervisor starts again what ends, as in production. Everything listens on loopback or a unix socket alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from django.test.utils import override_settings

from tests.acceptance.databases import copied, make_template
from tests.acceptance.world import Process, World
from tests.servers import PostgresServer, RedisServer, stop_process, wait_until

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}  # it is going to crash
LOOK_SECONDS = 0.3  # how often the supervisor looks


class Supervised:
    """A process that is started again when it ends, until it is told to stay down."""

    def __init__(self, start: Callable[[], Process]) -> None:
        self.start, self.process, self.wanted, self.starts = start, start(), True, 1

    @property
    def pid(self) -> int:
        return self.process.pid

    def look(self) -> None:
        if self.wanted and self.process.popen.poll() is not None:
            self.process = self.start()
            self.starts += 1

    def signal(self, how: int, *, children: bool = False) -> None:
        """Send a signal to the process, or to all of its group; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if children else os.kill)(self.pid, how)


class Arena(World):
    """What a fault has to hurt.

    redis, broker   servers; one and the same unless the trial wants two
    postgres        the server, or None over SQLite
    crew            name -> Supervised: worker1.., beat, web, caller1.., consumer1.., producer
    """

    def __init__(
        self,
        directory: Path,
        redis: RedisServer,
        database_url: str,
        postgres: PostgresServer | None,
        *,
        broker: RedisServer | None = None,
        **env: str,
    ) -> None:
        self.broker, self.postgres, self.database_url = broker or redis, postgres, database_url
        self.ledger = directory / "ledger"
        self.ledger.mkdir(exist_ok=True)
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.torture.settings", "CELERY_BROKER_URL": self.broker.url(),
            "TORTURE_LEDGER": str(self.ledger), "SERVED_BY": "",
        } | env  # fmt: skip
        super().__init__(directory, redis, database_url, **env)
        self.crew: dict[str, Supervised] = {}
        self.over = threading.Event()
        self._looking = threading.Thread(target=self._look_after, name="supervisor", daemon=True)
        self._starts = 0

    # The crew

    def enlist(self, name: str, start: Callable[[str], Process]) -> Supervised:
        """Start a process and look after it. `start` gets the name of its log."""

        def start_again() -> Process:
            self._starts += 1
            return start(f"{name}-{self._starts}")

        self.crew[name] = Supervised(start_again)
        return self.crew[name]

    def populate(self, *, workers: int = 2, callers: int = 1, per_second: float = 25, seed: int = 0) -> None:
        """Beat, workers and callers, at work."""
        self.enlist(
            "beat", lambda name: self.start_celery(name, "beat", f"--schedule={self.directory}/{name}.db", "--pidfile=")
        )
        for i in range(1, workers + 1):
            self.enlist(f"worker{i}", lambda name: self.start_worker(name, concurrency=2))
        self.await_ready(*self.crew)
        for i in range(1, callers + 1):
            self.enlist_python(f"caller{i}", "tests.torture.caller", f"c{i}", str(seed + i), str(per_second))
        self._looking.start()

    def enlist_python(self, name: str, module: str, *arguments: str, env: dict[str, str] | None = None) -> Supervised:
        """A program of the tests: `python -m module arguments`."""
        return self.enlist(name, lambda log: self._python(log, [module, *arguments], env or {}))

    def _python(self, log: str, arguments: list[str], env: dict[str, str]) -> Process:
        process = Process(log, [sys.executable, "-m", *arguments], self.directory, self.env | env)
        self.processes.append(process)
        return process

    def await_ready(self, *names: str) -> None:
        for name in names:
            self.crew[name].process.await_line("beat: Starting" if name == "beat" else "ready.")

    def _look_after(self) -> None:
        while not self.over.wait(LOOK_SECONDS):
            for one in list(self.crew.values()):
                one.look()

    def those(self, kind: str) -> list[Supervised]:
        """The processes of a kind: "worker", "caller", "consumer"."""
        return [one for name, one in self.crew.items() if name.rstrip("0123456789") == kind]

    def stay_down(self, *kinds: str) -> None:
        """Tell the processes of these kinds to stop, and wait until they have."""
        for kind in kinds:
            for one in self.those(kind):
                one.wanted = False
                stop_process(one.process.popen, how=signal.SIGTERM, seconds=20)

    def children(self, one: Supervised) -> list[int]:
        """The pids of a prefork worker's pool."""
        found = Path(f"/proc/{one.pid}/task/{one.pid}/children")
        return [int(pid) for pid in found.read_text().split()] if found.exists() else []

    # A fault's tools

    def hold(self, seconds: float) -> None:
        """The fault lasts for so long."""
        self.over.wait(seconds)

    def manage(self, *arguments: str) -> str:
        """What `manage.py ...` prints, run in this installation. Raises AssertionError when it fails."""
        command = [sys.executable, str(Path(__file__).parents[2] / "manage.py"), *arguments]
        done = subprocess.run(command, env=self.env, cwd=self.directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def until_quiet(self, live: Callable[[], int], *, seconds: float) -> int:
        """How many jobs are live still, when all have ended or the time is over."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: live() == 0, seconds=seconds, what="every job to end")
        return live()

    def stop_all(self) -> None:
        self.over.set()
        if self._looking.is_alive():
            self._looking.join()
        super().stop_all()


@contextlib.contextmanager
def arena(directory: Path, *, database: str = "postgres", own_broker: bool = False, **env: str) -> Iterator[Arena]:
    """An empty installation with servers of its own. Django's default connection leads to its database meanwhile.

    database   postgres or sqlite
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(**DURABLE)) if database == "postgres" else None
        redis = stack.enter_context(RedisServer())
        broker = stack.enter_context(RedisServer()) if own_broker else None
        template = make_template("torture", directory, postgres, settings="tests.torture.settings")
        url = stack.enter_context(copied(template, "arena", directory, postgres))
        made = Arena(directory, redis, url, postgres, broker=broker, **env)
        stack.enter_context(override_settings(DELAYTASKS={"REDIS_URL": redis.url()}))  # for the checker
        stack.callback(made.stop_all)
        yield made
