"""The test servers behave as the tests need. The message about a missing server says what to do."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support import servers
from tests.support.servers import PostgresServer, RedisServer, ServerMissing, stopped, wait_until


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _choose_binaries_again() -> Iterator[None]:
    yield
    servers.redis_binary.cache_clear()
    servers.postgres_binaries.cache_clear()


def test_a_redis_that_was_stopped_is_empty_at_the_same_url_afterwards(own_redis: RedisServer) -> None:
    client = own_redis.client()
    client.set("k", "1")
    before = own_redis.url()
    with stopped(own_redis), pytest.raises(redis.ConnectionError):
        client.get("k")
    assert client.get("k") is None
    assert own_redis.url() == before
    client.close()


def test_a_redis_with_a_snapshot_has_older_data_after_a_restart(own_redis: RedisServer) -> None:
    with contextlib.closing(own_redis.client()) as client:
        client.set("k", "old")
        own_redis.snapshot()
        client.set("k", "new")
        own_redis.restart()
        assert client.get("k") == "old"


def test_options_replace_the_defaults() -> None:
    with RedisServer(maxmemory_policy="allkeys-lru") as server, contextlib.closing(server.client()) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}


def test_a_redis_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(ServerMissing, match="no-such-option"), RedisServer(no_such_option="1"):
        pass


def test_a_missing_redis_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYTASKS_TEST_REDIS", "/nowhere/redis-server")
    servers.redis_binary.cache_clear()
    with pytest.raises(ServerMissing, match="DELAYTASKS_TEST_REDIS"), RedisServer():
        pass


@pytest.mark.parametrize("chosen", ["/nowhere", ""])
def test_a_missing_postgresql_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("DELAYTASKS_TEST_POSTGRES", chosen)
    monkeypatch.setattr(servers, "wheel_directory", lambda package: None)
    monkeypatch.setattr(servers, "_system_postgres", lambda: None)
    servers.postgres_binaries.cache_clear()
    with pytest.raises(ServerMissing, match=r"requirements-dev\.txt"), PostgresServer():
        pass


def test_postgresql_keeps_its_data_after_a_crash() -> None:
    with PostgresServer(fsync="on", synchronous_commit="on") as server:
        url = server.make_database("shop")
        with server.connect("shop", autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS n")
        server.stop(servers.signal.SIGQUIT)
        server.start()
        with server.connect("shop") as connection:
            assert connection.execute("SELECT n FROM t").fetchone() == (1,)
        assert url.endswith("/shop")


def test_a_failed_wait_names_what_was_awaited() -> None:
    with pytest.raises(AssertionError, match="a train"):
        wait_until(lambda: False, seconds=0.01, what=lambda: "a train")


def test_no_files_are_left_of_a_server_that_was_closed_or_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "make_directory", lambda prefix: Path(tempfile.mkdtemp(prefix=prefix, dir=tmp_path)))
    with RedisServer() as server:
        process = server.process
    with pytest.raises(ServerMissing), RedisServer(no_such_option="1"):
        pass
    monkeypatch.setenv("DELAYTASKS_TEST_POSTGRES", "/nowhere")
    servers.postgres_binaries.cache_clear()
    with pytest.raises(ServerMissing), PostgresServer():
        pass
    assert process is not None
    assert process.poll() is not None
    assert list(tmp_path.iterdir()) == []
