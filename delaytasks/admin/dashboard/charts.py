"""The board's charts: series of numbers with formatted texts."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from django.utils import dateformat
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ... import formatting
from ...monitoring import forecast, last_hour
from ...monitoring.forecast import Forecast
from ...monitoring.last_hour import EventCounts, LastHour
from ...states import FAILURES, Outcome
from .labels import clock_time, local, number, span, topic_counts

Json = dict[str, Any]
LATENESS_TICKS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)  # in ms
MINUTES, HOURS, ENDED, TROUBLE, LATE = "minutes", "hours", "ended", "trouble", "late"
LAST_HOUR_CHARTS = (ENDED, TROUBLE, LATE)


def titles() -> list[tuple[str, Any]]:
    """Return (name, title) of each chart in the order of the page."""
    return [
        (MINUTES, _("Due per minute, the next hour")),
        (HOURS, _("Due per hour, the next 24 hours")),
        (LATE, _("Lateness of started jobs, the last hour")),
        (ENDED, _("Ended per minute, the last hour")),
        (TROUBLE, _("Failures per minute, the last hour")),
    ]


def due_chart(jobs: Forecast, label: Callable[[int], str], *, every: int) -> Json:
    """Return a bar chart of the number of due jobs per minute or hour.

    every   the number of minutes or hours between two labels of the axis
    """
    bins = jobs.bins
    unit = jobs.width_ms
    notes = [] if jobs.sum.complete else [_("+ means at least this many: counting took too long.")]
    return {
        "labels": [label(each.at_ms) for each in bins],
        "ticks": [(n, _tick(each.at_ms, unit)) for n, each in enumerate(bins) if _has_tick(each.at_ms, unit, every)],
        "series": [
            {"name": "due", "label": pgettext("how many are", "due"), "values": [each.due.number for each in bins]}
        ],
        "legend": [("herd", _("herd: many more jobs than before and after"))]
        if any(each.herd for each in bins)
        else [],
        "texts": [[number(each.due) for each in bins]],
        "more": [n for n, each in enumerate(bins) if not each.due.complete],
        "herds": [(n, number(each.due)) for n, each in enumerate(bins) if each.herd],
        "remarks": {n: topic_counts(each.topics) for n, each in enumerate(bins) if each.topics},
        "news": [_herd(each, label) for each in bins if each.topics],
        "notes": notes,
        "summary": _summary(jobs, label),
    }


def _has_tick(ms: int, unit: int, every: int) -> bool:
    moment = local(ms)
    return (moment.minute if unit == forecast.MINUTE_MS else moment.hour) % every == 0


def _tick(ms: int, unit: int) -> str:
    """Return the label of a tick: the time or, at midnight on an axis of hours, the day of the week."""
    moment = local(ms)
    return dateformat.format(moment, "D") if unit == forecast.HOUR_MS and moment.hour == 0 else clock_time(ms)


def _herd(each: forecast.Bin, label: Callable[[int], str]) -> str:
    return _("%(number)s at %(time)s: %(topics)s") % {
        "number": number(each.due), "time": label(each.at_ms), "topics": topic_counts(each.topics),
    }  # fmt: skip


def _summary(jobs: Forecast, label: Callable[[int], str]) -> str:
    most = max(jobs.bins, key=lambda each: each.due.number)
    if not most.due.number:
        return _("No jobs fall due.")
    text = ngettext(
        "%(sum)s falls due. The busiest time is %(time)s: %(most)s.",
        "%(sum)s fall due. The busiest time is %(time)s: %(most)s.",
        jobs.sum.number,
    )
    return text % {"sum": number(jobs.sum), "time": label(most.at_ms), "most": number(most.due)}


# -- last hour -----------------------------------------------------------------------------------


def hour_charts(hour: LastHour, topics: Collection[str] | None) -> Json:
    series = hour.series(topics)
    minutes = [minute * last_hour.MINUTE_MS for minute, _tally in series]
    tallies = [tally for _minute, tally in series]
    notes = [] if hour.complete else [_("Not all of the hour is counted yet: there were too many events.")]
    frame = {
        "labels": [clock_time(ms) for ms in minutes],
        "ticks": [(n, clock_time(ms)) for n, ms in enumerate(minutes) if _has_tick(ms, forecast.MINUTE_MS, 10)],
        "notes": notes,
    }
    return {
        ENDED: frame | _counts(tallies, [Outcome.FINISHED, Outcome.CANCELLED, Outcome.SKIPPED]),
        TROUBLE: frame | _counts(tallies, FAILURES),
        LATE: frame | _lateness(tallies),
    }


def _counts(tallies: Sequence[EventCounts], outcomes: Sequence[Outcome]) -> Json:
    """Return a stacked bar chart of the number of events, with a series per outcome."""
    columns = [[tally.outcomes[each] for tally in tallies] for each in outcomes]
    labels = [str(formatting.OUTCOMES[each]) for each in outcomes]
    return {
        "series": [
            {"name": each.value, "label": label, "values": values}
            for each, label, values in zip(outcomes, labels, columns, strict=True)
        ],
        "legend": [(each.value, label) for each, label in zip(outcomes, labels, strict=True)],
        "texts": [[number(n) for n in values] for values in columns],
        "summary": formatting.join(f"{label} {sum(values):,}" for label, values in zip(labels, columns, strict=True)),
    }


def _lateness(tallies: Sequence[EventCounts]) -> Json:
    """Return a line chart of the lateness (p50, p99 and the worst), on a logarithmic scale."""
    lines = [
        ("p50", _("p50"), [t.late_ms(0.5) for t in tallies]),
        ("p99", _("p99"), [t.late_ms(0.99) for t in tallies]),
        ("worst", _("the worst"), [t.worst_ms for t in tallies]),
    ]
    worst = max((ms for ms in lines[2][2] if ms is not None), default=None)
    summary = _("No job was started.") if worst is None else _("The worst was %(span)s late.") % {"span": span(worst)}
    return {
        "series": [{"name": name, "label": label, "values": values} for name, label, values in lines],
        "legend": [(name, label) for name, label, _values in lines],
        "texts": [[span(ms) for ms in values] for _name, _label, values in lines],
        "ladder": [(ms, span(ms)) for ms in LATENESS_TICKS],
        "summary": summary,
    }
