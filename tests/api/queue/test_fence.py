"""Who may still end a job: its TTR, the attempt, and what is said to those who are too late."""

from collections.abc import Callable
from typing import Any

import pytest

from delaytasks import sweeper
from delaytasks.api.queue_jobs import Call
from delaytasks.models import Job

from .conftest import ENDS, QueueClient, events, job

T60 = "2030-01-01T00:01:00.000Z"


def test_a_finish_after_the_ttr_is_refused_even_if_nobody_took_the_job_since(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    db_clock.advance(seconds=60)
    reason = f"Attempt 1 of 'mail:1' is over: its TTR of 60 s was over at {T60} and it can be popped again."
    for late in (queue("finish", id="mail:1"), queue("finish", id="mail:1", attempt=1)):
        assert late == {"success": False, "error": reason, "id": "mail:1", "value": None}
    assert job().ended_at is None


def test_a_finish_one_millisecond_before_the_end_of_the_ttr_is_taken(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    db_clock.advance(ms=59_999)
    assert queue("finish", id="mail:1", attempt=1)["success"]


def test_a_job_not_finished_within_its_ttr_is_popped_again_and_the_late_finish_refused(
    queue: QueueClient, client: Callable[..., QueueClient], db_clock: Any
) -> None:
    queue.add()
    assert queue("pop", topic="mail.send")["attempt"] == 1
    db_clock.advance(seconds=61)
    other = client("go")
    again = other("pop", topic="mail.send")
    assert (again["id"], again["attempt"]) == ("mail:1", 2)
    with_attempt = queue("finish", id="mail:1", attempt=1)
    assert not with_attempt["success"]
    assert "its TTR of 60 s was over" in with_attempt["error"]
    assert "popped again as attempt 2 at 2030-01-01T00:01:01.000Z" in with_attempt["error"]
    without = queue("finish", id="mail:1")
    assert not without["success"]
    assert "held by somebody else" in without["error"]
    assert "give the attempt" in without["error"]
    assert other("finish", id="mail:1")["success"]
    assert events()[-1] == ("finished", "go")


def test_a_second_reservation_of_the_same_account_is_told_apart_by_the_attempt(
    queue: QueueClient, db_clock: Any
) -> None:
    queue.add()
    queue("pop", topic="mail.send", consumer="a")
    db_clock.advance(seconds=61)
    assert queue("pop", topic="mail.send", consumer="b")["attempt"] == 2
    assert not queue("finish", id="mail:1", attempt=1)["success"]
    assert queue("finish", id="mail:1", attempt=2)["success"]


def test_a_finish_after_the_job_was_taken_back_says_so(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    db_clock.advance(seconds=61)
    sweeper.take_back_expired("default")
    taken_back = "its TTR of 60 s was over and it was taken back at 2030-01-01T00:01:01.000Z"
    for fields in ({}, {"attempt": 1}):
        late = queue("finish", id="mail:1", **fields)
        assert late["error"] == f"Attempt 1 of 'mail:1' is over: {taken_back} and it can be popped again."


@pytest.mark.parametrize("account", ["ph", "PHP", "phpx", "phpx/a"])
def test_an_account_holds_nothing_of_one_with_a_similar_name(
    queue: QueueClient, client: Callable[..., QueueClient], account: str
) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    Job.objects.update(worker=account)
    assert "held by somebody else" in queue("finish", id="mail:1")["error"]


def test_another_account_finishes_with_the_attempt_it_was_told(
    queue: QueueClient, client: Callable[..., QueueClient]
) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    other = client("go")
    assert not other("finish", id="mail:1")["success"]
    assert other("finish", id="mail:1", attempt=1)["success"]
    assert events()[-1] == ("finished", "go")


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
def test_what_is_not_popped_cannot_be_ended(queue: QueueClient, command: str) -> None:
    queue.add(delay=30)
    for fields in ({}, {"attempt": 1}):
        refused = queue(command, id="mail:1", **fields)
        assert not refused["success"]
        assert "was not popped yet" in refused["error"]


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
def test_an_attempt_that_was_never_given_out_is_refused(queue: QueueClient, command: str) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    assert "was never given out: the latest is 1" in queue(command, id="mail:1", attempt=2)["error"]


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury", "delete", "peek"])
def test_an_id_that_never_was_is_unknown(queue: QueueClient, command: str) -> None:
    refused = queue(command, id="mail:404")
    assert refused == {
        "success": False, "error": "'mail:404' is unknown: no job has this id.", "id": "mail:404",
        "value": "unknown" if command == "delete" else None,
    }  # fmt: skip


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_what_has_ended_says_how_and_when(
    queue: QueueClient, end: Callable[[QueueClient], object], reason: str, command: str
) -> None:
    queue.add()
    end(queue)
    for fields in ({}, {"attempt": 1}):
        assert queue(command, id="mail:1", **fields)["error"] == reason


def test_the_one_that_ended_last_is_spoken_of(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("delete", id="mail:1")
    db_clock.advance(seconds=5)
    queue.add(topic="sms.send")
    queue("pop", topic="sms.send")
    queue("finish", id="mail:1")
    assert queue("finish", id="mail:1")["error"] == "'mail:1' was finished at 2030-01-01T00:00:05.000Z."


def test_a_lease_that_is_lost_between_the_look_and_the_statement_is_refused(
    queue: QueueClient, db_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    look = Call.live

    def look_slowly(call: Call) -> Job:
        found = look(call)
        db_clock.advance(seconds=61)
        return found

    monkeypatch.setattr(Call, "live", look_slowly)
    assert f"was over at {T60}" in queue("finish", id="mail:1")["error"]
