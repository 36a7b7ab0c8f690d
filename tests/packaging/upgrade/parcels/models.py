from django.db import models
from django.db.models.functions import Now


class Effect(models.Model):
    """Written by a handler in the transaction that finishes its job."""

    job_id = models.BigIntegerField()
    topic = models.CharField(max_length=100)
    key = models.CharField(max_length=255)
    attempt = models.IntegerField()
    release = models.CharField(max_length=10, help_text="which installation ran the handler")
    due_at = models.DateTimeField()
    at = models.DateTimeField(db_default=Now())  # by the database's clock
