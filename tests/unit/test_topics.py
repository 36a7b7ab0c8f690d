"""The registry: which function handles which topic, under which terms; and what may not be asked."""

import functools
import math
import re
from datetime import timedelta
from typing import Any

import pytest

from delaytasks import Retry, Snooze, handler, topics
from delaytasks.backoff import Backoff
from delaytasks.exceptions import BadDelay, BadInput, BadTopic, BadTTR, DelaytasksError
from delaytasks.topics import check_topic, declared_problems, to_delay_ms, to_ttr_ms

WEEK_SECONDS = 7 * 86_400
YEAR_SECONDS = 366 * 86_400
HUGE = 10**5000  # more digits than Python turns into text


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_handlers", {})
    monkeypatch.setattr(topics, "clashes", [])


def close(job: object) -> None: ...


def remind(job: object) -> None: ...


# Names


@pytest.mark.parametrize("name", ["order.close", "a", "0", "A-b_c.d", "x" * 100], ids=lambda name: name[:12])
def test_a_good_name_is_a_topic(name: str) -> None:
    assert check_topic(name) == name


BAD_NAMES = [
    pytest.param("", id="empty"),
    pytest.param(" ", id="blank"),
    pytest.param("order close", id="space"),
    pytest.param("order:close", id="colon"),
    pytest.param(".order", id="begins-with-a-dot"),
    pytest.param("-order", id="begins-with-a-dash"),
    pytest.param("x" * 101, id="101-characters"),
    pytest.param("order.close\n", id="newline-at-the-end"),
    pytest.param("order\x00close", id="nul"),
    pytest.param("bestellung.schließen", id="not-ascii"),
    pytest.param("order.\ud800", id="surrogate"),
    pytest.param("{order}", id="braces"),
    pytest.param("order*", id="star"),
    pytest.param(None, id="none"),
    pytest.param(7, id="number"),
    pytest.param(b"order.close", id="bytes"),
    pytest.param(["order.close"], id="list"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_and_quoted(name: object) -> None:
    with pytest.raises(BadTopic) as refused:
        check_topic(name)
    assert repr(name)[:100] in str(refused.value)
    assert "for example 'order.close'" in str(refused.value)


def test_a_handler_for_a_bad_name_is_refused() -> None:
    with pytest.raises(BadTopic):
        handler("order close")
    assert topics.handled() == []


# Delays and TTRs


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        (0, 0),
        (1, 1000),
        (1.5, 1500),
        (0.0001, 1),
        (0.1 + 0.2, 300),
        (timedelta(minutes=30), 1_800_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=10), 864_000_000),
        (-0.0, 0),
    ],
    ids=str,
)
def test_a_delay_is_whole_milliseconds_rounded_up(delay: Any, ms: int) -> None:
    found = to_delay_ms(delay, max_seconds=1e9)
    assert (found, type(found)) == (ms, int)


BAD_DELAYS = [
    pytest.param(-1, id="negative"),
    pytest.param(-0.001, id="a-millisecond-ago"),
    pytest.param(timedelta(seconds=-1), id="negative-timedelta"),
    pytest.param(1_000_001, id="over-the-most"),
    pytest.param(timedelta.max, id="longest-timedelta"),
    pytest.param(10**30, id="overflow"),
    pytest.param(1e308, id="float-overflow"),
    pytest.param(HUGE, id="5000-digits"),
    pytest.param(-HUGE, id="minus-5000-digits"),
    pytest.param(math.nan, id="nan"),
    pytest.param(math.inf, id="inf"),
    pytest.param(-math.inf, id="minus-inf"),
    pytest.param(True, id="true"),
    pytest.param(False, id="false"),
    pytest.param("30", id="text"),
    pytest.param(None, id="none"),
    pytest.param([30], id="list"),
    pytest.param(3 + 0j, id="complex"),
]


@pytest.mark.parametrize("delay", BAD_DELAYS)
def test_a_bad_delay_is_refused_and_named(delay: Any) -> None:
    with pytest.raises(BadDelay) as refused:
        to_delay_ms(delay, max_seconds=1_000_000, what="Snooze")
    assert str(refused.value).startswith("Snooze is ")
    if delay not in (HUGE, -HUGE):
        assert repr(delay)[:80] in str(refused.value)


