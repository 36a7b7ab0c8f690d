"""OpenTelemetry: a span for each call that schedules jobs, and a span for each attempt, which links to it.

Tracing is on if DELAYTASKS["OPENTELEMETRY"] is True and opentelemetry-api is installed. While it is off, nothing of
OpenTelemetry is imported, and jobs are stored without a trace context. spans.py is the implementation while it is on.

A job stores the trace context of its scheduling span as text: the header `traceparent` of W3C Trace Context and, if
there is one, a space and the header `tracestate`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, Protocol

from .. import conf
from ..states import Outcome


class Attempt(Protocol):
    """The attributes of an attempt that its span needs."""

    id: int
    topic: str
    key: str
    attempt: int
    due_ms: int
    reserved_ms: int
    worker: str
    trace_context: str | None


class Scheduling:
    """The span of a call that schedules jobs, as a context manager. This base class does nothing: tracing is off.

    context   str: the trace context to store with the jobs; "" if there is none
    """

    context = ""

    def __enter__(self) -> "Scheduling":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        pass

    def scheduled(self, job_id: int) -> None:
        """Record the job that the call has scheduled, kept or replaced."""

    def scheduled_many(self, count: int) -> None:
        """Record the number of jobs that the call has scheduled, kept or replaced."""

    def passed_on(self) -> None:
        """Record that this call left the request to another one, which has its own span."""


_OFF = Scheduling()


def scheduling(topic: str = "") -> Scheduling:
    """Return the span of a call that schedules jobs, to be used in a `with` statement.

    topic   the topic of all jobs of the call; "" if they may have different topics
    """
    spans = _spans()
    return _OFF if spans is None else spans.SchedulingSpan(topic)


def attempts(running: Sequence[Attempt]) -> AbstractContextManager[Any]:
    """Open a span for attempts of one topic that share a handler call or a commit; usually it is one attempt."""
    spans = _spans()
    return nullcontext() if spans is None else spans.attempts(running)


def ended(job_id: int, outcome: Outcome, error: str) -> None:
    """Record the outcome of an attempt in its span. Does nothing for a job without a span in this context."""
    spans = _spans()
    if spans is not None:
        spans.ended(job_id, outcome, error)


def failed(error: BaseException, format_error: Callable[[BaseException], str]) -> None:
    """Record an exception in the span of the attempts that run in this context."""
    spans = _spans()
    if spans is not None:
        spans.failed(error, format_error(error))


def continuing(headers: Mapping[str, str]) -> AbstractContextManager[Any]:
    """Continue the trace of an HTTP request inside the block, unless the web server's instrumentation has done it.

    headers   of the request, with names in lower case or a case-insensitive mapping
    """
    spans = _spans()
    return nullcontext() if spans is None else spans.continuing(headers)


def outgoing_headers() -> dict[str, str]:
    """Return `traceparent` and `tracestate` of the current span, for a message; {} without a span."""
    spans = _spans()
    return {} if spans is None else spans.outgoing_headers()


def to_headers(context: str) -> dict[str, str]:
    """Return a job's context as `traceparent` and, if there is one, `tracestate`; {} for ""."""
    traceparent, _, tracestate = context.partition(" ")
    headers = {"traceparent": traceparent, "tracestate": tracestate}
    return {name: value for name, value in headers.items() if value}


def is_installed() -> bool:
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None


def _spans() -> Any:
    """Return the module spans.py, or None while tracing is off."""
    return _load() if conf.get().opentelemetry else None


@functools.cache
def _load() -> Any:
    if not is_installed():
        return None  # system check W050 reports it
    from . import spans

    return spans
