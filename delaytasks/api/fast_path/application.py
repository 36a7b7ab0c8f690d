"""FastPath: an ASGI application in front of Django's that serves the API's hot endpoints itself.

It authenticates the caller before it reads the body, unless the database does not answer. It reads no more of the body
than the endpoint allows, and serves the request without Django's middleware and views. It passes all other requests to
Django unchanged, and also those that are invalid or refused. For an error of the server, such as a lost database or a
full batcher, it sends the response itself.
"""

import functools
import io
import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.http.request import split_domain_port, validate_host
from django.urls import NoReverseMatch, Resolver404, resolve, reverse
from rest_framework.exceptions import ParseError

from ... import conf, databases, tracing
from ...jobs import audit_log
from ...monitoring import requests
from .. import exceptions
from ..access.permissions import SCHEME, TokenCaller
from ..access.throttling import COUNTED
from ..batching.batchers import FallBack, QueueFull
from ..limits import portions
from ..limits.lengths import declared_length
from ..limits.parsers import JSONParser, body_limit
from ..middleware import closing
from ..queue_protocol.commands import envelope
from ..serializers.fields import TOPIC_PATTERN
from . import bodies, callers, django_settings, endpoints
from .bodies import Body, Receive
from .clients import CancelOnDisconnect, has_left
from .endpoints import Call, Endpoint
from .responses import Reply, Send, from_problem, send_reply

logger = logging.getLogger("delaytasks")
_parser = JSONParser()
MEDIA_TYPES = ("application/json", "application/json;charset=utf-8", "application/json; charset=utf-8")


class Route(NamedTuple):
    """A hot endpoint: pattern of its path below the API's prefix, its function, and value of the header Allow."""

    pattern: re.Pattern[str]
    endpoint: Endpoint
    allow: bytes
    name: str  # name of the URL in delaytasks.api.urls


ROUTES = [
    Route(re.compile("queue/"), endpoints.queue, b"POST", "queue"),
    Route(re.compile("jobs/"), endpoints.create, b"GET, POST, HEAD", "jobs"),
    Route(re.compile("jobs/([0-9]{1,19})/finish/"), endpoints.finish, b"POST", "finish"),
    Route(re.compile(f"topics/({TOPIC_PATTERN.strip('^$')})/reserve/"), endpoints.reserve, b"POST", "reserve"),
]


class FastPath:
    """Serve the API's hot endpoints for callers with a token; pass on everything else.

    application   Django's ASGI application, in which delaytasks.api.urls is mounted
    bypassed      middleware of the site that these requests need not pass, named as in MIDDLEWARE

    Requests that it serves itself do not pass the middleware. Of Django's settings they obey ALLOWED_HOSTS,
    SECURE_SSL_REDIRECT and DISALLOWED_USER_AGENTS. If MIDDLEWARE has an entry that is neither Django's nor in
    `bypassed`, Django serves all requests: the entry may be there to refuse some of them.
    """

    def __init__(self, application: Any, *, bypassed: Iterable[str] = ()) -> None:
        self.application = application
        self._bypassed = frozenset(bypassed)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("root_path") or django_settings.get().script_name:
            return await self.application(scope, receive, send)
        prefix, path = api_prefix(settings.ROOT_URLCONF), scope["path"]
        if prefix is None or not path.startswith(prefix):
            return await self.application(scope, receive, send)
        if not leads_to_api(_JOB.sub("/jobs/0/", path), settings.ROOT_URLCONF):
            return await self.application(scope, receive, send)
        return await self._serve_api(scope, receive, send, path[len(prefix) :])

    async def _serve_api(self, scope: Any, receive: Receive, send: Send, path: str) -> None:
        if databases.is_test_run() and await _in_test_transaction():
            return await self.application(scope, receive, send)
        began = scope[requests.BEGAN] = requests.began()  # a request that is passed on is counted by its view
        headers = _joined(scope["headers"])
        secret = _secret(headers)
        caller, is_stranger = await _identify(secret, headers)
        limit = body_limit(caller, bulk=path == "jobs/")[0] if caller else conf.get().api_max_request_bytes
        length = declared_length(headers.get("content-length", ""))
        if is_stranger or length > limit:  # the view refuses the request without reading its body
            unread = Body()
            unread.is_complete = length == 0 and "transfer-encoding" not in headers
            return await self._pass_on(scope, unread, receive, send)
        try:
            with Body() as body:
                await body.receive(receive, limit)
                reply = None
                # A larger body would keep the event loop from other requests while it is parsed.
                is_hot = caller is not None and scope["method"] == "POST" and body.size <= min(limit, bodies.IN_MEMORY)
                route = _find_route(path) if is_hot else None
                may_bypass = not unknown_middleware(django_settings.get().middleware, self._bypassed)
                if caller and secret and route and may_bypass and _is_ordinary(scope, headers):
                    with tracing.continuing(headers):
                        reply = await _serve(scope, route, caller, secret, body, receive)
                if reply is None or route is None:
                    return await self._pass_on(scope, body, receive, send)
        except bodies.Disconnected:
            return None
        if reply.on_undelivered is not None and has_left(receive):
            return reply.on_undelivered()
        await send_reply(send, reply, route.allow)
        requests.ended(began, scope["method"], route.name, reply.status)
        return None

    async def _pass_on(self, scope: Any, body: Body, receive: Receive, send: Send) -> None:
        await self.application(scope, body.replay(receive), send if body.is_complete else closing(receive, send))


