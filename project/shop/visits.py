"""Who a browser is to the shop: its guest and the orders it has placed, kept in its session."""

import secrets
from typing import Any

from .models import Customer, Order

SESSION_KEY = "shop"
REMEMBERED = 50  # orders; an older one is still in the database


class Visit:
    """What one session knows. Nothing is written, and no cookie is set, before the first order."""

    def __init__(self, session: Any) -> None:
        self._session = session
        kept = session.get(SESSION_KEY, {})
        self._customer_id: int = kept.get("customer", 0)
        self.orders: list[int] = kept.get("orders", [])  # newest first

    def customer(self) -> Customer:
        """The guest that this browser orders as; made when it is asked for first."""
        customer = Customer.objects.filter(pk=self._customer_id).first()
        if customer is None:
            token = secrets.token_hex(8)
            name, email = f"Guest {token[:4].upper()}", f"guest-{token}@shop.example"
            customer = Customer.objects.create(name=name, email=email)
        return customer

    def remember(self, order: Order) -> None:
        self.orders = [order.pk, *self.orders][:REMEMBERED]
        self._session[SESSION_KEY] = {"customer": order.customer_id, "orders": self.orders}
