"""Admin actions on many jobs: on the selected jobs, or on all jobs that match the list's filters.

Up to 100 selected jobs are changed within the request; an intermediate page asks for a missing delay or reason. For
all matching jobs, a confirmation page shows their exact number. Confirming stores their ids as a BulkChange, which
delaytasks.bulk.changes processes, and redirects to the progress page of the change (see changes.py).
"""

from typing import Any
from uuid import uuid4

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ALL_VAR, PAGE_VAR
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ... import admin_log, permissions
from ...admin_log import Action
from ...bulk import changes
from ...db import dialects
from ...db.selection import TOO_MANY
from ...jobs import audit_log
from ...models import BulkChange, Job
from ...querysets import LARGE_COLUMNS
from ...states import State
from .. import display, filters, job_actions
from ..changelist import parse_id
from ..job_actions import CANCEL, POSTPONE, RETRY, RUN_NOW, Operation
from ..log_entries import TranslatedHistoryAdmin
from . import selection
from .forms import BulkForm, ReasonForm, question
from .selection import Matches

AT_ONCE = 100  # most selected jobs to change within the request: one page of the list; more become a BulkChange


def selected_ids(request: HttpRequest) -> list[int]:
    """Return the ids of the selected jobs. Django's "select across" is ignored: the list does not offer it."""
    ids = (parse_id(text) for text in request.POST.getlist(ACTION_CHECKBOX_NAME))
    return sorted({job_id for job_id in ids if job_id is not None})


def may_operate(request: HttpRequest) -> bool:
    """Return whether the user may view and change jobs."""
    return permissions.can_operate(request.user)


