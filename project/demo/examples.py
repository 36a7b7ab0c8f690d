"""Examples of the shop's other timeouts: every ROUND_SECONDS, change rows whose timeouts fall due seconds later."""

from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from ..shop.models import Customer, Device, Lesson, Product, Seller, Ticket
from ..shop.services import offer_product, put_in_cart, record_visit
from ..shop.tickets import TicketAnswered, answer, open_ticket
from .narrator import format_time

ROUND_SECONDS = 20.0
SOON = timedelta(seconds=6)
SELLER_PATIENCE = timedelta(seconds=30)
UNREACHABLE = "http://127.0.0.1:9/"  # nothing listens on this port: the job of this device fails, retries and dies
CARD_HOLDERS = 2  # of the customers
OFFERS = 3  # the seller stops offering after this many rounds


class Examples:
    """Changes the rows of the examples, round after round. `echo` prints a line with the time."""

    def __init__(self, customers: list[Customer], products: list[Product], echo: Callable[[str], None]) -> None:
        self._customers, self._products, self._echo = customers, products, echo
        self._round = 0
        self._lesson: Lesson | None = None
        self._ticket: Ticket | None = None
        for number, customer in enumerate(customers):
            customer.phone = f"+49 30 555 01{number:02}"
            customer.card = f"card-{number}" if number < CARD_HOLDERS else ""
            customer.save(update_fields=["phone", "card"])
        self._seller = Seller.objects.update_or_create(
            name="Cups & Co", defaults={"email": "cups@shop.example", "remind_after": SELLER_PATIENCE}
        )[0]
        self._devices = [
            Device.objects.update_or_create(name=name, defaults={"address": address, "command": "boil"})[0].pk
            for name, address in (
                ("kettle", f"{settings.SHOP_GATEWAY_URL}/devices/kettle"), ("old kettle", UNREACHABLE),
            )
        ]  # fmt: skip

    def play(self) -> None:
        """Play one round."""
        self._round += 1
        customer = self._customers[self._round % len(self._customers)]
        product = self._products[self._round % len(self._products)]
        record_visit(customer)
        cart = put_in_cart(customer, product)
        self._echo(f"{customer} was here and left {cart.quantity} x {product} in the cart")
        self._set_devices()
        self._plan_lesson()
        self._ask(customer)
        if self._round <= OFFERS:
            offer_product(self._seller, product)
            self._echo(f"{self._seller} offers {product}")

    def _set_devices(self) -> None:
        at = timezone.now() + SOON
        for device in Device.objects.filter(pk__in=self._devices):  # without those that staff have deleted
            device.command_at = at
            device.save(update_fields=["command_at"])
        self._echo(f"the kettles are set for {format_time(at)}; one of them is unplugged")

    def _plan_lesson(self) -> None:
        """Postpone the last lesson in SQL, and plan the next one.

        update() sends no signals: triggers on the table mark the rows for the workers.
        """
        if self._lesson:
            Lesson.objects.filter(pk=self._lesson.pk).update(starts_at=F("starts_at") + SOON)
            self._echo(f"{self._lesson} is postponed by {SOON.seconds} s, with update()")
        starts_at = timezone.now() + timedelta(seconds=settings.SHOP_LESSON_REMINDER_SECONDS + ROUND_SECONDS) + SOON
        self._lesson = Lesson.objects.create(title=f"Brewing tea {self._round}", starts_at=starts_at)
        self._lesson.students.set(self._customers[:3])
        self._echo(f"{self._lesson} starts at {format_time(starts_at)}")

    def _ask(self, customer: Customer) -> None:
        """Answer the last ticket, which was escalated meanwhile, and open the next one."""
        if self._ticket:
            self._answer(self._ticket)
        self._ticket = open_ticket(customer, f"How hot should the water be? ({self._round})")
        self._echo(f"{customer} asks: {self._ticket}")

    def _answer(self, ticket: Ticket) -> None:
        try:
            answer(ticket.pk)
        except TicketAnswered:  # by staff
            return
        self._echo(f"{ticket} is answered")
