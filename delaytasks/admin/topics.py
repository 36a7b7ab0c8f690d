"""Topics in the admin: their numbers, and the settings that staff can change at runtime."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .. import admin_log, formatting, handlers, permissions
from .. import topics as served
from ..admin_log import Action
from ..db.retries import in_transaction
from ..forwarding import holds
from ..models import Job, Topic
from . import display, target_form, topic_columns
from .dashboard.labels import number
from .forms import SETTINGS, PauseForm, TopicForm, group_names, posted_reason
from .log_entries import TranslatedHistoryAdmin

DisplayedTopic = Any  # a Topic with stats (topic_columns.TopicStats)
LIVE = ("delayed", "ready", "oldest_ready", "reserved", "dead", "throughput", "lateness")


class TopicChangeList(ChangeList):
    """The list of topics. Fetches the statistics of all topics on a page at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        if may_see_jobs(request):
            topic_columns.annotate(self.result_list, self.queryset.db)


def may_see_jobs(request: HttpRequest) -> bool:
    """Return whether the user may see statistics about jobs."""
    return permissions.can_view(request.user)


@admin.register(Topic)
class TopicAdmin(TranslatedHistoryAdmin):
    form = TopicForm
    list_display: tuple[str, ...] = ("name", "state_label", *LIVE, "run_slots", "handler_name")
    list_per_page = 100
    search_fields = ("name",)
    ordering = ("name",)
    show_facets = admin.ShowFacets.NEVER
    actions = ("pause", "resume")
    action_form = PauseForm
    readonly_fields = (
        *LIVE, "last_hour", "jobs", "handler_path", "handler_text", "policy", "run_slots", "shown_to",
        "held_since", "held_why", "target_text",
    )  # fmt: skip

    class Media:
        css: ClassVar = {"all": ["delaytasks/admin.css", "delaytasks/topics.css"]}
        js: ClassVar = ["delaytasks/cards.js", "delaytasks/target.js"]

    # Permissions

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        queryset = super().get_queryset(request)
        if permissions.visible_topics(request.user, queryset.db) is None:
            return queryset
        return queryset.filter(name__in=permissions.topic_rows(request.user, queryset.db))

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        return tuple(name for name in self.list_display if name not in LIVE or may_see_jobs(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TopicChangeList]:
        return TopicChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Topic | None = None) -> tuple[str, ...]:
        own = () if permissions.can_forward(request.user) else tuple(target_form.FIELDS)  # read-only: not in the form
        return (*self.readonly_fields, *own) if obj is None else ("name", *self.readonly_fields, *own)

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, *args, **kwargs)
        form.user = request.user
        return form

    def get_fieldsets(self, request: HttpRequest, obj: Topic | None = None) -> Any:
        if obj is None:
            return [(None, {"fields": ("name", *SETTINGS)}), *self._target_fieldset(request)]
        can_change = self.has_change_permission(request, obj)
        settings = ("paused", "reason", *SETTINGS[1:]) if can_change else (*SETTINGS[:-1], "shown_to")
        live = [
            (_("Now"), {"fields": ("delayed", "ready", "oldest_ready", "reserved", "dead", "jobs")}),
            (_("The last hour"), {"fields": ("last_hour", "lateness")}),
        ]
        held = ("held_since", "held_why") if _is_held(obj) else ()
        return [
            (None, {"fields": ("name", *held, *settings)}),
            *(live if may_see_jobs(request) else ()),
            *self._target_fieldset(request, obj, can_change),
            (_("Handler"), {"fields": ("handler_path", "handler_text", "policy", "run_slots")}),
        ]

    def _target_fieldset(self, request: HttpRequest, obj: Topic | None = None, can_change: bool = True) -> list[Any]:
        if can_change and permissions.can_forward(request.user):
            is_used = obj is not None and obj.target is not None
            classes = () if is_used or obj is None or not handlers.find(obj.name) else ("collapse",)
            return [(_("Forwarding"), {"fields": tuple(target_form.FIELDS), "classes": classes})]
        return [(_("Forwarding"), {"fields": ("target_text",)})] if obj is not None and obj.target is not None else []

    def has_delete_permission(self, request: HttpRequest, obj: Topic | None = None) -> bool:
        """Return False for a topic with a handler, a target or any job: the list of jobs needs the topic's row."""
        if obj is None:
            return super().has_delete_permission(request, obj)
        jobs = Job.objects.using(router.db_for_write(Job)).filter(topic=obj.name)
        if obj.target is not None or handlers.find(obj.name) or jobs.exists():
            return False
        return super().has_delete_permission(request, obj)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> DisplayedTopic:
        topic: DisplayedTopic = super().get_object(request, object_id, from_field)
        if topic is not None and may_see_jobs(request):
            topic_columns.annotate([topic], topic._state.db)
        return topic

    # Statistics

    @admin.display(description=_("state"), ordering="paused")
    def state_label(self, topic: Topic) -> SafeString:
        if topic.paused:
            return display.labelled("paused", _("paused"))
        if _is_held(topic):
            return display.labelled("paused", _("held"))
        return display.labelled("running", _("running"))

    @admin.display(description=_("delayed"))
    def delayed(self, topic: DisplayedTopic) -> SafeString:
        return self._linked(topic, "delayed", number(topic.stats.now.delayed))

    @admin.display(description=_("ready"))
    def ready(self, topic: DisplayedTopic) -> SafeString:
        return self._linked(topic, "ready", number(topic.stats.now.ready))

    @admin.display(description=_("reserved"))
    def reserved(self, topic: DisplayedTopic) -> SafeString:
        return self._linked(topic, "reserved", f"{topic.stats.now.reserved:,}")

    @admin.display(description=_("dead"))
    def dead(self, topic: DisplayedTopic) -> SafeString:
        return self._linked(topic, "dead", number(topic.stats.now.dead))

    @admin.display(description=_("oldest"))
    def oldest_ready(self, topic: DisplayedTopic) -> SafeString | str:
        return topic_columns.oldest(topic.stats.now)

    @admin.display(description=_("per minute"))
    def throughput(self, topic: DisplayedTopic) -> str:
        return topic_columns.throughput(topic.stats)

    @admin.display(description=_("late, p50 / p99"))
    def lateness(self, topic: DisplayedTopic) -> str:
        return topic_columns.lateness(topic.stats)

    @admin.display(description=_("what happened"))
    def last_hour(self, topic: DisplayedTopic) -> str:
        return topic_columns.last_hour(topic.stats)

    @admin.display(description=_("jobs"))
    def jobs(self, topic: Topic) -> SafeString:
        return self._linked(topic, "live", _("live jobs"))

    def _linked(self, topic: Topic, state: str, text: Any) -> SafeString:
        """Return the text as a link to the topic's jobs in this state."""
        query = urlencode({"state": state, "topic": topic.name})
        return format_html('<a href="{}?{}">{}</a>', self._url("job_changelist"), query, text)

    # The handler

    @admin.display(description=_("handler"))
    def handler_name(self, topic: Topic) -> Any:
        """Return a <details> element: the handler's name and summary; unfolded, its docstring and the retry policy."""
        name, text = topic_columns.handler_name(topic), topic_columns.docstring(topic.name)
        return format_html(
            '<details class="dt-details dt-handler"><summary>{} <span class="dt-quiet">{}</span></summary>'
            '<div class="dt-doc">{}</div></details>',
            topic_columns.short_name(topic),
            text.partition("\n")[0],
            "\n\n".join(part for part in (name, text, self.policy(topic)) if part),
        )

    @admin.display(description=_("handler"))
    def handler_path(self, topic: Topic) -> Any:
        is_forwarded = topic.target is not None and handlers.find(topic.name) is None
        return topic_columns.short_name(topic) if is_forwarded else topic_columns.handler_name(topic)

    @admin.display(description=_("what it does"))
    def handler_text(self, topic: Topic) -> SafeString | str:
        text = topic_columns.docstring(topic.name)
        return format_html('<div class="dt-doc">{}</div>', text) if text else display.EMPTY

    @admin.display(description=_("when an attempt fails"))
    def policy(self, topic: Topic) -> str:
        return " ".join(topic_columns.policy(topic))

    @admin.display(description=_("target"))
    def target_text(self, topic: Topic) -> str:
        return target_form.description(topic.target)

    @admin.display(description=_("run slots"))
    def run_slots(self, topic: Topic) -> str:
        return topic_columns.run_slots(topic)

    @admin.display(description=_("visible to"))
    def shown_to(self, topic: Topic) -> Any:
        return formatting.join(group_names(topic.visible_to)) or _("everyone who may view jobs")

    # Actions

    @admin.action(permissions=["change"], description=_("Pause"))
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, True)

    @admin.action(permissions=["change"], description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, False)

    def _set_paused(self, request: HttpRequest, queryset: QuerySet, paused: bool) -> None:
        topics = list(queryset.filter(paused=not paused))
        try:
            reason = posted_reason(request, [topic.name for topic in topics if topic.ask_reason])
        except ValidationError as error:
            self.message_user(request, " ".join(error.messages), messages.ERROR)
            return
        entry = admin_log.entry_message(Action.PAUSED if paused else Action.RESUMED, reason)

        def change_and_log() -> list[Topic]:
            changed = [topic for topic in topics if _update_paused(topic, paused)]
            for topic in changed:
                topic.paused = paused
                topic.audit_before = self.audited_state(topic) | {"paused": not paused}
                self.log_change(request, topic, entry)
            return changed

        changed = in_transaction(router.db_for_write(Topic), change_and_log)
        served.clear_cache()  # this process sees the change now, others within a second
        text = (
            ngettext("%(n)d topic paused", "%(n)d topics paused", len(changed))
            if paused
            else ngettext("%(n)d topic resumed", "%(n)d topics resumed", len(changed))
        )
        level = messages.SUCCESS if changed else messages.WARNING
        self.message_user(request, text % {"n": len(changed)}, level)

    # Saving

    def audited_state(self, obj: Topic) -> dict[str, Any]:
        return {name: getattr(obj, name) for name in (*SETTINGS, "target")}

    def save_model(self, request: HttpRequest, obj: Topic, form: Any, change: bool) -> None:
        """Save only the fields that the user changed: other users and the engine may have updated the row since."""
        if not change:
            super().save_model(request, obj, form, change)
            served.clear_cache()
            return
        obj.save(update_fields=[name for name in form.changed_settings if name != "paused"])
        if "target" in form.changed_settings:
            # The topic may be held because its former target did not answer.
            holds.release(obj._state.db or router.db_for_write(Topic), obj.name)
            served.clear_cache()
        if "paused" in form.changed_settings and _update_paused(obj, obj.paused):
            action = Action.PAUSED if obj.paused else Action.RESUMED
            super().log_change(request, obj, admin_log.entry_message(action, form.cleaned_data["reason"]))
            served.clear_cache()

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Return the message of a change without `paused`: pausing has a log entry of its own, with the reason."""
        if not add:
            names = {"target": "target_kind"}  # the label of this field stands for all fields of the target
            form.changed_data = [names.get(name, name) for name in form.changed_settings if name != "paused"]
        return super().construct_change_message(request, form, formsets, add)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_change(request, obj, message) if message else None


def _is_held(topic: Topic) -> bool:
    return topic.held_since is not None and served.can_be_held(topic.name)


def _update_paused(topic: Topic, paused: bool) -> bool:
    """Pause or resume a topic. Return False if nothing changed."""
    rows = Topic.objects.using(router.db_for_write(Topic)).filter(pk=topic.pk, paused=not paused)
    return bool(rows.update(paused=paused))
