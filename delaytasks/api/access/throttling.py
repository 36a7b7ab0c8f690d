"""Limits of requests and of bytes per caller and minute."""

import logging
import math
import time
from typing import Any

from rest_framework.exceptions import AuthenticationFailed
from rest_framework.throttling import BaseThrottle

from ...circuit_breaker import CircuitBreaker, CircuitOpen
from ...monitoring.caching import shared_cache
from . import token_cache
from .permissions import Caller

logger = logging.getLogger("delaytasks")
WINDOW_SECONDS = 60
COUNTED = "delaytasks.counted"  # key in the ASGI scope: time.monotonic() at which FastPath has counted the request
PAUSE_SECONDS = 10.0  # after a failure, the cache is not used for this time: each request would wait for its timeout
ROUNDING = 1e-6  # tolerance for float errors, in requests or ms
_breaker = CircuitBreaker(Exception, PAUSE_SECONDS)  # cache backends have no common exception


def now() -> float:
    """Return the seconds since 1970: web processes on several hosts count in the same minutes."""
    return time.time()


class RateLimit(BaseThrottle):
    """Limit requests per minute and caller, counted in Django's cache. A refusal states the seconds to wait.

    The minute is a sliding window. Its count is that of the current clock minute, plus a share of the previous clock
    minute's count: the share that the window still covers. Refused requests are not counted. If the cache fails or
    stores nothing, requests are not limited.
    """

    def allow_request(self, request: Any, view: Any) -> bool:
        self.wait_seconds: float | None = None
        if not isinstance(request.auth, Caller) or getattr(request._request, "scope", {}).get(COUNTED):
            return True
        self.wait_seconds = admit(request.auth)
        return self.wait_seconds is None

    def wait(self) -> float | None:
        return self.wait_seconds


def admit(caller: Caller) -> float | None:
    """Count a request of this caller. Return None if it is allowed, else the seconds until a request is allowed again.

    If another process has changed a token, a grant or an account, the caller is read again. Raises AuthenticationFailed
    if the caller is no longer valid.
    """
    wait_seconds = count_request(caller.identity, caller.rate_per_minute)
    if not caller.is_current() and not caller.still_valid():
        raise AuthenticationFailed
    return wait_seconds


def count_request(identity: str, per_minute: int, requests: int = 1) -> float | None:
    """Count requests. Return None if they are allowed, else the seconds until one request is allowed again."""
    try:
        return _breaker.call(_count_in_cache, identity, per_minute, requests)
    except CircuitOpen:
        return None
    except Exception:
        logger.warning("The cache is unavailable: rates are not limited for %g s.", PAUSE_SECONDS, exc_info=True)
        return None


def _count_in_cache(identity: str, per_minute: int, requests: int) -> float | None:
    window, elapsed = divmod(now(), WINDOW_SECONDS)
    current_key, last_key = (f"delaytasks:rate:{identity}:{int(window) - ago}" for ago in (0, 1))
    others = [last_key, token_cache.CHANGE_KEY]
    number, (last, change) = shared_cache.count(current_key, 2 * WINDOW_SECONDS, others, requests)
    token_cache.answers.note_change(change)
    if number + last * (1 - elapsed / WINDOW_SECONDS) <= per_minute + ROUNDING:
        return None
    shared_cache.uncount(current_key, requests)
    return _wait_seconds(number - requests, last, per_minute, elapsed, requests)


def _wait_seconds(count: int, last: int, per_minute: int, elapsed: float, requests: int = 1) -> float:
    """Return the seconds until further requests are allowed, rounded up to whole milliseconds.

    count      requests in the current clock minute
    last       requests in the previous clock minute
    elapsed    seconds since the current clock minute began
    requests   number of further requests
    """
    if requests > per_minute:  # never allowed: more than the limit
        windows = 2.0
    elif count + requests <= per_minute:  # in this clock minute, when enough of the previous one has left the window
        windows = 1 - (per_minute - count - requests) / last
    else:  # allowed in the next clock minute, when this one is the previous one
        windows = 2 - (per_minute - requests) / count
    return math.ceil((windows * WINDOW_SECONDS - elapsed) * 1000 - ROUNDING) / 1000
