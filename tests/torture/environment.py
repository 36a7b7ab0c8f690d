"""An installation to inject faults into: servers, workers, beat, web, callers and consumers as processes.

A supervisor restarts processes that end, as in production. Everything listens only on loopback or a unix socket.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from django.test.utils import override_settings

from project.run.programs import answers_http, web
from tests.support.databases import copied, make_template
from tests.support.installation import START_SECONDS, Process, World
from tests.support.pgbouncer import PgBouncer
from tests.support.rabbitmq import RabbitServer
from tests.support.redis_cluster import Cluster
from tests.support.servers import PostgresServer, RedisServer, free_port, stop_process, tail, wait_until

from .faketime import Dial
from .ledger import Ledger
from .proxy import Proxy

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}  # it will be crashed
SETTINGS = "tests.torture.settings"
CHECK_SECONDS = 0.3  # period of the supervisor


class Supervised:
    """A process that is restarted when it ends, until stay_down() or die().

    last_words   how it ended, and the end of its log, each time that it was restarted
    """

    def __init__(self, start: Callable[[], Process]) -> None:
        self.start, self.process, self.wanted, self.starts = start, start(), True, 1
        self.last_words: list[str] = []
        self._one_at_a_time = threading.Lock()

    @property
    def pid(self) -> int:
        return self.process.pid

    def restart_if_ended(self) -> None:
        with self._one_at_a_time:
            if self.wanted and (status := self.process.popen.poll()) is not None:
                self.last_words.append(f"{self.process.name} ended with {status}:\n{tail(self.process.log)}")
                self.process = self.start()
                self.starts += 1

    def stay_down(self) -> None:
        """Terminate it, wait until it has ended, and do not restart it."""
        with self._one_at_a_time:
            self.wanted = False
            stop_process(self.process.popen, how=signal.SIGTERM, seconds=20)

    def die(self) -> None:
        """Kill it and all its children, and do not restart it until come_back()."""
        with self._one_at_a_time:
            self.wanted = False
            self.process.kill()

    def come_back(self) -> None:
        """Let the supervisor start it again."""
        self.wanted = True

    def signal(self, how: int, *, children: bool = False) -> None:
        """Send a signal to the process, or to its process group; do nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if children else os.kill)(self.pid, how)


