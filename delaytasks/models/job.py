"""The job, its events, and a proxy of it for the dashboard."""

import functools
import operator
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from django.core.serializers.json import DjangoJSONEncoder
from django.db import DEFAULT_DB_ALIAS, models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .. import clock, states
from ..querysets import EventQuerySet, JobQuerySet, find_subject
from ..states import State

# So that type checkers know the types of a job's columns, with and without Django's stubs.
if TYPE_CHECKING:
    columns: Any
else:
    columns = models

STATE_CHOICES = [
    (State.DELAYED, _("delayed")),
    (State.RESERVED, _("reserved")),
    (State.FINISHED, _("finished")),
    (State.CANCELLED, _("cancelled")),
    (State.DEAD, _("dead")),
]


def _valid() -> Q:
    """Return the condition of the CHECK constraint: the timestamps of each state, and the ranges of numbers."""
    times = functools.reduce(operator.or_, map(_times_of, states.STORED))
    attempts = Q(failures__gte=0, attempt__gte=F("failures")) & (Q(lease_until__isnull=True) | Q(attempt__gte=1))
    return times & attempts & Q(ttr_ms__gt=0, priority__gte=0, priority__lte=states.MAX_PRIORITY) & ~Q(key="")


def _times_of(state: State) -> Q:
    """Return the condition of a row in this state."""
    return Q(
        state=int(state),
        ended_at__isnull=state in states.STORED_LIVE,
        lease_until__isnull=state is not State.RESERVED,
        died_at__isnull=state is not State.DEAD,
    )


