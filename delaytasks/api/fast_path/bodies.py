"""Read a request's body up to a limit, and replay it to another ASGI application."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
CHUNK = 256 * 1024
IN_MEMORY = 64 * 1024  # a larger body is kept in a temporary file


class Disconnected(Exception):
    """The client went away before its body was complete."""


class Body:
    """The body of a request, or its beginning if it is longer than the limit. To be used in a `with` statement."""

    def __init__(self) -> None:
        self.size = 0
        self.is_complete = False
        self._file: Any = None
        self._bytes = b""

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self._file is None and self.size <= IN_MEMORY:
            self._bytes += data
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed at the end of the block
            self._file.write(self._bytes)
            self._bytes = b""
        self._file.write(data)

    def read(self) -> bytes:
        """Return all that was received."""
        if self._file is None:
            return self._bytes
        self._file.seek(0)
        return bytes(self._file.read())

    @property
    def is_in_memory(self) -> bool:
        return self._file is None

    def replay(self, receive: Receive) -> Receive:
        """Return an ASGI receive() with the messages of this body and, if it is complete, then those of `receive`."""
        left = self.size
        if self._file is not None:
            self._file.seek(0)

        async def replayed() -> Message:
            nonlocal left
            if left < 0 and not self.is_complete:
                await asyncio.Future()  # wait for ever: closing() receives the rest of the body
            if left < 0:
                while (message := await receive())["type"] == "http.request":
                    pass  # skip the empty body of a request that declared none
                return message
            data = self._bytes if self._file is None else self._file.read(CHUNK)
            left = left - len(data) or -1
            return {"type": "http.request", "body": data, "more_body": left > 0}

        return replayed

    async def receive(self, receive: Receive, limit: int) -> None:
        """Receive the body until it is complete or longer than `limit` bytes. Raises Disconnected."""
        while self.size <= limit and not self.is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            self.add(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
