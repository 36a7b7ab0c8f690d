"""A lock in Redis. It expires by itself; only its holder can extend or release it.

redis-py's Lock is not used: if the reply to its SET is lost, the client sends SET again, and that fails because the
first SET has taken the lock.
"""

import uuid
from contextlib import suppress

from ...exceptions import MirrorDown
from .client import RedisClient


class LockLost(Exception):
    """The lock expired, or Redis lost it; another process may hold it."""


class Lock:
    def __init__(self, redis: RedisClient, key: str, ttl_ms: int) -> None:
        self._redis, self._key, self._ttl_ms = redis, key, ttl_ms
        self._token = uuid.uuid4().hex

    def acquire(self) -> bool:
        """Take the lock for `ttl_ms`, without waiting. Return False if another process holds it. Raises MirrorDown."""
        taken = self._redis.ask(lambda c: c.set(self._key, self._token, nx=True, px=self._ttl_ms))
        # If the reply was lost, the client's retry finds the lock that its first try has taken.
        return bool(taken or self._redis.ask(lambda c: c.get(self._key)) == self._token)

    def extend(self) -> None:
        """Keep the lock for `ttl_ms` from now. Raises LockLost, MirrorDown."""
        args = [self._token, self._ttl_ms]
        if not self._redis.script("extend_lock", [self._key], args):
            raise LockLost

    def release(self) -> None:
        """Release the lock if this process still holds it. Never raises: if Redis is down, the lock expires."""
        with suppress(MirrorDown):
            self._redis.script("release_lock", [self._key], [self._token])
