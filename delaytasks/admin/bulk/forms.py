"""Forms for an operation on jobs: the operation, the delay and the reason."""

from math import ceil
from typing import Any

from django import forms
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ... import conf, formatting
from ..forms import ReasonField
from ..job_actions import CANCEL, POSTPONE, RETRY, RUN_NOW, Operation

UNITS_MS = {"seconds": 1000, "minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}
UNITS = [("seconds", _("seconds")), ("minutes", _("minutes")), ("hours", _("hours")), ("days", _("days"))]
LABELS = {CANCEL: _("Cancel"), POSTPONE: _("Postpone"), RUN_NOW: _("Run now"), RETRY: _("Retry")}
MEANINGS = {
    CANCEL: _("waiting jobs will not run, and nobody can retry dead ones; running jobs are not affected"),
    POSTPONE: _("from each job's due time, or from now if it is overdue"),
    RUN_NOW: _("waiting jobs become due now; running jobs are not affected"),
    RETRY: _("dead jobs only; they get all their attempts again"),
}


class ReasonForm(forms.Form):
    """A form for the delay and the reason of a given operation.

    A valid form has a cleaned "reason" and, to postpone jobs, `delay_ms`; for other operations, `delay_ms` is None.
    """

    amount = forms.DecimalField(
        label=_("By how much"), required=False, min_value=0, max_digits=12, decimal_places=3,
        widget=forms.NumberInput(attrs={"step": "any", "class": "dt-amount"}),
    )  # fmt: skip
    unit = forms.ChoiceField(
        choices=UNITS, required=False, initial="hours", widget=forms.Select(attrs={"aria-label": _("Unit")})
    )
    reason = ReasonField(max_length=255)

    def __init__(self, *args: Any, need_reason: list[str], operation: Operation | None = None, **kwargs: Any) -> None:
        """Create the form.

        need_reason   the topics that require a reason; if there are any, the user must enter one
        """
        super().__init__(*args, **kwargs)
        self.operation = operation
        self.delay_ms: int | None = None
        self.fields["amount"].required = operation == POSTPONE
        self.fields["reason"].required = bool(need_reason)
        if need_reason:
            self.fields["reason"].help_text = _("Required by %(topics)s.") % {"topics": formatting.join(need_reason)}

    @property
    def postpones(self) -> bool:
        """Return whether the form shows the field for the delay."""
        return self.operation in (None, POSTPONE)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.operation == POSTPONE and "amount" in cleaned and "unit" in cleaned:
            self._clean_delay(cleaned)
        return cleaned

    def _clean_delay(self, cleaned: dict[str, Any]) -> None:
        max_seconds = conf.get().max_delay_seconds
        if cleaned["amount"] is None:
            self.add_error("amount", _("Enter by how much."))
            return
        delay_ms = int(cleaned["amount"] * UNITS_MS[cleaned["unit"] or "hours"])
        if 0 < delay_ms <= max_seconds * 1000:
            self.delay_ms = delay_ms
        else:
            text = _("Enter more than zero and at most %(span)s.")
            self.add_error("amount", text % {"span": formatting.duration(max_seconds * 1000)})


class BulkForm(ReasonForm):
    """A ReasonForm that also asks for the operation."""

    what = forms.ChoiceField(label=_("What to do"), widget=forms.RadioSelect)

    def __init__(self, *args: Any, operations: list[Operation], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        what: Any = self.fields["what"]
        what.choices = [
            (each.value, format_lazy(_("{operation}: {meaning}"), operation=LABELS[each], meaning=MEANINGS[each]))
            for each in operations
        ]
        what.initial = operations[0].value if len(operations) == 1 else None
        self.offers_postponing = POSTPONE in operations

    @property
    def postpones(self) -> bool:
        return self.offers_postponing

    def clean(self) -> dict[str, Any]:
        self.operation = Operation(self.cleaned_data["what"]) if "what" in self.cleaned_data else None
        return super().clean()


def question(operation: str | None, count: int, delay_ms: int | None = None) -> str:
    """Return the text of the heading and button, for example "Postpone 3 jobs by 2 hours"."""
    match operation:
        case Operation.CANCEL:
            text = ngettext("Cancel %(n)s job", "Cancel %(n)s jobs", count)
        case Operation.POSTPONE if delay_ms:
            text = ngettext("Postpone %(n)s job by %(span)s", "Postpone %(n)s jobs by %(span)s", count)
        case Operation.POSTPONE:
            text = ngettext("Postpone %(n)s job", "Postpone %(n)s jobs", count)
        case Operation.RUN_NOW:
            text = ngettext("Run %(n)s job now", "Run %(n)s jobs now", count)
        case Operation.RETRY:
            text = ngettext("Retry %(n)s job", "Retry %(n)s jobs", count)
        case _:
            text = ngettext("Change %(n)s job", "Change %(n)s jobs", count)
    return text % {"n": f"{count:,}", "span": exact_span(delay_ms or 0)}


def exact_span(ms: int) -> str:
    """Return a duration in the largest unit that needs no fraction: "90 minutes"."""
    if ms and ms % UNITS_MS["days"] == 0:
        count, text = ms // UNITS_MS["days"], ngettext("%(n)s day", "%(n)s days", ms // UNITS_MS["days"])
    elif ms and ms % UNITS_MS["hours"] == 0:
        count, text = ms // UNITS_MS["hours"], ngettext("%(n)s hour", "%(n)s hours", ms // UNITS_MS["hours"])
    elif ms and ms % UNITS_MS["minutes"] == 0:
        count, text = ms // UNITS_MS["minutes"], ngettext("%(n)s minute", "%(n)s minutes", ms // UNITS_MS["minutes"])
    else:
        return ngettext("%(n)s second", "%(n)s seconds", ceil(ms / 1000)) % {"n": f"{ms / 1000:,.15g}"}
    return text % {"n": f"{count:,}"}
