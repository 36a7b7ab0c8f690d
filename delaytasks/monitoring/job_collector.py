"""Collect the metrics that are read from the database and the mirror at each scrape of Prometheus."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import databases, handlers
from ..db import counts
from ..models import Schedule, Worker
from . import cache, metrics
from .health import Health, health

FRESH_SECONDS = 5
READ_SECONDS = 5  # a database that takes longer counts as down here; Prometheus waits for 10 s by default
COUNT_SECONDS = 1.0  # time limit of counting the live jobs of all topics, and again the dead ones
MAX_TOPICS = 500
LONG_MS = 60_000  # topics whose oldest ready job has waited for longer are named first
MAX_SCHEDULES = 200
TOPIC_GAUGES = {
    "ready": ("delaytasks_ready_jobs", "Jobs that are due and not reserved."),
    "reserved": ("delaytasks_reserved_jobs", "Jobs that are running."),
    "dead": ("delaytasks_dead_jobs", "Dead jobs that were not retried."),
    "oldest_ready_ms": ("delaytasks_oldest_ready_seconds", "How long the oldest ready job has waited."),
    "delayed": ("delaytasks_delayed_jobs", "Jobs that become due within the mirror's horizon."),
    "paused": ("delaytasks_paused", "1 if the topic is paused."),
    "held": ("delaytasks_held", "1 if the topic is held, because the target of its jobs is unavailable."),
    "at_least": ("delaytasks_numbers_at_least", "1 if ready, delayed and dead are lower bounds: too many to count."),
}
NEXT_DUE = "next_due_ms"
COUNTERS = {
    "repaired": "Overdue jobs that the mirror had lost and that were found in the database.",
    "rebuilt": "Rebuilds of the mirror.",
    "claim_misses": "Jobs that were reserved in the mirror and could not be claimed in the database.",
    "lease_lost": "Attempts whose end was refused because their TTR was over.",
    "ttr_exceeded": "Handlers that were interrupted at their TTR.",
}


class JobCollector(Collector):
    """Metrics of all topics, the mirror and the workers. Databases that do not answer are left out."""

    def collect(self) -> Iterator[Metric]:
        readings = _current_readings()
        found = {using: reading.result() for using, reading in readings.items()}
        answers = GaugeMetricFamily("delaytasks_database_up", "1 if the database answers.", labels=["database"])
        for using, numbers in found.items():
            answers.add_metric([using], int(numbers is not None))
        yield answers
        known = [numbers for numbers in found.values() if numbers is not None]
        yield from _metrics(known)
        if len(known) == len(found):
            yield from _counter_metrics([numbers.cached for numbers in known])

    def describe(self) -> list[Metric]:
        return []  # so that registering needs no query


class _Reading:
    """Reads a database once, in its own thread, which is blocked for as long as the database hangs."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._deadline = time.monotonic() + READ_SECONDS
        self._found: Future[Numbers] = Future()
        threading.Thread(target=self._run, name=f"delaytasks-metrics-{using}", daemon=True).start()

    def _run(self) -> None:
        try:
            try:
                found = _read(self._using)
            finally:
                connections.close_all()
        except BaseException as error:  # raised by result()
            self._found.set_exception(error)
        else:
            self._found.set_result(found)

    @property
    def running(self) -> bool:
        return not self._found.done()

    def result(self) -> "Numbers | None":
        """Return the numbers, or None if the database fails or has not answered in time."""
        try:
            return self._found.result(max(0.0, self._deadline - time.monotonic()))
        except (DatabaseError, InterfaceError, TimeoutError):
            return None


_readings: dict[str, _Reading] = {}
_lock = threading.Lock()


def _current_readings() -> dict[str, _Reading]:
    """Return the reading of each database that is running, or begin one.

    So a database that hangs blocks at most one thread, and delays no other database.
    """
    with _lock:
        for using in databases.aliases():
            if using not in _readings or not _readings[using].running:
                _readings[using] = _Reading(using)
        return {using: _readings[using] for using in databases.aliases()}


class CachedNumbers(NamedTuple):
    """What is read from one database and its mirror at most every FRESH_SECONDS."""

    topics: dict[str, dict[str, int | None]]
    left_out: int  # number of topics that are not in `topics`, because there are too many
    health: Health
    counters: dict[str, int]


