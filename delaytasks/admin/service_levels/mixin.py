"""SlaMixin: the working time that rows have left, in the list and on the page of each row."""

from collections.abc import Sequence
from typing import Any

from django.contrib.admin import display
from django.db.models import Model
from django.forms import Media
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...service_levels.clocks import RUNNING
from ...service_levels.service_level import declared_on, statuses_of, subject_pk
from ..display import EMPTY
from . import countdown


class SlaMixin:
    """A mixin for the ModelAdmin of a model with service levels: adds the column and field `sla_status`.

        @admin.register(Ticket)
        class TicketAdmin(SlaMixin, ModelAdmin):
            list_display = ("__str__", "state", "sla_status")

    The column shows the state of each service level and a countdown of the working time left, which stops outside of
    open hours and while the clock is paused. The page of a row shows the same; if the ModelAdmin sets `fields` or
    `fieldsets`, add `sla_status` to them. The list makes one more query for each service level.
    """

    model: type[Model]

    @property
    def media(self) -> Media:
        """The media of the ModelAdmin, and those of the countdown."""
        ours = Media(css={"all": ["delaytasks/admin.css"]}, js=["delaytasks/sla.js"])
        return super().media + ours  # type: ignore[misc]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        fields = super().get_readonly_fields(request, obj)  # type: ignore[misc]
        return (*fields, *([] if "sla_status" in fields else ["sla_status"]))

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changelist = super().get_changelist_instance(request)  # type: ignore[misc]
        _prepare(self.model, list(changelist.result_list))  # the list renders these instances
        return changelist

    @display(description=_("service level"))
    def sla_status(self, row: Any) -> SafeString | str:
        if row._state.adding:  # the page that adds a row
            return EMPTY
        if not hasattr(row, "_delaytasks_sla"):
            _prepare(self.model, [row])
        return format_html_join("", "<div>{}</div>", ((each,) for each in row._delaytasks_sla)) or EMPTY


def _prepare(model: type[Model], rows: Sequence[Any]) -> None:
    """Set _delaytasks_sla on each row: a list with the HTML of each service level."""
    for row in rows:
        row._delaytasks_sla = []
    levels = declared_on(model)
    for level in levels if rows else ():
        statuses, now_ms = statuses_of(level, rows)
        is_running = any(each.state == RUNNING for each in statuses.values())
        spans = countdown.open_spans(level.calendar, now_ms) if is_running else []
        for row in rows:
            status = statuses.get(subject_pk(level, row))
            if status is not None:
                name = level.topic if len(levels) > 1 else ""
                row._delaytasks_sla.append(countdown.html(status, spans, now_ms, name))
