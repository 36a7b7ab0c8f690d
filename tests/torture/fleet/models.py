from django.db import models


class Effect(models.Model):
    """A row that the handler writes in the transaction of the job's end. Not unique: duplicates must be visible."""

    key = models.CharField(max_length=64)
    at_ms = models.BigIntegerField()  # by the worker's clock


class Home(models.Model):
    """What a tenant is in this database. Each database has a row of its own for each tenant."""

    tenant = models.CharField(max_length=32, primary_key=True)
    state = models.CharField(max_length=8, choices=[(name, name) for name in ("here", "leaving", "away")])
