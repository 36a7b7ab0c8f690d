"""The guest customer and the orders of a browser session."""

import secrets
from typing import Any

from .models import Customer, Order

SESSION_KEY = "shop"
MAX_ORDERS = 50  # kept in the session; older ones stay in the database


class ShopSession:
    """The shop's data in a browser session. Before the first order nothing is stored, so no cookie is set."""

    def __init__(self, session: Any) -> None:
        self._session = session
        data = session.get(SESSION_KEY, {})
        self._customer_id: int = data.get("customer", 0)
        self.orders: list[int] = data.get("orders", [])  # newest first

    def customer(self) -> Customer:
        """Return the guest customer of this session; create it if there is none."""
        customer = Customer.objects.filter(pk=self._customer_id).first()
        if customer is None:
            token = secrets.token_hex(8)
            name, email = f"Guest {token[:4].upper()}", f"guest-{token}@shop.example"
            customer = Customer.objects.create(name=name, email=email)
        return customer

    def add(self, order: Order) -> None:
        self.orders = [order.pk, *self.orders][:MAX_ORDERS]
        self._session[SESSION_KEY] = {"customer": order.customer_id, "orders": self.orders}