async def _identify(secret: str | None, headers: Mapping[str, str]) -> tuple[TokenCaller | None, bool]:
    """Return (caller, refused): the token's caller or None; whether the view will refuse before it reads the body."""
    if secret is None:
        return None, not _has_session(headers)
    try:
        caller = await callers.find(secret)
    except Exception as error:
        logger.debug("The token could not be looked up: %r", error)
        return None, False  # the view asks again; if the database answers then, the view needs the body
    return caller, caller is None


async def _serve(
    scope: Any, route: "Found", caller: TokenCaller, secret: str, body: Body, receive: Receive
) -> Reply | None:
    """Return the reply of the endpoint, or None if the ordinary path must serve the request."""
    data: Any = None
    try:
        if not await _count(caller, body.size):
            return None
        scope[COUNTED] = time.monotonic()
        if not caller.is_current():
            return None
        caller.source = _source(scope)
        data = _parser.parse(io.BytesIO(body.read()))
        call = Call(caller, databases.alias(), data, body.size, secret)
        if not endpoints.reserves(route.endpoint, data):
            return await route.endpoint(call, *route.arguments)
        with CancelOnDisconnect(receive) as watch:
            reply = await route.endpoint(call, *route.arguments)
        if watch.has_left and reply.on_undelivered is not None:
            reply.on_undelivered()
            raise bodies.Disconnected
        return reply
    except bodies.Disconnected:
        raise
    except (FallBack, ParseError):
        return None
    except QueueFull:
        problem = exceptions.unavailable("Too many requests are waiting at the moment.")
    except Exception as error:
        found = exceptions.classify(error)
        problem = exceptions.internal_error(error, {}) if found is None else found
    if route.endpoint is endpoints.queue:
        sent_id = data["id"] if isinstance(data, dict) and isinstance(data.get("id"), str) else ""
        return Reply(envelope(sent_id, error=problem.detail), problem.status, problem.headers)
    return from_problem(problem)


def _source(scope: Any) -> audit_log.Source:
    """Return the source of the request, for the audit log, as audit_log.source_of() does."""
    address = scope["client"][0] if scope.get("client") else ""
    return audit_log.Source(str(address), f"{scope['method']} {scope['path']}")


async def _count(caller: TokenCaller, size: int) -> bool:
    """Count the request and its bytes. Return False if that exceeds a limit: the view then says so."""
    if portions.take_counted(caller, size):
        return True
    return await sync_to_async(_count_in_cache, thread_sensitive=False)(caller, size)


