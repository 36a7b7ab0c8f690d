"""running_job(): make a RunningJob without a row, with which a unit test can call a handler."""

import itertools
import json
from datetime import datetime
from typing import Any

from django.utils import timezone

from .. import databases, handlers, validators
from ..jobs.handles import Handle
from ..jobs.inputs import Delay, check_name, to_body
from ..jobs.subjects import Instance, to_subject
from . import engine
from .engine import PlainRunningJob

_ids = itertools.count(1)


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
    now = timezone.now()
    return engine.plain_job(
        name, key, using=databases.alias(using), now=now, due_at=due_at or now, created_at=now,
        body=json.loads(to_body(body)), attempt=attempt, failures=failures,
        ttr_ms=handlers.ttr_ms(name) if ttr is None else validators.to_ttr_ms(ttr), subject=subject,
        subject_label=found and found.label, subject_pk=found and found.pk, job_id=next(_ids),
    )  # fmt: skip
