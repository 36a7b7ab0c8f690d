"""Limits per caller: requests per minute, bytes per request, and JSON."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.core.cache.backends.locmem import LocMemCache
from django.core.handlers.asgi import ASGIRequest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from delaytasks.api import exceptions
from delaytasks.api.access import throttling
from delaytasks.api.access.throttling import WINDOW_SECONDS
from delaytasks.circuit_breaker import CircuitBreaker
from tests.api.urls_for_permissions import Probe

pytestmark = pytest.mark.urls("tests.api.urls_for_permissions")
MINUTE = 1_893_456_000  # 2030-01-01: a window begins


class Brittle(LocMemCache):
    """A cache whose server is down."""

    asked = 0

    def incr(self, *args: Any, **kwargs: Any) -> int:
        type(self).asked += 1
        raise ConnectionError("Connection refused")


def caches(backend: str) -> dict[str, Any]:
    return {"default": {"BACKEND": backend}}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """clock(10) sets the time to 10 s after the start of a window; initially 0 s."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(throttling, "now", lambda: MINUTE + seconds)

    set_to(0)
    throttling._breaker.reset()
    return set_to


# Requests per minute


def statuses(client: Any, times: int) -> list[int]:
    return [client.get("/may/read/order.close/").status_code for _ in range(times)]


def test_request_above_the_limit_gets_retry_after(make_token: Any, api: Any, clock: Any) -> None:
    client = api(make_token(rate_per_minute=3))
    clock(20)
    assert statuses(client, 3) == [200] * 3
    answer = client.get("/probe/")
    assert answer.status_code == 429
    assert answer.json()["type"].endswith("too-many-requests")
    wait = int(answer.headers["Retry-After"])
    clock(20 + wait - 1)
    assert statuses(client, 1) == [429]
    clock(20 + wait)
    assert statuses(client, 1) == [200]


def test_rate_limit_window_slides(make_token: Any, api: Any, clock: Any) -> None:
    client = api(make_token(rate_per_minute=10))
    clock(59)
    assert statuses(client, 10) == [200] * 10
    clock(61)  # a hard window would let ten more in at once
    assert statuses(client, 1) == [429]
    clock(90)  # half of the last window is over
    assert statuses(client, 6) == [200] * 5 + [429]


def test_refused_requests_are_not_counted(make_token: Any, api: Any, clock: Any) -> None:
    client = api(make_token(rate_per_minute=2))
    statuses(client, 20)
    clock(91)
    assert statuses(client, 1) == [200]


def test_each_token_has_its_own_count(make_token: Any, api: Any) -> None:
    first, second = api(make_token(rate_per_minute=1)), api(make_token(rate_per_minute=1))
    assert statuses(first, 2) == [200, 429]
    assert statuses(second, 1) == [200]


