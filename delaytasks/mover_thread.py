"""The mover inside a Celery worker: a thread for millisecond precision without polling."""

import logging
import math
import threading
import time

from django.db import DatabaseError, InterfaceError, connections

from . import beat, conf, engine, sweeper
from .exceptions import MirrorDown
from .mirror.index import Listener
from .mover import Mover
from .tasks import new_mover

logger = logging.getLogger("delaytasks")
SOCKETS_SECONDS = 0.001  # what a socket's timeout is rounded up to


class MoverThread(threading.Thread):
    """Sleeps until the next due time, wakes earlier when an earlier one arrives, and does the guard each second."""

    def __init__(self) -> None:
        super().__init__(name="delaytasks-mover", daemon=True)
        self._stop_asked = threading.Event()
        self._listener: Listener | None = None
        self._movers: dict[str, Mover] = {}
        self._guarded: dict[str, float] = {}  # alias -> when, by the monotonic clock

    def run(self) -> None:
        while not self._stop_asked.is_set():
            rest_ms = min(self._pass(using) for using in engine.aliases())
            if rest_ms:
                self._rest(rest_ms)
        connections.close_all()

    def _pass(self, using: str) -> float:
        try:
            if using not in self._movers:
                self._movers[using] = new_mover(using)
            rest_ms = self._movers[using].move_due()
            return min(rest_ms, self._guard(using))
        except (DatabaseError, InterfaceError) as error:
            logger.warning("mover: the database refused a pass, trying again: %s", error)
            connections[using].close()
        except Exception:
            logger.exception("mover: a pass failed, trying again")
        return conf.get().guard_tick_ms

    def _guard(self, using: str) -> int:
        """The guard, once a tick however many passes there are; in how many ms it is to come again."""
        tick_ms, began = conf.get().guard_tick_ms, self._guarded.get(using, -math.inf)
        if time.monotonic() - began >= tick_ms / 1000:
            self._guarded[using] = began = time.monotonic()
            sweeper.guard(using)
            found = engine.mirror_of(using)
            if found is not None:
                found.say_moving(beat.handlers(), tick_ms * 3 // 2)  # beat sends its messages when that is over
        return max(0, math.ceil(tick_ms - (time.monotonic() - began) * 1000))

    def _rest(self, ms: float) -> None:
        """Rest for so long, or until something earlier arrives."""
        over = time.monotonic() + ms / 1000
        if not self._listened(int(ms)):
            self._stop_asked.wait(ms / 1000)
        elif 0 < (left := over - time.monotonic()) < SOCKETS_SECONDS:
            self._stop_asked.wait(left)

    def _listened(self, ms: int) -> bool:
        """Wait for a message for up to `ms`; False if nobody can be listened to."""
        found = engine.mirror_of(engine.aliases()[0])  # all databases share the channel
        if found is None or found.down:
            return False
        try:
            self._listener = self._listener or found.listen()
            self._listener.wait(ms)
        except MirrorDown:
            self._listener = None
            return False
        return True

    def stop(self) -> None:
        self._stop_asked.set()
        found = engine.mirror_of(engine.aliases()[0])
        if found is not None:
            found.notify()
        self.join(timeout=5)
