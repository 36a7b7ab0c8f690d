"""A peer that speaks AMQP 0-9-1 as far as tests need it, and breaks its rules on request. It is not a broker.

It shows what a client does with confirmations that are late, repeated, missing or refused, which no real broker can be
made to send on demand. What a broker itself does is tested with a RabbitMQ.
"""

import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Self

from amqp.basic_message import Message
from amqp.serialization import dumps, loads

PROPERTIES = {"capabilities": {"publisher_confirms": True, "basic.nack": True, "connection.blocked": True}}
METHOD, HEADER, BODY = 1, 2, 3
Step = Callable[["Session", int], None]


def ack(session: "Session", tag: int) -> None:
    session.send((60, 80), "Lb", tag, False)


def ack_all(session: "Session", tag: int) -> None:
    session.send((60, 80), "Lb", tag, True)


def nack(session: "Session", tag: int) -> None:
    session.send((60, 120), "Lbb", tag, False, False)


def ack_twice(session: "Session", tag: int) -> None:
    ack(session, tag)
    ack(session, tag)


def return_and_ack(session: "Session", tag: int) -> None:
    return_only(session, tag)
    ack(session, tag)


def return_only(session: "Session", tag: int) -> None:
    session.send((60, 50), "Bsss", 312, "NO_ROUTE", "orders", "nowhere")
    session.send_content(b"x", session.properties)


def silent(session: "Session", tag: int) -> None:
    pass


def hang_up(session: "Session", tag: int) -> None:
    session.sock.shutdown(socket.SHUT_RDWR)


def block(session: "Session", tag: int) -> None:
    session.send((10, 60), "s", "low on memory", channel=0)


class Session(threading.Thread):
    """One connection of a client."""

    def __init__(self, peer: "Peer", sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.peer, self.sock, self.tag = peer, sock, 0
        self.properties = b"\0\0"  # of the latest message, as they were sent

    def run(self) -> None:
        try:
            self._serve()
        except OSError:
            pass
        finally:
            self.sock.close()

    def _serve(self) -> None:
        self._read(8)
        self.send((10, 10), "ooFSS", 0, 9, PROPERTIES, b"PLAIN", b"en_US", channel=0)
        answers: dict[tuple[int, int], tuple[Any, ...]] = {
            (10, 11): ((10, 30), "BlB", 2047, 131_072, 0), (10, 40): ((10, 41), "s", ""), (10, 50): ((10, 51), ""),
            (40, 10): ((40, 11), ""), (50, 10): ((50, 11), "sll", "q", 0, 0), (50, 20): ((50, 21), ""),
            (20, 10): ((20, 11), "L", 0), (20, 40): ((20, 41), ""), (85, 10): ((85, 11), ""),
            (60, 10): ((60, 11), ""),
        }  # fmt: skip
        while True:
            kind, channel, payload = self._frame()
            if kind != METHOD:  # a heartbeat
                continue
            method = struct.unpack(">HH", payload[:4])
            if method in self.peer.mute:
                continue
            if method == (60, 40):
                self._publish(payload[4:])
            elif method == (60, 20):
                self._deliver()
            elif method == (60, 80):
                (tag, multiple), _ = loads("Lb", payload[4:], 0)
                self.peer.confirm(tag, multiple)
            elif method in answers:
                answer, *values = answers[method]
                self.send(answer, *values, channel=channel)

    def _publish(self, arguments: bytes) -> None:
        (_, exchange, routing_key, mandatory, _), _ = loads("Bssbb", arguments, 0)
        _, _, header = self._frame()
        (size,) = struct.unpack(">Q", header[4:12])
        body = b""
        while len(body) < size:
            body += self._frame()[2]
        self.tag, self.properties = self.tag + 1, header[12:]
        self.peer.published.append((exchange, routing_key, mandatory, body))
        self.peer.sessions[self.tag] = self
        self.peer.step_for(self, body)(self, self.tag)

    def _deliver(self) -> None:
        """Answer basic.consume: deliver all that was not confirmed before."""
        self.send((60, 21), "s", "c1")
        for tag, message in enumerate(self.peer.queue, 1):
            self.send((60, 60), "sLbss", "c1", tag, False, "", "q")
            self.send_content(message.body, message._serialize_properties())

    def send(self, method: tuple[int, int], types: str, *values: Any, channel: int = 1) -> None:
        arguments = dumps(types, values) if types else b""
        self._send_frame(METHOD, channel, struct.pack(">HH", *method) + (arguments or b""))

    def send_content(self, body: bytes, properties: bytes = b"\0\0") -> None:
        self._send_frame(HEADER, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
        if body:
            self._send_frame(BODY, 1, body)

    def _send_frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.sock.sendall(struct.pack(">BHL", kind, channel, len(payload)) + payload + b"\xce")

    def _frame(self) -> tuple[int, int, bytes]:
        kind, channel, size = struct.unpack(">BHL", self._read(7))
        payload = self._read(size)
        self._read(1)
        return kind, channel, payload

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data


class Peer:
    """Answers each published message with the next of `steps`, then with ack.

    published   (exchange, routing key, mandatory, body) of each message
    queue       messages to deliver to a client that consumes, without those that it has confirmed
    mute        methods, as pairs of numbers, that are not answered
    """

    def __init__(self, port: int = 0) -> None:
        self.steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self.published: list[tuple[str, str, bool, bytes]] = []
        self.queue: list[Message] = []
        self.confirmed = threading.Event()
        self.mute: set[tuple[int, int]] = set()
        self.connections = 0
        self.sessions: dict[int, Session] = {}  # by the tag of their latest message
        self._server = socket.create_server(("127.0.0.1", port))
        self.url = f"amqp://guest:s3cret@127.0.0.1:{self._server.getsockname()[1]}//"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)

    def script(self, *steps: Step) -> None:
        for step in steps:
            self.steps.put(step)

    def confirm(self, tag: int, multiple: bool) -> None:
        """Remove what the client has confirmed. One consumer and one confirmation for each connection are enough."""
        del self.queue[0 if multiple else tag - 1 : tag]
        self.confirmed.set()

    def step_for(self, session: Session, body: bytes) -> Step:
        """Return how to answer a message."""
        try:
            return self.steps.get_nowait()
        except queue.Empty:
            return ack

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            Session(self, sock).start()
