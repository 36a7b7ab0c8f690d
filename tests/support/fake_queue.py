"""A fake server of the queue protocol in a thread, which can be made to fail."""

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

CERTIFICATE = Path(__file__).with_name("localhost.pem")  # self-signed for localhost, with its key
TOKEN = "dt_secret"
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Entry:
    topic: str
    body: Any
    ttr: float
    due: float
    attempt: int = 0
    lease: float = 0.0  # end of the lease by time.monotonic(); 0: not reserved
    state: str = "live"
    error: str = ""


@dataclass
class Bad:
    """A failure of one command.

    status   respond with this status, `headers` and `text`; 0: no such failure
    lose     execute the command, then close the connection without a response
    mute     do not respond until the test ends
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    lose: bool = False
    mute: bool = False


class FakeQueue:
    """A queue in memory.

    received   (time.monotonic(), fields) of each received command
    bad        command -> failures of its next calls: `bad["pop"].append(Bad(...))` makes the next pop fail
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Entry] = {}
        self.received: list[tuple[float, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.connections: list[socket.socket] = []
        self.bad: defaultdict[str, deque[Bad]] = defaultdict(deque)
        self.changed = threading.Condition()
        self.waits = True  # False: a pop of an empty queue returns at once
        self.hears_goodbyes = True  # False: a pop continues to wait after its client has disconnected
        self.parting_gift = ""  # id of a job that is popped when a waiting client disconnects; "": none
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
            if mode == "again" and there.lease > time.monotonic():
                return yes(given["id"], result="again")
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
    """Return whether the client has disconnected: while it waits, nothing else makes the socket readable."""
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
            response = self.fake.do(given | {"wait": 0} if bad.lose else given, self.connection)
            if bad.lose:
                self.close_connection = True
            else:
                self.answer(200, response, {})

    def answer(self, status: int, content: Any, headers: dict[str, str]) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        with contextlib.suppress(OSError):  # the client has disconnected
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
        pass  # for example a client that rejects the certificate


@contextlib.contextmanager
def running(*, tls: bool = False) -> Iterator[FakeQueue]:
    """Run a FakeQueue on a free loopback port inside the block."""
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
