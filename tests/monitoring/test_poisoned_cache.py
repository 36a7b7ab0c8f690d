"""Attack: whoever can write to Redis tries to run code in the web process, or to break its pages."""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

import delaytasks
from delaytasks.api.access import throttling
from delaytasks.monitoring import cache as stats_cache
from delaytasks.monitoring import daily_stats, forecast, health, last_hour


class Payload:
    """Its pickle runs a program that creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def redis(settings: Any, redis_server: Any) -> Iterator[Any]:
    """The client of an attacker; Django's default cache is the same Redis."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": redis_server.url()}
    }
    stats_cache._breaker.reset()
    throttling._breaker.reset()
    with redis_server.client() as client:
        yield client
    cache.clear()
    cache._cache.get_client(None, write=True).connection_pool.disconnect()


def poison(redis: Any, value: bytes) -> int:
    """Overwrite every text and integer that the process has cached."""
    keys = [key for key in redis.keys("*") if redis.type(key) == "string"]
    for key in keys:
        redis.set(key, value)
    return len(keys)


READERS: list[Callable[[], Any]] = [
    lambda: throttling.count_request("token:abcdefgh", 1000),
    lambda: health.health("default"),
    lambda: daily_stats.topic_histories("default"),
    lambda: last_hour.last_hour("default"),
    lambda: forecast.minutes("default", None),
    lambda: forecast.topic_statuses("default", None),
]


@pytest.mark.django_db
@pytest.mark.parametrize("read", READERS, ids=["rate", "health", "days", "hour", "minutes", "topics"])
def test_a_pickle_in_the_cache_is_never_loaded(read: Any, redis: Any, tmp_path: Path) -> None:
    read()
    assert poison(redis, pickle.dumps(Payload(tmp_path / "owned")))
    read()
    assert not (tmp_path / "owned").exists()


@pytest.mark.django_db
def test_the_count_of_the_last_minute_is_never_unpickled(redis: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The attacker needs no key of the process: the prefix of a token and the minute give the key."""
    monkeypatch.setattr(throttling, "now", lambda: 6000.0)
    redis.set(":1:delaytasks:rate:token:abcdefgh:99", pickle.dumps(Payload(tmp_path / "owned")))
    assert throttling.count_request("token:abcdefgh", 1000) is None
    assert not (tmp_path / "owned").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("read", READERS[1:], ids=["health", "days", "hour", "minutes", "topics"])
@pytest.mark.parametrize(
    "value",
    [b"\xff\xfe", b"{", b"[]", b'["x", 0, 0]', b"[1e300, 0, [[[[]]]]]", b'[1e300, 0, "<b>"]', b"[" * 100_000, b"7"],
    ids=range(8),
)  # fmt: skip
def test_a_foreign_value_in_the_cache_is_ignored(read: Any, value: bytes, redis: Any) -> None:
    before = read()
    poison(redis, value)
    assert type(read()) is type(before)


@pytest.mark.django_db
def test_a_cached_value_with_a_part_of_another_type_is_ignored(redis: Any) -> None:
    health.health("default")
    (key,) = redis.keys("*health*")
    stored = json.loads(redis.get(key))
    stored[2][2] = "sideways"  # the state of the mirror
    redis.set(key, json.dumps(stored))
    assert health.health("default").mirror == "off"


def test_no_module_of_the_product_imports_pickle() -> None:
    sources = Path(delaytasks.__file__).parent.rglob("*.py")
    assert [source for source in sources if "import pickle" in source.read_text()] == []
