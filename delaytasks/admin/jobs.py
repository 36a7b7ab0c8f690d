"""Jobs in the admin: to look at, and to change by their moves. Never to edit, add or delete.

How a page of the list is found: walks.py. What is done to the selected ones or to all: bulk.py.
"""

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.urls import path
from django.utils.formats import localize
from django.utils.html import conditional_escape, format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .. import rights, stories, topics, words
from ..exceptions import ArchiveUnreadable
from ..models import Job, JobEvent
from ..states import MOVES, Outcome, State
from . import drawing, filters, lateness, operate, shown, timeline
from .bulk import BulkActions
from .bulkforms import LABELS, UNITS
from .changelist import FirstFew, JobChangeList, number_of

Seen = Any  # a Job with what a page adds to it: seen_at and, in the list, error_tail instead of error, and late_ms
ACTIONS = {
    operate.POSTPONE: "postpone_jobs",
    operate.RUN_NOW: "run_jobs_now",
    operate.RETRY: "retry_jobs",
    operate.CANCEL: "cancel_jobs",
}


logger = logging.getLogger("delaytasks")


class Unreadable(Http404):
    """Whether there is such a job only the archive can tell, and it cannot be read."""


EVERY_MS = 3_000  # how often a live job's page asks whether it has changed


def _mark(job: Seen) -> str:
    """Another one whenever the job's page would tell something else."""
    last = JobEvent.objects.using(job._state.db).newest_of(job.pk).values_list("pk", flat=True)
    state = job.shown_state(job.seen_at).word
    return f"{state}.{job.attempt}.{job.failures}.{job.due_ms}.{last.first() or 0}"


def possible(state: State) -> list[operate.Operation]:
    """What people can do to a job in this state, by the table of moves; to make ready what is ready is nothing."""
    moves = {(move.after, move.outcome) for move in MOVES if move.before is state}
    if state is State.READY:
        moves.discard((State.READY, Outcome.RESCHEDULED))
    asked = {
        operate.POSTPONE: (State.DELAYED, Outcome.RESCHEDULED),
        operate.RUN_NOW: (State.READY, Outcome.RESCHEDULED),
        operate.RETRY: (State.READY, Outcome.RETRIED),
        operate.CANCEL: (State.CANCELLED, Outcome.CANCELLED),
    }
    return [operation for operation, move in asked.items() if move in moves]


