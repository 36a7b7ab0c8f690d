"""Rights in the queue protocol; hidden topics stay hidden."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from delaytasks.api import long_poll
from delaytasks.api.access.permissions import TokenCaller
from delaytasks.api.models import Token
from delaytasks.api.queue_protocol import lookup
from delaytasks.db import dialects
from delaytasks.jobs import schedule
from delaytasks.models import Job, Topic

from .conftest import QueueClient

COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"topic": "mail.send", "id": "mail:new", "delay": 0, "TTR": 60, "body": {}}),
    ("pop", {"topic": "mail.send"}),
    ("finish", {"id": "mail:1", "attempt": 1}),
    ("delete", {"id": "mail:2"}),
    ("touch", {"id": "mail:1", "attempt": 1}),
    ("release", {"id": "mail:1", "attempt": 1}),
    ("bury", {"id": "mail:1", "attempt": 1}),
    ("peek", {"id": "mail:1"}),
    ("peek", {"topic": "mail.send"}),
]
BY_RIGHT = {
    "add": {"produce"},
    "pop": {"consume"},
    "finish": {"consume"},
    "delete": {"produce", "manage"},
    "touch": {"consume"},
    "release": {"consume"},
    "bury": {"consume"},
    "peek": {"produce", "consume", "manage"},
}


@pytest.fixture(autouse=True)
def _jobs(settings: Any, db_clock: Any) -> None:
    """mail:1 is reserved, mail:2 is ready; pay:1 is in a topic hidden from most callers."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"mail.send": {}, "sms.send": {}, "pay.refund": {}}}
    for topic, key in (("mail.send", "mail:1"), ("mail.send", "mail:2"), ("pay.refund", "pay:1")):
        schedule.schedule(topic, key=key, delay=0)
    Job.objects.filter(key="mail:1").update(
        state=3, attempt=1, reserved_at="2030-01-01T00:00:00Z", lease_until="2030-01-01T00:01:00Z", worker="someone"
    )


@pytest.fixture
def caller(make_token: Callable[..., str], api: Callable[..., Any]) -> Callable[..., QueueClient]:
    """caller("php", "mail.send", "consume")"""
    return lambda name, topic, rights: QueueClient(api(make_token(name, topics={topic: rights})))


@pytest.mark.parametrize("right", ["produce", "consume", "manage"])
@pytest.mark.parametrize(("command", "fields"), COMMANDS)
def test_a_command_needs_its_right_on_the_topic(
    caller: Callable[..., QueueClient], command: str, fields: dict[str, Any], right: str
) -> None:
    for pattern in ("mail.send", "mail.*", "*"):
        Job.objects.filter(key="mail:new").delete()
        queue = caller(f"php-{len(pattern)}", pattern, right)
        if right in BY_RIGHT[command]:
            queue(command, **fields)  # HTTP 200: allowed, even if the state refuses it
            continue
        before = list(Job.objects.values())
        refused = queue.refused(403, command, **fields)
        assert "mail.send" in refused["error"]
        assert all(needed in refused["error"] for needed in BY_RIGHT[command])
        assert list(Job.objects.values()) == before


@pytest.mark.parametrize(("command", "fields"), COMMANDS)
def test_a_named_topic_without_a_grant_is_refused_alike_whether_or_not_it_exists(
    caller: Callable[..., QueueClient], command: str, fields: dict[str, Any]
) -> None:
    queue = caller("php", "sms.send", "produce consume manage")
    found = [queue.refused(403, command, **fields | {"topic": topic}) for topic in ("mail.send", "none.such")]
    assert found[0]["error"].replace("mail.send", "none.such") == found[1]["error"]
    assert {answer["id"] for answer in found} == {fields.get("id", "")}


@pytest.mark.parametrize("command", ["finish", "delete", "touch", "release", "bury", "peek"])
def test_id_in_a_hidden_topic_is_answered_like_an_unknown_id(caller: Callable[..., QueueClient], command: str) -> None:
    queue = caller("php", "mail.*", "produce consume manage")
    elsewhere, unknown = queue(command, id="pay:1"), queue(command, id="pay:9")
    assert not elsewhere["success"]
    assert {**elsewhere, "id": "", "error": elsewhere["error"].replace("pay:1", "")} == {
        **unknown, "id": "", "error": unknown["error"].replace("pay:9", ""),
    }  # fmt: skip


def test_id_live_in_a_hidden_topic_neither_blocks_add_nor_makes_an_id_ambiguous(
    caller: Callable[..., QueueClient],
) -> None:
    queue = caller("php", "mail.*", "produce consume")
    assert queue("add", topic="mail.send", id="pay:1", delay=0, TTR=60, body=1)["result"] == "created"
    assert queue("peek", id="pay:1")["value"]["topic"] == "mail.send"
    assert queue("delete", id="pay:1")["success"]
    assert Job.objects.get(topic="pay.refund").ended_at is None
    everything = caller("ops", "*", "manage")
    schedule.schedule("sms.send", key="pay:1", delay=0)
    assert "several topics: pay.refund, sms.send" in everything("delete", id="pay:1")["error"]