class Numbers(NamedTuple):
    """What is read from one database. The other fields are not cached."""

    cached: CachedNumbers
    workers: int
    skew_ms: int
    next_runs: dict[str, datetime]  # of schedules, by name: the due time of the newest run made


def _read(using: str) -> Numbers:
    rows = Schedule.objects.using(using).filter(paused=False, ended=False, series_key__isnull=True)
    runs = rows.order_by("name").values_list("name", "made_until")[:MAX_SCHEDULES]
    return Numbers(_cached(using), Worker.objects.using(using).count(), databases.clock(using).skew_ms(), dict(runs))


def _metrics(found: list[Numbers]) -> Iterator[Metric]:
    """Yield the metrics of the databases that have answered."""
    if not found:
        return
    cached = [each.cached for each in found]
    yield from _topic_metrics([each.topics for each in cached])
    yield _left_out([each.left_out for each in cached])
    yield from _status_metrics([each.health for each in cached])
    yield from _worker_metrics(found)
    yield from _schedule_metrics(found)


def _cached(using: str) -> CachedNumbers:
    def compute(previous: CachedNumbers | None) -> CachedNumbers:
        names = _names(using)
        topics = _topics(using, names[:MAX_TOPICS])
        return CachedNumbers(topics, len(names[MAX_TOPICS:]), health(using), metrics.mirror_state(using)[1])

    key = cache.cache_key("prometheus", using)
    numbers: CachedNumbers = cache.get_or_compute(key, FRESH_SECONDS, compute, CachedNumbers)
    return numbers


def _names(using: str) -> list[str]:
    """Return the topics that are known or have live or dead jobs.

    If there are more than MAX_TOPICS, those come first whose oldest ready job has waited for over a minute, the longest
    wait first; then those with dead jobs; then the others.
    """
    live, dead = (find(using, counts.SEARCHED_TOPICS) for find in (counts.live_topics, counts.dead_topics))
    names = {*handlers.known(), *live, *dead}
    if len(names) <= MAX_TOPICS:
        return sorted(names)
    now_ms, with_dead, oldest_ms = databases.now_ms(using), set(dead), counts.oldest_ready(using, live)

    def rank(name: str) -> tuple[int, int, str]:
        waited_ms = now_ms - oldest_ms.get(name, now_ms)
        return 0 if waited_ms > LONG_MS else 1 if name in with_dead else 2, -waited_ms, name

    return sorted(names, key=rank)


def _topics(using: str, names: list[str]) -> dict[str, dict[str, int | None]]:
    snapshot = metrics.topics_snapshot(using, names, seconds=COUNT_SECONDS)
    next_due_ms = counts.next_due(using, list(snapshot))
    return {
        topic: {field: None if numbers[field] is None else int(numbers[field]) for field in TOPIC_GAUGES}
        | {NEXT_DUE: next_due_ms[topic]}
        for topic, numbers in snapshot.items()
    }


def _topic_metrics(databases_: list[dict[str, dict[str, Any]]]) -> Iterator[Metric]:
    for field, (name, description) in TOPIC_GAUGES.items():
        family = GaugeMetricFamily(name, description, labels=["topic"])
        for topic in sorted({topic for topics in databases_ for topic in topics}):
            family.add_metric([topic], _merged(field, [topics[topic] for topics in databases_ if topic in topics]))
        yield family
    yield _next_due(databases_)


def _left_out(numbers: list[int]) -> Metric:
    """Return how many topics have no numbers: the worst of all databases."""
    text = "Topics without numbers, because there are too many."
    return GaugeMetricFamily("delaytasks_topics_left_out", text, max(numbers))


def _next_due(databases_: list[dict[str, dict[str, Any]]]) -> Metric:
    """Return the earliest future due time of each topic that has one."""
    family = GaugeMetricFamily(
        "delaytasks_next_due_timestamp_seconds", "Due time of the next job that is not due yet.", labels=["topic"]
    )
    for topic in sorted({topic for topics in databases_ for topic in topics}):
        times = [ms for topics in databases_ if (ms := topics.get(topic, {}).get(NEXT_DUE)) is not None]
        if times:
            family.add_metric([topic], min(times) / 1000)
    return family


