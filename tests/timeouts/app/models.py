"""Models with each kind of key and inheritance that a timeout can be declared on."""

import uuid
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import Case, F, Value, When


class Customer(models.Model):
    active = models.BooleanField(default=True)


class Order(models.Model):
    state = models.CharField(max_length=6, default="open")
    created_at = models.DateTimeField(null=True)
    window = models.DurationField(null=True, default=timedelta(minutes=30))
    customer = models.ForeignKey(Customer, models.CASCADE, null=True)
    note = models.CharField(max_length=20, default="")


class OpenOrder(Order):
    class Meta:
        proxy = True


class PlainManager(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(note="")


class PlainOrder(Order):
    """A proxy whose base manager hides rows."""

    plain = PlainManager()

    class Meta:
        proxy = True
        base_manager_name = "plain"


class RushOrder(Order):
    level = models.IntegerField(default=1)
    promised_at = models.DateTimeField(null=True)


class CourierOrder(RushOrder):
    courier = models.CharField(max_length=20, default="")


class Line(models.Model):
    order = models.ForeignKey(Order, models.CASCADE, related_name="lines")


class HiddenManager(models.Manager[Any]):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(deleted=False)


class Ticket(models.Model):
    """A text as primary key, and a manager that hides rows."""

    code = models.CharField(max_length=40, primary_key=True)
    opened_at = models.DateTimeField(null=True)
    deleted = models.BooleanField(default=False)
    objects = HiddenManager()


class Device(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    seen_at = models.DateTimeField(null=True)


class Reading(models.Model):
    """A key that only Python can write."""

    at = models.DecimalField(max_digits=8, decimal_places=2, primary_key=True)
    taken_at = models.DateTimeField(null=True)


class Badge(models.Model):
    """A relation as primary key."""

    device = models.OneToOneField(Device, models.CASCADE, primary_key=True)
    until = models.DateTimeField(null=True)


class Pair(models.Model):
    pk = models.CompositePrimaryKey("left", "right")
    left = models.IntegerField()
    right = models.IntegerField()
    at = models.DateTimeField(null=True)


class Invoice(models.Model):
    """A column that the database computes from others."""

    total = models.IntegerField(default=10)
    paid = models.IntegerField(default=0)
    held = models.BooleanField(default=False)
    left = models.GeneratedField(
        expression=Case(When(held=True, then=Value(0)), default=F("total") - F("paid")),
        output_field=models.IntegerField(), db_persist=True,
    )  # fmt: skip
    sent_at = models.DateTimeField(null=True)
    cancels = models.ForeignKey("self", models.CASCADE, null=True)


class DatedPlan(models.Model):
    day = models.DateField(null=True)