def _count_in_cache(caller: TokenCaller, size: int) -> bool:
    try:
        return portions.take_bytes(caller, size) is None and portions.take_request(caller) is None
    finally:
        connections.close_all()  # of Django's DatabaseCache


# -- properties of a request ----------------------------------------------------------------------


class Found(NamedTuple):
    endpoint: Endpoint
    arguments: tuple[str, ...]
    allow: bytes
    name: str


def _find_route(path: str) -> Found | None:
    for route in ROUTES:
        match = route.pattern.fullmatch(path)
        if match:
            return Found(route.endpoint, match.groups(), route.allow, route.name)
    return None


KNOWN_MIDDLEWARE = ("django.", "servestatic.", "whitenoise.")


@functools.lru_cache(maxsize=8)
def unknown_middleware(installed: tuple[str, ...], bypassed: frozenset[str]) -> list[str]:
    """Return the middleware that FastPath may not bypass: with any, all requests go to Django.

    Logs their names once, because the API is slower then.
    """
    unknown = [name for name in installed if not name.startswith(KNOWN_MIDDLEWARE) and name not in bypassed]
    if unknown:
        logger.warning(
            "FastPath leaves all requests to Django, because they must pass %s. If the API's requests need not pass "
            "it, write FastPath(application, bypassed=%r).", ", ".join(unknown), unknown,
        )  # fmt: skip
    return unknown


@functools.lru_cache(maxsize=8)
def api_prefix(_urlconf: str) -> str | None:
    """Return the path below which the API is mounted, for example "/api/", or None if it is not mounted."""
    try:
        return reverse("delaytasks_api:queue").removesuffix("queue/")
    except NoReverseMatch:
        return None


_JOB = re.compile("/jobs/[0-9]+/")  # with the same number for all jobs, the answer for their paths is cached


@functools.lru_cache(maxsize=256)
def leads_to_api(path: str, urlconf: str) -> bool:
    """Return whether this path is the API's: the site may have views of its own below the same prefix."""
    try:
        return "delaytasks_api" in resolve(path, urlconf).app_names
    except Resolver404:
        return False


def _joined(sent: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers; the values of a repeated one are joined by commas, as Django does for all but Cookie."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in sent:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _secret(headers: Mapping[str, str]) -> str | None:
    """Return the token of `Authorization: Bearer <token>`, or None without such a header."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == SCHEME.lower() else None


def _has_session(headers: Mapping[str, str]) -> bool:
    """Return whether staff may have sent the request: it has a session cookie, valid or not."""
    return django_settings.get().session_cookie in headers.get("cookie", "")


def _is_ordinary(scope: Any, headers: Mapping[str, str]) -> bool:
    """Return whether Django and the views accept the request: its media type and encoding, query, host and scheme."""
    media_type = headers.get("content-type", "").lower()
    if media_type not in MEDIA_TYPES or headers.get("content-encoding") or scope.get("query_string"):
        return False
    options = django_settings.get()
    if options.refuses_user_agents:
        return False
    host = headers.get(options.host_header, headers.get("host", ""))
    return _is_allowed(host, options.allowed_hosts) and _is_secure(scope, headers, options)


@functools.lru_cache(maxsize=128)
def _is_allowed(host: str, allowed: tuple[str, ...]) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, allowed)


def _is_secure(scope: Any, headers: Mapping[str, str], options: django_settings.DjangoSettings) -> bool:
    """Return whether the request came over HTTPS, or need not. The proxy's header decides if it is there."""
    if not options.ssl_redirect:
        return True
    header = headers.get(options.ssl_header) if options.ssl_header else None
    return scope["scheme"] == "https" if header is None else header.partition(",")[0].strip() == options.ssl_value


async def _in_test_transaction() -> bool:
    """Return whether a test's transaction is open, in which other connections would not see its rows."""
    return await sync_to_async(_in_transaction, thread_sensitive=True)()


def _in_transaction() -> bool:
    return any(connection.in_atomic_block for connection in connections.all(initialized_only=True))
