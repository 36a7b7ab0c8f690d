"""What requests may hold. Times are RFC 3339 with an offset; a number's unit is in its name."""

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from rest_framework import serializers

from ..consuming import MAX_ERROR
from ..exceptions import shown
from ..scheduling import OnConflict
from ..states import State
from .fields import (
    MAX_ATTEMPT,
    MAX_COUNT,
    Items,
    Json,
    Moment,
    Seconds,
    Text,
    Topics,
    Whole,
    Word,
    delay_field,
    due_field,
    key_field,
    topic_field,
    ttr_field,
)

MAX_JOBS = 1000  # of one bulk
MAX_LIMIT = 200  # of one page
MAX_REASON = 255  # characters
MAX_CURSOR = 6000  # characters; it holds a key, escaped
MAX_WAIT_SECONDS = 60
MAX_CONSUMER = 100  # characters: with an account's name of 100 it fits into Job.worker
MODES: tuple[str, ...] = get_args(OnConflict)
STATES = tuple(state.word for state in State)
NAMED = 20  # mistakes that an answer lists


class Strict(serializers.Serializer):
    """What a request may hold: these fields, and no other. `rules` is what JSON Schema has to say beside them."""

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
        takes = f"Known are {', '.join(self.fields)}." if self.fields else "This takes no fields."
        raise serializers.ValidationError({shown(name)[1:-1]: f"It is unknown. {takes}" for name in unknown[:NAMED]})


def checked(serializer: type[Strict], data: Any) -> dict[str, Any]:
    """The request's fields as they were given, with the defaults of the others. Raises ValidationError."""
    found = serializer(data=data)
    found.is_valid(raise_exception=True)
    return dict(found.validated_data)


def why_field() -> Text:
    what = "Why; kept with what happened to the job. Staff have to say it where the topic asks for a reason."
    return Text(most=MAX_REASON, default="", help_text=what)


class ReasonSerializer(Strict):
    """Why."""

    reason = why_field()


class WhenSerializer(Strict):
    """Exactly one of due_at and delay_seconds."""

    rules: ClassVar = {"oneOf": [{"required": ["due_at"]}, {"required": ["delay_seconds"]}]}

    due_at = due_field(required=False)
    delay_seconds = delay_field(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("due_at" in attrs) == ("delay_seconds" in attrs):
            found = "both were given" if "due_at" in attrs else "neither was given"
            raise serializers.ValidationError({"due_at": f"Give exactly one of due_at and delay_seconds; {found}."})
        return attrs


class RescheduleSerializer(WhenSerializer):
    """Exactly one of due_at and delay_seconds, and why."""

    reason = why_field()


class NewJobTermsSerializer(WhenSerializer):
    """A job to make."""

    topic = topic_field()
    key = key_field()
    body = Json(required=False, help_text="Any JSON, for its consumer; none, and `null`, count as `{}`.")
    ttr_seconds = ttr_field(required=False)


def mode_field() -> Word:
    what = (
        "What becomes of a job of this topic and key that is live already: it makes the request fail, it stays as it "
        "is, or it takes the new due time, body and TTR."
    )
    return Word(MODES, "OnConflict", default="reject", help_text=what)


class NewJobSerializer(NewJobTermsSerializer):
    """A job to make."""

    on_conflict = mode_field()


class NewJobsSerializer(Strict):
    """Jobs to make, all or none."""

    jobs = Items(NewJobTermsSerializer, 1, MAX_JOBS)
    on_conflict = mode_field()


class PageQuerySerializer(Strict):
    """Which jobs a list shows."""

    topic = Topics(required=False, help_text="Jobs of this topic; repeat it for more. Without: of all that you see.")
    state = Word(STATES, "State", required=False, help_text="Jobs in this state.")
    key_prefix = Text(most=255, default="", help_text="Jobs whose key begins so.")
    due_from = Moment(required=False, help_text="Jobs due at this time or later.")
    due_until = Moment(required=False, help_text="Jobs due before this time.")
    limit = Whole(1, MAX_LIMIT, written=True, default=50, help_text="Jobs of one page, at most.")
    cursor = Text(
        most=MAX_CURSOR, default="", help_text="Where the page begins: as `next` of the page before has it, else none."
    )


class ReserveSerializer(Strict):
    """How many jobs a consumer takes, and how long it waits for the first."""

    count = Whole(1, MAX_COUNT, default=1, help_text="Jobs to take, at most.")
    wait_seconds = Seconds(0, MAX_WAIT_SECONDS, default=0, help_text="How long to wait until one is ready.")
    consumer = Text(
        most=MAX_CONSUMER, default="", help_text="Which of the account's consumers this is; the job keeps it."
    )


class HeldSerializer(Strict):
    """Which attempt is meant."""

    attempt = Whole(1, MAX_ATTEMPT, help_text="The number of the attempt, as reserving gave it: the fence.")


class ReleaseSerializer(HeldSerializer):
    """Which attempt is given back, until when, and what went wrong."""

    delay_seconds = delay_field(
        required=False,
        help_text="Until it is due again. Without: at once or, with an error, after the topic's backoff.",
    )
    error = Text(most=MAX_ERROR, lines=True, default="", help_text="What went wrong. Then the attempt has failed.")


class BurySerializer(HeldSerializer):
    """Which attempt declares its job dead, and why."""

    reason = Text(most=MAX_ERROR, lines=True, default="", help_text="Why; kept as the job's error.")
