"""The board's table of schedules: next run, drift, missed and skipped runs."""

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...recurrence.statistics import RUNS, ScheduleStats, Statistics
from ..display import EMPTY
from .labels import day_and_time, number, span

Json = dict[str, Any]


def table(statistics: Statistics) -> Json:
    """Return the table's head, its rows (one per schedule, the next to run first) and a note."""
    more = statistics.total - len(statistics.schedules)
    notes = [_("counted over the newest %(n)d runs of each schedule") % {"n": RUNS}] if statistics.schedules else []
    if more > 0:
        notes.append(ngettext("%(n)s more schedule", "%(n)s more schedules", more) % {"n": number(more)})
    return {
        "head": [
            _("Schedule"), _("Topic"), _("Next run"), _("Drift of the newest run"), _("Largest drift"), _("Begun"),
            _("Missed"), _("Skipped"),
        ],
        "rows": [_row(each) for each in statistics.schedules],
        "note": " · ".join(notes),
    }  # fmt: skip


def _row(each: ScheduleStats) -> list[str]:
    states = {"paused": _("paused"), "ended": _("ended"), "stopped": _("stopped"), "running": EMPTY}
    coming = states[each.state] if each.next_ms is None else day_and_time(each.next_ms)
    drifts = [span(ms) or EMPTY for ms in (each.drift_ms, each.worst_ms)]
    return [each.name, each.topic, coming, *drifts, *map(number, (each.ran, each.missed, each.skipped))]
