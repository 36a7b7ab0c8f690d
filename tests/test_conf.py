"""The DELAYTASKS setting: its defaults, and errors that name the key."""

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields

import pytest
from django.core.exceptions import ImproperlyConfigured

from delaytasks import conf
from delaytasks.conf import Settings, from_dict

NAMES = [field.name.upper() for field in fields(Settings)]
NUMBERS = [field.name.upper() for field in fields(Settings) if field.type in (int, float)]


def test_an_empty_dict_is_the_defaults() -> None:
    assert from_dict({}) == Settings()
    assert Settings().redis_url is None, "Redis is optional"


@pytest.mark.parametrize("name", NAMES)
def test_each_key_is_known_in_capitals(name: str) -> None:
    default = getattr(Settings(), name.lower())
    assert from_dict({name: default}) == Settings()


def test_given_values_replace_the_defaults() -> None:
    config = from_dict({"BUCKETS": 16, "HORIZON_SECONDS": 60, "TOPICS": {"seat.free": {"ttr": 5}}})
    assert (config.buckets, config.horizon_ms, config.topics["seat.free"]["ttr"]) == (16, 60_000, 5)


def test_settings_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().buckets = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("BUKETS", "Did you mean 'BUCKETS'?"),
        ("buckets", "Did you mean 'BUCKETS'?"),
        ("REDIS", "Did you mean 'REDIS_URL'?"),
        ("HORIZON_MS", "Did you mean 'HORIZON_SECONDS'?"),
        ("XYZZY", "Known keys: AHEAD_MS, "),
        (7, "Known keys: AHEAD_MS, "),
    ],
)
def test_an_unknown_key_is_refused_by_name_with_a_hint(key: object, hint: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        from_dict({key: 1})
    assert f"unknown key {key!r}" in str(refused.value)
    assert hint in str(refused.value)


POSITIVE = [name for name in NUMBERS if name not in ("LINGER_MS", "AHEAD_MS", "METRICS_PORT")]


@pytest.mark.parametrize("value", [0, -1, math.nan], ids=["zero", "negative", "nan"])
@pytest.mark.parametrize("name", POSITIVE)
def test_a_number_that_must_be_positive_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ImproperlyConfigured, match=rf"DELAYTASKS\['{name}'\]"):
        from_dict({name: value})


@pytest.mark.parametrize("name", ["LINGER_MS", "AHEAD_MS", "METRICS_PORT"])
def test_zero_is_allowed_where_it_means_not_at_all(name: str) -> None:
    assert getattr(from_dict({name: 0}), name.lower()) == 0
    with pytest.raises(ImproperlyConfigured, match=rf"DELAYTASKS\['{name}'\]"):
        from_dict({name: -1})


def test_ahead_ms_is_limited() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"DELAYTASKS\['AHEAD_MS'\] must be at most 100"):
        from_dict({"AHEAD_MS": 101})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("BUCKETS", "4", id="text-for-a-number"),
        pytest.param("BUCKETS", None, id="none-for-a-number"),
        pytest.param("BUCKETS", [4], id="list-for-a-number"),
        pytest.param("BUCKETS", 2.5, id="fraction-of-a-bucket"),
        pytest.param("BATCH_MAX", 2.5, id="fraction-of-a-job"),
        pytest.param("REDIS_URL", 6379, id="number-for-a-url"),
        pytest.param("PREFIX", None, id="none-for-a-prefix"),
        pytest.param("BUCKETS", True, id="true-for-a-number"),
        pytest.param("REDIS_TIMEOUT_SECONDS", True, id="true-for-seconds"),
        pytest.param("MOVER_THREAD", 1, id="number-for-a-boolean"),
        pytest.param("TOPICS", ["order.close"], id="list-for-a-dict"),
        pytest.param("DATABASES", "default", id="text-for-a-list"),
        pytest.param("REDACT", "password", id="a-word-for-a-list"),
        pytest.param("REDACT", ["password", ""], id="nothing-for-a-word"),
        pytest.param("REDACT", ["_"], id="a-separator-for-a-word"),
        pytest.param("REDACT", [7], id="number-for-a-word"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(name: str, value: object) -> None:
    with pytest.raises(ImproperlyConfigured, match=name):
        from_dict({name: value})


@pytest.mark.parametrize("setting", [None, [], [("BUCKETS", 4)], "BUCKETS=4", 7], ids=str)
def test_a_setting_that_is_not_a_dict_is_refused(settings, setting: object) -> None:
    settings.DELAYTASKS = setting
    with pytest.raises(ImproperlyConfigured, match="DELAYTASKS"):
        conf.get()


def test_promote_limit_must_fit_onto_luas_stack() -> None:
    assert from_dict({"PROMOTE_LIMIT": 3000}).promote_limit == 3000
    with pytest.raises(ImproperlyConfigured, match=r"PROMOTE_LIMIT.*at most 3000"):
        from_dict({"PROMOTE_LIMIT": 3001})


def test_settings_are_cached_until_a_test_overrides_them(settings) -> None:
    assert conf.get() is conf.get()
    settings.DELAYTASKS = {"BUCKETS": 9}
    assert conf.get().buckets == 9
    settings.UNRELATED = 1
    assert conf.get().buckets == 9


@pytest.fixture
def empty_cache() -> Iterator[None]:
    """An empty cache before and after the test: Django sends no setting_changed when a setting is deleted."""
    conf.get.cache_clear()
    yield
    conf.get.cache_clear()


def test_without_the_setting_the_defaults_apply(settings, empty_cache) -> None:
    del settings.DELAYTASKS
    assert conf.get() == Settings()
