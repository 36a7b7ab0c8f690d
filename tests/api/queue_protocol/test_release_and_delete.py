"""touch, release, bury and delete."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delaytasks.jobs import control
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from delaytasks.worker import leases

from .conftest import ENDS, T0, QueueClient, events, job

# -- touch, release, bury -----------------------------------------------------------------------


def test_touch_restarts_the_ttr(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    db_clock.advance(seconds=59)
    assert queue("touch", id="mail:1")["value"] == "2030-01-01T00:01:59.000Z"
    db_clock.advance(seconds=59)
    assert queue("touch", id="mail:1", attempt=1)["success"]
    db_clock.advance(seconds=60)
    assert not queue("touch", id="mail:1", attempt=1)["success"]


def test_a_released_job_can_be_popped_at_once_or_after_its_delay(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    assert queue("release", id="mail:1")["value"] == "delayed"
    assert queue("pop", topic="mail.send")["attempt"] == 2
    assert queue("release", id="mail:1", attempt=2, delay=30)["value"] == "delayed"
    assert "can be popped again at 2030-01-01T00:00:30.000Z" in queue("finish", id="mail:1", attempt=2)["error"]
    assert queue("pop", topic="mail.send")["value"] is None
    db_clock.advance(seconds=30)
    assert queue("pop", topic="mail.send")["attempt"] == 3
    assert job().failures == 0
    assert events() == [("scheduled", "php"), ("released", "php"), ("released", "php")]


def test_finish_after_a_release_says_when_the_job_was_released(queue: QueueClient) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    queue("release", id="mail:1")
    expected = f"Attempt 1 of 'mail:1' is over: it was released at {T0} and it can be popped again."
    assert queue("finish", id="mail:1", attempt=1)["error"] == expected
    assert queue("finish", id="mail:1")["error"] == expected


def test_a_release_with_an_error_counts_as_a_failure_until_the_job_is_dead(queue: QueueClient) -> None:
    queue.add()
    for expected in ("delayed", "delayed", "dead"):
        queue("pop", topic="mail.send")
        assert queue("release", id="mail:1", error="SMTP 451\ntry later", delay=0)["value"] == expected
    assert (job().failures, job().error) == (3, "try later")
    assert [outcome for outcome, _ in events()] == ["scheduled", "failed", "failed", "dead"]


def test_a_release_with_an_error_and_no_delay_has_the_topics_backoff(queue: QueueClient, db_clock: Any) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    queue("release", id="mail:1", error="SMTP 451")
    assert queue("pop", topic="mail.send")["value"] is None
    assert job().due_ms > db_clock.now_ms


def test_a_buried_job_is_dead_and_keeps_the_reason(queue: QueueClient) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    assert queue("bury", id="mail:1", reason="no such address")["value"] == "dead"
    assert (job().state, job().error) == (6, "no such address")
    assert events()[-1] == ("dead", "php")


# -- delete -------------------------------------------------------------------------------------


def test_delayed_or_ready_job_is_deleted_and_deleting_it_again_succeeds(queue: QueueClient) -> None:
    for key, delay in (("mail:1", 30), ("mail:2", 0)):
        queue.add(key, delay=delay)
        for _ in range(2):
            assert queue("delete", id=key) == {"success": True, "error": "", "id": key, "value": "cancelled"}
    assert queue("pop", topic="mail.send")["value"] is None
    assert events() == [("scheduled", "php"), ("cancelled", "php")]


def test_popped_job_is_not_deleted(queue: QueueClient) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    refused = queue("delete", id="mail:1")
    assert (refused["success"], refused["value"]) == (False, "running")
    assert refused["error"] == f"'mail:1' is running, as attempt 1 since {T0}, and was not cancelled."
    assert queue("finish", id="mail:1")["success"]


def test_finished_job_is_not_deleted(queue: QueueClient) -> None:
    end, reason = ENDS[0]
    queue.add()
    end(queue)
    refused = queue("delete", id="mail:1")
    assert refused == {"success": False, "error": reason, "id": "mail:1", "value": "already finished"}
    assert job().state == State.FINISHED


def test_dead_job_is_deleted(queue: QueueClient) -> None:
    end, _reason = ENDS[1]
    queue.add()
    end(queue)
    for _ in range(2):
        assert queue("delete", id="mail:1") == {"success": True, "error": "", "id": "mail:1", "value": "cancelled"}
    assert job().state == State.CANCELLED
    assert [outcome for outcome, _actor in events()] == ["scheduled", "dead", "cancelled"]


@pytest.fixture
def before_cancel(views_only: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """Steps to run between the lookup of delete and its SQL statement."""
    steps: list[Callable[[], object]] = []
    cancel = control.cancel_by_id

    def slowly(*args: Any, **kwargs: Any) -> Any:
        for step in steps:
            step()
        return cancel(*args, **kwargs)

    monkeypatch.setattr(control, "cancel_by_id", slowly)
    return steps


def test_delete_that_loses_a_race_against_a_pop_says_running(
    queue: QueueClient, before_cancel: list[Callable[[], object]]
) -> None:
    queue.add()
    before_cancel.append(lambda: leases.reserve("mail.send", 1, using="default", worker="w1"))
    refused = queue("delete", id="mail:1")
    assert (refused["success"], refused["value"]) == (False, "running")
    assert f"as attempt 1 since {T0}" in refused["error"]


def test_delete_that_loses_a_race_against_a_finish_says_already_finished(
    queue: QueueClient, before_cancel: list[Callable[[], object]]
) -> None:
    queue.add()
    queue("pop", topic="mail.send")
    before_cancel.append(lambda: leases.finish(job().pk, 1, using="default"))
    refused = queue("delete", id="mail:1")
    assert (refused["success"], refused["value"]) == (False, "already finished")
    assert refused["error"] == f"'mail:1' was finished at {T0}."


def test_delete_that_loses_a_race_against_pruning_says_unknown(
    queue: QueueClient, before_cancel: list[Callable[[], object]]
) -> None:
    queue.add()
    before_cancel.append(lambda: (JobEvent.objects.all()._raw_delete("default"), Job.objects.all().delete()))
    refused = queue("delete", id="mail:1")
    assert (refused["success"], refused["value"]) == (False, "unknown")
