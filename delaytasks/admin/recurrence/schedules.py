"""Schedules in the admin: define them, see the next ten runs, pause, resume, run once now, backfill."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.models import DELETION
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext

from ... import admin_log, databases, formatting, permissions, topics
from ...admin_log import Action
from ...db.retries import in_transaction
from ...exceptions import DelaytasksError
from ...jobs import audit_log
from ...management.subcommands.schedules import times_text
from ...models import Schedule
from ...recurrence import schedules
from ...recurrence.definition import state_of
from .. import display
from ..changelist import parse_id
from ..forms import PauseForm, posted_reason
from .backfill import BackfillPage
from .schedule_form import POLICIES, TIMES, ScheduleForm, next_lines, preview_lines


class ScheduleActionForm(PauseForm):
    """The action form of the list. It has the time of its page, because a double click submits a page twice."""

    page_ms = forms.IntegerField(
        label="", required=False, widget=forms.HiddenInput, initial=lambda: databases.now_ms(databases.alias())
    )


@admin.register(Schedule)
class ScheduleAdmin(BackfillPage):
    form = ScheduleForm
    list_display = ("name", "topic", "series_key", "times", "tz", "state", "next_run", "source")
    list_filter = ("paused", "source")
    search_fields = ("name", "topic", "series_key")
    ordering = ("name",)
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER
    actions = ("pause", "resume", "run_now", "delete_selected")
    action_form = ScheduleActionForm
    readonly_fields = ("state", "next_runs", "source")

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css"]}
        js = ("delaytasks/schedule.js",)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.preview_view)
        return [path("preview/", view, name="delaytasks_schedule_preview"), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> JsonResponse:
        """Return the next ten runs for the form's values in the query string, as JSON."""
        if not (self.has_view_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        return JsonResponse({"lines": preview_lines(request.GET)})

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the schedule. To save a form, lock its name first: then nobody else changes it until the commit."""
        row = super().get_object(request, object_id, from_field)
        if row is None or request.method != "POST":
            return row
        schedules.lock_name(databases.alias(), row.name)
        return super().get_object(request, object_id, from_field)

    # Permissions

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        queryset = super().get_queryset(request)
        limit = permissions.visible_topics(request.user, queryset.db)
        return queryset if limit is None else queryset.filter(topic__in=limit)

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        """Return False for schedules that staff did not define: those of the code, and series of schedule() calls."""
        return super().has_change_permission(request, obj) and (obj is None or obj.source == Schedule.Source.STAFF)

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or obj.source != Schedule.Source.CODE)

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> tuple[str, ...]:
        return self.readonly_fields if obj is None else ("name", *self.readonly_fields)

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": ("name", "topic", "times", "tz", "missed", "running", *self.readonly_fields)})]
        shown = () if obj is None else ("state", "source")
        return [
            (None, {"fields": ("name", "topic", "body", "ttr", *shown)}),
            (_("Times"), {"fields": (*TIMES, "next_runs")}),
            (_("When it begins"), {"fields": POLICIES}),
            *([] if obj is None else [(None, {"fields": ("reason",)})]),
        ]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "topic":
            using = databases.alias()
            limit = permissions.visible_topics(request.user, using)
            choices = [(name, name) for name in sorted(topics.known(using)) if limit is None or name in limit]
            return forms.ChoiceField(label=_("Topic"), choices=choices)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    # Columns

    @admin.display(description=_("times"))
    def times(self, row: Schedule) -> str:
        return times_text(row)

    @admin.display(description=_("state"))
    def state(self, row: Schedule) -> Any:
        match state_of(row, databases.now(databases.alias(row._state.db))):
            case "paused":
                return display.labelled("paused", _("paused"))
            case "ended":
                return display.labelled("cancelled", pgettext("state of a schedule", "ended"))
            case "running":
                return display.labelled("running", _("running"))
        return row.problem

    @admin.display(description=_("next run"))
    def next_run(self, row: Schedule) -> Any:
        lines = next_lines(row, 1)
        return lines[0] if lines and not row.paused else display.EMPTY

    @admin.display(description=_("the next ten runs"))
    def next_runs(self, row: Schedule) -> SafeString:
        """Return the next ten runs in the schedule's zone. schedule.js updates them while the form is edited."""
        lines = next_lines(row, 10) if row.pk and row.start_at else []  # without a start: the form has errors
        url = reverse(f"{self.admin_site.name}:delaytasks_schedule_preview")
        shown = format_html_join("", "{}<br>", ((line,) for line in lines)) or display.EMPTY
        return format_html('<span class="dt-next-runs" data-url="{}">{}</span>', url, shown)

    # Changes

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        saved = schedules.define(form.definition, using=obj._state.db, restarts=True)
        obj.pk = saved.pk

    def audited_state(self, obj: Schedule) -> dict[str, Any]:
        return audit_log.schedule_state(Schedule.objects.using(obj._state.db).get(pk=obj.pk))

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        reason = "" if add else form.cleaned_data["reason"]
        if reason:
            return admin_log.entry_message(Action.CHANGED, reason)
        return super().construct_change_message(request, form, formsets, add)

    # Deleting

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        if row is not None and self.has_delete_permission(request, row):
            if request.method == "POST" and self._reason(request, [row.topic]) is None:
                return HttpResponseRedirect(request.get_full_path())
            extra_context = {"required_by": formatting.join(self._need_reason([row.topic]))} | (extra_context or {})
        return super().delete_view(request, object_id, extra_context)

    @admin.action(permissions=["delete"], description=delete_selected.short_description)  # type: ignore[attr-defined]
    def delete_selected(self, request: HttpRequest, queryset: QuerySet) -> Any:
        """Delete the selected schedules after Django's confirmation, which has a field for the reason."""
        topics = set(queryset.values_list("topic", flat=True))
        if request.POST.get("post") and self._reason(request, topics) is None:
            return None
        response: Any = in_transaction(databases.alias(), partial(delete_selected, self, request, queryset))
        if response is not None:
            response.context_data["required_by"] = formatting.join(self._need_reason(topics))
            response.context_data["reason"] = next(filter(None, request.POST.getlist("reason")), "")
        return response

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        user, reason, source = request.user, posted_reason(request), audit_log.source_of(request)
        for row in queryset:
            before = self.audited_state(row)
            admin_log.write(user.pk, [row], Action.DELETED, reason, flag=DELETION, source=source, before=before)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        schedules.delete(obj, using=obj._state.db)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet) -> None:
        for row in queryset.exclude(source=Schedule.Source.CODE):
            schedules.delete(row, using=queryset.db)

    # Actions

    @admin.action(permissions=["change"], description=_("Pause"))
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._act(
            request, queryset, Action.PAUSED, schedules.pause,
            lambda n: ngettext("%(n)d schedule paused", "%(n)d schedules paused", n),
        )  # fmt: skip

    @admin.action(permissions=["change"], description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._act(
            request, queryset, Action.RESUMED, schedules.resume,
            lambda n: ngettext("%(n)d schedule resumed", "%(n)d schedules resumed", n),
        )  # fmt: skip

    @admin.action(permissions=["change"], description=_("Run once now"))
    def run_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        user: Any = request.user
        page_ms = parse_id(request.POST.get("page_ms", ""))

        def run_once(name: str, *, using: str) -> bool:
            return schedules.run_now(name, using=using, by=user.get_username(), request_ms=page_ms).is_new

        self._act(
            request, queryset, Action.RUN_ONCE, run_once,
            lambda n: ngettext("%(n)d job scheduled for now", "%(n)d jobs scheduled for now", n),
        )  # fmt: skip

    def _act(
        self,
        request: HttpRequest,
        queryset: QuerySet,
        action: Action,
        change: Callable[..., object],
        says: Callable[[int], str],
    ) -> None:
        """Change each schedule and log it as `action`, in one transaction for each, and add a message.

        change   called with the schedule's name and using=; returns False if it changed nothing
        says     returns the message for a number of changed schedules, as a format with n
        """
        rows: list[Any] = list(queryset)
        using, reason = databases.alias(), self._reason(request, {row.topic for row in rows})
        if reason is None:
            return

        def change_and_log(row: Any) -> bool:
            row.audit_before = audit_log.schedule_state(schedules.find(row.name, using=using))
            is_changed = change(row.name, using=using) is not False
            if is_changed:
                self.log_change(request, row, admin_log.entry_message(action, reason))
            return is_changed

        changed = 0
        for row in rows:
            try:
                changed += in_transaction(using, partial(change_and_log, row))
            except DelaytasksError as error:  # the others are changed nevertheless
                self.message_user(request, f"{row}: {error}", messages.ERROR)
        level = messages.SUCCESS if changed else messages.WARNING
        self.message_user(request, says(changed) % {"n": changed}, level)

    def _need_reason(self, topics: Iterable[str]) -> list[str]:
        return sorted(permissions.topics_requiring_reason(databases.alias(), topics))

    def _reason(self, request: HttpRequest, topics: Iterable[str]) -> str | None:
        """Return the submitted reason. If it is invalid or missing, add a message and return None."""
        try:
            return posted_reason(request, self._need_reason(topics))
        except ValidationError as error:
            self.message_user(request, " ".join(error.messages), messages.ERROR)
            return None
