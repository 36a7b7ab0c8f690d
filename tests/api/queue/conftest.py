"""The command protocol as a caller has it: a command in, its envelope out. Known topics: mail.send, sms.send."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delaytasks import bells, scheduling
from delaytasks.api import polling
from delaytasks.models import Job, JobEvent
from tests.api.conftest import ApiClient

PATH = "/api/queue/"
T0 = "2030-01-01T00:00:00.000Z"  # what db_clock begins with


class QueueClient:
    """queue("pop", topic="mail.send") -> the envelope of HTTP 200; queue.refused(403, "pop", ...) -> of another."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    def __call__(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.refused(200, command, **fields)

    def refused(self, status: int, command: str, **fields: Any) -> dict[str, Any]:
        return self.sent(status, {"command": command, **fields})

    def sent(self, status: int, data: Any, **headers: str) -> dict[str, Any]:
        """What is sent as it is: an object, or bytes that may be anything."""
        answer = self.client.post(PATH, data, **headers)
        assert answer.status_code == status, answer.content
        assert answer.headers["Content-Type"] == "application/json"
        envelope = answer.json()
        assert envelope.keys() >= {"success", "error", "id", "value"}
        assert isinstance(envelope["success"], bool)
        assert isinstance(envelope["id"], str)
        assert envelope["success"] == (envelope["error"] == "")
        assert status == 200 or not envelope["success"]
        return envelope

    def add(self, id: str = "mail:1", **terms: Any) -> dict[str, Any]:
        """A job that is ready at once, unless the terms say otherwise."""
        return self("add", **{"topic": "mail.send", "id": id, "delay": 0, "TTR": 60, "body": {"to": id}} | terms)


def job(key: str = "mail:1") -> Job:
    return Job.objects.filter(key=key).latest("id")


def events(key: str = "mail:1") -> list[tuple[str, str]]:
    """(outcome, who) of the jobs of this key."""
    found = JobEvent.objects.filter(job__key=key).order_by("id").values_list("outcome", "actor")
    return [(outcome, actor.partition(" (token ")[0]) for outcome, actor in found]


def _end_by_finish(queue: QueueClient) -> None:
    queue("pop", topic="mail.send")
    queue("finish", id="mail:1")


def _end_by_bury(queue: QueueClient) -> None:
    queue("pop", topic="mail.send")
    queue("bury", id="mail:1")


ENDS = [  # how a job "mail:1" that is ready comes to its end, and what is said of it then
    (_end_by_finish, "'mail:1' was finished at 2030-01-01T00:00:00.000Z."),
    (_end_by_bury, "'mail:1' is dead since 2030-01-01T00:00:00.000Z."),
    (lambda queue: queue("delete", id="mail:1"), "'mail:1' was cancelled at 2030-01-01T00:00:00.000Z."),
]


@pytest.fixture(autouse=True)
def _topics(settings: Any) -> Iterator[None]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"mail.send": {"max_attempts": 3}, "sms.send": {}}}
    bells.forget_terms()
    yield
    bells.forget_terms()


@pytest.fixture
def client(make_token: Callable[..., str], api: Callable[..., Any]) -> Callable[..., QueueClient]:
    """client("go") -> a caller with an account of that name and every right on every topic."""

    def make(account: str = "php") -> QueueClient:
        return QueueClient(api(make_token(account, topics={"*": "produce consume manage"}, rate_per_minute=10**6)))

    return make


@pytest.fixture
def queue(client: Callable[..., QueueClient], db_clock: Any) -> QueueClient:
    """A caller with every right, at a time that stands still."""
    return client()


@pytest.fixture
def ready_after_first_look(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """mail:1 becomes ready when a pop has looked for the first time; the numbers of jobs that its looks found."""
    looks: list[int] = []
    reserve = polling.consuming.reserve

    def looked(*args: Any, **kwargs: Any) -> Any:
        found = reserve(*args, **kwargs)
        if not looks:
            scheduling.schedule("mail.send", key="mail:1", delay=0, body={"to": "mail:1"})
        looks.append(len(found))
        return found

    monkeypatch.setattr(polling.consuming, "reserve", looked)
    return looks
