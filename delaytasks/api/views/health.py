"""Unauthenticated health check; exposes no metrics."""

import threading
import time
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from ... import mirror
from ...exceptions import MirrorDown
from ...mirror.redis.index import Mirror
from ...monitoring.readiness import database_answers
from ..exceptions import RETRY_AFTER_SECONDS
from ..schema import examples
from ..schema.operations import ResponseDoc, operation
from ..serializers.responses import HealthSerializer
from .base import BaseView

MIRROR_TIMEOUT_SECONDS = 0.2  # a slower Redis counts as down here
CACHE_SECONDS = 1.0


class HealthView(BaseView):
    authentication_classes: ClassVar = []
    permission_classes: ClassVar = []
    throttle_classes: ClassVar = []

    @operation(
        "health",
        tag="service",
        summary="Check the service",
        responses={
            200: ResponseDoc(
                HealthSerializer, "The service works. `degraded`: without its mirror, slower but correct."
            ),
            503: ResponseDoc(HealthSerializer, "The database is unavailable."),
        },
        problems={},
        examples=[
            examples.response("Healthy", {"status": "ok", "database": "up", "mirror": "up"}),
            examples.response("Without Redis", {"status": "degraded", "database": "up", "mirror": "down"}),
            examples.response("Redis is full", {"status": "degraded", "database": "up", "mirror": "read_only"}),
            examples.response("Down", {"status": "down", "database": "down", "mirror": "up"}, 503),
        ],
    )
    def get(self, request: Request) -> Response:
        """Health check for load balancers and probes. Requires no token."""
        database = "up" if database_answers(self.using) else "down"
        mirror = mirror_state(self.using)
        status = "down" if database == "down" else "degraded" if mirror in ("down", "read_only") else "ok"
        data, headers = {"status": status, "database": database, "mirror": mirror}, {"Cache-Control": "no-store"}
        if database == "up":
            return Response(data, headers=headers)
        return Response(data, status=503, headers=headers | {"Retry-After": str(RETRY_AFTER_SECONDS)})


def mirror_state(using: str) -> str:
    """Return "up", "read_only" or "down", or "off" if Redis is not configured. Does not hang even if Redis does."""
    index = mirror.connect(using)
    if index is None:
        return "off"
    return _ask(index) if index.down else _state_of(index)


def _ask(index: Mirror) -> str:
    try:
        return "read_only" if index.refusal() else "up"
    except MirrorDown:
        return "down"


class _Ping:
    """One ping of a mirror in its own thread, which may block as long as Redis hangs."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror, self.began = mirror, time.monotonic()
        self.state = ""  # "" while Redis has not answered
        self._thread = threading.Thread(target=self._run, name="delaytasks-health", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.state = _ask(self.mirror)

    @property
    def fresh(self) -> bool:
        """Whether the ping is still running, or began less than CACHE_SECONDS ago."""
        return not self.state or time.monotonic() - self.began < CACHE_SECONDS

    def result(self) -> str:
        self._thread.join(max(0.0, self.began + MIRROR_TIMEOUT_SECONDS - time.monotonic()))
        return self.state or "down"


_pings: dict[int, _Ping] = {}
_lock = threading.Lock()


def _state_of(mirror: Mirror) -> str:
    """Return the state of a mirror. Its Redis is pinged at most once a second, however many requests come."""
    with _lock:
        ping = _pings.get(id(mirror))
        if ping is None or not ping.fresh:
            _pings.clear()
            ping = _pings[id(mirror)] = _Ping(mirror)
    return ping.result()
