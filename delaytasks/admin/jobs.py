"""Jobs in the admin: to look at, and to cancel, run now or retry. Never to edit: a job changes by its moves alone."""

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from .. import topics, words
from ..models import Job, Topic
from ..states import State
from . import filters, operate, shown, timeline
from .changelist import JobChangeList

MAX_ID = 2**63 - 1
Seen = Any  # a Job with what a page adds to it: seen_at and, in the list, error_tail instead of error


def number_of(text: str) -> int | None:
    """The job number that `text` is, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_ID else None


def chosen(request: HttpRequest) -> list[int]:
    """The numbers of the selected jobs; "all that match" is not offered and means these too."""
    numbers = (number_of(text) for text in request.POST.getlist(ACTION_CHECKBOX_NAME))
    return sorted({number for number in numbers if number is not None})


def known_topics(using: str) -> list[str]:
    return sorted({*topics.known(), *Topic.objects.using(using).values_list("name", flat=True)})


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    list_display = ("shown_state", "topic", "linked_key", "due", "attempt", "failures", "last_error")
    list_display_links = ("linked_key",)
    list_filter = (filters.StateFilter, filters.TopicFilter, filters.DueFilter)
    search_fields = ("key",)
    search_help_text = _("The beginning of a key, for example order:1042, or a job's number.")
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they would count jobs, filter by filter
    actions = ("cancel_jobs", "run_jobs_now", "retry_jobs")
    fieldsets: ClassVar = [
        (None, {"fields": ("shown_state", "linked_topic", "key", "due", "time_to_run", "pretty_body")}),
        (_("Attempts"), {"fields": ("attempt", "shown_failures", "reserved", "lease", "worker", "whole_error")}),
        (_("Life"), {"fields": ("id", "scheduled", "ended")}),
    ]
    readonly_fields = (
        "id", "shown_state", "linked_topic", "key", "due", "time_to_run", "pretty_body", "attempt", "shown_failures",
        "reserved", "lease", "worker", "whole_error", "scheduled", "ended",
    )  # fmt: skip

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css"]}

    # Who may do what: look, with Django's permission; change anything, nobody; operate, with operate_job.

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("delaytasks.operate_job")

    # The list.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        return JobChangeList

    def get_sortable_by(self, request: HttpRequest) -> tuple[str, ...]:
        return ("due",) if filters.in_due_order(request) else ()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """The filters and nothing else: any other lookup in the address may read every job."""
        return lookup in {spec.parameter_name for spec in self.list_filter}

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        prefix = search_term.strip()
        if not prefix:
            return queryset, False
        chosen = request.GET.get("topic")
        among = [chosen] if chosen else known_topics(queryset.db)
        found = queryset & Job.objects.using(queryset.db).key_starts(prefix, topics=among)
        number = number_of(prefix)
        return found if number is None else queryset.filter(pk=number) | found, False

    @admin.display(description=_("state"))
    def shown_state(self, job: Seen) -> SafeString:
        return shown.state(job.shown_state(job.seen_at))

    @admin.display(description=_("key"))
    def linked_key(self, job: Job) -> str:
        return job.key

    @admin.display(description=_("due"), ordering="due_at")
    def due(self, job: Seen) -> SafeString | str:
        live = job.ended_at is None
        return shown.moment(job.due_at, job.seen_at if live else None, ms=not hasattr(job, "error_tail"))

    @admin.display(description=_("last error"))
    def last_error(self, job: Seen) -> SafeString | str:
        line = words.one_line(job.error_tail)
        return format_html('<span class="dt-one-line" title="{}">{}</span>', line, line) if line else ""

    # The page of one job.

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Seen:
        job: Seen = super().get_object(request, object_id, from_field)
        if job is not None:
            job.seen_at = shown.seen_at(request, job._state.db)
        return job

    @admin.display(description=_("topic"))
    def linked_topic(self, job: Job) -> SafeString:
        address = reverse("admin:delaytasks_job_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?topic={}">{}</a>', address, job.topic, job.topic)

    @admin.display(description=_("time to run"))
    def time_to_run(self, job: Job) -> str:
        return words.span(job.ttr_ms)

    @admin.display(description=_("body"))
    def pretty_body(self, job: Job) -> SafeString:
        return shown.pretty_json(job.body)

    @admin.display(description=_("failures"))
    def shown_failures(self, job: Job) -> str:
        return _("%(count)d of %(most)d") % {"count": job.failures, "most": topics.max_attempts(job.topic)}

    @admin.display(description=_("reserved"))
    def reserved(self, job: Seen) -> SafeString | str:
        return shown.moment(job.reserved_at, job.seen_at, ms=True)

    @admin.display(description=_("lease until"))
    def lease(self, job: Seen) -> SafeString | str:
        return shown.moment(job.lease_until, job.seen_at, ms=True)

    @admin.display(description=_("last error"))
    def whole_error(self, job: Job) -> SafeString | str:
        return shown.error(job.error)

    @admin.display(description=_("scheduled"))
    def scheduled(self, job: Seen) -> SafeString | str:
        return shown.moment(job.created_at, job.seen_at, ms=True)

    @admin.display(description=_("ended"))
    def ended(self, job: Seen) -> SafeString | str:
        return shown.moment(job.ended_at, job.seen_at, ms=True)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        job: Seen = context["original"]
        context["timeline"], context["timeline_more"] = timeline.of(job, job.seen_at)
        context["buttons"] = self._buttons(job.shown_state(job.seen_at)) if self.has_operate_permission(request) else []
        return super().render_change_form(request, context, *args, **kwargs)

    def _buttons(self, state: State) -> list[tuple[str, Any]]:
        """The actions that can succeed in this state: (name, label)."""
        if state is State.DEAD:
            return [("retry_jobs", _("Retry"))]
        buttons = [("run_jobs_now", _("Run now"))] if state is State.DELAYED else []
        return [*buttons, ("cancel_jobs", _("Cancel"))] if state in (State.DELAYED, State.READY) else []

    # Actions. What was selected is what is acted on, even if it left the filter meanwhile: its answer says so.

    def response_action(self, request: Any, queryset: QuerySet, *args: Any, **kwargs: Any) -> HttpResponse | None:
        ids = chosen(request)
        request.POST = request.POST.copy()
        request.POST.setlist(ACTION_CHECKBOX_NAME, [str(number) for number in ids])
        response = super().response_action(request, Job.objects.filter(pk__in=ids), *args, **kwargs)
        if response is not None and "_job" in request.POST and len(ids) == 1:  # a button of the job's own page
            page = reverse("admin:delaytasks_job_change", args=ids, current_app=self.admin_site.name)
            return HttpResponseRedirect(page)
        return response

    @admin.action(permissions=["operate"], description=_("Cancel"))
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet) -> None:
        operate.operate(request, operate.CANCEL, chosen(request))

    @admin.action(permissions=["operate"], description=_("Run now"))
    def run_jobs_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        operate.operate(request, operate.RUN_NOW, chosen(request))

    @admin.action(permissions=["operate"], description=_("Retry (dead jobs)"))
    def retry_jobs(self, request: HttpRequest, queryset: QuerySet) -> None:
        operate.operate(request, operate.RETRY, chosen(request))
