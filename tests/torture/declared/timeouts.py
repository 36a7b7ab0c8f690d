"""Handlers of the histories and of `failover`, and the declared timeouts of the histories and of `declared_load`."""

import time
from datetime import timedelta
from typing import Any

from django.db.models import Q

from delaytasks import handler, timeout
from tests.timeouts.app.models import Order, Ticket

from ..constants import TICK, TTR_SECONDS
from .histories import ANSWER, ANSWER_WITHIN, STEADY, TOPICS

CLOSE = "load.close"
PAY_WITHIN = timedelta(minutes=30)

for _topic, (_function, _options) in TOPICS.items():
    handler(_topic, backoff=STEADY, **_options)(_function)


@timeout(Ticket, on="opened_at", after=ANSWER_WITHIN, while_=Q(deleted=False), topic=ANSWER)
def escalate(ticket: Ticket, job: Any) -> None:
    """Do nothing: a declaration fires once for each due time."""


@timeout(Order, on="created_at", after=PAY_WITHIN, while_=Q(state="open"), topic=CLOSE)
def close(order: Order, job: Any) -> None:
    """Close the order and note the time. A second note would be too long for its column."""
    order.state, order.note = "closed", f"{order.note}{time.time_ns() // 1_000_000} "
    order.save(update_fields=["state", "note"])


@handler(TICK, ttr=TTR_SECONDS, backoff=STEADY)
def tick(job: Any) -> None:
    """Do nothing: the events of the schedules' jobs say how often they ran."""
