"""Running workers, and the leases of jobs that their handlers touched in a transaction."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class Worker(models.Model):
    """A running worker. Its jobs are taken back when `beat` has stood still for LEASE_SECONDS."""

    name = models.CharField(max_length=255, primary_key=True)
    beat = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class Touch(models.Model):
    """The lease of a running job whose handler called touch() in a transaction, written by its worker's main process.

    The job's row is not written, because under REPEATABLE READ the handler's transaction could not end the job then.
    """

    job_id = models.BigIntegerField()
    attempt = models.IntegerField()
    lease_until = models.DateTimeField()

    class Meta:
        verbose_name = _("touch")
        verbose_name_plural = _("touches")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job_id", "attempt"], name="delaytasks_touch_attempt"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} (attempt {self.attempt})"
