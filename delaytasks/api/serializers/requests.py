"""Serializers of requests. Times are RFC 3339 with an offset; names of numbers contain the unit."""

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from rest_framework import serializers

from ...exceptions import short_repr
from ...jobs.schedule import OnConflict
from ...states import State
from ...worker.leases import MAX_ERROR
from ..access import receipts
from .fields import (
    MAX_ATTEMPT,
    MAX_COUNT,
    ChoiceField,
    DateTimeField,
    IntegerField,
    ItemsField,
    JSONField,
    SecondsField,
    TextField,
    TopicsField,
    delay_field,
    due_field,
    expires_field,
    key_field,
    priority_field,
    topic_field,
    ttr_field,
)

MAX_JOBS = 1000  # jobs in one bulk request
MAX_LIMIT = 200  # jobs per page
MAX_REASON = 255  # characters
MAX_CURSOR = 6000  # characters; it contains an escaped key
MAX_WAIT_SECONDS = 60
MAX_CONSUMER = 100  # characters: together with an account name of 100 it fits into Job.worker
MODES: tuple[str, ...] = get_args(OnConflict)
STATES = tuple(state.word for state in State)
MAX_ERRORS = 20  # errors listed in a response


class StrictSerializer(serializers.Serializer):
    """A serializer that refuses unknown fields. `rules` are additional JSON Schema keywords."""

    rules: ClassVar[Mapping[str, Any]] = {}
    default_error_messages: ClassVar = {
        "invalid": "Give a JSON object.",
        "null": "Give a JSON object, not null.",
        "required": "It is missing.",
    }

    def to_internal_value(self, data: Any) -> Any:
        unknown = sorted(data.keys() - self.fields.keys()) if isinstance(data, Mapping) else []
        if not unknown:
            return super().to_internal_value(data)
        known = f"Known fields: {', '.join(self.fields)}." if self.fields else "No fields are allowed."
        raise serializers.ValidationError(
            {short_repr(name)[1:-1]: f"Unknown field. {known}" for name in unknown[:MAX_ERRORS]}
        )


def validated(serializer: type[StrictSerializer], data: Any) -> dict[str, Any]:
    """Return the validated fields of a request, with defaults. Raises ValidationError."""
    return dict(serializer().run_validation(data))


def reason_field() -> TextField:
    text = "The reason; stored in the job's event. Required from staff if the topic requires reasons."
    return TextField(maximum=MAX_REASON, default="", help_text=text)


class ReasonSerializer(StrictSerializer):
    """The reason for a change."""

    reason = reason_field()


class WhenSerializer(StrictSerializer):
    """Exactly one of due_at and delay_seconds."""

    # oneOf is not used: beside properties, client generators read it as a choice between two unknown types.
    rules: ClassVar = {
        "if": {"required": ["due_at"]},
        "then": {"not": {"required": ["delay_seconds"]}},
        "else": {"required": ["delay_seconds"]},
    }

    due_at = due_field(required=False)
    delay_seconds = delay_field(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("due_at" in attrs) == ("delay_seconds" in attrs):
            problem = "both were given" if "due_at" in attrs else "neither was given"
            raise serializers.ValidationError({"due_at": f"Give exactly one of due_at and delay_seconds; {problem}."})
        return attrs


class RescheduleSerializer(WhenSerializer):
    """A new due time (exactly one of due_at and delay_seconds), and the reason."""

    reason = reason_field()


class NewJobTermsSerializer(WhenSerializer):
    """A job to create."""

    topic = topic_field()
    key = key_field()
    body = JSONField(
        required=False, help_text="Any JSON, passed to the consumer. A missing body or `null` is stored as `{}`."
    )
    ttr_seconds = ttr_field(required=False)
    expires_seconds = expires_field()
    priority = priority_field()


def mode_field() -> ChoiceField:
    text = (
        "What to do if a job with this topic and key is live. `reject`: refuse the request. `keep`: keep the job "
        "unchanged. `replace`: replace its due time, body, TTR, expiry and priority; a missing one gets its default. "
        "`again`: run it once more after the running attempt; a waiting job is kept."
    )
    return ChoiceField(MODES, "OnConflict", default="reject", help_text=text)


class NewJobSerializer(NewJobTermsSerializer):
    """A job to create."""

    on_conflict = mode_field()


class NewJobsSerializer(StrictSerializer):
    """Jobs to create, all or none."""

    jobs = ItemsField(NewJobTermsSerializer, 1, MAX_JOBS)
    on_conflict = mode_field()


class PageQuerySerializer(StrictSerializer):
    """Filters and page of a list of jobs."""

    topic = TopicsField(
        required=False, help_text="Jobs of this topic; repeat it for several. Default: all topics that you see."
    )
    state = ChoiceField(STATES, "State", required=False, help_text="Jobs in this state.")
    key_prefix = TextField(maximum=255, default="", help_text="Jobs whose key starts with this.")
    due_from = DateTimeField(from_query=True, required=False, help_text="Jobs due at or after this time.")
    due_until = DateTimeField(from_query=True, required=False, help_text="Jobs due before this time.")
    limit = IntegerField(1, MAX_LIMIT, from_query=True, default=50, help_text="Largest number of jobs per page.")
    cursor = TextField(maximum=MAX_CURSOR, default="", help_text="Start of the page, from `next` of the page before.")


class ReserveSerializer(StrictSerializer):
    """How many jobs to reserve, and how long to wait for the first."""

    count = IntegerField(1, MAX_COUNT, default=1, help_text="Largest number of jobs to reserve.")
    wait_seconds = SecondsField(0, MAX_WAIT_SECONDS, default=0, help_text="How long to wait if no job is ready.")
    consumer = TextField(
        maximum=MAX_CONSUMER, default="", help_text="Name of the account's consumer; stored with the job."
    )


def receipt_field() -> TextField:
    text = "The receipt from the reservation. Required from an account other than the one that reserved the job."
    return TextField(maximum=receipts.LENGTH, required=False, help_text=text)


class HeldSerializer(StrictSerializer):
    """The attempt that holds the job."""

    attempt = IntegerField(1, MAX_ATTEMPT, help_text="The attempt number from the reservation: the fencing token.")
    receipt = receipt_field()


class ReleaseSerializer(HeldSerializer):
    """The attempt to release, the delay, and the error if it failed."""

    delay_seconds = delay_field(
        required=False,
        help_text="Time until the job is due again. Default: it keeps its due time and is ready at once or, with an "
        "error, the topic's backoff.",
    )
    error = TextField(
        maximum=MAX_ERROR, multiline=True, default="", help_text="What went wrong. The attempt then counts as failed."
    )


class BurySerializer(HeldSerializer):
    """The attempt that buries its job, and the reason."""

    reason = TextField(
        maximum=MAX_ERROR, multiline=True, default="", help_text="The reason; stored as the job's error."
    )
