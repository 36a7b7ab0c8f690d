"""Rows that the data pipeline writes: statistics, for display only, and the chunks that it has loaded."""

from typing import ClassVar

from django.db import models
from django.db.models import Q


class TopicStat(models.Model):
    """Statistics of a topic in one hour, written by the pipeline's report and updated until the hour is settled."""

    topic = models.CharField(max_length=100)
    hour_at = models.DateTimeField(help_text="the hour's beginning")
    happened = models.BigIntegerField(help_text="events")
    finished = models.BigIntegerField()
    retried = models.BigIntegerField(help_text="attempts that failed or exceeded their TTR, and will be repeated")
    died = models.BigIntegerField()
    cancelled = models.BigIntegerField()
    snoozed = models.BigIntegerField()
    begun = models.BigIntegerField(help_text="first attempts; the lateness is that of these attempts")
    late_p50_ms = models.BigIntegerField(null=True)
    late_p95_ms = models.BigIntegerField(null=True)
    late_p99_ms = models.BigIntegerField(null=True)
    late_worst_ms = models.BigIntegerField(null=True)

    class Meta:
        default_permissions = ()  # shown on the pages of topics
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["topic", "hour_at"], name="delaytasks_topicstat_one"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["hour_at"], name="delaytasks_topicstat_hour")
        ]  # for the last days of all topics

    def __str__(self) -> str:
        return f"{self.topic} {self.hour_at:%Y-%m-%d %H:00}"


class LoadChunk(models.Model):
    """A chunk of a pipeline load, recorded in the transaction that inserts its jobs so that it is loaded only once."""

    run = models.CharField(max_length=100)
    chunk = models.IntegerField()
    stamp = models.CharField(
        max_length=32, help_text="id of the run's files; differs from that of a run with the same name in another lake"
    )
    rows = models.IntegerField()
    inserted = models.IntegerField()
    kept = models.IntegerField(help_text="jobs that were live already and were not changed")
    replaced = models.IntegerField()
    refused = models.IntegerField(
        help_text="rows whose job was live already, or running; they are among the run's rejects"
    )
    low_id = models.BigIntegerField(null=True, help_text="lowest id of the inserted jobs")
    high_id = models.BigIntegerField(null=True)
    replaced_ids = models.JSONField(
        default=list, help_text="ids of the replaced jobs; emptied when the mirror has been updated"
    )
    mirrored = models.BooleanField(
        db_column="told",
        default=False,
        help_text="whether the chunk's jobs that are due within the horizon are in the mirror",
    )
    loaded_at = models.DateTimeField()

    class Meta:
        default_permissions = ()  # shown in the result of the load
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "chunk"], name="delaytasks_loadchunk_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(mirrored=False), name="delaytasks_loadchunk_untold"),
        ]

    def __str__(self) -> str:
        return f"{self.run} {self.chunk}"
