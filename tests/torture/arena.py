"""A whole installation under load, to be hurt: servers, workers, beat, web, callers and consumers as processes.

A supervisor starts again what ends, as in production. Everything listens on loopback or a unix socket alone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.test.utils import override_settings

from project.parts import answers_http, web
from tests.acceptance.databases import copied, make_template
from tests.acceptance.world import START_SECONDS, Process, World
from tests.cluster import Cluster
from tests.servers import PostgresServer, RedisServer, free_port, stop_process, tail, wait_until

from .clocks import Dial
from .proxy import Proxy
from .rabbit import RabbitServer

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}  # it is going to crash
LOOK_SECONDS = 0.3  # how often the supervisor looks


class Supervised:
    """A process that is started again when it ends, until it is told to stay down."""

    def __init__(self, start: Callable[[], Process]) -> None:
        self.start, self.process, self.wanted, self.starts = start, start(), True, 1
        self._one_at_a_time = threading.Lock()

    @property
    def pid(self) -> int:
        return self.process.pid

    def look(self) -> None:
        with self._one_at_a_time:
            if self.wanted and self.process.popen.poll() is not None:
                self.process = self.start()
                self.starts += 1

    def stay_down(self) -> None:
        """Tell it to stop, and wait until it has."""
        with self._one_at_a_time:
            self.wanted = False
            stop_process(self.process.popen, how=signal.SIGTERM, seconds=20)

    def signal(self, how: int, *, children: bool = False) -> None:
        """Send a signal to the process, or to all of its group; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if children else os.kill)(self.pid, how)


class Arena(World):
    """What a fault has to hurt.

    redis, broker   servers; one and the same unless the trial wants two
    postgres        the server, or None over SQLite
    crew            name -> Supervised: worker1.., beat, web, consumer1..; during a trial caller and producer, too
    token           what consumers and the producer show to the web process
    proxy, cluster  of installations of that kind only: the way to Redis, and the mirror
    dial            of a "jumping" one only: how wrong the clocks are
    env_of          name in the crew -> what its environment has besides, from its next start on
    """

    broker: RedisServer | RabbitServer
    proxy: Proxy
    cluster: Cluster
    dial: Dial

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
        self.env_of: dict[str, dict[str, str]] = {}
        self.token = ""
        self.seen: set[tuple[Any, ...]] = set()  # violations that a trial has reported
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

    def populate(self, *, workers: int = 2, consumers: int = 2, pool: str = "prefork") -> None:
        """Beat, workers, a web process and consumers over HTTP, ready. Without consumers there is no web process."""
        self.enlist(
            "beat", lambda name: self.start_celery(name, "beat", f"--schedule={self.directory}/{name}.db", "--pidfile=")
        )
        for i in range(1, workers + 1):
            self.enlist(f"worker{i}", lambda name: self.start_worker(name, f"--pool={pool}", concurrency=2))
        if consumers:
            self.enlist_web()
        self.await_ready(*self.crew)
        for i in range(1, consumers + 1):
            self.enlist_python(f"consumer{i}", "tests.torture.consumer", f"{self.url}/api/queue/", self.token)
        self._looking.start()

    def enlist_web(self) -> None:
        """A web process that comes back on the same port, and a token for it."""
        rights = ["--produce=torture.*", "--consume=torture.*", "--rate-per-minute=1000000", "--json"]
        self.token = json.loads(self.manage("delaytasks", "token", "make", "--account=torture", *rights))["secret"]
        self.port = free_port()
        self.enlist("web", lambda name: self.start(name, web(self.port).command))

    def load(self, *, seed: int, per_second: float) -> None:
        """A caller, and a producer over HTTP, at work until unload()."""
        caller = self.enlist_python("caller", "tests.torture.caller", f"s{seed}", str(seed), str(per_second))
        if self.those("web"):
            self.enlist_producer("producer", at_once=10, rest_seconds=2)
        caller.process.await_line("calling")

    def enlist_producer(
        self, name: str, *, at_once: int, rest_seconds: float, topic: str = "torture.http"
    ) -> Supervised:
        """A client that makes so many jobs in each request."""
        terms = [f"{self.url}/api/jobs/", self.token, topic, str(at_once), str(rest_seconds)]
        return self.enlist_python(name, "tests.torture.producer", name, *terms)

    def unload(self) -> None:
        self.stay_down("caller", "producer")

    def enlist_python(self, name: str, module: str, *arguments: str, env: dict[str, str] | None = None) -> Supervised:
        """A program of the tests: `python -m module arguments`."""
        return self.enlist(name, lambda log: self._python(log, [module, *arguments], env or {}))

    def _python(self, log: str, arguments: list[str], env: dict[str, str]) -> Process:
        return self.start(log, [sys.executable, "-m", *arguments], env)

    def start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> Process:
        """A process with a log of this name, which is its name in the crew and a number."""
        own = self.env_of.get(name.rpartition("-")[0], {})
        process = Process(name, command, self.directory, self.env | own | (env or {}))
        self.processes.append(process)
        return process

    def await_ready(self, *names: str) -> None:
        for name in names:
            process = self.crew[name].process
            if name == "web":
                said = f"the web process to answer:\n{tail(process.log)}"
                wait_until(lambda: answers_http(self.port, "/api/health/"), seconds=START_SECONDS, what=said)
            else:
                process.await_line("beat: Starting" if name == "beat" else "ready.")

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
                one.stay_down()

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

    def stats(self) -> dict[str, Any]:
        """What `manage.py delaytasks stats` knows, from a process of this installation."""
        return json.loads(self.manage("delaytasks", "stats", "--json"))

    def until_quiet(self, live: Callable[[], int], *, seconds: float) -> int:
        """How many jobs are live still, when all have ended or the time is over. Asks seldom: it is to be quiet."""
        over = time.monotonic() + seconds
        while (left := live()) and time.monotonic() < over:
            self.hold(LOOK_SECONDS)
        return left

    def stop_all(self) -> None:
        self.over.set()
        if self._looking.is_alive():
            self._looking.join()
        super().stop_all()


@contextlib.contextmanager
def arena(
    directory: Path,
    *,
    database: str = "postgres",
    own_broker: bool = False,
    redis: RedisServer | None = None,
    postgres: PostgresServer | None = None,
    **env: str,
) -> Iterator[Arena]:
    """An empty installation with servers of its own. Django's default connection leads to its database meanwhile.

    database          postgres or sqlite
    redis, postgres   servers that are not started yet; None: ordinary ones
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if database == "postgres":
            postgres = stack.enter_context(postgres or PostgresServer(**DURABLE))
        redis = stack.enter_context(redis or RedisServer())
        broker = stack.enter_context(RedisServer()) if own_broker else None
        template = make_template("torture", directory, postgres, settings="tests.torture.settings")
        url = stack.enter_context(copied(template, "arena", directory, postgres))
        made = Arena(directory, redis, url, postgres, broker=broker, **env)
        stack.enter_context(override_settings(DELAYTASKS={"REDIS_URL": redis.url()}))  # for the checker
        stack.callback(made.stop_all)
        yield made
