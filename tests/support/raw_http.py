"""Raw HTTP requests, for malformed requests that a client library would not send."""

import socket
from typing import NamedTuple

PATIENCE_SECONDS = 30.0


class Reply(NamedTuple):
    """A response. raw: all received bytes. status: 0 if the server closed the connection without a response."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def answers(self) -> int:
        """The number of responses on the connection: more than one if a second request was smuggled in."""
        return self.raw.count(b"HTTP/1.1 ")


def request(
    method: str, target: str | bytes, *lines: str, body: bytes = b"", token: str | None = None, host: str = "127.0.0.1"
) -> bytes:
    """Return the bytes of a request with "Connection: close". lines: more headers, even contradictory ones."""
    place = target if isinstance(target, bytes) else target.encode()
    head = [f"Host: {host}", "Connection: close"] if host else ["Connection: close"]
    head += [f"Authorization: Bearer {token}"] if token else []
    named = {line.partition(":")[0].lower() for line in lines}
    if not named & {"content-length", "transfer-encoding"}:
        head += [f"Content-Length: {len(body)}"]
    if body and "content-type" not in named:
        head += ["Content-Type: application/json"]
    text = "\r\n".join([*head, *lines, "", ""])
    return method.encode() + b" " + place + b" HTTP/1.1\r\n" + text.encode("utf-8", "surrogateescape") + body


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def receive(connection: socket.socket) -> Reply:
    """Read until the server closes the connection, or resets it, as it may before it has read the whole request."""
    raw = b""
    try:
        while data := connection.recv(65536):
            raw += data
    except ConnectionError:
        pass
    return parsed(raw)


def parsed(raw: bytes) -> Reply:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Reply(int(first.split()[1]) if first else 0, headers, body, raw)


def exchange(port: int, data: bytes) -> Reply:
    """Send these bytes and return the response."""
    with connect(port) as connection:
        try:
            connection.sendall(data)
        except ConnectionError:
            pass  # the server has responded without reading the rest
        return receive(connection)