def test_a_delay_out_of_range_is_told_the_range() -> None:
    with pytest.raises(BadDelay, match=re.escape("from 0 to 1,000 seconds")):
        to_delay_ms(1001, max_seconds=1000)


@pytest.mark.parametrize(("ttr", "ms"), [(60, 60_000), (0.001, 1), (timedelta(days=7), WEEK_SECONDS * 1000)], ids=str)
def test_a_ttr_is_more_than_zero_and_at_most_seven_days(ttr: Any, ms: int) -> None:
    assert to_ttr_ms(ttr) == ms


BAD_TTRS = [
    pytest.param(0, id="zero"),
    pytest.param(timedelta(0), id="zero-timedelta"),
    pytest.param(-1, id="negative"),
    pytest.param(math.nan, id="nan"),
    pytest.param(math.inf, id="inf"),
    pytest.param(WEEK_SECONDS + 0.001, id="over-seven-days"),
    pytest.param(timedelta(days=8), id="eight-days"),
    pytest.param(HUGE, id="5000-digits"),
    pytest.param(True, id="true"),
    pytest.param("60", id="text"),
    pytest.param(None, id="none"),
]


@pytest.mark.parametrize("ttr", BAD_TTRS)
def test_a_bad_ttr_is_refused_and_named(ttr: Any) -> None:
    with pytest.raises(BadTTR, match="ttr is "):
        to_ttr_ms(ttr)


@pytest.mark.parametrize("ttr", BAD_TTRS)
def test_a_handler_with_a_bad_ttr_is_refused_before_it_is_registered(ttr: Any) -> None:
    with pytest.raises(BadTTR):
        handler("order.close", ttr=ttr)(close)
    assert topics.handled() == []


# What a handler returns and raises


def test_a_snooze_says_how_long() -> None:
    assert Snooze(timedelta(minutes=10)).delay_ms == 600_000
    assert Snooze(0).delay_ms == 0


@pytest.mark.parametrize("delay", [-1, math.nan, YEAR_SECONDS + 1, True, None, "10"], ids=str)
def test_a_bad_snooze_is_refused_where_it_is_written(delay: Any) -> None:
    with pytest.raises(BadDelay, match="Snooze is "):
        Snooze(delay)


def test_a_retry_has_its_own_delay_or_leaves_it_to_the_backoff() -> None:
    assert (Retry("the bank is closed", delay=60).delay_ms, Retry().delay_ms) == (60_000, None)
    assert str(Retry("the bank is closed")) == "the bank is closed"


@pytest.mark.parametrize("delay", [-1, math.nan, YEAR_SECONDS + 1, True, "10"], ids=str)
def test_a_bad_retry_is_refused_where_it_is_raised(delay: Any) -> None:
    with pytest.raises(BadDelay, match="Retry is "):
        Retry(delay=delay)


# Registering


def test_a_handler_is_registered_and_stays_the_function_it_was() -> None:
    assert handler("order.close", ttr=90, max_attempts=3, queue="slow", concurrency=2)(close) is close
    found = topics.find("order.close")
    assert found is not None
    assert (found.function, found.ttr_ms, found.max_attempts, found.queue, found.concurrency) == (
        close, 90_000, 3, "slow", 2
    )  # fmt: skip
    assert found.name == f"{__name__}.close"
    assert found.backoff == Backoff()


def test_handled_topics_are_sorted_and_can_be_forgotten() -> None:
    handler("b")(close)
    handler("a")(remind)
    assert topics.handled() == ["a", "b"]
    topics.forget("b")
    topics.forget("b")
    assert (topics.handled(), topics.find("b")) == (["a"], None)


def test_one_function_may_handle_several_topics() -> None:
    handler("order.close")(close)
    handler("cart.close")(close)
    assert (topics.handled(), topics.clashes) == (["cart.close", "order.close"], [])


def test_a_second_function_for_a_topic_is_not_taken_and_the_clash_names_both() -> None:
    handler("order.close")(close)
    handler("order.close")(remind)
    assert topics.find("order.close").function is close
    (clash,) = topics.clashes
    assert clash == f"Topic 'order.close' has two handlers: {__name__}.close and {__name__}.remind."


