"""Topics in the admin: pause one, give it more run slots, see which function handles it."""

import inspect
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .. import conf, topics
from ..exceptions import BadTopic
from ..models import Job, Topic
from . import shown


class TopicForm(forms.ModelForm):
    def clean_name(self) -> str:
        try:
            return topics.check_topic(self.cleaned_data["name"])
        except BadTopic as error:
            raise ValidationError(str(error)) from error

    def clean_concurrency(self) -> int | None:
        slots = self.cleaned_data["concurrency"]
        if slots == 0:
            raise ValidationError(_("With no run slots nothing would run: pause the topic instead."))
        return slots


@admin.register(Topic)
class TopicAdmin(admin.ModelAdmin):
    form = TopicForm
    list_display = ("name", "standing", "concurrency", "handler_name", "jobs")
    list_filter = ("paused",)
    search_fields = ("name",)
    ordering = ("name",)
    show_facets = admin.ShowFacets.NEVER
    actions = ("pause", "resume")
    fields = ("name", "paused", "concurrency", "handler_name", "handler_text", "terms", "jobs")
    readonly_fields = ("handler_name", "handler_text", "terms", "jobs")

    class Media:
        css = {"all": ["delaytasks/admin.css"]}  # noqa: RUF012  the name and the form are Django's

    def get_readonly_fields(self, request: HttpRequest, obj: Topic | None = None) -> tuple[str, ...]:
        return tuple(self.readonly_fields) if obj is None else ("name", *self.readonly_fields)

    def get_fields(self, request: HttpRequest, obj: Topic | None = None) -> Any:
        return self.fields if obj is not None else ("name", "paused", "concurrency")

    def has_delete_permission(self, request: HttpRequest, obj: Topic | None = None) -> bool:
        """A topic that has a handler or ever had a job stays: its jobs are found through its row."""
        if obj is not None and (topics.find(obj.name) or Job.objects.filter(topic=obj.name).exists()):
            return False
        return super().has_delete_permission(request, obj)

    @admin.display(description=_("state"), ordering="paused")
    def standing(self, topic: Topic) -> SafeString:
        css, word = ("paused", _("paused")) if topic.paused else ("running", _("running"))
        return format_html('<span class="dt-state dt-{}">{}</span>', css, word)

    @admin.display(description=_("handler"))
    def handler_name(self, topic: Topic) -> Any:
        handler = topics.find(topic.name)
        if handler is not None:
            return handler.name
        return _("in the settings") if topic.name in conf.get().topics else _("none here")

    @admin.display(description=_("what it does"))
    def handler_text(self, topic: Topic) -> SafeString | str:
        handler = topics.find(topic.name)
        text = inspect.getdoc(handler.function) if handler else None
        return format_html('<div class="dt-doc">{}</div>', text) if text else shown.EMPTY

    @admin.display(description=_("terms"))
    def terms(self, topic: Topic) -> str:
        return _("%(seconds)g s to run, %(attempts)d attempts, %(slots)d run slots") % {
            "seconds": topics.ttr_ms(topic.name) / 1000,
            "attempts": topics.max_attempts(topic.name),
            "slots": topics.concurrency(topic.name),
        }

    @admin.display(description=_("jobs"))
    def jobs(self, topic: Topic) -> SafeString:
        address = reverse("admin:delaytasks_job_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?state=live&amp;topic={}">{}</a>', address, topic.name, _("live jobs"))

    @admin.action(permissions=["change"], description=_("Pause"))
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, True)

    @admin.action(permissions=["change"], description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, False)

    def _set_paused(self, request: HttpRequest, queryset: QuerySet, paused: bool) -> None:
        changed = list(queryset.filter(paused=not paused))
        for topic in changed:
            topic.paused = paused
            topic.save(update_fields=["paused"])
            self.log_change(request, topic, "Paused." if paused else "Resumed.")
        done = (
            ngettext("%(n)d topic paused", "%(n)d topics paused", len(changed))
            if paused
            else ngettext("%(n)d topic resumed", "%(n)d topics resumed", len(changed))
        )
        level = messages.SUCCESS if changed else messages.WARNING
        self.message_user(request, done % {"n": len(changed)}, level)
