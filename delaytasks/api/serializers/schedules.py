"""Serializers of schedules: requests and responses."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rest_framework import serializers

from ...calendars.wall_time import to_zone
from ...clock import to_seconds
from ...exceptions import BadInput
from ...models import Schedule
from ...recurrence import schedules
from ...recurrence.cron import MAX_LENGTH
from ...recurrence.definition import MAX_NAME, check_name, state_of
from ...recurrence.intervals import LONGEST, MAX_REPEAT, SHORTEST
from ...recurrence.wall_times import Firing
from .fields import (
    TOPIC_PATTERN,
    BooleanField,
    CheckedField,
    ChoiceField,
    DateTimeField,
    IntegerField,
    JSONField,
    SecondsField,
    TextField,
    TopicsField,
    topic_field,
    ttr_field,
)
from .requests import MAX_LIMIT, StrictSerializer, reason_field

LONGEST_SECONDS = int(LONGEST.total_seconds())
MAX_NEXT = 100  # runs in one response
MAX_RULE = 1000  # characters
DURATIONS = ("every", "delay", "period", "within", "ttr")
STATES = ("running", "paused", "ended", "stopped")


def name_field(**kwargs: Any) -> CheckedField:
    return CheckedField(check_name, {"pattern": TOPIC_PATTERN, "maxLength": MAX_NAME}, **kwargs)


class StartField(DateTimeField):
    """The start of a schedule. Definition refuses one that is too early: clamping it would move all runs."""

    EARLIEST = datetime.min.replace(tzinfo=UTC)


def _seconds_field(minimum: float, help_text: str) -> SecondsField:
    return SecondsField(minimum, LONGEST_SECONDS, required=False, allow_null=True, help_text=help_text)


class ScheduleTermsSerializer(StrictSerializer):
    """The times, the job and the policies of a schedule."""

    body = JSONField(required=False, help_text="The body of its jobs; any JSON.")
    ttr_seconds = ttr_field(required=False, allow_null=True)
    tz = TextField(maximum=64, required=False, help_text="IANA name of the zone of cron and rrule. Default: UTC.")
    cron = TextField(
        maximum=MAX_LENGTH, required=False, help_text="Five fields, for example `30 2 * * 1-5`; empty: no cron."
    )
    every_seconds = _seconds_field(SHORTEST.total_seconds(), "Elapsed time between two runs, from `start_at` on.")
    rrule = TextField(maximum=MAX_RULE, required=False, help_text="A rule of RFC 5545; `start_at` is its DTSTART.")
    delay_seconds = _seconds_field(0, "Time until the first run, from `start_at` or from each time of cron.")
    period_seconds = _seconds_field(SHORTEST.total_seconds(), "Time between two runs of a series.")
    repeat = IntegerField(
        0, MAX_REPEAT, required=False, allow_null=True,
        help_text="A series has repeat + 1 runs; null: it has no end. Default: 0.",
    )  # fmt: skip
    start_at = StartField(required=False, allow_null=True, help_text="Default: now.")
    gap = ChoiceField(
        Schedule.Gap.values, "ScheduleGap", required=False,
        help_text="What happens at a fixed time that clocks skip. Default: run.",
    )  # fmt: skip
    overlap = ChoiceField(
        Schedule.Overlap.values, "ScheduleOverlap", required=False,
        help_text="What happens at a fixed time that clocks show twice. Default: once.",
    )  # fmt: skip
    missed = ChoiceField(
        Schedule.Missed.values, "ScheduleMissed", required=False,
        help_text="What happens if several runs have become due, for example after an outage. Default: last.",
    )  # fmt: skip
    within_seconds = _seconds_field(
        0, "A run that cannot begin within this time after it is due is skipped; null: no limit."
    )
    running = ChoiceField(
        Schedule.Running.values, "ScheduleRunning", required=False,
        help_text="What happens to a run while the previous one is still running. Default: skip.",
    )  # fmt: skip


class NewScheduleSerializer(ScheduleTermsSerializer):
    """A schedule to create. Exactly one of cron, every_seconds and rrule, or a series of delay, period and repeat."""

    name = name_field(help_text="Unique among all schedules.")
    topic = topic_field()


class ScheduleChangeSerializer(ScheduleTermsSerializer):
    """The fields to change. To replace one kind of times, empty its field: {"cron": "", "every_seconds": 600}.

    The new times start now, unless `start_at` is given or still to come.
    """

    topic = topic_field(required=False)
    reason = reason_field()


class ScheduleQuerySerializer(StrictSerializer):
    """Filters and page of a list of schedules."""

    topic = TopicsField(
        required=False, help_text="Schedules of this topic; repeat it for several. Default: all topics that you see."
    )
    limit = IntegerField(1, MAX_LIMIT, from_query=True, default=50, help_text="Largest number of schedules per page.")
    after = TextField(maximum=MAX_NAME, default="", help_text="Schedules whose names come after this one.")


class NextQuerySerializer(StrictSerializer):
    """How many of the next runs to return, and from when on."""

    count = IntegerField(1, MAX_NEXT, from_query=True, default=10, help_text="Largest number of runs.")
    after = DateTimeField(from_query=True, required=False, help_text="Runs later than this time. Default: now.")


class BackfillSerializer(StrictSerializer):
    """A range of times in the past, both ends included, and the reason."""

    first_at = DateTimeField(help_text="The first time of the range.")
    last_at = DateTimeField(help_text="The last time of the range.")
    reason = reason_field()


def to_terms(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recurrence.definition.Definition for the fields of a request."""
    terms = dict(data)
    for name in DURATIONS:
        if f"{name}_seconds" in terms:
            seconds = terms.pop(f"{name}_seconds")
            terms[name] = None if seconds is None else timedelta(milliseconds=round(seconds * 1000))
    if "start_at" in terms:
        terms["start"] = terms.pop("start_at")
    if "body" in terms and terms["body"] is None:
        terms["body"] = {}
    return terms


