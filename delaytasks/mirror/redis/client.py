"""The client of Redis or Valkey (single, Sentinel or Cluster), behind a circuit breaker, and the Lua scripts."""

import functools
import hashlib
import re
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.exceptions import NoScriptError, ReadOnlyError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from ...circuit_breaker import CircuitBreaker, CircuitOpen
from ...conf import Settings
from ...exceptions import MirrorDown

PAUSES_SECONDS = (0.5, 1.0, 2.0, 3.0)  # without calls to Redis: after one failure, after two in a row, ...
HEALTH_CHECK_SECONDS = 30  # a connection that was idle for so long is checked before it is used
FAILURES = (RedisError, RedisClusterException, OSError)
SCRIPTS = ("add", "promote_due", "reserve", "settle", "take_slot", "call_runner", "extend_lock", "release_lock")
READ_SCORES = {"add", "promote_due", "reserve", "settle"}  # score.lua is put before these scripts


def make(settings: Settings, on_connect: Callable[[], None] = lambda: None) -> Any:
    """Return a client of the Redis that the settings name. Raises ImproperlyConfigured.

    REDIS_URL    redis:// rediss:// unix://, or sentinel://[:password@]host:port,host:port/service/db, or sentinels://
                 with TLS to the Sentinels and to Redis. Options of redis-py may follow, such as ?ssl_ca_certs=/path,
                 and sentinel_username= and sentinel_password= of the Sentinels
    on_connect   called after each new connection, which may lead to another Redis than before
    """

    def connected(connection: Any) -> None:
        if not settings.redis_cluster:  # the cluster client does this itself
            connection.on_connect_check_health(check_health=False)  # a health check would connect again, endlessly
        on_connect()

    url = settings.redis_url or ""
    options: dict[str, Any] = {
        "socket_timeout": settings.redis_timeout_seconds,
        "socket_connect_timeout": settings.redis_timeout_seconds,
        "decode_responses": True,
        "encoding_errors": "backslashreplace",  # data of other programs that is not UTF-8 must not raise an error
        "redis_connect_func": connected,
    }
    try:
        if url.startswith(("sentinel://", "sentinels://")):
            return _sentinel(url, options)
        parse_url(url)
        if settings.redis_cluster:
            return RedisCluster.from_url(url, retry=_one_retry(), **options)
        client = redis.Redis.from_url(url, retry=_one_retry(), health_check_interval=HEALTH_CHECK_SECONDS, **options)
        client.connection_pool.make_connection()  # does not connect, but refuses an unknown option
        return client
    except (ValueError, TypeError) as error:
        raise ImproperlyConfigured(f"DELAYTASKS['REDIS_URL'] is not a Redis URL: {error}") from error


def _one_retry() -> Retry:
    return Retry(NoBackoff(), 1)  # so the caller waits for at most two timeouts


