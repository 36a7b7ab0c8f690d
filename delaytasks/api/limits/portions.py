"""Count requests and bytes in portions, so that most requests need no trip to the cache.

A process counts a portion of a caller's limit in the shared cache, and then serves requests from it. The rest of the
portion is lost at the end of the minute. So portions never let a caller exceed the limit, but for each process the
caller may get up to one portion less than the limit.
"""

import threading

from ... import conf
from ..access import throttling
from ..access.permissions import Caller

PER_MINUTE = 600  # trips to the cache per caller, process and minute, if the caller uses its whole limit
MAX_REQUESTS = 1000  # largest portion
MAX_KNOWN = 10_000

_left: dict[str, tuple[int, int]] = {}  # name -> (minute, rest of its portion)
_lock = threading.Lock()


def take_request(caller: Caller) -> float | None:
    """Count one request. Return None if it is allowed, else the seconds until one may be. May ask the cache."""
    portion = min(caller.rate_per_minute // PER_MINUTE, MAX_REQUESTS)
    return _take_or_refill(caller.identity, 1, max(portion, 1), caller.rate_per_minute)


def take_bytes(caller: Caller, size: int) -> float | None:
    """Count the bytes of a request. Return the same as take_request()."""
    per_minute = conf.get().api_bytes_per_minute
    return _take_or_refill(f"{caller.identity}:bytes", size, max(size, per_minute // PER_MINUTE), per_minute)


def take_counted(caller: Caller, size: int) -> bool:
    """Count one request and its bytes if that needs no trip to the cache. Return whether it was counted."""
    with _lock:
        minute = _minute()
        requests, of_bytes = caller.identity, f"{caller.identity}:bytes"
        if _left_of(requests, minute) < 1 or _left_of(of_bytes, minute) < size:
            return False
        _left[requests] = minute, _left[requests][1] - 1
        _left[of_bytes] = minute, _left[of_bytes][1] - size
        return True


def _take_or_refill(name: str, amount: int, portion: int, per_minute: int) -> float | None:
    minute = _minute()
    if _take(name, amount, minute):
        return None
    wait_seconds = throttling.count_request(name, per_minute, portion)
    if wait_seconds is not None and portion > amount:  # this request alone may still be allowed
        portion = amount
        wait_seconds = throttling.count_request(name, per_minute, portion)
    if wait_seconds is None:
        _keep(name, portion - amount, minute)
    return wait_seconds


def _take(name: str, amount: int, minute: int) -> bool:
    with _lock:
        left = _left_of(name, minute)
        if left < amount:
            return False
        _left[name] = minute, left - amount
        return True


def _keep(name: str, amount: int, minute: int) -> None:
    with _lock:
        if len(_left) > MAX_KNOWN:
            _left.clear()
        _left[name] = minute, _left_of(name, minute) + amount


def _left_of(name: str, minute: int) -> int:
    counted_in, left = _left.get(name, (-1, 0))
    return left if counted_in == minute else 0


def _minute() -> int:
    return int(throttling.now() // throttling.WINDOW_SECONDS)


def clear_cache() -> None:
    """Discard what this process has counted in the shared cache but not used."""
    with _lock:
        _left.clear()
