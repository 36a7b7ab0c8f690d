"""peek, and the lookup of jobs by id."""

from collections.abc import Callable
from typing import Any

import pytest

from delaytasks.jobs import schedule

from .conftest import T0, QueueClient, events, job

pytestmark = pytest.mark.on_both  # the lookup is SQL

# -- peek ---------------------------------------------------------------------------------------


def test_peek_shows_a_job_in_each_of_its_states_and_changes_nothing(queue: QueueClient, db_clock: Any) -> None:
    queue.add(delay=10)

    def seen() -> tuple[Any, ...]:
        value = queue("peek", id="mail:1")["value"]
        return value["state"], value["attempt"], value["deadline"], value["ended_at"]

    assert seen() == ("delayed", 0, None, None)
    db_clock.advance(seconds=10)
    assert seen() == ("ready", 0, None, None)
    queue("pop", topic="mail.send")
    assert seen() == ("reserved", 1, "2030-01-01T00:01:10.000Z", None)
    queue("finish", id="mail:1")
    assert seen() == ("finished", 1, None, "2030-01-01T00:00:10.000Z")
    assert [outcome for outcome, _ in events()] == ["scheduled", "finished"]


def test_peek_shows_all_fields_of_a_job(queue: QueueClient) -> None:
    queue.add(delay=10)
    assert queue("peek", id="mail:1") == {
        "success": True, "error": "", "id": "mail:1",
        "value": {
            "id": "mail:1", "topic": "mail.send", "state": "delayed", "due_at": "2030-01-01T00:00:10.000Z",
            "attempt": 0, "failures": 0, "TTR": 60, "body": {"to": "mail:1"}, "created_at": T0,
            "deadline": None, "ended_at": None, "error": "",
        },
    }  # fmt: skip


def test_peek_at_a_topic_shows_the_next_ready_job_else_the_next_delayed_one_else_nothing(
    queue: QueueClient, db_clock: Any
) -> None:
    assert queue("peek", topic="mail.send") == {"success": True, "error": "", "id": "", "value": None}
    queue.add("mail:later", delay=20)
    queue.add("mail:sooner", delay=10)
    queue.add("sms:1", topic="sms.send")
    assert queue("peek", topic="mail.send")["id"] == "mail:sooner"
    db_clock.advance(seconds=30)
    assert queue("peek", topic="mail.send")["value"]["state"] == "ready"
    queue("pop", topic="mail.send")
    assert queue("peek", topic="mail.send")["id"] == "mail:later"
    queue("pop", topic="mail.send")
    assert queue("peek", topic="mail.send")["value"] is None


def test_peek_shows_the_job_that_pop_gives(queue: QueueClient) -> None:
    queue.add("mail:low")
    queue.add("mail:high", priority=9)
    assert queue("peek", topic="mail.send")["id"] == "mail:high"
    assert queue("pop", topic="mail.send")["id"] == "mail:high"


# -- one id, several topics ---------------------------------------------------------------------


@pytest.fixture
def twice(queue: QueueClient) -> None:
    """Two live jobs with the same key in two topics; the protocol's add would refuse the second."""
    for topic in ("mail.send", "sms.send"):
        schedule.schedule(topic, key="order:1", delay=0)


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury", "delete", "peek"])
def test_id_live_in_several_topics_requires_the_topic(queue: QueueClient, command: str) -> None:
    refused = queue(command, id="order:1")
    assert not refused["success"]
    assert refused["error"] == "'order:1' is live in several topics: mail.send, sms.send. Give the topic as well."


@pytest.mark.usefixtures("twice")
def test_topic_selects_one_of_several_jobs_with_the_same_id(queue: QueueClient) -> None:
    queue("pop", topic="sms.send")
    assert queue("finish", id="order:1", topic="sms.send")["success"]
    assert queue("peek", id="order:1", topic="sms.send")["value"]["state"] == "finished"
    assert queue("peek", id="order:1", topic="mail.send")["value"]["state"] == "ready"
    assert queue("peek", id="order:1")["value"]["topic"] == "mail.send"  # the only one that is live
    assert queue("delete", id="order:1", topic="mail.send")["value"] == "cancelled"


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
def test_receipt_selects_one_of_several_jobs_with_the_same_id(
    queue: QueueClient, client: Callable[..., QueueClient], command: str
) -> None:
    receipt = queue("pop", topic="mail.send")["receipt"]
    assert client("go")(command, id="order:1", receipt=receipt)["success"]


def test_id_is_unknown_in_a_topic_without_such_a_job(queue: QueueClient) -> None:
    queue.add()
    assert "unknown" in queue("delete", id="mail:1", topic="sms.send")["error"]
    assert job().ended_at is None
