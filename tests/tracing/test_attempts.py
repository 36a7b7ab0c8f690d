"""The span of an attempt: linked to that of the scheduling, with its outcome."""

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanKind, StatusCode

from delaytasks import Skip, Snooze, schedule, schedule_many
from delaytasks.exceptions import LeaseLost
from delaytasks.models import Job
from delaytasks.worker import runner
from delaytasks.worker.attempt import Defer

from ..support.spans import Spans, links, traceparent, turn_on
from ..support.stage import Boom, state_of

OUTCOME = "delaytasks.job.outcome"


def test_an_attempt_is_a_trace_of_its_own_with_a_link_to_the_scheduling(stage, spans: Spans, db_clock):
    stage.recorder("t")
    with spans.inside():
        job = schedule("t", "order:7", delay=60)
    db_clock.advance(seconds=61)
    with spans.inside("celery task"):
        stage.go()
    span, origin = spans.one("process t"), spans.one("schedule t")
    assert (span.parent, span.kind, links(span)) == (None, SpanKind.CONSUMER, [traceparent(origin)])
    assert span.context.trace_id != origin.context.trace_id
    assert dict(span.attributes) == {
        "messaging.system": "delaytasks", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": "t", "messaging.message.id": str(job.pk), "messaging.client.id": "w1",
        "delaytasks.job.key": "order:7", "delaytasks.job.attempt": 1, "delaytasks.job.late_ms": 1000,
        OUTCOME: "finished",
    }  # fmt: skip
    assert span.status.status_code is StatusCode.UNSET


def test_every_job_of_a_run_has_its_own_link(stage, spans: Spans):
    """The statement that ends a job usually claims the next one."""
    stage.recorder("t")
    for n in range(4):
        schedule("t", str(n), delay=0)
    stage.go()
    assert sorted(links(span) for span in spans.named("process t")) == sorted(
        [traceparent(span)] for span in spans.named("schedule t")
    )


def test_spans_of_the_handler_and_what_it_schedules_are_in_the_attempts_trace(stage, spans: Spans):
    stage.recorder("u")

    @stage.handler("t")
    def handle(job):
        with spans.inside("bank"):
            schedule("u", "a", delay=60)

    schedule("t", "a", delay=0)
    stage.go()
    process = spans.one("process t")
    assert spans.one("bank").parent.span_id == process.context.span_id
    assert spans.one("schedule u").parent.span_id == spans.one("bank").context.span_id


@pytest.mark.parametrize("atomic", [True, False])
def test_spans_of_an_async_handler_are_children_of_the_attempt(stage, spans: Spans, atomic):
    @stage.handler("t", atomic=atomic)
    async def handle(job):
        with spans.inside("bank"):
            pass

    schedule("t", "a", delay=0)
    stage.go()
    assert spans.one("bank").parent.span_id == spans.one("process t").context.span_id
    assert spans.one("process t").attributes[OUTCOME] == "finished"


def test_a_failed_attempt_shows_its_exception_and_the_next_attempt_has_the_same_link(stage, spans: Spans, db_clock):
    @stage.handler("t", max_attempts=2)
    def handle(job):
        raise Boom("no answer from the bank")

    schedule("t", "a", delay=0)
    for _ in range(2):
        stage.go()
        db_clock.advance(seconds=3600)
    first, second = spans.named("process t")
    assert [span.attributes[OUTCOME] for span in (first, second)] == ["failed", "dead"]
    assert [span.attributes["delaytasks.job.attempt"] for span in (first, second)] == [1, 2]
    assert links(first) == links(second) == [traceparent(spans.one("schedule t"))]
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["error.type"] == "tests.support.stage.Boom"
    (event,) = first.events
    assert (event.name, event.attributes["exception.type"]) == ("exception", "Boom")
    assert event.attributes["exception.message"].endswith("Boom: no answer from the bank")
    assert "in handle" in event.attributes["exception.stacktrace"]


def test_an_exception_that_cannot_be_printed_does_no_harm(stage, spans: Spans):
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @stage.handler("t", max_attempts=1)
    def handle(job):
        raise Unprintable

    schedule("t", "a", delay=0)
    stage.go()
    assert (state_of("a"), spans.one("process t").attributes[OUTCOME]) == ("dead", "dead")


