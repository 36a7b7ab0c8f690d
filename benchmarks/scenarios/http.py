"""Jobs per second that are scheduled over HTTP: one uvicorn with the project, caller and servers on one machine."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from project.parts import answers_http, web
from tests.servers import free_port, tail

from .. import processes
from ..drivers import DriverFailed
from ..plan import Form, Measured, Options
from ..stand import Stand
from .ourselves import inside

OURS = "delaytasks"
DELAY_SECONDS = 600
BULK = 1000
CALLERS = 8
WARM = 100  # requests that nobody counts
START_SECONDS = 60.0


class Caller:
    """One connection that stays open, with one token."""

    def __init__(self, port: int, secret: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def post(self, path: str, body: Any) -> None:
        """Raises DriverFailed if it was not done."""
        self.connection.request("POST", f"/api/{path}", json.dumps(body), self.headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201) or b'"success":false' in text.replace(b" ", b""):
            raise DriverFailed(f"POST {path}: {answer.status} {text[:200]!r}")


@contextmanager
def served(stand: Stand) -> Iterator[tuple[int, dict[str, Any]]]:
    """The port of a web process that answers, and the token that inside.py made."""
    port = free_port()
    with inside(stand) as ours:
        access = ours.do("token")
    log = stand.directory / "web.log"
    env = stand.env | {"DJANGO_SETTINGS_MODULE": "benchmarks.contestants.ours.settings", "SERVED_BY": "asgi"}
    process = processes.start(web(port).command, env, stand.directory, log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers_http(port, "/api/health/"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise DriverFailed(f"The web process does not answer.\n{tail(log, 15)}")
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
    """share   only one job of so many: one at a time, 20,000 would take minutes"""

    def measure(stand: Stand, options: Options) -> Measured:
        count = max(callers, options.jobs // share)
        with served(stand) as (port, access):
            opened = [Caller(port, access["secret"]) for _ in range(callers)]
            _time(opened, [make(access["topic"], [n], 1) for n in range(count, count + WARM)])
            calls = [make(access["topic"], range(at, min(at + bulk, count)), bulk) for at in range(0, count, bulk)]
            seconds = _time(opened, calls)
        return Measured(count / seconds, {"jobs": count, "callers": callers})

    return Form("http", name, "jobs/s", measure, only=(OURS,), note=note)


def _time(callers: Sequence[Caller], calls: Sequence[tuple[str, Any]]) -> float:
    """Seconds until all calls are answered, each caller making its share of them one after the other."""
    failed: list[Exception] = []

    def work(caller: Caller, share: Sequence[tuple[str, Any]]) -> None:
        try:
            for path, body in share:
                caller.post(path, body)
        except Exception as error:
            failed.append(error)

    step = len(callers)
    threads = [threading.Thread(target=work, args=(each, calls[n::step])) for n, each in enumerate(callers)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise DriverFailed(f"A call failed: {failed[0]}") from failed[0]
    return time.perf_counter() - begun


FORMS = [
    form("one", rest, "POST /jobs/, one job per request, one caller after the other"),
    form("one.8", rest, "the same, eight callers at once", callers=CALLERS),
    form("add", command, "the command protocol's add, one caller after the other"),
    form("bulk", rest, "POST /jobs/ with a thousand jobs per request", bulk=BULK, share=1),
]
