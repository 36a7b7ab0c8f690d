"""Cursors of lists of jobs: round trips, and validation of untrusted input."""

import base64
import json
from typing import Any

import pytest

from delaytasks.db import pagination
from delaytasks.db.pagination import Cursor
from delaytasks.db.scans import DUE, KEY, NEWEST, OLDEST, Order
from delaytasks.exceptions import BadCursor

ORDERS = [each for order in (DUE, KEY, OLDEST) for each in (order, order.reverse)]


def raw(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


END = pagination.END_OF_TIME_MS
INVALID = [
    "x", "2", "=", "=" * 9, "ä", "%00", "AAAA", "e30", "bnVsbA", "x" * 5000,
    base64.urlsafe_b64encode(b"[" * 4000).decode(),
    raw(), raw(1), raw(1, "id-", ""), raw(2, "id-", "", 0, 5), raw(True, "id-", "", 0, 5), raw("id-", 0, 5),
    raw("new-", 0, 5), raw({"id-": 0}),
]  # fmt: skip
MISFIT: list[tuple[Order, list[Any]]] = [
    (NEWEST, values)
    for values in (
        ["id", "", 0, 5], ["due", "", 0, 5, 5], ["id-", 0, 0, 5], ["id-", "a.one", 0, 5], [["id-"], "", 0, 5],
        ["id-", "", 0], ["id-", "", 0, 5, 6], ["id-", "", 2, 5], ["id-", "", True, 5], ["id-", "", None, 5],
        *(["id-", "", 0, value] for value in ("5", -5, 2**63, 10**400, True, 5.5, None, [5])),
    )
] + [
    (DUE, ["due", "", 0, *values]) for values in ([END, 1], [10**15, 1], [-1, 1], ["x", 1], [1])
] + [
    (KEY, ["key", "", 0, value, 1]) for value in ("a\0b", "\ud800", 5, None)
]  # fmt: skip


@pytest.mark.parametrize("cursor", INVALID, ids=lambda cursor: cursor[:30])
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    for by_topic in (False, True):
        with pytest.raises(BadCursor, match="not valid"):
            pagination.decode(cursor, NEWEST, by_topic=by_topic)


@pytest.mark.parametrize(("order", "values"), MISFIT, ids=lambda value: str(value)[:40])
def test_a_cursor_that_does_not_fit_the_list_is_refused(order: Order, values: list[Any]) -> None:
    with pytest.raises(BadCursor):
        pagination.decode(raw(1, *values), order)


@pytest.mark.parametrize("values", [["key", "", 0, "k", 1], ["key", "a.one", 1, "k", 1], ["due", "a.one", 0, 1, 1]])
def test_a_list_by_topic_accepts_only_its_own_cursors(values: list[Any]) -> None:
    with pytest.raises(BadCursor):
        pagination.decode(raw(1, *values), KEY, by_topic=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cursor", [Cursor, lambda *args: Cursor(*args, backwards=True)])
def test_a_cursor_survives_encoding_and_decoding(order: Order, cursor: Any) -> None:
    for key in ("a\u00a0b", "\u3000", "\u200b", "\u0436", "\U0001f600", ""):
        for due_ms, pk in ((0, 0), (END - 1, 2**63 - 1)):
            values = {"due_at": due_ms, "key": key, "id": pk}
            written = cursor([values[column] for column in order.columns])
            assert pagination.decode(pagination.encode(order, written), order) == written


def test_a_cursor_can_be_at_the_start_of_a_topic() -> None:
    written = Cursor(topic="a.one")
    assert pagination.decode(pagination.encode(KEY, written), KEY, by_topic=True) == written
