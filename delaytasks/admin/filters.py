"""The changelist's filters, and the index that serves each one.

A page never counts. One that looks for few among many newer ones ("cancelled" where nearly all
finished) reads the primary key backwards until it has its hundred: a sixth of a second among a million.

live, delayed, ready, reserved and every due filter   delaytasks_job_live_due, in due order
finished, cancelled, dead                             the primary key, newest first
topic                                                 delaytasks_job_key, or the order above
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import words
from ..models import Topic
from ..states import ENDED, LIVE, State
from . import shown

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
LIVE_WORD = "live"
LIVE_CHOICES = {LIVE_WORD, *(state.word for state in LIVE)}
ENDED_CHOICES = {state.word for state in ENDED}


def in_due_order(request: HttpRequest) -> bool:
    """Whether the filters leave live jobs alone: only these have an index by due time."""
    return request.GET.get("state") in LIVE_CHOICES or bool(request.GET.get("due"))


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
        state, now = State[value.upper()], shown.seen_at(request, queryset.db)
        found = jobs.in_state(state, now)
        # A reserved job is always past its due time; saying so spares reading the jobs that are not due.
        return found.filter(due_at__lte=now) if state is State.RESERVED else found


class TopicFilter(admin.SimpleListFilter):
    """The topics that have a row of their own: asking the jobs would read them all."""

    title = _("topic")
    parameter_name = "topic"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(name, name) for name in Topic.objects.order_by("name").values_list("name", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> Any:
        return queryset if self.value() is None else queryset.filter(topic=self.value())


class DueFilter(admin.SimpleListFilter):
    """When it is to run next. Live jobs only: what has ended is not due."""

    title = _("due")
    parameter_name = "due"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [
            ("overdue", _("overdue")),
            ("hour", _("in the next hour")),
            ("day", _("in the next 24 hours")),
            ("later", _("later")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> Any:
        value = self.value()
        if value is None:
            return queryset
        if request.GET.get("state") in ENDED_CHOICES:
            return queryset.none()
        now = shown.seen_at(request, queryset.db)
        jobs: Any = queryset
        match value:
            case "overdue":
                return jobs.overdue(now)
            case "hour":
                return jobs.live().filter(due_at__gt=now, due_at__lte=now + HOUR)
            case "day":
                return jobs.live().filter(due_at__gt=now, due_at__lte=now + DAY)
            case "later":
                return jobs.live().filter(due_at__gt=now + DAY)
        raise IncorrectLookupParameters