def test_the_same_function_again_as_after_a_reload_brings_its_new_terms() -> None:
    handler("order.close", ttr=60)(close)
    handler("order.close", ttr=90)(close)
    assert (topics.find("order.close").ttr_ms, topics.clashes) == (90_000, [])


def test_a_handler_may_be_wrapped() -> None:
    @functools.wraps(close)
    def wrapper(job: object) -> None:
        close(job)

    handler("order.close")(wrapper)
    assert topics.find("order.close").name == f"{__name__}.close"


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", math.nan], ids=repr)
@pytest.mark.parametrize("term", ["max_attempts", "batch", "concurrency"])
def test_a_term_that_is_no_whole_number_from_one_on_is_refused_by_name(term: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{term} is .*whole number from 1 on"):
        handler("order.close", **{term: value})(close)
    assert topics.handled() == []


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"batch": 10, "atomic": False}, "a batch handler runs in one transaction"),
        ({"one_commit": True, "batch": 10}, "one_commit is for single jobs"),
        ({"one_commit": True, "atomic": False}, "one_commit is for single jobs"),
        ({"queue": 7}, "name of a Celery queue"),
    ],
    ids=str,
)
def test_terms_that_exclude_each_other_are_refused(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        handler("order.close", **terms)


# Topics that the settings declare


@pytest.fixture
def declared(settings) -> None:
    settings.DELAYTASKS = {
        "TOPICS": {"seat.free": {"ttr": 5, "max_attempts": 2, "concurrency": 3}, "plain": {}},
        "MAX_ATTEMPTS": 9,
        "CONCURRENCY": 11,
    }


def test_known_topics_are_those_with_a_handler_and_those_declared(declared: None) -> None:
    handler("order.close")(close)
    handler("plain")(remind)
    assert topics.known() == ["order.close", "plain", "seat.free"]


@pytest.mark.parametrize(
    ("topic", "terms"),
    [
        pytest.param("order.close", (90_000, 4, 2), id="its-handler-says"),
        pytest.param("order.remind", (60_000, 5, 11), id="its-handler-leaves-concurrency-to-the-setting"),
        pytest.param("seat.free", (5_000, 2, 3), id="the-setting-says"),
        pytest.param("plain", (60_000, 9, 11), id="declared-without-terms"),
        pytest.param("of.a.topic.row", (60_000, 9, 11), id="known-to-the-database-alone"),
    ],
)
def test_the_terms_of_a_topic_come_from_its_handler_then_its_declaration_then_the_defaults(
    declared: None, topic: str, terms: tuple[int, int, int]
) -> None:
    handler("order.close", ttr=90, max_attempts=4, concurrency=2)(close)
    handler("order.remind")(remind)
    assert (topics.ttr_ms(topic), topics.max_attempts(topic), topics.concurrency(topic)) == terms


def test_sound_declarations_have_no_problems() -> None:
    assert declared_problems({"seat.free": {"ttr": 5, "max_attempts": 2, "concurrency": 3}, "plain": {}}) == []


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("no spaces", {}, "not a topic's name"),
        ("a", {"ttl": 5}, "unknown options ['ttl']"),
        ("a", {"ttr": 0}, "ttr is 0"),
        ("a", {"ttr": "5"}, "ttr is '5'"),
        ("a", {"max_attempts": 0}, "['max_attempts'] is 0"),
        ("a", {"max_attempts": True}, "['max_attempts'] is True"),
        ("a", {"concurrency": 1.5}, "['concurrency'] is 1.5"),
        ("a", None, "TOPICS['a']"),
    ],
    ids=str,
)
def test_a_wrong_declaration_is_named(name: str, options: Any, says: str) -> None:
    (problem,) = declared_problems({name: options, "sound": {}})
    assert says in problem
    assert f"TOPICS[{name!r}]" in problem


def test_every_refusal_can_be_caught_as_ours_and_as_a_value_error() -> None:
    for refusal in (BadTopic, BadTTR, BadDelay):
        assert issubclass(refusal, BadInput)
        assert issubclass(refusal, DelaytasksError)
        assert issubclass(refusal, ValueError)
        assert str(refusal()) == refusal.__doc__, "without a message its docstring says it"
