"""How a load judges rows: as schedule() does, with a reason for each that is rejected. No Spark, no database."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delaytasks import clock
from delaytasks.exceptions import BadInput
from delaytasks.pipeline.screening import PROMISE, READ, REASONS, Judge, Limits
from delaytasks.promises import to_new_job

NOW = datetime.now(UTC)
DUE = "2030-01-31T09:00:00.1234+01:00"
LIMITS = Limits({"order.close": 30_000, "order.remind": 60_000}, clock.to_ms(NOW), 10 * 366 * 86_400, 65_536)
ROW = dict.fromkeys(("__problem", "__message", "__text", "due_us", "delay", "ttr", "ttr_ms", "body"))
ROW |= {"__file": "orders.csv", "__row": 7, "topic": "order.close", "key": "order:7", "due": DUE, "spread_ms": 0}
NUL = chr(0)


def judged(judge: Judge, **columns: Any) -> dict[str, Any]:
    names = ("kind", *PROMISE, "spread_ms", "file", "row", "reason", "message")
    row = {**ROW, **columns}
    return dict(zip(names, judge.judged(*(row[name] for name in READ)), strict=True))


def judge(**limits: Any) -> Judge:
    return Judge(Limits(**{**LIMITS.__dict__, **limits}))


def test_a_good_row_is_a_promise_and_a_bad_one_keeps_its_place_its_reason_and_what_it_was() -> None:
    good = judged(judge(), body='{"order":  7}', ttr="1.5")
    assert good == {
        "kind": "chunk", "topic": "order.close", "key": "order:7", "due_ms": 1_896_076_800_124, "ttr_ms": 1500,
        "body": '{"order":7}', "spread_ms": 0, "file": "orders.csv", "row": 7, "reason": None, "message": None,
    }  # fmt: skip
    bad = judged(judge(), key=None)
    assert (bad["kind"], bad["reason"], bad["file"], bad["row"]) == ("reject", "key", "orders.csv", 7)


SAME = [  # what schedule() is told, and the same as a row
    ({}, {}),
    ({"key": "k" * 255}, {"key": "k" * 255}),
    ({"key": "k" * 256}, {"key": "k" * 256}),
    ({"key": " "}, {"key": " "}),
    ({"key": "a\nb"}, {"key": "a\nb"}),
    ({"key": "Zoë 张"}, {"key": "Zoë 张"}),
    ({"topic": "no good"}, {"topic": "no good"}),
    ({"topic": ""}, {"topic": ""}),
    ({"ttr": 0}, {"ttr": "0"}),
    ({"ttr": 0.0004}, {"ttr": "0.0004"}),
    ({"ttr": 7 * 86_400}, {"ttr_ms": str(7 * 86_400_000)}),
    ({"ttr": 7 * 86_400 + 0.001}, {"ttr_ms": str(7 * 86_400_000 + 1)}),
    ({"ttr": float("nan")}, {"ttr": "NaN"}),
    ({"ttr": -1}, {"ttr": "-1"}),
    ({"body": {"a": [1, 2.5, None, "ü"]}}, {"body": '{"a": [1, 2.5, null, "\\u00fc"]}'}),
    ({"body": [1]}, {"body": "[1]"}),
    ({"body": {"a": "x" * 65_528}}, {"body": json.dumps({"a": "x" * 65_528})}),
    ({"body": {"a": "x" * 65_529}}, {"body": json.dumps({"a": "x" * 65_529})}),
    ({"body": {"a": float("inf")}}, {"body": '{"a": Infinity}'}),
    ({"body": {"a": NUL}}, {"body": json.dumps({"a": NUL})}),
    ({"body": {"a": "\ud800"}}, {"body": '{"a": "\\ud800"}'}),
    ({"body": json.loads("[" * 100 + "]" * 100)}, {"body": "[" * 100 + "]" * 100}),
    ({"body": json.loads("[" * 101 + "]" * 101)}, {"body": "[" * 101 + "]" * 101}),
    ({"due_at": datetime(1969, 12, 31, tzinfo=UTC)}, {"due": "1969-12-31T00:00Z"}),
    ({"due_at": NOW + timedelta(days=3659)}, {"due": (NOW + timedelta(days=3659)).isoformat()}),
    ({"due_at": NOW + timedelta(days=3661)}, {"due": (NOW + timedelta(days=3661)).isoformat()}),
    ({"due_at": datetime(2030, 1, 1)}, {"due": "2030-01-01T00:00:00"}),  # noqa: DTZ001  it is to be refused
]


def _scheduled(**asked: Any) -> list[Any]:
    """What schedule() makes of it: the reason for which it refuses, and the promise."""
    given = {"topic": "order.close", "key": "order:7", "due_at": datetime.fromisoformat(DUE), **asked}
    try:
        job = to_new_job(**given)
    except BadInput as error:
        return [REASONS[type(error)], *[None] * len(PROMISE)]
    return [None, job.topic, job.key, job.due_ms, job.ttr_ms, job.body]


@pytest.mark.parametrize(("asked", "row"), SAME)
def test_a_row_is_taken_or_rejected_as_schedule_takes_or_refuses_it(
    asked: dict[str, Any], row: dict[str, Any], settings: Any
) -> None:
    settings.DELAYTASKS = {"TOPICS": {"order.close": {"ttr": 30}}}
    found = judged(judge(), **row)
    assert [found["reason"], *(found[name] for name in PROMISE)] == _scheduled(**asked), found["message"]


@pytest.mark.parametrize(
    ("row", "reason", "said"),
    [
        ({"topic": "order.closed"}, "unknown topic", r"order\.closed.* is unknown"),
        ({"topic": None}, "topic", "not a topic's name"),
        ({"key": None}, "key", "key is None"),
        ({"due": None}, "due", "no due time"),
        ({"due": "soon"}, "due", "ISO 8601"),
        ({"due": "2030-01-31"}, "due", "a day: say when"),
        ({"due": "2030-01-31T09:00"}, "no zone", "--zone"),
        ({"due": "2150-01-31T09:00Z"}, "due", "MAX_DELAY_SECONDS"),
        ({"due": None, "due_us": 9 * 10**18}, "due", "MAX_DELAY_SECONDS"),
        ({"delay": "soon"}, "due", "delay is 'soon': it must be a number"),
        ({"delay": "-1"}, "due", "from 0 to"),
        ({"ttr": "1_0"}, "ttr", "must be a number"),
        ({"body": "{'a': 1}"}, "body", "not JSON"),
        ({"__problem": "columns", "__message": "The row has 2 columns"}, "columns", "2 columns"),
    ],
)
def test_each_reject_has_a_word_to_count_it_by_and_a_sentence(row: dict[str, Any], reason: str, said: str) -> None:
    found = judged(judge(), **row)
    assert (found["kind"], found["reason"]) == ("reject", reason)
    assert re.search(said, found["message"])


def test_a_reject_names_some_topics_however_many_there_are() -> None:
    many = {f"topic.{n:04}": 60_000 for n in range(5000)}
    said = judged(judge(topics=many), topic="order.close")["message"]
    assert (len(said) < 500, said.endswith("topic.0019 and 4980 more.")) == (True, True)


def test_a_local_time_is_of_the_zone_that_is_said_and_never_guessed() -> None:
    berlin = judge(zone="Europe/Berlin")
    assert judged(berlin, due="2030-07-01 12:00")["due_ms"] == clock.to_ms(datetime(2030, 7, 1, 10, tzinfo=UTC))
    assert judged(judge(zone="Europe/Berlin"), due="2030-07-01 12:00Z")["due_ms"] == clock.to_ms(
        datetime(2030, 7, 1, 12, tzinfo=UTC)
    )
    gap = judged(berlin, due="2030-03-31T02:30")
    assert (gap["reason"], "does not exist in Europe/Berlin" in gap["message"]) == ("clock change", True)
    twice = judged(berlin, due="2030-10-27T02:30")
    assert (twice["reason"], "write its offset" in twice["message"]) == ("clock change", True)
    assert judged(judge(zone="Europe/Berlin"), due="2030-10-27T02:30+01:00")["kind"] == "chunk"


def test_a_delay_is_counted_from_its_instant_and_the_sum_has_the_limit() -> None:
    assert judged(judge(), due="2030-01-31T08:00Z", delay="1800.5")["due_ms"] == clock.to_ms(
        datetime(2030, 1, 31, 8, 30, 0, 500_000, tzinfo=UTC)
    )
    micros = clock.to_ms(datetime(2030, 1, 31, 8, tzinfo=UTC)) * 1000 + 1
    assert judged(judge(), due=None, due_us=micros, delay="60")["due_ms"] == micros // 1000 + 1 + 60_000
    long = str(10 * 366 * 86_400 - 1)
    assert judged(judge(), delay=long)["reason"] == "due"
    assert judged(judge(), due="2020-01-31T08:00", delay="60")["reason"] == "no zone"


def test_a_row_whose_part_of_the_spread_would_bring_it_past_the_limit_is_rejected() -> None:
    limit = {"max_delay_seconds": 3600}
    nearly = datetime.fromtimestamp(LIMITS.now_ms / 1000 + 3590, UTC).isoformat()
    assert judged(judge(**limit), due=nearly, spread_ms=9_000)["kind"] == "chunk"
    assert judged(judge(**limit), due="1999-01-01T00:00Z", spread_ms=3_600_000)["kind"] == "chunk"
    found = judged(judge(**limit), due=nearly, spread_ms=11_000)
    assert (found["reason"], found["spread_ms"]) == ("due", None)
    assert "With 11000 ms for the spread (--spread)" in found["message"]


def test_of_rows_with_the_same_topic_and_key_the_first_good_one_counts_and_the_others_name_it() -> None:
    rows = judge()
    assert judged(rows, due="soon", __row=2)["reason"] == "due"
    assert judged(rows, __row=3)["kind"] == "chunk"
    assert judged(rows, due="soon", __row=4)["reason"] == "due"
    twice = judged(rows, __row=5, __file="more.csv")
    assert (twice["reason"], "row 3 of orders.csv" in twice["message"]) == ("twice", True)
    assert judged(rows, topic="order.remind", __row=6)["kind"] == "chunk"
