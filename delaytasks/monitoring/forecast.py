"""Due jobs per minute and per hour, and the current status of topics, for the dashboard.

The jobs are counted at a bounded cost (see db/counts.py). The results are cached for a few seconds for all users. The
argument `topics` contains the names of the topics that the user may see; None stands for all jobs.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from .. import databases
from .. import handlers as registry
from ..db import counts as job_counts
from ..db.counts import NOTHING, Cell, Count, total
from ..models import Topic
from ..recurrence import planned
from . import cache

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
SECONDS, HOURS_SECONDS, NOW_SECONDS = 0.05, 0.07, 0.03  # time limits of counting for minutes(), hours() and statuses
FRESH_SECONDS = 4
HOURS_FRESH_SECONDS = 60
HERD_TIMES, HERD_LEAST = 3, 50  # a herd: at least 3 times the median of the bins around it, and at least 50 jobs
AROUND = 6  # a bin is compared with the median of this many bins on each side
NAMED_HERDS, NAMED_TOPICS = 3, 3
FEW = 20  # up to this many topics are counted without first finding out which have live jobs
OLDEST_ROWS = 4_000  # rows read, for all topics together, to find the reserved jobs
FAR_MS = 100 * 366 * 86_400_000


class Bin(NamedTuple):
    at_ms: int  # start of the minute or hour
    due: Count
    herd: bool = False
    topics: tuple[tuple[str, Count], ...] = ()  # the topics with the most jobs; only for the largest herds


class Forecast(NamedTuple):
    now_ms: int
    width_ms: int
    bins: tuple[Bin, ...]  # the first bin leaves out jobs that are due already

    @property
    def sum(self) -> Count:
        return total(each.due for each in self.bins)


def minutes(using: str, topics: Collection[str] | None) -> Forecast:
    """Return the number of jobs due in each of 60 minutes, starting with the current minute.

    Jobs that schedules have not made yet are included. The numbers may be a few seconds old.
    """
    return _forecast(using, topics, MINUTE_MS, 60, FRESH_SECONDS, SECONDS)


def hours(using: str, topics: Collection[str] | None) -> Forecast:
    """Return the number of jobs due in each of 24 hours, starting with the current hour.

    If there are too many jobs to count in one call, each call counts some of the hours. For the others, it reuses the
    numbers of earlier calls, which may be a few minutes old. Once all hours are counted, the result is kept for a
    minute.
    """
    return _forecast(using, topics, HOUR_MS, 24, HOURS_FRESH_SECONDS, HOURS_SECONDS)


Span = tuple[int, int]  # from ms (inclusive), until ms (exclusive)
DueCounts = dict[tuple[str | None, int], job_counts.KnownCount]  # (topic or None for all, key of the span) -> jobs
Computed = tuple[Forecast, DueCounts]


def _forecast(
    using: str, topics: Collection[str] | None, width_ms: int, count: int, fresh: float, seconds: float
) -> Forecast:
    def compute(previous: Computed | None) -> Computed:
        now_ms = databases.now_ms(using)
        first = now_ms // width_ms * width_ms
        spans = {at: (max(at, now_ms + 1), at + width_ms) for at in range(first, first + count * width_ms, width_ms)}
        known = {key: each for key, each in previous[1].items() if key[1] != first} if previous else {}
        to_come = planned.count(using, topics, spans, width_ms)
        due = _count_due(using, [None] if topics is None else _with_jobs(using, topics), spans, known, seconds)
        counts_at = defaultdict(list)
        for (_, at), each in due.items():
            counts_at[at].append(each.counted)
        for at in spans:
            counts_at[at].append(Count(sum(to_come.numbers.get(at, {}).values()), to_come.complete))
        bins = [Bin(at, total(counts_at[at])) for at in spans]
        herd_indexes = herds([each.due.number for each in bins])
        largest = sorted(herd_indexes, key=lambda index: -bins[index].due.number)[:NAMED_HERDS]
        if topics is None and largest:  # the jobs were counted without their topics so far
            herd_spans = {bins[index].at_ms: spans[bins[index].at_ms] for index in largest}
            due |= _count_due(using, job_counts.live_topics(using), herd_spans, known, SECONDS)
        marked = (
            each._replace(
                herd=index in herd_indexes, topics=_top_topics(due, to_come, each.at_ms) if index in largest else ()
            )
            for index, each in enumerate(bins)
        )
        return Forecast(now_ms, width_ms, tuple(marked)), due

    def fresh_for(cached: Computed) -> float:
        complete = all(known.counted.complete and not known.old for known in cached[1].values())
        return fresh if complete else min(fresh, FRESH_SECONDS)

    key = cache.cache_key("due", width_ms, using, topics=topics)
    computed: Computed = cache.get_or_compute(key, fresh_for, compute, Computed)
    return computed[0]


def _with_jobs(using: str, topics: Collection[str]) -> list[str]:
    """Return those of the topics that have live jobs, because most of many topics have none.

    Returns all topics if there are at most 20, or if no topic or too many topics have live jobs.
    """
    live = set(job_counts.live_topics(using)) if len(topics) > FEW else set()
    return sorted(topics) if not 0 < len(live) < job_counts.TOPICS else sorted(live.intersection(topics))


def _count_due(
    using: str, topics: Sequence[str | None], spans: dict[int, Span], previous: job_counts.KnownCounts, seconds: float
) -> DueCounts:
    """Count the jobs of each topic (None: of all topics) that are due in each span."""
    cells = {(topic, at): Cell(topic, *span) for topic in topics for at, span in spans.items()}
    return job_counts.live(using, cells, previous, seconds=seconds)


def herds(numbers: Sequence[int]) -> list[int]:
    """Return the indexes of the numbers that are far above the median of their neighbours."""
    indexes = []
    for index, number in enumerate(numbers):
        neighbours = [*numbers[max(0, index - AROUND) : index], *numbers[index + 1 : index + 1 + AROUND]]
        if number >= max(HERD_LEAST, HERD_TIMES * statistics.median(neighbours or [0])):
            indexes.append(index)
    return indexes


def _top_topics(due: DueCounts, to_come: planned.Planned, at: int) -> tuple[tuple[str, Count], ...]:
    """Return the topics with the most jobs due in the period that starts at `at`, with those yet to be made."""
    counts = {topic: each.counted for (topic, start), each in due.items() if topic is not None and start == at}
    for topic, number in to_come.numbers.get(at, {}).items():
        counts[topic] = total([counts.get(topic, NOTHING), Count(number, to_come.complete)])
    top = sorted(counts.items(), key=lambda pair: (-pair[1].number, pair[0]))[:NAMED_TOPICS]
    return tuple(pair for pair in top if pair[1].number)


# -- current status ----------------------------------------------------------------------------------------


class TopicStatus(NamedTuple):
    """Current status of a topic."""

    delayed: Count  # including jobs beyond the horizon
    ready: Count
    reserved: int
    dead: Count
    oldest_ready_ms: int | None  # how long the oldest ready job has been waiting
    paused: bool
    known: bool  # it has a handler in this process, is declared in the settings, or is forwarded by its row


class TopicStatuses(NamedTuple):
    """Statuses of topics, and the counts that the next call may reuse."""

    topics: dict[str, TopicStatus]
    live: DueCounts
    dead: dict[str, job_counts.KnownCount]
    complete: bool = True  # False: there are more topics than were counted


def topic_statuses(using: str, topics: Collection[str] | None) -> dict[str, TopicStatus]:
    """Return the statuses of at most 500 topics. They may be a few seconds old.

    topics   None: the topics that have live or dead jobs or are paused
    """
    return limited_topic_statuses(using, topics).topics


def limited_topic_statuses(using: str, topics: Collection[str] | None) -> TopicStatuses:
    """Return the same as topic_statuses(), and whether there were no more than 500 topics."""

    def compute(previous: TopicStatuses | None) -> TopicStatuses:
        names, complete = topics, True
        if names is None:
            paused = Topic.objects.using(using).filter(paused=True).values_list("name", flat=True)
            live, dead = job_counts.live_topics(using), job_counts.dead_topics(using)
            names, complete = {*live, *dead, *paused}, job_counts.TOPICS not in (len(live), len(dead))
        counted = _count_topics(using, sorted(names)[: job_counts.TOPICS], previous or TopicStatuses({}, {}, {}))
        return counted._replace(complete=complete and len(names) <= job_counts.TOPICS)

    key = cache.cache_key("now", using, topics=topics)
    computed: TopicStatuses = cache.get_or_compute(key, FRESH_SECONDS, compute, TopicStatuses)
    return computed


def uncached_status(
    using: str, topics: Collection[str], *, within_ms: int, seconds: float = NOW_SECONDS
) -> dict[str, TopicStatus]:
    """Return the status of each topic, not cached. Delayed jobs are counted only if they are due within `within_ms`."""
    return _count_topics(using, sorted(topics), TopicStatuses({}, {}, {}), within_ms, seconds).topics


DUE, DELAYED = 0, 1


def _count_topics(
    using: str, names: list[str], previous: TopicStatuses, within_ms: int = FAR_MS, seconds: float = NOW_SECONDS
) -> TopicStatuses:
    now_ms = databases.now_ms(using)
    spans = {DUE: (0, now_ms + 1), DELAYED: (now_ms + 1, now_ms + within_ms + 1)}
    live = _count_due(using, names, spans, previous.live, seconds)
    dead = job_counts.dead(using, names, previous.dead, seconds=seconds)
    due = [name for name in names if live[name, DUE].counted.number]
    held = job_counts.waiting(using, due, rows=max(200, OLDEST_ROWS // max(1, len(due))))
    rows = list(Topic.objects.using(using).filter(name__in=names).values_list("name", "paused", "target"))
    paused = {name for name, is_paused, _ in rows if is_paused}
    known = {*registry.known(), *(name for name, _, target in rows if target is not None)}
    statuses = {
        name: _topic_status(
            now_ms, live[name, DUE].counted, live[name, DELAYED].counted, dead[name].counted, held.get(name),
            name in paused, name in known,
        )
        for name in names
    }  # fmt: skip
    return TopicStatuses(statuses, live, dead)


def _topic_status(
    now_ms: int, due: Count, delayed: Count, dead: Count, held: job_counts.Waiting | None, paused: bool, known: bool
) -> TopicStatus:
    if held is None:
        return TopicStatus(delayed, NOTHING, 0, dead, None, paused, known)
    oldest = None if held.oldest_ms is None else max(0, now_ms - held.oldest_ms)
    ready = Count(max(0, due.number - held.reserved), due.complete)
    return TopicStatus(delayed, ready, held.reserved, dead, oldest, paused, known)
