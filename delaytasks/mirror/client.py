"""A connection to Redis or Valkey: single, Sentinel or Cluster; and the rule for when it counts as down."""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.exceptions import RedisClusterException, RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from ..conf import Settings
from ..exceptions import MirrorDown

PAUSES_SECONDS = (0.5, 1.0, 2.0, 3.0)  # how long a Redis that failed is left alone, growing


def make(settings: Settings, on_connect: Callable[[], None] = lambda: None) -> Any:
    """A client of the Redis that the settings name.

    REDIS_URL    redis:// rediss:// unix://, or sentinel://[:password@]host:port,host:port/service/db
    on_connect   called whenever a connection was made: behind it may be another Redis than before
    """

    def connected(connection: Any) -> None:
        if not settings.redis_cluster:  # whose client does this itself, and calls us beside it
            connection.on_connect_check_health(check_health=False)  # that check would connect, and so on
        on_connect()

    url = settings.redis_url or ""
    options: dict[str, Any] = {
        "socket_timeout": settings.redis_timeout_seconds,
        "socket_connect_timeout": settings.redis_timeout_seconds,
        "decode_responses": True,
        "redis_connect_func": connected,
    }
    if url.startswith("sentinel://"):
        return _sentinel(url, options)
    again = Retry(NoBackoff(), 1)  # once: whoever asks waits meanwhile, at most for two timeouts
    try:
        parse_url(url)
        if settings.redis_cluster:
            return RedisCluster.from_url(url, retry=again, **options)
        client = redis.Redis.from_url(url, retry=again, health_check_interval=30, **options)
        client.connection_pool.make_connection()  # nothing connects yet, but an unknown option is refused
        return client
    except (ValueError, TypeError) as error:
        raise ImproperlyConfigured(f"DELAYTASKS['REDIS_URL'] is not a Redis URL: {error}") from error


def _sentinel(url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    path = parts.path.strip("/").split("/")
    hosts = parts.netloc.rpartition("@")[2].split(",")
    try:
        nodes = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in hosts)]
        database = int(path[1]) if len(path) > 1 else 0
    except ValueError:
        nodes, database = [], 0
    if not nodes or not path[0] or not all(host for host, _ in nodes):
        raise ImproperlyConfigured(
            "DELAYTASKS['REDIS_URL'] for Sentinel reads sentinel://host:26379,host:26379/service/0."
        )
    password = unquote(parts.password) if parts.password else None
    username = unquote(parts.username) if parts.username else None
    return Sentinel(nodes, **options).master_for(path[0], db=database, username=username, password=password)


class Line:
    """The client together with the knowledge whether it answers: a Redis that failed is left alone for a moment."""

    def __init__(self, make: Callable[[], Any], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._client: Any = None
        self._monotonic = monotonic
        self._until = 0.0
        self._failed = 0
        self.connected = 0  # how often a connection was made

    def note_connect(self) -> None:
        self.connected += 1

    @property
    def down(self) -> bool:
        return self._monotonic() < self._until

    @property
    def client(self) -> Any:
        """The client, made when it is first needed: a Cluster's connects at once."""
        if self._client is None:
            self._client = self._make()
        return self._client

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """What `call(client)` answers. Raises MirrorDown, at once while Redis is left alone."""
        if self.down:
            raise MirrorDown("Redis did not answer a moment ago and is left alone for now.")
        try:
            answer = call(self.client)
        except (RedisError, RedisClusterException, OSError) as error:
            pause = PAUSES_SECONDS[min(self._failed, len(PAUSES_SECONDS) - 1)]
            self._failed += 1
            self._until = self._monotonic() + pause
            raise MirrorDown(f"Redis does not answer: {error}") from error
        self._failed = 0
        return answer

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