class BulkActions(TranslatedHistoryAdmin):
    """Mixin of JobAdmin with the actions on many jobs."""

    actions = ("cancel_jobs", "postpone_jobs", "run_jobs_now", "retry_jobs")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may_operate(request)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.act_on_all)
        return [path("all/", view, name="delaytasks_job_all"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        response = super().changelist_view(request, extra_context)
        cl: Any = (getattr(response, "context_data", None) or {}).get("cl")
        if cl is not None and self.has_operate_permission(request) and selection.is_explicit(request, cl):
            query = cl.get_query_string({PAGE_VAR: None})
            response.context_data["all_url"] = self._url("job_all") + query  # type: ignore[attr-defined]
        return response

    # Actions on selected jobs. They also process a job that no longer matches the list's filters.

    def response_action(self, request: Any, queryset: QuerySet, *args: Any, **kwargs: Any) -> HttpResponse | None:
        ids = selected_ids(request)
        request.POST = request.POST.copy()
        request.POST.setlist(ACTION_CHECKBOX_NAME, [str(job_id) for job_id in ids])
        response = super().response_action(request, self.get_queryset(request).filter(pk__in=ids), *args, **kwargs)
        if isinstance(response, HttpResponseRedirect) and "_job" in request.POST and len(ids) == 1:
            return HttpResponseRedirect(self._url("job_change", *ids))  # return to the job's page, where the button was
        return response

    @admin.action(permissions=["operate"], description=gettext_lazy("Cancel"))
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet) -> HttpResponseBase | None:
        return self._act_on_selected(request, CANCEL)

    @admin.action(permissions=["operate"], description=gettext_lazy("Postpone by…"))
    def postpone_jobs(self, request: HttpRequest, queryset: QuerySet) -> HttpResponseBase | None:
        return self._act_on_selected(request, POSTPONE)

    @admin.action(permissions=["operate"], description=gettext_lazy("Run now"))
    def run_jobs_now(self, request: HttpRequest, queryset: QuerySet) -> HttpResponseBase | None:
        return self._act_on_selected(request, RUN_NOW)

    @admin.action(permissions=["operate"], description=gettext_lazy("Retry (dead jobs)"))
    def retry_jobs(self, request: HttpRequest, queryset: QuerySet) -> HttpResponseBase | None:
        return self._act_on_selected(request, RETRY)

    def _act_on_selected(self, request: HttpRequest, operation: Operation) -> HttpResponseBase | None:
        """Change the selected jobs, or return a page that asks for a missing delay or reason, or for a confirmation."""
        ids = selected_ids(request)
        jobs = permissions.visible_jobs(Job.objects.using(router.db_for_write(Job)), request.user).filter(pk__in=ids)
        matches = selection.from_queryset(jobs.order_by("pk"))
        need_reason = sorted(permissions.topics_requiring_reason(jobs.db) & set(matches.topics))
        form = ReasonForm(request.POST, need_reason=need_reason, operation=operation)
        if not form.is_valid():
            if not any(request.POST.get(name) for name in ("confirmed", "amount", "reason")):
                # The user has not seen the form yet: show it without errors.
                form = ReasonForm(need_reason=need_reason, operation=operation)
            return self._confirm_selected(request, form, ids, matches, jobs)
        if _must_confirm(request, operation, jobs):
            return self._confirm_selected(request, form, ids, matches, jobs)
        if matches.number > AT_ONCE:
            with transaction.atomic(using=jobs.db):
                return self._show_existing(request) or self._start(request, form, matches, {"selected": len(ids)})
        job_actions.operate(request, operation, ids, form.cleaned_data["reason"], form.delay_ms)
        return None

    def _confirm_selected(
        self, request: HttpRequest, form: ReasonForm, ids: list[int], matches: Matches, jobs: QuerySet
    ) -> TemplateResponse:
        all_jobs = list(jobs.order_by("pk").defer(*LARGE_COLUMNS))
        first = all_jobs[: selection.SAMPLE]
        now = display.request_time(request, jobs.db)
        for job in first:
            job.seen_at = now
        back = self._url("job_change", *ids) if "_job" in request.POST and len(ids) == 1 else request.get_full_path()
        context = _form_context(form, len(ids), matches)
        seen = request.POST.getlist("seen") or [f"{job.pk}:{job.due_ms}" for job in all_jobs]
        selected = [str(each) for each in ids]  # a template would format numbers
        context |= {"selected": selected, "seen": seen, "of_one_page": "_job" in request.POST, "back_url": back}
        context |= {"action_name": request.POST.getlist("action")[-1], "title": context["question"]}
        return self._confirmation_page(request, context, first)

    # The change of all matching jobs

    def act_on_all(self, request: HttpRequest) -> HttpResponseBase:
        """Show the number of matching jobs and a form (GET), or store the jobs' ids and start the change (POST)."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        query: Any = request.GET.copy()
        query.pop(PAGE_VAR, None)  # the change is not limited to a page of the list
        request.GET = query
        request._delaytasks_rows = selection.SAMPLE  # type: ignore[attr-defined]  # load a sample instead of a page
        try:
            cl = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(self._list_url(request))  # the list's view shows the error
        if not selection.operations(request) or not selection.is_explicit(request, cl):
            return self._refuse(request, cl)
        if request.method != "POST":
            return self._confirm_or_start(request, cl)
        with transaction.atomic(using=router.db_for_write(Job)):
            return self._show_existing(request) or self._confirm_or_start(request, cl)

    def _confirm_or_start(self, request: HttpRequest, cl: Any) -> HttpResponseBase:
        using = router.db_for_write(Job)
        select = selection.fetch if request.method == "POST" else selection.count
        matches = select(cl, request, using)
        count = matches.number
        if not count:
            return self._refuse(request, cl, matches.refused or "none")
        need_reason = sorted(permissions.topics_requiring_reason(using) & set(matches.topics))
        form = BulkForm(request.POST or None, need_reason=need_reason, operations=selection.operations(request))
        shown = parse_id(request.POST.get("shown", "")) or 0
        has_grown = form.is_bound and count > shown + shown // 10
        has_others = form.is_bound and shown <= selection.SAMPLE and not _listed_ids(request) >= set(matches.ids)
        active = selection.active_filters(cl)
        if not has_grown and not has_others and form.is_valid():
            return self._start(request, form, matches, {"filters": active, "shown": shown})
        if request.method == "POST":  # the confirmation page is shown again, with the number of ended jobs
            matches = matches._replace(ended=selection.count(cl, request, using).ended)
        context = {
            "filters": selection.describe(active, request, self),
            "grown_from": f"{shown:,}" if has_grown or (has_others and count > shown) else None,
            "has_others": has_others,
        }
        first = self._sample(request, cl, using, min(count, selection.SAMPLE))
        return self._confirmation_page(request, _form_context(form, count, matches) | context, first)

    def _sample(self, request: HttpRequest, cl: Any, using: str, number: int) -> list[Any]:
        """Return the first matching jobs, even if the list's first page has fewer because of its row limit."""
        if len(cl.result_list) >= number:
            return list(cl.result_list[: selection.SAMPLE])
        ids = selection.fetch(cl, request, using).ids[: selection.SAMPLE]
        jobs: dict[int, Any] = Job.objects.using(using).defer(*LARGE_COLUMNS).in_bulk(ids)
        for job in jobs.values():
            job.seen_at = display.request_time(request, using)
        return [jobs[job_id] for job_id in ids if job_id in jobs]

    def _refuse(self, request: HttpRequest, cl: Any, refused: str = "ended") -> TemplateResponse:
        """Return the confirmation page without its form. It says why the change is refused and what to do instead."""
        context: dict[str, Any] = {
            "refused": refused if selection.is_explicit(request, cl) else "open",
            "filters": selection.describe(selection.active_filters(cl), request, self),
            "most": f"{changes.MAX_JOBS:,}",
            "everything_url": f"?{urlencode({ALL_VAR: 1})}",
            "narrower": [],
        }
        if refused == TOO_MANY and not {"state", "due"} & set(request.GET):  # suggest filters that leave out ended jobs
            states = ((filters.LIVE_VALUE, _("only live jobs")), ("dead", _("only dead jobs")))
            query = request.GET.dict()
            context["narrower"] = [(f"?{urlencode(query | {'state': state})}", label) for state, label in states]
        return self._confirmation_page(request, context, [])

    def _start(
        self, request: HttpRequest, form: ReasonForm, matches: Matches, request_data: dict[str, Any]
    ) -> HttpResponse:
        user: Any = request.user
        assert form.operation is not None
        reason = form.cleaned_data["reason"]
        using = router.db_for_write(Job)
        audit_log.set_source(audit_log.source_of(request))
        with transaction.atomic(using=using):
            change = changes.start(
                form.operation, matches.ids, by=user.get_username(), user_id=user.pk, using=using,
                reason=reason, delay_ms=form.delay_ms,
                selection=request_data | {"topics": dict(matches.topics.most_common()), "once": _form_id(request)},
            )  # fmt: skip
            admin_log.write(user.pk, [change], Action.BEGUN, reason, flag=admin_log.ADDED)
        return self._to_progress(change)

    def _show_existing(self, request: HttpRequest) -> HttpResponse | None:
        """Redirect to the change that this confirmation page has already started. Return None if there is none."""
        existing = _existing_change(request)
        if existing is None:
            return None
        messages.warning(request, _("Already submitted; showing the existing change."))
        return self._to_progress(existing)

    # The confirmation page

    def _confirmation_page(self, request: HttpRequest, context: dict[str, Any], first: list[Any]) -> TemplateResponse:
        context = {
            "title": _("Change many jobs"),
            "list_url": self._url("job_changelist"),
            "back_url": self._list_url(request),
            "first": [self._row(job) for job in first],
            "zone_notice": display.zone_notice(request) if first else "",
            **context,
        }
        return self._page(request, "job/bulk.html", context)

    def _row(self, job: Any) -> dict[str, Any]:
        return {
            "id": str(job.pk),  # a string: templates would format a number with the site's separators
            "state": display.state(job.shown_state(job.seen_at)),
            "topic": job.topic,
            "key": job.key,
            "url": self._url("job_change", job.pk),
            "due": display.moment(job.due_at, job.seen_at if job.ended_at is None else None),
        }

    def _to_progress(self, change: BulkChange) -> HttpResponse:
        return HttpResponseRedirect(self._url("bulkchange_change", change.pk))

    def _list_url(self, request: HttpRequest) -> str:
        query = request.GET.urlencode()
        return self._url("job_changelist") + (f"?{query}" if query else "")


def _must_confirm(request: HttpRequest, operation: Operation, jobs: QuerySet) -> bool:
    """Return whether Cancel or Run now needs a confirmation, because it would change a job and cannot be undone."""
    if operation not in (CANCEL, RUN_NOW) or request.POST.get("confirmed"):
        return False
    if operation == CANCEL:
        return jobs.filter(state__in=(State.DELAYED, State.DEAD)).exists()
    return jobs.filter(state=State.DELAYED, due_at__gt=dialects.database_now(jobs.db)).exists()


def _form_context(form: ReasonForm, count: int, matches: Matches) -> dict[str, Any]:
    has_choice = isinstance(form, BulkForm)
    return {
        "form": form,
        "count": count,
        "plain_count": str(count),  # a string: templates would format a number with the site's separators
        "shown_count": f"{count:,}",
        "question": question(None if has_choice else form.operation, count),
        "cannot_be_undone": not has_choice and form.operation == CANCEL,
        "operations": [(radio, question(radio.data["value"], count)) for radio in form["what"]] if has_choice else [],
        "topics": [(name, f"{number:,}") for name, number in matches.topics.most_common()],
        "ended": matches.ended,
        "shown_ended": f"{matches.ended:,}",
        "once": uuid4().hex,
    }


def _listed_ids(request: HttpRequest) -> set[int | None]:
    """Return the ids of the jobs that the submitted confirmation page named."""
    return {parse_id(text) for text in request.POST.getlist("listed")}


def _form_id(request: HttpRequest) -> str:
    """Return the random ID of the submitted confirmation page, or "" if it has none."""
    once = request.POST.get("once", "")[:64]
    return once if once.isalnum() else ""


def _existing_change(request: HttpRequest) -> BulkChange | None:
    """Return the change that this confirmation page has already started, or None. A double click submits a page twice.

    Locks the user's row until the transaction ends, so that simultaneous submissions wait for each other.
    """
    using, users = router.db_for_write(BulkChange), get_user_model()
    user: Any = request.user
    if not _form_id(request):
        return None
    if router.db_for_write(users) == using:
        users._base_manager.using(using).select_for_update().filter(pk=user.pk).first()
    existing = BulkChange.objects.using(using).filter(user_id=str(user.pk), selection__once=_form_id(request))
    return existing.only("pk").first()
