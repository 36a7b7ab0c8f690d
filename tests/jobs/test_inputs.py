"""Validation of arguments: bad input raises a clear exception, and nothing is written."""

import datetime as dt
import json
import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from delaytasks import clock, handler, handlers, schedule, schedule_many, validators
from delaytasks.exceptions import (
    BadBody,
    BadDelay,
    BadInput,
    BadKey,
    BadTopic,
    BadTTR,
    BodyTooLarge,
    NaiveDatetime,
    UnknownTopic,
)
from delaytasks.jobs.inputs import to_body, to_new_job, to_when
from delaytasks.models import Job, JobEvent
from delaytasks.validators import check_key

TOPIC = "test.promise"
HUGE = 10**5000  # more digits than Python converts to text
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 a refused value
AWARE = datetime(2030, 1, 1, tzinfo=UTC)


class NoOffset(tzinfo):
    """A time zone without an offset: the datetime counts as naive."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None


def nested(depth: int) -> list:
    body: list = []
    for _ in range(depth):
        body = [body]
    return body


def in_deeper_stack(frames: int, call: Any) -> Any:
    return call() if frames == 0 else in_deeper_stack(frames - 1, call)


def message(error: pytest.ExceptionInfo) -> str:
    """Return the message of a refusal. It can be printed anywhere, whatever the input was."""
    text = str(error.value)
    text.encode()
    assert "\x00" not in text
    assert len(text) < 600
    return text


# Keys


@pytest.mark.parametrize(
    "key",
    ["order:1042", " order ", "x", "x" * 255, "заказ:7", "é" * 255, "注文 1", "👩‍👩‍👧:1", "a'b\"c\\d;--", "*?[]{}:%_"],
    ids=lambda key: ascii(key[:12]),
)
def test_a_printable_key_is_accepted_unchanged(key: str) -> None:
    assert check_key(key) == key


BAD_KEYS = [
    pytest.param("", "''", id="empty"),
    pytest.param("   ", "'   '", id="blank"),
    pytest.param("\u00a0\u2003", "'\\xa0\\u2003'", id="blank-in-unicode"),
    pytest.param("x" * 256, "256 characters", id="256-characters"),
    pytest.param("x" * 1_000_000, "1000000 characters", id="a-million-characters"),
    pytest.param("order\x001042", "'\\x00'", id="nul"),
    pytest.param("order\n1042", "'\\n'", id="newline"),
    pytest.param("order\t1042", "'\\t'", id="tab"),
    pytest.param("order\x1b[31m", "'\\x1b'", id="escape"),
    pytest.param("order\x7f", "'\\x7f'", id="delete"),
    pytest.param("order\x85", "'\\x85'", id="c1-control"),
    pytest.param("order\u2028", "'\\u2028'", id="line-separator"),
    pytest.param("order\ud800", "'\\ud800'", id="lone-surrogate"),
    pytest.param(None, "None", id="none"),
    pytest.param(1042, "1042", id="number"),
    pytest.param(True, "True", id="true"),
    pytest.param(b"order:1042", "b'order:1042'", id="bytes"),
    pytest.param(["order"], "['order']", id="list"),
    pytest.param(HUGE, "key", id="5000-digits"),
]


@pytest.mark.parametrize(("key", "says"), BAD_KEYS)
def test_a_bad_key_is_refused_with_a_message_that_shows_it(key: object, says: str) -> None:
    with pytest.raises(BadKey) as refused:
        check_key(key)
    assert says in message(refused)


# Bodies


@pytest.mark.parametrize(
    "body",
    [
        {"order": 1042},
        [],
        "",
        0,
        -1.5,
        True,
        "\\u0000",
        "\\\\u0000",
        {"\\u0000": ["C:\\users\\u0000"]},
        "\x01\x1f\x7f",
        "é 注文 👩‍👩‍👧 \u2028",
        {"a": [1, {"b": None}]},
        1e308,
        10**4000,
        nested(50),
    ],
    ids=lambda body: ascii(body)[:24],
)
def test_a_json_body_is_read_back_unchanged(body: Any) -> None:
    assert json.loads(to_body(body)) == body


def test_no_body_is_an_empty_dict() -> None:
    assert to_body(None) == "{}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc\\u0é"), inner),
    max_leaves=20,
)  # fmt: skip


@hypothesis_settings(database=None)
@given(JSON)
def test_any_json_value_is_kept(body: Any) -> None:
    assert json.loads(to_body(body)) == ({} if body is None else body)


@hypothesis_settings(database=None, max_examples=500)
@given(st.text('\\\\\\u0000\x00"a/', max_size=12))
def test_a_text_is_refused_if_and_only_if_it_contains_nul(text: str) -> None:
    for body in (text, [text], {text: 1}):
        if "\x00" in text:
            with pytest.raises(BadBody, match="NUL"):
                to_body(body)
        else:
            assert json.loads(to_body(body)) == body


@hypothesis_settings(database=None)
@given(st.text('[]{}"\\a', max_size=40), st.integers(0, 9))
def test_brackets_inside_texts_do_not_count_as_nesting(text: str, depth: int) -> None:
    body = {"a": [text] * 30, text: nested(depth)}
    assert json.loads(to_body(body)) == body


@pytest.mark.parametrize("kind", ["list", "dict", "both"])
def test_at_most_a_hundred_levels_are_accepted(kind: str) -> None:
    def levels(count: int) -> Any:
        body: Any = 1
        for level in range(count):
            as_list = kind == "list" or (kind == "both" and level % 2)
            body = [body] if as_list else {"a": body, "beside": [] if level else 1}
        return body

    assert json.loads(to_body(levels(100))) == levels(100)
    with pytest.raises(BadBody, match="deeper than 100 levels"):
        to_body(levels(101))


def self_containing() -> list:
    body: list = []
    body.append(body)
    return body


BAD_BODIES = [
    pytest.param({"at": AWARE}, "datetime is not JSON serializable", id="datetime"),
    pytest.param(b"order", "bytes is not JSON serializable", id="bytes"),
    pytest.param({1, 2}, "set is not JSON serializable", id="set"),
    pytest.param(object(), "object is not JSON serializable", id="object"),
    pytest.param({(1, 2): 3}, "tuple", id="tuple-as-key"),
    pytest.param(math.nan, "not JSON", id="nan"),
    pytest.param({"a": [math.inf]}, "not JSON", id="inf-inside"),
    pytest.param(-math.inf, "not JSON", id="minus-inf"),
    pytest.param("a\x00b", "NUL", id="nul"),
    pytest.param({"a": [{"b\x00": 1}]}, "NUL", id="nul-in-a-key-inside"),
    pytest.param("\\\x00", "NUL", id="nul-after-a-backslash"),
    pytest.param("\ud800", "surrogates not allowed", id="lone-surrogate"),
    pytest.param({"\udfff": 1}, "surrogates not allowed", id="lone-surrogate-as-key"),
    pytest.param(HUGE, "4300 digits", id="5000-digit-integer"),
    pytest.param([-HUGE], "4300 digits", id="minus-5000-digit-integer-inside"),
    pytest.param(nested(100_000), "not JSON", id="too-deep"),
    pytest.param(self_containing(), "Circular", id="contains-itself"),
]


@pytest.mark.parametrize(("body", "says"), BAD_BODIES)
def test_a_body_that_the_databases_cannot_store_is_refused(body: Any, says: str) -> None:
    with pytest.raises(BadBody) as refused:
        to_body(body)
    assert says in message(refused)


def test_the_deepest_accepted_body_can_be_read_in_a_deeper_stack() -> None:
    def accepted(depth: int) -> bool:
        try:
            to_body(nested(depth))
        except BadBody:
            return False
        return True

    deepest = max(depth for depth in range(10, 1000, 10) if accepted(depth))
    text = to_body(nested(deepest))
    assert in_deeper_stack(400, lambda: json.loads(text)) == nested(deepest)


def test_the_size_limit_of_a_body_is_a_setting_in_bytes(settings) -> None:
    settings.DELAYTASKS = {"MAX_BODY_BYTES": 10}
    assert to_body("12345678") == '"12345678"'
    assert to_body("éééé") == '"éééé"'
    for body in ("123456789", "ééééé"):
        with pytest.raises(BodyTooLarge) as refused:
            to_body(body)
        assert "at most 10 are allowed (MAX_BODY_BYTES)" in message(refused)
        assert re.search(r"has 1[12] bytes", str(refused.value))


def test_the_default_size_limit_is_64_kib(settings) -> None:
    settings.DELAYTASKS = {}
    assert len(to_body("x" * 65_534)) == 65_536
    with pytest.raises(BodyTooLarge, match=r"65,537 bytes.*at most 65,536"):
        to_body("x" * 65_535)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
@pytest.mark.parametrize("body", [1e16, -1.5e300, {"1e+308": [1.7976931348623157e308, '1e+308" 1e+308', "é", 1e-5, 2]}])
def test_the_size_of_a_body_is_that_of_what_postgresql_returns(body: Any) -> None:
    """So that a body that was stored can be scheduled again."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT CAST(CAST(%s AS jsonb) AS text)", [to_body(body)])
        (stored,) = cursor.fetchone()
    size = len(validators.to_body(json.loads(stored), max_bytes=1000).encode())
    assert validators.to_body(body, max_bytes=size) == to_body(body)
    with pytest.raises(BodyTooLarge, match=f"has {size} bytes"):
        validators.to_body(body, max_bytes=size - 1)


