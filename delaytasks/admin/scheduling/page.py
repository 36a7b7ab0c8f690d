"""The page on which staff schedule a job."""

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import router
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ... import admin_log, formatting, handlers, permissions
from ...admin_log import Action
from ...db import transitions
from ...db.retries import in_transaction
from ...exceptions import BadInput, KeyIsLive
from ...jobs import audit_log, schedule, storage
from ...models import Job
from .. import display
from ..bulk.actions import BulkActions
from ..topic_columns import docstring
from .form import NewJobForm

FIELDSETS: list[tuple[Any, dict[str, Any]]] = [
    (None, {"fields": ("topic", "key")}),
    (gettext_lazy("When"), {"fields": (("amount", "unit"), "due_at")}),
    (gettext_lazy("What"), {"fields": ("body", "priority", "ttr")}),
    (None, {"fields": ("reason",)}),
]


class NewJobPage(BulkActions):
    """Mixin of JobAdmin with the page for a new job. For users who may change jobs, in the topics that they see."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_operate_permission(request)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show the form (GET), or schedule the job and go to its page (POST). Times are in the zone of the viewer."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        using = router.db_for_write(Job)
        topics = permissions.known_topics(request.user, using)
        need_reason = permissions.topics_requiring_reason(using, topics)
        data = request.POST if request.method == "POST" else None
        initial = {"topic": _filtered_topic(request)}
        with timezone.override(display.viewer_zone(request)):
            form = NewJobForm(data, initial=initial, topics=topics, need_reason=need_reason)
            job = self._schedule(request, form, using) if form.is_valid() else None
            if job is None:
                return self._new_job_page(request, form).render()
            text = _("Job %(key)s is scheduled, due at %(time)s")
            due = formatting.absolute(job.due_at)
        self.message_user(request, text % {"key": job.key, "time": due}, messages.SUCCESS)
        return HttpResponseRedirect(self._url("job_change", job.pk))

    def _schedule(self, request: HttpRequest, form: NewJobForm, using: str) -> Job | None:
        """Return the scheduled job. If it is refused, add the error to the form and return None."""
        user: Any = request.user
        reason = form.cleaned_data["reason"]
        audit_log.set_source(audit_log.source_of(request))

        def schedule_and_log() -> Job:
            with storage.scheduled_because(reason):
                job = schedule.schedule(**form.terms, using=using, by=user.get_username())
                admin_log.write(user.pk, [job], Action.SCHEDULED, reason, flag=admin_log.ADDED)
                return job

        try:
            return in_transaction(using, schedule_and_log)
        except KeyIsLive:
            form.add_error("key", self._key_is_live(using, form))
        except BadInput as error:  # such as a topic whose row was deleted meanwhile
            form.add_error(None, str(error))
        return None

    def _key_is_live(self, using: str, form: NewJobForm) -> ValidationError:
        pair = form.terms["topic"], form.terms["key"]
        live = transitions.find_live(using, [pair]).get(pair)
        if live is None:
            return ValidationError(_("This key was live a moment ago. Try again."))
        name = _("job %(number)s") % {"number": live.id}
        link = format_html('<a href="{}">{}</a>', self._url("job_change", live.id), name)
        text = _("This key is live already: {job}. Change that job, or use another key.")
        return ValidationError(format_html(text, job=link))

    def _new_job_page(self, request: HttpRequest, form: NewJobForm) -> TemplateResponse:
        context = {
            "title": _("Schedule a job"),
            "form": form,
            "adminform": AdminForm(form, FIELDSETS, {}, model_admin=self),  # type: ignore[arg-type]  # no ModelForm
            "facts": _facts(form.topics, form.need_reason),
            "list_url": self._url("job_changelist"),
            "zone_notice": display.zone_notice(request),
        }
        return self._page(request, "job/add.html", context)


def _filtered_topic(request: HttpRequest) -> str:
    """Return the topic in the URL, or in the list's filters, which Django's "add" link passes on."""
    filters = QueryDict(request.GET.get("_changelist_filters", ""))
    return str(request.GET.get("topic") or filters.get("topic", ""))


def _facts(topics: Iterable[str], need_reason: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what the page shows when a topic is chosen: its docstring, its TTR and whether it requires a reason."""
    required = set(need_reason)
    return {
        topic: {
            "text": docstring(topic).partition("\n")[0],
            "ttr": formatting.duration(handlers.ttr_ms(topic)),
            "reason": _("This topic requires a reason.") if topic in required else "",
        }
        for topic in topics
    }