def test_end_of_a_job_is_not_revealed_without_the_right(caller: Callable[..., QueueClient]) -> None:
    caller("ops", "*", "manage")("delete", id="mail:2")
    refused = caller("php", "mail.send", "produce").refused(403, "finish", id="mail:2")
    assert "consume" in refused["error"]
    assert "cancelled" not in refused["error"]


def test_pop_of_a_prefix_gives_nothing_of_other_topics(caller: Callable[..., QueueClient]) -> None:
    queue = caller("php", "mail.*", "consume")
    queue.refused(403, "pop", topic="pay.refund")
    assert queue("pop", topic="mail.send", count=10)["value"][0]["id"] == "mail:2"
    assert Job.objects.get(key="pay:1").attempt == 0


def test_a_topic_known_only_by_its_row_is_found_by_id(caller: Callable[..., QueueClient]) -> None:
    Topic.objects.create(name="fax.send")
    queue = caller("php", "fax.*", "produce")
    assert queue("add", topic="fax.send", id="fax:1", delay=5, TTR=60, body=1)["success"]
    assert queue("delete", id="fax:1")["value"] == "cancelled"


@pytest.mark.parametrize(("command", "fields"), COMMANDS)
def test_command_without_a_valid_token_is_unauthorized(
    api: Callable[..., Any], command: str, fields: dict[str, Any]
) -> None:
    for client in (api(), api("not.atoken")):
        refused = QueueClient(client).refused(401, command, **fields)
        assert "token" in refused["error"]
        assert refused["id"] == ""  # the body of an unauthenticated request is not read
        answer = client.post("/api/queue/", {"command": command, **fields})
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_staff_can_peek_and_delete_but_not_consume(staff_api: Callable[..., Any]) -> None:
    staff = QueueClient(staff_api("delaytasks.view_job", "delaytasks.operate_job"))
    assert staff("peek", id="mail:1")["value"]["state"] == "reserved"
    assert staff("delete", id="mail:2")["success"]
    staff.refused(403, "pop", topic="mail.send")
    staff.refused(403, "finish", id="mail:1", attempt=1)
    looking = QueueClient(staff_api("delaytasks.view_job"))
    assert looking("peek", topic="pay.refund")["id"] == "pay:1"
    looking.refused(403, "delete", id="pay:1")


def test_a_revoked_token_is_refused_in_the_envelope(caller: Callable[..., QueueClient]) -> None:
    queue = caller("php", "*", "consume")
    Token.objects.update(revoked=True)
    queue.refused(401, "pop", topic="mail.send")


def test_a_token_revoked_while_its_poll_waits_gets_no_job(
    caller: Callable[..., QueueClient], ready_after_first_reserve: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    dialects.set_clock(None)
    Job.objects.all().delete()
    queue = caller("php", "*", "consume")
    monkeypatch.setattr(TokenCaller, "still_valid", lambda self: False)
    queue.refused(401, "pop", topic="mail.send", wait=30)
    assert ready_after_first_reserve == [0]
    assert Job.objects.get(key="mail:1").attempt == 0


def test_too_many_requests_are_refused_in_the_envelope_with_the_time_to_wait(
    make_token: Callable[..., str], api: Callable[..., Any]
) -> None:
    client = api(make_token(topics={"*": "consume"}, rate_per_minute=2))
    queue = QueueClient(client)
    for _ in range(2):
        queue("pop", topic="mail.send")
    queue.refused(429, "pop", topic="mail.send")
    assert int(client.post("/api/queue/", {"command": "pop"}).headers["Retry-After"]) > 0


@pytest.mark.parametrize("command", ["peek", "pop"])
def test_a_database_that_does_not_answer_is_503_in_the_envelope(
    caller: Callable[..., QueueClient], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def down(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(long_poll.leases, "reserve", down)
    monkeypatch.setattr(lookup.Call, "_candidates", down)
    fields = {"topic": "mail.send"} if command == "pop" else {"id": "mail:1"}
    client = caller("php", "*", "consume").client
    answer = client.post("/api/queue/", {"command": command, **fields})
    assert (answer.status_code, answer.json()["success"]) == (503, False)
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json()["id"] == fields.get("id", "")
    assert "server closed" not in answer.json()["error"]


def test_finish_without_topic_finishes_the_one_job_that_the_caller_holds(
    caller: Callable[..., QueueClient], db_clock: Any
) -> None:
    """The same key may be live in two topics."""
    both = caller("php", "*", "consume")
    schedule.schedule("mail.send", key="twice:1", delay=0)
    schedule.schedule("sms.send", key="twice:1", delay=600)
    held = next(each for each in both("pop", topic="mail.send", count=9)["value"] if each["id"] == "twice:1")
    assert both("finish", id="twice:1", attempt=held["attempt"])["success"]
    assert list(Job.objects.live().filter(key="twice:1").values_list("topic", flat=True)) == ["sms.send"]