# When


def test_a_due_time_becomes_milliseconds_and_a_delay_stays_relative_to_the_databases_clock() -> None:
    assert to_when(None, AWARE + timedelta(microseconds=1)) == (clock.to_ms(AWARE) + 1, None)
    assert to_when(timedelta(minutes=30), None) == (None, 1_800_000)
    assert to_when(0, None) == (None, 0)


@pytest.mark.parametrize(
    "moment",
    [AWARE - timedelta(days=9000), datetime.min.replace(tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)],
    ids=["2005", "year-1", "1900"],
)
def test_a_past_due_time_is_accepted(moment: datetime) -> None:
    assert to_when(None, moment) == (max(clock.to_ms(moment), 0), None)


BAD_TIMES = [
    pytest.param({}, BadDelay, "neither was given", id="neither"),
    pytest.param({"delay": 1, "due_at": AWARE}, BadDelay, "both were given", id="both"),
    pytest.param({"due_at": NAIVE}, NaiveDatetime, "2030-01-01T00:00:00 has no time zone", id="naive"),
    pytest.param(
        {"due_at": AWARE.replace(tzinfo=NoOffset())}, NaiveDatetime, "has no time zone", id="zone-without-an-offset"
    ),
    pytest.param({"due_at": datetime.max.replace(tzinfo=UTC)}, BadDelay, "9999-12-31", id="year-9999"),
    pytest.param({"due_at": dt.date(2030, 1, 1)}, BadDelay, "datetime.date(2030, 1, 1)", id="date"),
    pytest.param({"due_at": "2030-01-01T00:00:00Z"}, BadDelay, "'2030-01-01T00:00:00Z'", id="text"),
    pytest.param({"due_at": 1_893_456_000}, BadDelay, "1893456000", id="unix-time"),
    pytest.param({"due_at": HUGE}, BadDelay, "due_at", id="due-at-5000-digits"),
    pytest.param({"delay": -1}, BadDelay, "delay is -1", id="negative"),
    pytest.param({"delay": timedelta(seconds=-1)}, BadDelay, "timedelta(days=-1", id="negative-timedelta"),
    pytest.param({"delay": math.nan}, BadDelay, "delay is nan", id="nan"),
    pytest.param({"delay": math.inf}, BadDelay, "delay is inf", id="inf"),
    pytest.param({"delay": 10**30}, BadDelay, f"delay is {10**30}", id="overflow"),
    pytest.param({"delay": HUGE}, BadDelay, "delay is", id="5000-digits"),
    pytest.param({"delay": timedelta.max}, BadDelay, "from 0 to 316,224,000 seconds", id="longest-timedelta"),
    pytest.param({"delay": True}, BadDelay, "delay is True", id="true"),
    pytest.param({"delay": "30"}, BadDelay, "delay is '30'", id="delay-as-text"),
]


