"""Fencing: TTR, attempt numbers, and refusals of late commands."""

from collections.abc import Callable
from typing import Any

import pytest

from delaytasks.api.queue_protocol.lookup import Call
from delaytasks.maintenance import sweep
from delaytasks.models import Job

from .conftest import ENDS, QueueClient, events, job

T60 = "2030-01-01T00:01:00.000Z"


def test_finish_after_the_ttr_is_refused_even_before_the_job_is_taken_back(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    db_clock.advance(seconds=60)
    reason = f"Attempt 1 of 'mail:1' is over: its TTR of 60 s was over at {T60} and it can be popped again."
    for late in (queue("finish", id="mail:1"), queue("finish", id="mail:1", attempt=1)):
        assert late == {"success": False, "error": reason, "id": "mail:1", "value": None}
    assert job().ended_at is None


def test_finish_one_millisecond_before_the_end_of_the_ttr_is_accepted(queue: QueueClient, db_clock: Any) -> None:
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
    assert "held by another account" in without["error"]
    assert "Give the attempt" in without["error"]
    assert other("finish", id="mail:1")["success"]
    assert events()[-1] == ("finished", "go")


def test_attempt_distinguishes_two_reservations_by_the_same_account(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send", consumer="a")
    db_clock.advance(seconds=61)
    assert queue("pop", topic="mail.send", consumer="b")["attempt"] == 2
    assert not queue("finish", id="mail:1", attempt=1)["success"]
    assert queue("finish", id="mail:1", attempt=2)["success"]


def test_finish_of_a_job_that_was_taken_back_is_refused_with_that_reason(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    db_clock.advance(seconds=61)
    sweep.take_back_expired("default")
    taken_back = "its TTR of 60 s was over and it was taken back at 2030-01-01T00:01:01.000Z"
    for fields in ({}, {"attempt": 1}):
        late = queue("finish", id="mail:1", **fields)
        assert late["error"] == f"Attempt 1 of 'mail:1' is over: {taken_back} and it can be popped again."


@pytest.mark.parametrize("account", ["ph", "PHP", "phpx", "phpx/a"])
def test_account_does_not_hold_jobs_of_an_account_with_a_similar_name(
    queue: QueueClient, client: Callable[..., QueueClient], account: str
) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    Job.objects.update(worker=account)
    assert "held by another account" in queue("finish", id="mail:1")["error"]


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
def test_another_account_needs_the_receipt(
    queue: QueueClient, client: Callable[..., QueueClient], command: str
) -> None:
    queue.add()
    receipt = queue("pop", topic="mail.send")["receipt"]
    other = client("go")
    assert other("peek", id="mail:1")["value"]["attempt"] == 1, "whoever reads the topic sees the attempt"
    for proof in ({}, {"attempt": 1}):
        assert "held by another account" in other(command, id="mail:1", **proof)["error"]
    for proof in ({"attempt": 1, "receipt": "0" * 32}, {"receipt": receipt[:-1]}):
        for caller in (other, queue):
            assert caller(command, id="mail:1", **proof)["error"].startswith("This is not the receipt of attempt 1 of ")
    assert other(command, id="mail:1", attempt=1, receipt=receipt)["success"]


def test_receipt_is_of_one_reservation(queue: QueueClient, client: Callable[..., QueueClient]) -> None:
    queue.add()
    first = queue("pop", topic="mail.send")["receipt"]
    queue("release", id="mail:1")
    second = queue("pop", topic="mail.send")["receipt"]
    assert first != second
    assert not client("go")("finish", id="mail:1", receipt=first)["success"]
    assert not queue("finish", id="mail:1", receipt=first)["success"]
    assert queue("finish", id="mail:1", receipt=second)["success"]


def test_receipt_is_valid_after_the_secret_key_was_changed(
    queue: QueueClient, client: Callable[..., QueueClient], settings: Any
) -> None:
    queue.add()
    receipt = queue("pop", topic="mail.send")["receipt"]
    other = client("go")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [settings.SECRET_KEY]
    assert other("finish", id="mail:1", receipt=receipt)["success"]
    assert events()[-1] == ("finished", "go")


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
def test_job_that_is_not_popped_cannot_be_ended(queue: QueueClient, command: str) -> None:
    queue.add(delay=30)
    for fields in ({}, {"attempt": 1}):
        refused = queue(command, id="mail:1", **fields)
        assert not refused["success"]
        assert "has not been popped yet" in refused["error"]


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
def test_attempt_number_that_does_not_exist_is_refused(queue: QueueClient, command: str) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    assert "Attempt 2 of 'mail:1' does not exist: the latest is 1" in queue(command, id="mail:1", attempt=2)["error"]


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury", "delete", "peek"])
def test_id_without_any_job_is_unknown(queue: QueueClient, command: str) -> None:
    refused = queue(command, id="mail:404")
    assert refused == {
        "success": False, "error": "'mail:404' is unknown: no job has this id.", "id": "mail:404",
        "value": "unknown" if command == "delete" else None,
    }  # fmt: skip


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_command_on_an_ended_job_says_how_and_when_it_ended(
    queue: QueueClient, end: Callable[[QueueClient], object], reason: str, command: str
) -> None:
    queue.add()
    end(queue)
    for fields in ({}, {"attempt": 1}):
        assert queue(command, id="mail:1", **fields)["error"] == reason


def test_refusal_describes_the_job_that_ended_last(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("delete", id="mail:1")
    db_clock.advance(seconds=5)
    queue.add(topic="sms.send")
    queue("pop", topic="sms.send")
    queue("finish", id="mail:1")
    assert queue("finish", id="mail:1")["error"] == "'mail:1' was finished at 2030-01-01T00:00:05.000Z."


def test_lease_lost_between_lookup_and_update_is_refused(
    queue: QueueClient, db_clock: Any, monkeypatch: pytest.MonkeyPatch, views_only: None
) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    live_job = Call.live_job

    def slow_live_job(call: Call) -> Job:
        job = live_job(call)
        db_clock.advance(seconds=61)
        return job

    monkeypatch.setattr(Call, "live_job", slow_live_job)
    assert f"was over at {T60}" in queue("finish", id="mail:1")["error"]


@pytest.mark.parametrize("command", ["finish", "touch", "release", "bury"])
def test_an_attempt_that_begins_after_the_lookup_is_not_another_accounts(
    queue: QueueClient, client: Callable[..., QueueClient], command: str, monkeypatch: pytest.MonkeyPatch,
    views_only: None,
) -> None:  # fmt: skip
    queue.add()
    live_job = Call.live_job

    def slow_live_job(call: Call) -> Job:
        job = live_job(call)
        queue("pop", topic="mail.send")
        return job

    monkeypatch.setattr(Call, "live_job", slow_live_job)
    assert not client("go")(command, id="mail:1", attempt=1)["success"]
    assert (job().worker, events()[-1]) == ("php", ("scheduled", "php"))
    assert queue("finish", id="mail:1", attempt=1)["success"]
