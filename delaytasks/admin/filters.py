"""The changelist's filters. How a page of what they leave is found among millions of jobs is told in walks.py."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import rights, words
from ..states import ENDED, LIVE, State
from . import shown
from .walks import LIVE as LIVE_WORD

HOUR, DAY, MS = timedelta(hours=1), timedelta(days=1), timedelta(milliseconds=1)
LIVE_CHOICES = {LIVE_WORD, *(state.word for state in LIVE)}
ENDED_CHOICES = {state.word for state in ENDED}


class Window(NamedTuple):
    """Due after the first and not after the second; None: no bound. Due times are whole milliseconds."""

    after: datetime | None = None
    until: datetime | None = None


def in_due_order(request: HttpRequest) -> bool:
    """Whether the filters leave live jobs alone: only these have an index by due time."""
    return request.GET.get("state") in LIVE_CHOICES or bool(request.GET.get("due"))


def window(request: HttpRequest, using: str) -> Window | None:
    """The due times that the due filter leaves; None without one. Raises IncorrectLookupParameters."""
    now = shown.seen_at(request, using)
    match request.GET.get("due"):
        case None:
            return None
        case "overdue":
            return Window(until=now)
        case "hour":
            return Window(now, now + HOUR)
        case "today":
            start = now.astimezone(shown.viewer_zone(request)).replace(hour=0, minute=0, second=0, microsecond=0)
            return Window(start - MS, start + DAY - MS)  # by the wall clock: a day may have 23 or 25 hours
        case "day":
            return Window(now, now + DAY)
        case "later":
            return Window(after=now + DAY)
    raise IncorrectLookupParameters


class StateFilter(admin.SimpleListFilter):
    """The state as people see it: delayed and ready are told apart by the due time."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [(LIVE_WORD, _("live (not ended)")), *((state.word, words.STATES[state]) for state in State)]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> Any:
        value = self.value()
        if value is None:
            return queryset
        jobs: Any = queryset
        if value == LIVE_WORD:
            return jobs.live()
        if value not in LIVE_CHOICES | ENDED_CHOICES:
            raise IncorrectLookupParameters
        return jobs.in_state(State[value.upper()], shown.seen_at(request, queryset.db))


class TopicFilter(admin.SimpleListFilter):
    """The topics that have a row of their own and that the person may see: asking the jobs would read them all."""

    title = _("topic")
    parameter_name = "topic"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(name, name) for name in rights.topic_rows(request.user, model_admin.get_queryset(request).db)]

    def has_output(self) -> bool:
        """Whether Django asks this filter at all: also about a topic that the person has no choice of."""
        return super().has_output() or self.value() is not None

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> Any:
        topic = self.value()
        if topic is None:
            return queryset
        if "\0" in topic:  # nothing that PostgreSQL can be asked about
            raise IncorrectLookupParameters
        return queryset.filter(topic=topic) if rights.may_see(request.user, topic, queryset.db) else queryset.none()


class DueFilter(admin.SimpleListFilter):
    """When it is to run next. Live jobs only: what has ended is not due."""

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
        wanted = window(request, queryset.db)
        if wanted is None:
            return queryset
        if request.GET.get("state") in ENDED_CHOICES:
            return queryset.none()
        jobs: Any = queryset
        found = jobs.live()
        if wanted.after is not None:
            found = found.filter(due_at__gt=wanted.after)
        return found if wanted.until is None else found.filter(due_at__lte=wanted.until)
