"""Serializers of responses. Times are RFC 3339 in UTC; names of numbers contain the unit."""

from rest_framework import serializers

from ...clock import from_ms, to_seconds
from ...outcomes import ErrorCode, error_text, short_error_code
from ...states import MAX_PRIORITY, Outcome, State
from ..access import receipts
from .fields import (
    MAX_ATTEMPT,
    MAX_ID,
    BooleanField,
    ChoiceField,
    DateTimeField,
    IntegerField,
    JSONField,
    ObjectField,
    SecondsField,
    TextField,
)
from .requests import STATES


def _error(help_text: str | None = None) -> TextField:
    return TextField(getter=lambda row, _: error_text(row.error), help_text=help_text)


def _error_code() -> ChoiceField:
    """Return the field for the error code of a job or an event.

    NOT_ALLOWED is missing: it occurs only in bulk changes, which the API does not show.
    """
    return ChoiceField(
        [code.short for code in ErrorCode if code is not ErrorCode.NOT_ALLOWED],
        "ErrorCode",
        allow_null=True,
        getter=lambda row, _: short_error_code(row.error),
        help_text="Code of an error set by the engine; null without an error or for errors of handlers and consumers.",
    )


class JobSerializer(serializers.Serializer):
    """A job at the time of the response."""

    # Context: `now`, an aware datetime, to tell delayed jobs from ready ones; `caller`, for whom the body is redacted.
    id = IntegerField(1, MAX_ID)
    topic = TextField()
    key = TextField()
    state = ChoiceField(STATES, "State", getter=lambda job, context: job.shown_state(context["now"]).word)
    due_at = DateTimeField()
    ttr_seconds = SecondsField(getter=lambda job, _: to_seconds(job.ttr_ms))
    expires_seconds = SecondsField(
        allow_null=True,
        getter=lambda job, _: None if job.expires_ms is None else to_seconds(job.expires_ms),
        help_text="How long after its due time the job may begin; null: as the topic's handler says.",
    )
    priority = IntegerField(0, MAX_PRIORITY)
    attempt = IntegerField(0, MAX_ATTEMPT, help_text="Number of times that the job has been reserved.")
    failures = IntegerField(0, help_text="Attempts that failed or exceeded their TTR.")
    body = JSONField(
        getter=lambda job, context: context["caller"].shown_body(job.body, job.topic),
        help_text="For callers who may not consume the topic, secrets or the whole body are hidden.",
    )
    created_at = DateTimeField()
    reserved_at = DateTimeField(allow_null=True)
    lease_until = DateTimeField(allow_null=True, help_text="Deadline of the current attempt.")
    ended_at = DateTimeField(allow_null=True)
    worker = TextField(help_text="The last worker or consumer.")
    error = _error("Message of the last failure.")
    error_code = _error_code()


class EventSerializer(serializers.Serializer):
    """An event of a job."""

    outcome = ChoiceField(Outcome, "Outcome")
    attempt = IntegerField(0, MAX_ATTEMPT)
    at = DateTimeField(getter=lambda event, _: from_ms(event.done_ms))
    due_at = DateTimeField(getter=lambda event, _: from_ms(event.due_ms))
    next_due_at = DateTimeField(
        allow_null=True, getter=lambda event, _: None if event.next_due_ms is None else from_ms(event.next_due_ms)
    )
    late_ms = IntegerField(allow_null=True, help_text="Time from the due time to the start of the attempt.")
    ran_ms = IntegerField(allow_null=True, help_text="Duration of the attempt.")
    worker = TextField()
    actor = TextField(help_text="Who made the change, if not a worker.")
    reason = TextField(help_text="The reason, if one was given.")
    error = _error()
    error_code = _error_code()


class JobWithEventsSerializer(JobSerializer):
    """A job with its newest 1,000 events, oldest first."""

    events = EventSerializer(many=True, source="shown_events")
    has_older_events = BooleanField()


class MadeJobSerializer(JobSerializer):
    """A job, and what the request did with it."""

    result = ChoiceField(
        ("created", "kept", "replaced", "again"), "Result", getter=lambda _, context: context["result"]
    )


class NamedJobSerializer(serializers.Serializer):
    """A reference to a job."""

    id = IntegerField(1, MAX_ID)
    topic = TextField()
    key = TextField()


class MadeJobsSerializer(serializers.Serializer):
    """Result of a bulk request, with the jobs in the order of the request."""

    created = IntegerField(0)
    kept = IntegerField(0)
    replaced = IntegerField(0)
    again = IntegerField(0, help_text="Running jobs that run once more.")
    jobs = NamedJobSerializer(many=True)


