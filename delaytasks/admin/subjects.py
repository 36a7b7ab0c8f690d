"""Jobs and their subjects in the admin: the jobs on the subject's page, and the link from a job to its subject."""

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db import router
from django.forms import Media
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import permissions
from ..exceptions import BadInput
from ..jobs.subjects import jobs_of
from ..models import Job
from ..querysets import find_subject
from . import display
from .bulk.forms import LABELS
from .job_actions import CANCEL, NAMES, RETRY, RUN_NOW

MAX_JOBS = 50  # jobs shown on a subject's page, live ones first


class TimeoutsMixin:
    """A mixin for the ModelAdmin of a model that has jobs: the page of an instance shows its jobs, with actions.

        @admin.register(Order)
        class OrderAdmin(TimeoutsMixin, ModelAdmin): ...

    Live jobs come first, then ended ones, newest first, at most 50 in all. Users see the jobs that they may see in the
    list of jobs, and change them with the same permission. An admin site without that list shows no jobs. If the
    ModelAdmin sets change_form_template, include admin/delaytasks/subject/timeouts.html in that template.
    """

    change_form_template: Any = "admin/delaytasks/subject/change_form.html"
    admin_site: AdminSite

    @property
    def media(self) -> Media:
        """The media of the ModelAdmin, and those of the jobs' table."""
        ours = Media(css={"all": ["delaytasks/admin.css"]}, js=["delaytasks/times.js"])
        return super().media + ours  # type: ignore[misc]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        subject = context.get("original")
        if subject is not None and self.admin_site.is_registered(Job) and permissions.can_view(request.user):
            context |= _context(request, subject)
        return super().render_change_form(request, context, *args, **kwargs)  # type: ignore[misc]


def _context(request: HttpRequest, subject: Any) -> dict[str, Any]:
    """Return the template context with the subject's jobs. It is empty if the model cannot have jobs."""
    using = router.db_for_write(Job)
    now = display.request_time(request, using)
    try:
        jobs: Any = permissions.visible_jobs(jobs_of(subject), request.user)
    except BadInput:  # the model has a composite primary key, and so no jobs
        return {}
    limit = MAX_JOBS + 1  # one more than are shown: the page says whether there are more
    live = list(jobs.live().order_by("due_at", "id")[:limit])
    found = [*live, *jobs.filter(ended_at__isnull=False)[: limit - len(live)]]
    operations = (CANCEL, RUN_NOW, RETRY) if permissions.can_operate(request.user) else ()
    return {
        "timeouts": [_row(job, now) for job in found[:MAX_JOBS]],
        "timeouts_more": len(found) > MAX_JOBS,
        "timeouts_actions": [(NAMES[each], LABELS[each]) for each in operations],
        "timeouts_zone": display.zone_notice(request),
    }


def _row(job: Job, now: Any) -> dict[str, Any]:
    at = job.ended_at or job.due_at
    return {
        "id": str(job.pk),  # a template would format a number
        "topic": job.topic,
        "key": job.key,
        "seen": f"{job.pk}:{job.due_ms}",
        "state": display.state(job.shown_state(now)),
        "at": display.moment(at, now),
        "attempt": job.attempt,
    }


def link(job: Job, site: AdminSite, user: Any) -> SafeString | str:
    """Return the HTML of a job's subject: a link to its page in the admin if the user may view it there."""
    if job.subject_label is None:
        return display.EMPTY
    subject = find_subject(job._state.db or "default", job.subject_label, job.subject_pk)
    if subject is None:
        return _("%(model)s %(number)s, which no longer exists") % {
            "model": job.subject_label, "number": job.subject_pk,
        }  # fmt: skip
    address = _address(subject, site, user)
    if address is None:  # without permission not even its name is shown
        return f"{job.subject_label} {job.subject_pk}"
    return format_html('<a href="{}">{}</a>', address, subject)


def _address(subject: Any, site: AdminSite, user: Any) -> str | None:
    meta = subject._meta
    if type(subject) not in site._registry or not _may_view(user, meta):
        return None
    try:
        name = f"admin:{meta.app_label}_{meta.model_name}_change"
        return reverse(name, args=[quote(subject.pk)], current_app=site.name)
    except NoReverseMatch:
        return None


def _may_view(user: Any, meta: Any) -> bool:
    return any(user.has_perm(f"{meta.app_label}.{verb}_{meta.model_name}") for verb in ("view", "change"))
