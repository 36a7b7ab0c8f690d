"""The registry of handlers: options, validation and declared topics."""

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Q

from delaytasks import Retry, Snooze, handler, handlers, poll, recurring, sla, timeout
from delaytasks.backoff import DEFAULT_BACKOFF
from delaytasks.exceptions import BadDelay, BadInput, BadTopic, BadTTR, DelaytasksError
from delaytasks.handlers import check_topic, declared_problems, to_delay_ms, to_ttr_ms
from delaytasks.recurrence import registry
from delaytasks.timeouts import declarations, receivers
from delaytasks.worker import completion

WEEK_SECONDS = 7 * 86_400
YEAR_SECONDS = 366 * 86_400
HUGE = 10**5000  # more digits than Python turns into text


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_handlers", {})
    monkeypatch.setattr(handlers, "clashes", [])


def close(job: object) -> None: ...


def remind(job: object) -> None: ...


# Names


@pytest.mark.parametrize("name", ["order.close", "a", "0", "A-b_c.d", "x" * 100], ids=lambda name: name[:12])
def test_a_valid_name_is_a_topic(name: str) -> None:
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
def test_an_invalid_name_is_refused_and_quoted(name: object) -> None:
    with pytest.raises(BadTopic) as refused:
        check_topic(name)
    assert repr(name)[:100] in str(refused.value)
    assert "for example 'order.close'" in str(refused.value)


def test_a_handler_for_an_invalid_topic_is_refused() -> None:
    with pytest.raises(BadTopic):
        handler("order close")
    assert handlers.handled() == []


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
def test_a_delay_is_converted_to_whole_milliseconds_rounded_up(delay: Any, ms: int) -> None:
    result = to_delay_ms(delay, max_seconds=1e9)
    assert (result, type(result)) == (ms, int)


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
def test_an_invalid_delay_is_refused_and_named(delay: Any) -> None:
    with pytest.raises(BadDelay) as refused:
        to_delay_ms(delay, max_seconds=1_000_000, what="Snooze")
    assert str(refused.value).startswith("Snooze is ")
    if delay not in (HUGE, -HUGE):
        assert repr(delay)[:80] in str(refused.value)


def test_the_error_for_a_delay_out_of_range_names_the_range() -> None:
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
def test_an_invalid_ttr_is_refused_and_named(ttr: Any) -> None:
    with pytest.raises(BadTTR, match="ttr is "):
        to_ttr_ms(ttr)


@pytest.mark.parametrize("ttr", BAD_TTRS)
def test_a_handler_with_an_invalid_ttr_is_not_registered(ttr: Any) -> None:
    with pytest.raises(BadTTR):
        handler("order.close", ttr=ttr)(close)
    assert handlers.handled() == []


# Snooze and Retry


def test_a_snooze_has_a_delay() -> None:
    assert Snooze(timedelta(minutes=10)).delay_ms == 600_000
    assert Snooze(0).delay_ms == 0


@pytest.mark.parametrize("delay", [-1, math.nan, YEAR_SECONDS + 1, True, None, "10"], ids=str)
def test_an_invalid_snooze_is_refused_when_created(delay: Any) -> None:
    with pytest.raises(BadDelay, match="Snooze is "):
        Snooze(delay)


def test_a_retry_has_an_optional_delay() -> None:
    assert (Retry("the bank is closed", delay=60).delay_ms, Retry().delay_ms) == (60_000, None)
    assert str(Retry("the bank is closed")) == "the bank is closed"


@pytest.mark.parametrize("delay", [-1, math.nan, YEAR_SECONDS + 1, True, "10"], ids=str)
def test_an_invalid_retry_is_refused_when_created(delay: Any) -> None:
    with pytest.raises(BadDelay, match="Retry is "):
        Retry(delay=delay)


# Registering


def test_a_handler_is_registered_and_its_handle_calls_the_function() -> None:
    handle = handler("order.close", ttr=90, max_attempts=3, queue="slow", concurrency=2)(close)
    assert handle.function is close
    entry = handlers.find("order.close")
    assert entry is not None
    assert (entry.function, entry.ttr_ms, entry.max_attempts, entry.queue, entry.concurrency) == (
        close, 90_000, 3, "slow", 2
    )  # fmt: skip
    assert entry.name == f"{__name__}.close"
    assert entry.backoff == DEFAULT_BACKOFF


