"""Tokens that are kept in the process for a moment: what that saves, and how long a revoked token may live."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis.connection import Connection

from delaytasks.api.access import throttling, token_cache
from delaytasks.api.access.token_cache import KEPT_SECONDS, MAX_KNOWN, MAX_UNKNOWN, UNKNOWN_SECONDS, TokenCache
from delaytasks.api.models import Grant, ServiceAccount, Token
from delaytasks.circuit_breaker import CircuitBreaker

pytestmark = pytest.mark.urls("tests.api.urls_for_permissions")


class Monotonic:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    """The clock of a new cache, which is that of the process."""
    clock = Monotonic()
    monkeypatch.setattr(token_cache, "answers", TokenCache(clock))
    return clock


@pytest.fixture
def shared(settings: Any, redis_server: Any) -> Iterator[None]:
    """Django's default cache is in Redis."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": redis_server.url()}
    }
    throttling._breaker.reset()
    yield
    cache.clear()
    cache._cache.get_client(None, write=True).connection_pool.disconnect()


def queries(client: Any) -> int:
    """Return the number of SQL statements of a request."""
    with CaptureQueriesContext(connection) as captured:
        client.get("/may/consume/order.close/")
    return len(captured)


def status(client: Any) -> int:
    return int(client.get("/may/consume/order.close/").status_code)


def execute(sql: str) -> None:
    """Change something in a way that tells no process."""
    with connection.cursor() as cursor:
        cursor.execute(sql)


def in_another_process(monkeypatch: pytest.MonkeyPatch, do: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "answers", TokenCache())
        do()


# What it saves


def test_the_common_path_costs_no_query_and_one_trip_to_redis(
    make_token: Any, api: Any, shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(make_token())
    for _ in range(2):
        client.get("/may/consume/order.close/")
    trips, send = [], Connection.send_packed_command
    monkeypatch.setattr(Connection, "send_packed_command", lambda *args, **kw: trips.append(1) or send(*args, **kw))
    assert queries(client) == 0
    assert len(trips) == 1


def test_an_unknown_token_costs_one_query_in_a_second(make_token: Any, api: Any, monotonic: Monotonic) -> None:
    client = api("abcdefgh." + "x" * 32)
    token_queries = [queries(client) for _ in range(3)]
    assert token_queries[1:] == [token_queries[0] - 1] * 2
    monotonic.now += UNKNOWN_SECONDS
    assert queries(client) == token_queries[0]


def test_the_cache_is_bounded(monotonic: Monotonic) -> None:
    answers = TokenCache(monotonic)
    for number in range(MAX_KNOWN + MAX_UNKNOWN):
        answers.ask(f"known {number}", lambda secret: (secret, []))
        answers.ask(f"unknown {number}", lambda secret: (None, []))
    assert len(answers) == MAX_KNOWN + MAX_UNKNOWN


def test_unknown_tokens_do_not_displace_known_ones(monotonic: Monotonic) -> None:
    answers = TokenCache(monotonic)
    answers.ask("known", lambda secret: ("token", []))
    for number in range(MAX_KNOWN):
        answers.ask(f"unknown {number}", lambda secret: (None, []))
    assert answers.get("known")


def test_secrets_are_not_kept() -> None:
    answers = TokenCache()
    answers.ask("abcdefgh.secret", lambda secret: (None, []))
    assert "secret" not in repr(vars(answers))


# How long a revoked token lives


CHANGES = {
    "revoked": lambda: Token.objects.update(revoked=True),
    "revoked by save": lambda: [setattr(token, "revoked", True) or token.save() for token in Token.objects.all()],
    "deleted": lambda: Token.objects.all().delete(),
    "account inactive": lambda: ServiceAccount.objects.update(active=False),
    "account deleted": lambda: ServiceAccount.objects.all().delete(),
    "grant deleted": lambda: Grant.objects.all().delete(),
    "grant narrowed": lambda: Grant.objects.update(consume=False, manage=True),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_change_in_this_process_applies_to_the_next_request(how: str, make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.close": "consume"}))
    assert [status(client) for _ in range(3)] == [200] * 3
    CHANGES[how]()
    assert status(client) in (401, 403)


@pytest.mark.parametrize("how", CHANGES)
def test_a_change_in_another_process_applies_to_the_next_request(
    how: str, make_token: Any, api: Any, shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(make_token(topics={"order.close": "consume"}))
    assert [status(client) for _ in range(3)] == [200] * 3
    in_another_process(monkeypatch, CHANGES[how])
    assert status(client) in (401, 403)


def test_a_change_that_no_process_is_told_applies_after_five_seconds(
    make_token: Any, api: Any, monotonic: Monotonic
) -> None:
    client = api(make_token())
    assert [status(client) for _ in range(3)] == [200] * 3
    execute("UPDATE delaytasks_api_token SET revoked = true")
    monotonic.now += KEPT_SECONDS - 0.001
    assert status(client) == 200  # the bound that the documents give
    monotonic.now += 0.001
    assert status(client) == 401


def test_use_does_not_prolong_an_answer(make_token: Any, api: Any, monotonic: Monotonic) -> None:
    client = api(make_token())
    status(client)
    execute("UPDATE delaytasks_api_token SET revoked = true")
    statuses = []
    for _ in range(12):
        monotonic.now += KEPT_SECONDS / 10
        statuses.append(status(client))
    assert statuses[-2:] == [401, 401]


def test_the_expiry_is_checked_on_each_use(make_token: Any, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = api(make_token(expiry_date=timezone.now() + timedelta(hours=1)))
    assert [status(client) for _ in range(3)] == [200] * 3
    later = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: later)
    assert status(client) == 401


def test_an_answer_that_is_older_than_a_change_is_not_kept(make_token: Any, monotonic: Monotonic) -> None:
    """A thread reads the token; another one revokes it before the first one stores its answer."""
    answers = TokenCache(monotonic)

    def revoked_meanwhile(secret: str) -> tuple[str, list[Any]]:
        answers.clear()
        return "token", []

    answers.ask("secret", revoked_meanwhile)
    assert answers.get("secret") is None


def test_a_revocation_that_is_rolled_back_is_harmless(make_token: Any, api: Any) -> None:
    from django.db import transaction

    client = api(make_token())
    with transaction.atomic():
        Token.objects.update(revoked=True)
        transaction.set_rollback(True)
    assert status(client) == 200


def test_a_revocation_without_a_cache_is_logged_and_done(
    make_token: Any, api: Any, settings: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(make_token())
    status(client)
    monkeypatch.setattr(throttling, "_breaker", CircuitBreaker(Exception, 0.0))
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache",
                                   "LOCATION": "redis://127.0.0.1:1"}}  # fmt: skip
    Token.objects.update(revoked=True)
    assert "notice a changed token within 5 s" in caplog.text
    assert status(client) == 401


def test_a_writer_to_redis_cannot_keep_a_revoked_token_alive(
    make_token: Any, api: Any, shared: None, redis_server: Any, monotonic: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(make_token())
    assert [status(client) for _ in range(3)] == [200] * 3
    with redis_server.client() as redis:
        (mark,) = redis.keys("*tokens:change*")
        before = redis.get(mark)
        in_another_process(monkeypatch, CHANGES["revoked"])
        redis.set(mark, before)
        assert status(client) == 200
        redis.set(mark, b"no integer")
        monotonic.now += KEPT_SECONDS
        assert status(client) == 401