class PageSerializer(serializers.Serializer):
    """A page of jobs. A short or empty page can have a next one."""

    next = TextField(allow_null=True, help_text="Relative URL of the next page; null on the last page.")
    results = JobSerializer(many=True)


class CancelledSerializer(serializers.Serializer):
    """Result of a successful cancel: the job will not run."""

    result = ChoiceField(("cancelled",))


class EndedSerializer(serializers.Serializer):
    """The new state of the job. A delayed job may be due already."""

    state = ChoiceField((State.DELAYED.word, State.FINISHED.word, State.DEAD.word))


class TouchedSerializer(serializers.Serializer):
    """The new deadline of the attempt."""

    deadline = DateTimeField()


class AttemptSerializer(serializers.Serializer):
    """A reserved job."""

    id = IntegerField(1, MAX_ID)
    topic = TextField()
    key = TextField()
    attempt = IntegerField(
        1, MAX_ATTEMPT, help_text="Number of this attempt; pass it to finish, release, touch and bury."
    )
    receipt = TextField(
        getter=lambda attempt, _: receipts.make(attempt.id, attempt.attempt, attempt.reserved_ms),
        help_text="Proves that the reservation is yours; pass it on if another account ends the attempt.",
    )
    failures = IntegerField(0)
    body = JSONField()
    ttr_seconds = SecondsField(getter=lambda attempt, _: to_seconds(attempt.ttr_ms))
    due_at = DateTimeField()
    deadline = DateTimeField(help_text="Finish or touch the job before this time.")
    late_ms = IntegerField(getter=lambda attempt, _: attempt.reserved_ms - attempt.due_ms)


class ReservedSerializer(serializers.Serializer):
    """The reserved jobs, in order of priority and age; empty if none became ready in time."""

    jobs = AttemptSerializer(many=True)


class TopicSerializer(serializers.Serializer):
    """A topic with its job counts."""

    name = TextField()
    paused = BooleanField(help_text="Its jobs become ready but are not given out.")
    handled = BooleanField(
        help_text="The web process knows a Python handler for this topic, or can forward its jobs to `target`."
    )
    target = ObjectField(
        allow_null=True,
        help_text="The target that staff have set for its jobs, without credentials; null: none. A handler or a target "
        "in code takes precedence.",
    )
    delayed_within_horizon = IntegerField(0, help_text="Jobs due within horizon_seconds; later ones are not counted.")
    horizon_seconds = IntegerField(1)
    ready = IntegerField(0)
    reserved = IntegerField(0)
    dead = IntegerField(0)
    at_least = BooleanField(
        help_text="Counting was cut short: delayed_within_horizon, ready and dead are lower bounds."
    )
    oldest_ready_ms = IntegerField(0, allow_null=True, help_text="Waiting time of the oldest ready job.")


class TopicsSerializer(serializers.Serializer):
    """The topics that the caller sees."""

    results = TopicSerializer(many=True)


class PausedSerializer(serializers.Serializer):
    """Whether a topic is paused."""

    name = TextField()
    paused = BooleanField()


class HealthSerializer(serializers.Serializer):
    """Health of the service. Degraded: no working mirror, slower but correct. Down: no database."""

    status = ChoiceField(("ok", "degraded", "down"))
    database = ChoiceField(("up", "down"))
    mirror = ChoiceField(("up", "read_only", "down", "off"))


# -- problems -----------------------------------------------------------------------------------


class MistakeSerializer(serializers.Serializer):
    """An invalid field and the reason."""

    field = TextField(help_text="For example `jobs[3].due_at`; empty for the whole request.")
    detail = TextField()


class ProblemSerializer(serializers.Serializer):
    """A problem document (RFC 9457)."""

    type = TextField(
        help_text="Machine-readable type, for example `urn:delaytasks:problem:key-is-live`; `docs/reference/http.md` "
        "lists all."
    )
    title = TextField()
    status = IntegerField(400, 599)
    detail = TextField(help_text="Explanation of this occurrence.")
    errors = MistakeSerializer(many=True, required=False)


class ConflictSerializer(MistakeSerializer):
    """A job of a bulk request that conflicts with a live job."""

    job_id = IntegerField(1, MAX_ID, required=False)


class LiveProblemSerializer(ProblemSerializer):
    """A conflict with a live job."""

    job_id = IntegerField(
        1, MAX_ID, required=False, help_text="The live job with this topic and key, if it still exists."
    )
    errors = ConflictSerializer(many=True, required=False)


class NotCancelledProblemSerializer(ProblemSerializer):
    """The reason why a job was not cancelled."""

    result = ChoiceField(("running", "already finished"))
