"""Topics in the admin: how each one stands, and what staff can change about it while it runs."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .. import bells, rights, stafflog, topics, words
from ..models import Job, Topic
from . import shown, topicnumbers
from .boardwords import number
from .history import ToldHistory
from .topicform import SETTINGS, PauseForm, TopicForm, checked_reason, group_names

Seen = Any  # a Topic with what a page adds to it: numbers (topicnumbers.Numbers)
LIVE = ("delayed", "ready", "oldest_ready", "reserved", "dead", "throughput", "lateness")


class TopicChangeList(ChangeList):
    """The topics of a page, with the numbers of all of them asked for at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        if may_see_jobs(request):
            topicnumbers.note(self.result_list, self.queryset.db)


def may_see_jobs(request: HttpRequest) -> bool:
    """Whether the numbers are for this person: they tell of jobs."""
    return rights.views(request.user)


@admin.register(Topic)
class TopicAdmin(ToldHistory):
    form = TopicForm
    list_display: tuple[str, ...] = ("name", "standing", *LIVE, "run_slots", "handler_name")
    list_per_page = 100
    search_fields = ("name",)
    ordering = ("name",)
    show_facets = admin.ShowFacets.NEVER
    actions = ("pause", "resume")
    action_form = PauseForm
    readonly_fields = (
        *LIVE, "last_hour", "jobs", "handler_path", "handler_text", "policy", "run_slots", "shown_to",
    )  # fmt: skip

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css", "delaytasks/topics.css"]}
        js: ClassVar = ["delaytasks/cards.js"]

    # Who may see what.

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        found = super().get_queryset(request)
        if rights.visible_topics(request.user, found.db) is None:
            return found
        return found.filter(name__in=rights.topic_rows(request.user, found.db))

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        return tuple(name for name in self.list_display if name not in LIVE or may_see_jobs(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TopicChangeList]:
        return TopicChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Topic | None = None) -> tuple[str, ...]:
        return tuple(self.readonly_fields) if obj is None else ("name", *self.readonly_fields)

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, *args, **kwargs)
        form.user = request.user
        return form

    def get_fieldsets(self, request: HttpRequest, obj: Topic | None = None) -> Any:
        if obj is None:
            return [(None, {"fields": ("name", *SETTINGS)})]
        changes = self.has_change_permission(request, obj)
        settings = ("paused", "reason", *SETTINGS[1:]) if changes else (*SETTINGS[:-1], "shown_to")
        live = [
            (_("Now"), {"fields": ("delayed", "ready", "oldest_ready", "reserved", "dead", "jobs")}),
            (_("The last hour"), {"fields": ("last_hour", "lateness")}),
        ]
        return [
            (None, {"fields": ("name", *settings)}),
            *(live if may_see_jobs(request) else ()),
            (_("Handler"), {"fields": ("handler_path", "handler_text", "policy", "run_slots")}),
        ]

    def has_delete_permission(self, request: HttpRequest, obj: Topic | None = None) -> bool:
        """A topic that has a handler or ever had a job stays: its jobs are found through its row."""
        if obj is not None and (topics.find(obj.name) or Job.objects.filter(topic=obj.name).exists()):
            return False
        return super().has_delete_permission(request, obj)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Seen:
        topic: Seen = super().get_object(request, object_id, from_field)
        if topic is not None and may_see_jobs(request):
            topicnumbers.note([topic], topic._state.db)
        return topic

    # How it stands.

    @admin.display(description=_("state"), ordering="paused")
    def standing(self, topic: Topic) -> SafeString:
        return shown.labelled("paused", _("paused")) if topic.paused else shown.labelled("running", _("running"))

    @admin.display(description=_("delayed"))
    def delayed(self, topic: Seen) -> SafeString:
        return self._linked(topic, "delayed", number(topic.numbers.now.delayed))

    @admin.display(description=_("ready"))
    def ready(self, topic: Seen) -> SafeString:
        return self._linked(topic, "ready", number(topic.numbers.now.ready))

    @admin.display(description=_("reserved"))
    def reserved(self, topic: Seen) -> SafeString:
        return self._linked(topic, "reserved", f"{topic.numbers.now.reserved:,}")

    @admin.display(description=_("dead"))
    def dead(self, topic: Seen) -> SafeString:
        return self._linked(topic, "dead", number(topic.numbers.now.dead))

    @admin.display(description=_("oldest"))
    def oldest_ready(self, topic: Seen) -> SafeString | str:
        return topicnumbers.oldest(topic.numbers.now)

    @admin.display(description=_("per minute"))
    def throughput(self, topic: Seen) -> str:
        return topicnumbers.throughput(topic.numbers)

    @admin.display(description=_("late, p50 / p99"))
    def lateness(self, topic: Seen) -> str:
        return topicnumbers.lateness(topic.numbers)

    @admin.display(description=_("what happened"))
    def last_hour(self, topic: Seen) -> str:
        return topicnumbers.last_hour(topic.numbers)

    @admin.display(description=_("jobs"))
    def jobs(self, topic: Topic) -> SafeString:
        return self._linked(topic, "live", _("live jobs"))

    def _linked(self, topic: Topic, state: str, text: Any) -> SafeString:
        """The text as a link to the jobs that it speaks of."""
        address = reverse("admin:delaytasks_job_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?{}">{}</a>', address, urlencode({"state": state, "topic": topic.name}), text)

    # What runs it.

    @admin.display(description=_("handler"))
    def handler_name(self, topic: Topic) -> Any:
        """Its name and what it does in a line; unfolded all that its author wrote, and what happens when it fails."""
        name, text = topicnumbers.handler_name(topic.name), topicnumbers.docstring(topic.name)
        return format_html(
            '<details class="dt-details dt-handler"><summary>{} <span class="dt-quiet">{}</span></summary>'
            '<div class="dt-doc">{}</div></details>',
            name.rpartition(".")[2],
            text.partition("\n")[0],
            "\n\n".join(part for part in (name, text, self.policy(topic)) if part),
        )

    @admin.display(description=_("handler"))
    def handler_path(self, topic: Topic) -> Any:
        return topicnumbers.handler_name(topic.name)

    @admin.display(description=_("what it does"))
    def handler_text(self, topic: Topic) -> SafeString | str:
        text = topicnumbers.docstring(topic.name)
        return format_html('<div class="dt-doc">{}</div>', text) if text else shown.EMPTY

    @admin.display(description=_("when an attempt fails"))
    def policy(self, topic: Topic) -> str:
        return " ".join(topicnumbers.policy(topic.name))

    @admin.display(description=_("run slots"))
    def run_slots(self, topic: Topic) -> str:
        return topicnumbers.run_slots(topic)

    @admin.display(description=_("visible to"))
    def shown_to(self, topic: Topic) -> Any:
        return words.listed(group_names(topic.visible_to)) or _("everybody who may see jobs")

    # Actions.

    @admin.action(permissions=["change"], description=_("Pause"))
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, True)

    @admin.action(permissions=["change"], description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, False)

    def _set_paused(self, request: HttpRequest, queryset: QuerySet, paused: bool) -> None:
        before = list(queryset.filter(paused=not paused))
        try:
            reason = _reason(request, [topic.name for topic in before if topic.ask_reason])
        except ValidationError as error:
            self.message_user(request, " ".join(error.messages), messages.ERROR)
            return
        changed = [topic for topic in before if _became(topic, paused)]
        for topic in changed:
            self.log_change(request, topic, stafflog.said("Paused" if paused else "Resumed", reason))
        bells.forget_terms()  # others learn of it within a second; this process, at once
        done = (
            ngettext("%(n)d topic paused", "%(n)d topics paused", len(changed))
            if paused
            else ngettext("%(n)d topic resumed", "%(n)d topics resumed", len(changed))
        )
        level = messages.SUCCESS if changed else messages.WARNING
        self.message_user(request, done % {"n": len(changed)}, level)

    # A page that is saved.

    def save_model(self, request: HttpRequest, obj: Topic, form: Any, change: bool) -> None:
        """What the person changed, and not what the page had of the rest: others write this row, the engine too."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        obj.save(update_fields=[name for name in form.changed_settings if name != "paused"])
        if "paused" in form.changed_settings and _became(obj, obj.paused):
            what = "Paused" if obj.paused else "Resumed"
            super().log_change(request, obj, stafflog.said(what, form.cleaned_data["reason"]))
            bells.forget_terms()

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """What else was changed: the pause has an entry of its own, with its reason."""
        if not add:
            form.changed_data = [name for name in form.changed_settings if name != "paused"]
        return super().construct_change_message(request, form, formsets, add)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_change(request, obj, message) if message else None


def _became(topic: Topic, paused: bool) -> bool:
    """Pause or resume it; False if it is so by now."""
    rows = Topic.objects.using(router.db_for_write(Topic)).filter(pk=topic.pk, paused=not paused)
    return bool(rows.update(paused=paused))


def _reason(request: HttpRequest, asking: list[str]) -> str:
    """Why, as it was written beside the action. Raises ValidationError, also without one if these topics ask for it."""
    reason = checked_reason(next(filter(None, request.POST.getlist("reason")), ""))
    if asking and not reason:
        raise ValidationError(
            _("A reason is asked for by %(topics)s. Nothing was changed: write it beside the action."),
            params={"topics": words.listed(asking)},
        )
    return reason