def test_handled_topics_are_sorted_and_can_be_forgotten() -> None:
    handler("b")(close)
    handler("a")(remind)
    assert handlers.handled() == ["a", "b"]
    handlers.unregister("b")
    handlers.unregister("b")
    assert (handlers.handled(), handlers.find("b")) == (["a"], None)


def test_one_function_may_handle_several_topics() -> None:
    handler("order.close")(close)
    handler("cart.close")(close)
    assert (handlers.handled(), handlers.clashes) == (["cart.close", "order.close"], [])


def test_a_second_function_for_a_topic_is_refused_and_the_clash_names_both() -> None:
    handler("order.close")(close)
    handler("order.close")(remind)
    assert handlers.find("order.close").function is close
    (clash,) = handlers.clashes
    assert clash == f"Topic 'order.close' has two handlers: {__name__}.close and {__name__}.remind."


def test_registering_the_same_function_again_updates_its_options() -> None:
    handler("order.close", ttr=60)(close)
    handler("order.close", ttr=90)(close)
    assert (handlers.find("order.close").ttr_ms, handlers.clashes) == (90_000, [])


def test_a_wrapped_function_can_be_a_handler() -> None:
    @functools.wraps(close)
    def wrapper(job: object) -> None:
        close(job)

    handler("order.close")(wrapper)
    assert handlers.find("order.close").name == f"{__name__}.close"


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", math.nan], ids=repr)
@pytest.mark.parametrize("option", ["max_attempts", "batch", "concurrency"])
def test_an_option_that_is_not_a_positive_integer_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} is .*whole number from 1 on"):
        handler("order.close", **{option: value})(close)
    assert handlers.handled() == []


@pytest.mark.parametrize("value", ["no", 0, None], ids=repr)
@pytest.mark.parametrize("option", ["atomic", "one_commit", "relaxed_commit"])
def test_an_option_that_is_not_true_or_false_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value!r}; use True or False"):
        handler("order.close", **{option: value})(close)
    assert handlers.handled() == []


@pytest.mark.parametrize(
    ("declare", "option"),
    [
        pytest.param(lambda: handler("order.close", max_attempts=None)(close), "max_attempts is None", id="attempts"),
        pytest.param(lambda: handler("order.close", backoff=60)(close), "backoff is 60; give a Backoff", id="backoff"),
        pytest.param(lambda: handler("order.close", on_dead="shop.dead")(close), "on_dead is 'shop.dead'", id="dead"),
        pytest.param(
            lambda: poll("order.close", every=[60], until=600, on_give_up="shop.end")(close),
            "on_give_up is 'shop.end'",
            id="give-up",
        ),
        pytest.param(lambda: handler("order.close")(classmethod(close)), "cannot be called", id="classmethod"),
    ],
)
def test_what_would_break_the_end_of_an_attempt_is_refused_when_declared(declare: Any, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        declare()
    assert handlers.handled() == []


def nothing() -> None: ...


def two(row: object, job: object) -> None: ...


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        pytest.param(
            lambda: handler("order.close")(nothing), r"nothing takes \(\) .*called with \(job\)", id="handler"
        ),
        pytest.param(lambda: handler("order.close", batch=9)(two), r"two takes \(row.*with \(jobs\)", id="batch"),
        pytest.param(lambda: handler("order.close", on_dead=nothing)(close), r"nothing takes \(\)", id="on_dead"),
        pytest.param(lambda: DECORATORS["poll"]("order.close")(two), r"two takes .*with \(job\)", id="poll"),
        pytest.param(
            lambda: DECORATORS["poll"]("order.close", on_give_up=two)(close), r"two takes .*\(job\)", id="on_give_up"
        ),
        pytest.param(lambda: DECORATORS["recurring"]("order.close")(two), r"two takes .*with \(job\)", id="recurring"),
        pytest.param(lambda: _timeout("order.close")(close), r"close takes .*with \(row, job\)", id="timeout"),
        pytest.param(lambda: _sla("order.close")(close), r"close takes .*with \(row, event\)", id="sla"),
    ],
)
def test_a_function_with_other_parameters_is_refused_when_declared(declare: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declare()
    assert handlers.handled() == []


def test_a_decorator_may_add_an_argument_to_a_handler_and_a_builtin_has_no_known_parameters() -> None:
    @functools.wraps(two)
    def with_row(job: object) -> None:
        two("row", job)

    handler("order.close")(with_row)
    handler("order.remind")(max)
    assert handlers.handled() == ["order.close", "order.remind"]


class Closer:
    def __call__(self, job: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "name"),
    [
        pytest.param(Closer(), f"{__name__}.Closer", id="object"),
        pytest.param(functools.partial(close), "functools.partial", id="partial"),
    ],
)
def test_a_callable_without_a_name_has_that_of_its_class(function: Any, name: str) -> None:
    handle = handler("order.close")(function)
    assert handlers.find("order.close").name == name
    assert repr(handle) == f"<handler of order.close: {name}>"
    handler("order.close")(remind)
    assert handlers.clashes == [f"Topic 'order.close' has two handlers: {name} and {__name__}.remind."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"one_commit": True, "batch": 10}, "one_commit needs atomic=True and no batch"),
        ({"one_commit": True, "atomic": False}, "one_commit needs atomic=True and no batch"),
        ({"queue": 7}, "name of a Celery queue"),
    ],
    ids=str,
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        handler("order.close", **options)


