"""Distinguish living workers from dead ones, and take back the jobs and run slots of the dead.

Each worker has a row (models.Worker) with a counter that its main process increments. A worker is dead when its counter
has stood still for LEASE_SECONDS, measured by the observer's own clock, while the observer read it without a gap and
the counter of its own worker went on. So neither an outage of the database, nor a database that can only be read, nor a
changed clock makes a living worker look dead. A process that its worker's pool has lost is dead at once.
celery/heartbeat.py calls this module.

Processes without a row (consumers over HTTP, older versions, gevent pools) are judged by the TTR alone.

A handler that calls touch() inside a transaction cannot write its job's row: nobody would see that before the commit,
and the row would be locked until then. Its process tells the main process through a pipe, which writes a row of
models.Touch. The job's own row is not written at all: under REPEATABLE READ the handler's transaction could not end the
job then.
"""

import functools
import json
import logging
import os
import select
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db.models import F

from .. import conf, databases, handlers, mirror, topics
from ..clock import from_ms
from ..db import lookups
from ..db.lookups import JobSnapshot
from ..exceptions import MirrorDown
from ..models import Touch, Worker
from ..outcomes import ErrorCode
from ..worker.completion import take_back
from ..worker.process_name import is_in_run, is_slot_of, is_slot_of_current_run, read_called_job, slot_owner, was_called

logger = logging.getLogger("delaytasks")
PAGE = 200  # jobs taken back in one statement
KEEP_TOUCHES_MS = 60_000  # how long a touch is kept after its lease
MAX_GAP_SECONDS = 5.0  # an observer that was away for longer starts to observe anew


def beat(using: str, worker: str) -> None:
    """Increment the counter of a worker. Create its row if it has none, for example because it was taken for dead."""
    if not Worker.objects.using(using).filter(name=worker).update(beat=F("beat") + 1):
        Worker.objects.using(using).create(name=worker, beat=1)


def delete_worker(using: str, worker: str) -> None:
    """Delete the row of a worker that has stopped and holds no jobs."""
    Worker.objects.using(using).filter(name=worker).delete()


class Touched(NamedTuple):
    """A touch of a running attempt, and the end of its lease in ms since 1970."""

    job_id: int
    attempt: int
    lease_ms: int


