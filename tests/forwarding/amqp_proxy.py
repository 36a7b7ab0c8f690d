"""A proxy in front of a RabbitMQ that kills it between a message and its confirmation."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

PROTOCOL_BYTES = 8  # "AMQP" and a version, which a client sends before its first frame
METHOD, BODY = 1, 3  # types of frames
ACK = struct.pack("!HH", 60, 80)  # basic.ack


class KillingProxy:
    """Forwards connections to a broker frame by frame.

    kill         called once, in a thread of the proxy
    kill_before  "nothing": nobody is killed
                 "the confirmation": when the last of `messages` was forwarded, and before the client gets any
                 confirmation
                 "it arrives": when the broker has confirmed, and before the client knows
    """

    def __init__(self, port: int, kill: Callable[[], Any]) -> None:
        self._upstream, self._kill = port, kill
        self.kill_before, self.messages = "nothing", 0
        self.killed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up(*self._sockets)
        for thread in self._threads:
            thread.join(30)
        for each in self._sockets:
            each.close()

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:  # closed
                return
            self._sockets.append(client)
            try:
                broker = socket.create_connection(("127.0.0.1", self._upstream), timeout=5)
            except OSError:  # it is dead
                self._hang_up(client)
                continue
            broker.settimeout(None)
            self._sockets.append(broker)
            self._start(self._forward, client, broker, PROTOCOL_BYTES, self._sees_message)
            self._start(self._forward, broker, client, 0, self._sees_answer)

    def _forward(self, source: socket.socket, sink: socket.socket, first: int, sees: Callable[..., bool]) -> None:
        """Forward frames until a connection ends. `sees` is called with each one, and returns whether it goes on."""
        with contextlib.suppress(OSError, EOFError), source.makefile("rb") as stream:
            sink.sendall(_read(stream, first))
            while True:
                head = _read(stream, 7)
                rest = _read(stream, struct.unpack("!I", head[3:])[0] + 1)
                if sees(head[0], rest, lambda frame=head + rest: sink.sendall(frame)):
                    continue
                break
        self._hang_up(source, sink)

    def _sees_message(self, kind: int, payload: bytes, send: Callable[[], None]) -> bool:
        send()
        if kind == BODY and self.kill_before == "the confirmation":
            self.messages -= 1
            if self.messages == 0:
                self._kill_once()
        return True

    def _sees_answer(self, kind: int, payload: bytes, send: Callable[[], None]) -> bool:
        if kind == METHOD and payload.startswith(ACK) and self.kill_before != "nothing":
            if self.kill_before == "it arrives":
                self._kill_once()
            return False
        send()
        return True

    def _kill_once(self) -> None:
        with self._lock:
            if not self.killed.is_set():
                self._kill()
                self.killed.set()

    @staticmethod
    def _hang_up(*sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _read(stream: Any, count: int) -> bytes:
    data: bytes = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data