def _sentinel(url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    path = parts.path.strip("/").split("/")
    hosts = parts.netloc.rpartition("@")[2].split(",")
    try:
        nodes = [(host.strip("[]"), int(port)) for host, _, port in (each.rpartition(":") for each in hosts)]
        database = int(path[1]) if len(path) > 1 else 0
    except ValueError:
        nodes, database = [], 0
    if not nodes or not path[0] or not all(host for host, _ in nodes):
        raise ImproperlyConfigured(
            "DELAYTASKS['REDIS_URL'] for Sentinel must be sentinel://host:26379,host:26379/service/0."
        )
    query = _query_options(parts.query)
    query |= {"ssl": True} if parts.scheme == "sentinels" else {}
    of_sentinels = {name: query.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    of_redis = {
        "db": database,
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "health_check_interval": HEALTH_CHECK_SECONDS,
    }
    timeouts = {name: value for name, value in options.items() if name.startswith("socket_")}
    sentinel = _Sentinel(nodes, sentinel_kwargs={**timeouts, **query, **of_sentinels, "retry": _one_retry()})
    client = sentinel.master_for(path[0], **(options | query | of_redis), retry=_one_retry())
    client.connection_pool.make_connection()  # does not connect, but refuses an unknown option
    return client


class _Sentinel(Sentinel):
    """Sentinels whose error has no passwords. That of redis-py has every option of each Sentinel."""

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)
        except MasterNotFoundError as error:  # ... : <the Sentinel's options> - its error, <...> - its error
            raise MasterNotFoundError(re.sub(r"<.*?> - (?=\w+\()", "", str(error), flags=re.DOTALL)) from None


def _query_options(query: str) -> dict[str, Any]:
    """Return the options of a URL's query, such as ssl_ca_certs, with their types."""
    options = dict(parse_url(f"redis://none/?{query}"))
    options.pop("host")
    return options


class RedisClient:
    """A client behind a circuit breaker."""

    def __init__(self, make: Callable[[], Any], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._client: Any = None
        self.breaker = CircuitBreaker(FAILURES, *PAUSES_SECONDS, monotonic=monotonic)
        self.connection_count = 0
        self._refusal = ""  # the last error with which Redis answered; "" if the last failure was no answer

    def count_connection(self) -> None:
        self.connection_count += 1

    @property
    def down(self) -> bool:
        return self.breaker.refuses

    @property
    def refusal(self) -> str:
        """Why Redis is not called for now, if it answered and refused a write; "" otherwise."""
        return self._refusal if self.down else ""

    @property
    def client(self) -> Any:
        """The client, created on first use, because creating a Cluster's client connects to Redis."""
        if self._client is None:
            self._client = self._make()
        return self._client

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """Return `call(client)`. Raises MirrorDown if Redis fails, and without calling it while the circuit is open."""
        try:
            return self.breaker.call(lambda: call(self.client))  # not outside: making the client may fail too
        except CircuitOpen:
            raise MirrorDown("Redis failed a moment ago and is not called again yet.") from None
        except FAILURES as error:
            self._refusal = str(error) if isinstance(error, ResponseError) else ""
            if isinstance(error, ReadOnlyError) or "READONLY" in self._refusal:  # the latter from a script
                self._disconnect()
            raise MirrorDown(f"Redis does not answer: {error}") from error

    def script(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Call a Lua script, and return its answer. Raises MirrorDown, as ask()."""
        return self.ask(lambda c: call_script(c, name, keys, args))

    def scripts(self, name: str, calls: list[tuple[list[str], list[Any]]]) -> list[Any]:
        """Return call_scripts(). Raises MirrorDown, as ask()."""
        return self.ask(lambda c: call_scripts(c, name, calls))

    def _disconnect(self) -> None:
        """Close the connections to a Redis that has become a replica: its address may lead to the new master now.

        The client of a Cluster does this itself.
        """
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:
            pool.disconnect(inuse_connections=False)  # other threads are using those

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


@functools.cache
def script_source(name: str) -> str:
    """Return the source of a script: a file of lua/, with keys, arguments and return value in its header."""
    folder = files(__package__) / "lua"
    own = (folder / f"{name}.lua").read_text()
    return (folder / "score.lua").read_text() + own if name in READ_SCORES else own


@functools.cache
def _sha(name: str) -> str:
    return hashlib.sha1(script_source(name).encode(), usedforsecurity=False).hexdigest()


def call_script(client: Any, name: str, keys: list[str], args: list[Any]) -> Any:
    """Call a script, and return its answer. If Redis does not have the script, load it and call it again.

    redis-py's own Script is not used: it would check before each pipeline, which costs another round trip.
    """
    try:
        return client.evalsha(_sha(name), len(keys), *keys, *args)
    except NoScriptError:
        client.script_load(script_source(name))
        return client.evalsha(_sha(name), len(keys), *keys, *args)


def call_scripts(client: Any, name: str, calls: list[tuple[list[str], list[Any]]]) -> list[Any]:
    """Call a script for several buckets in one round trip, except in a Cluster. Return the answers."""
    if len(calls) < 2 or hasattr(client, "nodes_manager"):  # a cluster's pipeline refuses EVALSHA
        return [call_script(client, name, keys, args) for keys, args in calls]
    pipeline = client.pipeline(transaction=False)
    for keys, args in calls:
        pipeline.evalsha(_sha(name), len(keys), *keys, *args)
    answers = pipeline.execute(raise_on_error=False)
    return [_answer(client, name, call, answer) for call, answer in zip(calls, answers, strict=True)]


def _answer(client: Any, name: str, call: tuple[list[str], list[Any]], answer: Any) -> Any:
    """Return the answer to a call. If its script was missing, repeat only this call: the others have run."""
    if isinstance(answer, NoScriptError):
        return call_script(client, name, *call)
    if isinstance(answer, Exception):
        raise answer
    return answer
