"""What Django's log says of our own actions, in the reader's language.

It is stored in English, so that it can be read where this app is no longer installed. Django's
own entries are stored as JSON, and Django translates them.
"""

from functools import partial
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

SAID = {
    "Cancelled.": _("Cancelled."),
    "Postponed.": _("Postponed."),
    "Made ready.": _("Made ready."),
    "Retried.": _("Retried."),
    "Rescheduled.": _("Rescheduled."),
    "Scheduled.": _("Scheduled."),
    "Replaced.": _("Replaced."),
    "Paused.": _("Paused."),
    "Resumed.": _("Resumed."),
    "Begun.": _("Begun."),
    "Stopped.": _("Stopped."),
    "Went on.": _("Went on."),
    "Revoked.": _("Revoked."),
}
SAID_WITH_REASON = {
    "Cancelled": _("Cancelled: %(reason)s"),
    "Postponed": _("Postponed: %(reason)s"),
    "Made ready": _("Made ready: %(reason)s"),
    "Retried": _("Retried: %(reason)s"),
    "Rescheduled": _("Rescheduled: %(reason)s"),
    "Begun": _("Begun: %(reason)s"),
    "Paused": _("Paused: %(reason)s"),
    "Resumed": _("Resumed: %(reason)s"),
}
# Django's own entries name the fields that changed by their labels, and look these up when they are read.
LABELS = (
    gettext_noop("Paused"), gettext_noop("Concurrency"), gettext_noop("Ask for a reason"), gettext_noop("Visible to"),
    gettext_noop("Name"), gettext_noop("Active"), gettext_noop("Note"), gettext_noop("Expires"),
    gettext_noop("Revoked"), gettext_noop("Requests per minute"), gettext_noop("Largest request in bytes"),
    gettext_noop("Topic"), gettext_noop("Produce"), gettext_noop("Consume"), gettext_noop("Manage"),
)  # fmt: skip


def in_words(stored: str) -> str:
    """A stored entry as people read it; one that is none of ours as it stands."""
    what, colon, reason = stored.partition(": ")
    if colon and what in SAID_WITH_REASON:
        return SAID_WITH_REASON[what] % {"reason": reason}
    return str(SAID.get(stored, stored))


class ToldHistory(admin.ModelAdmin):
    """An admin whose history page tells our entries in the reader's language."""

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().history_view(request, object_id, extra_context)
        for entry in (getattr(response, "context_data", None) or {}).get("action_list", ()):
            entry.get_change_message = partial(in_words, entry.get_change_message())
        return response
