"""The mirror on a Redis behind Sentinel: TLS, the passwords of both, and one retry."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import redis

from delaytasks.conf import Settings
from delaytasks.exceptions import MirrorDown
from delaytasks.mirror.redis.index import Mirror
from tests.support.redis_sentinel import SERVICE, SentinelServer, TLSProxy, make_certificate
from tests.support.servers import RedisServer, free_port

PASSWORD, SENTINEL_PASSWORD = "the-master/s", "the-sentinel/s"


class Protected(NamedTuple):
    sentinel: SentinelServer
    sentinel_tls: TLSProxy
    redis_tls: TLSProxy
    certificate: Path

    def url(self, scheme: str = "sentinels", **options: str) -> str:
        port = self.sentinel_tls.port if scheme == "sentinels" else self.sentinel.port
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        return f"{scheme}://:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/{SERVICE}/2?{query}"


class ProtectedRedis(RedisServer):
    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        return super().client(db, password=PASSWORD, **options)


@pytest.fixture(scope="module")
def protected_redis() -> Iterator[ProtectedRedis]:
    with ProtectedRedis(requirepass=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def protected(protected_redis: ProtectedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    """A Redis and its Sentinel, each with a password, reachable with TLS and without."""
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"))
    with (
        TLSProxy(protected_redis.port, certificate, key) as redis_tls,
        SentinelServer(redis_tls.port, password=SENTINEL_PASSWORD, master_password=PASSWORD) as sentinel,
        TLSProxy(sentinel.port, certificate, key) as sentinel_tls,
    ):
        yield Protected(sentinel, sentinel_tls, redis_tls, certificate)


def ask(url: str) -> int:
    mirror = Mirror(Settings(redis_url=url))
    try:
        return mirror._redis.ask(lambda client: client.client_info())["db"]
    finally:
        mirror.close()


def test_sentinel_and_redis_may_have_passwords(protected: Protected) -> None:
    before = protected.redis_tls.tls_connections
    assert ask(protected.url("sentinel", sentinel_password=SENTINEL_PASSWORD)) == 2
    assert protected.redis_tls.tls_connections == before


def test_sentinel_and_redis_may_require_tls(protected: Protected) -> None:
    url = protected.url(sentinel_password=SENTINEL_PASSWORD, ssl_ca_certs=str(protected.certificate))
    before = (protected.sentinel_tls.tls_connections, protected.redis_tls.tls_connections)
    assert ask(url) == 2
    assert protected.sentinel_tls.tls_connections > before[0]
    assert protected.redis_tls.tls_connections > before[1]


@pytest.mark.parametrize("missing", ["sentinel_password", "ssl_ca_certs"])
def test_a_missing_password_or_an_unknown_certificate_means_that_the_mirror_is_down(
    protected: Protected, missing: str
) -> None:
    options = {"sentinel_password": SENTINEL_PASSWORD, "ssl_ca_certs": str(protected.certificate)}
    del options[missing]
    with pytest.raises(MirrorDown):
        ask(protected.url(**options))


def test_an_error_of_sentinels_names_no_password() -> None:
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    url = f"sentinel://:the-master@{hosts}/{SERVICE}/0?sentinel_username=anna&sentinel_password=a,b=c)>"
    with pytest.raises(MirrorDown) as raised:
        ask(url)
    assert "the-master" not in (text := "".join(traceback.format_exception(raised.value)))
    assert "anna" not in text
    assert "b=c" not in text
    assert str(raised.value).count("Connection refused") == 2


def test_a_connection_that_was_cut_is_replaced(protected: Protected, protected_redis: ProtectedRedis) -> None:
    mirror = Mirror(Settings(redis_url=protected.url("sentinel", sentinel_password=SENTINEL_PASSWORD)))
    try:
        mirror.due_count()
        with protected_redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        assert mirror.due_count() == 0
        assert mirror.connection_count == 2
    finally:
        mirror.close()
