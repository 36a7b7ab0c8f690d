"""Register polls, which answer as a test says."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delaytasks import handlers, poll

from ..testing.conftest import _real_clock_afterwards  # noqa: F401


class Bank:
    """A question that a poll asks. An answer that is an exception is raised; the last answer repeats."""

    def __init__(self) -> None:
        self.answers: list[Any] = [False]
        self.asked: list[tuple[int, int]] = []  # (polls, attempt) of each call

    def ask(self, job: Any) -> Any:
        self.asked.append((job.polls, job.attempt))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def register() -> Iterator[Callable[..., Any]]:
    """Register a poll until the end of the test: register("topic", function, every=..., until=...)."""
    topics: list[str] = []

    def register_one(topic: str, function: Any, **options: Any) -> Any:
        topics.append(topic)
        return poll(topic, **options)(function)

    yield register_one
    for topic in topics:
        handlers.unregister(topic)
    handlers.clashes.clear()
