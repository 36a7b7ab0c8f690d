"""A queue in a thread that speaks the command protocol, and that a test can make behave badly."""

import contextlib
import http.server
import json
import select
import socket
import ssl
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

CERTIFICATE = Path(__file__).with_name("localhost.pem")  # of localhost, signed by itself, with its key
TOKEN = "dt_secret"
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Entry:
    topic: str
    body: Any
    ttr: float
    due: float
    attempt: int = 0
    lease: float = 0.0  # monotonic; 0: nobody has it
    state: str = "live"
    error: str = ""


@dataclass
class Bad:
    """What becomes of the next such command instead of an answer.

    status   answered so, with `headers` and `text`
    lose     it is done, and the connection is closed without an answer
    mute     it is never answered, until the test ends
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    lose: bool = False
    mute: bool = False


class FakeQueue:
    """`received`: each command with the moment it came. `bad["pop"].append(Bad(...))`: what the next pop meets."""

    def __init__(self) -> None:
        self.jobs: dict[str, Entry] = {}
        self.received: list[tuple[float, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.connections: list[socket.socket] = []
        self.bad: defaultdict[str, deque[Bad]] = defaultdict(deque)
        self.changed = threading.Condition()
        self.waits = True  # False: an empty queue is answered at once
        self.hears_goodbyes = True  # False: a pop waits on when its client has gone
        self.parting_gift = ""  # the id of a job that is popped by whoever has just said goodbye
        self.goodbyes = 0
        self.ended = threading.Event()
        self.url = ""

    # For tests

    def asked(self, command: str) -> list[dict[str, Any]]:
        return [given for _, given in list(self.received) if given["command"] == command]

    def times(self, command: str) -> list[float]:
        return [at for at, given in list(self.received) if given["command"] == command]

    def put(self, id: str, *, topic: str = "t", ttr: float = 60, body: Any = None) -> Entry:
        with self.changed:
            self.jobs[id] = Entry(topic, body, ttr, time.monotonic())
            self.changed.notify_all()
        return self.jobs[id]

    def held(self) -> list[str]:
        return [id for id, job in list(self.jobs.items()) if job.state == "live" and job.lease > time.monotonic()]

    def close_idle_connections(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # Commands

    def do(self, given: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
        with self.changed:
            return getattr(self, f"do_{given['command']}")(given, connection)

    def do_add(self, given: dict[str, Any], _: Any) -> dict[str, Any]:
        there, mode = self.jobs.get(given["id"]), given.get("on_conflict", "reject")
        if there is not None and there.state == "live":
            if mode == "reject":
                return no(f"{given['id']!r} is live already.")
            if mode == "keep":
                return yes(given["id"], result="kept")
        due = time.monotonic() + given["delay"]
        self.jobs[given["id"]] = Entry(given["topic"], given["body"], given["TTR"], due)
        self.changed.notify_all()
        return yes(given["id"], result="replaced" if mode == "replace" and there else "created")

    def do_pop(self, given: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
        until = time.monotonic() + (given.get("wait", 0) if self.waits else 0)
        while not (found := self._ready(given["topic"], given["count"])) and time.monotonic() < until:
            self.changed.wait(0.01)
            if self.hears_goodbyes and said_goodbye(connection):
                self.goodbyes += 1
                found = [self.parting_gift] if self.parting_gift else []
                break
        return yes(value=[self._pop(id) for id in found])

    def _ready(self, topic: str, count: int) -> list[str]:
        now = time.monotonic()
        found = [
            id
            for id, job in self.jobs.items()
            if job.topic == topic and job.state == "live" and job.due <= now and job.lease <= now
            if id != self.parting_gift
        ]
        return found[:count]

    def _pop(self, id: str) -> dict[str, Any]:
        job = self.jobs[id]
        job.attempt, job.lease = job.attempt + 1, time.monotonic() + job.ttr
        deadline = EPOCH + timedelta(seconds=job.ttr)
        times = {"due_at": EPOCH.isoformat(), "deadline": deadline.isoformat().replace("+00:00", "Z")}
        return {"id": id, "body": job.body, "attempt": job.attempt, "TTR": job.ttr, **times}

    def _of(self, given: dict[str, Any]) -> Entry | None:
        job = self.jobs.get(given["id"])
        mine = job is not None and job.attempt == given["attempt"] and job.lease > time.monotonic()
        return job if mine and job.state == "live" else None

    def do_finish(self, given: dict[str, Any], _: Any) -> dict[str, Any]:
        if (job := self._of(given)) is None:
            return no(f"Attempt {given['attempt']} of {given['id']!r} is over.")
        job.state = "finished"
        return yes(given["id"])

    def do_touch(self, given: dict[str, Any], _: Any) -> dict[str, Any]:
        if (job := self._of(given)) is None:
            return no(f"Attempt {given['attempt']} of {given['id']!r} is over.")
        job.lease = time.monotonic() + job.ttr
        return yes(given["id"], (EPOCH + timedelta(seconds=2 * job.ttr)).isoformat())

    def do_release(self, given: dict[str, Any], _: Any) -> dict[str, Any]:
        if (job := self._of(given)) is None:
            return no(f"Attempt {given['attempt']} of {given['id']!r} is over.")
        failed = 3600 if given.get("error") else 0  # the topic's backoff
        job.lease, job.due, job.error = 0, time.monotonic() + given.get("delay", failed), given.get("error", "")
        return yes(given["id"], "delayed")

    def do_bury(self, given: dict[str, Any], _: Any) -> dict[str, Any]:
        if (job := self._of(given)) is None:
            return no(f"Attempt {given['attempt']} of {given['id']!r} is over.")
        job.state, job.error = "dead", given.get("reason", "")
        return yes(given["id"], "dead")

    def do_delete(self, given: dict[str, Any], _: Any) -> dict[str, Any]:
        job = self.jobs.get(given["id"])
        if job is None:
            return no(f"{given['id']!r} is unknown.", "unknown")
        if job.lease > time.monotonic():
            return no(f"{given['id']!r} is running.", "running")
        job.state = "cancelled"
        return yes(given["id"], "cancelled")

    def do_peek(self, given: dict[str, Any], _: Any) -> dict[str, Any]:
        found = [id for id in self.jobs if id == given.get("id") or self.jobs[id].topic == given.get("topic")]
        if not found:
            return no(f"{given['id']!r} is unknown.") if "id" in given else yes()
        return yes(found[0], {"id": found[0], "state": self.jobs[found[0]].state})


def yes(id: str = "", value: Any = None, **extras: Any) -> dict[str, Any]:
    return {"success": True, "error": "", "id": id, "value": value, **extras}


def no(error: str, value: Any = None) -> dict[str, Any]:
    return {"success": False, "error": error, "id": "", "value": value}


def said_goodbye(connection: socket.socket) -> bool:
    """Whether the client has closed its half; nothing else makes it readable while it waits."""
    return bool(select.select([connection], [], [], 0)[0])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def fake(self) -> FakeQueue:
        return self.server.fake  # type: ignore[attr-defined]

    def setup(self) -> None:
        super().setup()
        self.fake.connections.append(self.connection)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.received.append((time.monotonic(), given))
        self.fake.headers.append(dict(self.headers))
        waiting = self.fake.bad[given["command"]]
        bad = waiting.popleft() if waiting else Bad()
        if bad.mute:
            self.fake.ended.wait(30)
            self.close_connection = True
        elif bad.status:
            self.answer(bad.status, no("for a test") if bad.text is None else bad.text, bad.headers)
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer(401, no("This token is not known."), {})
        else:
            said = self.fake.do(given | {"wait": 0} if bad.lose else given, self.connection)
            if bad.lose:
                self.close_connection = True
            else:
                self.answer(200, said, {})

    def answer(self, status: int, said: Any, headers: dict[str, str]) -> None:
        data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        with contextlib.suppress(OSError):  # the client has gone
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client, or the test, has closed the connection
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that does not trust our certificate


@contextlib.contextmanager
def running(*, tls: bool = False) -> Iterator[FakeQueue]:
    """A FakeQueue on a free port of this machine."""
    fake = FakeQueue()
    server = Server(("127.0.0.1", 0), Handler)
    server.fake = fake  # type: ignore[attr-defined]
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    host, scheme = ("localhost", "https") if tls else ("127.0.0.1", "http")
    fake.url = f"{scheme}://{host}:{server.server_address[1]}/api/queue/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.ended.set()
        server.shutdown()
        fake.close_idle_connections()
        server.server_close()
        thread.join()
