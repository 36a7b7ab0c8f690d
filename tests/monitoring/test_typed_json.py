"""Statistics as JSON: what is encoded is decoded to the same value, and other data is refused."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import pytest

from delaytasks.monitoring.caching.typed_json import decode, encode
from delaytasks.monitoring.last_hour import EventCounts


class Point(NamedTuple):
    x: int
    name: str | None = None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 5), (float, 0.5), (float, 5), (str, "a"), (bool, True), (int | None, None), (int | None, 3),
        (list[int], [1, 2]), (tuple[int, ...], (1, 2)), (tuple[int, str], (1, "a")), (tuple[()], ()),
        (dict[str, int], {"a": 1}),
        (Mapping[tuple[str | None, int], Point], {(None, 1): Point(1), ("a", 2): Point(2, "b")}),
        (Counter[int], Counter({5: 2})), (Literal["up", "down"], "up"), (Point, Point(1, "a")),
        (datetime, datetime(2030, 1, 1, 9, 30, tzinfo=UTC)), (Any, {"a": [1]}),
    ],
)  # fmt: skip
def test_a_value_survives(kind: Any, value: Any) -> None:
    found = decode(kind, encode(value))
    if kind is not Any:
        assert (found, type(found)) == (value, type(value))


def test_a_dataclass_survives() -> None:
    found = decode(EventCounts, encode(EventCounts(Counter(finished=3), Counter({12: 1}), 12)))
    assert isinstance(found, EventCounts)
    assert (found.outcomes["finished"], found.late[12], found.worst_ms) == (3, 1, 12)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "true"), (int, "1.0"), (int, '"1"'), (int, "null"), (str, "1"), (bool, "0"), (list[int], '["a"]'),
        (list[int], '"12"'), (tuple[int, str], "[1]"), (tuple[int, str], '[1, "a", 2]'), (Point, '{"x": 1}'),
        (dict[str, int], '{"a": 1}'), (dict[str, int], '[["a"]]'), (Literal["up"], '"down"'), (datetime, '"soon"'),
        (datetime, "7"), (int, "{"), (dict[str, int], "[7]"), (Literal["up"], '["up"]'),
    ],
)  # fmt: skip
def test_other_data_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(ValueError):
        decode(kind, text)
