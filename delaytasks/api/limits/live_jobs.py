"""Limit the live jobs of each token, without counting them for each request.

Each job that is created over HTTP stores the prefix of its token (Job.producer). A web process counts a token's live
jobs; this reads at most as many index entries as the limit allows. Then it admits a portion of the remaining number
without another count: 1/20 of it, or 1/1,000 of the limit if that is more. So the limit can be exceeded: by at most
1/20 of it for each further web process, by the jobs of requests in progress in other processes, and by those of
requests with one job in this process. After a refusal, the jobs are not counted again for RECOUNT_SECONDS.
Jobs that a schedule makes later count for the token that created the schedule, but are not refused.
The schedules of a token, too, are no more than this limit.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakValueDictionary

from django.db import connections

from ...models import Job, Schedule
from ..access.permissions import Caller
from ..exceptions import ProblemError, problem

PARTS = 20  # a portion is 1/PARTS of the remaining number of jobs,
LEAST_PARTS = 1_000  # and at least 1/LEAST_PARTS of the limit: near the limit, not each request may count the jobs
KEPT_SECONDS = 60.0  # age from which a count is not used any more
RECOUNT_SECONDS = 5.0  # age of a count before which a refused request does not cause another one
MAX_KNOWN = 10_000


class _Count(NamedTuple):
    """A count of the live jobs of a token.

    at      when the jobs were counted, by now()
    limit   limit of live jobs at that time
    room    how many more jobs the limit allowed at that time, less those of pending requests
    left    rest of the portion of this process
    """

    at: float
    limit: int
    room: int
    left: int


_counts: dict[str, _Count] = {}  # by producer
_pending: Counter[str] = Counter()  # by producer: jobs of pending requests, which this process is serving
_lock = threading.Lock()
_counting: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # one count at a time for each producer


def now() -> float:
    return time.monotonic()


@contextmanager
def reserve_room(
    caller: Caller, number: int, using: str, *, count_new: Callable[[], int] | None = None
) -> Iterator[None]:
    """Count `number` new jobs of this caller, which the block creates. Raises ProblemError, as take().

    They are pending until the end of the block: a count of the live jobs adds them.

    count_new   returns how many of the jobs will be new. It is called only if the limit refuses all of them
    """
    number = _take_new(caller, number, using, count_new) if caller.producer is not None and number else 0
    try:
        yield
    finally:
        if number:
            _release(str(caller.producer), number)


def _take_new(caller: Caller, number: int, using: str, count_new: Callable[[], int] | None) -> int:
    """Take the jobs, or at least the new ones among them, as pending. Return how many were taken."""
    try:
        take(caller, number, using, pending=True)
    except ProblemError:
        new = number if count_new is None else count_new()
        if new >= number:
            raise
        if new:
            take(caller, new, using, pending=True)
        return new
    return number


def _release(producer: str, number: int) -> None:
    with _lock:
        _pending[producer] -= number
        if _pending[producer] <= 0:
            del _pending[producer]


def take_counted(caller: Caller, number: int, *, pending: bool = False) -> bool:
    """Count `number` new jobs if that needs no query. Return whether they were counted. Raises ProblemError, as take().

    pending   whether the jobs are also counted as pending
    """
    if caller.producer is None:
        return True
    if number > caller.max_live_jobs:
        raise _too_large(caller.max_live_jobs, number)
    with _lock:
        count = _counts.get(caller.producer)
        if count is None or count.limit != caller.max_live_jobs or now() - count.at >= KEPT_SECONDS:
            return False
        if number <= count.left:
            _counts[caller.producer] = count._replace(left=count.left - number)
            _pending.update({caller.producer: number} if pending else {})
            return True
        if number <= count.room or now() - count.at >= RECOUNT_SECONDS:
            return False
    raise _too_many(count, number)


def take(caller: Caller, number: int, using: str, *, pending: bool = False) -> None:
    """Count `number` new jobs of this caller before they are created. Raises ProblemError with status 429.

    The request may then keep or replace a live job instead of creating one: the next count corrects that.
    """
    if take_counted(caller, number, pending=pending):
        return
    with _lock:
        counting = _counting.setdefault(str(caller.producer), threading.Lock())
    with counting:
        if take_counted(caller, number, pending=pending):  # another thread has counted meanwhile
            return
        count = _count(caller, number, using, pending)
    if number > count.room:
        raise _too_many(count, number)


def _count(caller: Caller, number: int, using: str, pending: bool) -> _Count:
    """Count the live jobs, take `number` jobs from the new portion, and keep and return the count."""
    producer, begun, limit = str(caller.producer), now(), caller.max_live_jobs
    with _lock:
        others = _pending[producer]  # before the query: those committed meanwhile count twice rather than never
    room = max(limit - others - _live(producer, limit, using), 0)
    portion = max(room // PARTS, min(room, limit // LEAST_PARTS))
    count = _Count(begun, limit, room, max(portion - number, 0))
    with _lock:
        if len(_counts) >= MAX_KNOWN:
            _counts.clear()
        _counts[producer] = count
        _pending.update({producer: number} if pending and number <= room else {})
    return count


def _live(producer: str, most: int, using: str) -> int:
    return int(Job.objects.using(using).filter(producer=producer, ended_at__isnull=True)[:most].count())


def check_schedules(caller: Caller, using: str) -> None:
    """Raise ProblemError with status 429 if the caller has made as many schedules as it may have live jobs.

    A schedule that is paused, or whose job was cancelled, may have no live job, but its row stays.
    """
    if caller.producer is None:
        return
    limit = caller.max_live_jobs
    if Schedule.objects.using(using).filter(producer=caller.producer)[:limit].count() == limit:
        detail = f"The token may have at most {limit:,} schedules, as it may have {limit:,} live jobs: delete some."
        raise ProblemError(problem("too-many-schedules", detail))


def take_in_thread(caller: Caller, number: int, using: str) -> None:
    """Call take() in a thread of a pool, and close the connection that it has opened there."""
    try:
        take(caller, number, using)
    finally:
        connections[using].close()


def _too_large(limit: int, number: int) -> ProblemError:
    detail = f"The token may have at most {limit:,} live jobs: {number:,} in one request are refused. Send fewer."
    return ProblemError(problem("too-many-live-jobs", detail))


def _too_many(count: _Count, number: int) -> ProblemError:
    seconds = max(1, round(count.at + RECOUNT_SECONDS - now()))
    live = f"The token has {count.limit - count.room:,} live jobs, and at most {count.limit:,} are allowed"
    detail = f"{live}: {number:,} more cannot be created. Retry in {seconds} s, when jobs have ended."
    headers = {"Retry-After": str(seconds)}
    return ProblemError(problem("too-many-live-jobs", detail, headers=headers))


def clear_cache() -> None:
    """Clear the counts that this process has cached."""
    with _lock:
        _counts.clear()
        _pending.clear()
