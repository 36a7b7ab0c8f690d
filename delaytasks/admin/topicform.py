"""The form of a topic: what staff can change about it."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from .. import topics
from ..exceptions import BadTopic


def group_names(stored: Iterable[Any]) -> list[str]:
    """The names of the groups with these ids; of one that is gone, that it is."""
    names = _groups() if stored else {}
    return [names.get(str(pk), (pk, _("a group that is gone (%(id)s)") % {"id": pk}))[1] for pk in stored]


def _groups() -> dict[str, tuple[Any, str]]:
    """Each group's (id, name), by its id as a form sends it."""
    return {str(pk): (pk, name) for pk, name in Group.objects.order_by("name").values_list("pk", "name")}


class TopicForm(forms.ModelForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "visible_to" in self.fields:  # it is not where it is only shown
            self.fields["visible_to"] = self._boxes(self.fields["visible_to"])

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
            return topics.check_topic(self.cleaned_data["name"])
        except BadTopic as error:
            raise ValidationError(str(error)) from error

    def clean_concurrency(self) -> int | None:
        slots = self.cleaned_data["concurrency"]
        if slots == 0:
            raise ValidationError(_("With no run slots nothing would run: pause the topic instead."))
        return slots