class Arena(World):
    """An installation that faults act on.

    redis, broker   servers; the same one unless the trial needs two
    postgres        the server; None with SQLite
    crew            name -> Supervised: worker1.., beat, web, consumer1..; during a trial also caller and producer
    token           API token of the consumers and the producer
    proxy, cluster, pooler
                    only in installations of that kind: the proxy to Redis or to the broker, the mirror's Cluster,
                    and the PgBouncer
    site_redis, site_rabbit
                    only in installations of that kind: the brokers of another site, to which jobs are forwarded
    dial            only in "jumping" installations: the offset of the clocks
    env_of          name in the crew -> additional environment variables from its next start on
    """

    broker: RedisServer | RabbitServer
    proxy: Proxy
    cluster: Cluster
    pooler: PgBouncer
    site_redis: RedisServer
    site_rabbit: RabbitServer
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
            "DJANGO_SETTINGS_MODULE": SETTINGS, "CELERY_BROKER_URL": self.broker.url(),
            "TORTURE_LEDGER": str(self.ledger), "SERVED_BY": "",
        } | env  # fmt: skip
        super().__init__(directory, redis, database_url, **env)
        self.crew: dict[str, Supervised] = {}
        self.env_of: dict[str, dict[str, str]] = {}
        self.token = ""
        self.seen: set[tuple[Any, ...]] = set()  # violations already reported by a trial
        self.jumps: list[tuple[int, int]] = []  # of the database's clock, see evidence.collect()
        self.at_once = 1  # the number of faults that are injected at the moment
        self.over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._starts = 0

    # The crew

    def enlist(self, name: str, start: Callable[[str], Process]) -> Supervised:
        """Start a process and supervise it. `start` is called with the name of its log."""

        def start_again() -> Process:
            self._starts += 1
            return start(f"{name}-{self._starts}")

        self.crew[name] = Supervised(start_again)
        return self.crew[name]

    def populate(self, *, workers: int = 2, consumers: int = 2, pool: str = "prefork") -> None:
        """Start beat, workers, a web process and HTTP consumers. Without consumers there is no web process."""
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
        self._supervisor.start()

    def enlist_web(self) -> None:
        """Start a web process, which restarts on the same port, and create a token."""
        rights = ["--produce=torture.*", "--consume=torture.*", "--rate-per-minute=1000000", "--json"]
        self.token = json.loads(self.manage("delaytasks", "token", "make", "--account=torture", *rights))["secret"]
        self.port = free_port()
        self.enlist("web", lambda name: self.start(name, web(self.port).command))

    def load(self, *, seed: int, per_second: float) -> None:
        """Start a caller and an HTTP producer, which run until unload()."""
        caller = self.enlist_python("caller", "tests.torture.caller", f"s{seed}", str(seed), str(per_second))
        if self.those("web"):
            self.enlist_producer("producer", at_once=10, rest_seconds=2)
        caller.process.await_line("calling")

    def enlist_producer(
        self, name: str, *, at_once: int, rest_seconds: float, topic: str = "torture.http"
    ) -> Supervised:
        """Start a client that creates `at_once` jobs in each request."""
        terms = [f"{self.url}/api/jobs/", self.token, topic, str(at_once), str(rest_seconds)]
        return self.enlist_python(name, "tests.torture.producer", name, *terms)

    def unload(self) -> None:
        self.stay_down("caller", "producer")

    def enlist_python(self, name: str, module: str, *arguments: str, env: dict[str, str] | None = None) -> Supervised:
        """Start a program of the tests: `python -m module arguments`."""
        return self.enlist(name, lambda log: self._python(log, [module, *arguments], env or {}))

    def _python(self, log: str, arguments: list[str], env: dict[str, str]) -> Process:
        return self.start(log, [sys.executable, "-m", *arguments], env)

    def start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> Process:
        """Start a process whose log has this name: its name in the crew and a number."""
        own = self.env_of.get(name.rpartition("-")[0], {})
        process = Process(name, command, self.directory, self.env | own | (env or {}))
        self.processes.append(process)
        return process

    def await_ready(self, *names: str) -> None:
        for name in names:
            process = self.crew[name].process
            if name == "web":
                what = f"the web process to answer:\n{tail(process.log)}"
                wait_until(lambda: answers_http(self.port, "/api/health/"), seconds=START_SECONDS, what=what)
            else:
                process.await_line("beat: Starting" if name == "beat" else "ready.")

    def _supervise(self) -> None:
        while not self.over.wait(CHECK_SECONDS):
            for one in list(self.crew.values()):
                one.restart_if_ended()

    def schedule(self, group: str, topic: str, jobs: Sequence[dict[str, Any]]) -> None:
        """Schedule jobs of one topic in one call, with entries in the ledger. Each has a key of its own.

        Raises OperationalError if another fault keeps the database from answering: the jobs may exist or not.
        """
        from delaytasks import schedule_many

        ledger = Ledger(self.ledger, "faults")
        asks = ({"n": job["key"], "key": job["key"]} for job in jobs)
        ledger.write("asks", *asks, op="schedule", topic=topic, delay_ms=None, group=group)
        said = "broken"
        try:
            schedule_many([{"topic": topic, **job} for job in jobs])
            said = "scheduled"
        finally:
            ledger.write("answers", *({"n": job["key"]} for job in jobs), said=said, job=None, due_ms=None)

    def those(self, kind: str) -> list[Supervised]:
        """Return the processes of a kind: "worker", "caller", "consumer"."""
        return [one for name, one in self.crew.items() if name.rstrip("0123456789") == kind]

    def stay_down(self, *kinds: str) -> None:
        """Terminate the processes of these kinds and do not restart them."""
        for kind in kinds:
            for one in self.those(kind):
                one.stay_down()

    def children(self, one: Supervised) -> list[int]:
        """Return the pids of a prefork worker's pool."""
        path = Path(f"/proc/{one.pid}/task/{one.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    # Helpers for faults

    def hold(self, seconds: float) -> None:
        """Wait while the fault lasts."""
        self.over.wait(seconds)

    def manage(self, *arguments: str) -> str:
        """Return the output of `manage.py ...` in this installation. Raises AssertionError if it fails."""
        command = [sys.executable, str(Path(__file__).parents[2] / "manage.py"), *arguments]
        done = subprocess.run(command, env=self.env, cwd=self.directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stats(self) -> dict[str, Any]:
        """Return the output of `manage.py delaytasks stats` in this installation."""
        return json.loads(self.manage("delaytasks", "stats", "--json"))

    def until_quiet(self, live: Callable[[], int], *, seconds: float) -> int:
        """Wait until no job is live or the time is over; return how many are. Polls seldom, to cause little load."""
        deadline = time.monotonic() + seconds
        while (left := live()) and time.monotonic() < deadline:
            self.hold(CHECK_SECONDS)
        return left

    def stop_all(self) -> None:
        self.over.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        super().stop_all()


@contextlib.contextmanager
def arena(
    directory: Path,
    *,
    database: str = "postgres",
    own_broker: bool = False,
    redis: RedisServer | None = None,
    postgres: PostgresServer | None = None,
    settings: str = SETTINGS,
    **env: str,
) -> Iterator[Arena]:
    """Set up an empty installation with its own servers. Django's default connection uses its database meanwhile.

    database          postgres or sqlite
    redis, postgres   servers not started yet; None: default ones
    settings          module with the settings of all processes
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if database == "postgres":
            postgres = stack.enter_context(postgres or PostgresServer(**DURABLE))
        redis = stack.enter_context(redis or RedisServer())
        broker = stack.enter_context(RedisServer()) if own_broker else None
        template = make_template("torture", directory, postgres, settings=settings)
        url = stack.enter_context(copied(template, "arena", directory, postgres))
        env = {"DJANGO_SETTINGS_MODULE": settings, **env}
        made = Arena(directory, redis, url, postgres, broker=broker, **env)
        stack.enter_context(override_settings(DELAYTASKS={"REDIS_URL": redis.url()}))  # for the checker
        stack.callback(made.stop_all)
        yield made
