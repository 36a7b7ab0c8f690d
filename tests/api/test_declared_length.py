"""The length that a request declares, as BodyLimit, FastPath and the views read it."""

import asyncio
from typing import Any

import pytest

from delaytasks.api.limits.lengths import declared_length
from delaytasks.api.middleware import BodyLimit


@pytest.mark.parametrize(
    ("sent", "length"),
    [("", 0), ("5", 5), ("0005", 5), ("0" * 5000, 0), ("+5", 0), ("5, 5", 0), ("\u0665", 0), ("\xb2", 0),
     ("9" * 18, 10**18 - 1), ("9" * 5000, 10**18)],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_every_text_has_a_length(sent: str, length: int) -> None:
    assert declared_length(sent) == length


def test_body_limit_refuses_a_length_of_many_digits() -> None:
    async def application(*_: Any) -> None:
        raise AssertionError("It was passed on.")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "headers": [(b"content-length", b"9" * 5000)]}
    asyncio.run(BodyLimit(application, most=100)(scope, receive, send))
    assert sent[0]["status"] == 413
