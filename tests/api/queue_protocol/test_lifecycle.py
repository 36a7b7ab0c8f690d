"""A job from add to pop to finish."""

from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest

from delaytasks import topics
from delaytasks.models import Job, Topic

from .conftest import T0, QueueClient, events, job

T60 = "2030-01-01T00:01:00.000Z"


def test_a_job_is_added_popped_when_its_delay_is_over_and_finished(queue: QueueClient, db_clock: Any) -> None:
    added = queue("add", topic="mail.send", id="mail:1", delay=30, TTR=60, body={"to": "a@b.c"})
    assert added == {
        "success": True, "error": "", "id": "mail:1", "value": None,
        "due_at": "2030-01-01T00:00:30.000Z", "result": "created",
    }  # fmt: skip
    db_clock.advance(ms=29_999)
    assert queue("pop", topic="mail.send") == {"success": True, "error": "", "id": "", "value": None}
    db_clock.advance(ms=1)
    assert queue("pop", topic="mail.send") == {
        "success": True, "error": "", "id": "mail:1", "value": {"to": "a@b.c"},
        "job": job().pk, "attempt": 1, "receipt": ANY, "TTR": 60, "due_at": "2030-01-01T00:00:30.000Z",
        "deadline": "2030-01-01T00:01:30.000Z",
    }  # fmt: skip
    assert queue("finish", id="mail:1") == {"success": True, "error": "", "id": "mail:1", "value": None}
    assert queue("pop", topic="mail.send")["value"] is None
    assert events() == [("scheduled", "php"), ("finished", "php")]
    assert job().worker == "php"


@pytest.mark.parametrize("body", [{"a": [1, {"b": None}]}, [], [1], "text", "", 0, 1.5, True, False, None, {}])
def test_any_json_body_is_returned_unchanged(queue: QueueClient, body: Any) -> None:
    queue.add(body=body)
    popped = queue("pop", topic="mail.send")
    assert (popped["id"], popped["value"]) == ("mail:1", body)


def test_a_delay_and_a_ttr_may_have_fractions(queue: QueueClient) -> None:
    assert queue.add(delay=0.25, TTR=1.5)["due_at"] == "2030-01-01T00:00:00.250Z"
    assert queue("peek", id="mail:1")["value"]["TTR"] == 1.5
    assert queue.add("mail:2", delay=1.0, TTR=2.0)["due_at"] == "2030-01-01T00:00:01.000Z"
    assert job("mail:2").ttr_ms == 2000


@pytest.mark.on_both
def test_a_job_that_cannot_be_popped_before_it_expires_is_skipped(queue: QueueClient, db_clock: Any) -> None:
    queue.add("mail:late", expires=5)
    queue.add("mail:patient", expires=600)
    assert (job("mail:late").expires_ms, job("mail:patient").expires_ms) == (5000, 600_000)
    db_clock.advance(seconds=60)
    assert queue("pop", topic="mail.send")["id"] == "mail:patient"
    assert queue("peek", id="mail:late")["value"]["error"] == "Not run: it could not begin before it expired."


def test_an_id_keeps_its_spaces_and_its_letters(queue: QueueClient) -> None:
    queue.add(" Größe:Ω ")
    assert queue("pop", topic="mail.send")["id"] == " Größe:Ω "
    assert queue("finish", id=" Größe:Ω ")["success"]


def test_the_oldest_due_is_popped_first(queue: QueueClient, db_clock: Any) -> None:
    queue.add("mail:late", delay=2)
    queue.add("mail:early", delay=1)
    db_clock.advance(seconds=3)
    assert [queue("pop", topic="mail.send")["id"] for _ in range(3)] == ["mail:early", "mail:late", ""]


def test_pop_with_a_count_answers_with_a_list(queue: QueueClient) -> None:
    for number in range(3):
        queue.add(f"mail:{number}")
    popped = queue("pop", topic="mail.send", count=2)
    assert popped["id"] == ""
    assert popped["value"] == [
        {
            "id": f"mail:{n}",
            "body": {"to": f"mail:{n}"},
            "job": job(f"mail:{n}").pk,
            "attempt": 1,
            "receipt": ANY,
            "TTR": 60,
            "due_at": T0,
            "deadline": T60,
        }
        for n in range(2)
    ]
    assert [each["id"] for each in queue("pop", topic="mail.send", count=1)["value"]] == ["mail:2"]
    assert queue("pop", topic="mail.send", count=5)["value"] is None


def test_the_consumer_is_kept_with_the_job(queue: QueueClient) -> None:
    queue.add()
    queue("pop", topic="mail.send", consumer="host-7")
    assert job().worker == "php/host-7"
    assert queue("finish", id="mail:1")["success"]


def test_pop_of_a_paused_topic_returns_nothing(queue: QueueClient) -> None:
    queue.add()
    Topic.objects.update_or_create(name="mail.send", defaults={"paused": True})
    topics.clear_cache()
    assert queue("pop", topic="mail.send")["value"] is None


