"""Declared timeouts as they were applied, and the marks of changed rows that triggers write."""

from django.db import models


class Declaration(models.Model):
    """A timeout declared on a model, as it was last applied.

    A process whose own declaration has another fingerprint makes, moves and cancels no jobs for it.
    """

    class Overdue(models.TextChoices):
        RUN = "run", "run"
        SKIP = "skip", "skip"
        SPREAD = "spread", "spread"

    topic = models.CharField(max_length=100, primary_key=True)
    fingerprint = models.CharField(max_length=64)
    applied_at = models.DateTimeField()
    overdue = models.CharField(
        max_length=6,
        choices=Overdue.choices,
        default=Overdue.RUN,
        help_text="what to do with jobs that were overdue when it was applied",
    )
    spread_until = models.DateTimeField(null=True)
    # The reconciliation's current pass: over the model's rows, then over the topic's live jobs.
    phase = models.CharField(max_length=4, default="")  # "rows", "jobs", or "" between two passes
    position = models.TextField(default="")  # the last primary key, or the last job's key
    began_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()  # shown by `manage.py delaytasks timeouts plan`
        verbose_name = "declared timeout"
        verbose_name_plural = "declared timeouts"

    def __str__(self) -> str:
        return self.topic


class TimeoutMark(models.Model):
    """A changed row of a watched table, whose declared timeouts must be checked.

    Written by triggers, and when a job ends while its row is locked. Has no unique constraint: if an equal mark
    prevented the insert while a worker reads and deletes that mark, the change would be lost.
    """

    id = models.BigAutoField(primary_key=True)
    table_name = models.CharField(max_length=255)
    row_pk = models.TextField(null=True)  # noqa: DJ001  the key as text; null: all rows of the table
    position = models.JSONField(null=True)  # [name, key]: rows that refer to this one have been checked up to here

    class Meta:
        default_permissions = ()  # not shown

    def __str__(self) -> str:
        return f"{self.table_name} {self.row_pk or 'all rows'}"


class TimeoutTrigger(models.Model):
    """A table whose triggers append to TimeoutMark. On SQLite a migration may drop them silently."""

    table_name = models.CharField(max_length=255, primary_key=True)

    class Meta:
        default_permissions = ()  # not shown

    def __str__(self) -> str:
        return self.table_name