@admin.register(Job)
class JobAdmin(BulkActions):
    list_display = ("shown_state", "topic", "linked_key", "due", "late", "attempts", "last_error")
    list_display_links = ("linked_key",)
    list_filter = (filters.StateFilter, filters.TopicFilter, filters.DueFilter)
    search_fields = ("key",)
    search_help_text = _("The beginning of a key, for example order:1042, or a job's number.")
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they would count jobs, filter by filter
    fieldsets: ClassVar = [
        (None, {"fields": ("shown_state", "linked_topic", "key", "due", "late", "time_to_run", "pretty_body")}),
        (_("Attempts"), {"fields": ("attempt", "shown_failures", "reserved", "lease", "worker", "whole_error")}),
        (_("Life"), {"fields": ("id", "scheduled", "ended")}),
    ]
    readonly_fields = (
        "id", "shown_state", "linked_topic", "key", "due", "late", "time_to_run", "pretty_body", "attempt",
        "shown_failures", "reserved", "lease", "worker", "whole_error", "scheduled", "ended",
    )  # fmt: skip

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css", "delaytasks/bulk.css"]}
        js: ClassVar = ["delaytasks/times.js", "delaytasks/cards.js", "delaytasks/job.js"]

    # Who may do what: look, with Django's permission and where rights.py lets them; change anything, nobody;
    # operate, as BulkActions says.

    def has_view_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return request.user.has_perm("delaytasks.view_job")  # Django would take the right to change for it, too

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return rights.visible(super().get_queryset(request), request.user)

    # The list.

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The list; whoever sends it an action needs the right to operate. Raises PermissionDenied."""
        if request.method == "POST" and not self.has_operate_permission(request):
            raise PermissionDenied
        return super().changelist_view(request, extra_context)

    paginator = FirstFew

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        return JobChangeList

    def get_sortable_by(self, request: HttpRequest) -> tuple[str, ...]:
        if request.GET.get("q", "").strip():
            return ("linked_key",)
        by_key = ("linked_key",) if request.GET.get("topic") is not None else ()
        return ("due", *by_key) if filters.in_due_order(request) else by_key

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """The filters and nothing else: any other lookup in the address may read every job."""
        return lookup in {spec.parameter_name for spec in self.list_filter}

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        if not queryset.ordered:  # for a field of somebody's form that finds a job while they type
            queryset = queryset.order_by("topic", "key", "id")
        prefix = search_term.strip()
        if not prefix:
            return queryset, False
        chosen = request.GET.get("topic")
        among = [chosen] if chosen else rights.known_topics(request.user, queryset.db)
        found = queryset & Job.objects.using(queryset.db).key_starts(prefix, topics=among)
        number = number_of(prefix)
        return found if number is None else queryset.filter(pk=number) | found, False

    @admin.display(description=_("state"))
    def shown_state(self, job: Seen) -> SafeString:
        return shown.state(job.shown_state(job.seen_at))

    @admin.display(description=_("key"), ordering="key")
    def linked_key(self, job: Job) -> str:
        return job.key

    @admin.display(description=_("due"), ordering="due_at")
    def due(self, job: Seen) -> SafeString | str:
        live = job.ended_at is None
        return shown.moment(job.due_at, job.seen_at if live else None, ms=not hasattr(job, "error_tail"))

    @admin.display(description=_("late"))
    def late(self, job: Seen) -> SafeString | str:
        return shown.late(job.late_ms, overdue=job.shown_state(job.seen_at) is State.READY)

    @admin.display(description=_("attempt"))
    def attempts(self, job: Job) -> SafeString | int:
        if not job.failures:
            return job.attempt
        failed = _("%(count)d failed") % {"count": job.failures}
        return format_html('{} <span class="dt-relative">{}</span>', job.attempt, failed)

    @admin.display(description=_("last error"))
    def last_error(self, job: Seen) -> SafeString | str:
        line = words.one_line(words.error(job.error_tail))
        return format_html('<span class="dt-one-line" title="{}">{}</span>', line, line) if line else ""

    # The page of one job.

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.now_view)
        return [path("<path:object_id>/now/", view, name="delaytasks_job_now"), *super().get_urls()]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Seen:
        """The job, for those who may look. Raises PermissionDenied, and Http404 for one that is hidden or not there."""
        if not self.has_view_permission(request):  # asked first: whether a job is there is not for everybody
            raise PermissionDenied
        job: Seen = self._found(request, object_id)
        if job is None:
            raise Http404
        job.seen_at = shown.seen_at(request, job._state.db)
        lateness.note([job], job.seen_at)
        return job

    def _found(self, request: HttpRequest, object_id: str) -> Job | None:
        """The job where its topic may be seen; with its archived_events if it is the archive that has it."""
        number, jobs = number_of(object_id), self.get_queryset(request)
        try:
            story = None if number is None else stories.find(jobs, number)
        except ArchiveUnreadable as error:
            logger.error("%s", error)  # it names files, and maybe topics that are not for everybody
            raise Unreadable from error
        if story is None or not rights.may_see(request.user, story.job.topic, jobs.db):
            return None
        if story.archived is not None:
            job: Seen = story.job
            job.archived_events = story.archived
        return story.job

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().change_view(request, object_id, *args, **kwargs)
        except Unreadable:
            said = _("Job %(number)s is not in the tables, and the archive cannot be read. The server's log says why.")
            self.message_user(request, said % {"number": object_id}, messages.ERROR)
            return HttpResponseRedirect(self._url("job_changelist"))

    @admin.display(description=_("topic"))
    def linked_topic(self, job: Job) -> SafeString:
        address = self._url("job_changelist")
        return format_html('<a href="{}?{}">{}</a>', address, urlencode({"topic": job.topic}), job.topic)

    @admin.display(description=_("time to run"))
    def time_to_run(self, job: Job) -> str:
        return words.span(job.ttr_ms)

    @admin.display(description=_("body"))
    def pretty_body(self, job: Job) -> SafeString:
        return shown.pretty_json(job.body)

    @admin.display(description=_("failures"))
    def shown_failures(self, job: Job) -> str:
        return _("%(count)d of %(most)d") % {"count": job.failures, "most": topics.max_attempts(job.topic)}

    @admin.display(description=pgettext_lazy("when", "reserved"))
    def reserved(self, job: Seen) -> SafeString | str:
        return shown.moment(job.reserved_at, job.seen_at, ms=True)

    @admin.display(description=_("lease until"))
    def lease(self, job: Seen) -> SafeString | str:
        return shown.moment(job.lease_until, job.seen_at, ms=True)

    @admin.display(description=_("last error"))
    def whole_error(self, job: Job) -> SafeString | str:
        return shown.error(job.error)

    @admin.display(description=pgettext_lazy("when", "scheduled"))
    def scheduled(self, job: Seen) -> SafeString | str:
        return shown.moment(job.created_at, job.seen_at, ms=True)

    @admin.display(description=_("ended"))
    def ended(self, job: Seen) -> SafeString | str:
        return shown.moment(job.ended_at, job.seen_at, ms=True)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        job: Seen = context["original"]
        context |= self._what_is(request, job) | {"zone_notice": shown.zone_notice(request)}
        if job.ended_at is None:  # its page follows it
            context |= {"mark": _mark(job), "every_ms": str(EVERY_MS)}
        return super().render_change_form(request, context, *args, **kwargs)

    def now_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        """What a job's page asks again and again: how the job is now, in HTML, if that is not what the page shows."""
        job = self.get_object(request, object_id)
        found: dict[str, Any] = {"mark": _mark(job), "live": job.ended_at is None}
        if found["mark"] != request.GET.get("mark"):
            request.current_app = self.admin_site.name
            context = self._what_is(request, job) | {"original": job, "opts": self.opts}
            found |= {
                "says": drawing.in_words(job.shown_state(job.seen_at)),
                "now": render_to_string("admin/delaytasks/job/now.html", context, request),
                "timeline": render_to_string("admin/delaytasks/job/timeline.html", context, request),
                "fields": {name: self._field(name, job) for name in self.readonly_fields},
            }
        return JsonResponse(found)

    def _field(self, name: str, job: Seen) -> str:
        tell: Callable[[Seen], Any] | None = getattr(self, name, None)
        return conditional_escape(localize(tell(job) if tell else getattr(job, name)))

    def _what_is(self, request: HttpRequest, job: Seen) -> dict[str, Any]:
        state = job.shown_state(job.seen_at)
        entries, more = timeline.of(job, job.seen_at)
        is_archived = hasattr(job, "archived_events")
        context = {
            "timeline": entries, "timeline_more": more, "drawing": drawing.draw(state), "archived": is_archived,
        }  # fmt: skip
        can_be_done = self.has_operate_permission(request) and not is_archived
        return context | (self._what_can_be_done(job, state) if can_be_done else {})

    def _what_can_be_done(self, job: Job, state: State) -> dict[str, Any]:
        """The buttons, in words and by action; and what else their form asks for."""
        doable, using = possible(state), job._state.db or "default"
        live = Job.objects.using(using).live().filter(topic=job.topic, key=job.key) if state is State.DEAD else None
        in_the_way = live.only("pk").first() if live is not None else None
        if in_the_way is not None:
            doable.remove(operate.RETRY)
        return {
            "buttons": [(ACTIONS[each], LABELS[each]) for each in doable if each != operate.POSTPONE],
            "postpone": (ACTIONS[operate.POSTPONE], LABELS[operate.POSTPONE]) if operate.POSTPONE in doable else None,
            "in_the_way": in_the_way,
            "units": UNITS,
            "asks_reason": bool(doable) and job.topic in rights.asking(using),
        }
