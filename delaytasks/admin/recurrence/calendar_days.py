"""Exceptions to calendars in the admin. Their list is shown below a picture of the year."""

from collections.abc import Callable
from datetime import date
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...calendars import registry
from ...calendars.opening_hours import parse_windows
from ...db import calendar_days
from ...exceptions import BadCalendar
from ...models import CalendarDay
from ..forms import ChangesForm
from ..log_entries import TranslatedHistoryAdmin
from . import calendar_year


class CalendarDayForm(ChangesForm):
    """The form of an exception. It offers the calendars that the code declares as editable, and the stored one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "calendar" in self.fields:  # absent if the page is read-only
            names, field = {*registry.editable(), *filter(None, [self.instance.calendar])}, self.fields["calendar"]
            self.fields["calendar"] = forms.ChoiceField(
                label=field.label, choices=[(name, name) for name in sorted(names)], help_text=field.help_text,
                show_hidden_initial=field.show_hidden_initial,
            )  # fmt: skip

    def clean_hours(self) -> str:
        """Return the hours in their normal form, such as "09:00-12:00,13:00-17:00"."""
        try:
            return ",".join(map(str, parse_windows(self.cleaned_data["hours"])))
        except BadCalendar as error:
            raise ValidationError(
                _(
                    "“%(hours)s” is not valid. Write times that do not overlap, for example "
                    "09:00-12:00,13:00-17:00; leave empty for closed."
                ),
                params={"hours": self.cleaned_data["hours"]},
            ) from error


class CalendarFilter(admin.SimpleListFilter):
    title = _("calendar")
    parameter_name = "calendar"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        days = model_admin.get_queryset(request)
        stored = days.values_list("calendar", flat=True).distinct().order_by("calendar")
        return [(name, name) for name in sorted({*registry.editable(), *stored})]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        calendar = self.value()
        if calendar is not None and "\0" in calendar:  # psycopg rejects NUL bytes
            raise IncorrectLookupParameters
        return queryset if calendar is None else queryset.filter(calendar=calendar)


@admin.register(CalendarDay)
class CalendarDayAdmin(TranslatedHistoryAdmin):
    form = CalendarDayForm
    list_display = ("day", "calendar", "hours", "note")
    list_filter = (CalendarFilter,)
    ordering = ("-day", "calendar")
    search_fields = ("note",)
    list_per_page = 100
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "admin/delaytasks/calendarday/change_list.html"

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css", "delaytasks/calendar.css"]}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list and the picture of the year in ?year=. Django's list handles the other parameters."""
        query = request.GET.copy()
        years = query.pop("year", [])
        request.GET = query  # type: ignore[assignment]
        return super().changelist_view(request, (extra_context or {}) | self._year(request, years))

    def _year(self, request: HttpRequest, years: list[str]) -> dict[str, Any]:
        names = registry.editable()
        name = request.GET.get("calendar") or (names[0] if names else "")
        calendar = registry.find(name)
        if calendar is None:
            return {"calendar_names": names}
        text = years[-1] if years else ""
        shown = int(text) if text.isascii() and text.isdigit() and len(text) == 4 else timezone.localdate().year
        shown = min(max(shown, calendar_year.EARLIEST), calendar_year.LATEST)
        context = {"calendar": calendar, "calendar_names": names, "year": shown, "labels": calendar_year.LABELS,
                   "earlier": self._year_url(name, shown - 1), "later": self._year_url(name, shown + 1)}  # fmt: skip
        months = calendar_year.months_of(calendar, shown, self._url_of(request, name))
        return context | {"months": months, "calendar_error": " ".join(calendar_days.errors_of(name))}

    def _year_url(self, name: str, year: int) -> str:
        return "?" + urlencode({"calendar": name, "year": year})

    def _url_of(self, request: HttpRequest, name: str) -> Callable[[date], str]:
        """Return a function: day -> URL to add or change the exception of that day; "" if none can be added."""
        rows = self.get_queryset(request).filter(calendar=name).values_list("day", "pk")
        stored = dict(rows) if self.has_view_or_change_permission(request) else {}
        may_add = name in registry.editable() and self.has_add_permission(request)
        add_url = self._url("calendarday_add")

        def url_of(day: date) -> str:
            if day in stored:
                return self._url("calendarday_change", stored[day])
            return f"{add_url}?{urlencode({'calendar': name, 'day': day.isoformat()})}" if may_add else ""

        return url_of
