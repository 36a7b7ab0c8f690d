"""Count and select all jobs that match a filter, for bulk changes. Uses indexes, at a bounded cost.

select() finds the scan that reads the fewest rows, by index-only counts. If every scan would read more rows than a bulk
change may have jobs, it reports why no job is selected: too many jobs match, or too many rows would have to be read.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..states import ENDED, State
from . import counts
from .counts import by_index, run
from .scans import DUE, KEY, NEWEST, JobFilter, Order, Scan, conditions, count_rows, rows

ROW_LIMITS = (1_000, 10_000)  # tried in this order, then the largest size of a bulk change
GROUPED_ROWS = 20_000  # the most rows that are read to count ended jobs
FINAL = [int(state) for state in ENDED if state is not State.DEAD]
TOO_MANY, TOO_WIDE = "many", "wide"


class Selection(NamedTuple):
    """A scan that reads all jobs that match a filter."""

    scan: Scan
    rows: int  # rows that the scan reads; all of them match if the scan is exact
    limit: int


class JobCounts(NamedTuple):
    topics: Counter[str]
    ended: int = 0  # finished or cancelled jobs, which no bulk change affects; 0 if too many jobs match


def select(using: str, job_filter: JobFilter, limit: int) -> Selection | str:
    """Return the selection with the scan that reads the fewest rows, or TOO_MANY or TOO_WIDE.

    TOO_MANY means that more than `limit` jobs match, TOO_WIDE that more than `limit` rows would have to be read.
    """
    topics = (None,) if job_filter.topics is None else job_filter.topics
    scans = [Scan(using, order, job_filter, topics) for order in _orders(job_filter)]
    with by_index(using):
        for row_limit in (*(rows for rows in ROW_LIMITS if rows < limit), limit + 1):
            for scan in scans:
                row_count = count_rows(scan, row_limit)
                if row_count < row_limit:
                    return Selection(_by_topic(scan), row_count, limit)
    # In a due range, all live jobs are delayed or ready, except for the few that are reserved.
    is_nearly_exact = job_filter.state in (State.DELAYED, State.READY) and not job_filter.key_prefix
    return TOO_MANY if is_nearly_exact or any(scan.is_exact for scan in scans) else TOO_WIDE


def count(selection: Selection) -> JobCounts:
    """Count the matching jobs by topic."""
    with by_index(selection.scan.using):
        return _count(selection)


def read_ids(selection: Selection) -> tuple[list[int], Counter[str]]:
    """Return the ids of all matching jobs and the number of jobs for each topic.

    Live jobs are sorted by due time, others newest first.
    """
    scan, is_by_due = selection.scan, selection.scan.order == DUE
    order = ["due_at", "id"] if is_by_due else ["id"]
    where, params = _where(scan)
    columns = dict.fromkeys([*order, "topic", *(("id", "key", "state", "due_at") if where else ())])
    jobs: list[tuple[Any, ...]] = []
    with by_index(scan.using):
        for sql, values in rows(scan, ", ".join(columns), selection.limit):
            found = f"SELECT {', '.join(order)}, topic FROM ({sql}) AS scanned {where}"
            jobs += run(scan.using, found, [*values, *params])
    jobs.sort(reverse=not is_by_due)
    return [pk for *_, pk, _topic in jobs], Counter(topic for *_, topic in jobs)


def _orders(job_filter: JobFilter) -> Iterator[Order]:
    """Yield the orders whose index contains all matching jobs."""
    is_any = job_filter.state is None and not job_filter.live
    if job_filter.is_dead:
        yield NEWEST
    elif job_filter.is_live:
        yield DUE
    elif job_filter.topics is None:
        yield NEWEST
    if job_filter.topics is not None and (job_filter.key_prefix or is_any):
        yield KEY


def _by_topic(scan: Scan) -> Scan:
    """Split an exact scan over all topics by topic if an index contains the topic, so that it reads only the index."""
    if scan.topics != (None,) or not scan.is_exact or not (scan.job_filter.is_dead or scan.order == DUE):
        return scan
    topics = (counts.dead_topics if scan.job_filter.is_dead else counts.live_topics)(scan.using)
    return scan._replace(topics=tuple(topics)) if 0 < len(topics) < counts.TOPICS else scan


def _count(selection: Selection) -> JobCounts:
    scan, job_filter = selection.scan, selection.scan.job_filter
    has_ended = job_filter.state is None and not (job_filter.live or job_filter.due_from or job_filter.due_until)
    is_by_topic = None not in scan.topics and scan.is_exact
    if is_by_topic and not (has_ended and job_filter.key_prefix and selection.rows <= GROUPED_ROWS):
        topics = Counter[str](dict(_grouped(scan, "topic", selection.limit)))
        if not has_ended or job_filter.key_prefix:
            return JobCounts(topics)
        live = scan._replace(order=DUE, job_filter=job_filter._replace(live=True))
        dead = scan._replace(order=NEWEST, job_filter=job_filter._replace(state=State.DEAD))
        not_final = sum(count_rows(part, selection.limit) for part in (live, dead))
        return JobCounts(topics, max(topics.total() - not_final, 0))
    topics, ended = Counter[str](), 0
    for topic, state, number in _grouped(scan, "topic, state", selection.limit):
        topics[topic] += number
        ended += number if state in FINAL else 0
    return JobCounts(topics, ended)


def _grouped(scan: Scan, columns: str, limit: int) -> Iterator[tuple[Any, ...]]:
    """Yield (*columns, number) of the matching jobs, grouped by these columns. An exact scan reads only the index."""
    where, params = _where(scan)
    for sql, values in rows(scan, "topic, state, key, due_at" if where else columns, limit):
        grouped = f"SELECT {columns}, count(*) FROM ({sql}) AS scanned {where} GROUP BY {columns}"
        yield from run(scan.using, grouped, [*values, *params])


def _where(scan: Scan) -> tuple[str, list[Any]]:
    where, params = conditions(scan)
    return (f"WHERE {' AND '.join(where)}" if where else ""), params
