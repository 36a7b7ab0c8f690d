"""What can go wrong with a promise, done to the demo's tables by SQL: the audit must find each, by name.

Nothing of this can happen through the engine: its statements are guarded. It stands for the rest of the world, such as
a restored backup, a script that was run by hand, or a clock that jumped.
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
    """found_as   the class in which an audit must find the key"""

    found_as: str
    key: str
    what: str


class Closed(NamedTuple):
    """An order that was closed unpaid, and its job."""

    order_id: int
    key: str
    job_id: int


def plant(rng: random.Random, archived_days: int) -> list[Fault]:
    """Do each twice: to an order whose job the archive is going to take, and to one whose job it leaves."""
    boundary = timezone.now() - timedelta(days=archived_days)
    jobs = Job.objects.filter(topic=TOPIC, state=State.FINISHED)
    ages = (jobs.filter(ended_at__lt=boundary - timedelta(days=1)), jobs.filter(ended_at__gt=boundary))
    planted = []
    with transaction.atomic():
        for those in ages:
            keys = dict(those.values_list("key", "pk"))
            closed = [
                each for each in Order.objects.filter(state=Order.State.CLOSED).order_by("pk") if each.key in keys
            ]
            for (found_as, (what, plant_one)), order in zip(KINDS.items(), rng.sample(closed, len(KINDS)), strict=True):
                plant_one(Closed(order.pk, order.key, keys[order.key]))
                planted.append(Fault(found_as, order.key, what))
    return planted


def _missing(it: Closed) -> None:
    _sql("DELETE FROM delaytasks_jobevent WHERE job_id = %s", it.job_id)
    _sql("DELETE FROM delaytasks_job WHERE id = %s", it.job_id)


def _orphan(it: Closed) -> None:
    _sql("DELETE FROM shop_orderline WHERE order_id = %s", it.order_id)
    _sql("DELETE FROM shop_order WHERE id = %s", it.order_id)


def _twice(it: Closed) -> None:
    _sql(
        "INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error)"
        " SELECT job_id, outcome, attempt + 1, due_ms, reserved_ms + 900, done_ms + 900, worker, actor, error"
        " FROM delaytasks_jobevent WHERE job_id = %s",
        it.job_id,
    )


def _called_off(it: Closed) -> None:
    """As if its close had been cancelled and nobody had paid: it stays open for ever."""
    _sql("UPDATE delaytasks_job SET state = %s, attempt = 0 WHERE id = %s", int(State.CANCELLED), it.job_id)
    _sql(
        "UPDATE delaytasks_jobevent SET outcome = 'cancelled', attempt = 0, reserved_ms = NULL WHERE job_id = %s",
        it.job_id,
    )
    _sql("UPDATE shop_order SET state = 'open', closed_at = NULL WHERE id = %s", it.order_id)


def _early(it: Closed) -> None:
    _moved(it, -EARLY_MS)


def _late(it: Closed) -> None:
    _moved(it, LATE_MS)


def _moved(it: Closed, ms: int) -> None:
    """As if it had begun and ended so much later than it did."""
    by = timedelta(milliseconds=ms)
    for job in Job.objects.filter(pk=it.job_id):
        assert job.ended_at is not None
        Job.objects.filter(pk=it.job_id).update(ended_at=job.ended_at + by)
        Order.objects.filter(pk=it.order_id).update(closed_at=job.ended_at + by)
    _sql(
        "UPDATE delaytasks_jobevent SET reserved_ms = reserved_ms + %s, done_ms = done_ms + %s WHERE job_id = %s",
        ms, ms, it.job_id,
    )  # fmt: skip


def _sql(statement: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


KINDS: dict[str, tuple[str, Callable[[Closed], None]]] = {
    "missing": ("its job is gone, as if it had never been promised", _missing),
    "orphan": ("the order is gone, its job is not", _orphan),
    "twice": ("its job has run twice", _twice),
    "called_off": ("its job was called off, and nobody has paid", _called_off),
    "early": ("its job began ten minutes too early", _early),
    "late": ("its job began 45 minutes too late", _late),
}
