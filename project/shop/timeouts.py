"""The shop's timeout handlers, as examples for your own.

order.close    is declared: each open order has a job that is due at its pay_by. No code schedules or cancels it;
               paying the order cancels it. It runs in one transaction with the end of the job: the order is closed and
               its stock returned exactly once, even if a process is killed at any point.
refund.check   asks an external server again and again, after the delays of a ladder, until it has decided. No
               transaction is open during the call; the result is committed together with the finish, under
               job.finishing(). After SHOP_REFUND_GIVE_UP_SECONDS staff review the refund.

The others are declared too, each to show something else:

order.charge      the condition follows a foreign key: only customers with a stored card are charged.
order.review      a null field: an order has this job only after its delivery.
lesson.remind     due some time before the field's time. If that has passed when a lesson is saved, it is skipped.
customer.absent   once per absence: a declaration fires once for each value of the field.
cart.remind       ordering a cart deletes its row, and thereby cancels the job.
seller.remind     the duration is a field, too, so that it may differ from row to row.
device.tell       due at the field's time itself; an external call, without a transaction, that is retried twice.

tickets.py has the service level of tickets.
"""

from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from delaytasks import RunningJob, poll, timeout
from delaytasks.backoff import Backoff

from . import gateway, tickets  # noqa: F401  importing the latter registers its declarations
from .models import Cart, Customer, Device, Lesson, Message, Order, Refund, Seller
from .services import pay_order


@timeout(Order, on="pay_by", while_=Q(state=Order.State.OPEN), topic="order.close", ttr=30)
def close_unpaid_order(order: Order, job: RunningJob) -> None:
    """Close an order that is not paid in time. The row is locked, and the condition was tested again."""
    order.close()


def leave_refund_to_staff(job: RunningJob) -> None:
    """Mark a refund as in need of review, in one transaction with the end of its check."""
    Refund.objects.get(pk=job.body["refund"]).end(Refund.State.NEEDS_REVIEW)


@poll(
    "refund.check",
    every=settings.SHOP_REFUND_LADDER_SECONDS[1:] or settings.SHOP_REFUND_LADDER_SECONDS,  # the first: request_refund()
    until=settings.SHOP_REFUND_GIVE_UP_SECONDS,
    on_give_up=leave_refund_to_staff,
    ttr=30,
    atomic=False,
)
def check_refund(job: RunningJob) -> bool:
    """Ask the gateway for the state of the refund. Return whether the gateway has decided."""
    refund = Refund.objects.get(pk=job.body["refund"])
    state = Refund.State(gateway.get_refund_state(refund.reference))  # takes a few seconds at most, far below the TTR
    if state == Refund.State.PENDING:
        return False
    with job.finishing():
        refund.end(state)
    return True


@timeout(
    Order,
    on="created_at",
    after=timedelta(seconds=settings.SHOP_CHARGE_AFTER_SECONDS),
    while_=Q(state=Order.State.OPEN) & ~Q(customer__card=""),
    topic="order.charge",
)
def charge_stored_card(order: Order, job: RunningJob) -> None:
    """Pay an order with the customer's stored card. This also cancels its close."""
    pay_order(order.pk)


@timeout(
    Order,
    on="delivered_at",
    after=timedelta(seconds=settings.SHOP_REVIEW_AFTER_SECONDS),
    while_=Q(state=Order.State.PAID),
    topic="order.review",
)
def ask_for_review(order: Order, job: RunningJob) -> None:
    """Ask the customer for a review, except after a refund: a condition cannot follow the relation to refunds."""
    if not order.refunds.exists():
        Message.send(Message.Kind.REVIEW, job.key, [order.customer.email])


@timeout(
    Lesson,
    on="starts_at",
    before=timedelta(seconds=settings.SHOP_LESSON_REMINDER_SECONDS),
    while_=Q(cancelled=False),
    if_past="skip",
    topic="lesson.remind",
)
def remind_class(lesson: Lesson, job: RunningJob) -> None:
    """Remind each student of a lesson."""
    Message.send(Message.Kind.LESSON, job.key, lesson.students.order_by("pk").values_list("email", flat=True))


@timeout(Customer, on="seen_at", after=timedelta(seconds=settings.SHOP_ABSENCE_SECONDS), topic="customer.absent")
def write_to_absent_member(customer: Customer, job: RunningJob) -> None:
    Message.send(Message.Kind.ABSENCE, job.key, [customer.email])


@timeout(
    Cart,
    on="changed_at",
    after=timedelta(seconds=settings.SHOP_CART_REMINDER_SECONDS),
    while_=~Q(customer__phone=""),
    topic="cart.remind",
)
def remind_of_cart(cart: Cart, job: RunningJob) -> None:
    Message.send(Message.Kind.CART, job.key, [cart.customer.phone])


@timeout(Seller, on="offered_at", after="remind_after", topic="seller.remind")
def remind_seller(seller: Seller, job: RunningJob) -> None:
    Message.send(Message.Kind.OFFER, job.key, [seller.email])


@timeout(
    Device,
    on="command_at",
    if_past=timedelta(minutes=5),  # a device that was set for an earlier time is left alone
    topic="device.tell",
    ttr=30,
    atomic=False,
    max_attempts=3,
    backoff=Backoff(base_seconds=2),
)
def tell_device(device: Device, job: RunningJob) -> None:
    """Send a device its command. If it does not answer, this is retried twice; then the job is dead.

    After a crash between the call and the commit, the command is sent again.
    """
    device.tell()  # takes a few seconds at most, far below the TTR
    with job.finishing():
        Device.objects.filter(pk=device.pk).update(told_at=timezone.now())
