"""The testbed of a contestant: its database, Redis, driver and workers."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.servers import PostgresServer, RedisServer, make_directory, tail

from . import processes
from .drivers import Driver, DriverFailed
from .servers import benchmark_redis
from .sink import Sink, wait_until_done

ROOT = Path(__file__).parents[1]
WARM_JOBS = 200
WARM_ROUNDS = 5
WARM_SECONDS = 60.0
QUIET_SECONDS = 10.0


def environment(directory: Path, postgres_url: str, redis_url: str, database: str, root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a driver and its workers. Of the caller's own, only BENCH_... variables are passed."""
    inherited = {name: value for name, value in os.environ.items() if name.startswith("BENCH_")}
    return inherited | {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "BENCH_POSTGRES": postgres_url,
        "BENCH_REDIS": redis_url,
        "BENCH_DIR": str(directory),
        "BENCH_SINK": str(directory / "sink"),
        "BENCH_DATABASE": database,
    }


class Testbed:
    """A contestant, ready to be measured.

    info    the driver's description of the contestant
    label   the contestant in the results: its name, with the database if that is not PostgreSQL
    root    the checkout whose code is measured

    Entering the context raises DriverFailed if the contestant cannot take part.
    """

    def __init__(
        self, name: str, command: list[str], postgres: PostgresServer, database: str = "postgres", root: Path = ROOT
    ) -> None:
        self.name = name
        self.root = root
        self.label = name if database == "postgres" else f"{name}-{database}"
        self.command = command
        self.database = database
        self.postgres = postgres
        self.info: dict[str, Any] = {}
        self.running: list[subprocess.Popen[bytes]] = []
        self.slowness: dict[str, int] = {}  # kind of fill -> factor on the expected duration, learned from late fills
        self._at_end = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as at_end:
            self.directory = make_directory("delaytasks-bench-")
            at_end.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.redis: RedisServer = at_end.enter_context(benchmark_redis())
            self.database_url = self.postgres.make_database(f"bench_{self.label.replace('-', '_')}")
            self.env = environment(self.directory, self.database_url, self.redis.url(), self.database, self.root)
            self.sink = Sink(self.directory / "sink")
            self._start_driver()
            at_end.callback(lambda: self.driver.close())
            self._at_end = at_end.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._at_end.close()

    def _start_driver(self) -> None:
        driver = Driver(self.name, self.command, self.env, self.directory)
        try:
            self.info = driver.do("describe", seconds=60)
            driver.do("setup", seconds=120)
        except DriverFailed:
            driver.close()
            raise
        self.driver = driver

    def revive(self) -> None:
        """Restart the driver if it has exited. Raises DriverFailed."""
        if self.driver.has_exited:
            self.driver.close()
            self._start_driver()

    def can(self, feature: str) -> bool:
        return feature in self.info["can"]

    def do(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command to the driver and return the answer. Raises DriverFailed."""
        return self.driver.do(command, **fields)

    def clear(self) -> None:
        """Empty the contestant's stores and the sink."""
        self.driver.do("clear")
        self.sink.empty()

    def analyze(self) -> None:
        """Analyze the tables, as autovacuum would have done with older data."""
        if self.database == "postgres":
            with self.postgres.connect(self.database_name, autocommit=True) as connection:
                connection.execute("ANALYZE")

    @property
    def database_name(self) -> str:
        return self.database_url.rpartition("/")[2]

    # -- the workers ----------------------------------------------------------------------------

    @contextmanager
    def workers(
        self, count: int | None = None, warm: bool = True, concurrency: int | None = None
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run the workers inside the block, warmed up.

        count         limits the worker commands
        concurrency   the number of processes of each worker, if its command has this option
        """
        workers = [[_concurrency(argument, concurrency) for argument in command] for command in self.info["workers"]]
        commands = [*workers[:count], *self.info.get("extra", [])]
        for log in self.directory.glob("worker-*.log"):
            log.unlink()
        try:
            for number, command in enumerate(commands):
                log = self.directory / f"worker-{number}.log"
                self.running.append(processes.start(command, self.env, self.directory, log))
            if warm:
                self.warm_up()
            yield self.running
            self.check_alive()
        finally:
            processes.stop_all(self.running)
            self.running = []

    def warm_up(self) -> None:
        """Run jobs until two processes have had some, in at most WARM_ROUNDS rounds. Raises DriverFailed."""
        for _ in range(WARM_ROUNDS):
            now = time.time()
            self.do("fill", due=[now] * WARM_JOBS, kind="noop")
            if not self.sink.await_count(WARM_JOBS, WARM_SECONDS):
                raise DriverFailed(f"{self.label}: {self.sink.count()} of {WARM_JOBS} jobs ran.\n{self.report()}")
            self.await_quiet()
            both_warm = self.sink.writers() > 1
            self.sink.empty()
            if both_warm:
                break

    def await_quiet(self) -> bool:
        """Wait until no job is left, as far as the contestant can tell; return whether that succeeded."""
        return wait_until_done(lambda: not self.do("left").get("left"), QUIET_SECONDS)

    def check_alive(self) -> None:
        """Raise DriverFailed if a worker has exited."""
        exited = [process.args for process in self.running if process.poll() is not None]
        if exited:
            raise DriverFailed(f"{self.label}: workers exited: {exited}.\n{self.report()}")

    def pids(self) -> list[int]:
        """Return the process ids of the workers and their children."""
        return processes.of_sessions(process.pid for process in self.running)

    def report(self) -> str:
        """Return the end of each worker's log."""
        return "\n".join(f"--- {log.name}\n{tail(log, 15)}" for log in sorted(self.directory.glob("worker-*.log")))


def _concurrency(argument: str, concurrency: int | None) -> str:
    return f"--concurrency={concurrency}" if concurrency and argument.startswith("--concurrency=") else argument
