"""Bulk changes in the admin: how far each is and what became of its jobs. To read, and to stop; never to edit.

A change is a row that workers write, so its page can be left, reopened and shown to others.
"""

from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from .. import bulk, clock, engine, rights, visits, words
from ..models import BulkChange, Job
from . import matching, operate, shown
from .bulk import may_operate
from .bulkforms import question
from .changelist import number_of
from .history import ToldHistory

Standing = BulkChange.State
QUIET = timedelta(seconds=5)  # a worker that is there has begun by then
LOST = timedelta(seconds=15)  # a piece takes a moment, and the next one follows at once
EVERY_MS = 1_000  # how often its page asks how far it is
LATEST = 1000  # changes that are looked through for somebody who may not see every topic


@admin.register(BulkChange)
class BulkChangeAdmin(ToldHistory):
    list_display = ("what", "standing", "outcome", "by", "reason", "asked")
    list_display_links = ("what",)
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

    # Who may look: those who may begin one, and see every topic that it is about.

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
        using = router.db_for_write(BulkChange)
        found = super().get_queryset(request).using(using).defer("ids", "samples")
        only = rights.visible_topics(request.user, using)
        if only is None:
            return found
        topics = found.order_by("-pk").values_list("pk", "wish__topics")[:LATEST]
        return found.filter(pk__in=[pk for pk, among in topics if _all_in(among, only)])

    def _find(self, request: HttpRequest, object_id: str) -> BulkChange:
        """Raises PermissionDenied and Http404."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = router.db_for_write(BulkChange)
        number: Any = number_of(object_id)
        change = BulkChange.objects.using(using).defer("ids").filter(pk=number).first()
        only = rights.visible_topics(request.user, using)
        if change is None or not (only is None or _all_in(_told(change, "topics"), only)):
            raise Http404(_("There is no such bulk change."))
        return change

    # The list.

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, {"zone_notice": shown.zone_notice(request)} | (extra_context or {}))

    @admin.display(description=gettext_lazy("change"))
    def what(self, change: BulkChange) -> str:
        return question(change.operation, change.total, change.delay_ms)

    @admin.display(description=gettext_lazy("state"))
    def standing(self, change: BulkChange) -> SafeString:
        return shown.labelled(f"bulk-{change.state}", change.get_state_display())

    @admin.display(description=gettext_lazy("outcome"))
    def outcome(self, change: BulkChange) -> str:
        return words.listed(f"{operate.word(word)} {count:,}" for word, count in _ordered(change))

    @admin.display(description=gettext_lazy("asked for"))
    def asked(self, change: BulkChange) -> SafeString | str:
        return shown.moment(change.created_at, _now(change._state.db or "default"))

    # One change.

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
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": question(change.operation, change.total, change.delay_ms),
            "change": change,
            "progress": self._progress(change),
            "can_go_on": bulk.can_go_on(change.pk, using=router.db_for_write(BulkChange)),
            "every_ms": str(EVERY_MS),  # a number would get separators where the site's format has them
            "asked": self.asked(change),
            "chosen_by": matching.in_words(_told(change, "filters"), request, job_admin),
            "topics": [(name, f"{count:,}") for name, count in _told(change, "topics").items()],
            "number_changed": _number_changed(change),
            "zone_notice": shown.zone_notice(request),
            "error": shown.error(change.error) if change.error else "",
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/delaytasks/bulkchange/change_form.html", context)

    def progress_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        """How far it is, as its page shows it: what a script fetches every second."""
        return JsonResponse(self._progress(self._find(request, object_id)))

    def stop_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        change = self._find(request, object_id)
        if bulk.stop(change.pk, using=router.db_for_write(BulkChange)):
            self.log_change(request, change, "Stopped.")
            messages.success(request, _("Stopped. What had been done by then stays done."))
        else:
            messages.warning(request, _("Not stopped: it had ended before."))
        return HttpResponseRedirect(self._url("bulkchange_change", change.pk))

    def go_on_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        change = self._find(request, object_id)
        if bulk.go_on(change.pk, using=router.db_for_write(BulkChange)):
            self.log_change(request, change, "Went on.")
            messages.success(request, _("It goes on where it was."))
        else:
            messages.warning(request, _("It does not go on: it is under way, or nothing of it is left."))
        return HttpResponseRedirect(self._url("bulkchange_change", change.pk))

    def _progress(self, change: BulkChange) -> dict[str, Any]:
        return {
            "state": change.state,
            "under_way": change.state in bulk.UNDER_WAY,
            "position": change.position,
            "total": change.total,
            "done": _("%(done)s of %(total)s jobs") % {"done": f"{change.position:,}", "total": f"{change.total:,}"},
            "says": _says(change, _now(change._state.db or "default")),
            "outcomes": [self._outcome(change, word, count) for word, count in _ordered(change)],
        }

    def _outcome(self, change: BulkChange, word: str, count: int) -> dict[str, Any]:
        named = change.samples.get(word, [])
        rest = count - len(named)
        return {
            "outcome": word,
            "word": operate.word(word),
            "count": f"{count:,}",
            "jobs": [self._named(*each) for each in named],
            "rest": ngettext("and %(n)s more", "and %(n)s more", rest) % {"n": f"{rest:,}"} if rest > 0 else "",
        }

    def _named(self, job_id: int, topic: str, key: str) -> dict[str, str]:
        """A job by its key, and where it is; one that is gone by its number, and nowhere."""
        if not key:
            return {"text": _("job %(number)s") % {"number": job_id}, "title": "", "url": ""}
        return {"text": key, "title": f"{topic} {key}", "url": self._url("job_change", job_id)}

    def _url(self, name: str, *args: Any) -> str:
        return reverse(f"admin:delaytasks_{name}", args=args, current_app=self.admin_site.name)


def _now(using: str) -> datetime:
    """By the database's clock, as all times of a change are."""
    return clock.from_ms(engine.now_ms(using))