def _merged(field: str, rows: list[dict[str, Any]]) -> float:
    """Merge the values of a topic in several databases into one.

    A topic is paused if it is in all of them. Otherwise jobs that a pause keeps waiting do not count as the oldest: the
    alert for a backlog leaves out topics that are paused, and must see that of another database.
    """
    if field == "oldest_ready_ms":
        rows = [row for row in rows if not row["paused"]] or rows
        return max(row[field] or 0 for row in rows) / 1000
    values = [row[field] or 0 for row in rows]
    merge = {"paused": min, "held": max, "at_least": max}.get(field, sum)
    return merge(values)


def _status_metrics(statuses: list[Health]) -> Iterator[Metric]:
    """Yield the ages of the mover's heartbeat and last sweep, and the mirror's state: the worst of all databases."""
    ages = {
        "delaytasks_mover_heartbeat_age_seconds": ("Time since the last heartbeat of a mover.", "heartbeat_age_ms"),
        "delaytasks_sweep_age_seconds": ("Time since a worker completed a sweep sent by beat.", "sweep_age_ms"),
    }
    for name, (description, field) in ages.items():
        known = [getattr(status, field) for status in statuses]
        yield GaugeMetricFamily(name, description, float("inf") if None in known else max(known) / 1000)
    if any(status.mirror != "off" for status in statuses):
        up = all(status.mirror in ("up", "off") for status in statuses)
        yield GaugeMetricFamily("delaytasks_mirror_up", "1 if Redis answers and accepts writes.", int(up))
    text = "Differences that the last audit found and repaired."
    yield GaugeMetricFamily("delaytasks_mirror_differences", text, sum(status.differences for status in statuses))


def _counter_metrics(databases_: list[CachedNumbers]) -> Iterator[Metric]:
    """Yield the counters of all workers, which Redis keeps. They start at 0 again when Redis is emptied.

    The counter of rebuilds may therefore be equal before and after a flush. The time of the last rebuild differs.
    Yield nothing while a Redis does not answer: Prometheus would take a smaller sum for a counter that was reset.
    """
    if any(each.health.mirror != "off" and not each.counters for each in databases_):
        return
    counters = [each.counters for each in databases_]
    for name, description in COUNTERS.items():
        yield CounterMetricFamily(f"delaytasks_{name}", description, sum(each.get(name, 0) for each in counters))
    rebuilt_at_ms = max((each.get("rebuilt_at_ms", 0) for each in counters), default=0)
    if rebuilt_at_ms:
        text = "Time of the mirror's last rebuild."
        yield GaugeMetricFamily("delaytasks_mirror_rebuilt_timestamp_seconds", text, rebuilt_at_ms / 1000)


def _worker_metrics(found: list[Numbers]) -> Iterator[Metric]:
    """Yield the number of workers and the skew of this host's clock: the worst of all databases."""
    workers = min(each.workers for each in found)
    yield GaugeMetricFamily("delaytasks_workers", "Workers with a heartbeat, until they are found dead.", workers)
    skew_ms = max((each.skew_ms for each in found), key=abs)
    text = "This host's clock minus the clock of the database."
    yield GaugeMetricFamily("delaytasks_clock_skew_seconds", text, skew_ms / 1000)


def _schedule_metrics(found: list[Numbers]) -> Iterator[Metric]:
    """Yield the next run of each schedule, at most 200, without series; and how far the worst schedule is behind."""
    following = GaugeMetricFamily(
        "delaytasks_schedule_next_run_timestamp_seconds", "Due time of the newest run made.", labels=["schedule"]
    )
    names = sorted({name for each in found for name in each.next_runs})[:MAX_SCHEDULES]
    for name in names:  # schedules of the same name: the earliest
        following.add_metric([name], min(each.next_runs[name] for each in found if name in each.next_runs).timestamp())
    yield following
    behind_ms = max(each.cached.health.schedules_behind_ms or 0 for each in found)
    text = "How far the worst schedule is behind, or 0."
    yield GaugeMetricFamily("delaytasks_schedules_behind_seconds", text, behind_ms / 1000)
