"""How much one caller may ask for: requests per minute, and bytes of one request."""

import functools
import io
import json
import logging
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from django.core.cache import DEFAULT_CACHE_ALIAS, cache, caches
from django.core.signals import setting_changed
from django.http import QueryDict
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from .. import rules
from .access import Caller

logger = logging.getLogger("delaytasks")
WINDOW_SECONDS = 60
MAX_DEPTH = rules.MAX_DEPTH + 10  # of a request: a job's body and what is around it
PAUSE_SECONDS = 10.0  # a cache that failed is not asked again for so long: each question may cost its timeout
ROUNDING = 1e-6  # of a request, or of a millisecond: nobody waits a second longer for a float's last digit
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_failed_until = 0.0


class RequestTooLarge(Exception):
    """The request's body is larger than its caller may send."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The request's body is larger than {most:,} bytes, the most that this caller may send.")


def now() -> float:
    """Seconds since 1970, as every web process sees them."""
    return time.time()


class RateLimit(BaseThrottle):
    """So many requests in any minute, counted in Django's cache; too many are refused with the wait until the next.

    The minute slides: this window's count, and of the last one the share that the minute still covers. What was
    refused is not counted. A cache that cannot be asked, or keeps nothing, refuses nobody.
    """

    def allow_request(self, request: Any, view: Any) -> bool:
        self.wait_seconds: float | None = None
        if not isinstance(request.auth, Caller):
            return True
        self.wait_seconds = counted(request.auth.identity, request.auth.rate_per_minute)
        return self.wait_seconds is None

    def wait(self) -> float | None:
        return self.wait_seconds


def counted(identity: str, per_minute: int) -> float | None:
    """Count one request: None if it is within the limit, else the seconds until one would be."""
    global _failed_until
    if time.monotonic() < _failed_until:
        return None
    try:
        return _counted(identity, per_minute)
    except Exception:  # each cache has exceptions of its own
        _failed_until = time.monotonic() + PAUSE_SECONDS
        logger.warning("The cache cannot be asked: rates are not limited for %g s.", PAUSE_SECONDS, exc_info=True)
        return None


@functools.cache
def _redis() -> Any:
    return caches.create_connection(DEFAULT_CACHE_ALIAS)


def _forget_redis(*, setting: str, **_: object) -> None:
    if setting == "CACHES":
        _redis.cache_clear()


setting_changed.connect(_forget_redis, dispatch_uid="delaytasks.api.limits")


def _cache() -> Any:
    """Django's cache. Under ASGI each request would open a Redis connection of its own, and keep it while it waits."""
    return _redis() if "RedisCache" in caches.settings[DEFAULT_CACHE_ALIAS]["BACKEND"] else cache


def _counted(identity: str, per_minute: int) -> float | None:
    window, elapsed = divmod(now(), WINDOW_SECONDS)
    here, before = (f"delaytasks:rate:{identity}:{int(window) - ago}" for ago in (0, 1))
    count, last = _increment(here), _cache().get(before, 0)
    if count + last * (1 - elapsed / WINDOW_SECONDS) <= per_minute + ROUNDING:
        return None
    try:
        _cache().decr(here)
    except ValueError:
        pass  # it went since, and its count with it
    return _wait_seconds(count - 1, last, per_minute, elapsed)


def _increment(key: str) -> int:
    try:
        return _cache().incr(key)
    except ValueError:  # the first of this window
        return 1 if _cache().add(key, 1, timeout=2 * WINDOW_SECONDS) else _cache().incr(key)


def _wait_seconds(count: int, last: int, per_minute: int, elapsed: float) -> float:
    """Whole milliseconds, as seconds, until one more request fits; `elapsed` of this window are over."""
    if count + 1 <= per_minute:  # in this window, when enough of the last one is out of the minute
        windows = 1 - (per_minute - count - 1) / last
    else:  # in the next one, for which this is the last
        windows = 2 - (per_minute - 1) / count
    return math.ceil((windows * WINDOW_SECONDS - elapsed) * 1000 - ROUNDING) / 1000


class CountedRequest(Request):
    """A request whose body is read no further than its caller may send, also when its length was not said before.

    What the server took in before that is the server's to limit: see bodies.py.
    """

    @property
    def POST(self) -> QueryDict:
        """No form. Django's CSRF check would look for its token in one: here the token is in its header or nowhere."""
        return QueryDict()

    def _load_stream(self) -> None:
        most = self.auth.max_request_bytes
        said = self._request.META.get("CONTENT_LENGTH")
        if said and said.isascii() and said.isdecimal() and int(said) > most:
            raise RequestTooLarge(most)
        body = self.body if self._request._read_started else self._request.read(most + 1)
        if len(body) > most:
            raise RequestTooLarge(most)
        self._stream = io.BytesIO(body) if body else None


class JSONParser(BaseParser):
    """JSON in UTF-8, as RFC 8259 has it: no NaN, no Infinity, nothing that could not be written again."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping | None = None) -> Any:
        try:
            text = stream.read().decode()
            if rules.depth(text) > MAX_DEPTH:  # before it is read: what one stack can read another may not write
                raise ParseError(f"The request's body is nested deeper than {MAX_DEPTH} levels.")
            found = _decoder.decode(text)
            if _SURROGATE.search(text):
                json.dumps(found, ensure_ascii=False).encode()  # half a pair has no UTF-8, and could not be answered
        except UnicodeError as error:
            raise ParseError(f"The request's body is not UTF-8: {error.reason}.") from None  # type: ignore[attr-defined]
        except ValueError as error:
            raise ParseError(f"The request's body is not JSON: {error}.") from None
        return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is too large a number")
    return number


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number in JSON")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_refused)
