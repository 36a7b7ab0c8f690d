"""Health: for anybody, at once, whatever is down."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.backends.utils import CursorWrapper

from delaytasks import mirror
from delaytasks.api import health
from tests.api.rest_client import Rest


@pytest.fixture
def anybody(api: Callable[..., Any]) -> Rest:
    return Rest(api())


@pytest.fixture
def hanging_redis(settings: Any) -> Iterator[None]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": url, "REDIS_TIMEOUT_SECONDS": 30}
        yield
        found = mirror.connect()
        assert found is not None
    found.close()


def test_without_redis_all_is_well(anybody: Rest) -> None:
    assert anybody.get("health/") == {"status": "ok", "database": "up", "mirror": "off"}
    assert anybody.last.headers["Cache-Control"] == "no-store"


def test_with_redis_all_is_well(anybody: Rest, with_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 30)
    assert anybody.get("health/") == {"status": "ok", "database": "up", "mirror": "up"}


def test_a_redis_that_is_gone_makes_it_slower_and_not_wrong(anybody: Rest, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": "redis://127.0.0.1:1/0"}
    assert anybody.get("health/") == {"status": "degraded", "database": "up", "mirror": "down"}


def test_a_redis_that_hangs_keeps_nobody_waiting(anybody: Rest, hanging_redis: None) -> None:
    began = time.monotonic()
    for _ in range(5):
        assert anybody.get("health/") == {"status": "degraded", "database": "up", "mirror": "down"}
    assert time.monotonic() - began < 15  # Redis itself is given thirty seconds


def test_however_many_ask_redis_is_asked_once_a_second(
    anybody: Rest, with_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = mirror.connect()
    asked = []
    ask = found.due_count
    monkeypatch.setattr(found, "due_count", lambda: asked.append(1) or ask())
    now = time.monotonic()
    monkeypatch.setattr(health.time, "monotonic", lambda: now)
    for _ in range(5):
        anybody.get("health/")
    assert len(asked) == 1
    now += health.FRESH_SECONDS
    anybody.get("health/")
    assert len(asked) == 2


def test_without_a_database_it_is_down(anybody: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(CursorWrapper, "execute", refuse)
        answer = anybody.client.get("/api/health/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/json")
    assert answer.json() == {"status": "down", "database": "down", "mirror": "off"}


def test_a_connection_that_broke_while_nobody_used_it_is_not_a_database_that_is_down(anybody: Rest) -> None:
    connection.ensure_connection()
    connection.connection.close()
    assert anybody.get("health/")["database"] == "up"


def test_anybody_may_ask_and_as_often_as_they_like(anybody: Rest, rest_of: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_RATE_PER_MINUTE": 2}
    for client in (anybody, rest_of("produce")):
        assert all(client.get("health/")["status"] == "ok" for _ in range(5))


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer", "Basic eDp5", ""])
def test_a_token_that_is_not_accepted_is_not_looked_at(anybody: Rest, header: str) -> None:
    answer = anybody.client.request("GET", "/api/health/", Authorization=header)
    assert answer.status_code == 200


def test_it_says_no_more_to_head_and_refuses_the_rest(anybody: Rest) -> None:
    assert anybody.client.request("HEAD", "/api/health/").status_code == 200
    assert anybody.client.request("POST", "/api/health/").status_code == 405
