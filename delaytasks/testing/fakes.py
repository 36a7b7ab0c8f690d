"""running_job(): make a RunningJob without a row, with which a unit test can call a handler."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from .. import databases, handlers, validators
from ..clock import to_ms
from ..db.transitions import Claimed
from ..exceptions import LeaseLost
from ..jobs.handles import Handle
from ..jobs.inputs import Delay, check_name, to_body
from ..jobs.subjects import Instance, to_subject
from ..worker.attempt import RunningJob
from .engine import WORKER

_ids = itertools.count(1)


class PlainRunningJob(RunningJob):
    """A RunningJob without a row in the database, for unit tests of handlers. Made by running_job().

    touched   int, the number of calls of touch()
    ended     True: finishing() has finished the job
    """

    touched = 0
    subject: Any

    def touch(self) -> None:
        """Count the call and restart the TTR. Raises LeaseLost after the job has ended."""
        if self.ended:
            raise LeaseLost(f"{self!r} has ended already.")
        self.touched += 1
        self.lease_ms = databases.now_ms(self.using) + self.ttr_ms

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Open a transaction at whose end the job is finished. Raises LeaseLost if it has ended already."""
        if self.ended:
            raise LeaseLost(f"{self!r} has ended already.")
        with transaction.atomic(self.using):
            yield
        self.ended = True

    def end(self, completion: Any, completed: Any = None) -> None:
        self.ended = True

    def still_held(self) -> bool:
        return not self.ended


def running_job(
    topic: str | Handle[Any],
    key: str | None = None,
    *,
    subject: Instance | None = None,
    body: Any = None,
    attempt: int = 1,
    failures: int = 0,
    due_at: datetime | None = None,
    ttr: Delay | None = None,
    using: str | None = None,
) -> PlainRunningJob:
    """Return a job with which a unit test can call a handler. It has no row, and making it queries no database.

        job = running_job(close_unpaid_order, subject=order)
        assert close_unpaid_order(job) is None

    topic     str or a decorated handler
    key       str; None: that of the subject, or "test"
    subject   model instance that job.subject returns; None: the job has no subject
    body      as for schedule(); job.body is what JSON makes of it
    attempt, failures   int
    due_at    aware datetime; None: now
    ttr       timedelta or seconds; None: that of the topic
    using     alias of the database; None: the router's for writes

    finishing() opens a real transaction and sets `ended`. touch() restarts the TTR and increments `touched`. Both
    raise LeaseLost after the job has ended.

    Raises the exceptions of schedule() for topic, key, body and subject.
    """
    name = topic.topic if isinstance(topic, Handle) else topic
    found = None if subject is None else to_subject(subject)
    if found is not None:
        handlers.check_subject(name, found.label)
    key = key or (found.key if found else "test")
    check_name(name, key)
    due_ms = None if due_at is None else to_ms(validators.check_aware(due_at))
    now_ms, ttr_ms = to_ms(timezone.now()), handlers.ttr_ms(name) if ttr is None else validators.to_ttr_ms(ttr)
    claimed = Claimed(
        id=next(_ids), topic=name, key=key, body=json.loads(to_body(body)), attempt=attempt, failures=failures,
        ttr_ms=ttr_ms, due_ms=now_ms if due_ms is None else due_ms, created_ms=now_ms, reserved_ms=now_ms,
        lease_ms=now_ms + ttr_ms, subject_label=found and found.label, subject_pk=found and found.pk,
    )  # fmt: skip
    job = PlainRunningJob(claimed, databases.alias(using), WORKER)
    job.subject = subject
    return job
