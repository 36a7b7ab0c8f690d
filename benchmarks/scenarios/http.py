"""Jobs per second scheduled over HTTP: one uvicorn with the project, clients and servers on one machine.

Beside it, in the forms add.1 and add.64: beanstalkd through its own client and protocol, and RabbitMQ's HTTP door.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from project.run.programs import answers_http, web
from tests.support.servers import free_port, tail

from .. import processes
from ..drivers import DriverFailed
from ..plan import Form, Measured, Options
from ..stand import Testbed
from .ourselves import inside

OURS = "delaytasks"
RIVALS = ("beanstalkd", "rabbitmq")
DELAY_SECONDS = 600
BULK = 1000
CALLERS = 8
WARMUP = 100  # requests that are not counted
START_SECONDS = 60.0
LOAD_SECONDS = 8


class Client:
    """One persistent connection with one token."""

    def __init__(self, port: int, secret: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def post(self, path: str, body: Any) -> None:
        """Send a request. Raises DriverFailed if it fails."""
        self.connection.request("POST", f"/api/{path}", json.dumps(body), self.headers)
        response = self.connection.getresponse()
        text = response.read()
        if response.status not in (200, 201) or b'"success":false' in text.replace(b" ", b""):
            raise DriverFailed(f"POST {path}: {response.status} {text[:200]!r}")


@contextmanager
def served(testbed: Testbed) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run a web process; yield its port and the token that inside.py created."""
    port = free_port()
    with inside(testbed) as ours:
        access = ours.do("token")
    log = testbed.directory / "web.log"
    env = testbed.env | {"DJANGO_SETTINGS_MODULE": "benchmarks.contestants.ours.settings", "SERVED_BY": "asgi"}
    process = processes.start(web(port, http="auto").command, env, testbed.directory, log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers_http(port, "/api/health/"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise DriverFailed(f"The web process does not respond.\n{tail(log, 15)}")
            time.sleep(0.1)
        yield port, access
    finally:
        processes.stop_all([process])


def rest(topic: str, numbers: Sequence[int], bulk: int) -> tuple[str, Any]:
    jobs = [{"topic": topic, "key": f"http:{n}", "delay_seconds": DELAY_SECONDS, "body": {"n": n}} for n in numbers]
    return "jobs/", {"jobs": jobs} if bulk > 1 else jobs[0]


def command(topic: str, numbers: Sequence[int], bulk: int) -> tuple[str, Any]:
    (n,) = numbers
    fields = {"topic": topic, "id": f"http:{n}", "delay": DELAY_SECONDS, "TTR": 60, "body": {"n": n}}
    return "queue/", {"command": "add", **fields}


def form(name: str, make: Any, note: str, *, bulk: int = 1, callers: int = 1, share: int = 10) -> Form:
    """Return a form. `share` divides the number of jobs: 20,000 single requests would take minutes."""

    def measure(testbed: Testbed, options: Options) -> Measured:
        count = max(callers, options.jobs // share)
        with served(testbed) as (port, access):
            clients = [Client(port, access["secret"]) for _ in range(callers)]
            _time(clients, [make(access["topic"], [n], 1) for n in range(count, count + WARMUP)])
            calls = [make(access["topic"], range(at, min(at + bulk, count)), bulk) for at in range(0, count, bulk)]
            seconds = _time(clients, calls)
        return Measured(count / seconds, {"jobs": count, "callers": callers})

    return Form("http", name, "jobs/s", measure, only=(OURS,), note=note)


def _time(clients: Sequence[Client], calls: Sequence[tuple[str, Any]]) -> float:
    """Return the seconds until all calls are answered. Each client makes its share of them sequentially."""
    failed: list[Exception] = []

    def work(client: Client, share: Sequence[tuple[str, Any]]) -> None:
        try:
            for path, body in share:
                client.post(path, body)
        except Exception as error:
            failed.append(error)

    step = len(clients)
    threads = [threading.Thread(target=work, args=(client, calls[n::step])) for n, client in enumerate(clients)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise DriverFailed(f"A call failed: {failed[0]}") from failed[0]
    return time.perf_counter() - begun


def answer_of(testbed: Testbed, command: list[str]) -> dict[str, float]:
    """Return what http_load.py prints. Raises DriverFailed."""
    done = subprocess.run(command, env=testbed.env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DriverFailed(f"The load failed: {done.stderr[-500:]}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def load(name: str, kind: str, connections: int, note: str, share: float = 1) -> Form:
    """Return a form with many connections at once, each of which waits for its answer; see http_load.py.

    share   of the highest load, which is measured first
    """

    def measure(testbed: Testbed, options: Options) -> Measured:
        if testbed.name != OURS:
            return measured(testbed.do("http_add", connections=connections, duration=LOAD_SECONDS))
        with ExitStack() as at_end:
            port, access = at_end.enter_context(served(testbed))
            if kind == "cycle":  # its mover makes the added jobs ready
                at_end.enter_context(testbed.workers(1, warm=False))
            command = [sys.executable, "-m", "benchmarks.http_load", str(port), access["secret"], access["unhandled"]]
            command += [kind, str(connections), str(LOAD_SECONDS)]
            answer = answer_of(testbed, command)
            if share < 1:
                answer = answer_of(testbed, [*command, str(answer["per_second"] * share)])
        return measured(answer)

    def measured(answer: dict[str, float]) -> Measured:
        more = {"connections": connections, "p50 ms": answer["p50_ms"], "p99 ms": answer["p99_ms"]}
        return Measured(answer["per_second"], more)

    only = (OURS,) if kind == "cycle" or share < 1 else (OURS, *RIVALS)
    unit = "rounds/s" if kind == "cycle" else "jobs/s"
    return Form("http", name, unit, measure, only=only, note=note)


FORMS = [
    form("one", rest, "POST /jobs/, one job per request, one client"),
    form("one.8", rest, "the same with eight clients", callers=CALLERS),
    form("add", command, "the command protocol's add, one client"),
    form("bulk", rest, "POST /jobs/ with a thousand jobs per request", bulk=BULK, share=1),
    load("add.1", "add", 1, "the command protocol's add, one connection"),
    load("add.64", "add", 64, "the command protocol's add, 64 connections at once"),
    load("add.half", "add", 64, "the same with half of the requests a second", share=0.5),
    load("cycle.64", "cycle", 64, "add, pop and finish, 64 connections at once"),
]
