"""The board's table of the last days: statistics from the data pipeline's reports, by topic."""

from collections.abc import Collection
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import clock, databases
from ...monitoring.daily_stats import PeriodStats, TopicHistory
from .labels import day_and_time, number, span

Json = dict[str, Any]
MAX_TOPICS = 20  # rows of the table: the topics with the most events


def table(statistics: dict[str, TopicHistory], topics: Collection[str] | None, using: str) -> Json:
    """Return the table's head, its rows (one per topic) and a note.

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
        "rows": [[topic, *_row(past)] for topic, past in most[:MAX_TOPICS]],
        "note": " · ".join(_notes(by_topic, using)),
    }  # fmt: skip


def _row(past: TopicHistory) -> list[str]:
    return [cell for now, before in ((past.day, past.day_before), (past.week, past.week_before))
            for cell in (number(now.happened), change(now, before), span(now.late_p95_ms) or "–")]  # fmt: skip


def change(now: PeriodStats, before: PeriodStats) -> str:
    """Return the change in the number of events, for example "+12 %"; a dash if there were none before."""
    if not before.happened:
        return "–"
    percent = round(100 * (now.happened - before.happened) / before.happened)
    return f"{percent:+,d} %".replace("-", "−") if percent else "0 %"


def _notes(by_topic: dict[str, TopicHistory], using: str) -> list[str]:
    newest_ms = max(clock.to_ms(each.newest) for each in by_topic.values())
    age = span(max(0, databases.now_ms(using) - newest_ms))
    notes = [_("newest hour in the reports: %(time)s, %(age)s ago") % {"time": day_and_time(newest_ms), "age": age}]
    more = len(by_topic) - MAX_TOPICS
    if more > 0:
        notes.append(ngettext("%(n)s more topic", "%(n)s more topics", more) % {"n": number(more)})
    return notes