class TouchPipe:
    """Carries touches from the processes of a worker to its main process, from which they are forked later."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._rest = b""

    def write(self, touched: Touched) -> None:
        """Notify the main process. Never waits: if the pipe is full, this touch is lost."""
        try:
            os.write(self._writer, json.dumps(touched).encode() + b"\n")  # short enough to be written as a whole
        except BlockingIOError:
            logger.warning("job %s was touched, but the worker's main process does not listen", touched.job_id)

    def wake(self) -> None:
        """Let read() return without a touch."""
        with suppress(BlockingIOError):  # a full pipe wakes it too
            os.write(self._writer, b"\n")

    def read(self, seconds: float | None) -> list[Touched]:
        """Return the touches written since the last call. Waits up to `seconds` for one; None: without limit."""
        if not select.select([self._reader], [], [], seconds)[0]:
            return []
        *lines, self._rest = (self._rest + os.read(self._reader, 65_536)).split(b"\n")
        return [Touched(*json.loads(line)) for line in lines if line]

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


# The pipes of this process's worker, by database alias. Empty: no main process reads touches.
touches: dict[str, TouchPipe] = {}


def open_touches() -> dict[str, TouchPipe]:
    """Create a pipe for each database, before the pool forks."""
    close_touches()
    touches.update((using, TouchPipe()) for using in databases.aliases())
    return touches


def close_touches() -> None:
    for pipe in touches.values():
        pipe.close()
    touches.clear()


def store_touches(using: str, touched: Iterable[Touched]) -> None:
    """Store the new leases of touched attempts."""
    rows = [Touch(job_id=t.job_id, attempt=t.attempt, lease_until=from_ms(t.lease_ms)) for t in touched]
    Touch.objects.using(using).bulk_create(
        rows, update_conflicts=True, unique_fields=["job_id", "attempt"], update_fields=["lease_until"]
    )


def delete_old_touches(using: str) -> None:
    """Delete touches whose leases ended a while ago. Until then, touches of ended jobs have no effect."""
    before = from_ms(databases.now_ms(using) - KEEP_TOUCHES_MS)
    Touch.objects.using(using).filter(lease_until__lt=before).delete()


@dataclass
class Observer:
    """Observes the counters of all workers of a database.

    own   the name of the observer's own worker: while its counter stands still, the database may refuse all writes, so
          no worker counts as dead. "": the observer has no worker
    """

    using: str
    own: str = ""
    seen: dict[str, tuple[int, float]] = field(default_factory=dict)  # worker -> (counter, since when it stands still)
    observed_at: float = float("-inf")  # by time.monotonic()

    def find_dead(self) -> dict[str, int]:
        """Return the workers that are dead now, with their counters."""
        counters = dict(Worker.objects.using(self.using).values_list("name", "beat"))
        now = time.monotonic()
        if now - self.observed_at > MAX_GAP_SECONDS:
            self.seen.clear()
        self.observed_at = now
        self.seen = {
            name: old if (old := self.seen.get(name)) and old[0] == counter else (counter, now)
            for name, counter in counters.items()
        }
        silent_seconds = conf.get().lease_seconds
        own_counter, own_since = self.seen.get(self.own, (0, float("-inf")))
        if self.own and now - own_since >= silent_seconds * 2 / 3:
            self.seen = {self.own: (own_counter, own_since)}  # observe the others anew
            return {}
        return {name: counter for name, (counter, since) in self.seen.items() if now - since >= silent_seconds}

    def clean_up_dead(self) -> None:
        """Take back the jobs and run slots of dead workers and delete their rows."""
        for worker, counter in self.find_dead().items():
            logger.warning("worker %s is dead: its jobs are taken back", worker)
            take_back_jobs(self.using, f"{worker}/")
            free_slots(self.using, f"{worker}/")
            if not holds_jobs(self.using, f"{worker}/"):  # else rows are locked: try again
                Worker.objects.using(self.using).filter(name=worker, beat=counter).delete()


def take_back_jobs(using: str, prefix: str) -> int:
    """Take back the jobs of a dead process, or of all processes of a worker if `prefix` ends with "/". Return how many.

    Jobs whose rows are locked are left out: the server has not ended the dead process's session yet.
    """
    return sum(take_back(using, page) for page in _pages_held_by(using, prefix))


def take_back_own_jobs(using: str, process: str) -> int:
    """Take back the jobs that the last run of this thread holds, which has failed. Return how many."""
    called = read_called_job(using, process)
    return sum(_take_back_from_run(using, page, called) for page in _pages_held_by(using, process))


def _pages_held_by(using: str, prefix: str) -> Iterator[list[JobSnapshot]]:
    after = (0, 0)
    while page := lookups.held_by(using, prefix, after=after, limit=PAGE):
        yield page
        after = (page[-1].due_ms, page[-1].id)


def take_back_abandoned_jobs(using: str, worker: str) -> bool:
    """Take back the jobs that processes of this worker hold outside a run of this database.

    Return False if there are jobs left whose rows are locked.

    Such a process lived on when the database failed, but could not end its attempt. The jobs are read before the
    process is looked at: the guarded statement then cannot take back a job that a later run has claimed.
    """
    left = 0
    for name in lookups.holding_processes(using, f"{worker}/"):
        pages, called = list(_pages_held_by(using, name)), read_called_job(using, name)
        if not is_in_run(name, using):
            left += sum(len(page) - _take_back_from_run(using, page, called) for page in pages)
    return not left


def _take_back_from_run(using: str, held: Sequence[JobSnapshot], called: int) -> int:
    return take_back(using, held, ErrorCode.RUN_FAILED, was_called=lambda job_id: was_called(called, job_id))


def holding_process_ids(using: str, worker: str) -> set[int]:
    """Return the ids of the worker's processes that hold jobs."""
    names = lookups.holding_processes(using, f"{worker}/")
    return {int(name.rpartition("/")[2].split(".")[0]) for name in names}


def holds_jobs(using: str, prefix: str) -> bool:
    return bool(lookups.held_by(using, prefix, after=(0, 0), limit=1))


def free_slots(using: str, prefix: str) -> None:
    """Free the run slots of a dead process or worker. If Redis is down, free_stale_slots() frees them later.

    prefix   as in take_back_jobs()
    """
    _free_slots_if(using, lambda token: is_slot_of(token, prefix))


def free_stale_slots(using: str, worker: str, processes: Collection[int]) -> None:
    """Free the run slots of workers that have no row, and of this worker's processes and runs that have ended.

    processes   the ids of this worker's living processes

    The slot of an ended run is left over if Redis or the database was down at its end, or if Redis was restored.
    """

    @functools.cache
    def workers() -> set[str]:
        """Read after the tokens: the row of a worker is older than its slots."""
        return set(Worker.objects.using(using).values_list("name", flat=True))

    def is_stale(token: str) -> bool:
        owner = slot_owner(token)
        if owner is None:
            return False
        if owner[0] == worker:
            return owner[1] not in processes or not is_slot_of_current_run(token)
        return owner[0] not in workers()

    _free_slots_if(using, is_stale)


def _free_slots_if(using: str, condition: Callable[[str], bool]) -> None:
    index = mirror.choose(using)
    try:
        names = {*handlers.known(), *topics.handled(using)}
        tokens = [(name, token) for name in names for token in index.slot_tokens(name)]
        for name, token in tokens:
            if condition(token):
                index.free_slot(name, token)
    except MirrorDown as error:
        logger.warning("run slots of dead processes were not freed: %s", error)
