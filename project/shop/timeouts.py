"""What happens when time is up: the handlers of the shop. Copy from here.

order.close    runs inside a transaction together with the job's own finish: whatever is killed
               when, the order is closed and its stock given back exactly once.
refund.check   talks to somebody else's server, so no transaction is open while it waits; its
               last part, under job.finishing(), is one commit again.
"""

from django.conf import settings
from django.utils import timezone

from delaytasks import Snooze, handler

from . import gateway
from .models import Order, Refund


@handler("order.close", ttr=30)
def close_unpaid_order(job):
    """Close the order unless it was paid. A payment that holds the row lock is waited for, and wins."""
    order = Order.objects.select_for_update().get(pk=job.body["order"])
    if order.state == Order.State.OPEN:
        order.close()


@handler("refund.check", ttr=30, atomic=False)
def check_refund(job):
    """Ask the gateway about the refund; again and again, on a ladder, until it knows or its time is over."""
    refund = Refund.objects.get(pk=job.body["refund"])
    state = Refund.State(gateway.ask(refund.reference))  # waits for a few seconds at most, well below the TTR
    if state == Refund.State.PENDING:
        if timezone.now() < refund.ask_until:
            return Snooze(next_rung(job.attempt))
        state = Refund.State.NEEDS_A_PERSON
    with job.finishing():
        refund.end(state)


def next_rung(attempt):
    """Seconds until the gateway is asked again: a little longer each time, then always the last rung."""
    ladder = settings.SHOP_REFUND_LADDER_SECONDS
    return ladder[min(attempt, len(ladder) - 1)]
