"""The page that backfills a range of a schedule: it previews the missing runs, and makes them after a confirmation."""

from typing import Any, NamedTuple

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import admin_log
from ...admin_log import Action
from ...db.retries import in_transaction
from ...exceptions import DelaytasksError
from ...models import Schedule
from ...recurrence import schedules
from ..log_entries import TranslatedHistoryAdmin
from .backfill_form import BackfillForm
from .schedule_form import local_text


class Preview(NamedTuple):
    """The result of a backfill that is not confirmed yet. Nothing is stored.

    number        number of runs in the range
    existing      number of runs in the range that ran or are live, and are not made again
    first, last   times of the first and the last run in the range, in the schedule's zone; "" if there are none
    """

    number: int
    existing: int
    first: str
    last: str

    @property
    def missing(self) -> int:
        return self.number - self.existing


class BackfillPage(TranslatedHistoryAdmin):
    """Mixin of ScheduleAdmin with the backfill page, for users who may change schedules."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.backfill_view)
        return [path("<path:object_id>/backfill/", view, name="delaytasks_schedule_backfill"), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        row = kwargs.get("obj")
        if row is not None and self.has_change_permission(request):
            context["backfill_url"] = self._url("schedule_backfill", row.pk)
        return super().render_change_form(request, context, *args, **kwargs)

    def backfill_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form and a preview of the range in the query, if there is one (GET), or make the runs (POST)."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        row: Schedule | None = self.get_object(request, object_id)
        if row is None:
            raise Http404(_("There is no such schedule."))
        confirmed = request.method == "POST"
        data = request.POST if confirmed else request.GET if "first_at" in request.GET else None
        form = BackfillForm(data, row=row, confirmed=confirmed)
        if not form.is_valid() or not confirmed:
            return self._backfill_page(request, row, form)
        try:
            self._backfill(request, row, form)
        except DelaytasksError as error:  # the schedule was changed or deleted after it was read
            self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(self._url("schedule_change", row.pk))

    def _backfill(self, request: HttpRequest, row: Schedule, form: BackfillForm) -> None:
        def make_and_log() -> int:
            made = schedules.backfill(row.name, form.start, form.end, using=form.using)
            if made:
                entry = admin_log.entry_message(Action.BACKFILLED, form.cleaned_data["reason"])
                self.log_change(request, row, entry)
            return made

        made = in_transaction(form.using, make_and_log)
        if not made:
            self.message_user(request, _("Nothing was made: all runs of the range exist already."), messages.WARNING)
            return
        text = ngettext("%(n)s run was made. It is due now.", "%(n)s runs were made. They are due now.", made)
        self.message_user(request, text % {"n": f"{made:,}"}, messages.SUCCESS)

    def _backfill_page(self, request: HttpRequest, row: Schedule, form: BackfillForm) -> TemplateResponse:
        preview = _preview(form)
        missing = 0 if preview is None else preview.missing
        context = {
            "title": _("Backfill %(schedule)s") % {"schedule": row},
            "schedule": row,
            "change_url": self._url("schedule_change", row.pk),
            "form": form,
            "preview": preview,
            "most": f"{schedules.MOST_BACKFILLED:,}",
            "button": ngettext("Make %(n)s run", "Make %(n)s runs", missing) % {"n": f"{missing:,}"},
        }
        return self._page(request, "schedule/backfill.html", context)


def _preview(form: BackfillForm) -> Preview | None:
    """Return the preview of the form's range, or None if the range is not valid."""
    if form.firings is None:
        return None
    if not form.firings:
        return Preview(0, 0, "", "")
    existing = schedules.count_made(form.row, form.firings, using=form.using)
    first, last = form.firings[0].due, form.firings[-1].due
    return Preview(len(form.firings), existing, local_text(first, form.zone), local_text(last, form.zone))