@pytest.mark.parametrize(("times", "kind", "says"), BAD_TIMES)
def test_a_bad_time_is_refused_and_shown(settings, times: dict[str, Any], kind: type[BadInput], says: str) -> None:
    settings.DELAYTASKS = {}
    with pytest.raises(kind) as refused:
        to_when(times.get("delay"), times.get("due_at"))
    assert type(refused.value) is kind
    assert says in message(refused)


def test_the_longest_delay_is_a_setting(settings) -> None:
    settings.DELAYTASKS = {"MAX_DELAY_SECONDS": 60}
    soon, late = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (30, 90))
    assert to_when(60, None) == (None, 60_000)
    assert to_when(None, soon)[0] == clock.to_ms(soon)
    with pytest.raises(BadDelay, match="from 0 to 60 seconds"):
        to_when(60.001, None)
    with pytest.raises(BadDelay, match=r"more than 60 seconds ahead \(MAX_DELAY_SECONDS\)"):
        to_when(None, late)


# Whole jobs


@pytest.fixture
def known_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_handlers", {})
    handler(TOPIC, ttr=90)(lambda job: None)


def test_a_job_without_a_ttr_has_the_ttr_of_its_topic(known_topic: None) -> None:
    row = to_new_job(TOPIC, key="order:1", delay=1, body={"order": 1})
    assert (row.topic, row.key, row.due_ms, row.delay_ms, row.ttr_ms, row.body) == (
        TOPIC, "order:1", None, 1000, 90_000, '{"order":1}'
    )  # fmt: skip
    assert to_new_job(TOPIC, key="order:1", delay=1, ttr=timedelta(seconds=5)).ttr_ms == 5_000