class Job(models.Model):
    """The row of a job: topic, key, due time, TTR, body and its state in the lifecycle.

    A handler receives a RunningJob, not a Job. Read and filter jobs, but never save one: only the functions of
    delaytasks change jobs, by the guarded statements in db/transitions/.

    `state` is a delaytasks.states.State: DELAYED (also if the job is ready, because its due time has passed), RESERVED,
    FINISHED, CANCELLED or DEAD. `error` is the last line of a traceback, or a code of the engine, for which
    delaytasks.outcomes.error_text(job.error) returns a sentence.
    """

    id: int = columns.BigAutoField(primary_key=True)
    topic: str = columns.CharField(_("topic"), max_length=100)
    key: str = columns.CharField(_("key"), max_length=255)
    state: int = columns.SmallIntegerField(_("state"), choices=STATE_CHOICES, default=State.DELAYED)
    due_at: datetime = columns.DateTimeField(_("due"), help_text=_("when it is to run next, to the millisecond"))
    ttr_ms: int = columns.BigIntegerField(_("TTR in ms"))
    attempt: int = columns.IntegerField(
        _("attempt"), default=0, help_text=_("how often it was reserved: the fencing token")
    )
    failures: int = columns.IntegerField(
        _("failures"), default=0, help_text=_("attempts that failed or outlived their TTR")
    )
    body: Any = columns.JSONField(_("body"), default=dict, encoder=DjangoJSONEncoder)
    created_at: datetime = columns.DateTimeField(pgettext_lazy("when", "scheduled"))
    reserved_at: datetime | None = columns.DateTimeField(pgettext_lazy("when", "reserved"), null=True)
    lease_until: datetime | None = columns.DateTimeField(_("lease until"), null=True)
    ended_at: datetime | None = columns.DateTimeField(_("ended"), null=True)
    # Set while the job is dead, for the index of dead jobs.
    died_at: datetime | None = columns.DateTimeField(_("died"), null=True)
    worker: str = columns.CharField(_("worker"), max_length=255, default="")
    error: str = columns.TextField(_("last error"), default="")  # the last line of a traceback, or an ErrorCode
    # Claimed together with others that share its call or commit. If the process dies, no failure is counted.
    grouped: bool = columns.BooleanField(default=False, db_default=False, editable=False)
    # Claimed for an atomic handler: if the end of the attempt is refused, the handler's effects are rolled back.
    fenceable: bool = columns.BooleanField(default=False, db_default=False, editable=False)
    # The process died while the job ran in a group, so it is claimed alone from now on.
    alone: bool = columns.BooleanField(default=False, db_default=False, editable=False)
    # Scheduled again while its handler was running: the terms of the next run. An ended row keeps those of the job that
    # was inserted next.
    again: bool = columns.BooleanField(default=False, db_default=False, editable=False)
    again_due_at: datetime | None = columns.DateTimeField(_("runs again at"), null=True, editable=False)
    again_ttr_ms: int | None = columns.BigIntegerField(null=True, editable=False)
    again_expires_ms: int | None = columns.BigIntegerField(null=True, editable=False)
    again_body: Any = columns.JSONField(null=True, encoder=DjangoJSONEncoder, editable=False)
    # The subject: a model's label in lower case, and the primary key as Python's text. No foreign key, so the job
    # outlives its subject and needs no content types. No claim writes them.
    subject_label: str | None = columns.CharField(max_length=201, null=True)
    subject_pk: str | None = columns.CharField(max_length=255, null=True)
    # The due time that a declared timeout gave the job, to the millisecond. `due_at` may differ: retries, snoozes and
    # people move it. Null: no declaration made the job, or the declaration itself cancelled it.
    declared_due: datetime | None = columns.DateTimeField(null=True, editable=False)
    # How long after its due time the job may begin; None: as its handler says.
    expires_ms: int | None = columns.BigIntegerField(_("expires after, in ms"), null=True)
    # How many polls of delaytasks.poll() were answered "not yet".
    polls: int = columns.IntegerField(_("polls"), default=0, db_default=0)
    # When the job was last replaced. Of a schedule's run: the time for which it was planned, which `due_at` may not be
    # any more; null for a backfill. The deadline of poll() counts from then, or from created_at if that is later.
    replaced_at: datetime | None = columns.DateTimeField(null=True)
    # The prefix of the API token that created the job, and whose limit of live jobs counts it. Null: no token.
    producer: str | None = columns.CharField(max_length=8, null=True, editable=False)
    # The span that scheduled the job, as delaytasks.tracing stores it; null: tracing was off, or it was not sampled.
    trace_context: str | None = columns.TextField(null=True, editable=False)
    # 0 to 9. A due job of a higher priority runs first, unless another one has been due for AGE_MS longer per level.
    priority: int = columns.SmallIntegerField(_("priority"), default=0, db_default=0)

    objects: ClassVar[Any] = JobQuerySet.as_manager()
    is_new: bool = False  # set on the result of schedule(): True if this call created the job
    runs_again: bool = False  # set on the result of schedule(): True if the job is running and runs once more

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions: ClassVar = [("operate_job", "Can cancel, postpone, run now and retry jobs")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["topic", "key"], condition=Q(ended_at__isnull=True), name="delaytasks_job_one_live"
            ),
            # On PostgreSQL a function checks this, and that Python can read the due times (migration 0034).
            models.CheckConstraint(condition=_valid(), name="delaytasks_job_valid"),
        ]
        indexes: ClassVar = [
            # No index uses a column that a claim writes (state, attempt, lease_until, reserved_at, worker), not even
            # in its predicate. So PostgreSQL can make claims heap-only updates, which are nearly twice as fast.
            models.Index(fields=["due_at", "id"], condition=Q(ended_at__isnull=True), name="delaytasks_job_live_due"),
            # For lists of a topic's jobs and claims without a mirror: they do not read the jobs of other topics.
            models.Index(
                fields=["topic", "due_at", "id"], condition=Q(ended_at__isnull=True), name="delaytasks_job_topic_due"
            ),
            # For claims without a mirror: the oldest jobs of each higher priority.
            models.Index(
                fields=["topic", "priority", "due_at", "id"],
                condition=Q(ended_at__isnull=True, priority__gt=0),
                name="delaytasks_job_priority",
            ),
            # For searches by topic and key, or topic and key prefix, among live and ended jobs.
            models.Index(
                fields=["topic", "key", "id"],
                opclasses=["varchar_ops", "varchar_pattern_ops", "int8_ops"],
                name="delaytasks_job_key",
            ),
            models.Index(
                fields=["subject_label", "subject_pk", "id"],
                condition=Q(subject_pk__isnull=False),
                name="delaytasks_job_subject",
            ),
            models.Index(fields=["id"], condition=Q(died_at__isnull=False), name="delaytasks_job_dead"),
            models.Index(
                fields=["producer"],
                condition=Q(producer__isnull=False, ended_at__isnull=True),
                name="delaytasks_job_producer",
            ),
            models.Index(fields=["id"], condition=Q(again=True), name="delaytasks_job_again"),
            models.Index(fields=["topic", "id"], condition=Q(died_at__isnull=False), name="delaytasks_job_topic_dead"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.key}"

    @property
    def due_ms(self) -> int:
        return clock.to_ms(self.due_at)

    @property
    def subject(self) -> Any:
        """The model instance that the job is about, read now; None if the job has none or its row is gone."""
        return find_subject(self._state.db or DEFAULT_DB_ALIAS, self.subject_label, self.subject_pk)

    def shown_state(self, now: datetime) -> State:
        """Return the state to display at `now` (aware): READY for a delayed job whose due time has passed."""
        return states.shown(self.state, due_ms=self.due_ms, now_ms=clock.to_ms(now))


class Board(Job):
    """A proxy model for the dashboard's entry in the admin. It stores nothing."""

    class Meta:
        proxy = True
        default_permissions = ()  # users who may view jobs may view the dashboard
        verbose_name = _("Board")
        verbose_name_plural = _("Board")


class JobEvent(models.Model):
    """An event of a job: how an attempt ended, or a change to the job.

    Append-only: an event is never updated, and it is deleted only with its job.
    """

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
    error = models.TextField(_("error"), default="")  # a traceback, or an outcomes.ErrorCode
    reason = models.CharField(_("reason"), max_length=255, default="", db_default="", help_text=_("why, if they said"))

    objects: ClassVar[Any] = EventQuerySet.as_manager()

    class Meta:
        verbose_name = _("job event")
        verbose_name_plural = _("job events")

    def __str__(self) -> str:
        return f"{self.outcome} (attempt {self.attempt})"

    @property
    def late_ms(self) -> int | None:
        """Milliseconds from the due time to the beginning of the attempt, or None for an event without an attempt."""
        return None if self.reserved_ms is None else self.reserved_ms - self.due_ms

    @property
    def ran_ms(self) -> int | None:
        """Milliseconds that the attempt took, or None for an event without an attempt."""
        return None if self.reserved_ms is None else self.done_ms - self.reserved_ms

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("JobEvent is append-only: only the guarded statements write events.")

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("JobEvent is append-only: events are deleted only with their job.")
