"""cancel_many(): all live jobs that match, in pages, with counts."""

import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from delaytasks import cancel_many, schedule, schedule_many
from delaytasks.db import dialects, transitions
from delaytasks.db.transitions import Cancel
from delaytasks.exceptions import BadInput, BadKey, UnknownTopic
from delaytasks.jobs import cancellation, next_runs
from delaytasks.models import Job, JobEvent
from delaytasks.signals import job_cancelled
from delaytasks.states import State
from delaytasks.worker import leases
from project.shop.models import Product

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def jobs(stage: Any) -> None:
    for topic in ("a", "b"):
        stage.recorder(topic)
        schedule_many({"topic": topic, "key": f"order:{n}:{m}", "delay": HOUR} for n in range(3) for m in range(4))


def cancelled() -> list[tuple[str, str]]:
    return sorted(Job.objects.filter(state=State.CANCELLED).values_list("topic", "key"))


def test_all_jobs_of_a_topic() -> None:
    assert cancel_many(topic="a") == (12, 0, 0)
    assert {topic for topic, _ in cancelled()} == {"a"}
    assert cancel_many(topic="a") == (0, 0, 0)


def test_a_prefix_narrows_the_topic() -> None:
    assert cancel_many(topic="a", key_prefix="order:1:").cancelled == 4
    assert cancelled() == [("a", f"order:1:{n}") for n in range(4)]


def test_a_prefix_is_no_pattern(stage: Any) -> None:
    schedule("a", "100%", delay=HOUR)
    schedule("a", "1000", delay=HOUR)
    assert cancel_many(topic="a", key_prefix="100%").cancelled == 1


def test_all_jobs_of_a_subject_across_topics() -> None:
    product = Product.objects.create(name="lamp", price=Decimal(10), stock=3)
    for topic in ("a", "b"):
        schedule(topic, subject=product, delay=HOUR)
    assert cancel_many(topic="b", subject=product) == (1, 0, 0)
    assert cancel_many(subject=product) == (1, 0, 0)
    assert len(cancelled()) == 2


def test_a_job_that_died_meanwhile_is_cancelled_only_on_request() -> None:
    Job.objects.filter(topic="a").update(state=State.DEAD, ended_at=F("created_at"), died_at=F("created_at"))
    cancels = [Cancel(job_id) for job_id in Job.objects.filter(topic="a").values_list("pk", flat=True)]
    with transaction.atomic():
        assert transitions.cancel_each("default", cancels) == []
        assert len(transitions.cancel_each("default", cancels, dead=True)) == len(cancels)


def test_running_jobs_are_counted_and_not_disturbed(stage: Any) -> None:
    schedule("a", "due", delay=0)
    (held,) = stage.take("a", 1)
    assert cancel_many(topic="a") == (12, 1, 0)
    assert Job.objects.get(pk=held.id).state == State.RESERVED


def test_a_job_that_ended_meanwhile_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    matching = cancellation._matching

    def slow(*args: Any) -> list[int]:
        ids = matching(*args)
        cancel_many(topic="a", key_prefix="order:0:")
        return ids

    monkeypatch.setattr(cancellation, "_matching", lambda *args: slow(*args) if args[2] is None else matching(*args))
    assert cancel_many(topic="a") == (8, 0, 4)


def test_a_job_whose_attempt_fails_meanwhile_is_cancelled(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule("a", "due", delay=0)
    (held,) = stage.take("a", 1)
    withdraw, failed = next_runs.withdraw, []

    def fail_before(*args: Any, **kwargs: Any) -> Any:
        if not failed:
            failed.append(leases.release(held.id, held.attempt, using="default", delay=60))
        return withdraw(*args, **kwargs)

    monkeypatch.setattr(next_runs, "withdraw", fail_before)
    assert cancel_many(topic="a") == (13, 0, 0)
    assert Job.objects.get(pk=held.id).state == State.CANCELLED


@pytest.mark.only_on("postgresql")
def test_a_job_that_waits_again_and_is_locked_is_not_waited_for(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call may have locked jobs with higher ids: a wait could be a deadlock."""
    schedule("a", "due", delay=0)
    (held,) = stage.take("a", 1)
    withdraw, other = next_runs.withdraw, connection.copy()

    def release() -> None:
        leases.release(held.id, held.attempt, using="default", delay=60)
        connections.close_all()

    def release_and_lock(*args: Any, **kwargs: Any) -> Any:
        if other.connection is None:
            thread = threading.Thread(target=release)
            thread.start()
            thread.join(30)
            other.set_autocommit(False)
            with other.cursor() as cursor:
                cursor.execute("SELECT 1 FROM delaytasks_job WHERE id = %s FOR UPDATE", [held.id])
        return withdraw(*args, **kwargs)

    monkeypatch.setattr(next_runs, "withdraw", release_and_lock)
    with transaction.atomic():
        dialects.wait_at_most("default", 5_000)
        assert cancel_many(topic="a") == (12, 1, 0)
    other.close()


def test_each_job_gets_an_event_with_who_and_why() -> None:
    cancel_many(topic="a", by="ann", reason="closed")
    events = JobEvent.objects.filter(outcome="cancelled")
    assert set(events.values_list("actor", "reason", "job__topic")) == {("ann", "closed", "a")}
    assert events.count() == 12


def test_one_statement_for_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "PAGE", 5)
    with CaptureQueriesContext(connection) as queries:
        assert cancel_many(topic="a").cancelled == 12
    assert sum("UPDATE delaytasks_job" in q["sql"] for q in queries) == 3


def test_the_signal_is_sent_for_each_job() -> None:
    keys = []

    def receiver(*, job: Job, **_: Any) -> None:
        keys.append(job.key)

    job_cancelled.connect(receiver)
    try:
        cancel_many(topic="a", key_prefix="order:2:")
    finally:
        job_cancelled.disconnect(receiver)
    assert sorted(keys) == [f"order:2:{n}" for n in range(4)]


def test_cancelled_jobs_leave_the_mirror_and_never_run(stage: Any, db_clock: Any) -> None:
    cancel_many(topic="a")
    db_clock.advance(seconds=3601)
    stage.go()
    assert Job.objects.filter(topic="a", state=State.FINISHED).count() == 0
    assert Job.objects.filter(topic="b", state=State.FINISHED).count() == 12


def test_in_a_transaction_it_takes_effect_with_the_transaction() -> None:
    with transaction.atomic():
        assert cancel_many(topic="a").cancelled == 12
        transaction.set_rollback(True)
    assert cancelled() == []


@pytest.mark.parametrize(("arguments", "error"), [
    ({}, BadInput), ({"key_prefix": "order:"}, BadInput), ({"topic": "unheard.of"}, UnknownTopic),
    ({"topic": "a", "key_prefix": ""}, BadKey), ({"subject": "order:1"}, BadInput),
    ({"topic": "a", "subject": None}, BadInput),
    ({"topic": "a", "by": "x\n"}, BadInput),
])  # fmt: skip
def test_wrong_arguments_cancel_nothing(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        cancel_many(**arguments)
    assert cancelled() == []