@pytest.mark.parametrize(("result", "outcome"), [(Snooze(60), "snoozed"), (Skip("paid"), "skipped")])
def test_snoozes_and_skips_are_no_errors(stage, spans: Spans, result, outcome):
    stage.handler("t")(lambda job: result)
    schedule("t", "a", delay=0)
    stage.go()
    span = spans.one("process t")
    assert (span.attributes[OUTCOME], span.status.status_code) == (outcome, StatusCode.UNSET)


def test_a_lost_lease_is_an_error_without_an_outcome(stage, spans: Spans):
    @stage.handler("t", atomic=False)
    def handle(job):
        raise LeaseLost("too late")

    schedule("t", "a", delay=0)
    stage.go()
    span = spans.one("process t")
    assert span.attributes["error.type"] == "delaytasks.exceptions.LeaseLost"
    assert OUTCOME not in span.attributes


@pytest.mark.parametrize("options", [{"batch": 10}, {"one_commit": True}], ids=["batch handler", "one commit"])
def test_jobs_that_share_a_call_or_a_commit_share_a_span_with_a_link_to_each(stage, spans: Spans, options):
    stage.handler("t", **options)(lambda job: None)
    for n in range(3):
        schedule("t", str(n), delay=0)
    runner._paces["t"] = runner.Pace(size=10)
    stage.go()
    span = spans.one("process t")
    assert sorted(links(span)) == sorted(map(traceparent, spans.named("schedule t")))
    assert (span.attributes["messaging.batch.message_count"], span.attributes[OUTCOME]) == (3, "finished")


def test_a_batch_that_fails_is_an_error_before_its_jobs_run_one_by_one(stage, spans: Spans):
    @stage.handler("t", batch=10, max_attempts=1)
    def handle(jobs):
        if any(job.key == "1" for job in jobs):
            raise Boom

    schedule_many([{"topic": "t", "key": str(n), "delay": 0} for n in range(2)])
    runner._paces["t"] = runner.Pace(size=10)
    stage.go()
    together, *singly = spans.named("process t")
    assert (together.attributes["error.type"], OUTCOME in together.attributes) == ("tests.support.stage.Boom", False)
    assert sorted(span.attributes[OUTCOME] for span in singly) == ["dead", "finished"]


def test_a_job_that_a_batch_puts_off_is_no_error(stage, spans: Spans):
    @stage.handler("t", batch=10)
    def handle(jobs):
        raise Defer(delay_ms=60_000)

    schedule_many([{"topic": "t", "key": str(n), "delay": 0} for n in range(2)])
    runner._paces["t"] = runner.Pace(size=10)
    stage.go()
    assert {span.status.status_code for span in spans.named("process t")} == {StatusCode.UNSET}


@pytest.mark.parametrize("context", [None, "", "nonsense", "00-0-0-00 x=y"])
def test_a_job_without_a_valid_context_has_a_span_without_link(stage, spans: Spans, context):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    Job.objects.update(trace_context=context)
    stage.go()
    span = spans.one("process t")
    assert (links(span), span.attributes[OUTCOME]) == ([], "finished")


def test_an_attempt_leaves_no_span_open(stage, spans: Spans):
    from opentelemetry import trace

    stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.go()
    assert not trace.get_current_span().get_span_context().is_valid


class BrokenSampler(Sampler):
    def should_sample(self, *arguments, **options):
        raise Boom("sampler")

    def get_description(self):
        return "broken"


class BrokenStart(SpanProcessor):
    def on_start(self, span, parent_context=None):
        raise Boom("start")


class BrokenEnd(SpanProcessor):
    def on_end(self, span):
        raise Boom("end")


@pytest.mark.parametrize("broken", [BrokenSampler, BrokenStart, BrokenEnd])
def test_a_part_of_the_sdk_that_fails_stops_no_job(stage, settings, monkeypatch, caplog, broken):
    sampler = broken() if broken is BrokenSampler else None
    provider = turn_on(settings, monkeypatch, sampler).provider
    if sampler is None:
        provider.add_span_processor(broken())
    stage.recorder("t")
    schedule("t", "a", delay=0)
    schedule_many([{"topic": "t", "key": "b", "delay": 0}])
    stage.go()
    assert (state_of("a"), state_of("b")) == ("finished", "finished")
    assert {record.name for record in caplog.records if record.levelname == "ERROR"} == {"delaytasks.tracing"}
