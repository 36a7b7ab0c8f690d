"""The form of a backfill in the admin: a range of a schedule's past, in its time zone."""

import re
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ... import databases, formatting, permissions
from ...calendars.wall_time import in_gap, in_overlap, resolve, to_zone
from ...exceptions import BadSchedule, DelaytasksError
from ...models import Schedule
from ...recurrence import schedules
from ...recurrence.wall_times import Firing
from ..forms import ReasonField
from .schedule_form import local_text

YEARS = range(1970, 9999)  # the engine refuses earlier ranges, too
TIME_OF_DAY = re.compile(r"[Tt ]\d")  # Python allows any character before it, so also the sign of a date's offset


class WallTimeField(forms.DateTimeField):
    """A field for a local time. Its value is a naive datetime; the form interprets it in the schedule's zone."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"})
        invalid = gettext_lazy("Enter a date from 1970 on and a time, without an offset: 2026-11-01 02:30.")
        super().__init__(widget=widget, error_messages={"invalid": invalid}, **kwargs)

    def to_python(self, value: Any) -> datetime | None:
        if value in self.empty_values:
            return None
        text = value.strip()
        try:
            wall = datetime.fromisoformat(text) if TIME_OF_DAY.search(text) else None
        except ValueError:
            wall = None
        if wall is None or wall.tzinfo is not None or wall.year not in YEARS:
            raise ValidationError(self.error_messages["invalid"], code="invalid")
        return wall


class BackfillForm(forms.Form):
    """A range of a schedule's past, both ends included, and the reason.

    firings      the runs of the range; None: the range is not valid
    start, end   aware; set if the range is valid
    notes        messages about a start or an end that clocks skip or show twice; if twice, the range includes both
    """

    first_at = WallTimeField(label=gettext_lazy("From"))
    last_at = WallTimeField(label=gettext_lazy("To"))
    reason = ReasonField(max_length=255)

    def __init__(self, *args: Any, row: Schedule, confirmed: bool = False, **kwargs: Any) -> None:
        """Create the form.

        confirmed   whether the user has seen the preview. The field for a required reason is shown only with it
        """
        super().__init__(*args, **kwargs)
        self.row, self.using = row, databases.alias(row._state.db)
        self.notes: list[str] = []
        self.firings: list[Firing] | None = None
        if permissions.topics_requiring_reason(self.using, [row.topic]):
            self.fields["reason"].required = confirmed
            self.fields["reason"].help_text = _("Required by %(topics)s.") % {"topics": formatting.join([row.topic])}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "first_at" in cleaned and "last_at" in cleaned:
            self._clean_range(cleaned["first_at"], cleaned["last_at"])
        return cleaned

    def _clean_range(self, first: datetime, last: datetime) -> None:
        try:
            self.zone = to_zone(self.row.tz)
            self.start, self.end = self._resolve(first, fold=0), self._resolve(last, fold=1)
            self.firings = schedules.past_firings(self.row, self.start, self.end, using=self.using)
        except DelaytasksError as error:
            raise ValidationError(self._refusal(error)) from error

    def _resolve(self, wall: datetime, *, fold: int) -> datetime:
        moment = resolve(wall, self.zone, fold=fold)
        values = {"zone": self.zone.key, "wall": f"{wall:%Y-%m-%d %H:%M:%S}", "read": local_text(moment, self.zone)}
        if in_gap(wall, self.zone):
            self.notes.append(_("Clocks in %(zone)s skip %(wall)s. It is read as %(read)s.") % values)
        elif in_overlap(wall, self.zone):
            self.notes.append(_("Clocks in %(zone)s show %(wall)s twice. It is read as %(read)s.") % values)
        return moment

    def _refusal(self, error: DelaytasksError) -> str:
        match error.range_problem if isinstance(error, BadSchedule) else "":
            case "backwards":
                return _("The range ends before it begins. Enter the earlier time first.")
            case "future":
                now = local_text(databases.now(self.using), self.zone)
                return _("The range ends in the future. Enter times up to now, %(now)s.") % {"now": now}
            case "long":
                text = _("The range has more than %(most)s runs. Enter a shorter one.")
                return text % {"most": f"{schedules.MOST_BACKFILLED:,}"}
            case "unknown":
                until = schedules.unknown_until_of(self.row) or self.end
                text = _(
                    "There is no record of the runs up to %(until)s: the schedule had another time zone or topic, "
                    "was defined again, or its old jobs were deleted. Enter times after that."
                )
                return text % {"until": local_text(until, self.zone)}
        return str(error)
