"""Responses that are equal to those of the views, but made without REST framework."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from ..exceptions import MEDIA_TYPE, Problem

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_COMMON = [(b"cache-control", b"no-store"), (b"content-language", b"en"), (b"x-content-type-options", b"nosniff")]


class Reply(NamedTuple):
    """The response to a request.

    on_undelivered   called if the response cannot be sent
    """

    data: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"
    on_undelivered: Callable[[], Any] | None = None


def from_problem(problem: Problem) -> Reply:
    return Reply(problem.data, problem.status, problem.headers, MEDIA_TYPE)


async def send_reply(send: Send, reply: Reply, allow: bytes) -> None:
    """Send the reply. If that fails, call reply.on_undelivered() and raise. `allow`: value of the header Allow."""
    # Escape these two, as REST framework's renderer does: they end a line in JavaScript, though not in JSON.
    text = _encode(reply.data).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    body = text.encode()
    headers = [
        (b"content-type", reply.media_type.encode()), (b"content-length", b"%d" % len(body)), (b"allow", allow),
        *_COMMON, *((name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()),
    ]  # fmt: skip
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
    except BaseException:
        if reply.on_undelivered is not None:
            reply.on_undelivered()
        raise
