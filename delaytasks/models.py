"""Job, JobEvent, Topic: the rows that are the truth. MirrorMark and BulkChange: what work in progress remembers.

TopicStat: what the data pipeline found, to look at; nothing is decided by it. LoadChunk: what it has loaded.
"""

from datetime import datetime
from typing import Any, ClassVar, NoReturn

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from . import clock, states
from .querysets import EventQuerySet, JobQuerySet
from .states import State

STATE_CHOICES = [
    (State.DELAYED, _("delayed")),
    (State.RESERVED, _("reserved")),
    (State.FINISHED, _("finished")),
    (State.CANCELLED, _("cancelled")),
    (State.DEAD, _("dead")),
]


class Job(models.Model):
    """One promise: topic, key, due time, TTR, body. Changed only by the guarded statements in statements.py."""

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(_("topic"), max_length=100)
    key = models.CharField(_("key"), max_length=255)
    state = models.SmallIntegerField(_("state"), choices=STATE_CHOICES, default=State.DELAYED)
    due_at = models.DateTimeField(_("due"), help_text=_("when it is to run next, to the millisecond"))
    ttr_ms = models.BigIntegerField(_("TTR in ms"))
    attempt = models.IntegerField(_("attempt"), default=0, help_text=_("how often it was reserved: the fencing token"))
    failures = models.IntegerField(_("failures"), default=0, help_text=_("attempts that failed or outlived their TTR"))
    body = models.JSONField(_("body"), default=dict, encoder=DjangoJSONEncoder)
    created_at = models.DateTimeField(pgettext_lazy("when", "scheduled"))
    reserved_at = models.DateTimeField(pgettext_lazy("when", "reserved"), null=True)
    lease_until = models.DateTimeField(_("lease until"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)
    died_at = models.DateTimeField(_("died"), null=True)  # set while dead; the index of the dead goes by it
    worker = models.CharField(_("worker"), max_length=255, default="")
    error = models.TextField(_("last error"), default="")

    objects: ClassVar[Any] = JobQuerySet.as_manager()
    is_new: bool = False  # set on what schedule() returns: True if this call made the job

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions: ClassVar = [("operate_job", "Can cancel, postpone, run now and retry jobs")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["topic", "key"], condition=Q(ended_at__isnull=True), name="delaytasks_job_one_live"
            ),
            models.CheckConstraint(
                condition=Q(state__in=[int(s) for s in states.STORED]), name="delaytasks_job_state_known"
            ),
            models.CheckConstraint(
                condition=Q(state__in=[int(s) for s in states.STORED_LIVE], ended_at__isnull=True)
                | Q(state__in=[int(s) for s in states.ENDED], ended_at__isnull=False),
                name="delaytasks_job_live_or_ended",
            ),
            models.CheckConstraint(
                condition=Q(state=int(State.RESERVED), lease_until__isnull=False, attempt__gte=1)
                | (~Q(state=int(State.RESERVED)) & Q(lease_until__isnull=True)),
                name="delaytasks_job_lease_if_reserved",
            ),
            models.CheckConstraint(
                condition=Q(state=int(State.DEAD), died_at__isnull=False)
                | (~Q(state=int(State.DEAD)) & Q(died_at__isnull=True)),
                name="delaytasks_job_died_if_dead",
            ),
            models.CheckConstraint(
                condition=Q(ttr_ms__gt=0, failures__gte=0, attempt__gte=F("failures")) & ~Q(key=""),
                name="delaytasks_job_sane",
            ),
        ]
        indexes: ClassVar = [
            # No index, not even in its predicate, has a column that a claim writes (state, attempt, lease_until,
            # reserved_at, worker): so claims can be heap-only updates, nearly twice as fast.
            models.Index(fields=["due_at", "id"], condition=Q(ended_at__isnull=True), name="delaytasks_job_live_due"),
            # A topic's own queue: lists of it, and claims without a mirror, pass by the backlog of other topics.
            models.Index(
                fields=["topic", "due_at", "id"], condition=Q(ended_at__isnull=True), name="delaytasks_job_topic_due"
            ),
            # What support asks: everything that ever was under this key (prefix), per topic.
            models.Index(
                fields=["topic", "key", "id"],
                opclasses=["varchar_ops", "varchar_pattern_ops", "int8_ops"],
                name="delaytasks_job_key",
            ),
            models.Index(fields=["id"], condition=Q(died_at__isnull=False), name="delaytasks_job_dead"),
            models.Index(fields=["topic", "id"], condition=Q(died_at__isnull=False), name="delaytasks_job_topic_dead"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.key}"

    @property
    def due_ms(self) -> int:
        return clock.to_ms(self.due_at)

    def shown_state(self, now: datetime) -> State:
        """The state as people see it at `now` (aware): delayed becomes ready when its due time has passed."""
        return states.shown(self.state, due_ms=self.due_ms, now_ms=clock.to_ms(now))


class Board(Job):
    """What is due, late and dead, on one page. Stores nothing: it is the board's entry in the admin."""

    class Meta:
        proxy = True
        default_permissions = ()  # who may view jobs may view it
        verbose_name = _("Board")
        verbose_name_plural = _("Board")


class JobEvent(models.Model):
    """What happened to a job, one row per outcome or change. Append-only: never updated, pruned only with its job."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.DO_NOTHING, related_name="events", db_constraint=False)
    outcome = models.CharField(_("outcome"), max_length=12, choices=[(o.value, o.value) for o in states.Outcome])
    attempt = models.IntegerField(_("attempt"))
    due_ms = models.BigIntegerField(_("due, ms since 1970"))
    reserved_ms = models.BigIntegerField(_("reserved, ms since 1970"), null=True)
    done_ms = models.BigIntegerField(_("happened, ms since 1970"))
    next_due_ms = models.BigIntegerField(_("next due, ms since 1970"), null=True)
    worker = models.CharField(_("worker"), max_length=255, default="")
    actor = models.CharField(_("by"), max_length=255, default="", help_text=_("who, when a person did it"))
    error = models.TextField(_("error"), default="")
    reason = models.CharField(_("reason"), max_length=255, default="", db_default="", help_text=_("why, if they said"))

    objects: ClassVar[Any] = EventQuerySet.as_manager()

    class Meta:
        verbose_name = _("job event")
        verbose_name_plural = _("job events")

    def __str__(self) -> str:
        return f"{self.outcome} (attempt {self.attempt})"

    @property
    def late_ms(self) -> int | None:
        """How long after its due time the attempt began; None if none began."""
        return None if self.reserved_ms is None else self.reserved_ms - self.due_ms

    @property
    def ran_ms(self) -> int | None:
        """How long the attempt took; None if none began."""
        return None if self.reserved_ms is None else self.done_ms - self.reserved_ms

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("JobEvent is append-only and written by the guarded statements alone.")

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("JobEvent is append-only: it goes only with its job.")


class Topic(models.Model):
    """What staff can change about a topic while it runs."""

    name = models.CharField(_("topic"), max_length=100, primary_key=True)
    paused = models.BooleanField(_("paused"), default=False, help_text=_("its jobs become ready and wait"))
    concurrency = models.PositiveSmallIntegerField(
        _("concurrency"), null=True, blank=True, help_text=_("run slots; empty: as its handler says")
    )
    ask_reason = models.BooleanField(
        _("ask for a reason"), default=False, db_default=False,
        help_text=_("staff who change its jobs or pause it must say why, here and over HTTP; programs are not asked"),
    )  # fmt: skip
    # Ids of groups and no relation to them: this app also runs where django.contrib.auth is not installed.
    visible_to = models.JSONField(
        _("visible to"), default=list, db_default=[], blank=True,
        help_text=_("groups that may see its jobs; none: everybody who may see jobs"),
    )  # fmt: skip
    slots = models.JSONField(default=dict, editable=False)  # run slots (token -> expiry in ms) while there is no mirror

    class Meta:
        verbose_name = _("topic")
        verbose_name_plural = _("topics")

    def __str__(self) -> str:
        return self.name


class MirrorMark(models.Model):
    """One row: what the database remembers of the mirror, to notice that Redis lost or rewound its data."""

    tick = models.BigIntegerField(default=0)
    masters = models.JSONField(default=dict)  # address -> "run id/replication id"
    fed_until = models.DateTimeField(null=True)
    looked_at = models.DateTimeField(null=True)  # when a guard last looked; a mover is alive as long as this is fresh
    audit = models.JSONField(default=dict, db_default={})  # the last audit's counts, with at_ms

    class Meta:
        verbose_name = _("mirror mark")
        verbose_name_plural = _("mirror marks")

    def __str__(self) -> str:
        return f"tick {self.tick}"


class BulkChange(models.Model):
    """One change to many jobs, done in small batches: which jobs, how far it is, and what became of each."""

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
    user_id = models.CharField(max_length=64, default="")  # of the person, for the admin's log
    wish = models.JSONField(_("filters"), default=dict)  # what was chosen by, for people to read
    ids = models.JSONField(default=list)  # the jobs that matched when it was confirmed; each is visited once
    put_off = models.JSONField(default=list, db_default=[])  # of those passed: the jobs that were not free, for later
    total = models.IntegerField(_("jobs"))
    position = models.IntegerField(_("done"), default=0)  # how many; as many and those put off are passed in ids
    outcomes = models.JSONField(_("outcomes"), default=dict)  # word -> how many
    samples = models.JSONField(default=dict)  # word -> up to 20 of [id, topic, key]
    state = models.CharField(_("state"), max_length=7, choices=State.choices, default=State.WAITING)
    error = models.TextField(_("error"), default="")
    created_at = models.DateTimeField(_("asked for"))
    worked_at = models.DateTimeField(_("last worked on"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)

    class Meta:
        verbose_name = _("bulk change")
        verbose_name_plural = _("bulk changes")
        default_permissions = ()  # who may operate jobs may begin one, and whoever sees its topics may follow it
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(position__gte=0, position__lte=F("total")), name="delaytasks_bulk_position"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.operation} {self.total}"


class TopicStat(models.Model):
    """What happened to a topic in an hour. Written by the pipeline's report, each hour again until it is settled."""

    topic = models.CharField(max_length=100)
    hour_at = models.DateTimeField(help_text="the hour's beginning")
    happened = models.BigIntegerField(help_text="events")
    finished = models.BigIntegerField()
    retried = models.BigIntegerField(help_text="attempts that failed or outlived their TTR, and are made again")
    died = models.BigIntegerField()
    cancelled = models.BigIntegerField()
    snoozed = models.BigIntegerField()
    begun = models.BigIntegerField(help_text="first attempts: those tell how late a job was")
    late_p50_ms = models.BigIntegerField(null=True)
    late_p95_ms = models.BigIntegerField(null=True)
    late_p99_ms = models.BigIntegerField(null=True)
    late_worst_ms = models.BigIntegerField(null=True)

    class Meta:
        default_permissions = ()  # staff see it where they see topics
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["topic", "hour_at"], name="delaytasks_topicstat_one"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["hour_at"], name="delaytasks_topicstat_hour")
        ]  # the last days, of all

    def __str__(self) -> str:
        return f"{self.topic} {self.hour_at:%Y-%m-%d %H:00}"


class LoadChunk(models.Model):
    """A part of a pipeline's load, written in the transaction that put its jobs there: so it is loaded once."""

    run = models.CharField(max_length=100)
    chunk = models.IntegerField()
    stamp = models.CharField(max_length=32, help_text="of the run's files: the same run's name in another lake")
    rows = models.IntegerField()
    inserted = models.IntegerField()
    kept = models.IntegerField(help_text="were live already, and stay as they are")
    replaced = models.IntegerField()
    refused = models.IntegerField(help_text="live already, or running; they are among the run's rejects")
    low_id = models.BigIntegerField(null=True, help_text="of the jobs that were inserted")
    high_id = models.BigIntegerField(null=True)
    replaced_ids = models.JSONField(default=list, help_text="emptied when the mirror was told")
    told = models.BooleanField(default=False, help_text="the mirror has what is within the horizon")
    loaded_at = models.DateTimeField()

    class Meta:
        default_permissions = ()  # the answer of the load says it to people
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "chunk"], name="delaytasks_loadchunk_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(told=False), name="delaytasks_loadchunk_untold"),
        ]

    def __str__(self) -> str:
        return f"{self.run} {self.chunk}"
