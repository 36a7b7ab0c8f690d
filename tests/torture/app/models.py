from django.db import models


class Effect(models.Model):
    """A row written by an attempt in the transaction of its finish. Not unique: duplicates must be visible."""

    job_id = models.BigIntegerField()
    attempt = models.IntegerField()
    at_ms = models.BigIntegerField()  # by the database's clock
