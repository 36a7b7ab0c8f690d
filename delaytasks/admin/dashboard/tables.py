"""The board's tables: the last days by topic, from the data pipeline's reports; and the schedules."""

from collections.abc import Collection
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ... import clock, databases, formatting
from ...monitoring.daily_stats import PeriodStats, TopicHistory
from ...recurrence.statistics import RUNS, ScheduleStats, Statistics
from ..display import EMPTY
from .labels import day_and_time, number, span

Json = dict[str, Any]
MAX_TOPICS = 20  # rows of the table: the topics with the most events


def daily(statistics: dict[str, TopicHistory], topics: Collection[str] | None, using: str) -> Json:
    """Return the head, the rows (one per topic) and the note of the last days' statistics.

    topics   the topics to show; None: all

    Without statistics of these topics, head and rows are empty, and the note says that no report has run yet.
    """
    by_topic = {topic: past for topic, past in statistics.items() if topics is None or topic in topics}
    if not by_topic:
        return {"head": [], "rows": [], "note": _("No report of the data pipeline covers the last days yet.")}
    most = sorted(by_topic.items(), key=lambda pair: (-pair[1].day.happened, -pair[1].week.happened, pair[0]))
    return {
        "head": [
            _("Topic"), _("Events, last 24 h"), _("change from a week earlier"), _("Late, p95 of the worst hour"),
            _("Events, last 7 days"), _("change from a week earlier"), _("Late, p95 of the worst hour"),
        ],
        "rows": [[topic, *_daily_row(past)] for topic, past in most[:MAX_TOPICS]],
        "note": " · ".join(_daily_notes(by_topic, using)),
    }  # fmt: skip


def _daily_row(past: TopicHistory) -> list[str]:
    return [cell for now, before in ((past.day, past.day_before), (past.week, past.week_before))
            for cell in (number(now.happened), change(now, before), span(now.late_p95_ms) or "–")]  # fmt: skip


def change(now: PeriodStats, before: PeriodStats) -> str:
    """Return the change in the number of events, for example "+12 %"; a dash if there were none before."""
    if not before.happened:
        return "–"
    percent = round(100 * (now.happened - before.happened) / before.happened)
    return f"{percent:+,d} %".replace("-", "−") if percent else "0 %"


def _daily_notes(by_topic: dict[str, TopicHistory], using: str) -> list[str]:
    newest_ms = max(clock.to_ms(each.newest) for each in by_topic.values())
    age = span(max(0, databases.now_ms(using) - newest_ms))
    notes = [_("newest hour in the reports: %(time)s, %(age)s ago") % {"time": day_and_time(newest_ms), "age": age}]
    more = len(by_topic) - MAX_TOPICS
    if more > 0:
        notes.append(ngettext("%(n)s more topic", "%(n)s more topics", more) % {"n": number(more)})
    return notes


def schedules(statistics: Statistics) -> Json:
    """Return the head, the rows (one per schedule, the next to run first) and the note of the schedules' statistics."""
    more = statistics.total - len(statistics.schedules)
    notes = [_("counted over the newest %(n)d runs of each schedule") % {"n": RUNS}] if statistics.schedules else []
    if more > 0:
        notes.append(ngettext("%(n)s more schedule", "%(n)s more schedules", more) % {"n": number(more)})
    return {
        "head": [
            _("Schedule"), _("Topic"), _("Next run"), _("Drift of the newest run"), _("Largest drift"), _("Begun"),
            _("Missed"), _("Skipped"),
        ],
        "rows": [_schedule_row(each) for each in statistics.schedules],
        "note": " · ".join(notes),
    }  # fmt: skip


def _schedule_row(each: ScheduleStats) -> list[str]:
    ended = pgettext("state of a schedule", "ended")
    states = {"paused": _("paused"), "ended": ended, "stopped": _("stopped"), "running": EMPTY}
    coming = states[each.state] if each.next_ms is None else formatting.absolute(clock.from_ms(each.next_ms))
    drifts = [span(ms) or EMPTY for ms in (each.drift_ms, each.worst_ms)]
    return [each.name, each.topic, coming, *drifts, *map(number, (each.ran, each.missed, each.skipped))]
