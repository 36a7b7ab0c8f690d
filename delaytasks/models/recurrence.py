"""Recurring jobs, and the job of each that is running."""

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class Schedule(models.Model):
    """A recurring job: its times, the job to insert at each time, and the chain.

    The chain is the instant up to which the schedule's jobs have been inserted. Change rows only by
    delaytasks.recurrence.schedules, because a change of the times must also move the chain.
    """

    class Missed(models.TextChoices):
        ALL = "all", _("run all")
        LAST = "last", _("run the last")
        NONE = "none", _("run none")

    class Running(models.TextChoices):
        SKIP = "skip", _("skip")
        QUEUE = "queue", _("wait")
        ALLOW = "allow", _("run beside it")

    class Gap(models.TextChoices):
        RUN = "run", _("run at its end")
        SKIP = "skip", _("skip")

    class Overlap(models.TextChoices):
        ONCE = "once", _("run the first time")
        BOTH = "both", _("run both times")

    class Source(models.TextChoices):
        CODE = "code", _("code")
        STAFF = "staff", _("staff")
        CALL = "call", _("a call of schedule()")

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=100, unique=True)
    topic = models.CharField(_("topic"), max_length=100)
    body = models.JSONField(_("body"), default=dict, blank=True)
    ttr_ms = models.BigIntegerField(_("TTR in ms"), null=True, blank=True)
    # Of a series, which a call of schedule() has started: its key, and the subject of its jobs.
    series_key = models.CharField(_("key"), max_length=255, null=True, editable=False)  # noqa: DJ001
    subject_label = models.CharField(max_length=201, null=True, editable=False)  # noqa: DJ001
    subject_pk = models.CharField(max_length=255, null=True, editable=False)  # noqa: DJ001
    # The times: cron, every_ms, rrule, or delay_ms with period_ms and repeat. Cron can be combined with the last three.
    tz = models.CharField(_("time zone"), max_length=64, help_text=_("IANA name, such as Europe/Berlin"))
    cron = models.CharField(_("cron"), max_length=255, default="", db_default="", blank=True,
                            help_text=_("five fields, such as 30 2 * * 1-5"))  # fmt: skip
    every_ms = models.BigIntegerField(_("every, in ms"), null=True, blank=True)
    rrule = models.CharField(_("recurrence rule"), max_length=1000, default="", db_default="", blank=True,
                             help_text=_("such as FREQ=MONTHLY;BYDAY=-1FR"))  # fmt: skip
    delay_ms = models.BigIntegerField(_("delay, in ms"), null=True, blank=True)
    period_ms = models.BigIntegerField(_("period, in ms"), null=True, blank=True)
    repeat = models.IntegerField(_("repetitions"), null=True, blank=True, help_text=_("empty: without end"))
    start_at = models.DateTimeField(_("start"))
    gap = models.CharField(_("if clocks skip the time"), max_length=4, choices=Gap.choices, default=Gap.RUN)
    overlap = models.CharField(
        _("if clocks show the time twice"), max_length=4, choices=Overlap.choices, default=Overlap.ONCE
    )
    missed = models.CharField(_("missed runs"), max_length=4, choices=Missed.choices, default=Missed.LAST)
    within_ms = models.BigIntegerField(
        _("begin within, in ms"),
        null=True,
        blank=True,
        help_text=_("a run that begins later is skipped; empty: no limit"),
    )
    running = models.CharField(
        _("if a run is still running"), max_length=5, choices=Running.choices, default=Running.SKIP
    )
    paused = models.BooleanField(_("paused"), default=False)
    source = models.CharField(_("defined by"), max_length=5, choices=Source.choices, default=Source.STAFF)
    # The chain. Written only by the guarded statements of db/schedules.py and by changes of the times.
    made_until = models.DateTimeField(_("made until"))
    made_label = models.CharField(max_length=40, default="", db_default="")  # wall time of the last firing made
    version = models.BigIntegerField(default=0, db_default=0)
    ended = models.BooleanField(_("ended"), default=False, db_default=False)  # no further firing comes
    problem = models.CharField(_("problem"), max_length=255, default="", db_default="", blank=True)
    producer = models.CharField(max_length=8, null=True, editable=False)  # noqa: DJ001  # see Job.producer
    # Former names of a schedule that is defined in code, newest first, separated by spaces.
    former_names = models.TextField(default="", db_default="", editable=False)
    # The keys of firings up to this time may be those of another time zone or topic.
    runs_unknown_until = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        indexes: ClassVar = [
            models.Index(fields=["made_until", "id"], condition=Q(paused=False, ended=False),
                         name="delaytasks_schedule_due"),
            models.Index(fields=["made_until"], condition=Q(ended=True, series_key__isnull=False),
                         name="delaytasks_schedule_over"),
            models.Index(fields=["subject_label", "subject_pk"], condition=Q(subject_pk__isnull=False),
                         name="delaytasks_schedule_subject"),
            models.Index(fields=["topic"], condition=~Q(former_names=""), name="delaytasks_schedule_renamed"),
            models.Index(fields=["name"], condition=Q(series_key__isnull=True), name="delaytasks_schedule_named"),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.name if self.series_key is None else f"{self.topic} {self.series_key}"


class ScheduleRun(models.Model):
    """The job of a schedule that is running now. The row is locked while an atomic handler runs.

    Not a part of Schedule, so that during this time the schedule can make further jobs, and can be deleted. A row whose
    schedule has been deleted is deleted later.
    """

    schedule = models.OneToOneField(
        Schedule, models.DO_NOTHING, primary_key=True, related_name="run", db_constraint=False
    )
    job_id = models.BigIntegerField(null=True)
    attempt = models.IntegerField(default=0)

    class Meta:
        default_permissions = ()
        verbose_name = _("running job of a schedule")
        verbose_name_plural = _("running jobs of schedules")

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.job_id}"
