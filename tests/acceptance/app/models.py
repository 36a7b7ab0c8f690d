from django.db import models


class Effect(models.Model):
    """One committed run of a handler."""

    job_id = models.BigIntegerField()
    topic = models.CharField(max_length=100)
    key = models.CharField(max_length=255)
    attempt = models.IntegerField()
    due_ms = models.BigIntegerField()
    at_ms = models.BigIntegerField()  # by the database's clock
    pid = models.IntegerField()
