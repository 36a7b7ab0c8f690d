"""The clocks of service levels."""

from typing import ClassVar

from django.db import models
from django.utils.translation import pgettext_lazy


class SlaClock(models.Model):
    """The clock of a service level for one row of its model. Written only by delaytasks.service_levels."""

    class State(models.TextChoices):
        RUNNING = "running", pgettext_lazy("state of a service level's clock", "running")
        PAUSED = "paused", pgettext_lazy("state of a service level's clock", "paused")
        STOPPED = "stopped", pgettext_lazy("state of a service level's clock", "stopped")

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=100)
    subject_label = models.CharField(max_length=201)
    subject_pk = models.CharField(max_length=255)
    state = models.CharField(max_length=7, choices=State.choices)
    since = models.DateTimeField()  # when this state began
    noticed = models.BooleanField(default=False)  # `since` is when a later check found the state, not when it began
    consumed_ms = models.BigIntegerField(default=0)  # working time of the earlier states
    done_part = models.FloatField(default=0)  # the last level whose job has ended, as a part of the target
    last_due = models.DateTimeField(null=True)  # the declared due time of that job
    awaited_due = models.DateTimeField(null=True)  # that of the next level's job, as of when the clock last ran

    class Meta:
        default_permissions = ()  # shown on the page of the row
        verbose_name = "clock of a service level"
        verbose_name_plural = "clocks of service levels"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["topic", "subject_label", "subject_pk"], name="delaytasks_slaclock_once_per_row"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.subject_pk}"


class SlaSegment(models.Model):
    """A state of a clock that has ended. Rows are only added."""

    id = models.BigAutoField(primary_key=True)
    clock = models.ForeignKey(SlaClock, models.CASCADE, related_name="segments")
    state = models.CharField(max_length=7, choices=SlaClock.State.choices)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    worked_ms = models.BigIntegerField()  # counted by the calendar as it was when the state ended
    noticed = models.BooleanField(default=False)  # `began_at` is when a later check found the state

    class Meta:
        default_permissions = ()
        verbose_name = "segment of a service level"
        verbose_name_plural = "segments of service levels"

    def __str__(self) -> str:
        return f"{self.state} {self.began_at.isoformat()}"
