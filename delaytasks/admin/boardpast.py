"""The board's table of the last days: what the data pipeline's reports found, for the topics that somebody may see."""

from collections.abc import Collection
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import clock, engine
from ..lastdays import Past, Stretch
from .boardwords import day_and_time, number, span

Json = dict[str, Any]
MOST = 20  # topics; those with most


def table(found: dict[str, Past], only: Collection[str] | None, using: str) -> Json:
    """The head, a row for each topic, and what there is to say of them. No rows: no report has run for these topics."""
    seen = {topic: past for topic, past in found.items() if only is None or topic in only}
    if not seen:
        return {"head": [], "rows": [], "note": _("No report of the data pipeline tells of the last days yet.")}
    most = sorted(seen.items(), key=lambda pair: (-pair[1].day.happened, -pair[1].week.happened, pair[0]))
    return {
        "head": [
            _("Topic"), _("Events, last 24 h"), _("against the week before"), _("Late, p95 of the worst hour"),
            _("Events, last 7 days"), _("against the week before"), _("Late, p95 of the worst hour"),
        ],
        "rows": [[topic, *_row(past)] for topic, past in most[:MOST]],
        "note": " · ".join(_notes(seen, using)),
    }  # fmt: skip


def _row(past: Past) -> list[str]:
    return [cell for now, before in ((past.day, past.day_before), (past.week, past.week_before))
            for cell in (number(now.happened), change(now, before), span(now.late_p95_ms) or "–")]  # fmt: skip


def change(now: Stretch, before: Stretch) -> str:
    """ "+12 %"; a dash where there is nothing to compare with."""
    if not before.happened:
        return "–"
    percent = round(100 * (now.happened - before.happened) / before.happened)
    return f"{percent:+,d} %".replace("-", "−") if percent else "0 %"


def _notes(seen: dict[str, Past], using: str) -> list[str]:
    newest_ms = max(clock.to_ms(each.newest) for each in seen.values())
    age = span(max(0, engine.now_ms(using) - newest_ms))
    notes = [_("the newest hour is that of %(time)s, %(age)s ago") % {"time": day_and_time(newest_ms), "age": age}]
    more = len(seen) - MOST
    if more > 0:
        notes.append(ngettext("%(n)s more topic", "%(n)s more topics", more) % {"n": number(more)})
    return notes
