"""The retention: delete ended jobs with their events when they are old enough, in small batches.

The sweep does a short step, and if more is left, a thread of its process goes on. RetentionCursor keeps the position.
`manage.py delaytasks prune` does one complete pass.

Workers share the processors and the disk with PostgreSQL, and a job that becomes due during a transaction of the
retention is late by a part of it. So transactions are short, and the pauses between them are several times as long.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from django.db import DatabaseError, InterfaceError, connections

from .. import conf, databases, mirror
from ..db import retention as sql
from ..db.retention import EndedJob, newest_of_keys
from ..db.retries import retry_conflicts
from ..exceptions import MirrorDown
from ..jobs.history import lake_directory
from ..models import RetentionCursor
from ..pipeline.addresses import local_path
from ..states import ENDED, State
from . import inbox, runs

if TYPE_CHECKING:
    from ..mirror.redis.lock import Lock

__all__ = ["EndedJob", "Retention", "configured", "keep", "newest_of_keys", "prune", "step"]

logger = logging.getLogger("delaytasks")
PAGE = 200  # rows read by one statement; those that are old enough are deleted by one transaction
PAUSE_PER_SECOND = 9  # the pause after a page or a step, as a multiple of the time that it took
MAX_PAUSE_SECONDS = 1  # of the command; without it, a page that was interrupted would cause a very long pause
STEP_SECONDS = 0.01  # a pool process does nothing else during a step
LOCK_MS = 20_000  # of the thread; twice its longest pause
PASS_SECONDS = 3600  # shortest time from the beginning of one pass to the beginning of the next
MISSING_ADVICE = (
    "Mount the lake on this host, or set the right LAKE. If the archive was given up, run "
    "`manage.py delaytasks pipeline forget-archive`."
)

KeepRule = Callable[[str, Sequence[EndedJob]], Collection[int]]
Rule = TypeVar("Rule", bound=KeepRule)
_keep_rules: list[KeepRule] = []
_threads: dict[str, threading.Thread] = {}  # alias -> the last thread of this process
_starting = threading.Lock()
_warned: set[str] = set()  # databases whose missing archive this process has logged


def keep(rule: Rule) -> Rule:
    """Decorate a function that keeps jobs which would otherwise be deleted.

    The function is called with the database alias and a batch of ended jobs, and returns the ids of those to keep. It
    is called once for each batch, so it should need no more than one query. If it raises, nothing of the batch is
    deleted. `newest_of_keys(using, jobs)` returns the newest job of each topic and key. The pipeline's archive does not
    call the function.
    """
    _keep_rules.append(rule)
    return rule


@dataclass(frozen=True)
class Retention:
    """How long ended jobs are kept.

    topics   topic or "*" -> {"ended": age, "dead": age}, as in the RETENTION setting. A missing age is that of "*";
             None, or no age at all: keep the jobs
    only     the only topic whose jobs are deleted; None: all
    """

    topics: Mapping[str, Mapping[str, timedelta | None]]
    only: str | None = None

    def age(self, topic: str, state: int) -> timedelta | None:
        """Return how long a job in this state is kept after its end, or None if it is kept forever."""
        if self.only not in (None, topic):
            return None
        kind = "dead" if state == State.DEAD else "ended"
        options = self.topics.get(topic, {})
        return options[kind] if kind in options else self.topics.get(conf.ALL_TOPICS, {}).get(kind)

    @property
    def shortest(self) -> timedelta | None:
        """The shortest of all ages, or of those of the only topic; None if no job is ever deleted."""
        if self.only is None:
            ages = [age for options in self.topics.values() for age in options.values()]
        else:
            ages = [self.age(self.only, state) for state in ENDED]
        return min((age for age in ages if age is not None), default=None)

    def is_over(self, job: EndedJob, now_ms: int) -> bool:
        age = self.age(job.topic, job.state)
        return age is not None and job.ended_ms <= now_ms - to_ms(age)


def configured() -> Retention:
    """Return the retention of the RETENTION setting."""
    return Retention(conf.get().retention)


def to_ms(age: timedelta) -> int:
    return age // timedelta(milliseconds=1)


def archive_directory(using: str, lake: str | None = None) -> str | None:
    """Return the database's directory in `lake` or in the LAKE setting if the pipeline archives there, otherwise None.

    The pipeline then deletes jobs itself, after it has compared their copies with the rows. Whether a remote lake has
    an archive is not known here, so it counts as having one.
    """
    root = lake_directory(using, lake)
    if root is None:
        return None
    path = local_path(root)
    is_archived = path is None or any(os.path.exists(f"{path}/{name}") for name in ("archive.json", "archive"))
    return root if is_archived else None


def missing_archive(using: str, lake: str | None = None) -> str | None:
    """Return a sentence if the pipeline has archived jobs of this database, but this host sees no archive in the lake.

    The lake is not mounted here, or its folder was lost. None: the archive is there, there never was one, or neither
    `lake` nor the LAKE setting names a lake.
    """
    root = lake_directory(using, lake)
    if root is None or archive_directory(using, lake) is not None:
        return None
    archived_at = RetentionCursor.objects.using(using).values_list("archived_at", flat=True).first()
    if archived_at is None:
        return None
    return (
        f"The pipeline last archived jobs of this database on {archived_at:%Y-%m-%d}, but {root} has no archive here."
    )


def note_archive(using: str, at: datetime | None) -> None:
    """Store when the pipeline last archived jobs of this database. None: the archive was given up."""
    rows = RetentionCursor.objects.using(using)
    rows.get_or_create(pk=1, defaults={"began_at": databases.now(using)})
    retry_conflicts(lambda: rows.update(archived_at=at), using)


def is_left_to_pipeline(using: str) -> bool:
    """Return whether only the pipeline deletes jobs. Logs a warning, once a process, if its archive is missing here."""
    if archive_directory(using) is not None:
        return True
    missing = missing_archive(using)
    if missing is not None and using not in _warned:
        _warned.add(using)
        logger.warning("the retention deletes no jobs: %s %s", missing, MISSING_ADVICE)
    return missing is not None


class Batch(NamedTuple):
    """The result of one transaction.

    table     "job" or "event": what was deleted
    deleted   number of rows
    position  id up to which the table has been read; None: to its end
    """

    table: str
    deleted: int
    position: int | None


def prune(using: str, retention: Retention) -> Iterator[Batch]:
    """Delete all rows that are old enough, in order of id. Yield the result of each transaction.

    Then delete events without a job that are older than the shortest age, unless `retention` is for one topic. Sleeps
    after each page PAUSE_PER_SECOND times as long as the page took, at most MAX_PAUSE_SECONDS. If the pipeline archives
    jobs of this database, nothing is deleted.
    """
    yield from _paced(_batches(using, retention, job_id=0, event_id=0))


def step(using: str, seconds: float = STEP_SECONDS) -> dict[str, int]:
    """Continue the pass over the tables for about `seconds`. Return the numbers of deleted rows.

    pruned    jobs
    orphans   events whose jobs were deleted by other means

    A new pass begins at the earliest an hour after the last one began. Does nothing without RETENTION.
    """
    counts, retention = {"pruned": 0, "orphans": 0}, configured()
    if retention.shortest is None:
        return counts
    deadline, mark = time.monotonic() + seconds, _current_or_new_pass(using)
    if mark.job_id is None and mark.event_id is None:
        return counts
    positions: dict[str, int | None] = {}
    for batch in _batches(using, retention, job_id=mark.job_id, event_id=mark.event_id):
        counts["pruned" if batch.table == "job" else "orphans"] += batch.deleted
        positions[f"{batch.table}_id"] = batch.position
        if time.monotonic() >= deadline:
            break
    if positions:  # written once: if the process dies, the next step reads some pages again
        rows = RetentionCursor.objects.using(using).filter(pk=mark.pk)
        retry_conflicts(lambda: rows.update(**positions), using)
    return counts


def prune_in_thread(using: str, *, stopping: Callable[[], bool] = lambda: False) -> None:
    """Continue the pass in a thread of this process, at the pace of prune(), until the pass or the process ends.

    Also delete the old records of inbox messages, which the sweep may have left.

    Does nothing if another thread is at it. Without Redis, threads of other processes are not known: the thread then
    ends when the next sweep is about to begin.

    stopping   returns True when the worker stops
    """
    # Not in tasks: while jobs keep coming, a message waits up to RUN_BUDGET_SECONDS until a pool process ends its run.
    with _starting:
        thread = _threads.get(using)
        if (thread is not None and thread.is_alive()) or not _is_left(using):
            return
        try:
            lock = _lock(using)
            if lock is not None and not lock.acquire():
                return
        except MirrorDown:
            lock = None
        until_ms = None if lock is not None else databases.now_ms(using) + conf.get().sweep_seconds * 1000
        args = (using, lock, until_ms, stopping)
        name = f"delaytasks-retention-{using}"
        _threads[using] = threading.Thread(target=_continue_pass, args=args, name=name, daemon=True)
        _threads[using].start()


def _lock(using: str) -> "Lock | None":
    """Return the lock of the thread that goes on with the pass; None without Redis."""
    index = mirror.connect(using)
    return None if index is None or index.down else index.lock("retention", LOCK_MS)


def _continue_pass(using: str, lock: "Lock | None", until_ms: int | None, stopping: Callable[[], bool]) -> None:
    from ..mirror.redis.lock import LockLost  # imported late, as it needs redis

    try:
        while _is_left(using) and not stopping() and (until_ms is None or databases.now_ms(using) < until_ms):
            began = time.monotonic()
            step(using, seconds=0)
            inbox.prune(using, seconds=0)
            if lock is not None:
                lock.extend()
            time.sleep(min((time.monotonic() - began) * PAUSE_PER_SECOND, LOCK_MS / 2000))
    except (LockLost, MirrorDown, DatabaseError, InterfaceError) as error:
        logger.warning("the retention stopped, the next sweep goes on: %s", str(error) or repr(error))
    except Exception:
        logger.exception("the retention stopped, the next sweep goes on")
    finally:
        if lock is not None:
            lock.release()
        connections.close_all()


def _is_left(using: str) -> bool:
    return is_unfinished(using) or inbox.is_unfinished(using)


def is_unfinished(using: str) -> bool:
    """Return whether the current pass has rows left to read, so that another step is useful."""
    if configured().shortest is None or is_left_to_pipeline(using):
        return False
    return not RetentionCursor.objects.using(using).filter(job_id=None, event_id=None).exists()


def _current_or_new_pass(using: str) -> RetentionCursor:
    """Return the position of the current pass. Begin a new pass if the last one has ended and is old enough."""
    now = databases.now(using)
    rows = RetentionCursor.objects.using(using)
    mark, _ = rows.get_or_create(pk=1, defaults={"began_at": now})
    is_done = mark.job_id is None and mark.event_id is None
    if is_done and mark.began_at <= now - timedelta(seconds=PASS_SECONDS):
        retry_conflicts(lambda: rows.update(job_id=0, event_id=0, began_at=now), using)
        return rows.get(pk=1)
    return mark


def _batches(using: str, retention: Retention, *, job_id: int | None, event_id: int | None) -> Iterator[Batch]:
    shortest = retention.shortest
    if shortest is None or is_left_to_pipeline(using):
        return
    before_ms = databases.now_ms(using) - to_ms(shortest)
    if job_id is not None:
        yield from _prune_jobs(using, retention, job_id, before_ms)
    if event_id is not None and retention.only is None:
        yield from _prune_orphans(using, event_id, before_ms)


def _paced(batches: Iterator[Batch]) -> Iterator[Batch]:
    while True:
        began = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            return
        took = time.monotonic() - began
        yield batch
        time.sleep(min(took * PAUSE_PER_SECOND, MAX_PAUSE_SECONDS))


def _prune_jobs(using: str, retention: Retention, after: int, before_ms: int) -> Iterator[Batch]:
    """Delete jobs after the id `after`. Ends at the first page whose jobs were all created later than `before_ms`."""
    while True:
        page = sql.ended_jobs(using, after=after, before_ms=before_ms, limit=PAGE)
        if page.last_id is None or page.first_ms is None or page.first_ms > before_ms:
            yield Batch("job", 0, None)
            return
        now_ms = databases.now_ms(using)
        deleted = _without_kept(using, [job for job in page.rows if retention.is_over(job, now_ms)])
        runs.note_deleted(using, [(job.topic, job.key, job.ended_ms) for job in deleted])
        after = page.last_id
        yield Batch("job", sql.delete_jobs(using, deleted), after)


def _without_kept(using: str, jobs: list[EndedJob]) -> list[EndedJob]:
    if not jobs:
        return []
    kept = {job_id for rule in _keep_rules for job_id in rule(using, jobs)}
    return [job for job in jobs if job.id not in kept]


def _prune_orphans(using: str, after: int, before_ms: int) -> Iterator[Batch]:
    while True:
        page = sql.orphan_events(using, after=after, before_ms=before_ms, limit=PAGE)
        if page.last_id is None or page.first_ms is None or page.first_ms > before_ms:
            yield Batch("event", 0, None)
            return
        after = page.last_id
        yield Batch("event", sql.delete_orphans(using, page.rows), after)
