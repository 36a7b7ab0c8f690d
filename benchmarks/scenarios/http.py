"""Jobs per second scheduled over HTTP: one uvicorn with the project, clients and servers on one machine.

Beside it, in the forms add.1 and add.64: beanstalkd through its own client and protocol, and RabbitMQ's HTTP door. With
--former, the web process of another checkout too, under the same uvicorn, load and servers.
"""

import http.client
import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ..contestants.roster import FORMER, OURS
from ..drivers import DriverFailed
from ..plan import Form, Measured, Options
from ..stand import Testbed
from .web import await_mover, loader, served

ENGINES = (OURS, FORMER)
RIVALS = ("beanstalkd", "rabbitmq")
DELAY_SECONDS = 600
BULK = 1000
CALLERS = 8
WARMUP = 100  # requests that are not counted
LOAD_SECONDS = 8
CONSUMERS = 200
FED_PER_SECOND = 2_000
FED_SECONDS = 20


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
        with served(testbed) as web:
            clients = [Client(web.port, web.secret) for _ in range(callers)]
            _time(clients, [make(web.topic, [n], 1) for n in range(count, count + WARMUP)])
            calls = [make(web.topic, range(at, min(at + bulk, count)), bulk) for at in range(0, count, bulk)]
            seconds = _time(clients, calls)
        return Measured(count / seconds, {"jobs": count, "callers": callers})

    return Form("http", name, "jobs/s", measure, only=ENGINES, note=note)


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


def load(name: str, kind: str, connections: int, note: str, share: float = 1) -> Form:
    """Return a form with many connections at once, each of which waits for its answer; see http_load.py.

    share   of the highest load, which is measured first
    """

    def measure(testbed: Testbed, options: Options) -> Measured:
        if testbed.name in RIVALS:
            return measured(testbed.do("http_add", connections=connections, duration=LOAD_SECONDS))
        with ExitStack() as at_end:
            web = at_end.enter_context(served(testbed))
            if kind == "cycle":  # its mover makes the added jobs ready
                at_end.enter_context(testbed.workers(1, warm=False))
                await_mover(web)
            arguments = (web.port, web.secret, web.unhandled, kind, connections, LOAD_SECONDS)
            answer = loader(testbed, "http_load", *arguments).answer()
            if share < 1:
                answer = loader(testbed, "http_load", *arguments, answer["per_second"] * share).answer()
        return measured(answer)

    def measured(answer: dict[str, float]) -> Measured:
        more = {"connections": connections, "p50 ms": answer["p50_ms"], "p99 ms": answer["p99_ms"]}
        return Measured(answer["per_second"], more)

    only = ENGINES if kind == "cycle" or share < 1 else (*ENGINES, *RIVALS)
    unit = "rounds/s" if kind == "cycle" else "jobs/s"
    return Form("http", name, unit, measure, only=only, note=note)


def fleet(name: str, kind: str, processes: int, note: str) -> Form:
    """Return a form with waiting consumers; see http_fleet.py."""

    def measure(testbed: Testbed, options: Options) -> Measured:
        seconds = max(1, options.scaled(FED_SECONDS))
        with served(testbed, processes) as web, testbed.workers(1, warm=False):
            ports, expected = ",".join(map(str, web.ports)), FED_PER_SECOND * seconds
            consumers = loader(testbed, "http_fleet", ports, web.secret, web.unhandled, kind, CONSUMERS, expected)
            web.producer.do("feed", per_second=CONSUMERS, duration=1)
            consumers.await_line("warm")
            used = web.cpu()
            fed = web.producer.do("feed", per_second=FED_PER_SECOND, duration=seconds)
            answer = consumers.answer()
            answer |= {"unfinished": web.producer.do("live")["live"], "fed late_ms": fed["behind_ms"]}
            answer |= {"web us": (web.cpu() - used) / expected * 1e6}
        more = {name.replace("_", " "): number for name, number in answer.items() if name != "per_second"}
        return Measured(answer["per_second"], more)

    return Form("http", name, "deliveries/s", measure, only=(OURS,), note=note)


FORMS = [
    form("one", rest, "POST /jobs/, one job per request, one client"),
    form("one.8", rest, "the same with eight clients", callers=CALLERS),
    form("add", command, "the command protocol's add, one client"),
    form("bulk", rest, "POST /jobs/ with a thousand jobs per request", bulk=BULK, share=1),
    load("add.1", "add", 1, "the command protocol's add, one connection"),
    load("add.64", "add", 64, "the command protocol's add, 64 connections at once"),
    load("add.half", "add", 64, "the same with half of the requests a second", share=0.5),
    load("cycle.64", "cycle", 64, "add, pop and finish, 64 connections at once"),
    fleet(
        "fleet.pop", "pop", 1, f"{CONSUMERS} consumers that pop and finish, fed {FED_PER_SECOND:,} due jobs a second"
    ),
    fleet("fleet.reserve", "reserve", 1, "the same by REST: reserve and finish"),
    fleet("fleet.pop.2", "pop", 2, "fleet.pop with two web processes"),
    fleet("fleet.reserve.2", "reserve", 2, "fleet.reserve with two web processes"),
]
