"""A group: jobs that are claimed together because they share a call or a commit.

With `one_commit` the handler is called with one job after the other. The jobs behind a slow call are claimed, so no
other run slot could run them. As the thread of the run is busy with that call, another thread unclaims them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from django.db import connections

from .attempt import RunningJob
from .claim import RESERVE_MS

logger = logging.getLogger("delaytasks")
WAIT_SECONDS = RESERVE_MS / 1000  # how long a job of a group may wait for its call, as if it was only reserved


class Group:
    """Iterates over the jobs whose handler is called next, in run order.

    begun     the jobs that the iteration has returned
    unclaim   called with the jobs that have waited for too long, in another thread; must not raise a DatabaseError
    """

    def __init__(self, attempts: Sequence[RunningJob], unclaim: Callable[[Sequence[RunningJob]], None]) -> None:
        self.begun: list[RunningJob] = []
        self._waiting = deque(attempts)  # two threads remove from it: popleft() and pop() are atomic
        self._unclaim = unclaim
        self._until = 0.0  # by time.monotonic()

    @property
    def waiting(self) -> list[RunningJob]:
        """The jobs whose handler was not called, in run order; a copy."""
        return list(self._waiting)

    def __iter__(self) -> Iterator[RunningJob]:
        """Yield the first job, and further ones until WAIT_SECONDS after the start of unclaim_late()."""
        while attempt := _pop(self._waiting.popleft):
            self.begun.append(attempt)
            yield attempt
            if time.monotonic() >= self._until:
                break

    def begin_all(self) -> list[RunningJob]:
        """Return all jobs, which share one call."""
        self.begun += self.pop_waiting()
        return self.begun

    def pop_waiting(self) -> list[RunningJob]:
        """Return the jobs that wait. They do not belong to the group any more."""
        return list(iter(lambda: _pop(self._waiting.popleft), None))

    def start_again(self) -> None:
        """After a rollback, put the begun jobs back at the front of the waiting jobs."""
        self._waiting.extendleft(reversed(self.begun))
        self.begun = []

    @contextmanager
    def unclaim_late(self) -> Iterator[None]:
        """While the block runs, unclaim the jobs that still wait after WAIT_SECONDS.

        Not to be left inside a transaction: a job that the transaction has locked is unclaimed after its commit.
        """
        self._until = time.monotonic() + WAIT_SECONDS
        if len(self._waiting) < 2:  # the first one is begun at once
            yield
            return
        timer = threading.Timer(WAIT_SECONDS, self._unclaim_waiting)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if time.monotonic() >= self._until:  # it may have begun
                timer.join()

    def _unclaim_waiting(self) -> None:
        waiting = []
        while len(self._waiting) > (0 if self.begun else 1):  # the first one is begun, however late
            if attempt := _pop(self._waiting.pop):
                waiting.append(attempt)
        if not waiting:
            return
        try:
            self._unclaim(waiting)
        except Exception:  # for example, Redis is down; the guard finds these jobs
            logger.exception("%s: the mirror was not updated for %s unclaimed jobs", waiting[0].topic, len(waiting))
        finally:
            connections.close_all()  # of this thread


def _pop(pop: Callable[[], RunningJob]) -> RunningJob | None:
    try:
        return pop()
    except IndexError:
        return None
