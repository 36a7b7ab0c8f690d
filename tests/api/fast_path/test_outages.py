"""In an outage of the database each answer is one that a client may repeat, whichever statement fails: no refusal."""

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from django.db.backends.utils import CursorWrapper
from django.http import HttpResponse

from delaytasks.api.access import token_cache
from delaytasks.jobs import schedule
from tests.support import asgi_client

pytestmark = pytest.mark.on_both  # the statements differ
TOPIC = "mail.send"
MOST_STATEMENTS = 60  # of one command; more would be another mistake
LOST = [OperationalError("server closed the connection unexpectedly"), InterfaceError("connection already closed")]
JOB_COMMANDS: dict[str, dict[str, Any]] = {"finish": {}, "touch": {}, "release": {"delay": 5}, "bury": {"reason": "no"}}


class Outage:
    """Counts statements. Those from number `first` to `last` raise the error."""

    def __init__(self) -> None:
        self.count, self.first, self.last, self.error = 0, 0, 0, LOST[0]
        self._lock = threading.Lock()

    def next_fails(self) -> bool:
        with self._lock:
            self.count += 1
            return self.first <= self.count <= self.last

    @contextmanager
    def of(self, first: int, last: int, error: Exception) -> Any:
        self.count, self.first, self.last, self.error = 0, first, last, error
        try:
            yield
        finally:
            self.first = self.last = 0


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    outage = Outage()
    for name in ("execute", "executemany"):
        monkeypatch.setattr(CursorWrapper, name, _failing(getattr(CursorWrapper, name), outage))
    return outage


def _failing(execute: Callable[..., Any], outage: Outage) -> Callable[..., Any]:
    def execute_or_fail(self: CursorWrapper, sql: Any, *args: Any) -> Any:
        if outage.next_fails():
            raise outage.error
        return execute(self, sql, *args)

    return execute_or_fail


@pytest.fixture
def send(make_token: Callable[..., str], rest_topics: None) -> Callable[[dict[str, Any]], HttpResponse]:
    """Send a command as a process does that knows neither the token nor the topic."""
    headers = {"Authorization": f"Bearer {make_token(topics={'*': 'produce consume'})}"}

    def send(command: dict[str, Any]) -> HttpResponse:
        asgi_client.clear_caches()
        token_cache.answers.clear()
        return asgi_client.request("POST", "/api/queue/", json.dumps(command).encode(), "application/json", headers)

    return send


def prepared(name: str, number: int, send: Callable[[dict[str, Any]], HttpResponse]) -> dict[str, Any]:
    """Return a command that would succeed."""
    key = f"{name}{number}"
    if name == "add":
        return {"command": "add", "topic": TOPIC, "id": key, "delay": 60, "TTR": 60, "body": {}, "on_conflict": "keep"}
    schedule.schedule(TOPIC, key, delay=0)
    pop = {"command": "pop", "topic": TOPIC, "count": 1}
    if name == "pop":
        return pop
    (job,) = send(pop).json()["value"]
    fields = {"id": job["id"], "attempt": job["attempt"], "job": job["job"]}
    return {"command": name, "topic": TOPIC, **fields, **JOB_COMMANDS[name]}


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("lasts", [False, True], ids=["one statement", "the rest"])
@pytest.mark.parametrize("name", ["add", "pop", *JOB_COMMANDS])
def test_whichever_statement_of_a_command_fails_the_answer_is_no_refusal(
    name: str, lasts: bool, error: Exception, outage: Outage, send: Callable[[dict[str, Any]], HttpResponse]
) -> None:
    for number in range(1, MOST_STATEMENTS):
        command = prepared(name, number, send)
        with outage.of(number, MOST_STATEMENTS * 10 if lasts else number, error):
            answer = send(command)
            reached = outage.count >= number
        assert answer.status_code >= 500 or answer.json()["success"], (number, answer.status_code, answer.content)
        if not reached:
            assert number > 2, "no statement was counted"
            return
    raise AssertionError(f"{name} executes {MOST_STATEMENTS} statements or more.")
