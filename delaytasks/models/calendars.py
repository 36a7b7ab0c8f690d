"""Days on which a calendar has other hours than usual, entered by staff."""

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..calendars.opening_hours import Windows, parse_windows
from ..exceptions import BadCalendar


class CalendarDay(models.Model):
    """A day on which a business calendar has other hours than usual: closed, or open at other times."""

    calendar = models.CharField(_("calendar"), max_length=100, help_text=_("the name of a Calendar in the code"))
    day = models.DateField(_("day"))
    hours = models.CharField(
        _("open hours"), max_length=255, default="", db_default="", blank=True,
        help_text=_("such as 09:00-12:00,13:00-17:00; empty: closed"),
    )  # fmt: skip
    note = models.CharField(_("note"), max_length=255, default="", db_default="", blank=True)

    class Meta:
        verbose_name = _("calendar exception")
        verbose_name_plural = _("calendar exceptions")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["calendar", "day"], name="delaytasks_calendarday_one"),
        ]

    def __str__(self) -> str:
        return f"{self.calendar} {self.day:%Y-%m-%d}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the row. Raises BadCalendar, and stores nothing, if its hours cannot be read."""
        self.windows()
        super().save(*args, **kwargs)

    def windows(self) -> Windows:
        """Return the open windows of the day. Raises BadCalendar, which names the calendar and the day."""
        try:
            return parse_windows(str(self.hours))
        except BadCalendar as error:
            raise BadCalendar(f"The exception of the calendar {self.calendar!r} on {self.day}: {error}") from None
