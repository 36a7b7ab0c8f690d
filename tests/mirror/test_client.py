"""The Redis client: its URLs, and its circuit breaker."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from delaytasks import mirror as mirrors
from delaytasks.conf import Settings
from delaytasks.exceptions import MirrorDown
from delaytasks.mirror.base import Entry, Settlement
from delaytasks.mirror.redis.client import PAUSES_SECONDS, RedisClient, make
from delaytasks.mirror.redis.index import Mirror
from tests.support.servers import RedisServer, free_port, stopped
from tests.torture.proxy import Proxy

DOCS = Path(__file__).parents[2] / "docs"


class Monotonic:
    """A monotonic clock that tests advance."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


class FakeRedis:
    """Answers, or raises `failure`; counts its calls."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.calls = 0

    def ping(self) -> str:
        self.calls += 1
        if self.failure:
            raise self.failure
        return "PONG"


class Connection:
    """A client of a fake Redis, with a clock that tests advance."""

    def __init__(self) -> None:
        self.redis, self.clock = FakeRedis(), Monotonic()
        self.client = RedisClient(lambda: self.redis, self.clock)

    def ask(self) -> str:
        return self.client.ask(lambda c: c.ping())

    def fail(self) -> MirrorDown:
        self.redis.failure = errors.ConnectionError("connection refused")
        with pytest.raises(MirrorDown) as raised:
            self.ask()
        return raised.value

    def pause(self) -> float:
        """Advance the clock until Redis may be called again; return the seconds."""
        began = self.clock.seconds
        while self.client.down:
            self.clock.seconds = round(self.clock.seconds + 0.1, 3)
        return round(self.clock.seconds - began, 3)


@pytest.fixture
def connection() -> Connection:
    return Connection()


# The circuit breaker


@pytest.mark.parametrize("script", [False, True])
def test_after_a_failover_behind_one_address_the_client_connects_anew(script: bool) -> None:
    def write(client: Any) -> Any:
        return client.eval("return redis.call('INCR', KEYS[1])", 1, "name") if script else client.incr("name")

    clock = Monotonic()
    with RedisServer() as old, RedisServer() as new, Proxy(old.port) as address:
        settings = Settings(redis_url=f"redis://127.0.0.1:{address.port}/0")
        client = RedisClient(lambda: make(settings), clock)
        assert client.ask(write) == 1
        with old.client() as direct:
            direct.replicaof("127.0.0.1", new.port)
        address.upstream = new.port
        with pytest.raises(MirrorDown, match="read only replica"):
            client.ask(write)
        clock.seconds += PAUSES_SECONDS[0]
        assert client.ask(write)
        with new.client() as direct:
            assert direct.get("name")
        client.close()


def test_the_answer_of_redis_is_returned(connection: Connection) -> None:
    assert (connection.ask(), connection.client.down) == ("PONG", False)


def test_after_a_failure_redis_is_down_and_the_error_has_the_cause(connection: Connection) -> None:
    failure = connection.fail()
    assert connection.client.down
    assert str(failure) == "Redis does not answer: connection refused"
    assert isinstance(failure.__cause__, errors.ConnectionError)


def test_after_a_failure_redis_is_not_called_for_a_pause(connection: Connection) -> None:
    connection.fail()
    for _ in range(3):
        with pytest.raises(MirrorDown, match="is not called again yet"):
            connection.ask()
    assert connection.redis.calls == 1


def test_after_the_pause_redis_is_called_again(connection: Connection) -> None:
    connection.fail()
    connection.redis.failure = None
    connection.clock.seconds += PAUSES_SECONDS[0]
    assert (connection.client.down, connection.ask(), connection.redis.calls) == (False, "PONG", 2)


def test_the_pauses_grow_to_three_seconds(connection: Connection) -> None:
    pauses = []
    for _ in range(6):
        connection.fail()
        pauses.append(connection.pause())
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_after_a_success_the_pauses_start_again_with_the_shortest(connection: Connection) -> None:
    for _ in range(4):
        connection.fail()
        connection.pause()
    connection.redis.failure = None
    connection.ask()
    connection.fail()
    assert connection.pause() == PAUSES_SECONDS[0]


@pytest.mark.parametrize(
    "failure",
    [
        errors.ConnectionError("refused"),
        errors.TimeoutError("slow"),
        errors.BusyLoadingError("loading"),
        errors.ReadOnlyError("a replica now"),
        errors.ResponseError("OOM command not allowed when used memory > 'maxmemory'"),
        errors.AuthenticationError("wrong password"),
        redis.sentinel.MasterNotFoundError("no master"),
        errors.ClusterDownError("CLUSTERDOWN"),
        errors.RedisClusterException("no reachable node"),
        errors.SlotNotCoveredError("slot 7"),
        OSError("no route"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_every_kind_of_redis_failure_raises_mirror_down(connection: Connection, failure: BaseException) -> None:
    connection.redis.failure = failure
    with pytest.raises(MirrorDown):
        connection.ask()
    assert connection.client.down


@pytest.mark.parametrize("failure", [KeyError("key"), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_other_errors_do_not_mean_that_redis_is_down(connection: Connection, failure: BaseException) -> None:
    connection.redis.failure = failure
    with pytest.raises(type(failure)):
        connection.ask()
    assert not connection.client.down


# A real Redis


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def client_of(url: str, clock: Monotonic, **options: Any) -> RedisClient:
    settings = Settings(redis_url=url, **options)
    return RedisClient(lambda: make(settings), clock)


def test_a_real_redis_stops_and_starts_again(own_server: RedisServer) -> None:
    clock = Monotonic()
    client = client_of(own_server.url(), clock)
    assert client.ask(lambda c: c.set("a", "1"))
    with stopped(own_server):
        with pytest.raises(MirrorDown, match="does not answer"):
            client.ask(lambda c: c.get("a"))
        clock.seconds += PAUSES_SECONDS[0]
        with pytest.raises(MirrorDown, match="does not answer"):
            client.ask(lambda c: c.get("a"))
    with pytest.raises(MirrorDown, match="not called again yet"):
        client.ask(lambda c: c.get("a"))
    clock.seconds += PAUSES_SECONDS[1]
    assert client.ask(lambda c: c.get("a")) is None, "Redis came back empty"
    client.close()


def test_a_runner_that_waits_for_a_millisecond_waits_no_longer(own_server: RedisServer) -> None:
    """Redis 6 takes a timeout of 0.001 s for 0, which means for ever."""
    mirror = Mirror(Settings(redis_url=own_server.url()))
    assert mirror.wait_for_ready("runners", "token", 1, 1) is None
    assert not mirror.down
    mirror.close()


def test_a_mirror_works_again_after_a_restart_without_its_scripts(own_server: RedisServer) -> None:
    mirror = Mirror(Settings(redis_url=own_server.url()))
    assert mirror.take_slot("order.close", "a", 1, 2, 1)
    own_server.restart()
    assert mirror.take_slot("order.close", "a", 1, 2, 1)
    mirror.close()


def test_asking_whether_redis_accepts_writes_writes_nothing_and_lets_reads_go_on(own_server: RedisServer) -> None:
    mirror = Mirror(Settings(redis_url=own_server.url()))
    assert mirror.refusal() == ""
    with own_server.full():
        assert "used memory > 'maxmemory'" in mirror.refusal()
        assert (mirror.down, mirror.due_count()) == (False, 0)
    with own_server.client() as client:
        assert client.keys() == []
    mirror.close()


def test_a_redis_user_that_may_not_publish_is_refused(own_server: RedisServer) -> None:
    rules = ["on", ">secret", "~delaytasks:*", "+@all", "-@dangerous", "+info"]
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", *rules, "resetchannels")
        mirror = Mirror(Settings(redis_url=own_server.url().replace("//", "//shop:secret@")))
        assert "channel" in mirror.refusal()
        client.execute_command("ACL", "SETUSER", "shop", "&delaytasks:*")
    assert mirror.refusal() == ""
    mirror.close()


def test_the_redis_user_of_the_deployment_guide_may_do_what_the_mirror_does(own_server: RedisServer) -> None:
    [rules] = re.findall("`ACL SETUSER shop ([^`]+)`", (DOCS / "howto/deploy.md").read_text())
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", *rules.split())
    mirror = Mirror(Settings(redis_url=own_server.url().replace("//", "//shop:PASSWORD@")))
    assert mirror.refusal() == ""
    assert mirror.add([Entry(1, "t", 1)])
    mirror.promote_due(2, ["t"])
    assert mirror.reserve("t", 1, 2, 1_000).ids == [1]
    assert mirror.masters()
    mirror.close()


def test_after_a_refused_write_it_is_known_why_although_redis_is_not_called(own_server: RedisServer) -> None:
    mirror = Mirror(Settings(redis_url=own_server.url()))
    with own_server.full():
        with pytest.raises(MirrorDown):
            mirror._redis.ask(lambda client: client.set("a", 1))
        assert mirror.down
        assert "used memory > 'maxmemory'" in mirror.refusal()
    mirror.close()


def test_a_redis_that_accepts_and_never_answers_is_down_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hang_up = threading.Timer(5, silent.close)  # ends the test if the timeout does not work
        hang_up.start()
        client = client_of(f"redis://127.0.0.1:{silent.getsockname()[1]}", Monotonic(), redis_timeout_seconds=0.05)
        with pytest.raises(MirrorDown, match=r"(?i)timeout"):
            client.ask(lambda c: c.ping())
        hang_up.cancel()
        client.close()


def test_after_a_failure_a_listener_subscribes_again_before_it_waits(redis_server) -> None:
    mirror = Mirror(Settings(redis_url=redis_server.url()))
    listener, breaker = mirror.listen(), mirror._redis.breaker
    try:
        listener.wait(1)
        breaker._open_until = 0.0  # another call failed, and the pause is over
        with pytest.raises(MirrorDown):
            listener.wait(1)
        assert not breaker.closed
        listener.wait(1)
        assert breaker.closed
    finally:
        listener.close()
        mirror.close()


# URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://cache:6380/2", {"host": "cache", "port": 6380, "db": 2}),
        ("redis://:secret@cache", {"host": "cache", "password": "secret"}),
        ("redis://jobs:se%40cret@cache", {"username": "jobs", "password": "se@cret"}),
        ("rediss://cache", {"host": "cache"}),
        ("unix:///run/redis.sock?db=3", {"path": "/run/redis.sock", "db": 3}),
    ],
)
def test_a_url_gives_host_port_database_and_credentials(url: str, expected: dict[str, Any]) -> None:
    options = make(Settings(redis_url=url, redis_timeout_seconds=0.5)).connection_pool.connection_kwargs
    assert {name: options.get(name) for name in expected} == expected
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (0.5, 0.5)
    assert options["decode_responses"] is True


@pytest.mark.parametrize(
    ("url", "nodes", "service", "expected"),
    [
        ("sentinel://a:26379/main", [("a", 26379)], "main", {"db": 0, "password": None}),
        ("sentinel://a:1,b:2,c:3/main/4", [("a", 1), ("b", 2), ("c", 3)], "main", {"db": 4}),
        ("sentinel://[2001:db8::1]:1,[::1]:2/main", [("2001:db8::1", 1), ("::1", 2)], "main", {"db": 0}),
        ("sentinel://:se%40cret@a:1,b:2/main/0", [("a", 1), ("b", 2)], "main", {"password": "se@cret"}),
        ("sentinel://jobs:secret@a:1/main", [("a", 1)], "main", {"username": "jobs", "password": "secret"}),
        ("sentinel://a:1/main?client_name=shop", [("a", 1)], "main", {"client_name": "shop"}),
    ],
)
def test_a_sentinel_url_gives_the_sentinels_the_service_and_the_database(
    url: str, nodes: list[tuple[str, int]], service: str, expected: dict[str, Any]
) -> None:
    pool = make(Settings(redis_url=url, redis_timeout_seconds=0.5)).connection_pool
    sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(kwargs["host"], kwargs["port"]) for kwargs in sentinels] == nodes
    assert {kwargs["socket_timeout"] for kwargs in sentinels} == {0.5}
    assert pool.service_name == service
    assert pool.connection_kwargs["retry"].get_retries() == 1
    assert {name: pool.connection_kwargs.get(name) for name in expected} == expected


BAD_URLS = [
    pytest.param("http://cache:6379", "redis://", id="another-scheme"),
    pytest.param("cache:6379", "redis://", id="no-scheme"),
    pytest.param("", "redis://", id="empty"),
    pytest.param("redis://cache:port", "port", id="port-no-number"),
    pytest.param("redis://cache:99999", "[Pp]ort", id="port-out-of-range"),
    pytest.param("redis://[::1", "IPv6", id="half-an-address"),
    pytest.param("redis://cache?socket_timeout=soon", "socket_timeout", id="option-no-number"),
    pytest.param("redis://cache?colour=red", "colour", id="unknown-option"),
    pytest.param("sentinel://a:1", "sentinel://host:26379,host:26379/service/0", id="sentinel-without-service"),
    pytest.param("sentinel://a:1/", "sentinel://host:26379,host:26379/service/0", id="sentinel-with-empty-service"),
    pytest.param("sentinel://a/main", "sentinel://host:26379", id="sentinel-without-port"),
    pytest.param("sentinel://a:x/main", "sentinel://host:26379", id="sentinel-port-no-number"),
    pytest.param("sentinel://a:1,/main", "sentinel://host:26379", id="sentinel-empty-host"),
    pytest.param("sentinel://:1/main", "sentinel://host:26379", id="sentinel-port-alone"),
    pytest.param("sentinel:///main", "sentinel://host:26379", id="sentinel-nowhere"),
    pytest.param("sentinel://a:1/main?colour=red", "colour", id="sentinel-unknown-option"),
    pytest.param("sentinel://a:1/main/x", "sentinel://host:26379", id="sentinel-database-no-number"),
]


@pytest.mark.parametrize(("url", "message"), BAD_URLS)
def test_a_bad_url_is_refused_before_anything_connects(url: str, message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=rf"DELAYTASKS\['REDIS_URL'\].*{message}"):
        make(Settings(redis_url=url))


def test_a_bad_url_of_a_cluster_is_refused_with_the_same_message() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"DELAYTASKS\['REDIS_URL'\].*redis://"):
        make(Settings(redis_url="http://cache", redis_cluster=True))


def test_a_cluster_that_does_not_answer_at_first_is_down() -> None:
    mirror = Mirror(Settings(redis_url=f"redis://127.0.0.1:{free_port()}", redis_cluster=True))
    with pytest.raises(MirrorDown):
        mirror.due_count()
    assert mirror.down
    assert mirror.add([Entry(1, "order.close", 1)]) == 0


def test_each_connection_is_counted_and_uses_the_database_of_the_url(redis_server) -> None:
    mirror = Mirror(Settings(redis_url=redis_server.url(3)))
    assert mirror.connection_count == 0
    try:
        assert mirror._redis.ask(lambda client: client.client_info())["db"] == 3
        mirror.due_count()
        assert mirror.connection_count == 1
        with redis_server.client() as client:
            client.client_kill_filter(_type="normal")
        mirror.due_count()
        assert mirror.connection_count == 2
    finally:
        mirror.close()


def test_an_entry_that_is_not_utf8_can_be_read(redis_server) -> None:
    mirror = Mirror(Settings(redis_url=redis_server.url(3), prefix="bytes"))
    try:
        with redis_server.client(3, decode_responses=False) as client:
            client.zadd(mirror.keys.due(0), {b"7:t\xff": 1.0})
            entries = [entry for page in mirror.entries() for entry in page]
            assert entries == [Entry(7, "t\\xff", 1)]
            mirror.settle([Settlement(7, "t\\xff", 1, 2)])
            client.flushdb()
    finally:
        mirror.close()


# One mirror per process


def test_without_a_url_there_is_no_mirror(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": None}
    assert mirrors.connect() is None


def test_there_is_one_mirror_per_settings(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/1"}
    first = mirrors.connect()
    assert mirrors.connect() is first
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/1", "PREFIX": "another"}
    second = mirrors.connect()
    assert second is not first
    assert second.keys.prefix == "another"


def test_each_database_has_its_own_mirror(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/1"}
    first, second = mirrors.connect("default"), mirrors.connect("archive")
    assert first is not second
    assert not {first.keys.due(b) for b in range(4)} & {second.keys.due(b) for b in range(4)}


def test_the_mirrors_of_many_databases_are_all_kept(settings) -> None:
    """Each mirror has its own connection and circuit breaker, and the mover uses each in every pass."""
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/1"}
    aliases = [f"shop{n}" for n in range(30)]
    made = [mirrors.connect(alias) for alias in aliases]
    assert [mirrors.connect(alias) for alias in aliases] == made


def test_a_changed_setting_makes_a_new_mirror(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/2", "PROMOTE_LIMIT": 10}
    mirrors.connect()
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/2", "PROMOTE_LIMIT": 20}
    assert mirrors.connect().settings.promote_limit == 20
