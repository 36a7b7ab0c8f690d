"""Acting on many jobs: on those that were selected, and on all that match the list's filters.

Selected jobs are changed at once; a page asks first where something is missing: by how much, or
a reason. All that match come to a page with their exact number. Whoever confirms it takes the
snapshot that delaytasks.bulk works through, and is led to its progress (see bulkchanges.py).
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
from django.urls import path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import bulk, rights, stafflog
from ..models import BulkChange, Job
from . import filters, matching, operate, shown, wholes
from .bulkforms import BulkForm, WhyForm, question
from .changelist import number_of
from .history import ToldHistory
from .matching import Matched
from .operate import CANCEL, POSTPONE, RETRY, RUN_NOW, Operation

AT_ONCE = 100  # selected jobs, a page of the list, that are changed while the person waits


def chosen(request: HttpRequest) -> list[int]:
    """The numbers of the selected jobs. Django's own "select across" is not offered and means these too."""
    numbers = (number_of(text) for text in request.POST.getlist(ACTION_CHECKBOX_NAME))
    return sorted({number for number in numbers if number is not None})


def may_operate(request: HttpRequest) -> bool:
    """Whether the person may look at jobs and change them."""
    return rights.operates(request.user)


class BulkActions(ToldHistory):
    """What JobAdmin has of it."""

    actions = ("cancel_jobs", "postpone_jobs", "run_jobs_now", "retry_jobs")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may_operate(request)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.act_on_all)
        return [path("all/", view, name="delaytasks_job_all"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        response = super().changelist_view(request, extra_context)
        cl: Any = (getattr(response, "context_data", None) or {}).get("cl")
        if cl is not None and self.has_operate_permission(request) and matching.is_narrowed(request, cl):
            query = cl.get_query_string({PAGE_VAR: None})
            response.context_data["all_url"] = self._url("job_all") + query  # type: ignore[attr-defined]
        return response

    # The selected ones. What was selected is acted on even if it left the filter meanwhile: the answer says so.

    def response_action(self, request: Any, queryset: QuerySet, *args: Any, **kwargs: Any) -> HttpResponse | None:
        ids = chosen(request)
        request.POST = request.POST.copy()
        request.POST.setlist(ACTION_CHECKBOX_NAME, [str(number) for number in ids])
        response = super().response_action(request, self.get_queryset(request).filter(pk__in=ids), *args, **kwargs)
        if isinstance(response, HttpResponseRedirect) and "_job" in request.POST and len(ids) == 1:
            return HttpResponseRedirect(self._url("job_change", *ids))  # a button of the job's own page
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
        """Change the selected jobs at once, or ask first for what is missing."""
        ids = chosen(request)
        jobs = rights.visible(Job.objects.using(router.db_for_write(Job)), request.user).filter(pk__in=ids)
        found = matching.of(jobs.order_by("pk"))
        asks = sorted(rights.asking(jobs.db) & set(found.topics))
        form = WhyForm(request.POST, asks=asks, operation=operation)
        if not form.is_valid():
            if not any(request.POST.get(name) for name in ("confirmed", "amount", "reason")):
                # Nothing was wrong: they could not know what would be asked.
                form = WhyForm(asks=asks, operation=operation)
            return self._ask_selected(request, form, ids, found, jobs)
        if found.number > AT_ONCE:
            return self._start(request, form, found, {"selected": len(ids)})
        operate.operate(request, operation, ids, form.cleaned_data["reason"], form.delay_ms)
        return None

    def _ask_selected(
        self, request: HttpRequest, form: WhyForm, ids: list[int], found: Matched, jobs: QuerySet
    ) -> TemplateResponse:
        every = list(jobs.order_by("pk").defer("body", "error"))
        first = every[: matching.SAMPLE]
        now = shown.seen_at(request, jobs.db)
        for job in first:
            job.seen_at = now
        back = self._url("job_change", *ids) if "_job" in request.POST and len(ids) == 1 else request.get_full_path()
        context = _asking(form, len(ids), found)
        seen = request.POST.getlist("seen") or [f"{job.pk}:{job.due_ms}" for job in every]
        context |= {"selected": ids, "seen": seen, "of_one_page": "_job" in request.POST, "back_url": back}
        context |= {"action_name": request.POST.getlist("action")[-1], "title": context["question"]}
        return self._page(request, context, first)

    # All that match.

    def act_on_all(self, request: HttpRequest) -> HttpResponseBase:
        """GET: how many match, and what shall be done? POST: take the snapshot and begin."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        query: Any = request.GET.copy()
        query.pop(PAGE_VAR, None)  # which page of the list it was does not matter
        request.GET = query
        request._delaytasks_rows = matching.SAMPLE  # type: ignore[attr-defined]  # of the list's hundred on a page
        try:
            cl = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(self._list_url(request))  # it tells why
        if not matching.operations(request) or not matching.is_narrowed(request, cl):
            return self._refuse(request, cl)
        if request.method != "POST":
            return self._ask_or_start(request, cl)
        with transaction.atomic(using=router.db_for_write(Job)):
            before = _begun_before(request)
            if before is None:
                return self._ask_or_start(request, cl)
        messages.warning(request, _("This had been confirmed before: here is that change. It was not begun again."))
        return self._to_progress(before)

    def _ask_or_start(self, request: HttpRequest, cl: Any) -> HttpResponseBase:
        using = router.db_for_write(Job)
        look = matching.taken if request.method == "POST" else matching.counted
        found = look(cl, request, using)  # what the list has on all its pages
        count = found.number
        if not count:
            return self._refuse(request, cl, found.refused or "none")
        asks = sorted(rights.asking(using) & set(found.topics))
        form = BulkForm(request.POST or None, asks=asks, operations=matching.operations(request))
        seen = number_of(request.POST.get("shown", "")) or 0
        grown = form.is_bound and count > seen + max(10, seen // 10)
        choice = matching.chosen_by(cl)
        if not grown and form.is_valid():
            return self._start(request, form, found, {"filters": choice, "shown": seen})
        if request.method == "POST":  # the page again, for which it matters how many have ended
            found = found._replace(ended=matching.counted(cl, request, using).ended)
        context = {"chosen_by": matching.in_words(choice, request, self), "grown_from": f"{seen:,}" if grown else None}
        return self._page(request, _asking(form, count, found) | context, self._sample(request, cl, using))

    def _sample(self, request: HttpRequest, cl: Any, using: str) -> list[Any]:
        """The first of those that match. The list's page may have none yet: it looked at as many as it may."""
        if cl.result_list:
            return list(cl.result_list[: matching.SAMPLE])
        ids = matching.taken(cl, request, using).ids[: matching.SAMPLE]
        jobs: dict[int, Any] = Job.objects.using(using).defer("body", "error").in_bulk(ids)
        for job in jobs.values():
            job.seen_at = shown.seen_at(request, using)
        return [jobs[number] for number in ids if number in jobs]

    def _refuse(self, request: HttpRequest, cl: Any, why: str = "ended") -> TemplateResponse:
        """The page without its form: it says why, and what would help."""
        context: dict[str, Any] = {
            "refused": why if matching.is_narrowed(request, cl) else "open",
            "chosen_by": matching.in_words(matching.chosen_by(cl), request, self),
            "most": f"{bulk.MOST:,}",
            "everything_url": f"?{urlencode({ALL_VAR: 1})}",
            "narrower": [],
        }
        if why == wholes.MANY and not {"state", "due"} & set(request.GET):  # what has ended can be left out
            words = ((filters.LIVE_WORD, _("only live jobs")), ("dead", _("only dead jobs")))
            query = request.GET.dict()
            context["narrower"] = [(f"?{urlencode(query | {'state': word})}", label) for word, label in words]
        return self._page(request, context, [])

    def _start(self, request: HttpRequest, form: WhyForm, found: Matched, wish: dict[str, Any]) -> HttpResponse:
        user: Any = request.user
        assert form.operation is not None
        reason = form.cleaned_data["reason"]
        using = router.db_for_write(Job)
        with transaction.atomic(using=using):
            change = bulk.start(
                form.operation, found.ids, by=user.get_username(), user_id=user.pk, using=using,
                reason=reason, delay_ms=form.delay_ms,
                wish=wish | {"topics": dict(found.topics.most_common()), "once": _once(request)},
            )  # fmt: skip
            stafflog.write(user.pk, [change], "Begun", reason, flag=stafflog.ADDED)
        return self._to_progress(change)

    # The page that asks.

    def _page(self, request: HttpRequest, context: dict[str, Any], first: list[Any]) -> TemplateResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Change many jobs"),
            "list_url": self._url("job_changelist"),
            "back_url": self._list_url(request),
            "first": [self._row(job) for job in first],
            "zone_notice": shown.zone_notice(request) if first else "",
            **context,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/delaytasks/job/bulk.html", context)

    def _row(self, job: Any) -> dict[str, Any]:
        return {
            "state": shown.state(job.shown_state(job.seen_at)),
            "topic": job.topic,
            "key": job.key,
            "url": self._url("job_change", job.pk),
            "due": shown.moment(job.due_at, job.seen_at if job.ended_at is None else None),
        }

    def _to_progress(self, change: BulkChange) -> HttpResponse:
        return HttpResponseRedirect(self._url("bulkchange_change", change.pk))

    def _list_url(self, request: HttpRequest) -> str:
        query = request.GET.urlencode()
        return self._url("job_changelist") + (f"?{query}" if query else "")

    def _url(self, name: str, *args: Any) -> str:
        return reverse(f"admin:delaytasks_{name}", args=args, current_app=self.admin_site.name)


def _asking(form: WhyForm, count: int, found: Matched) -> dict[str, Any]:
    chooses = isinstance(form, BulkForm)
    return {
        "form": form,
        "count": count,
        "plain_count": str(count),  # a number would get separators where the site's format has them
        "shown_count": f"{count:,}",
        "question": question(None if chooses else form.operation, count),
        "whats": [(radio, question(radio.data["value"], count)) for radio in form["what"]] if chooses else [],
        "topics": [(name, f"{number:,}") for name, number in found.topics.most_common()],
        "ended": found.ended,
        "shown_ended": f"{found.ended:,}",
        "once": uuid4().hex,
    }


def _once(request: HttpRequest) -> str:
    """What the page that was confirmed is known by."""
    return request.POST.get("once", "")[:64]


def _begun_before(request: HttpRequest) -> BulkChange | None:
    """The change that this very page began, when its button is pressed twice: nothing is postponed twice by that.

    Holds the person's row until the transaction ends, so that the second of two at the same moment waits.
    """
    using, people = router.db_for_write(BulkChange), get_user_model()
    user: Any = request.user
    if not _once(request):
        return None
    if router.db_for_write(people) == using:
        people._base_manager.using(using).select_for_update().filter(pk=user.pk).first()
    begun = BulkChange.objects.using(using).filter(user_id=str(user.pk), wish__once=_once(request))
    return begun.only("pk").first()
