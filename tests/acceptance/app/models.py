from django.db import models


class Effect(models.Model):
    """What a handler did, once per call that was committed."""

    job_id = models.BigIntegerField()
    topic = models.CharField(max_length=100)
    key = models.CharField(max_length=255)
    attempt = models.IntegerField()
    due_ms = models.BigIntegerField()
    at_ms = models.BigIntegerField()  # by the database's clock
    pid = models.IntegerField()
