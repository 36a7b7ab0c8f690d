"""Without the setting or without OpenTelemetry nothing is imported, stored or sent."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from delaytasks import checks, schedule, tracing
from delaytasks.models import Job

from ..support.spans import TRACEPARENT, Spans
from ..support.stage import state_of

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
import django
django.setup()
import delaytasks.api.fast_path.application, delaytasks.forwarding, delaytasks.tasks
from delaytasks import tracing
with tracing.scheduling("t") as span, tracing.attempts([]), tracing.continuing({"traceparent": "x"}):
    tracing.failed(ValueError(), str)
    sent = tracing.outgoing_headers()
names = sorted(name for name in sys.modules if name.partition(".")[0] == "opentelemetry")
print(json.dumps([names, span.context, sent]))
"""


def test_nothing_of_opentelemetry_is_imported_while_it_is_off():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[], "", {}]


def test_while_it_is_off_jobs_have_no_context_and_there_are_no_spans(stage, settings, spans: Spans):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "OPENTELEMETRY": False}
    stage.recorder("t")
    with spans.inside():
        schedule("t", "a", delay=0)
    stage.go()
    assert Job.objects.get().trace_context is None
    assert [span.name for span in spans.all()] == ["checkout"]


def test_a_worker_that_has_it_off_runs_jobs_that_carry_a_context(stage, settings, spans: Spans):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "OPENTELEMETRY": False}
    stage.go()
    assert state_of("a") == "finished"
    assert spans.named("process t") == []


def test_without_the_sdk_jobs_run_and_have_no_context(stage, settings, monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    settings.DELAYTASKS = {**settings.DELAYTASKS, "OPENTELEMETRY": True}
    stage.recorder("t")
    with tracing.continuing({"traceparent": TRACEPARENT}):
        schedule("t", "a", delay=0)
    stage.go()
    assert (Job.objects.get().trace_context, state_of("a")) == (None, "finished")


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    monkeypatch.setattr(tracing, "_load", tracing._load.__wrapped__)  # type: ignore[attr-defined]
    settings.DELAYTASKS = {**settings.DELAYTASKS, "OPENTELEMETRY": True}


def test_if_it_is_not_installed_a_check_says_so_and_jobs_run(stage, uninstalled):
    stage.recorder("t")
    with tracing.continuing({"traceparent": TRACEPARENT}):
        schedule("t", "a", delay=0)
    stage.go()
    assert (Job.objects.get().trace_context, state_of("a")) == (None, "finished")
    (warning,) = checks.check_opentelemetry()
    assert (warning.id, "delaytasks[otel]" in (warning.hint or "")) == ("delaytasks.W050", True)


def test_the_check_is_silent_if_it_is_installed_or_off(settings, spans: Spans):
    assert checks.check_opentelemetry() == []
    settings.DELAYTASKS = {}
    assert checks.check_opentelemetry() == []
