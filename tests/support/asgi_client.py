"""Send a request through FastPath and Django's ASGI handler in this process, on one event loop in a thread."""

import asyncio
import contextvars
import functools
import io
import json
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import quote

from django.core.handlers.asgi import ASGIHandler
from django.core.signals import setting_changed
from django.http import HttpResponse

from delaytasks.api.fast_path import endpoints
from delaytasks.api.fast_path.application import FastPath
from delaytasks.api.limits import portions

ANSWER_SECONDS = 60


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="asgi-client", daemon=True).start()
    return loop


def fast_path(application: Any) -> FastPath:
    """Return FastPath in front of this application, with the middleware that project/asgi.py names."""
    return FastPath(application, bypassed=["project.middleware.reject_nul"])


@functools.cache
def _application() -> FastPath:
    return fast_path(ASGIHandler())


def _forget_application(**_: object) -> None:
    _application.cache_clear()


# Middleware reads its settings once: an application made in a test of one would serve all tests after it.
setting_changed.connect(_forget_application, dispatch_uid="tests.support.asgi_client")


def clear_caches() -> None:
    """Clear the caches of limits and topics, as between two processes."""
    portions.clear_cache()
    endpoints._known_until.clear()


def request(method: str, path: str, body: bytes, content_type: str, headers: dict[str, str]) -> HttpResponse:
    """Return the response as Django's test client would."""
    return run(arequest(method, path, body, content_type, headers))


def run(started: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine on the event loop of this module. Fails with all stacks if there is none.

    It runs in an empty context, as a server does it: that of this thread may name a thread for synchronous parts.
    """
    asked = contextvars.Context().run(asyncio.run_coroutine_threadsafe, started, _loop())
    try:
        return asked.result(ANSWER_SECONDS)
    except TimeoutError:
        raise AssertionError(f"No answer within {ANSWER_SECONDS} s.\n{_stacks()}") from None


def _stacks() -> str:
    """Return where each task of the loop and each thread is."""
    text = io.StringIO()
    for task in asyncio.all_tasks(_loop()):
        task.print_stack(file=text)
    for thread, frame in sys._current_frames().items():
        text.write(f"Thread {thread}:\n{''.join(traceback.format_stack(frame))}")
    return text.getvalue()


async def arequest(
    method: str,
    path: str,
    body: bytes,
    content_type: str,
    headers: dict[str, str],
    gone: Callable[[], Awaitable[Any]] | None = None,
    application: Any = None,
    scheme: str = "http",
) -> HttpResponse:
    """Do the same on this event loop.

    gone          when it returns, the client goes away; None: it stays
    application   None: FastPath in front of Django
    """
    sent = {"host": "localhost", "content-type": content_type, "content-length": str(len(body))} | {
        name.lower(): value for name, value in headers.items()
    }
    path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": scheme,
        "path": path, "raw_path": quote(path).encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
        "client": ("127.0.0.1", 40_000), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    answered: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await (gone() if gone else asyncio.Event().wait())
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answered.append(message)

    await (application or _application())(scope, receive, send)
    if not answered:
        return HttpResponse(status=499)  # as nginx calls a client that went away
    start = answered[0]
    response = HttpResponse(b"".join(part.get("body", b"") for part in answered[1:]), status=start["status"])
    del response.headers["Content-Type"]
    for name, value in start["headers"]:
        response.headers[name.decode().title()] = value.decode("latin-1")
    response.json = lambda: json.loads(response.content)  # type: ignore[attr-defined]
    return response