def _told(change: BulkChange, name: str) -> dict[str, Any]:
    """What the change was told of itself. One that was not begun here may have been told anything."""
    told = change.wish.get(name) if isinstance(change.wish, dict) else None
    return told if isinstance(told, dict) else {}


def _all_in(topics: Any, visible: list[str]) -> bool:
    """Whether all the topics of a change may be seen. One that does not know its topics is for those who see all."""
    return bool(topics) and isinstance(topics, dict) and set(topics) <= set(visible)


def _ordered(change: BulkChange) -> list[tuple[str, int]]:
    """What was done first, then what was refused, the most frequent first."""
    done = visits.DONE_WORDS[BulkChange.Operation(change.operation)]
    return sorted(change.outcomes.items(), key=lambda each: (each[0] != done, -each[1], each[0]))


def _number_changed(change: BulkChange) -> str:
    before = change.wish.get("shown") if isinstance(change.wish, dict) else None
    if not isinstance(before, int) or before in (0, change.total):
        return ""
    return _(
        "The page before had counted %(before)s jobs. When it was confirmed %(now)s matched, and these are meant."
    ) % {"before": f"{before:,}", "now": f"{change.total:,}"}


def _says(change: BulkChange, now: datetime) -> str:
    """How it stands, in a sentence that is true also when nobody is at work."""
    left = change.total - change.position
    since = change.worked_at or change.created_at
    match change.state:
        case Standing.WAITING if now - since > QUIET:
            return _(
                "Waiting for a worker: for more than %(span)s none has begun. It begins by itself as soon as a Celery "
                "worker has time. This page can be left."
            ) % {"span": _span(now - since)}
        case Standing.WAITING:
            return _("Waiting for a worker.")
        case Standing.RUNNING if now - since > LOST:
            return _(
                "Nobody has gone on with it for more than %(span)s. It goes on by itself as soon as a Celery worker "
                "has time."
            ) % {"span": _span(now - since)}
        case Standing.RUNNING if left and left == len(change.put_off):
            text = ngettext(
                "%(n)s job is left. Somebody else is changing it just now: it is tried until it is free.",
                "%(n)s jobs are left. Somebody else is changing them just now: they are tried until they are free.",
                left,
            )
        case Standing.RUNNING:
            return _("Under way. This page can be left: the change goes on, and is found here again.")
        case Standing.STOPPED:
            text = ngettext("Stopped. %(n)s job was left as it is.", "Stopped. %(n)s jobs were left as they are.", left)
        case Standing.FAILED:
            text = ngettext(
                "It failed. %(n)s job was left as it is.", "It failed. %(n)s jobs were left as they are.", left
            )
        case _:
            text = ngettext("Done. %(n)s job was looked at.", "Done. %(n)s jobs were looked at.", change.total)
            left = change.total
    return text % {"n": f"{left:,}"}


def _span(length: timedelta) -> str:
    """Roughly: a screen reader says it each time that it changes."""
    seconds = length // timedelta(seconds=1)
    return words.span(1000 * (seconds - seconds % (5 if seconds < 10 else 10)))
