"""Jobs in the admin: read-only, apart from actions that move them to another state. No editing or deleting.

scheduling/ has the page on which staff schedule a job.
changelist.py finds a page of the list. bulk/ applies an action to the selected jobs or to all that match.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets
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

from .. import formatting, handlers, permissions
from ..exceptions import ArchiveUnreadable
from ..jobs import history
from ..models import Job, JobEvent
from ..polling.poll import deadline_of
from ..states import MOVES, Outcome, State
from . import display, filters, job_actions, lateness, state_diagram, subjects, timeline
from .bulk.forms import LABELS, UNITS
from .changelist import JobChangeList, LimitedPaginator, parse_id
from .scheduling.page import NewJobPage

DisplayedJob = Any  # a Job with seen_at, late_ms and, on its page, viewer; in the list with error_tail instead of error
logger = logging.getLogger("delaytasks")


class ArchiveUnavailable(Http404):
    """The job is not in the database, and the archive cannot be read."""


POLL_MS = 3_000  # polling interval of a live job's page


def _version(job: DisplayedJob) -> str:
    """Return a version tag that changes whenever the contents of the job's page change."""
    last = JobEvent.objects.using(job._state.db).newest_of(job.pk).values_list("pk", flat=True)
    state = job.shown_state(job.seen_at).word
    again = job.again_due_at.timestamp() if job.again and job.again_due_at else ""
    return f"{state}.{job.attempt}.{job.failures}.{job.due_ms}.{again}.{last.first() or 0}"


def possible_operations(state: State) -> list[job_actions.Operation]:
    """Return the operations that staff can apply to a job in this state.

    They are those in the table of moves, with two exceptions. A running job (RESERVED) allows none, because only code
    may cancel or move it. A READY job cannot be run now, because it is due already.
    """
    if state is State.RESERVED:
        return []
    moves = {(move.after, move.outcome) for move in MOVES if move.before is state}
    if state is State.READY:
        moves.discard((State.READY, Outcome.RESCHEDULED))
    moves_by_operation = {
        job_actions.POSTPONE: (State.DELAYED, Outcome.RESCHEDULED),
        job_actions.RUN_NOW: (State.READY, Outcome.RESCHEDULED),
        job_actions.RETRY: (State.READY, Outcome.RETRIED),
        job_actions.CANCEL: (State.CANCELLED, Outcome.CANCELLED),
    }
    return [operation for operation, move in moves_by_operation.items() if move in moves]


def _topic_rules(job: DisplayedJob) -> permissions.TopicRules:
    """Return the rules of the job's topic. Reads them once, and keeps them on the job."""
    if not hasattr(job, "topic_rules"):
        job.topic_rules = permissions.topic_rules(job._state.db or "default", job.topic)
    rules: permissions.TopicRules = job.topic_rules
    return rules


