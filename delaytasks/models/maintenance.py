"""The last known state of the mirror, the position of the retention in the tables, and when jobs were archived."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class MirrorMark(models.Model):
    """One row with the last known state of the mirror, to detect that Redis lost or rewound its data."""

    tick = models.BigIntegerField(default=0)
    masters = models.JSONField(default=dict)  # address -> "run id/replication id"
    fed_until = models.DateTimeField(null=True)
    # The time of the last heartbeat, written about every ten seconds while a mover runs.
    heartbeat_at = models.DateTimeField(db_column="looked_at", null=True)
    audit = models.JSONField(default=dict, db_default={})  # the counts of the last audit, and its time as at_ms
    swept_at = models.DateTimeField(null=True)  # when a worker last completed a sweep

    class Meta:
        verbose_name = _("mirror mark")
        verbose_name_plural = _("mirror marks")

    def __str__(self) -> str:
        return f"tick {self.tick}"


class RetentionCursor(models.Model):
    """One row with the position of the retention's current pass over the tables, and the time of the last archive."""

    job_id = models.BigIntegerField(default=0, null=True)  # jobs up to this id have been read; null: all
    event_id = models.BigIntegerField(default=0, null=True)  # events up to this id have been read; null: all
    began_at = models.DateTimeField()
    archived_at = models.DateTimeField(null=True)  # when the pipeline last archived jobs; null: there is no archive

    class Meta:
        default_permissions = ()  # not shown

    def __str__(self) -> str:
        return f"job {self.job_id}, event {self.event_id}"
