"""The form for a new job. Values are validated as by schedule(); each error is shown at its field."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ... import conf, formatting
from ...exceptions import BadBody, BadDelay, BadInput, BadKey, BadTTR, BodyTooLarge
from ...jobs.inputs import to_body, to_new_job
from ...states import MAX_PRIORITY
from ...validators import JSON_NULL, MAX_TTR_MS
from ..bulk.forms import UNITS, UNITS_MS
from ..forms import ReasonField


class BodyField(forms.JSONField):
    """A JSON field for bodies. A body that schedule() refuses is a ValidationError, too."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (RecursionError, ValueError) as error:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from error

    def validate(self, value: Any) -> None:
        super().validate(value)
        try:
            to_body(value)
        except BodyTooLarge as error:
            most = f"{conf.get().max_body_bytes:,}"
            raise ValidationError(_("The body may have at most %(most)s bytes as JSON.") % {"most": most}) from error
        except BadBody as error:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return the user's input unchanged: Django's method would parse it again, which could raise."""
        return InvalidJSONInput("" if data is None else data)


class NewJobForm(forms.Form):
    """The form for a new job. If it is valid, `terms` has arguments of schedule(), and cleaned_data has the reason."""

    topic = forms.ChoiceField(label=gettext_lazy("Topic"))
    key = forms.CharField(
        label=gettext_lazy("Key"), max_length=255, strip=False, widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("The business name, such as order:1042. Only one live job of a topic can have it."),
    )  # fmt: skip
    amount = forms.DecimalField(
        label=gettext_lazy("After"), required=False, min_value=0, max_digits=12, decimal_places=3,
        widget=forms.NumberInput(attrs={"step": "any", "class": "dt-amount"}),
    )  # fmt: skip
    unit = forms.ChoiceField(
        label="", choices=UNITS, required=False, initial="minutes",
        widget=forms.Select(attrs={"aria-label": gettext_lazy("Unit")}),
    )  # fmt: skip
    due_at = forms.SplitDateTimeField(
        label=gettext_lazy("Or at"), required=False, widget=AdminSplitDateTime(),
        help_text=gettext_lazy("A time in the past means now."),
    )  # fmt: skip
    body = BodyField(
        label=gettext_lazy("Body"), required=False, initial=dict,
        widget=forms.Textarea(attrs={"rows": 5, "class": "vLargeTextField", "spellcheck": "false"}),
        help_text=gettext_lazy("The data for the handler, as JSON."),
    )  # fmt: skip
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"), required=False, min_value=0, max_value=MAX_PRIORITY, initial=0,
        help_text=gettext_lazy("0 to 9. Of the jobs that are due, those with a higher priority run first."),
    )  # fmt: skip
    ttr = forms.FloatField(
        label=gettext_lazy("Time to run, in seconds"), required=False, min_value=0,
        help_text=gettext_lazy("How long one attempt may take. Empty: the topic's time to run."),
    )  # fmt: skip
    reason = ReasonField(max_length=255, help_text=gettext_lazy("Stored in the history."))

    def __init__(self, *args: Any, topics: Collection[str], need_reason: Collection[str], **kwargs: Any) -> None:
        """Create the form.

        topics        those that the user may schedule
        need_reason   those that require a reason
        """
        super().__init__(*args, **kwargs)
        none = [] if len(topics) == 1 else [("", "---------")]  # so that nobody submits the first topic by mistake
        self.fields["topic"].choices = [*none, *((name, name) for name in topics)]  # type: ignore[attr-defined]
        self.topics, self.need_reason = topics, need_reason
        self.terms: dict[str, Any] = {}

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("topic") in self.need_reason and "reason" in values and not values["reason"]:
            self.add_error("reason", _("Required by %(topics)s.") % {"topics": values["topic"]})
        self._check_when(values.get("amount"), values.get("due_at"))
        if not self.errors:
            self._check(values)
        return values

    def _check_when(self, amount: Any, due_at: datetime | None) -> None:
        if {"amount", "due_at"} & self.errors.keys():
            return
        if amount is None and due_at is None:
            self.add_error("amount", _("Enter a delay, or a date and a time."))
        elif amount is not None and due_at is not None:
            self.add_error("amount", _("Enter either a delay or a date and a time, not both."))

    def _check(self, values: dict[str, Any]) -> None:
        amount = values["amount"]
        self.terms = {
            "topic": values["topic"],
            "key": values["key"],
            "delay": None if amount is None else int(amount * UNITS_MS[values["unit"] or "minutes"]) / 1000,
            "due_at": values["due_at"],
            "body": JSON_NULL if values["body"] is None and self["body"].data else values["body"],
            "priority": values["priority"] or 0,
            "ttr": values["ttr"],
        }
        try:
            to_new_job(**self.terms)
        except BadInput as error:
            self.add_error(*self._explained(error))

    def _explained(self, error: BadInput) -> tuple[str | None, str]:
        """Return the name of the wrong field (None: of no single field) and the error in the user's language."""
        if isinstance(error, BadKey):
            return "key", _("Enter 1 to 255 printable characters.")
        if isinstance(error, BadTTR):
            longest = formatting.duration(MAX_TTR_MS)
            return "ttr", _("Enter a time to run of at least 0.001 s and at most %(span)s.") % {"span": longest}
        if isinstance(error, BadDelay):
            span = formatting.duration(conf.get().max_delay_seconds * 1000)
            field = "amount" if self.terms["due_at"] is None else "due_at"
            return field, _("Enter a time that is at most %(span)s from now.") % {"span": span}
        return None, str(error)
