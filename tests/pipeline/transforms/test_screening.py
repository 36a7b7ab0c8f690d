"""A load validates rows like schedule() and gives rejects a reason. No Spark, no database."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pytest

from delaytasks import clock
from delaytasks.exceptions import BadInput
from delaytasks.jobs.inputs import to_new_job
from delaytasks.pipeline.transforms.screening import INPUT_COLUMNS, JOB_COLUMNS, REASONS, Limits, RowValidator, _screen

NOW = datetime.now(UTC)
DUE = "2030-01-31T09:00:00.1234+01:00"
LIMITS = Limits({"order.close": 30_000, "order.remind": 60_000}, clock.to_ms(NOW), 10 * 366 * 86_400, 65_536)
ROW = dict.fromkeys(("__problem", "__message", "__text", "due_us", "delay", "delay_days", "ttr", "ttr_ms",
                     "body"))  # fmt: skip
ROW |= {"__file": "orders.csv", "__row": 7, "topic": "order.close", "key": "order:7", "due": DUE, "spread_ms": 0}
NUL = chr(0)


def validated(validator: RowValidator, **columns: Any) -> dict[str, Any]:
    names = ("kind", *JOB_COLUMNS, "spread_ms", "file", "row", "reason", "message")
    row = {**ROW, **columns}
    return dict(zip(names, validator.validate(*(row[name] for name in INPUT_COLUMNS)), strict=True))


def validator(**limits: Any) -> RowValidator:
    return RowValidator(Limits(**{**LIMITS.__dict__, **limits}))


def test_a_valid_row_becomes_a_job_and_an_invalid_one_keeps_its_location_and_reason() -> None:
    good = validated(validator(), body='{"order":  7}', ttr="1.5")
    assert good == {
        "kind": "chunk", "topic": "order.close", "key": "order:7", "due_ms": 1_896_076_800_124, "ttr_ms": 1500,
        "body": '{"order":7}', "spread_ms": 0, "file": "orders.csv", "row": 7, "reason": None, "message": None,
    }  # fmt: skip
    bad = validated(validator(), key=None)
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
    """Return the reason for which schedule() refuses the values, and the job it makes of them."""
    given = {"topic": "order.close", "key": "order:7", "due_at": datetime.fromisoformat(DUE), **asked}
    try:
        job = to_new_job(**given)
    except BadInput as error:
        return [REASONS[type(error)], *[None] * len(JOB_COLUMNS)]
    return [None, job.topic, job.key, job.due_ms, job.ttr_ms, job.body]


@pytest.mark.parametrize(("asked", "row"), SAME)
def test_a_row_is_accepted_or_rejected_like_a_call_of_schedule(
    asked: dict[str, Any], row: dict[str, Any], settings: Any
) -> None:
    settings.DELAYTASKS = {"TOPICS": {"order.close": {"ttr": 30}}}
    found = validated(validator(), **row)
    assert [found["reason"], *(found[name] for name in JOB_COLUMNS)] == _scheduled(**asked), found["message"]


@pytest.mark.parametrize(
    ("row", "reason", "message"),
    [
        ({"topic": "order.closed"}, "unknown topic", r"order\.closed.* is unknown"),
        ({"topic": None}, "topic", "not a topic's name"),
        ({"key": None}, "key", "key is None"),
        ({"due": None}, "due", "no due time"),
        ({"due": "soon"}, "due", "ISO 8601"),
        ({"due": " 2030-01-31 "}, "due", "a day: give a time"),
        ({"due": "2030-01-31+01:00"}, "due", "a day: give a time"),  # the offset, as in XML, is no time of day
        ({"due": "2030-01-31-05:00"}, "due", "a day: give a time"),
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
def test_each_reject_has_a_reason_and_a_message(row: dict[str, Any], reason: str, message: str) -> None:
    found = validated(validator(), **row)
    assert (found["kind"], found["reason"]) == ("reject", reason)
    assert re.search(message, found["message"])


def test_a_reject_names_a_limited_number_of_topics() -> None:
    many = {f"topic.{n:04}": 60_000 for n in range(5000)}
    message = validated(validator(topics=many), topic="order.close")["message"]
    assert (len(message) < 500, message.endswith("topic.0019 and 4980 more.")) == (True, True)


def test_a_local_time_needs_a_zone_and_is_unambiguous_in_it() -> None:
    berlin = validator(zone="Europe/Berlin")
    assert validated(berlin, due="2030-07-01 12:00")["due_ms"] == clock.to_ms(datetime(2030, 7, 1, 10, tzinfo=UTC))
    assert validated(validator(zone="Europe/Berlin"), due="2030-07-01 12:00Z")["due_ms"] == clock.to_ms(
        datetime(2030, 7, 1, 12, tzinfo=UTC)
    )
    gap = validated(berlin, due="2030-03-31T02:30")
    assert (gap["reason"], "does not exist in Europe/Berlin" in gap["message"]) == ("clock change", True)
    twice = validated(berlin, due="2030-10-27T02:30")
    assert (twice["reason"], "add its offset" in twice["message"]) == ("clock change", True)
    assert validated(validator(zone="Europe/Berlin"), due="2030-10-27T02:30+01:00")["kind"] == "chunk"


def test_a_delay_is_added_to_the_time_and_the_sum_is_limited() -> None:
    assert validated(validator(), due="2030-01-31T08:00Z", delay="1800.5")["due_ms"] == clock.to_ms(
        datetime(2030, 1, 31, 8, 30, 0, 500_000, tzinfo=UTC)
    )
    micros = clock.to_ms(datetime(2030, 1, 31, 8, tzinfo=UTC)) * 1000 + 1
    assert validated(validator(), due=None, due_us=micros, delay="60")["due_ms"] == micros // 1000 + 1 + 60_000
    long = str(10 * 366 * 86_400 - 1)
    assert validated(validator(), delay=long)["reason"] == "due"
    assert validated(validator(), due="2020-01-31T08:00", delay="60")["reason"] == "no zone"


def test_days_are_added_in_the_zone_or_the_calendar_and_limited() -> None:
    """test_due_times.py has more clock changes."""
    rome = {"due": "2030-02-01T13:00", "delay": "0", "delay_days": 60}
    assert validated(validator(zone="Europe/Rome"), **rome)["due_ms"] == clock.to_ms(
        datetime(2030, 4, 2, 11, tzinfo=UTC)
    )
    week = {"name": "x", "zone": "Europe/Berlin", "first": "2030-01-01", "last": "2030-12-31", "days": {},
            "week": [*["09:00-17:00"] * 5, "", ""]}  # fmt: skip
    friday = {"due": "2030-03-29T15:00+01:00", "delay": "14400"}
    assert validated(validator(calendar=week), **friday)["due_ms"] == clock.to_ms(datetime(2030, 4, 1, 9, tzinfo=UTC))
    for limits, row, message in (
        ({"zone": "UTC"}, {**rome, "delay_days": -1}, "The delay is -1 days: it must not be negative."),
        ({"zone": "UTC"}, {**rome, "delay": ""}, "The delay is null: give a number of seconds or an interval."),
        ({"zone": "UTC"}, {**rome, "delay_days": 4000}, "more than 316,224,000 seconds"),
        ({"calendar": week}, {**friday, "due": "2035-01-01T00:00Z"}, "are known from 2030-01-01 to 2030-12-31"),
    ):
        found = validated(validator(**limits), **row)
        assert (found["reason"], message in found["message"]) == ("due", True), found


def test_a_row_whose_spread_exceeds_the_maximum_delay_is_rejected() -> None:
    limit = {"max_delay_seconds": 3600}
    nearly = datetime.fromtimestamp(LIMITS.now_ms / 1000 + 3590, UTC).isoformat()
    assert validated(validator(**limit), due=nearly, spread_ms=9_000)["kind"] == "chunk"
    assert validated(validator(**limit), due="1999-01-01T00:00Z", spread_ms=3_600_000)["kind"] == "chunk"
    found = validated(validator(**limit), due=nearly, spread_ms=11_000)
    assert (found["reason"], found["spread_ms"]) == ("due", None)
    assert "With a spread of 11000 ms (--spread)" in found["message"]


def test_of_rows_with_the_same_key_the_first_valid_one_is_loaded_and_the_others_name_it() -> None:
    rows = validator()
    assert validated(rows, due="soon", __row=2)["reason"] == "due"
    assert validated(rows, __row=3)["kind"] == "chunk"
    assert validated(rows, due="soon", __row=4)["reason"] == "due"
    twice = validated(rows, __row=5, __file="more.csv")
    assert (twice["reason"], "row 3 of orders.csv" in twice["message"]) == ("twice", True)
    assert validated(rows, topic="order.remind", __row=6)["kind"] == "chunk"


@pytest.mark.parametrize("name", ["topic", "key", "due", "ttr", "body"])
def test_a_text_that_is_not_utf_8_rejects_its_row_and_no_other(name: str) -> None:
    """Spark casts binary values to text without a check."""
    rows = [{**ROW, "key": key, "body": "{}", "ttr": "60", "raw": "{}"} for key in ("a", "b", "c")]
    columns = {each: pyarrow.array([row[each] for row in rows]) for each in (*INPUT_COLUMNS, "raw")}
    texts = [columns[name][0].as_py().encode(), b"\xff{}", columns[name][2].as_py().encode()]
    columns[name] = pyarrow.array(texts, pyarrow.binary()).view(pyarrow.string())
    (screened,) = _screen(LIMITS, iter([pyarrow.RecordBatch.from_pydict(columns)]))
    assert screened["kind"].to_pylist() == ["chunk", "reject", "chunk"]
    assert screened["reason"].to_pylist()[1] == name
    assert screened["message"][1].as_py().isprintable()
