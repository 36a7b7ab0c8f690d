"""Faults for the audit to find, written to the demo's tables with SQL.

The engine's guarded statements cannot cause these faults. They stand for faults with external causes, such as a
restored backup, a script run by hand or a clock that jumped.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.utils import timezone

from delaytasks.models import Job
from delaytasks.states import State
from project.shop.models import Order

TOPIC = "order.close"
LATE_MS = 45 * 60_000
EARLY_MS = 10 * 60_000


class Fault(NamedTuple):
    """A fault and the audit class that must contain its key."""

    audit_class: str
    key: str
    description: str


class ClosedOrder(NamedTuple):
    """An order that was closed unpaid, and its job."""

    order_id: int
    key: str
    job_id: int


def plant(rng: random.Random, archived_days: int) -> list[Fault]:
    """Plant each fault twice: once for a job that will be archived, once for a job that stays in the tables."""
    boundary = timezone.now() - timedelta(days=archived_days)
    jobs = Job.objects.filter(topic=TOPIC, state=State.FINISHED)
    ages = (jobs.filter(ended_at__lt=boundary - timedelta(days=1)), jobs.filter(ended_at__gt=boundary))
    planted = []
    with transaction.atomic():
        for group in ages:
            keys = dict(group.values_list("key", "pk"))
            closed = [
                order for order in Order.objects.filter(state=Order.State.CLOSED).order_by("pk") if order.key in keys
            ]
            for (audit_class, (description, plant_one)), order in zip(
                KINDS.items(), rng.sample(closed, len(KINDS)), strict=True
            ):
                plant_one(ClosedOrder(order.pk, order.key, keys[order.key]))
                planted.append(Fault(audit_class, order.key, description))
    return planted


def _missing(order: ClosedOrder) -> None:
    _sql("DELETE FROM delaytasks_jobevent WHERE job_id = %s", order.job_id)
    _sql("DELETE FROM delaytasks_job WHERE id = %s", order.job_id)


def _orphan(order: ClosedOrder) -> None:
    _sql("DELETE FROM shop_orderline WHERE order_id = %s", order.order_id)
    _sql("DELETE FROM shop_order WHERE id = %s", order.order_id)


def _twice(order: ClosedOrder) -> None:
    _sql(
        "INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error)"
        " SELECT job_id, outcome, attempt + 1, due_ms, reserved_ms + 900, done_ms + 900, worker, actor, error"
        " FROM delaytasks_jobevent WHERE job_id = %s",
        order.job_id,
    )


def _cancelled(order: ClosedOrder) -> None:
    """Change the rows as if the close of the unpaid order had been cancelled, so that the order is still open."""
    _sql("UPDATE delaytasks_job SET state = %s, attempt = 0 WHERE id = %s", int(State.CANCELLED), order.job_id)
    _sql(
        "UPDATE delaytasks_jobevent SET outcome = 'cancelled', attempt = 0, reserved_ms = NULL WHERE job_id = %s",
        order.job_id,
    )
    _sql("UPDATE shop_order SET state = 'open', closed_at = NULL WHERE id = %s", order.order_id)


def _early(order: ClosedOrder) -> None:
    _shift(order, -EARLY_MS)


def _late(order: ClosedOrder) -> None:
    _shift(order, LATE_MS)


def _shift(order: ClosedOrder, ms: int) -> None:
    """Move the start and the end of the order's job by `ms` milliseconds."""
    shift = timedelta(milliseconds=ms)
    for job in Job.objects.filter(pk=order.job_id):
        assert job.ended_at is not None
        Job.objects.filter(pk=order.job_id).update(ended_at=job.ended_at + shift)
        Order.objects.filter(pk=order.order_id).update(closed_at=job.ended_at + shift)
    _sql(
        "UPDATE delaytasks_jobevent SET reserved_ms = reserved_ms + %s, done_ms = done_ms + %s WHERE job_id = %s",
        ms, ms, order.job_id,
    )  # fmt: skip


def _sql(statement: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


KINDS: dict[str, tuple[str, Callable[[ClosedOrder], None]]] = {
    "missing": ("the job is deleted", _missing),
    "orphan": ("the order is deleted, its job is not", _orphan),
    "twice": ("the job ran twice", _twice),
    "called_off": ("the job was cancelled, but the order is unpaid", _cancelled),
    "early": ("the job began 10 minutes early", _early),
    "late": ("the job began 45 minutes late", _late),
}
