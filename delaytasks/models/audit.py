"""The audit log: who changed what, from where. Append-only."""

from typing import Any, ClassVar, NoReturn

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class AuditEntry(models.Model):
    """An entry of the audit log: who changed what, when and from where.

    Append-only: an entry is never updated, and jobs/audit_log.py deletes old entries only after it has written an
    entry that says so. Triggers enforce both.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=Now(), editable=False)
    actor = models.CharField(max_length=255, default="", help_text="who did it")
    address = models.CharField(max_length=255, default="")
    request = models.CharField(max_length=255, default="")
    action = models.CharField(max_length=64, help_text="for example job.replaced")
    target = models.CharField(max_length=255, help_text="kind and id of the object")
    topic = models.CharField(max_length=100, default="")
    name = models.CharField(max_length=255, default="", help_text="a job's key, for example")
    reason = models.CharField(max_length=255, default="")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    deletes_before = models.DateTimeField(null=True, editable=False)  # only in entries "audit.pruned": see prune()

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit entries"
        default_permissions = ()  # read with `manage.py delaytasks audit-log`
        indexes: ClassVar = [
            models.Index(fields=["at"], name="delaytasks_audit_at"),
            models.Index(
                fields=["deletes_before"], condition=Q(deletes_before__isnull=False), name="delaytasks_audit_pruned"
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(deletes_before__isnull=True) | Q(action="audit.pruned", deletes_before__lte=F("at")),
                name="delaytasks_audit_prunes_older",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("AuditEntry is append-only: use jobs.audit_log.record().")

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("AuditEntry is append-only: use jobs.audit_log.prune().")
