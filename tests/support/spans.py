"""`spans`: OpenTelemetry is on, and its SDK keeps the spans that have ended in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # the example of W3C Trace Context


class Spans:
    """The spans that have ended, of the process until the end of the test."""

    def __init__(self, provider: Any, exporter: Any) -> None:
        self.provider, self._exporter = provider, exporter

    def all(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> Any:
        (span,) = self.named(name)
        return span

    @contextmanager
    def inside(self, name: str = "checkout") -> Iterator[Any]:
        """Open a span of the site."""
        with self.provider.get_tracer("site").start_as_current_span(name) as span:
            yield span


def traceparent(span: Any) -> str:
    """Return the context of a span, or of a link to it, as text."""
    found = span.context
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def links(span: Any) -> list[str]:
    return [traceparent(link) for link in span.links]


def turn_on(settings: Any, monkeypatch: pytest.MonkeyPatch, sampler: Any = None) -> Spans:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(sampler, shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # Not set_tracer_provider(), which a process can call only once.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "OPENTELEMETRY": True}
    return Spans(provider, exporter)


@pytest.fixture
def spans(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Spans:
    return turn_on(settings, monkeypatch)
