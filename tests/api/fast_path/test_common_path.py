"""What FastPath asks the database and Redis about a caller, and what it answers if a queue is full."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db.backends.utils import CursorWrapper
from redis.connection import Connection

from delaytasks.api.access import throttling, token_cache
from delaytasks.api.access.token_cache import TokenCache
from delaytasks.api.batching import batchers
from delaytasks.api.models import Token
from delaytasks.models import Job
from delaytasks.monitoring.caching import shared_cache
from tests.support import asgi_client

REQUESTS = 60


@pytest.fixture(autouse=True)
def _shared(settings: Any, redis_server: Any, rest_topics: None) -> Iterator[None]:
    """Django's default cache is in Redis."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": redis_server.url()}
    }
    throttling._breaker.reset()
    asgi_client.clear_caches()
    yield
    cache.clear()
    shared_cache._redis().connection_pool.disconnect()


def add(secret: str, key: str) -> Any:
    command = {"command": "add", "topic": "mail.send", "id": key, "delay": 60, "TTR": 60, "body": {}}
    headers = {"Authorization": f"Bearer {secret}"}
    return asgi_client.request("POST", "/api/queue/", json.dumps(command).encode(), "application/json", headers)


def test_most_requests_ask_neither_the_database_nor_redis_about_their_caller(
    make_token: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = make_token(topics={"mail.*": "produce"}, rate_per_minute=6000)
    add(secret, "first")
    statements: list[str] = []
    trips: list[int] = []
    execute, send = CursorWrapper.execute, Connection.send_packed_command

    def record_sql(self: CursorWrapper, sql: Any, *args: Any) -> Any:
        statements.append(str(sql))
        return execute(self, sql, *args)

    def record_trip(*args: Any, **kwargs: Any) -> Any:
        trips.append(1)
        return send(*args, **kwargs)

    monkeypatch.setattr(CursorWrapper, "execute", record_sql)
    monkeypatch.setattr(Connection, "send_packed_command", record_trip)
    for number in range(REQUESTS):
        assert add(secret, f"k{number}").json()["success"]
    assert statements, "the jobs are stored"
    assert not [sql for sql in statements if "delaytasks_api" in sql or "count(*)" in sql.lower()]
    assert len(trips) <= REQUESTS / 5, "a portion of ten requests is counted at once"


def test_a_token_revoked_by_another_process_is_refused_at_the_next_counted_request(
    make_token: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = make_token(topics={"mail.*": "produce"}, rate_per_minute=600)  # each request is counted
    assert add(secret, "before").json()["success"]
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "answers", TokenCache())  # that of the other process
        Token.objects.update(revoked=True)
    assert add(secret, "after").status_code == 401
    assert Job.objects.get().key == "before"


def test_a_full_queue_is_answered_with_503_and_when_to_retry(
    make_token: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = make_token(topics={"mail.*": "produce"})
    monkeypatch.setattr(batchers, "MAX_QUEUED_BYTES", 10)
    answer = add(secret, "k")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert (answer.json()["success"], answer.json()["id"]) == (False, "k")
    assert not Job.objects.exists()
    monkeypatch.undo()
    assert add(secret, "k").json()["success"]