# -- responses ----------------------------------------------------------------------------------


def _duration(name: str) -> SecondsField:
    def seconds(row: Any, _: Any) -> float | None:
        ms = getattr(row, f"{name}_ms")
        return None if ms is None else to_seconds(ms)

    return SecondsField(allow_null=True, getter=seconds)


def _next_run(row: Schedule, context: Mapping[str, Any]) -> datetime | None:
    if state_of(row, context["now"]) != "running":
        return None
    try:
        return next((firing.due for firing in schedules.next_firings(row, 1, after=context["now"])), None)
    except BadInput:  # for example, its time zone is unknown now
        return None


class ScheduleSerializer(serializers.Serializer):
    """A schedule."""

    # Context: `now`, an aware datetime, for the state and the next run; `caller`, for whom the body is redacted.
    name = TextField()
    topic = TextField()
    body = JSONField(
        getter=lambda row, context: context["caller"].shown_body(row.body, row.topic),
        help_text="For callers who may not consume the topic, secrets or the whole body are hidden.",
    )
    ttr_seconds = _duration("ttr")
    tz = TextField()
    cron = TextField()
    every_seconds = _duration("every")
    rrule = TextField()
    delay_seconds = _duration("delay")
    period_seconds = _duration("period")
    repeat = IntegerField(0, MAX_REPEAT, allow_null=True)
    start_at = DateTimeField()
    gap = ChoiceField(Schedule.Gap.values, "ScheduleGap")
    overlap = ChoiceField(Schedule.Overlap.values, "ScheduleOverlap")
    missed = ChoiceField(Schedule.Missed.values, "ScheduleMissed")
    within_seconds = _duration("within")
    running = ChoiceField(Schedule.Running.values, "ScheduleRunning")
    source = ChoiceField(
        Schedule.Source.values,
        help_text="code: declared with @recurring; call: a series, started by a call of schedule(); staff: all others.",
    )
    state = ChoiceField(
        STATES, getter=lambda row, context: state_of(row, context["now"]), help_text="stopped: `problem` says why."
    )
    problem = TextField()
    next_run_at = DateTimeField(allow_null=True, getter=_next_run, help_text="Null if the schedule is not running.")


class ScheduleListSerializer(serializers.Serializer):
    """A page of schedules, ordered by name."""

    next = TextField(allow_null=True, help_text="Relative URL of the next page; null on the last page.")
    results = ScheduleSerializer(many=True)


class NextRunSerializer(serializers.Serializer):
    """A run to come."""

    wall_time = TextField(
        getter=lambda firing, _: firing.label,
        help_text="The local time in the schedule's zone; `/2` marks the second of two equal times.",
    )
    due_at = DateTimeField(getter=lambda firing, _: firing.due)
    local_time = TextField(
        getter=lambda firing, context: firing.due.astimezone(context["zone"]).isoformat(timespec="milliseconds"),
        help_text="`due_at` with the offset of the schedule's zone.",
    )


class NextRunsSerializer(serializers.Serializer):
    """The next runs."""

    results = NextRunSerializer(many=True)


def shown_runs(firings: list[Firing], tz: str) -> list[dict[str, Any]]:
    return [dict(NextRunSerializer(firing, context={"zone": to_zone(tz)}).data) for firing in firings]


class PausedScheduleSerializer(serializers.Serializer):
    """Whether a schedule is paused."""

    name = TextField()
    paused = BooleanField()


class DeletedScheduleSerializer(serializers.Serializer):
    """A schedule that was deleted."""

    name = TextField()
    deleted = BooleanField()


class BackfilledSerializer(serializers.Serializer):
    """How many runs were made."""

    name = TextField()
    made = IntegerField(0)
