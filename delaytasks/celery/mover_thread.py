"""The mover thread of a Celery worker: millisecond precision without polling."""

import logging
import math
import threading
import time

from django.db import DatabaseError, InterfaceError, connections

from .. import conf, mirror
from ..exceptions import MirrorDown
from ..maintenance import guard
from ..mirror.redis.index import Listener
from ..worker.dispatch import new_mover
from ..worker.mover import Mover
from . import beat
from .forks import no_fork

logger = logging.getLogger("delaytasks")
SOCKET_RESOLUTION_SECONDS = 0.001  # socket timeouts are multiples of this


class MoverThread(threading.Thread):
    """Thread that makes the due jobs of one database ready and, once per tick, runs the guard.

    There is one for each database, so that a database that does not answer delays nothing in the others.

    Between two passes it sleeps until the next due time, or until a message announces an earlier one.
    """

    def __init__(self, using: str) -> None:
        super().__init__(name=f"delaytasks-mover-{using}", daemon=True)
        self._using = using
        self._stop_requested = threading.Event()
        self._listener: Listener | None = None
        self._mover: Mover | None = None
        self._guarded_at = -math.inf  # last run of the guard, by time.monotonic()

    def run(self) -> None:
        while not self._stop_requested.is_set():
            with no_fork():
                rest_ms = self._pass()
            if rest_ms:
                self._rest(rest_ms)
        self._close_listener()
        with no_fork():
            connections.close_all()

    def _pass(self) -> float:
        try:
            self._mover = self._mover or new_mover(self._using)
            rest_ms = self._mover.move_due()
            return min(rest_ms, self._guard())
        except (DatabaseError, InterfaceError) as error:
            logger.warning("mover: the database failed during a pass, trying again: %s", error)
            connections[self._using].close()
        except Exception:
            logger.exception("mover: a pass failed, trying again")
        return conf.get().guard_tick_ms

    def _guard(self) -> int:
        """Run the guard if a tick has passed since its last run. Return the milliseconds until its next run."""
        tick_ms, began = conf.get().guard_tick_ms, self._guarded_at
        if time.monotonic() - began >= tick_ms / 1000:
            self._guarded_at = began = time.monotonic()
            guard.guard(self._using)
            index = mirror.connect(self._using)
            if index is not None:
                # When the heartbeat expires, beat sends move_due.
                index.record_mover_heartbeat(beat.handlers_digest(), tick_ms * 3 // 2)
        return max(0, math.ceil(tick_ms - (time.monotonic() - began) * 1000))

    def _rest(self, ms: float) -> None:
        """Sleep for `ms`, or until a message announces an earlier due time."""
        deadline = time.monotonic() + ms / 1000
        if not self._listen(int(ms)):
            self._stop_requested.wait(ms / 1000)
        elif 0 < (left := deadline - time.monotonic()) < SOCKET_RESOLUTION_SECONDS:
            self._stop_requested.wait(left)

    def _listen(self, ms: int) -> bool:
        """Wait up to `ms` for a message. Return False early if there is no listener, for example without Redis."""
        index = mirror.connect(self._using)
        if index is None or index.down:
            return False
        try:
            self._listener = self._listener or index.listen()
            self._listener.wait(ms)
        except MirrorDown:
            self._listener = None
            return False
        except Exception:  # a malformed message must not end the thread
            logger.exception("mover: waiting for messages failed, trying again")
            self._close_listener()
            return False
        return True

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def stop(self) -> None:
        """Ask the thread to end after its pass. The caller joins it."""
        self._stop_requested.set()
        index = mirror.connect(self._using)
        if index is not None:
            index.notify()
