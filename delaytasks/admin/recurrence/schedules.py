"""Schedules in the admin: define them, see the next ten runs, pause, resume, run once now, backfill."""

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, JsonResponse
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ... import admin_log, databases, handlers, permissions
from ...admin_log import Action
from ...jobs import audit_log
from ...management.subcommands.schedules import times_text
from ...models import Schedule, Topic
from ...recurrence import schedules
from .. import display
from .backfill import BackfillPage
from .schedule_form import POLICIES, TIMES, ScheduleForm, next_lines, preview_lines


@admin.register(Schedule)
class ScheduleAdmin(BackfillPage):
    form = ScheduleForm
    list_display = ("name", "topic", "series_key", "times", "tz", "state", "next_run", "source")
    list_filter = ("paused", "source")
    search_fields = ("name", "topic", "series_key")
    ordering = ("name",)
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER
    actions = ("pause", "resume", "run_now")
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
        ]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "topic":
            using = databases.alias()
            limit = permissions.visible_topics(request.user, using)
            topics = {*handlers.known(), *Topic.objects.using(using).values_list("name", flat=True)}
            choices = [(name, name) for name in sorted(topics) if limit is None or name in limit]
            return forms.ChoiceField(label=_("Topic"), choices=choices)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    # Columns

    @admin.display(description=_("times"))
    def times(self, row: Schedule) -> str:
        return times_text(row)

    @admin.display(description=_("state"))
    def state(self, row: Schedule) -> Any:
        if row.problem:
            return row.problem
        if row.paused:
            return display.labelled("paused", _("paused"))
        return display.labelled("cancelled", _("ended")) if row.ended else display.labelled("running", _("running"))

    @admin.display(description=_("next run"))
    def next_run(self, row: Schedule) -> Any:
        lines = next_lines(row, 1)
        return lines[0] if lines and not row.paused else display.EMPTY

    @admin.display(description=_("the next ten runs"))
    def next_runs(self, row: Schedule) -> SafeString:
        """Return the next ten runs in the schedule's zone. schedule.js updates them while the form is edited."""
        lines = next_lines(row, 10) if row.pk else []
        url = reverse(f"{self.admin_site.name}:delaytasks_schedule_preview")
        shown = format_html_join("", "{}<br>", ((line,) for line in lines)) or display.EMPTY
        return format_html('<span class="dt-next-runs" data-url="{}">{}</span>', url, shown)

    # Changes

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        saved = schedules.define(form.definition, using=obj._state.db)
        obj.pk = saved.pk

    def audited_state(self, obj: Schedule) -> dict[str, Any]:
        return audit_log.schedule_state(Schedule.objects.using(obj._state.db).get(pk=obj.pk))

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        schedules.delete(obj, using=obj._state.db)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet) -> None:
        for row in queryset.exclude(source=Schedule.Source.CODE):
            schedules.delete(row, using=queryset.db)

    @admin.action(permissions=["change"], description=_("Pause"))
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, True)

    @admin.action(permissions=["change"], description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, False)

    def _set_paused(self, request: HttpRequest, queryset: QuerySet, paused: bool) -> None:
        act, action = (schedules.pause, Action.PAUSED) if paused else (schedules.resume, Action.RESUMED)
        changed = [row for row in queryset if act(row.name, using=queryset.db)]
        for row in changed:
            self.log_change(request, row, admin_log.entry_message(action, ""))
        text = (
            ngettext("%(n)d schedule paused", "%(n)d schedules paused", len(changed))
            if paused
            else ngettext("%(n)d schedule resumed", "%(n)d schedules resumed", len(changed))
        )
        self.message_user(request, text % {"n": len(changed)}, messages.SUCCESS if changed else messages.WARNING)

    @admin.action(permissions=["change"], description=_("Run once now"))
    def run_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        names = list(queryset.values_list("name", flat=True))
        for name in names:
            schedules.run_now(name, using=queryset.db, by=str(request.user))
        text = ngettext("%(n)d job scheduled for now", "%(n)d jobs scheduled for now", len(names))
        self.message_user(request, text % {"n": len(names)})
