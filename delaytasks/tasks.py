"""The Celery tasks."""

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from celery import current_task, shared_task
from django.db import InterfaceError, OperationalError, connections

from . import conf, databases
from .bulk import changes
from .celery.connections import answers, in_worker, keep_connections
from .celery.shutdown import stopping
from .maintenance import retention
from .maintenance.guard import guard
from .maintenance.sweep import record_sweep
from .maintenance.sweep import sweep as run_sweep
from .worker import runner
from .worker.dispatch import dispatcher, mover, sender
from .worker.process_name import process_name
from .worker.sender import RUN_TOPIC, sent_ms

logger = logging.getLogger("delaytasks")
Returned = TypeVar("Returned")
# Each is given, so that the project's defaults for its own tasks, such as CELERY_TASK_DEFAULT_RATE_LIMIT, do not apply.
OPTIONS = {"ignore_result": True, "acks_late": False, "rate_limit": 0}
SEND_SECONDS = 1.0  # how long a task waits until its messages are sent, because its process may end after the task


def _on_each_database(function: Callable[[str], Returned]) -> list[Returned]:
    """Call function(using) for each database and return the results.

    If one database fails or does not answer, the function is still called for the others. Then the error is raised.
    """
    results, errors = [], []
    for using in databases.aliases():
        try:
            if not answers(using):
                raise OperationalError(f"The database {using} does not answer.")
            results.append(function(using))
        except Exception as error:
            logger.warning("database %s failed; the task goes on with the others: %s", using, error)
            connections[using].close_if_unusable_or_obsolete()
            errors.append(error)
    if errors:
        raise errors[0]
    return results


# The entries of beat have expiry times by the settings; these are for django-celery-beat, which does not store them.
@shared_task(name="delaytasks.move_due", expires=60, **OPTIONS)
@keep_connections
def move_due() -> float:
    """Make due jobs ready and run the guard, on each database. Return the milliseconds to rest until the next pass.

    Ends after GUARD_TICK_MS on a database even if more jobs are due. Sent by beat each second while no mover thread
    runs.
    """
    try:
        return min(_on_each_database(_move_due))
    finally:
        sender().wait_until_sent(SEND_SECONDS)


def _move_due(using: str) -> float:
    deadline = time.monotonic() + conf.get().guard_tick_ms / 1000
    rest_ms = mover(using).move_due()
    while rest_ms == 0 and time.monotonic() < deadline:
        rest_ms = mover(using).move_due()
    guard(using)
    return rest_ms


@shared_task(name=RUN_TOPIC, **OPTIONS)
@keep_connections
def run_topic(topic: str, using: str | None = None) -> int:
    """Run the ready jobs of a topic. Return the number of jobs that were run."""
    using = databases.alias(using)
    if not answers(using):  # the mover dispatches the topic again when the database answers
        return 0
    try:
        return runner.run_topic(
            topic, using=using, worker=process_name(), dispatch_topic=dispatcher(using).dispatch,
            # Outside of a worker's task, the flag is that of a worker which ran in this process before.
            stopping=stopping if in_worker() else lambda: False, message_ms=sent_ms(current_task.request),
        )  # fmt: skip
    finally:
        sender().wait_until_sent(SEND_SECONDS)


@shared_task(name=changes.TASK, **OPTIONS)
@keep_connections
def bulk_change(pk: int, using: str) -> None:
    """Process part of a bulk change for about five seconds, then send a task for the rest, if any."""
    try:
        if changes.work(pk, using=using):
            changes.send(pk, using)
    except (OperationalError, InterfaceError):
        raise  # the database is down or busy: the sweep sends the message again
    except Exception:
        changes.fail(pk, traceback.format_exc(), using=using)
        raise


@shared_task(name="delaytasks.sweep", expires=120, **OPTIONS)
@keep_connections
def sweep() -> dict[str, int]:
    """Run the sweep on each database, and resend the tasks of stalled bulk changes. Return the sweep's counts by name.

    Also deletes old bulk changes. Sent by beat every SWEEP_SECONDS.
    """
    totals: Counter[str] = Counter()
    for counts in _on_each_database(_sweep):
        totals.update(counts)
    return dict(totals)


def _sweep(using: str) -> dict[str, int]:
    counts = run_sweep(using)
    record_sweep(using)
    if in_worker():
        retention.prune_in_thread(using, stopping=stopping)
    for pk in changes.stalled(using):
        changes.send(pk, using)
    changes.prune(using)
    return counts
