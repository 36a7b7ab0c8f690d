"""Translate delaytasks' entries in Django's admin log when they are displayed.

Each stored entry starts with an admin_log.Action; LABELS has the text to show. Django stores its own entries as JSON
and translates them itself.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from .. import admin_log
from ..admin_log import Action
from ..db.retries import retry_conflicts
from ..jobs import audit_log

LABELS = {
    Action.CANCELLED: _("Cancelled."),
    Action.POSTPONED: _("Postponed."),
    Action.MADE_READY: _("Made ready."),
    Action.RETRIED: _("Retried."),
    Action.RESCHEDULED: _("Rescheduled."),
    Action.SCHEDULED: _("Scheduled."),
    Action.REPLACED: _("Replaced."),
    Action.PAUSED: _("Paused."),
    Action.RESUMED: _("Resumed."),
    Action.BEGUN: _("Begun."),
    Action.STOPPED: _("Stopped."),
    Action.WENT_ON: _("Went on."),
    Action.REVOKED: _("Revoked."),
    Action.CREATED: _("Created."),
    Action.CHANGED: _("Changed."),
    Action.DELETED: _("Deleted."),
    Action.RUN_ONCE: _("Run once."),
    Action.BACKFILLED: _("Backfilled."),
}
LABELS_WITH_REASON = {
    Action.CANCELLED: _("Cancelled: %(reason)s"),
    Action.POSTPONED: _("Postponed: %(reason)s"),
    Action.MADE_READY: _("Made ready: %(reason)s"),
    Action.RETRIED: _("Retried: %(reason)s"),
    Action.RESCHEDULED: _("Rescheduled: %(reason)s"),
    Action.SCHEDULED: _("Scheduled: %(reason)s"),
    Action.BEGUN: _("Begun: %(reason)s"),
    Action.PAUSED: _("Paused: %(reason)s"),
    Action.RESUMED: _("Resumed: %(reason)s"),
    Action.CHANGED: _("Changed: %(reason)s"),
    Action.DELETED: _("Deleted: %(reason)s"),
    Action.RUN_ONCE: _("Run once: %(reason)s"),
    Action.BACKFILLED: _("Backfilled: %(reason)s"),
}
# Django stores the untranslated labels of changed fields in its own entries, and translates them on display.
FIELDS = (
    gettext_noop("Paused"), gettext_noop("Concurrency"), gettext_noop("Ask for a reason"), gettext_noop("Visible to"),
    gettext_noop("Hide bodies"), gettext_noop("Keep replaced bodies"), gettext_noop("Target"),
    gettext_noop("Name"), gettext_noop("Active"), gettext_noop("Note"), gettext_noop("Expires"),
    gettext_noop("Revoked"), gettext_noop("Requests per minute"), gettext_noop("Largest request in bytes"),
    gettext_noop("Topic"), gettext_noop("Produce"), gettext_noop("Consume"), gettext_noop("Manage"),
    gettext_noop("Body"), gettext_noop("Time zone"), gettext_noop("Cron"), gettext_noop("Recurrence rule"),
    gettext_noop("Repetitions"), gettext_noop("If clocks skip the time"), gettext_noop("If clocks show the time twice"),
    gettext_noop("Missed runs"), gettext_noop("If a run is still running"),
    gettext_noop("Calendar"), gettext_noop("Day"), gettext_noop("Open hours"),
)  # fmt: skip


def translate(stored: str) -> str:
    """Return the translation of a stored entry. An entry that delaytasks did not write is returned unchanged."""
    action, colon, reason = stored.partition(": ")
    if colon and action in LABELS_WITH_REASON:
        return LABELS_WITH_REASON[Action(action)] % {"reason": reason}
    action = stored.removesuffix(".")
    return str(LABELS[Action(action)]) if stored.endswith(".") and action in LABELS else stored


class TranslatedHistoryAdmin(admin.ModelAdmin):
    """A ModelAdmin whose history page translates delaytasks' log entries, and which writes the audit log as well.

    It also makes further pages of the admin site. All pages read the database to which the router writes, never a
    replica. Saving and deleting is repeated after a conflict with another transaction.
    """

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).using(router.db_for_write(self.model))

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        """Return a page of this admin site. template: its path in admin/delaytasks/."""
        request.current_app = self.admin_site.name
        context = {**self.admin_site.each_context(request), "opts": self.opts, **context}
        return TemplateResponse(request, f"admin/delaytasks/{template}", context)

    def _url(self, name: str, *args: Any) -> str:
        """Return the URL of a page of this admin site, such as _url("job_change", 3)."""
        return reverse(f"admin:delaytasks_{name}", args=args, current_app=self.admin_site.name)

    def audited_state(self, obj: Any) -> dict[str, Any] | None:
        """Return the values of an object that the audit log stores before and after a change."""
        return None

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        obj: Any = super().get_object(request, object_id, from_field)
        if obj is not None:
            obj.audit_before = self.audited_state(obj)
        return obj

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._audit(request, obj, "added", after=self.audited_state(obj))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        action, reason = admin_log.read(message) if isinstance(message, str) else (None, "")
        before, after = getattr(obj, "audit_before", None), self.audited_state(obj)
        self._audit(request, obj, action or "changed", reason, before=before, after=after)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for obj in queryset:
            self._audit(request, obj, "deleted", before=self.audited_state(obj))
        return super().log_deletions(request, queryset)

    def _audit(self, request: HttpRequest, obj: Any, what: str, reason: str = "", **state: Any) -> None:
        user: Any = request.user
        admin_log.write_audit(user.get_username(), [obj], what, reason, source=audit_log.source_of(request), **state)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._retry_conflicts(partial(super().changeform_view, request, *args, **kwargs))

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._retry_conflicts(partial(super().delete_view, request, *args, **kwargs))

    def _retry_conflicts(self, view: Callable[[], HttpResponse]) -> HttpResponse:
        return retry_conflicts(view, router.db_for_write(self.model))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().history_view(request, object_id, extra_context)
        for entry in (getattr(response, "context_data", None) or {}).get("action_list", ()):
            entry.get_change_message = partial(translate, entry.get_change_message())
        return response
