"""Metrics for Prometheus, with the library prometheus-client: `pip install "delaytasks[prometheus]"`.

Each process counts the attempts that end in it, and the requests to the API that it answers. The number of jobs, their
ages and the state of the mirror are read at each scrape. Labels are the topic and the schedule, each with a bounded
number of values per process. For requests they are the method, the endpoint and the status.

In a web process, add `path("metrics", delaytasks.monitoring.views.metrics)` to the URLs. A worker serves its metrics
on METRICS_PORT. Processes with children need PROMETHEUS_MULTIPROC_DIR; a worker chooses one itself.
"""

import functools
import glob
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from .. import databases, handlers
from ..recurrence import begin
from ..recurrence.begin import Run
from ..states import Outcome
from ..worker import completion
from . import requests
from .job_collector import JobCollector

logger = logging.getLogger("delaytasks")
MAX_TOPICS = 200
OTHER = "other"  # the label of all topics beyond the first MAX_TOPICS
LATE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"))  # any other method is OTHER
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RAN_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 7200, 86400)

LATENESS = Histogram(
    "delaytasks_lateness_seconds", "Time from the due time of an attempt to its beginning.", ["topic"],
    buckets=LATE_BUCKETS,
)  # fmt: skip
DURATION = Histogram(
    "delaytasks_duration_seconds", "Time from the beginning of an attempt to the commit of its end.", ["topic"],
    buckets=RAN_BUCKETS,
)  # fmt: skip
OUTCOMES = {
    Outcome.FINISHED: Counter("delaytasks_finished", "Attempts that finished their job.", ["topic"]),
    Outcome.SNOOZED: Counter("delaytasks_snoozed", "Attempts whose handler returned a Snooze.", ["topic"]),
    Outcome.FAILED: Counter("delaytasks_failed", "Attempts that failed and are repeated.", ["topic"]),
    Outcome.EXPIRED: Counter(
        "delaytasks_expired", "Attempts that exceeded their TTR or lost their worker, and are repeated.", ["topic"]
    ),
    Outcome.RELEASED: Counter("delaytasks_released", "Attempts whose job was given back.", ["topic"]),
    Outcome.SKIPPED: Counter("delaytasks_skipped", "Jobs that ended without effect: skipped or expired.", ["topic"]),
    Outcome.DEAD: Counter("delaytasks_dead", "Jobs that died: their last attempt failed.", ["topic"]),
}

SCHEDULE_DRIFT = Gauge(
    "delaytasks_schedule_drift_seconds", "Time from the due time of a schedule's newest run to its beginning.",
    ["schedule"], multiprocess_mode="mostrecent",
)  # fmt: skip
SCHEDULE_SKIPPED = Counter(
    "delaytasks_schedule_skipped", "Runs of a schedule that were skipped: missed, late, running or paused.",
    ["schedule", "reason"],
)  # fmt: skip
SERIES = "series"  # one label for all series, because there may be very many

HTTP_REQUESTS = Counter(
    "delaytasks_http_requests", "Requests to the API that were answered.", ["method", "endpoint", "status"]
)
HTTP_DURATION = Histogram(
    "delaytasks_http_duration_seconds", "Time to answer a request to the API, including a long poll's wait.",
    ["endpoint"], buckets=REQUEST_BUCKETS,
)  # fmt: skip

_seen_topics: set[str] = set()
_seen_schedules: set[str] = set()


def topic_label(topic: str) -> str:
    """Return the topic, or OTHER if this process has MAX_TOPICS labels already and does not know the topic."""
    if topic not in _seen_topics:
        if len(_seen_topics) >= MAX_TOPICS and topic not in handlers.known():
            return OTHER
        _seen_topics.add(topic)
    return topic


def observe(outcome: Outcome, job: Any) -> None:
    """Count an attempt that has ended. Called after the commit. Never raises."""
    try:
        _observe(outcome, job)
    except Exception:  # such as a full disk: jobs must not fail because of their metrics
        logger.warning("metrics: an attempt was not counted", exc_info=True)


def _observe(outcome: Outcome, job: Any) -> None:
    label = topic_label(job.topic)
    if outcome in OUTCOMES:
        OUTCOMES[outcome].labels(label).inc()
    begun_ms = getattr(job, "reserved_ms", None)  # None: the sweep took the job back
    if begun_ms is not None:
        LATENESS.labels(label).observe(max(0, begun_ms - job.due_ms) / 1000)
        DURATION.labels(label).observe(max(0, databases.now_ms(job.using) - begun_ms) / 1000)


