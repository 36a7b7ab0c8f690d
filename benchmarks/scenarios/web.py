"""A web process of the measured project, and the processes that load it."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from project.run.programs import answers_http, web
from tests.support.servers import die_with_parent, free_port, tail

from .. import http_load, processes
from ..drivers import Driver, DriverFailed
from ..stand import ROOT, Testbed
from . import usage

PRODUCER = Path(__file__).with_name("http_producer.py")
START_SECONDS = 60.0


class Served(NamedTuple):
    """Running web processes.

    port       of the first
    cpu        returns the seconds of CPU time that the processes have used
    producer   runs http_producer.py
    secret     of a token with all rights
    topic      has a handler
    unhandled  a topic for consumers over HTTP
    """

    ports: list[int]
    cpu: Callable[[], float]
    producer: Driver
    secret: str
    topic: str
    unhandled: str

    @property
    def port(self) -> int:
        return self.ports[0]


@contextmanager
def served(testbed: Testbed, count: int = 1) -> Iterator[Served]:
    """Run web processes with the code of the contestant, and a producer beside them."""
    ports = [free_port() for _ in range(count)]
    logs = [testbed.directory / f"web-{port}.log" for port in ports]
    env = testbed.env | {"DJANGO_SETTINGS_MODULE": "benchmarks.contestants.ours.settings", "SERVED_BY": "asgi"}
    # -P: no module of this folder stands in for another one
    producer = Driver("producer", [sys.executable, "-P", str(PRODUCER)], testbed.env, testbed.directory)
    try:
        access = producer.do("token", seconds=START_SECONDS)
        running = [
            processes.start(web(port, http="auto").command, env, testbed.directory, log)
            for port, log in zip(ports, logs, strict=True)
        ]
        try:
            for process, port, log in zip(running, ports, logs, strict=True):
                _await(process, port, log)
            pids = [process.pid for process in running]
            yield Served(ports, lambda: usage.cpu_seconds(pids), producer, **access)
        finally:
            processes.stop_all(running)
    finally:
        producer.close()


def _await(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers_http(port, "/api/health/"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise DriverFailed(f"The web process does not respond.\n{tail(log, 15)}")
        time.sleep(0.1)


def await_mover(served: Served) -> None:
    """Wait until a worker makes jobs ready: take one from its add to its end. Raises DriverFailed."""
    try:
        asyncio.run(_first_round(served))
    except http_load.Failed as error:
        raise DriverFailed(str(error)) from None


async def _first_round(served: Served) -> None:
    connection = http_load.Connection(served.port, f"Bearer {served.secret}")
    await connection.open()
    await http_load.add(connection, served.unhandled, "first", delay=0)
    deadline = time.monotonic() + START_SECONDS
    while not await http_load.pop_and_finish(connection, served.unhandled):
        if time.monotonic() > deadline:
            raise http_load.Failed("No worker makes jobs ready.")
    connection.close()


class Loader:
    """A module of the benchmarks that loads a web process. It has the code of this checkout."""

    def __init__(self, module: str, command: list[str], env: dict[str, str]) -> None:
        self.module = module
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )  # fmt: skip

    def await_line(self, line: str) -> None:
        """Wait until it has printed this line. Raises DriverFailed."""
        assert self.process.stdout is not None
        if self.process.stdout.readline() != f"{line}\n":
            self.answer()

    def answer(self) -> dict[str, float]:
        """Wait until it ends; return the JSON object that it printed last. Raises DriverFailed."""
        printed, errors = self.process.communicate()
        if self.process.returncode != 0 or not printed:
            raise DriverFailed(f"{self.module} failed: {errors[-500:]}")
        answer: dict[str, float] = json.loads(printed.splitlines()[-1])
        return answer


def loader(testbed: Testbed, module: str, *arguments: object) -> Loader:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    return Loader(module, command, testbed.env | {"PYTHONPATH": str(ROOT)})
