"""The mover inside a Celery worker: a thread for millisecond precision without polling."""

import logging
import threading

from django.db import DatabaseError, InterfaceError, connections

from . import conf, engine, mirror, sweeper
from .exceptions import MirrorDown
from .mirror.index import Listener
from .tasks import new_mover

logger = logging.getLogger("delaytasks")


class MoverThread(threading.Thread):
    """Sleeps until the next due time, wakes earlier when an earlier one arrives, and does the guard each second."""

    def __init__(self) -> None:
        super().__init__(name="delaytasks-mover", daemon=True)
        self._stop_asked = threading.Event()
        self._listener: Listener | None = None

    def run(self) -> None:
        using = engine.alias()
        mover = new_mover(using)
        while not self._stop_asked.is_set():
            try:
                rest_ms = mover.move_due()
                sweeper.guard(using)
            except (DatabaseError, InterfaceError) as error:
                logger.warning("mover: the database does not answer, trying again: %s", error)
                connections[using].close()
                rest_ms = conf.get().guard_tick_ms
            except Exception:
                logger.exception("mover: a pass failed, trying again")
                rest_ms = conf.get().guard_tick_ms
            if rest_ms:
                self._rest(rest_ms)
        connections.close_all()

    def _rest(self, ms: int) -> None:
        found = mirror.connect()
        if found is not None and not found.down:
            try:
                self._listener = self._listener or found.listen()
                return self._listener.wait(ms)
            except MirrorDown:
                self._listener = None
        self._stop_asked.wait(ms / 1000)

    def stop(self) -> None:
        self._stop_asked.set()
        found = mirror.connect()
        if found is not None:
            found.notify()
        self.join(timeout=5)
