"""The board's charts: numbers, and a text for each of them."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from django.utils import dateformat
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from .. import forecast, lasthour, words
from ..forecast import Forecast
from ..lasthour import LastHour, Tally
from ..states import Outcome
from .boardwords import clock_time, local, number, span, who

Json = dict[str, Any]
LADDER = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)  # ms
MINUTES, HOURS, ENDED, TROUBLE, LATE = "minutes", "hours", "ended", "trouble", "late"
ABOUT_THE_HOUR = (ENDED, TROUBLE, LATE)


def titles() -> list[tuple[str, Any]]:
    """The charts in the order of the page: (name, title)."""
    return [
        (MINUTES, _("Due per minute, the next hour")),
        (HOURS, _("Due per hour, the next 24 hours")),
        (LATE, _("How late jobs were begun, the last hour")),
        (ENDED, _("What ended, per minute, the last hour")),
        (TROUBLE, _("What went wrong, per minute, the last hour")),
    ]


def due_chart(found: Forecast, label: Callable[[int], str], *, every: int) -> Json:
    """Bars. `every` so many minutes or hours the axis says which it is."""
    bins = found.bins
    unit = found.width_ms
    notes = [] if found.sum.whole else [_("A + means: so many at least. There was no time to count them all.")]
    return {
        "labels": [label(each.at_ms) for each in bins],
        "ticks": [(n, _tick(each.at_ms, unit)) for n, each in enumerate(bins) if _on_the(each.at_ms, unit, every)],
        "series": [
            {"name": "due", "label": pgettext("how many are", "due"), "values": [each.due.number for each in bins]}
        ],
        "legend": [("herd", _("herd: many times more than around it"))] if any(each.herd for each in bins) else [],
        "texts": [[number(each.due) for each in bins]],
        "more": [n for n, each in enumerate(bins) if not each.due.whole],
        "herds": [(n, number(each.due)) for n, each in enumerate(bins) if each.herd],
        "remarks": {n: who(each.topics) for n, each in enumerate(bins) if each.topics},
        "news": [_herd(each, label) for each in bins if each.topics],
        "notes": notes,
        "summary": _summary(found, label),
    }


def _on_the(ms: int, unit: int, every: int) -> bool:
    moment = local(ms)
    return (moment.minute if unit == forecast.MINUTE_MS else moment.hour) % every == 0


def _tick(ms: int, unit: int) -> str:
    """The time; at midnight the day, where the axis has hours."""
    moment = local(ms)
    return dateformat.format(moment, "D") if unit == forecast.HOUR_MS and moment.hour == 0 else clock_time(ms)


def _herd(each: forecast.Bin, label: Callable[[int], str]) -> str:
    return _("%(number)s at %(time)s: %(topics)s") % {
        "number": number(each.due), "time": label(each.at_ms), "topics": who(each.topics),
    }  # fmt: skip


def _summary(found: Forecast, label: Callable[[int], str]) -> str:
    most = max(found.bins, key=lambda each: each.due.number)
    if not most.due.number:
        return _("Nothing falls due.")
    return _("%(sum)s fall due, most of them at %(time)s: %(most)s.") % {
        "sum": number(found.sum), "time": label(most.at_ms), "most": number(most.due),
    }  # fmt: skip


# -- what was -----------------------------------------------------------------------------------


def hour_charts(hour: LastHour, only: Collection[str] | None) -> Json:
    series = hour.series(only)
    minutes = [minute * lasthour.MINUTE_MS for minute, _tally in series]
    tallies = [tally for _minute, tally in series]
    notes = [] if hour.whole else [_("So much happened that not all of the hour could be counted yet.")]
    frame = {
        "labels": [clock_time(ms) for ms in minutes],
        "ticks": [(n, clock_time(ms)) for n, ms in enumerate(minutes) if _on_the(ms, forecast.MINUTE_MS, 10)],
        "notes": notes,
    }
    return {
        ENDED: frame | _counts(tallies, [Outcome.FINISHED, Outcome.CANCELLED]),
        TROUBLE: frame | _counts(tallies, [Outcome.FAILED, Outcome.EXPIRED, Outcome.DEAD]),
        LATE: frame | _lateness(tallies),
    }


def _counts(tallies: Sequence[Tally], outcomes: Sequence[Outcome]) -> Json:
    """Bars that stand on each other, one for each outcome."""
    columns = [[tally.outcomes[each] for tally in tallies] for each in outcomes]
    labels = [str(words.OUTCOMES[each]) for each in outcomes]
    return {
        "series": [
            {"name": each.value, "label": label, "values": values}
            for each, label, values in zip(outcomes, labels, columns, strict=True)
        ],
        "legend": [(each.value, label) for each, label in zip(outcomes, labels, strict=True)],
        "texts": [[number(n) for n in values] for values in columns],
        "summary": words.listed(f"{label} {sum(values):,}" for label, values in zip(labels, columns, strict=True)),
    }


def _lateness(tallies: Sequence[Tally]) -> Json:
    """Lines on a scale where each step is ten times the one before."""
    lines = [
        ("p50", _("p50"), [t.late_ms(0.5) for t in tallies]),
        ("p99", _("p99"), [t.late_ms(0.99) for t in tallies]),
        ("worst", _("the worst"), [t.worst_ms for t in tallies]),
    ]
    worst = max((ms for ms in lines[2][2] if ms is not None), default=None)
    summary = _("No job was begun.") if worst is None else _("The worst was %(span)s late.") % {"span": span(worst)}
    return {
        "series": [{"name": name, "label": label, "values": values} for name, label, values in lines],
        "legend": [(name, label) for name, label, _values in lines],
        "texts": [[span(ms) for ms in values] for _name, _label, values in lines],
        "ladder": [(ms, span(ms)) for ms in LADDER],
        "summary": summary,
    }
