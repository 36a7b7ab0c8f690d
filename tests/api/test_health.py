"""The health check: unauthenticated and fast, whatever is down."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.backends.utils import CursorWrapper

from delaytasks import mirror
from delaytasks.api.views import health
from delaytasks.exceptions import MirrorDown
from tests.api.rest_client import Rest
from tests.support.servers import RedisServer


@pytest.fixture
def anonymous(api: Callable[..., Any]) -> Rest:
    return Rest(api())


@pytest.fixture
def hanging_redis(settings: Any) -> Iterator[None]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": url, "REDIS_TIMEOUT_SECONDS": 30}
        yield
        found = mirror.connect()
        assert found is not None
    found.close()


def test_health_is_ok_without_configured_redis(anonymous: Rest) -> None:
    assert anonymous.get("health/") == {"status": "ok", "database": "up", "mirror": "off"}
    assert anonymous.last.headers["Cache-Control"] == "no-store"


def test_health_is_ok_with_redis(anonymous: Rest, with_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MIRROR_TIMEOUT_SECONDS", 30)
    assert anonymous.get("health/") == {"status": "ok", "database": "up", "mirror": "up"}


def test_health_is_degraded_when_redis_is_down(anonymous: Rest, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": "redis://127.0.0.1:1/0"}
    assert anonymous.get("health/") == {"status": "degraded", "database": "up", "mirror": "down"}


def test_health_is_degraded_when_redis_refuses_writes(
    anonymous: Rest, with_redis: Any, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MIRROR_TIMEOUT_SECONDS", 30)
    with redis_server.full():
        assert anonymous.get("health/") == {"status": "degraded", "database": "up", "mirror": "read_only"}
        after_a_refused_write()
        assert anonymous.get("health/") == {"status": "degraded", "database": "up", "mirror": "read_only"}


def after_a_refused_write() -> None:
    """A process that writes calls Redis no more for a moment."""
    index: Any = mirror.connect()
    with pytest.raises(MirrorDown):
        index._redis.ask(lambda client: client.set("a", 1))


def test_hanging_redis_does_not_delay_the_health_check(anonymous: Rest, hanging_redis: None) -> None:
    began = time.monotonic()
    for _ in range(5):
        assert anonymous.get("health/") == {"status": "degraded", "database": "up", "mirror": "down"}
    assert time.monotonic() - began < 15  # Redis itself is given thirty seconds


def test_redis_is_pinged_at_most_once_a_second(
    anonymous: Rest, with_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = mirror.connect()
    asked = []
    ask = found.refusal
    monkeypatch.setattr(found, "refusal", lambda: asked.append(1) or ask())
    now = time.monotonic()
    monkeypatch.setattr(health.time, "monotonic", lambda: now)
    for _ in range(5):
        anonymous.get("health/")
    assert len(asked) == 1
    now += health.CACHE_SECONDS
    anonymous.get("health/")
    assert len(asked) == 2


def test_health_is_down_without_a_database(anonymous: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(CursorWrapper, "execute", refuse)
        answer = anonymous.client.get("/api/health/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/json")
    assert answer.json() == {"status": "down", "database": "down", "mirror": "off"}


def test_broken_idle_connection_does_not_count_as_database_down(anonymous: Rest) -> None:
    connection.ensure_connection()
    connection.connection.close()
    assert anonymous.get("health/")["database"] == "up"


def test_health_needs_no_token_and_has_no_rate_limit(anonymous: Rest, rest_of: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_RATE_PER_MINUTE": 2}
    for client in (anonymous, rest_of("produce")):
        assert all(client.get("health/")["status"] == "ok" for _ in range(5))


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer", "Basic eDp5", ""])
def test_health_ignores_invalid_tokens(anonymous: Rest, header: str) -> None:
    answer = anonymous.client.request("GET", "/api/health/", Authorization=header)
    assert answer.status_code == 200


def test_health_answers_head_and_refuses_other_methods(anonymous: Rest) -> None:
    assert anonymous.client.request("HEAD", "/api/health/").status_code == 200
    assert anonymous.client.request("POST", "/api/health/").status_code == 405
