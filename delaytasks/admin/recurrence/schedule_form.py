"""The form of a schedule in the admin, and a preview of the next runs before it is saved."""

from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar

from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ... import clock, databases, permissions
from ...calendars.wall_time import resolve, to_zone
from ...exceptions import DelaytasksError
from ...jobs.inputs import check_known
from ...models import Schedule
from ...recurrence import schedules
from ...recurrence.definition import Definition
from ...recurrence.intervals import LONGEST
from ...validators import MAX_TTR_MS
from ..forms import ChangesForm, ReasonField
from ..scheduling.form import BodyField

TIMES = ("tz", "cron", "every", "rrule", "delay", "period", "repeat", "start_at", "gap", "overlap")
FIELDS: tuple[str, ...] = (
    "name",
    "topic",
    "body",
    "tz",
    "cron",
    "rrule",
    "repeat",
    "gap",
    "overlap",
    "missed",
    "running",
)
POLICIES = ("missed", "within", "running")
SECONDS = {"every": _("Every, in seconds"), "delay": _("Delay, in seconds"), "period": _("Period, in seconds"),
           "within": _("Begin within, in seconds"), "ttr": _("Time to run, in seconds")}  # fmt: skip
LONGEST_SECONDS = int(LONGEST.total_seconds())


def _seconds_field(name: str, least: float, most: float = LONGEST_SECONDS, **kwargs: Any) -> forms.FloatField:
    return forms.FloatField(label=SECONDS[name], required=False, min_value=least, max_value=most, **kwargs)


class StartField(forms.SplitDateTimeField):
    """A field for a start. A time that clocks show twice is the first one, one that they skip the end of the gap."""

    def compress(self, data_list: Any) -> datetime | None:
        try:
            start: datetime | None = super().compress(data_list)
        except ValidationError as error:
            if error.code != "ambiguous_timezone":
                raise
            start = resolve(datetime.combine(*data_list), timezone.get_current_timezone())
        return start


class ScheduleForm(ChangesForm):
    """The form of a schedule. Durations are entered in seconds."""

    every = _seconds_field("every", 0.1)
    delay = _seconds_field("delay", 0)
    period = _seconds_field("period", 0.1)
    within = _seconds_field("within", 0, help_text=_("a run that begins later is skipped; empty: no limit"))
    ttr = _seconds_field("ttr", 0.001, MAX_TTR_MS // 1000)
    start_at = StartField(
        label=_("Start"), required=False, widget=AdminSplitDateTime(),
        help_text=_("the time from which the runs count, also those of cron, in the time zone %(zone)s; empty: now"),
    )  # fmt: skip
    reason = ReasonField(help_text=_("Stored in the history. Optional."))

    class Meta:
        model = Schedule
        fields = FIELDS
        field_classes: ClassVar = {"body": BodyField}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in SECONDS:
            ms = getattr(self.instance, f"{name}_ms", None)
            self.initial.setdefault(name, None if ms is None else ms / 1000)
        if self.instance.pk is None:
            self.initial.setdefault("repeat", 0)
        start = self.fields["start_at"]
        start.help_text = str(start.help_text) % {"zone": timezone.get_current_timezone_name()}
        self.keep_topic()
        using, topic = databases.alias(), self.instance.topic
        if self.instance.pk is not None and permissions.topics_requiring_reason(using, [topic]):
            self.fields["reason"].required = True
            self.fields["reason"].help_text = _("Required by %(topics)s.") % {"topics": topic}

    def keep_topic(self) -> None:
        """Add the schedule's own topic to the choices, even if it has no handler here."""
        field, own = self.fields.get("topic"), self.instance.topic
        if isinstance(field, forms.ChoiceField) and own:
            choices = dict([(own, own), *field.widget.choices])
            field.choices = list(choices.items())

    def clean(self) -> dict[str, Any]:
        """Validate the schedule as a whole, and keep it in self.definition."""
        values = super().clean()
        if self.instance.pk is not None and "topic" in self.changed_data and not values.get("reason"):
            for topic in permissions.topics_requiring_reason(databases.alias(), [values.get("topic", "")]):
                self.add_error("reason", _("Required by %(topics)s.") % {"topics": topic})
        if self.errors:
            return values
        durations: dict[str, Any] = {
            name: None if values[name] is None else timedelta(seconds=values[name]) for name in SECONDS
        }
        same = {name: values[name] for name in FIELDS if name in values}
        same["name"] = values.get("name") or self.instance.name
        same["topic"] = values.get("topic") or self.instance.topic
        same["body"] = {} if values.get("body") is None else values["body"]
        start = values["start_at"]
        if self.instance.pk is not None and "start_at" not in self.changed_data:
            start = self.instance.start_at  # with its fraction of a second, which the field does not show
        try:
            if "topic" in self.fields:
                check_known(databases.alias(), same["topic"])
            self.definition = Definition(start=start, **durations, **same)
            if "name" in self.fields:  # a new schedule: nobody else can take its name until the commit
                schedules.lock_name(databases.alias(), self.definition.name)
            schedules.check_runs(self.definition, None if self.instance.pk is None else self._stored())
        except DelaytasksError as error:
            raise ValidationError(str(error)) from error
        return values

    def _stored(self) -> Schedule:
        """Return the row as it is stored: Django has already set the form's values on self.instance."""
        return Schedule.objects.using(self.instance._state.db).get(pk=self.instance.pk)


class TimesForm(ScheduleForm):
    """A ScheduleForm for previews, without the fields for name, topic and body."""

    class Meta(ScheduleForm.Meta):
        fields = ("tz", "cron", "rrule", "repeat", "gap", "overlap")


def next_lines(row: Schedule, count: int, *, after: datetime | None = None) -> list[str]:
    """Return the times of the next runs as texts in the schedule's zone, or the error as the only text."""
    try:
        zone = to_zone(row.tz)
        firings = schedules.next_firings(row, count, after=after)
    except DelaytasksError as error:
        return [str(error)]
    return [local_text(firing.due, zone) for firing in firings]


def local_text(moment: datetime, zone: tzinfo) -> str:
    """Return what clocks in the zone show, with the zone's abbreviation: "2030-01-01 02:30:00 CET"."""
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def preview_lines(data: Any) -> list[str]:
    """Return the next ten runs for the data of a ScheduleForm as texts, or the form's errors. Stores nothing."""
    form = TimesForm(data, instance=Schedule(name="preview", topic="preview", body={}))
    if not form.is_valid():
        fields = {name: field.label for name, field in form.fields.items()}
        return [
            f"{fields[name]}: {message}" if name in fields else str(message)
            for name, messages in form.errors.items()
            for message in messages
        ]
    now = clock.from_ms(databases.now_ms(databases.alias()))
    row = Schedule(**form.definition.columns(), start_at=form.definition.start or now)
    return next_lines(row, 10, after=form.definition.made_until(now))
