"""Fixtures for the queue protocol: send a command, get its envelope. Known topics: mail.send and sms.send."""

from collections.abc import Callable
from typing import Any

import pytest

from delaytasks.api import long_poll
from delaytasks.jobs import schedule
from delaytasks.models import Job, JobEvent
from tests.api.conftest import ApiClient

PATH = "/api/queue/"
T0 = "2030-01-01T00:00:00.000Z"  # start of db_clock


class QueueClient:
    """queue("pop", topic="mail.send") expects HTTP 200; queue.refused(403, "pop", ...) another status."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    def __call__(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.refused(200, command, **fields)

    def refused(self, status: int, command: str, **fields: Any) -> dict[str, Any]:
        return self.sent(status, {"command": command, **fields})

    def sent(self, status: int, data: Any, **headers: str) -> dict[str, Any]:
        """Send an object or raw bytes, and return the envelope."""
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
        """Add a job; by default it is ready at once."""
        return self("add", **{"topic": "mail.send", "id": id, "delay": 0, "TTR": 60, "body": {"to": id}} | terms)


def job(key: str = "mail:1") -> Job:
    return Job.objects.filter(key=key).latest("id")


def events(key: str = "mail:1") -> list[tuple[str, str]]:
    """Return (outcome, actor) of all events of the jobs with this key."""
    found = JobEvent.objects.filter(job__key=key).order_by("id").values_list("outcome", "actor")
    return [(outcome, actor.partition(" (token ")[0]) for outcome, actor in found]


def _end_by_finish(queue: QueueClient) -> None:
    queue("pop", topic="mail.send")
    queue("finish", id="mail:1")


def _end_by_bury(queue: QueueClient) -> None:
    queue("pop", topic="mail.send")
    queue("bury", id="mail:1")


ENDS = [  # ways to end the ready job "mail:1", and the message about it afterwards
    (_end_by_finish, "'mail:1' was finished at 2030-01-01T00:00:00.000Z."),
    (_end_by_bury, "'mail:1' is dead since 2030-01-01T00:00:00.000Z."),
    (lambda queue: queue("delete", id="mail:1"), "'mail:1' was cancelled at 2030-01-01T00:00:00.000Z."),
]


@pytest.fixture(autouse=True)
def _topics(settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"mail.send": {"max_attempts": 3}, "sms.send": {}}}


@pytest.fixture
def client(make_token: Callable[..., str], api: Callable[..., Any]) -> Callable[..., QueueClient]:
    """client("go"): a client of the account "go", with every right on every topic."""

    def make(account: str = "php") -> QueueClient:
        return QueueClient(api(make_token(account, topics={"*": "produce consume manage"}, rate_per_minute=10**6)))

    return make


@pytest.fixture
def queue(client: Callable[..., QueueClient], db_clock: Any) -> QueueClient:
    """A client with every right, with the database clock stopped."""
    return client()


@pytest.fixture
def ready_after_first_reserve(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make mail:1 ready after the first attempt to reserve. The list has the number of jobs of each attempt."""
    counts: list[int] = []
    reserve = long_poll.leases.reserve

    def counting_reserve(*args: Any, **kwargs: Any) -> Any:
        jobs = reserve(*args, **kwargs)
        if not counts:
            schedule.schedule("mail.send", key="mail:1", delay=0, body={"to": "mail:1"})
        counts.append(len(jobs))
        return jobs

    monkeypatch.setattr(long_poll.leases, "reserve", counting_reserve)
    return counts
