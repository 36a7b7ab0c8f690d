from django.db import models


class Effect(models.Model):
    """What an attempt did, in the commit of its finish. No constraint: that it is there once is to be shown."""

    job_id = models.BigIntegerField()
    attempt = models.IntegerField()
    at_ms = models.BigIntegerField()  # by the database's clock
