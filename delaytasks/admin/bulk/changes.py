"""Bulk changes in the admin: their progress and results. They can be stopped and continued, but not edited.

Workers write the progress to the change's row, so its page can be left, reopened and shared.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import path
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from ... import admin_log, databases, formatting, permissions
from ...admin_log import Action
from ...bulk import changes
from ...models import BulkChange, Job
from ...outcomes import DONE, counts_by_code, samples_by_code
from .. import display
from ..changelist import parse_id
from ..log_entries import TranslatedHistoryAdmin
from . import selection
from .actions import may_operate
from .forms import question

State = BulkChange.State
QUIET = timedelta(seconds=5)  # after this wait, the page says that no worker is free; an idle one starts sooner
LOST = timedelta(seconds=15)  # after this time without progress, the page says so; a batch takes only a moment
POLL_MS = 1_000  # polling interval of the progress page
MAX_FILTERED = 1000  # users who may not see every topic can find only the newest changes, up to this number


@admin.register(BulkChange)
class BulkChangeAdmin(TranslatedHistoryAdmin):
    list_display = ("summary", "state_label", "outcome", "by", "reason", "requested")
    list_display_links = ("summary",)
    list_filter = ("state", "operation")
    ordering = ("-id",)
    sortable_by = ()
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = None

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css", "delaytasks/bulk.css"]}
        js: ClassVar = ["delaytasks/times.js", "delaytasks/cards.js"]

    # Viewing a change needs the permission to operate on jobs, and to see all topics of the change.

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: BulkChange | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: BulkChange | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: BulkChange | None = None) -> bool:
        return may_operate(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_operate(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        queryset = super().get_queryset(request).defer("ids", "samples")
        visible = permissions.visible_topics(request.user, queryset.db)
        if visible is None:
            return queryset
        topics = queryset.order_by("-pk").values_list("pk", "selection__topics")[:MAX_FILTERED]
        return queryset.filter(pk__in=[pk for pk, names in topics if _are_visible(names, visible)])

    def _find(self, request: HttpRequest, object_id: str) -> BulkChange:
        """Return a change. Raises PermissionDenied, and Http404 if the change is hidden or does not exist."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = router.db_for_write(BulkChange)
        change_id: Any = parse_id(object_id)
        change = BulkChange.objects.using(using).defer("ids").filter(pk=change_id).first()
        visible = permissions.visible_topics(request.user, using)
        if change is None or not (visible is None or _are_visible(_request_data(change, "topics"), visible)):
            raise Http404(_("There is no such bulk change."))
        return change

    # The list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, {"zone_notice": display.zone_notice(request)} | (extra_context or {}))

    @admin.display(description=gettext_lazy("change"))
    def summary(self, change: BulkChange) -> str:
        return question(change.operation, change.total, change.delay_ms)

    @admin.display(description=gettext_lazy("state"))
    def state_label(self, change: BulkChange) -> SafeString:
        return display.labelled(f"bulk-{change.state}", change.get_state_display())

    @admin.display(description=gettext_lazy("outcome"))
    def outcome(self, change: BulkChange) -> str:
        return formatting.join(f"{formatting.result(code)} {count:,}" for code, count in _result_counts(change))

    @admin.display(description=gettext_lazy("requested"))
    def requested(self, change: BulkChange) -> SafeString | str:
        return display.moment(change.created_at, databases.now(change._state.db or "default"))

    # One change

    def get_urls(self) -> list[Any]:
        wrap, name = self.admin_site.admin_view, "delaytasks_bulkchange"
        return [
            path("<str:object_id>/progress/", wrap(self.progress_view), name=f"{name}_progress"),
            path("<str:object_id>/stop/", wrap(require_POST(self.stop_view)), name=f"{name}_stop"),
            path("<str:object_id>/go-on/", wrap(require_POST(self.go_on_view)), name=f"{name}_go_on"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        change = self._find(request, object_id)
        job_admin = self.admin_site.get_model_admin(Job)
        context = {
            "title": question(change.operation, change.total, change.delay_ms),
            "change": change,
            "progress": self._progress(change),
            "can_go_on": changes.can_resume(change.pk, using=router.db_for_write(BulkChange)),
            "every_ms": str(POLL_MS),  # a string: templates would format a number with the site's separators
            "requested": self.requested(change),
            "filters": selection.describe(_request_data(change, "filters"), request, job_admin),
            "topics": [(name, f"{count:,}") for name, count in _request_data(change, "topics").items()],
            "count_note": _count_note(change),
            "zone_notice": display.zone_notice(request),
            "error": display.error(change.error) if change.error else "",
            **(extra_context or {}),
        }
        return self._page(request, "bulkchange/change_form.html", context)

    def progress_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        """Return the progress as JSON. The script of the change's page polls this view."""
        return JsonResponse(self._progress(self._find(request, object_id)))

    def stop_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        done = _("Stopped. Jobs that were already changed stay changed.")
        refused = _("Not stopped: the change had already ended.")
        return self._change_and_log(request, object_id, changes.stop, Action.STOPPED, done, refused)

    def go_on_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        done = _("The change continues where it stopped.")
        refused = _("Not continued: the change is in progress or has no jobs left.")
        return self._change_and_log(request, object_id, changes.resume, Action.WENT_ON, done, refused)

    def _change_and_log(
        self, request: HttpRequest, object_id: str, act: Callable[..., bool], what: Action, done: str, refused: str
    ) -> HttpResponse:
        change, using = self._find(request, object_id), router.db_for_write(BulkChange)
        with transaction.atomic(using=using):
            is_changed = act(change.pk, using=using)
            if is_changed:
                self.log_change(request, change, admin_log.entry_message(what))
        level, text = (messages.SUCCESS, done) if is_changed else (messages.WARNING, refused)
        messages.add_message(request, level, text)
        return HttpResponseRedirect(self._url("bulkchange_change", change.pk))

    def _progress(self, change: BulkChange) -> dict[str, Any]:
        samples = samples_by_code(change.samples)
        return {
            "state": change.state,
            "under_way": change.state in changes.UNDER_WAY,
            "position": change.position,
            "total": change.total,
            "done": _("%(done)s of %(total)s jobs") % {"done": f"{change.position:,}", "total": f"{change.total:,}"},
            "says": _status_text(change, databases.now(change._state.db or "default")),
            "outcomes": [self._outcome(code, count, samples.get(code, [])) for code, count in _result_counts(change)],
        }

    def _outcome(self, code: str, count: int, named: list[Any]) -> dict[str, Any]:
        rest = count - len(named)
        return {
            "outcome": code,
            "word": formatting.result(code),
            "count": f"{count:,}",
            "jobs": [self._named(*each) for each in named],
            "rest": ngettext("and %(n)s more", "and %(n)s more", rest) % {"n": f"{rest:,}"} if rest > 0 else "",
        }

    def _named(self, job_id: int, topic: str, key: str) -> dict[str, str]:
        """Return the name and URL of a job. A job that no longer exists has its ID as name and no URL."""
        if not key:
            return {"text": _("job %(number)s") % {"number": job_id}, "title": "", "url": ""}
        return {"text": key, "title": f"{topic} {key}", "url": self._url("job_change", job_id)}


def _request_data(change: BulkChange, name: str) -> dict[str, Any]:
    """Return the dict with this name in BulkChange.selection, or {} if there is none.

    A change that was not started in the admin may have anything in its selection.
    """
    data = change.selection.get(name) if isinstance(change.selection, dict) else None
    return data if isinstance(data, dict) else {}


def _are_visible(topics: Any, visible: list[str]) -> bool:
    """Return whether all topics of a change are visible; False if its topics are unknown."""
    return bool(topics) and isinstance(topics, dict) and set(topics) <= set(visible)


def _result_counts(change: BulkChange) -> list[tuple[str, int]]:
    """Return (result, number of jobs) for each result: success first, then refusals, the most frequent first."""
    done = DONE[change.operation]
    return sorted(counts_by_code(change.outcomes).items(), key=lambda each: (each[0] != done, -each[1], each[0]))


def _count_note(change: BulkChange) -> str:
    """Return a note if the number of matching jobs changed between confirmation page and submission, or ""."""
    shown = change.selection.get("shown") if isinstance(change.selection, dict) else None
    if not isinstance(shown, int) or shown in (0, change.total):
        return ""
    return _(
        "The confirmation page showed %(before)s jobs. The change applies to the %(now)s that matched on submission."
    ) % {"before": f"{shown:,}", "now": f"{change.total:,}"}


def _status_text(change: BulkChange, now: datetime) -> str:
    """Return the status as text. The text says if no worker has started or continued the change for a while."""
    left = change.total - change.position
    since = change.worked_at or change.created_at
    match change.state:
        case State.WAITING if now - since > QUIET:
            return _(
                "Waiting for a worker for more than %(span)s. The change starts automatically when a Celery worker is "
                "free. You can leave this page."
            ) % {"span": _span(now - since)}
        case State.WAITING:
            return _("Waiting for a worker.")
        case State.RUNNING if now - since > LOST:
            return _(
                "No progress for more than %(span)s. The change continues automatically when a Celery worker is free."
            ) % {"span": _span(now - since)}
        case State.RUNNING if left and left == len(change.put_off):
            text = ngettext(
                "%(n)s job is left. Another transaction has locked it; the change retries until it is free.",
                "%(n)s jobs are left. Other transactions have locked them; the change retries until they are free.",
                left,
            )
        case State.RUNNING:
            return _("In progress. You can leave this page; the change continues, and you can return to it here.")
        case State.STOPPED:
            text = ngettext("Stopped. %(n)s job was not processed.", "Stopped. %(n)s jobs were not processed.", left)
        case State.FAILED:
            text = ngettext("Failed. %(n)s job was not processed.", "Failed. %(n)s jobs were not processed.", left)
        case _:
            text = ngettext("Done. %(n)s job was processed.", "Done. %(n)s jobs were processed.", change.total)
            left = change.total
    return text % {"n": f"{left:,}"}


def _span(length: timedelta) -> str:
    """Return a duration as text, rounded so that it changes rarely: a screen reader announces each change."""
    seconds = length // timedelta(seconds=1)
    return formatting.duration(1000 * (seconds - seconds % (5 if seconds < 10 else 10)))