BAD_JOBS = [
    pytest.param({"topic": "order close"}, BadTopic, "'order close' is not a topic's name", id="topic"),
    pytest.param({"topic": None}, BadTopic, "None", id="no-topic"),
    pytest.param({"topic": "nobody.knows"}, UnknownTopic, f"is unknown.*Known here: {TOPIC}", id="unknown"),
    pytest.param({"key": ""}, BadKey, "key is ''", id="key"),
    pytest.param({"key": "order\x00"}, BadKey, "control character", id="key-with-nul"),
    pytest.param({"delay": None}, BadDelay, "neither was given", id="neither"),
    pytest.param({"due_at": AWARE}, BadDelay, "both were given", id="both"),
    pytest.param({"delay": None, "due_at": NAIVE}, NaiveDatetime, "no time zone", id="naive"),
    pytest.param({"delay": -1}, BadDelay, "delay is -1", id="negative-delay"),
    pytest.param({"delay": math.nan}, BadDelay, "delay is nan", id="nan"),
    pytest.param({"ttr": 0}, BadTTR, "ttr is 0", id="ttr-zero"),
    pytest.param({"ttr": -5}, BadTTR, "ttr is -5", id="ttr-negative"),
    pytest.param({"ttr": math.nan}, BadTTR, "ttr is nan", id="ttr-nan"),
    pytest.param({"ttr": timedelta(days=7, seconds=1)}, BadTTR, "604,800 seconds", id="ttr-over-seven-days"),
    pytest.param({"body": {1, 2}}, BadBody, "not JSON", id="body"),
    pytest.param({"body": "\x00"}, BadBody, "NUL", id="body-with-nul"),
    pytest.param({"body": "x" * 70_000}, BodyTooLarge, "70,002 bytes", id="body-too-large"),
    pytest.param({"on_conflict": "ignore"}, BadInput, "on_conflict is 'ignore'", id="on-conflict"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("wrong", "kind", "says"), BAD_JOBS)
def test_a_bad_job_writes_nothing(known_topic: None, wrong: dict[str, Any], kind: type, says: str) -> None:
    arguments = {"topic": TOPIC, "key": "order:1", "delay": 60} | wrong
    with pytest.raises(kind, match=says) as refused:
        schedule(arguments.pop("topic"), **arguments)
    assert type(refused.value) is kind
    assert (Job.objects.count(), JobEvent.objects.count()) == (0, 0)


@pytest.mark.django_db
@pytest.mark.parametrize(("wrong", "kind", "says"), [p for p in BAD_JOBS if p.id != "on-conflict"])
def test_one_bad_job_among_many_is_named_by_its_position_and_none_is_written(
    known_topic: None, wrong: dict[str, Any], kind: type, says: str
) -> None:
    good = [{"topic": TOPIC, "key": f"order:{n}", "delay": 60} for n in range(3)]
    with pytest.raises(kind, match=f"Item 2: .*{says}"):
        schedule_many([*good[:2], good[2] | wrong])
    assert Job.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("item", "mistake"),
    [
        ({"topik": TOPIC}, "got an unexpected keyword argument 'topik'"),
        ({"key": "a"}, "missing 1 required positional argument: 'topic'"),
        ("topic", "'topic' is not a mapping"),
        (None, "None is not a mapping"),
    ],
    ids=str,
)
def test_an_item_with_wrong_arguments_is_named_by_its_position(known_topic: None, item: Any, mistake: str) -> None:
    expected = rf"^Item 0: {mistake}\. It takes topic, key or subject, delay or due_at, body, ttr, expires, priority\.$"
    with pytest.raises(BadInput, match=expected):
        schedule_many([item])
