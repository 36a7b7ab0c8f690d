"""Each signal is sent after the commit, from the topic, with the arguments that delaytasks.signals lists."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from django.db import transaction

from delaytasks import Retry, RunningJob, Snooze, cancel, reschedule, retry_dead, run_now, schedule, signals
from delaytasks.maintenance import sweep
from delaytasks.models import Job
from delaytasks.worker import leases

from ..support.stage import Boom


class SentSignal(NamedTuple):
    signal: str
    sender: str
    job: Any
    extra: dict[str, Any]


@pytest.fixture
def sent() -> Iterator[list[SentSignal]]:
    """The signals that were sent, in order."""
    found: list[SentSignal] = []
    receivers = {}
    for name in signals.__all__:

        def receive(sender: str, job: Any, signal: Any, name: str = name, **extra: Any) -> None:
            found.append(SentSignal(name, sender, job, extra))

        receivers[name] = receive
        getattr(signals, name).connect(receive)
    yield found
    for name, receive in receivers.items():
        assert getattr(signals, name).disconnect(receive)


def names(sent: list[SentSignal]) -> list[str]:
    return [one.signal for one in sent]


def test_a_change_sends_its_signal_with_the_row_after_the_commit(stage, sent):
    stage.recorder("t")
    with transaction.atomic():
        job = schedule("t", "a", delay=60)
        assert sent == []
    reschedule("t", "a", delay=90)
    run_now("t", "a")
    schedule("t", "a", delay=60, on_conflict="replace")
    schedule("t", "a", delay=70, on_conflict="keep")
    cancel("t", "a")
    cancel("t", "a")
    expected = ["job_scheduled", "job_rescheduled", "job_rescheduled", "job_scheduled", "job_cancelled"]
    assert names(sent) == expected
    assert {(one.sender, type(one.job), one.job.pk) for one in sent} == {("t", Job, job.pk)}
    assert [one.extra for one in sent] == [{}] * len(expected)


def test_a_rollback_sends_nothing(stage, sent):
    stage.recorder("t")
    with pytest.raises(Boom), transaction.atomic():
        schedule("t", "a", delay=60)
        raise Boom
    assert sent == []


def test_the_outcome_of_a_handler_sends_its_signal_with_the_running_job(stage, db_clock, sent):
    answers = iter([Snooze(5), Retry("the bank is closed", delay=5), None])

    @stage.handler("t")
    def ask(job):
        answer = next(answers)
        if isinstance(answer, Retry):
            raise answer
        return answer

    due_at = schedule("t", "a", delay=0).due_at
    for _ in range(3):
        stage.go()
        db_clock.advance(seconds=5)
    assert names(sent) == ["job_scheduled", "job_snoozed", "job_failed", "job_finished"]
    snoozed, failed, finished = sent[1:]
    assert {type(one.job) for one in sent[1:]} == {RunningJob}
    assert (snoozed.job.due_at, snoozed.job.attempt, snoozed.extra) == (due_at, 1, {})
    assert failed.extra == {"error": "delaytasks.handlers.Retry: the bank is closed"}
    assert (finished.sender, finished.job.key, finished.job.attempt, finished.extra) == ("t", "a", 3, {})


def test_a_dead_job_sends_only_job_dead_and_its_retry_job_rescheduled(stage, sent):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise Boom("out of order")

    schedule("t", "a", delay=0)
    stage.go()
    retry_dead("t", "a")
    assert names(sent) == ["job_scheduled", "job_dead", "job_rescheduled"]
    assert isinstance(sent[1].job, RunningJob)
    assert sent[1].extra["error"].endswith("Boom: out of order")
    assert isinstance(sent[2].job, Job)


@pytest.mark.parametrize(("max_attempts", "signal"), [(2, "job_failed"), (1, "job_dead")])
def test_an_attempt_that_exceeded_its_ttr_sends_the_row(stage, db_clock, sent, max_attempts, signal):
    stage.handler("t", max_attempts=max_attempts)(lambda job: None)
    schedule("t", "a", delay=0, ttr=1)
    stage.take("t")
    db_clock.advance(seconds=30)
    assert sweep.sweep()["expired"] == 1
    (one,) = [one for one in sent if one.signal != "job_scheduled"]
    assert (one.signal, one.sender, type(one.job), one.job.attempt) == (signal, "t", Job, 1)
    assert one.extra["error"]


def test_a_failure_with_a_blank_error_is_still_a_failure(stage, sent):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    (held,) = stage.take("t")
    leases.release(held.id, held.attempt, using="default", error="\n")
    assert names(sent) == ["job_scheduled", "job_failed"]
    assert sent[1].extra == {"error": ""}


def test_a_receiver_that_raises_has_no_effect(stage, sent):
    def refuse(**_: Any) -> None:
        raise Boom

    stage.recorder("t")
    signals.job_finished.connect(refuse)
    try:
        schedule("t", "a", delay=0)
        stage.go()
    finally:
        signals.job_finished.disconnect(refuse)
    assert names(sent) == ["job_scheduled", "job_finished"]


def test_a_batch_handler_may_return_any_mapping(stage, sent):
    @stage.handler("t", batch=2)
    def ask(jobs):
        return MappingProxyType({job.id: Snooze(60) for job in jobs if job.key == "a"})

    schedule("t", "a", delay=0)
    schedule("t", "b", delay=0)
    stage.go()
    assert sorted((one.signal, one.job.key) for one in sent if one.signal != "job_scheduled") == [
        ("job_finished", "b"),
        ("job_snoozed", "a"),
    ]