@admin.register(Job)
class JobAdmin(NewJobPage):
    list_display = ("shown_state", "topic", "linked_key", "due", "late", "attempts", "last_error")
    list_display_links = ("linked_key",)
    list_filter = (filters.StateFilter, filters.TopicFilter, filters.DueFilter)
    search_fields = ("key",)
    search_help_text = _("The beginning of a key, for example order:1042, or a job ID.")
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # facets would count all jobs, once per filter choice
    fieldsets: ClassVar = [
        (None, {"fields": (
            "shown_state", "linked_topic", "key", "linked_subject", "due", "late", "time_to_run", "priority",
            "pretty_body",
        )}),
        (_("Attempts"), {"fields": (
            "attempt", "shown_failures", "reserved", "lease", "next_run", "worker", "full_error",
        )}),
        (_("Lifecycle"), {"fields": ("id", "scheduled", "ended")}),
    ]  # fmt: skip
    readonly_fields = (*flatten_fieldsets(fieldsets), "expires", "polled")

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css", "delaytasks/bulk.css"]}
        js: ClassVar = ["delaytasks/times.js", "delaytasks/cards.js", "delaytasks/job.js"]

    # Viewing needs Django's permission, and permissions.py limits the topics. Nobody may edit. BulkActions decides
    # who may operate on jobs; the same users may schedule jobs.

    def has_view_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return request.user.has_perm("delaytasks.view_job")  # Django would also accept change_job

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return permissions.visible_jobs(super().get_queryset(request), request.user)

    # The list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Return the list. Raises PermissionDenied for an action if the user may not operate on jobs."""
        if request.method == "POST" and not self.has_operate_permission(request):
            raise PermissionDenied
        return super().changelist_view(request, extra_context)

    paginator = LimitedPaginator

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        return JobChangeList

    def get_sortable_by(self, request: HttpRequest) -> tuple[str, ...]:
        if request.GET.get("q", "").strip():
            return ("linked_key",)
        by_key = ("linked_key",) if request.GET.get("topic") is not None else ()
        return ("due", *by_key) if filters.in_due_order(request) else by_key

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Return whether `lookup` is one of the filters. Any other lookup in the URL could read all rows."""
        return lookup in {spec.parameter_name for spec in self.list_filter}

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        if not queryset.ordered:  # called by an autocomplete field of another admin
            queryset = queryset.order_by("topic", "key", "id")
        prefix = search_term.strip()
        if not prefix:
            return queryset, False
        topic = request.GET.get("topic")
        topics = [topic] if topic else permissions.known_topics(request.user, queryset.db)
        by_key = queryset & Job.objects.using(queryset.db).key_starts(prefix, topics=topics)
        job_id = parse_id(prefix)
        return by_key if job_id is None else queryset.filter(pk=job_id) | by_key, False

    @admin.display(description=_("state"))
    def shown_state(self, job: DisplayedJob) -> SafeString:
        return display.state(job.shown_state(job.seen_at))

    @admin.display(description=_("key"), ordering="key")
    def linked_key(self, job: Job) -> str:
        return job.key

    @admin.display(description=_("due"), ordering="due_at")
    def due(self, job: DisplayedJob) -> SafeString | str:
        live = job.ended_at is None
        return display.moment(job.due_at, job.seen_at if live else None, ms=not hasattr(job, "error_tail"))

    @admin.display(description=_("late"))
    def late(self, job: DisplayedJob) -> SafeString | str:
        return display.late(job.late_ms, overdue=job.shown_state(job.seen_at) is State.READY)

    @admin.display(description=_("attempt"))
    def attempts(self, job: Job) -> SafeString | int:
        if not job.failures:
            return job.attempt
        failed = _("%(count)d failed") % {"count": job.failures}
        return format_html('{} <span class="dt-relative">{}</span>', job.attempt, failed)

    @admin.display(description=_("last error"))
    def last_error(self, job: DisplayedJob) -> SafeString | str:
        line = formatting.last_line(formatting.error(job.error_tail))
        return format_html('<span class="dt-one-line" title="{}">{}</span>', line, line) if line else display.EMPTY

    # The page of one job

    def get_fieldsets(self, request: HttpRequest, obj: DisplayedJob | None = None) -> Any:
        """Return the fieldsets. The field `expires` or `polled` is included only if the job expires or polls."""
        timing, attempts, lifecycle = super().get_fieldsets(request, obj)
        if obj is None:
            return [timing, attempts, lifecycle]
        expires = () if handlers.expires_ms(obj.topic, obj.expires_ms) is None else ("expires",)
        polled = () if deadline_of(obj) is None else ("polled",)
        return [
            (timing[0], {"fields": (*timing[1]["fields"][:-1], *expires, "pretty_body")}),
            (attempts[0], {"fields": (*polled, *attempts[1]["fields"])}),
            lifecycle,
        ]

    def get_form(self, request: HttpRequest, obj: Job | None = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form with a help text for staff instead of the model's, which is for programmers."""
        help_texts = {"attempt": _("number of times that it was started")}
        return super().get_form(request, obj, change=change, **{"help_texts": help_texts} | kwargs)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.now_view)
        return [path("<path:object_id>/now/", view, name="delaytasks_job_now"), *super().get_urls()]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> DisplayedJob:
        """Return the job. Raises PermissionDenied, and Http404 if the job is hidden or does not exist."""
        if not self.has_view_permission(request):  # first, so that the response does not reveal whether the job exists
            raise PermissionDenied
        job: DisplayedJob = self._find_job(request, object_id)
        if job is None:
            raise Http404
        job.seen_at, job.viewer = display.request_time(request, job._state.db), request.user
        lateness.annotate([job], job.seen_at)
        return job

    def _find_job(self, request: HttpRequest, object_id: str) -> Job | None:
        """Return the job, or None if it does not exist or is hidden. A job from the archive has archived_events."""
        job_id, jobs = parse_id(object_id), self.get_queryset(request)
        try:
            found = None if job_id is None else history.find(jobs, job_id)
        except ArchiveUnreadable as error:
            logger.error("%s", error)  # the error is not shown to the user: it names files and maybe hidden topics
            raise ArchiveUnavailable from error
        if found is None or not permissions.can_see_topic(request.user, found.job.topic, jobs.db):
            return None
        if found.archived is not None:
            job: DisplayedJob = found.job
            job.archived_events = found.archived
        return found.job

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().change_view(request, object_id, *args, **kwargs)
        except ArchiveUnavailable:
            message = _("Job %(number)s is not in the database, and the archive cannot be read. See the server's log.")
            self.message_user(request, message % {"number": object_id}, messages.ERROR)
            return HttpResponseRedirect(self._url("job_changelist"))

    @admin.display(description=_("topic"))
    def linked_topic(self, job: Job) -> SafeString:
        address = self._url("job_changelist")
        return format_html('<a href="{}?{}">{}</a>', address, urlencode({"topic": job.topic}), job.topic)

    @admin.display(description=_("subject"))
    def linked_subject(self, job: DisplayedJob) -> SafeString | str:
        return subjects.link(job, self.admin_site, job.viewer)

    @admin.display(description=_("time to run"))
    def time_to_run(self, job: Job) -> str:
        return formatting.duration(job.ttr_ms)

    @admin.display(description=_("expires"))
    def expires(self, job: DisplayedJob) -> SafeString | str:
        expires_ms = handlers.expires_ms(job.topic, job.expires_ms)
        moment = None if expires_ms is None else job.due_at + timedelta(milliseconds=expires_ms)
        return display.moment(moment, job.seen_at if job.ended_at is None else None, ms=True)

    @admin.display(description=_("polls"))
    def polled(self, job: DisplayedJob) -> SafeString:
        deadline = display.moment(deadline_of(job), job.seen_at if job.ended_at is None else None, ms=True)
        return format_html('{} <span class="dt-relative">{}</span> {}', job.polls, _("gives up:"), deadline)

    @admin.display(description=_("body"))
    def pretty_body(self, job: DisplayedJob) -> SafeString:
        return display.pretty_json(job.body, hidden=_topic_rules(job).hides_bodies)

    @admin.display(description=_("failures"))
    def shown_failures(self, job: Job) -> str:
        return _("%(count)d of %(most)d") % {"count": job.failures, "most": handlers.max_attempts(job.topic)}

    @admin.display(description=pgettext_lazy("when", "reserved"))
    def reserved(self, job: DisplayedJob) -> SafeString | str:
        return display.moment(job.reserved_at, job.seen_at, ms=True)

    @admin.display(description=_("lease until"))
    def lease(self, job: DisplayedJob) -> SafeString | str:
        return display.moment(job.lease_until, job.seen_at, ms=True)

    @admin.display(description=_("runs again at"))
    def next_run(self, job: DisplayedJob) -> SafeString | str:
        return display.moment(job.again_due_at if job.again else None, job.seen_at, ms=True)

    @admin.display(description=_("last error"))
    def full_error(self, job: Job) -> SafeString | str:
        return display.error(job.error)

    @admin.display(description=pgettext_lazy("when", "scheduled"))
    def scheduled(self, job: DisplayedJob) -> SafeString | str:
        return display.moment(job.created_at, job.seen_at, ms=True)

    @admin.display(description=_("ended"))
    def ended(self, job: DisplayedJob) -> SafeString | str:
        return display.moment(job.ended_at, job.seen_at, ms=True)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        job: DisplayedJob = context["original"]
        context |= self._state_context(request, job) | {"zone_notice": display.zone_notice(request)}
        if job.ended_at is None:  # the page of a live job polls for changes
            context |= {"mark": _version(job), "every_ms": str(POLL_MS)}
        return super().render_change_form(request, context, *args, **kwargs)

    def now_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        """Return the job's state as HTML fragments, or only its version tag if the page is current."""
        job = self.get_object(request, object_id)
        result: dict[str, Any] = {"mark": _version(job), "live": job.ended_at is None}
        if result["mark"] != request.GET.get("mark"):
            request.current_app = self.admin_site.name
            context = self._state_context(request, job) | {"original": job, "opts": self.opts}
            result |= {
                "says": state_diagram.describe(job.shown_state(job.seen_at)),
                "now": render_to_string("admin/delaytasks/job/now.html", context, request),
                "timeline": render_to_string("admin/delaytasks/job/timeline.html", context, request),
                "fields": {
                    name: self._field(name, job) for name in flatten_fieldsets(self.get_fieldsets(request, job))
                },
            }
        return JsonResponse(result)

    def _field(self, name: str, job: DisplayedJob) -> str:
        method: Callable[[DisplayedJob], Any] | None = getattr(self, name, None)
        value = method(job) if method else getattr(job, name)
        return self.get_empty_value_display() if value == "" else conditional_escape(localize(value))

    def _state_context(self, request: HttpRequest, job: DisplayedJob) -> dict[str, Any]:
        state = job.shown_state(job.seen_at)
        entries, more = timeline.build(job, job.seen_at)
        is_archived = hasattr(job, "archived_events")
        context = {
            "timeline": entries, "timeline_more": more, "drawing": state_diagram.draw(state), "archived": is_archived,
        }  # fmt: skip
        can_operate = self.has_operate_permission(request) and not is_archived
        return context | (self._action_context(job, state) if can_operate else {})

    def _action_context(self, job: DisplayedJob, state: State) -> dict[str, Any]:
        """Return the template context of the form for actions. Each button is (action, label)."""
        operations, using = possible_operations(state), job._state.db or "default"
        live = Job.objects.using(using).live().filter(topic=job.topic, key=job.key)
        blocking_job = live.only("pk").first() if state is State.DEAD else None
        if blocking_job is not None:
            operations.remove(job_actions.RETRY)
        return {
            "buttons": [(job_actions.NAMES[each], LABELS[each]) for each in operations if each != job_actions.POSTPONE],
            "postpone": (job_actions.NAMES[job_actions.POSTPONE], LABELS[job_actions.POSTPONE])
            if job_actions.POSTPONE in operations
            else None,
            "blocking_job": blocking_job,
            "units": UNITS,
            "asks_reason": bool(operations) and _topic_rules(job).requires_reason,
        }