def schedule_label(name: str, *, is_series: bool) -> str:
    """Return the schedule's name, SERIES for a series, or OTHER if this process has MAX_TOPICS labels already."""
    if is_series:
        return SERIES
    if name not in _seen_schedules:
        if len(_seen_schedules) >= MAX_TOPICS:
            return OTHER
        _seen_schedules.add(name)
    return name


def observe_run(run: Run) -> None:
    """Count a run of a schedule that begins or is skipped. Never raises."""
    try:
        label = schedule_label(run.schedule, is_series=run.is_series)
        if run.skipped:
            SCHEDULE_SKIPPED.labels(label, run.skipped).inc()
        else:
            SCHEDULE_DRIFT.labels(label).set(run.late_ms / 1000)
    except Exception:
        logger.warning("metrics: a schedule's run was not counted", exc_info=True)


def observe_request(method: str, endpoint: str, status: int, seconds: float) -> None:
    """Count a request to the API. Never raises."""
    try:
        count, duration = _request_metrics(method if method in METHODS else OTHER, endpoint, status)
        count.inc()
        duration.observe(seconds)
    except Exception:
        logger.warning("metrics: a request was not counted", exc_info=True)


@functools.lru_cache(maxsize=1024)  # finding a metric by its labels costs as much as counting
def _request_metrics(method: str, endpoint: str, status: int) -> tuple[Counter, Histogram]:
    return HTTP_REQUESTS.labels(method, endpoint, status), HTTP_DURATION.labels(endpoint)


def enable() -> None:
    """Start counting attempts, runs of schedules and API requests in this process and its forks. Can be repeated.

    Does nothing if PROMETHEUS_MULTIPROC_DIR is set but is not a directory: no counter could be stored.
    """
    if requests.lacks_directory():
        return
    if observe not in completion.observers:
        completion.observers.append(observe)
    if observe_run not in begin.observers:
        begin.observers.append(observe_run)
    if observe_request not in requests.observers:
        requests.observers.append(observe_request)


def initialize() -> None:
    """Set the counters of known topics to 0 where they have no value yet, so that Prometheus sees the first 1."""
    for topic in handlers.known():
        for counter in OUTCOMES.values():
            counter.labels(topic_label(topic))


class _DefaultRegistry(Collector):
    """The metrics of this process, including those of other libraries."""

    def collect(self) -> Iterator[Metric]:
        return iter(REGISTRY.collect())


class _SharedCollector(MultiProcessCollector):
    """The metrics of all processes that share PROMETHEUS_MULTIPROC_DIR."""

    def collect(self) -> Iterable[Metric]:
        """Merge the files with content. A process creates its file empty, and may be killed before it writes to it."""
        return self.merge([file for file in glob.glob(f"{glob.escape(self._path)}/*.db") if _has_content(file)])


def _has_content(file: str) -> bool:
    try:
        return os.path.getsize(file) > 0
    except FileNotFoundError:  # the gauge of a process that has just ended
        return False


def make_registry() -> CollectorRegistry:
    """Return a registry for one scrape: the counts of all processes, and the numbers from the database."""
    registry = make_process_registry()
    registry.register(JobCollector())
    return registry


def make_process_registry() -> CollectorRegistry:
    """Return a registry with the counts of all processes. Collecting them needs no database."""
    initialize()
    registry = CollectorRegistry()
    if requests.SHARED in os.environ:
        _SharedCollector(registry)
    else:
        registry.register(_DefaultRegistry())
    return registry


@never_cache
def view(request: HttpRequest) -> HttpResponse:
    """Answer with all metrics in the text format of Prometheus. Needs no login: allow only Prometheus to reach it.

    Answers 500 if PROMETHEUS_MULTIPROC_DIR is set but is not a directory.
    """
    if requests.lacks_directory():
        text = f"{requests.SHARED} is not a directory: create it, and restart the processes.\n"
        return HttpResponse(text, status=500, content_type="text/plain")
    return HttpResponse(generate_latest(make_registry()), content_type=CONTENT_TYPE_LATEST)


enable()