# Topics declared in the settings


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
    assert handlers.known() == ["order.close", "plain", "seat.free"]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        pytest.param("order.close", (90_000, 4, 2), id="from-its-handler"),
        pytest.param("order.remind", (60_000, 25, 11), id="handler-without-concurrency"),
        pytest.param("seat.free", (5_000, 2, 3), id="from-the-setting"),
        pytest.param("plain", (60_000, 9, 11), id="declared-without-options"),
        pytest.param("of.a.topic.row", (60_000, 9, 11), id="only-a-topic-row"),
    ],
)
def test_options_come_from_the_handler_then_the_declaration_then_the_defaults(
    declared: None, topic: str, expected: tuple[int, int, int]
) -> None:
    handler("order.close", ttr=90, max_attempts=4, concurrency=2)(close)
    handler("order.remind")(remind)
    assert (handlers.ttr_ms(topic), handlers.max_attempts(topic), handlers.concurrency(topic)) == expected


def test_valid_declarations_have_no_problems() -> None:
    assert declared_problems({"seat.free": {"ttr": 5, "max_attempts": 2, "concurrency": 3}, "plain": {}}) == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
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
def test_an_invalid_declaration_is_named(name: str, options: Any, message: str) -> None:
    (problem,) = declared_problems({name: options, "valid": {}})
    assert message in problem
    assert f"TOPICS[{name!r}]" in problem


def test_each_error_is_a_delaytasks_error_and_a_value_error() -> None:
    for error in (BadTopic, BadTTR, BadDelay):
        assert issubclass(error, BadInput)
        assert issubclass(error, DelaytasksError)
        assert issubclass(error, ValueError)
        assert str(error()) == error.__doc__.partition("\n")[0], "the docstring is the default message"


def _timeout(topic: str, **options: Any) -> Any:
    return timeout(User, on="date_joined", topic=topic, **options)


def _sla(topic: str, **options: Any) -> Any:
    return sla(User, target=timedelta(hours=8), stop=Q(is_active=False), topic=topic, **options)


DECORATORS = {
    "timeout": _timeout, "sla": _sla, "poll": functools.partial(poll, every=[60], until=3600),
    "recurring": functools.partial(recurring, cron="30 2 * * *"),
}  # fmt: skip


@pytest.fixture
def declare() -> Iterator[Callable[..., handlers.Handler]]:
    """Declare a topic with one of DECORATORS and return its handler."""

    def declare(decorator: str, **options: Any) -> handlers.Handler:
        DECORATORS[decorator]("test.declared", **options)(lambda *_: None)
        found = handlers.find("test.declared")
        assert found is not None
        return found

    yield declare
    declarations.unregister("test.declared")
    receivers.disconnect()
    receivers.connect_all()
    completion.after_end.pop("test.declared", None)
    registry.unregister("test.declared")


@pytest.mark.parametrize("decorator", DECORATORS)
def test_every_decorator_has_the_defaults_of_handler(decorator, declare):
    handlers.handler("test.plain")(lambda job: None)
    plain, declared = handlers.find("test.plain"), declare(decorator)
    handlers.unregister("test.plain")
    own = {"topic", "function", "subject"}
    assert {field.name: getattr(declared, field.name) for field in fields(declared) if field.name not in own} == {
        field.name: getattr(plain, field.name) for field in fields(declared) if field.name not in own
    }


@pytest.mark.parametrize("decorator", DECORATORS)
def test_every_decorator_passes_options_on_and_refuses_unknown_ones(decorator, declare):
    assert declare(decorator, max_attempts=7, ttr=90).max_attempts == 7
    with pytest.raises(TypeError, match=rf"{decorator}\(\) has no option 'nope'\. It takes these options .*: atomic"):
        declare(decorator, nope=1)
