"""Create spans by OpenTelemetry's semantic conventions for messaging. Imported only while tracing is on.

The span of an attempt has no parent: it begins a trace of its own, with a link to the span that scheduled the job. So
the trace of an order does not stay open until its timeout is due, and jobs that run one after the other in a worker do
not share a trace.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..states import FAILURES, Outcome
from . import Attempt, Scheduling, to_headers

logger = logging.getLogger("delaytasks.tracing")
SYSTEM = "delaytasks"
MAX_CONTEXT = 1000  # characters; a longer tracestate is left out, as W3C Trace Context allows
# Not the propagators that the site has configured: the text is stored, and other processes must be able to read it.
_propagator = TraceContextTextMapPropagator()


def _start_span(*arguments: Any, **options: Any) -> Span:
    """Start a span. If a sampler or a span processor raises, return an invalid span: the job must run nevertheless."""
    try:
        return trace.get_tracer("delaytasks").start_span(*arguments, **options)
    except Exception:
        logger.exception("OpenTelemetry could not start a span.")
        return trace.INVALID_SPAN


def _end(span: Span) -> None:
    try:
        span.end()
    except Exception:
        logger.exception("OpenTelemetry could not end a span.")


def _name(operation: str, topic: str) -> str:
    return f"{operation} {topic}" if topic else operation


def _attributes(operation: str, kind: str, topic: str) -> dict[str, Any]:
    attributes = {
        "messaging.system": SYSTEM, "messaging.operation.name": operation, "messaging.operation.type": kind,
    }  # fmt: skip
    return attributes | {"messaging.destination.name": topic} if topic else attributes


def _set_error(span: Span, error: BaseException) -> None:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR))


# -- scheduling ---------------------------------------------------------------------------------


class SchedulingSpan(Scheduling):
    """The span "schedule <topic>" of a call that schedules jobs."""

    def __init__(self, topic: str) -> None:
        self._span = _start_span(
            _name("schedule", topic), kind=SpanKind.PRODUCER, attributes=_attributes("schedule", "send", topic)
        )
        self._passed_on = False
        self.context = _to_text(self._span)

    def __enter__(self) -> "SchedulingSpan":
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        context.detach(self._token)
        if isinstance(error, BaseException) and not self._passed_on:
            _set_error(self._span, error)
        _end(self._span)

    def scheduled(self, job_id: int) -> None:
        self._span.set_attribute("messaging.message.id", str(job_id))

    def scheduled_many(self, count: int) -> None:
        self._span.set_attribute("messaging.batch.message_count", count)

    def passed_on(self) -> None:
        self._passed_on = True
        self._span.set_attribute("delaytasks.passed_on", True)


def _to_text(span: Span) -> str:
    """Return the trace context of the span as text; "" if it is not sampled, because a link to it would lead nowhere.

    The same holds without the SDK: the span is not recorded, and its context is that of the caller.
    """
    if not span.is_recording() or not span.get_span_context().trace_flags.sampled:
        return ""
    headers: dict[str, str] = {}
    _propagator.inject(headers, trace.set_span_in_context(span, Context()))
    text = " ".join(headers[name] for name in ("traceparent", "tracestate") if name in headers)
    return text if len(text) <= MAX_CONTEXT else headers["traceparent"]


def _from_text(text: str | None) -> SpanContext | None:
    if not text:
        return None
    found = trace.get_current_span(_propagator.extract(to_headers(text), Context())).get_span_context()
    return found if found.is_valid else None


# -- attempts -----------------------------------------------------------------------------------


class _Running:
    """The span of attempts that share a handler call or a commit, and their outcomes."""

    def __init__(self, span: Span, ids: set[int]) -> None:
        self.span, self.ids, self.outcomes = span, ids, set[str]()


_running: ContextVar[_Running | None] = ContextVar("delaytasks_span", default=None)


@contextmanager
def attempts(running: Sequence[Attempt]) -> Iterator[None]:
    """Open the span "process <topic>"."""
    span = _start(running)
    current = _Running(span, {each.id for each in running})
    tokens = context.attach(trace.set_span_in_context(span)), _running.set(current)
    try:
        yield
    finally:
        _running.reset(tokens[1])
        context.detach(tokens[0])
        if current.outcomes:
            span.set_attribute("delaytasks.job.outcome", ", ".join(sorted(current.outcomes)))
        _end(span)


def _start(running: Sequence[Attempt]) -> Span:
    topic = running[0].topic
    links = [Link(found) for each in running if (found := _from_text(each.trace_context)) is not None]
    attributes = _attributes("process", "process", topic) | {"messaging.client.id": running[0].worker}
    if len(running) == 1:
        attributes |= _identity(running[0])
    else:
        attributes["messaging.batch.message_count"] = len(running)
    return _start_span(_name("process", topic), Context(), kind=SpanKind.CONSUMER, links=links, attributes=attributes)


def _identity(attempt: Attempt) -> dict[str, Any]:
    return {
        "messaging.message.id": str(attempt.id),
        "delaytasks.job.key": attempt.key,
        "delaytasks.job.attempt": attempt.attempt,
        "delaytasks.job.late_ms": attempt.reserved_ms - attempt.due_ms,
    }


def ended(job_id: int, outcome: Outcome, error: str) -> None:
    current = _running.get()
    if current is None or job_id not in current.ids:
        return
    current.outcomes.add(outcome.value)
    if outcome in FAILURES:
        current.span.set_status(Status(StatusCode.ERROR, error))


def failed(error: BaseException, formatted: str) -> None:
    """Add the exception to the span as an event, without record_exception(), whose text has no size limit."""
    current = _running.get()
    if current is None:
        return
    _set_error(current.span, error)
    lines = formatted.strip().splitlines()
    attributes = {"exception.type": type(error).__qualname__, "exception.message": lines[-1] if lines else ""}
    current.span.add_event("exception", attributes | {"exception.stacktrace": formatted})


# -- headers ------------------------------------------------------------------------------------


@contextmanager
def continuing(headers: Mapping[str, str]) -> Iterator[None]:
    if trace.get_current_span().get_span_context().is_valid:
        yield
        return
    given = {name: value for name in ("traceparent", "tracestate") if (value := headers.get(name))}
    token = context.attach(_propagator.extract(given))
    try:
        yield
    finally:
        context.detach(token)


def outgoing_headers() -> dict[str, str]:
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers
