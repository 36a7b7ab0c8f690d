"""A synchronous and asynchronous client of a running server, which records when each response arrived."""

import asyncio
import http.client
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from django.db import connections

PATIENCE_SECONDS = 75  # longer than the longest poll


class Answer(NamedTuple):
    """A response. data: the decoded JSON, None for an empty body. at: time.monotonic() at the end of the response."""

    status: int
    headers: dict[str, str]
    data: Any
    at: float


def headers_of(token: str | None) -> dict[str, str]:
    accepted = {"Accept": "application/json", "Content-Type": "application/json"}
    return accepted | ({"Authorization": f"Bearer {token}"} if token else {})


class Api:
    """A client that uses one token and a new connection for each call."""

    def __init__(self, port: int, token: str | None) -> None:
        self.port, self.token = port, token

    def call(self, method: str, path: str, body: Any = None, *, seconds: float = PATIENCE_SECONDS) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, f"/api/{path}", sent, headers_of(self.token))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, json.loads(text) if text else None, time.monotonic())

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.call("POST", path, {} if body is None else body)

    def command(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a well-formed command of the queue protocol. Return the JSON of the response."""
        answer = self.post("queue/", {"command": command, **fields})
        assert answer.status == 200, answer
        return answer.data

    def reserve(self, topic: str, **fields: Any) -> list[dict[str, Any]]:
        """Reserve jobs and return them. Does not wait for due jobs unless wait_seconds is given."""
        answer = self.post(f"topics/{topic}/reserve/", fields)
        assert answer.status == 200, answer
        return answer.data["jobs"]

    # Asynchronous

    async def acall(self, method: str, path: str, body: Any = None) -> Answer:
        """The asynchronous form of call(). Closes the connection when the coroutine is cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await _send(writer, method, f"/api/{path}", body, headers_of(self.token))
            return await asyncio.wait_for(_receive(reader), PATIENCE_SECONDS)
        finally:
            writer.close()

    async def poll(self, topic: str, wait_seconds: float, **fields: Any) -> Answer:
        return await self.acall("POST", f"topics/{topic}/reserve/", {"wait_seconds": wait_seconds, **fields})


async def _send(writer: asyncio.StreamWriter, method: str, path: str, body: Any, headers: dict[str, str]) -> None:
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", f"Content-Length: {len(sent)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> Answer:
    head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    text = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(head.split()[1]), headers, json.loads(text) if text else None, time.monotonic())


async def aside(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a thread, close the database connections of the thread and return the result."""

    def call() -> Any:
        try:
            return function(*arguments, **named)
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)
