from django.db import models


class Effect(models.Model):
    """A row that the handler writes in the transaction of the job's end. Not unique: duplicates must be visible."""

    key = models.CharField(max_length=64)
    at_ms = models.BigIntegerField()  # by the worker's clock
