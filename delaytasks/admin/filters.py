"""Filters of the job list. delaytasks/db/pagination.py finds the page's jobs."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import formatting, permissions
from ..states import ENDED, LIVE, State
from . import display

HOUR, DAY, MS = timedelta(hours=1), timedelta(days=1), timedelta(milliseconds=1)
LIVE_VALUE = "live"
LIVE_CHOICES = {LIVE_VALUE, *(state.word for state in LIVE)}
ENDED_CHOICES = {state.word for state in ENDED}


def in_due_order(request: HttpRequest) -> bool:
    """Return whether the list can be in order of due time: it has only live jobs, and these have an index for it."""
    return request.GET.get("state") in LIVE_CHOICES or bool(request.GET.get("due"))


def due_range(request: HttpRequest, using: str) -> tuple[datetime | None, datetime | None]:
    """Return the due filter's (inclusive start, exclusive end); None: no limit. Raises IncorrectLookupParameters."""
    now = display.request_time(request, using)
    match request.GET.get("due"):
        case None:
            return None, None
        case "overdue":
            return None, now + MS
        case "hour":
            return now + MS, now + HOUR + MS
        case "today":
            local = now.astimezone(display.viewer_zone(request))
            start = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
            return start, start + DAY  # in local time: the day may have 23 or 25 hours
        case "day":
            return now + MS, now + DAY + MS
        case "later":
            return now + DAY + MS, None
    raise IncorrectLookupParameters


class StateFilter(admin.SimpleListFilter):
    """A filter by the shown state: a job stored as "delayed" is shown as delayed or, once it is due, as ready."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [(LIVE_VALUE, _("live (not ended)")), *((state.word, formatting.STATES[state]) for state in State)]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> Any:
        value = self.value()
        if value is None:
            return queryset
        jobs: Any = queryset
        if value == LIVE_VALUE:
            return jobs.live()
        if value not in LIVE_CHOICES | ENDED_CHOICES:
            raise IncorrectLookupParameters
        return jobs.in_state(State[value.upper()], display.request_time(request, queryset.db))


class TopicFilter(admin.SimpleListFilter):
    """A filter by topic. Offers the Topic rows that the user may see: a SELECT DISTINCT would read all jobs."""

    title = _("topic")
    parameter_name = "topic"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(name, name) for name in permissions.topic_rows(request.user, model_admin.get_queryset(request).db)]

    def has_output(self) -> bool:
        """Return whether Django applies this filter; True also for a topic in the URL that lookups() does not offer."""
        return super().has_output() or self.value() is not None

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> Any:
        topic = self.value()
        if topic is None:
            return queryset
        if "\0" in topic:  # psycopg rejects NUL bytes
            raise IncorrectLookupParameters
        return (
            queryset.filter(topic=topic)
            if permissions.can_see_topic(request.user, topic, queryset.db)
            else queryset.none()
        )


class DueFilter(admin.SimpleListFilter):
    """A filter by due time. It matches live jobs only: ended jobs are not due any more."""

    title = _("due")
    parameter_name = "due"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [
            ("overdue", _("overdue")),
            ("hour", _("in the next hour")),
            ("today", _("today")),
            ("day", _("in the next 24 hours")),
            ("later", _("later")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> Any:
        since, until = due_range(request, queryset.db)
        if self.value() is None:
            return queryset
        if request.GET.get("state") in ENDED_CHOICES:
            return queryset.none()
        jobs: Any = queryset
        live = jobs.live()
        if since is not None:
            live = live.filter(due_at__gte=since)
        return live if until is None else live.filter(due_at__lt=until)
