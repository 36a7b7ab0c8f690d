"""A change to many jobs, and its progress."""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _


class BulkChange(models.Model):
    """One change to many jobs, made in small batches: its jobs, its progress and the results."""

    class Operation(models.TextChoices):
        CANCEL = "cancel", _("cancel")
        POSTPONE = "postpone", _("postpone")
        RUN_NOW = "run_now", _("run now")
        RETRY = "retry", _("retry")

    class State(models.TextChoices):
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        STOPPED = "stopped", _("stopped")
        FAILED = "failed", _("failed")

    operation = models.CharField(_("operation"), max_length=8, choices=Operation.choices)
    delay_ms = models.BigIntegerField(_("postponed by, in ms"), null=True)
    reason = models.CharField(_("reason"), max_length=255, default="")
    by = models.CharField(_("by"), max_length=255)
    user_id = models.CharField(max_length=64, default="")  # the primary key of the requester; "" for code
    # The filters that selected the jobs, for display.
    selection = models.JSONField(_("filters"), db_column="wish", default=dict)
    ids = models.JSONField(default=list)  # of the jobs that matched when the user confirmed; each is changed once
    put_off = models.JSONField(default=list, db_default=[])  # ids of locked jobs, tried again at the end
    total = models.IntegerField(_("jobs"))
    position = models.IntegerField(
        _("done"), default=0
    )  # number of jobs with a result; the next index in ids is position + len(put_off)
    outcomes = models.JSONField(_("outcomes"), default=dict)  # outcomes.Result or error:<type> -> number of jobs
    samples = models.JSONField(default=dict)  # the same keys -> a list of up to 20 [id, topic, key]
    state = models.CharField(_("state"), max_length=7, choices=State.choices, default=State.WAITING)
    error = models.TextField(_("error"), default="")  # a traceback, or an outcomes.ErrorCode
    created_at = models.DateTimeField(_("asked for"))
    worked_at = models.DateTimeField(_("last worked on"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)

    class Meta:
        verbose_name = _("bulk change")
        verbose_name_plural = _("bulk changes")
        default_permissions = ()  # users who may operate jobs may start one; users who may see its topics may see it
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(position__gte=0, position__lte=F("total")), name="delaytasks_bulk_position"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.operation} {self.total}"
