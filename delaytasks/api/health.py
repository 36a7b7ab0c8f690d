"""Whether the service works, for whoever routes requests to it: anybody may ask, and learns no numbers."""

import threading
import time
from typing import ClassVar

from django.db import DatabaseError, InterfaceError, connections
from rest_framework.request import Request
from rest_framework.response import Response

from .. import engine
from ..exceptions import MirrorDown
from ..mirror.index import Mirror
from . import examples
from .answers import HealthSerializer
from .base import BaseView
from .openapi import Answer, operation
from .problems import AGAIN_SECONDS

PATIENCE_SECONDS = 0.2  # a Redis that takes longer is not waited for, here
FRESH_SECONDS = 1.0


class HealthView(BaseView):
    authentication_classes: ClassVar = []
    permission_classes: ClassVar = []
    throttle_classes: ClassVar = []

    @operation(
        "health",
        tag="service",
        summary="Whether the service works",
        answers={
            200: Answer(HealthSerializer, "It works; degraded means slower and still correct, without its mirror."),
            503: Answer(HealthSerializer, "The database does not answer."),
        },
        problems={},
        examples=[
            examples.answer("All is well", {"status": "ok", "database": "up", "mirror": "up"}),
            examples.answer("Without Redis", {"status": "degraded", "database": "up", "mirror": "down"}),
            examples.answer("Down", {"status": "down", "database": "down", "mirror": "up"}, 503),
        ],
    )
    def get(self, request: Request) -> Response:
        """For load balancers and probes. Needs no token."""
        database = "up" if database_answers(self.using) else "down"
        mirror = mirror_state(self.using)
        status = "down" if database == "down" else "degraded" if mirror == "down" else "ok"
        found, headers = {"status": status, "database": database, "mirror": mirror}, {"Cache-Control": "no-store"}
        if database == "up":
            return Response(found, headers=headers)
        return Response(found, status=503, headers=headers | {"Retry-After": str(AGAIN_SECONDS)})


def database_answers(using: str) -> bool:
    for _ in range(2):  # the first may find a connection that broke while nobody used it
        try:
            with connections[using].cursor() as cursor:
                cursor.execute("SELECT 1")
            return True
        except (DatabaseError, InterfaceError):
            connections[using].close()
    return False


def mirror_state(using: str) -> str:
    """ "up", "down", or "off" if no Redis is configured; within a moment, even if Redis hangs."""
    found = engine.mirror_of(using)
    if found is None:
        return "off"
    return "up" if not found.down and _answers(found) else "down"


class _Look:
    """One question to a mirror, asked in a thread of its own: it may take as long as Redis likes."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror, self.began = mirror, time.monotonic()
        self.answered: bool | None = None
        self._thread = threading.Thread(target=self._ask, name="delaytasks-health", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self.mirror.due_count()
        except MirrorDown:
            self.answered = False
        else:
            self.answered = True

    @property
    def fresh(self) -> bool:
        """Whether it tells of now; one that has no answer yet is still asking."""
        return self.answered is None or time.monotonic() - self.began < FRESH_SECONDS

    def result(self) -> bool:
        self._thread.join(max(0.0, self.began + PATIENCE_SECONDS - time.monotonic()))
        return bool(self.answered)


_looks: dict[int, _Look] = {}
_lock = threading.Lock()


def _answers(mirror: Mirror) -> bool:
    """Whether Redis answers. However many ask, Redis is asked once a second."""
    with _lock:
        look = _looks.get(id(mirror))
        if look is None or not look.fresh:
            _looks.clear()
            look = _looks[id(mirror)] = _Look(mirror)
    return look.result()
