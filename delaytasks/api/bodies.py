"""What an ASGI server takes in before any view is asked: an ASGI wrapper, `application = BodyLimit(application)`.

Django's ASGI handler writes a request's whole body to a file first, whoever sent it. A proxy in front
can limit that as well; this does where there is none.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _TooLarge(Exception):
    pass


class BodyLimit:
    """The application, for requests whose body has at most `most` bytes; for larger ones an answer, 413.

    A request that says the length of its body and sends it in chunks, too, gets 400: whoever stands before the server
    may believe the one, the server believes the other, and the rest would pass as somebody else's next request.
    """

    def __init__(self, application: Callable[[Any, Receive, Send], Awaitable[Any]], most: int) -> None:
        self.application, self.most = application, most

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.application(scope, receive, send)
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            detail = "The body has a Content-Length and a Transfer-Encoding: one of them has to go."
            return await _refuse(send, 400, "malformed-request", "The request cannot be read.", detail)
        if _said(scope) > self.most:
            return await self._refuse_size(send)
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.most:
                raise _TooLarge
            return message

        try:
            await self.application(scope, counted, send)
        except _TooLarge:  # while the body was read, so nothing has been answered yet
            await self._refuse_size(send)

    async def _refuse_size(self, send: Send) -> None:
        detail = f"This server takes requests of up to {self.most:,} bytes."
        await _refuse(send, 413, "request-too-large", "The request is too large.", detail)


async def _refuse(send: Send, status: int, kind: str, title: str, detail: str) -> None:
    problem = {"type": f"urn:delaytasks:problem:{kind}", "title": title, "status": status, "detail": detail}
    body = json.dumps(problem).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode()),
               (b"x-content-type-options", b"nosniff"), (b"connection", b"close")]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _said(scope: Any) -> int:
    """The length that the request says its body has; 0 if it says none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