def test_rate_setting_applies_to_tokens_without_their_own_rate(make_token: Any, api: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_RATE_PER_MINUTE": 1}
    assert statuses(api(make_token()), 2) == [200, 429]
    assert statuses(api(make_token(rate_per_minute=2)), 2) == [200, 200]


def test_each_staff_user_has_their_own_count(staff_api: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_RATE_PER_MINUTE": 1}
    assert statuses(staff_api("delaytasks.view_job"), 2) == [200, 429]
    assert statuses(staff_api("delaytasks.view_job"), 1) == [200]


def test_no_request_is_refused_while_the_cache_is_down(make_token: Any, api: Any, settings: Any, caplog: Any) -> None:
    settings.CACHES = caches(f"{__name__}.Brittle")
    Brittle.asked = 0
    assert statuses(api(make_token(rate_per_minute=1)), 5) == [200] * 5
    assert Brittle.asked == 1  # each question could cost its timeout
    assert caplog.text.count("rates are not limited") == 1


def test_cache_is_tried_again_after_a_pause(make_token: Any, api: Any, settings: Any, monkeypatch: Any) -> None:
    client = api(make_token(rate_per_minute=1))
    monkeypatch.setattr(throttling, "_breaker", CircuitBreaker(Exception, 0.0))
    settings.CACHES = caches(f"{__name__}.Brittle")
    statuses(client, 1)
    settings.CACHES = caches("django.core.cache.backends.locmem.LocMemCache")
    assert statuses(client, 2) == [200, 429]


def test_cache_that_stores_nothing_refuses_no_request(make_token: Any, api: Any, settings: Any) -> None:
    settings.CACHES = caches("django.core.cache.backends.dummy.DummyCache")
    assert statuses(api(make_token(rate_per_minute=1)), 3) == [200] * 3


def test_two_web_processes_share_the_count_in_redis(
    make_token: Any, api: Any, settings: Any, redis_server: Any
) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": redis_server.url()}
    }
    client = api(make_token(rate_per_minute=2))
    assert statuses(client, 3) == [200, 200, 429]
    cache.clear()
    cache._cache.get_client(None, write=True).connection_pool.disconnect()


@hypothesis_settings(deadline=None, max_examples=1000)
@given(
    count=st.integers(0, 9999), last=st.integers(0, 9999), per_minute=st.integers(1, 9999), elapsed=st.floats(0, 59.9)
)
def test_waiting_for_retry_after_is_long_enough(count: int, last: int, per_minute: int, elapsed: float) -> None:
    count, last = min(count, per_minute), min(last, per_minute)
    if count + 1 + last * (1 - elapsed / WINDOW_SECONDS) <= per_minute:
        return
    told = exceptions._throttled(throttling._wait_seconds(count, last, per_minute, elapsed))
    at = elapsed + int(told.headers["Retry-After"])
    assert at <= 2 * WINDOW_SECONDS + 1
    if at >= WINDOW_SECONDS:
        count, last, at = 0, count, min(at - WINDOW_SECONDS, WINDOW_SECONDS)
    assert count + 1 + last * (1 - at / WINDOW_SECONDS) <= per_minute + throttling.ROUNDING


# Bytes of one request


def body_of(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


def test_body_up_to_the_limit_is_accepted_and_one_byte_more_is_refused(make_token: Any, api: Any) -> None:
    client = api(make_token(max_request_bytes=1000))
    assert client.post("/probe/", body_of(1000)).status_code == 200
    answer = client.post("/probe/", body_of(1001))
    assert answer.status_code == 413
    assert answer.json()["type"].endswith("request-too-large")
    assert "1,000" in answer.json()["detail"]


def test_body_may_exceed_djangos_own_limit(make_token: Any, api: Any, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert api(make_token()).post("/probe/", body_of(150_000)).status_code == 200


def test_size_setting_applies_to_staff_and_tokens_without_their_own_limit(
    make_token: Any, api: Any, staff_api: Any, settings: Any
) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_MAX_REQUEST_BYTES": 100}
    assert api(make_token()).post("/probe/", body_of(101)).status_code == 413
    assert api(make_token(max_request_bytes=200)).post("/probe/", body_of(101)).status_code == 200
    assert staff_api().post("/probe/", body_of(101)).status_code == 413


class Counted(io.BytesIO):
    """A body that counts the bytes read."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def posted(secret: str, body: io.BytesIO, **headers: str) -> Any:
    """Return the view's response to an ASGI request, without Content-Length unless given."""
    sent = {"content-type": "application/json", "authorization": f"Bearer {secret}"} | headers
    scope = {
        "type": "http", "method": "POST", "path": "/probe/", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }  # fmt: skip
    answer = Probe.as_view()(ASGIRequest(scope, body))
    answer.render()
    return answer


def test_body_without_content_length_is_counted_while_reading(make_token: Any) -> None:
    body = Counted(body_of(100_000))
    answer = posted(make_token(max_request_bytes=1000), body)
    assert answer.status_code == 413
    assert body.taken == 1001


def test_body_without_content_length_is_accepted(make_token: Any) -> None:
    answer = posted(make_token(max_request_bytes=1000), Counted(b'{"a": 1}'))
    assert answer.data == {"read": {"a": 1}}


def test_body_with_too_large_content_length_is_not_read(make_token: Any) -> None:
    body = Counted(body_of(100_000))
    answer = posted(make_token(max_request_bytes=1000), body, **{"content-length": "100000"})
    assert answer.status_code == 413
    assert body.taken == 0


def test_body_of_an_unauthenticated_request_is_not_read(make_token: Any) -> None:
    body = Counted(body_of(1000))
    assert posted("abcdefgh.nonsense", body).status_code == 401
    assert body.taken == 0


def test_missing_body_is_an_empty_object(make_token: Any, api: Any) -> None:
    client = api(make_token())
    for content_type in ("application/json", "text/plain", ""):
        answer = client.post("/probe/", b"", **{"Content-Type": content_type})
        assert (answer.status_code, answer.json()) == (200, {"read": {}})


# JSON


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"{'a': 1}", b'{"a": 1,}', b"nonsense", b'{"a": NaN}', b'{"a": Infinity}', b"-Infinity", b"1e999",
        b"9" * 5000, b'"\xff\xfe"', b'"\xed\xa0\x80"', b'{"a": "\\ud800"}', b'{"\\uDC00": 1}', b"\xef\xbb\xbf{}",
        b'"' + b"\x00" + b'"', b"[" * 20_000, b'{"a":' * 20_000, b" ",
    ],
    ids=repr,
)  # fmt: skip
def test_invalid_json_is_refused_with_a_reason(body: bytes, make_token: Any, api: Any) -> None:
    answer = api(make_token()).post("/probe/", body)
    assert answer.status_code == 400
    assert answer.json()["type"].endswith("malformed-request")
    assert len(answer.json()["detail"]) < 300


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'"\\ud83d\\ude00"', "😀"),
        ('"Größe €"'.encode(), "Größe €"),
        (b"null", None),
        (b"12345678901234567890", 12345678901234567890),
        (b"-0.5e-3", -0.0005),
    ],
)
def test_valid_json_is_parsed(body: bytes, read: Any, make_token: Any, api: Any) -> None:
    assert api(make_token()).post("/probe/", body).json() == {"read": read}


def test_declared_charset_is_ignored(make_token: Any, api: Any) -> None:
    answer = api(make_token()).post("/probe/", '"ü"'.encode(), **{"Content-Type": "application/json; charset=latin-1"})
    assert answer.json() == {"read": "ü"}
