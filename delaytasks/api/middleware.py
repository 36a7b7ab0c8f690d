"""ASGI middleware that limits the size of request bodies: `application = BodyLimit(application)`.

Django's ASGI handler writes the whole body to a file before any view runs, even for anonymous requests. A
reverse proxy can limit the size too; use this middleware where there is no such proxy.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from .limits.lengths import declared_length

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# Limits for receiving the rest of a refused body, which is thrown away. Without it, the client may miss the response.
DISCARDED_BYTES = 4 * 1024 * 1024
DISCARD_SECONDS = 5.0


class _TooLarge(Exception):
    pass


class BodyLimit:
    """Pass on requests whose body has at most `most` bytes; answer larger ones with 413.

    A request with both Content-Length and Transfer-Encoding gets 400: a proxy and this server could disagree about
    where the body ends, and the remainder would be taken for another client's request (request smuggling).
    """

    def __init__(self, application: Callable[[Any, Receive, Send], Awaitable[Any]], most: int) -> None:
        self.application, self.most = application, most

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.application(scope, receive, send)
        length, is_ambiguous = _declared(scope["headers"])
        if is_ambiguous:
            detail = "The request has both Content-Length and Transfer-Encoding. Send only one of them."
            title = "The request cannot be read."
            return await _refuse(closing(receive, send), 400, "malformed-request", title, detail)
        if length > self.most:
            return await self._refuse_size(closing(receive, send))
        received, more = 0, True

        async def receive_counted() -> Message:
            nonlocal received, more
            message = await receive()
            received += len(message.get("body", b""))
            more = message.get("more_body", False)
            if received > self.most:
                raise _TooLarge
            return message

        try:
            await self.application(scope, receive_counted, send)
        except _TooLarge:  # raised while the body is read: no response has been started
            await self._refuse_size(closing(receive, send) if more else send)

    async def _refuse_size(self, send: Send) -> None:
        detail = f"This server accepts requests of up to {self.most:,} bytes."
        await _refuse(send, 413, "request-too-large", "The request is too large.", detail)


def closing(receive: Receive, send: Send) -> Send:
    """Return an ASGI send() for a request whose body was not read. It has the server close the connection.

    Before the end of the response, it receives the rest of the body, within limits, and throws it away: most clients
    send everything before they read. Closing a connection with unread data resets it, and they would not see the
    response.
    """

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            return await send({**message, "headers": [*message["headers"], (b"connection", b"close")]})
        if message.get("more_body", False):
            return await send(message)
        await send({**message, "more_body": True})
        await _discard(receive)
        await send({"type": "http.response.body", "body": b""})

    return send_and_close


async def _discard(receive: Receive) -> None:
    """Receive the rest of a body, up to DISCARDED_BYTES and for up to DISCARD_SECONDS."""
    left = DISCARDED_BYTES
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        pass


async def _refuse(send: Send, status: int, kind: str, title: str, detail: str) -> None:
    problem = {"type": f"urn:delaytasks:problem:{kind}", "title": title, "status": status, "detail": detail}
    body = json.dumps(problem).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode()),
               (b"x-content-type-options", b"nosniff")]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _declared(headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, bool]:
    """Return (Content-Length or 0, whether the request has both Content-Length and Transfer-Encoding)."""
    length, has_length, has_encoding = 0, False, False
    for name, value in headers:
        if name == b"content-length" and not has_length:
            length, has_length = declared_length(value.decode("latin-1")), True
        elif name == b"transfer-encoding":
            has_encoding = True
    return length, has_length and has_encoding
