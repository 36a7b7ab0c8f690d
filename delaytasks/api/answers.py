"""What answers give: jobs, topics, numbers, and what went wrong. Times are RFC 3339 in UTC; numbers name their unit."""

from rest_framework import serializers

from ..clock import from_ms
from ..states import Outcome, State
from .fields import MAX_ATTEMPT, MAX_ID, Flag, Json, Moment, Seconds, Text, Whole, Word
from .serializers import STATES


def _seconds(ms: int) -> float:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


class JobSerializer(serializers.Serializer):
    """A job as it is at the moment of the answer."""

    # The context's `now`, an aware datetime, tells delayed and ready apart; its `caller` is whom it is shown to.
    id = Whole(1, MAX_ID)
    topic = Text()
    key = Text()
    state = Word(STATES, "State", of=lambda job, context: job.shown_state(context["now"]).word)
    due_at = Moment()
    ttr_seconds = Seconds(of=lambda job, _: _seconds(job.ttr_ms))
    attempt = Whole(0, help_text="How often it was reserved.")
    failures = Whole(0, help_text="Attempts that failed or outlived their TTR.")
    body = Json(
        of=lambda job, context: context["caller"].shown_body(job.body),
        help_text="For staff without the values under keys whose names say that they are secret.",
    )
    created_at = Moment()
    reserved_at = Moment(allow_null=True)
    lease_until = Moment(allow_null=True, help_text="Until when the attempt that holds it may finish it.")
    ended_at = Moment(allow_null=True)
    worker = Text(help_text="Who reserved it last.")
    error = Text(help_text="What its last failure said.")


class EventSerializer(serializers.Serializer):
    """Something that happened to a job."""

    outcome = Word(Outcome, "Outcome")
    attempt = Whole(0)
    at = Moment(of=lambda event, _: from_ms(event.done_ms))
    due_at = Moment(of=lambda event, _: from_ms(event.due_ms))
    next_due_at = Moment(
        allow_null=True, of=lambda event, _: None if event.next_due_ms is None else from_ms(event.next_due_ms)
    )
    late_ms = Whole(allow_null=True, help_text="How long after its due time the attempt began.")
    ran_ms = Whole(allow_null=True, help_text="How long the attempt took.")
    worker = Text()
    actor = Text(help_text="Who did it, where that was not a worker.")
    reason = Text(help_text="Why, if they said.")
    error = Text()


class JobWithEventsSerializer(JobSerializer):
    """A job and what happened to it, oldest first; of more than 1,000 events the newest."""

    events = EventSerializer(many=True, source="shown_events")
    has_older_events = Flag()


class MadeJobSerializer(JobSerializer):
    """A job, and whether this request made it."""

    result = Word(("created", "kept", "replaced"), of=lambda _, context: context["result"])


class NamedJobSerializer(serializers.Serializer):
    """Which job."""

    id = Whole(1, MAX_ID)
    topic = Text()
    key = Text()


class MadeJobsSerializer(serializers.Serializer):
    """What became of a bulk; the jobs in the order in which they were asked for."""

    created = Whole(0)
    kept = Whole(0)
    replaced = Whole(0)
    jobs = NamedJobSerializer(many=True)


class PageSerializer(serializers.Serializer):
    """Some jobs, and the address of the next ones. A page may be short or empty and have a next one."""

    next = Text(allow_null=True, help_text="The address of the next page, relative to this one's; null at the end.")
    results = JobSerializer(many=True)


class CancelledSerializer(serializers.Serializer):
    """The job will not run."""

    result = Word(("cancelled",))


class EndedSerializer(serializers.Serializer):
    """What the job is now. A delayed one may be due already."""

    state = Word((State.DELAYED.word, State.FINISHED.word, State.DEAD.word))


class TouchedSerializer(serializers.Serializer):
    """Until when the attempt may finish the job."""

    deadline = Moment()


class AttemptSerializer(serializers.Serializer):
    """A job in the hands of a consumer."""

    id = Whole(1, MAX_ID)
    topic = Text()
    key = Text()
    attempt = Whole(1, MAX_ATTEMPT, help_text="The number of this attempt: give it with finish, release, touch, bury.")
    failures = Whole(0)
    body = Json()
    ttr_seconds = Seconds(of=lambda attempt, _: _seconds(attempt.ttr_ms))
    due_at = Moment()
    deadline = Moment(help_text="Until when it is to be finished or touched.")
    late_ms = Whole(of=lambda attempt, _: attempt.reserved_ms - attempt.due_ms)


class ReservedSerializer(serializers.Serializer):
    """What was reserved, oldest due first; nothing if nothing became ready in time."""

    jobs = AttemptSerializer(many=True)


class TopicSerializer(serializers.Serializer):
    """A topic, and its jobs in numbers."""

    name = Text()
    paused = Flag(help_text="Its jobs become ready and wait.")
    handled = Flag(help_text="A handler in Python is known where the request was answered.")
    delayed_within_horizon = Whole(0, help_text="Jobs due within horizon_seconds; later ones are not counted.")
    horizon_seconds = Whole(1)
    ready = Whole(0)
    reserved = Whole(0)
    dead = Whole(0)
    at_least = Flag(
        help_text="There was no time to count all: delayed_within_horizon, ready and dead are at least so many."
    )
    oldest_ready_ms = Whole(0, allow_null=True, help_text="How long the one that is ready longest has waited.")


class TopicsSerializer(serializers.Serializer):
    """The topics that the caller sees."""

    results = TopicSerializer(many=True)


class PausedSerializer(serializers.Serializer):
    """Whether a topic is paused."""

    name = Text()
    paused = Flag()


class HealthSerializer(serializers.Serializer):
    """Whether the service works: without its mirror it is slower and still correct, without its database it is down."""

    status = Word(("ok", "degraded", "down"))
    database = Word(("up", "down"))
    mirror = Word(("up", "down", "off"))


# -- problems -----------------------------------------------------------------------------------


class MistakeSerializer(serializers.Serializer):
    """A field, and what is wrong with it."""

    field = Text(help_text="For example `jobs[3].due_at`; empty for the request as a whole.")
    detail = Text()


class ProblemSerializer(serializers.Serializer):
    """What went wrong, as RFC 9457 has it."""

    type = Text(help_text="What to program by, for example `urn:delaytasks:problem:key-is-live`.")
    title = Text()
    status = Whole(400, 599)
    detail = Text(help_text="A sentence about this request.")
    errors = MistakeSerializer(many=True, required=False)


class ConflictSerializer(MistakeSerializer):
    """A job of a bulk that cannot be made, and the live job in its way."""

    job_id = Whole(1, MAX_ID, required=False)


class LiveProblemSerializer(ProblemSerializer):
    """What went wrong, and the live job in the way."""

    job_id = Whole(1, MAX_ID, required=False, help_text="The live job of this topic and key, if it is still there.")
    errors = ConflictSerializer(many=True, required=False)


class NotCancelledProblemSerializer(ProblemSerializer):
    """Why a job could not be cancelled."""

    result = Word(("running", "already finished"))
