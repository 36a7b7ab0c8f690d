"""The jobs whose handler is running in this context, so that a handler can schedule its own key again."""

from contextvars import ContextVar
from typing import Any, Protocol

from django.db import connections

from ..exceptions import Reserved


class Running(Protocol):
    """The attributes of a running job that this module needs."""

    topic: str
    key: str
    using: str
    ended: bool

    def finish(self) -> None: ...

    def still_held(self) -> bool: ...


_running: ContextVar[tuple[Any, ...]] = ContextVar("delaytasks_running", default=())


class running_jobs:
    """Mark these jobs as running inside the block."""

    def __init__(self, *jobs: Running) -> None:
        self.jobs = jobs

    def __enter__(self) -> None:
        self.token = _running.set(self.jobs)

    def __exit__(self, *error: object) -> None:
        _running.reset(self.token)


def finish_own(using: str, topic: str, key: str) -> bool:
    """Finish the running job with this topic and key, if there is one, so that its handler can schedule the key again.

    Return whether there was one. Raises Reserved outside a transaction, because the finish and the new job must be
    committed together.
    """
    for job in _running.get():
        if (job.topic, job.key, job.using) == (topic, key, using) and (not job.ended or job.still_held()):
            job.ended = False  # it was True if a savepoint has rolled an earlier finish back
            if not connections[using].in_atomic_block:
                raise Reserved(
                    f"{job!r} is running. To schedule the next job of this key from a handler with atomic=False, "
                    "call schedule() inside `with job.finishing():`."
                )
            job.finish()
            return True
    return False
