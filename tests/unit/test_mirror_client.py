"""The line to Redis: which URLs there are, and that a Redis that failed is left alone and comes back."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from delaytasks import mirror as mirrors
from delaytasks.conf import Settings
from delaytasks.exceptions import MirrorDown
from delaytasks.mirror.client import PAUSES_SECONDS, Line, make
from delaytasks.mirror.index import Mirror
from delaytasks.places import Entry
from tests.servers import RedisServer, free_port, stopped


class Monotonic:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


class Moody:
    """A Redis that answers, or fails as it is told, and counts how often it is asked."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.asked = 0

    def ping(self) -> str:
        self.asked += 1
        if self.failure:
            raise self.failure
        return "PONG"


class World:
    def __init__(self) -> None:
        self.redis, self.clock = Moody(), Monotonic()
        self.line = Line(lambda: self.redis, self.clock)

    def ask(self) -> str:
        return self.line.ask(lambda c: c.ping())

    def fail(self) -> MirrorDown:
        self.redis.failure = errors.ConnectionError("connection refused")
        with pytest.raises(MirrorDown) as refused:
            self.ask()
        return refused.value

    def pause(self) -> float:
        """How long Redis is left alone from now, found out by waiting."""
        began = self.clock.seconds
        while self.line.down:
            self.clock.seconds = round(self.clock.seconds + 0.1, 3)
        return round(self.clock.seconds - began, 3)


@pytest.fixture
def world() -> World:
    return World()


# Down, left alone, back


def test_a_redis_that_answers_is_asked_and_its_answer_given(world: World) -> None:
    assert (world.ask(), world.line.down) == ("PONG", False)


def test_a_redis_that_fails_is_down_and_the_reason_is_kept(world: World) -> None:
    failure = world.fail()
    assert world.line.down
    assert str(failure) == "Redis does not answer: connection refused"
    assert isinstance(failure.__cause__, errors.ConnectionError)


def test_a_redis_that_failed_is_left_alone_for_a_moment(world: World) -> None:
    world.fail()
    for _ in range(3):
        with pytest.raises(MirrorDown, match="left alone for now"):
            world.ask()
    assert world.redis.asked == 1


def test_it_is_asked_again_when_the_moment_is_over(world: World) -> None:
    world.fail()
    world.redis.failure = None
    world.clock.seconds += PAUSES_SECONDS[0]
    assert (world.line.down, world.ask(), world.redis.asked) == (False, "PONG", 2)


def test_it_is_left_alone_for_longer_each_time_but_never_for_long(world: World) -> None:
    pauses = []
    for _ in range(6):
        world.fail()
        pauses.append(world.pause())
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_a_redis_that_came_back_starts_with_a_short_pause_again(world: World) -> None:
    for _ in range(4):
        world.fail()
        world.pause()
    world.redis.failure = None
    world.ask()
    world.fail()
    assert world.pause() == PAUSES_SECONDS[0]


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
def test_whatever_way_redis_fails_the_database_goes_on_without_it(world: World, failure: BaseException) -> None:
    world.redis.failure = failure
    with pytest.raises(MirrorDown):
        world.ask()
    assert world.line.down


