"""The form of a topic: what staff can change about it."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib.admin.helpers import ActionForm
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import engine, rights, topics
from ..exceptions import BadInput, BadTopic, shown
from ..promises import check_actor

SETTINGS = ("paused", "concurrency", "ask_reason", "visible_to")


def group_names(stored: Iterable[Any]) -> list[str]:
    """The names of the groups with these ids; of one that is gone, that it is."""
    names = _groups() if stored else {}
    return [names.get(str(pk), (pk, _("a group that is gone (%(id)s)") % {"id": pk}))[1] for pk in stored]


def _groups() -> dict[str, tuple[Any, str]]:
    """Each group's (id, name), by its id as a form sends it."""
    return {str(pk): (pk, name) for pk, name in Group.objects.order_by("name").values_list("pk", "name")}


class PauseForm(ActionForm):
    """What is done to the topics that are ticked in the list, and why."""

    reason = forms.CharField(label=gettext_lazy("Reason:"), required=False, widget=forms.TextInput(attrs={"size": 30}))


def checked_reason(text: str) -> str:
    """The reason, if it is one. Raises ValidationError."""
    try:
        return check_actor(text.strip(), what="reason")
    except BadInput as error:
        raise ValidationError(_("One line of at most 255 printable characters, please.")) from error


class TopicForm(forms.ModelForm):
    """What was changed on the page is stored, and nothing else of it: it may be older than what others changed.

    user   who is at it; set by TopicAdmin
    """

    user: Any = None
    reason = forms.CharField(
        label=gettext_lazy("Reason"), required=False, widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("Why it is paused or resumed. Kept in the history."),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "visible_to" in self.fields:  # it is not where it is only shown
            self.fields["visible_to"] = self._boxes(self.fields["visible_to"])
        for name in self.fields.keys() & set(SETTINGS):
            self.fields[name].show_hidden_initial = not self.instance._state.adding  # what the page showed is sent back

    def _boxes(self, field: forms.Field) -> forms.Field:
        """A box for each group, also for one that is gone: without it, saving would open the topic to everybody."""
        stored = self.instance.visible_to if isinstance(self.instance.visible_to, list) else []
        groups = _groups()
        gone = {str(pk): (pk, name) for pk, name in zip(stored, group_names(stored), strict=True)}
        known = groups | {value: each for value, each in gone.items() if value not in groups}
        return forms.TypedMultipleChoiceField(
            choices=[(value, name) for value, (_pk, name) in known.items()],
            coerce=lambda value: known[value][0],
            required=False,
            label=field.label,
            help_text=_("Members of these groups see its jobs; if none is ticked, everybody does who may see jobs."),
            widget=forms.CheckboxSelectMultiple,
        )

    def clean_name(self) -> str:
        try:
            name = topics.check_topic(self.cleaned_data["name"])
        except BadTopic as error:
            raise ValidationError(
                _(
                    "%(name)s is not a topic's name: use 1 to 100 of A-Z a-z 0-9 . _ -, "
                    "the first a letter or digit, for example 'order.close'."
                ),
                params={"name": shown(self.cleaned_data["name"])},
            ) from error

        if not rights.may_see(self.user, name, engine.alias()):  # whether it is hidden or not there is not told
            only = _("You do not see every topic. You can add one that has a handler here and is for you.")
            raise ValidationError(only)
        return name

    def clean_reason(self) -> str:
        return checked_reason(self.cleaned_data["reason"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        asked = self.instance.ask_reason and "paused" in self.changed_data
        if asked and not self.instance._state.adding and not cleaned.get("reason") and "reason" not in self.errors:
            self.add_error("reason", _("This topic asks for a reason: say why it is paused or resumed."))
        return cleaned

    @property
    def changed_settings(self) -> list[str]:
        """The columns that the person changed."""
        return [name for name in self.changed_data if name != "reason"]

    def clean_concurrency(self) -> int | None:
        slots = self.cleaned_data["concurrency"]
        if slots == 0:
            raise ValidationError(_("With no run slots nothing would run: pause the topic instead."))
        return slots
