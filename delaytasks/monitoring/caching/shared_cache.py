"""Integers and text in Django's default cache. Nothing that is read from Redis is ever unpickled.

Django's Redis cache stores other values as pickles. Anybody with write access to that Redis could run code in each
process that reads them. So with Redis, this module uses the cache's own client and reads bytes as an integer or as
text. Other cache backends are used through Django's interface.
"""

import functools
from collections.abc import Sequence
from typing import Any

from django.core.cache import DEFAULT_CACHE_ALIAS, cache, caches
from django.core.cache.backends.redis import RedisCache
from django.core.signals import setting_changed


@functools.cache
def _connection() -> Any:
    """The default cache for the whole process. Under ASGI, Django's own object would connect once per request."""
    return caches.create_connection(DEFAULT_CACHE_ALIAS)


def _forget_connection(*, setting: str, **_: object) -> None:
    if setting == "CACHES":
        _connection.cache_clear()


setting_changed.connect(_forget_connection, dispatch_uid="delaytasks.monitoring.caching.shared_cache")


def _redis() -> Any:
    """Return the Redis client of the default cache, of Django or of django-redis; None for another backend."""
    connection = _connection()
    if isinstance(connection, RedisCache):
        return connection._cache.get_client(None, write=True)
    get_client = getattr(getattr(connection, "client", None), "get_client", None)
    return get_client(write=True) if get_client else None


def _full_key(key: str) -> str:
    return str(_connection().make_and_validate_key(key))


def get_text(key: str) -> str | None:
    """Return the text, or None if there is none. Raises the exceptions of the cache, and ValueError for other bytes."""
    client = _redis()
    found = client.get(_full_key(key)) if client else cache.get(key)
    return found.decode() if isinstance(found, bytes) else found if isinstance(found, str) else None


def set_text(key: str, text: str, seconds: int) -> None:
    client = _redis()
    if client:
        client.set(_full_key(key), text.encode(), ex=seconds)
    else:
        cache.set(key, text, seconds)


def add(key: str, seconds: int) -> bool:
    """Set a mark that expires. Return False if it was set already."""
    client = _redis()
    return bool(client.set(_full_key(key), 1, ex=seconds, nx=True) if client else cache.add(key, 1, seconds))


def delete(key: str) -> None:
    client = _redis()
    if client:
        client.delete(_full_key(key))
    else:
        cache.delete(key)


def count(key: str, seconds: int, others: Sequence[str] = (), by: int = 1) -> tuple[int, list[int]]:
    """Add `by` to an integer that expires. Return it, and the integers of the other keys: 0 for a missing one.

    With Redis, this is one round trip. Raises the exceptions of the cache, and ValueError if a value is not an integer.
    """
    client = _redis()
    if client is None:
        number, found = _increment(key, seconds, by), cache.get_many(others)
        return number, [_integer(found.get(other)) for other in others]
    full_key = _full_key(key)
    pipeline = client.pipeline(transaction=False)
    pipeline.incr(full_key, by)
    pipeline.expire(full_key, seconds)
    for other in others:
        pipeline.get(_full_key(other))
    number, _, *found = pipeline.execute()
    return int(number), [_integer(each) for each in found]


def uncount(key: str, by: int = 1) -> None:
    """Subtract `by` from an integer that count() increased."""
    client = _redis()
    if client:
        client.decr(_full_key(key), by)
        return
    try:
        cache.decr(key, by)
    except ValueError:
        pass  # the key has expired


def _increment(key: str, seconds: int, by: int) -> int:
    try:
        return cache.incr(key, by)
    except ValueError:  # the key does not exist
        return by if cache.add(key, by, timeout=seconds) else cache.incr(key, by)


def _integer(found: Any) -> int:
    """Return the integer of a cached value. Raises ValueError: int() never evaluates what it reads."""
    if found is None:
        return 0
    if isinstance(found, int | bytes | str):
        return int(found)
    raise ValueError(f"{found!r:.80} is not an integer")