@pytest.mark.parametrize("failure", [KeyError("ours"), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_what_is_not_redis_failing_is_not_called_so(world: World, failure: BaseException) -> None:
    world.redis.failure = failure
    with pytest.raises(type(failure)):
        world.ask()
    assert not world.line.down


# A real one


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def line_to(url: str, clock: Monotonic, **options: Any) -> Line:
    settings = Settings(redis_url=url, **options)
    return Line(lambda: make(settings), clock)


def test_a_real_redis_goes_away_and_comes_back(own_server: RedisServer) -> None:
    clock = Monotonic()
    line = line_to(own_server.url(), clock)
    assert line.ask(lambda c: c.set("a", "1"))
    with stopped(own_server):
        with pytest.raises(MirrorDown, match="does not answer"):
            line.ask(lambda c: c.get("a"))
        clock.seconds += PAUSES_SECONDS[0]
        with pytest.raises(MirrorDown, match="does not answer"):
            line.ask(lambda c: c.get("a"))
    with pytest.raises(MirrorDown, match="left alone"):
        line.ask(lambda c: c.get("a"))
    clock.seconds += PAUSES_SECONDS[1]
    assert line.ask(lambda c: c.get("a")) is None, "it came back empty"
    line.close()


def test_a_mirror_works_again_after_a_restart_that_forgot_the_scripts(own_server: RedisServer) -> None:
    mirror = Mirror(Settings(redis_url=own_server.url()))
    assert mirror.take_slot("order.close", "a", 1, 2, 1)
    own_server.restart()
    assert mirror.take_slot("order.close", "a", 1, 2, 1)
    mirror.close()


def test_a_redis_that_accepts_and_never_answers_counts_as_down_when_its_time_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hang_up = threading.Timer(5, mute.close)  # ends the test if we would wait for ever
        hang_up.start()
        line = line_to(f"redis://127.0.0.1:{mute.getsockname()[1]}", Monotonic(), redis_timeout_seconds=0.05)
        with pytest.raises(MirrorDown, match=r"(?i)timeout"):
            line.ask(lambda c: c.ping())
        hang_up.cancel()
        line.close()


# URLs


@pytest.mark.parametrize(
    ("url", "connects_to"),
    [
        ("redis://cache:6380/2", {"host": "cache", "port": 6380, "db": 2}),
        ("redis://:secret@cache", {"host": "cache", "password": "secret"}),
        ("redis://jobs:se%40cret@cache", {"username": "jobs", "password": "se@cret"}),
        ("rediss://cache", {"host": "cache"}),
        ("unix:///run/redis.sock?db=3", {"path": "/run/redis.sock", "db": 3}),
    ],
)
def test_a_url_says_where_redis_is(url: str, connects_to: dict[str, Any]) -> None:
    given = make(Settings(redis_url=url, redis_timeout_seconds=0.5)).connection_pool.connection_kwargs
    assert {name: given.get(name) for name in connects_to} == connects_to
    assert (given["socket_timeout"], given["socket_connect_timeout"]) == (0.5, 0.5)
    assert given["decode_responses"] is True


@pytest.mark.parametrize(
    ("url", "nodes", "service", "connects_to"),
    [
        ("sentinel://a:26379/main", [("a", 26379)], "main", {"db": 0, "password": None}),
        ("sentinel://a:1,b:2,c:3/main/4", [("a", 1), ("b", 2), ("c", 3)], "main", {"db": 4}),
        ("sentinel://:se%40cret@a:1,b:2/main/0", [("a", 1), ("b", 2)], "main", {"password": "se@cret"}),
        ("sentinel://jobs:secret@a:1/main", [("a", 1)], "main", {"username": "jobs", "password": "secret"}),
    ],
)
def test_a_sentinel_url_names_the_sentinels_the_service_and_the_database(
    url: str, nodes: list[tuple[str, int]], service: str, connects_to: dict[str, Any]
) -> None:
    pool = make(Settings(redis_url=url, redis_timeout_seconds=0.5)).connection_pool
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(kwargs["host"], kwargs["port"]) for kwargs in asked] == nodes
    assert {kwargs["socket_timeout"] for kwargs in asked} == {0.5}
    assert pool.service_name == service
    assert {name: pool.connection_kwargs.get(name) for name in connects_to} == connects_to


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
    pytest.param("sentinel://a:1/main/x", "sentinel://host:26379", id="sentinel-database-no-number"),
]


@pytest.mark.parametrize(("url", "says"), BAD_URLS)
def test_a_bad_url_is_refused_before_anything_connects(url: str, says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=rf"DELAYTASKS\['REDIS_URL'\].*{says}"):
        make(Settings(redis_url=url))


def test_a_bad_url_of_a_cluster_is_refused_as_clearly() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"DELAYTASKS\['REDIS_URL'\].*redis://"):
        make(Settings(redis_url="http://cache", redis_cluster=True))


def test_a_cluster_that_does_not_answer_from_the_beginning_is_down_like_any_other() -> None:
    mirror = Mirror(Settings(redis_url=f"redis://127.0.0.1:{free_port()}", redis_cluster=True))
    with pytest.raises(MirrorDown):
        mirror.due_count()
    assert mirror.down
    assert mirror.add([Entry(1, "order.close", 1)]) == 0


def test_each_connection_is_counted_and_leads_to_the_database_of_the_url(redis_server) -> None:
    mirror = Mirror(Settings(redis_url=redis_server.url(3)))
    assert mirror.connected == 0
    try:
        assert mirror._line.ask(lambda client: client.client_info())["db"] == 3
        mirror.due_count()
        assert mirror.connected == 1
        with redis_server.client() as client:
            client.client_kill_filter(_type="normal")
        mirror.due_count()
        assert mirror.connected == 2
    finally:
        mirror.close()


# One mirror per process


def test_no_url_is_no_mirror(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": None}
    assert mirrors.connect() is None


def test_there_is_one_mirror_for_the_settings_in_force(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/1"}
    first = mirrors.connect()
    assert mirrors.connect() is first
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/1", "PREFIX": "another"}
    second = mirrors.connect()
    assert second is not first
    assert second.keys.prefix == "another"


def test_each_database_has_a_mirror_of_its_own_since_their_ids_may_be_the_same(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/1"}
    first, second = mirrors.connect("default"), mirrors.connect("archive")
    assert first is not second
    assert not {first.keys.due(b) for b in range(4)} & {second.keys.due(b) for b in range(4)}


def test_a_mirror_is_rebuilt_for_every_setting_that_it_reads(settings) -> None:
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/2", "PROMOTE_LIMIT": 10}
    mirrors.connect()
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/2", "PROMOTE_LIMIT": 20}
    assert mirrors.connect().settings.promote_limit == 20
