"""Forms for topics in the admin, and what the forms of other pages share with them."""

from collections.abc import Collection, Iterable
from typing import Any

from django import forms
from django.contrib.admin.helpers import ActionForm
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import databases, formatting, permissions, validators
from ..exceptions import BadInput, BadTopic, short_repr
from ..jobs.inputs import check_actor
from . import target_form
from .target_form import TargetForm

SETTINGS = ("paused", "concurrency", "ask_reason", "hide_bodies", "keep_bodies", "visible_to")


def group_names(stored: Iterable[Any]) -> list[str]:
    """Return the names of the groups with these ids, and a placeholder for each deleted group."""
    names = _groups() if stored else {}
    return [names.get(str(pk), (pk, _("deleted group (%(id)s)") % {"id": pk}))[1] for pk in stored]


def _groups() -> dict[str, tuple[Any, str]]:
    """Return {ID as text: (ID, name)} of all groups."""
    return {str(pk): (pk, name) for pk, name in Group.objects.order_by("name").values_list("pk", "name")}


class PauseForm(ActionForm):
    """The action form of the lists of topics and of schedules, with a field for the reason."""

    reason = forms.CharField(label=gettext_lazy("Reason:"), required=False, widget=forms.TextInput(attrs={"size": 24}))


def checked_reason(text: str) -> str:
    """Return the reason if it is valid. Raises ValidationError."""
    try:
        return check_actor(text.strip(), what="reason")
    except BadInput as error:
        raise ValidationError(_("Enter one line of at most 255 printable characters.")) from error


class ReasonField(forms.CharField):
    """A form's field for the reason of a change."""

    def __init__(self, **options: Any) -> None:
        widget = forms.TextInput(attrs={"class": "vTextField"})
        super().__init__(label=gettext_lazy("Reason"), required=False, widget=widget, **options)

    def clean(self, value: Any) -> str:
        return checked_reason(super().clean(value))


def posted_reason(request: HttpRequest, need_reason: Collection[str] = ()) -> str:
    """Return the reason in the submitted form. Raises ValidationError if it is invalid, or empty but required.

    need_reason   the topics that require one
    """
    reason = checked_reason(next(filter(None, request.POST.getlist("reason")), ""))
    if need_reason and not reason:
        raise ValidationError(
            _("A reason is required by %(topics)s. Nothing was changed. Enter a reason."),
            params={"topics": formatting.join(need_reason)},
        )
    return reason


class ChangesForm(forms.ModelForm):
    """Base of forms: what differs from the page as it was shown is changed, the other fields keep the row's values.

    The page may be older than the row. A submitted form without the values of the page is compared with the row.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        has_shown = not self.is_bound or any(key.startswith(self.add_initial_prefix("")) for key in self.data)
        for field in self.fields.values():
            field.show_hidden_initial = has_shown and not self.instance._state.adding

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        shown = {name for name, field in self.fields.items() if field.show_hidden_initial}
        kept = (shown & cleaned.keys() & self.initial.keys()) - set(self.changed_data)
        return cleaned | {name: self.initial[name] for name in kept}


class TopicForm(TargetForm, ChangesForm):
    """The form of a topic. Only the changed fields are saved; of a target, all its fields.

    user   the user who submits it; set by TopicAdmin
    """

    user: Any = None
    reason = ReasonField(help_text=gettext_lazy("Why the topic is paused or resumed. Stored in the history."))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "visible_to" in self.fields:  # absent if the page is read-only
            self.fields["visible_to"] = self._checkboxes(self.fields["visible_to"])

    def _checkboxes(self, field: forms.Field) -> forms.Field:
        """Return a field with a checkbox per group. Stored groups that were deleted are included.

        Without the deleted groups, saving the form could make the topic visible to everyone.
        """
        stored = self.instance.visible_to if isinstance(self.instance.visible_to, list) else []
        groups = _groups()
        stored_groups = {str(pk): (pk, name) for pk, name in zip(stored, group_names(stored), strict=True)}
        known = groups | {value: each for value, each in stored_groups.items() if value not in groups}
        return forms.TypedMultipleChoiceField(
            choices=[(value, name) for value, (_pk, name) in known.items()],
            coerce=lambda value: known[value][0],
            required=False,
            show_hidden_initial=field.show_hidden_initial,
            label=field.label,
            help_text=_(
                "Members of these groups see the topic's jobs. If none is ticked, all who may view jobs see them."
            ),
            widget=forms.CheckboxSelectMultiple,
        )

    def clean_name(self) -> str:
        try:
            name = validators.check_topic(self.cleaned_data["name"])
        except BadTopic as error:
            raise ValidationError(
                _(
                    "%(name)s is not a valid topic name: use 1 to 100 of A-Z a-z 0-9 . _ -, "
                    "starting with a letter or digit, for example 'order.close'."
                ),
                params={"name": short_repr(self.cleaned_data["name"])},
            ) from error

        if not permissions.can_see_topic(self.user, name, databases.alias()):
            # The same message for hidden and unknown topics, so that it does not reveal which exist.
            text = _("You may not see every topic. You can add a topic that has a handler here and is visible to you.")
            raise ValidationError(text)
        return name

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        is_required = self.instance.ask_reason and "paused" in self.changed_data
        if (
            is_required
            and not self.instance._state.adding
            and not cleaned.get("reason")
            and "reason" not in self.errors
        ):
            self.add_error("reason", _("This topic requires a reason: enter why it is paused or resumed."))
        return cleaned

    @property
    def changed_settings(self) -> list[str]:
        """The names of the changed columns: "target" for all fields of the target; nothing for the reason."""
        changed = [name for name in self.changed_data if name != "reason" and name not in target_form.FIELDS]
        return [*changed, "target"] if self.target_is_changed else changed

    def clean_concurrency(self) -> int | None:
        slots = self.cleaned_data["concurrency"]
        if slots == 0:
            raise ValidationError(_("Without run slots no job would run. Pause the topic instead."))
        return slots