def test_pop_waits_until_a_job_is_ready(
    client: Callable[..., QueueClient], ready_after_first_reserve: list[int]
) -> None:
    popped = client()("pop", topic="mail.send", wait=30)
    assert (popped["id"], popped["value"], popped["attempt"]) == ("mail:1", {"to": "mail:1"}, 1)
    assert ready_after_first_reserve == [0, 1]


def test_pop_waits_at_most_the_requested_time(client: Callable[..., QueueClient]) -> None:
    assert client()("pop", topic="mail.send", wait=0.05) == {"success": True, "error": "", "id": "", "value": None}


def test_live_id_is_refused_in_its_own_topic_and_in_others(queue: QueueClient) -> None:
    queue.add()
    again = queue.add(delay=5)
    assert not again["success"]
    assert "'mail:1' is live" in again["error"]
    elsewhere = queue.add(topic="sms.send")
    assert not elsewhere["success"]
    assert "mail.send" in elsewhere["error"]
    assert Job.objects.count() == 1


@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_id_live_in_another_topic_is_refused_in_every_mode(queue: QueueClient, mode: str) -> None:
    queue.add()
    assert not queue.add(topic="sms.send", on_conflict=mode)["success"]
    assert Job.objects.count() == 1


def test_an_id_can_be_used_again_under_any_topic_when_its_job_has_ended(queue: QueueClient) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    queue("finish", id="mail:1")
    assert queue.add(topic="sms.send")["result"] == "created"


def test_on_conflict_keeps_or_replaces_a_live_job(queue: QueueClient) -> None:
    queue.add(delay=10, body=1)
    kept = queue.add(delay=20, body=2, on_conflict="keep")
    assert (kept["result"], kept["due_at"], job().body) == ("kept", "2030-01-01T00:00:10.000Z", 1)
    replaced = queue.add(delay=30, body=3, on_conflict="replace")
    assert (replaced["result"], replaced["due_at"], job().body) == ("replaced", "2030-01-01T00:00:30.000Z", 3)
    assert queue.add("mail:2", on_conflict="replace")["result"] == "created"
    assert events() == [("scheduled", "php"), ("rescheduled", "php")]


def test_a_job_that_is_popped_cannot_be_replaced(queue: QueueClient) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    refused = queue.add(on_conflict="replace")
    assert (refused["success"], refused["id"]) == (False, "mail:1")
    assert "running" in refused["error"]


def test_a_job_that_is_popped_runs_again_after_its_finish(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    added = queue.add(delay=10, body=2, on_conflict="again")
    assert (added["result"], added["due_at"]) == ("again", "2030-01-01T00:00:10.000Z")
    queue("finish", id="mail:1")
    db_clock.advance(seconds=10)
    assert queue("pop", topic="mail.send")["value"] == 2


def test_a_running_job_that_is_deleted_does_not_run_again(queue: QueueClient) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    queue.add(on_conflict="again")
    refused = queue("delete", id="mail:1")
    assert (refused["success"], refused["value"]) == (False, "running")
    assert queue("finish", id="mail:1")["success"]
    assert queue("peek", id="mail:1")["value"]["state"] == "finished"


def test_late_finish_does_not_finish_a_new_job_with_the_same_id(queue: QueueClient, db_clock: Any) -> None:
    """Attempts start from 1 again, so only the job number distinguishes the two jobs."""
    queue.add()
    late = queue("pop", topic="mail.send")
    db_clock.advance(seconds=61)
    queue("pop", topic="mail.send")
    queue("finish", id="mail:1")
    queue.add()
    held = queue("pop", topic="mail.send")
    assert held["attempt"] == late["attempt"]
    refused = queue("finish", id="mail:1", job=late["job"], attempt=late["attempt"])
    assert (refused["success"], refused["error"]) == (False, "'mail:1' was finished at 2030-01-01T00:01:01.000Z.")
    assert queue("finish", id="mail:1", job=held["job"], attempt=held["attempt"])["success"]


def test_a_repeated_finish_says_what_became_of_its_job_and_not_of_a_later_one(queue: QueueClient) -> None:
    queue.add()
    popped = queue("pop", topic="mail.send")
    held = {"id": "mail:1", "job": popped["job"], "attempt": popped["attempt"]}
    assert queue("finish", **held)["success"]
    queue.add()
    for later in ("live", "cancelled"):
        assert "was finished at" in queue("finish", **held)["error"], later
        queue("delete", id="mail:1")


def test_a_job_number_that_is_another_live_jobs_is_not_said_to_have_ended(queue: QueueClient) -> None:
    for key in ("mail:1", "mail:2"):
        queue.add(key)
        queue("pop", topic="mail.send")
    first, second = job("mail:1").pk, job("mail:2").pk
    refused = queue("finish", id="mail:2", attempt=1, job=first)
    assert (refused["success"], refused["error"]) == (False, f"'mail:2' is now job {second}, not job {first}.")
