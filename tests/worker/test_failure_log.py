"""What a failure leaves in the log: a dead job is an error with its traceback, a retry is a warning."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from delaytasks import schedule
from delaytasks.maintenance import sweep
from delaytasks.worker import leases

from ..support.stage import Boom


class KeptEvents(Transport):
    """Sentry's transport: keeps the events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def sentry() -> Iterator[list[dict[str, Any]]]:
    """The events that Sentry received, with its integration for logging as by default."""
    transport = KeptEvents()
    scope = sentry_sdk.Scope.get_global_scope()
    sentry_sdk.init(
        "https://key@example.invalid/1", transport=transport, default_integrations=False,
        integrations=[LoggingIntegration()],
    )  # fmt: skip
    yield transport.events
    sentry_sdk.get_client().close()
    scope.set_client(None)


def boom(job: Any) -> None:
    raise Boom("no answer from the bank")


def test_a_dead_job_is_an_event_in_sentry_with_its_traceback_and_identity(stage, sentry):
    stage.handler("test.close", max_attempts=1)(boom)
    job = schedule("test.close", "order:7", delay=0)
    stage.go()
    [event] = sentry
    [exception] = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("Boom", "no answer from the bank")
    assert exception["stacktrace"]["frames"][-1]["function"] == "boom"
    identity = {"topic": "test.close", "key": "order:7", "id": job.pk, "attempt": 1}
    assert (event["level"], event["logger"], event["extra"]["job"]) == ("error", "delaytasks", identity)


def test_sentry_groups_deaths_by_topic_and_not_by_job(stage, sentry):
    for topic in ("t", "u"):
        stage.handler(topic, max_attempts=1)(boom)
        for key in ("a", "b"):
            schedule(topic, key, delay=0)
    stage.go()
    messages = sorted({event["logentry"]["message"] for event in sentry})
    assert len(sentry) == 4
    assert messages == [f"dead topic='{topic}' key=%r id=%r attempt=%r error=%r" for topic in ("t", "u")]


def test_a_death_by_ttr_is_an_event_in_sentry(stage, sentry, db_clock):
    stage.handler("t", ttr=1, max_attempts=1)(lambda job: None)
    schedule("t", "a", delay=0)
    stage.take("t")
    db_clock.advance(seconds=2)
    sweep.sweep()
    [event] = sentry
    assert event["extra"]["job"]["key"] == "a"
    assert "Timed out" in event["logentry"]["formatted"]


def test_a_job_that_its_consumer_buries_is_an_event_in_sentry(stage, sentry):
    stage.handler("t", max_attempts=1)(lambda job: None)
    schedule("t", "a", delay=0)
    [held] = stage.take("t")
    leases.bury(held.id, held.attempt, using="default", reason="unknown customer")
    [event] = sentry
    assert "unknown customer" in event["logentry"]["formatted"]


def test_a_retry_is_a_warning_and_no_event(stage, sentry, caplog):
    stage.handler("t", max_attempts=2)(boom)
    schedule("t", "a", delay=0)
    stage.go()
    assert sentry == []
    [record] = [each for each in caplog.records if "failed" in each.getMessage()]
    assert (record.levelno, record.job["attempt"]) == (logging.WARNING, 1)
    assert record.exc_info is None


def test_the_traceback_in_the_log_is_as_short_as_in_the_event(stage, caplog):
    def fail(job: Any) -> None:
        raise Boom("x" * 100_000)

    stage.handler("t", max_attempts=1)(fail)
    schedule("t", "a", delay=0)
    stage.go()
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    text = logging.Formatter().format(record)
    assert "Traceback (most recent call last)" in text
    assert "characters left out" in text
    assert len(text) < 10_000


class Unprintable(SyntaxError):
    """Cannot be printed while `is_printable` is False. pytest itself would end with an error at such an exception."""

    is_printable = True

    def __str__(self) -> str:
        if self.is_printable:
            return "unprintable"
        raise Boom

    @property
    def lineno(self) -> int:  # type: ignore[override]
        if self.is_printable:
            return 0
        raise Boom


def test_an_exception_that_cannot_be_printed_is_logged_nevertheless(stage, caplog, monkeypatch):
    def fail(job: Any) -> None:
        raise Unprintable

    stage.handler("t", max_attempts=1)(fail)
    schedule("t", "a", delay=0)
    with monkeypatch.context() as patch:
        patch.setattr(Unprintable, "is_printable", False)
        stage.go()
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "Unprintable" in logging.Formatter().format(record)
