"""What the board shows, as JSON: tiles in words, and charts as numbers with a text for each of them."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import DatabaseError
from django.utils import dateformat, timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import clock, engine, forecast, health, lasthour, words
from ..counting import NOTHING, Count, together
from ..forecast import Forecast, Standing
from ..lasthour import LastHour, Tally
from ..states import Outcome

logger = logging.getLogger("delaytasks")
Json = dict[str, Any]
Place = Callable[..., str]
OK, LOOK, BAD, PLAIN = "ok", "look", "bad", ""
SLOW_MS, STUCK_MS = 5_000, 60_000  # what waits longer is worth a look; so long, something is wrong
FAILING = 0.1  # of all attempts
NAMED = 3  # topics that a tile names
LADDER = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)
MINUTES, HOURS, ENDED, TROUBLE, LATE = "minutes", "hours", "ended", "trouble", "late"


def titles() -> list[tuple[str, Any]]:
    """The charts in the order of the page: (name, title)."""
    return [
        (MINUTES, _("Due per minute, the next hour")),
        (HOURS, _("Due per hour, the next 24 hours")),
        (LATE, _("How late jobs were begun, the last hour")),
        (ENDED, _("What ended, per minute, the last hour")),
        (TROUBLE, _("What went wrong, per minute, the last hour")),
    ]


def of(using: str, only: Collection[str] | None, *, place: Place) -> Json:
    """The whole board, of the topics in `only` (None: of all jobs). What cannot be counted is None."""
    minutes = _if_possible(forecast.minutes, using, only)
    hours = _if_possible(forecast.hours, using, only)
    standings = _if_possible(forecast.standings, using, only)
    hour = _if_possible(lasthour.last_hour, using)
    machinery = _if_possible(health.health, using)
    charts: Json = {
        MINUTES: minutes and due_chart(minutes, _clock, every=10),
        HOURS: hours and due_chart(hours, _day_and_clock, every=3),
        **(hour_charts(hour, only) if hour else dict.fromkeys((ENDED, TROUBLE, LATE))),
    }
    tiles = [
        *(due_tiles(minutes, hours) if minutes and hours else ()),
        *(standing_tiles(standings, place) if standings is not None else ()),
        *(hour_tiles(hour, only) if hour else ()),
        *(health_tiles(machinery) if machinery else ()),
    ]
    return {"at": _at(engine.now_ms(using)).strftime("%H:%M:%S"), "tiles": tiles, "charts": charts}


def _if_possible(ask: Callable[..., Any], *args: Any) -> Any:
    """What it answers; None where the database refuses, so that the rest of the board stands."""
    try:
        return ask(*args)
    except DatabaseError as error:
        logger.warning("the board could not ask for %s: %s", ask.__name__, error)
        return None


# -- words --------------------------------------------------------------------------------------


def _at(ms: int) -> datetime:
    return timezone.localtime(clock.from_ms(ms))


def _clock(ms: int) -> str:
    return _at(ms).strftime("%H:%M")


def _day_and_clock(ms: int) -> str:
    return dateformat.format(_at(ms), "D H:i")


def number(count: Count | int) -> str:
    """ "40,000"; of what was not counted to its end "13,000+", cut to two digits."""
    if isinstance(count, int):
        return f"{count:,}"
    if count.whole:
        return f"{count.number:,}"
    step = 10 ** max(0, len(str(count.number)) - 2)
    return f"{count.number // step * step:,}+"


def _span(ms: int | None) -> str:
    return "" if ms is None else words.span(ms)


def _names(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    named = ", ".join(names[:NAMED])
    return named if rest <= 0 else _("%(names)s and %(n)d more") % {"names": named, "n": rest}


def tile(name: str, label: str, value: str, *notes: str, level: str = PLAIN, url: str = "") -> Json:
    said = {OK: "", PLAIN: "", LOOK: _("worth a look"), BAD: _("something is wrong")}[level]
    return {
        "name": name, "label": label, "value": value, "notes": [n for n in notes if n], "level": level, "said": said,
        "url": url,
    }  # fmt: skip


# -- what will happen ---------------------------------------------------------------------------


def due_tiles(minutes: Forecast, hours: Forecast) -> Iterator[Json]:
    note = _("%(number)s in the next 24 hours") % {"number": number(hours.sum)}
    yield tile("due", _("Due in the next hour"), number(minutes.sum), note)


def due_chart(found: Forecast, label: Callable[[int], str], *, every: int) -> Json:
    """Bars. `every` so many minutes or hours the axis says which it is."""
    bins = found.bins
    unit = found.width_ms
    notes = [] if found.sum.whole else [_("A + means: so many at least. There was no time to count them all.")]
    return {
        "labels": [label(each.at_ms) for each in bins],
        "ticks": [(n, _tick(each.at_ms, unit)) for n, each in enumerate(bins) if _on_the(each.at_ms, unit, every)],
        "series": [{"name": "due", "label": _("due"), "values": [each.due.number for each in bins]}],
        "legend": [("herd", _("herd: many times more than around it"))] if any(each.herd for each in bins) else [],
        "texts": [[number(each.due) for each in bins]],
        "more": [n for n, each in enumerate(bins) if not each.due.whole],
        "herds": [(n, number(each.due)) for n, each in enumerate(bins) if each.herd],
        "remarks": {n: _who(each.topics) for n, each in enumerate(bins) if each.topics},
        "news": [_herd(each, label) for each in bins if each.topics],
        "notes": notes,
        "summary": _summary(found, label),
    }


def _on_the(ms: int, unit: int, every: int) -> bool:
    moment = _at(ms)
    return (moment.minute if unit == forecast.MINUTE_MS else moment.hour) % every == 0


def _tick(ms: int, unit: int) -> str:
    """The time; at midnight the day, where the axis has hours."""
    moment = _at(ms)
    return dateformat.format(moment, "D") if unit == forecast.HOUR_MS and moment.hour == 0 else _clock(ms)


def _who(topics: Iterable[tuple[str, Count]]) -> str:
    return ", ".join(f"{topic} {number(count)}" for topic, count in topics)


def _herd(each: forecast.Bin, label: Callable[[int], str]) -> str:
    return _("%(number)s at %(time)s: %(topics)s") % {
        "number": number(each.due), "time": label(each.at_ms), "topics": _who(each.topics),
    }  # fmt: skip


def _summary(found: Forecast, label: Callable[[int], str]) -> str:
    most = max(found.bins, key=lambda each: each.due.number)
    if not most.due.number:
        return _("Nothing falls due.")
    return _("%(sum)s fall due, most of them at %(time)s: %(most)s.") % {
        "sum": number(found.sum), "time": label(most.at_ms), "most": number(most.due),
    }  # fmt: skip


# -- what is ------------------------------------------------------------------------------------


def standing_tiles(standings: dict[str, Standing], place: Place) -> Iterator[Json]:
    def jobs(state: str) -> str:
        return f"{place('admin:delaytasks_job_changelist')}?state={state}"

    ready = together(each.ready for each in standings.values())
    level, notes = _waiting(standings)
    yield tile("ready", _("Due and waiting"), number(ready), *notes, level=level, url=jobs("ready"))
    running = sum(each.reserved for each in standings.values())
    yield tile("reserved", _("Running"), number(running), url=jobs("reserved"))
    dead = together(each.dead for each in standings.values())
    yield tile("dead", _("Dead, not retried yet"), number(dead), *_of_topics(standings, "dead"), url=jobs("dead"))
    paused = [name for name, each in standings.items() if each.paused]
    if paused:
        topics = place("admin:delaytasks_topic_changelist")
        yield tile("paused", _("Paused topics"), number(len(paused)), _names(paused), level=LOOK, url=topics)


def _waiting(standings: dict[str, Standing]) -> tuple[str, list[str]]:
    """How bad it is that jobs wait, and what there is to say of it."""
    waiting = {name: each for name, each in standings.items() if each.oldest_ready_ms is not None}
    oldest = max((each.oldest_ready_ms or 0 for each in waiting.values()), default=None)
    stuck = max((each.oldest_ready_ms or 0 for each in waiting.values() if not each.paused), default=0)
    unknown = [name for name, each in waiting.items() if not each.known]
    notes = [_("nothing is overdue") if oldest is None else _("the oldest for %(span)s") % {"span": _span(oldest)}]
    if unknown:
        notes.append(_("nothing here handles %(topics)s") % {"topics": _names(unknown)})
    return (BAD if stuck >= STUCK_MS else LOOK if stuck >= SLOW_MS or unknown else OK), notes


def _of_topics(standings: dict[str, Standing], what: str) -> list[str]:
    """The topics that have most of it."""
    most = sorted(standings.items(), key=lambda pair: -getattr(pair[1], what).number)
    with_any = [(name, getattr(each, what)) for name, each in most if getattr(each, what) != NOTHING]
    return [_who(with_any[:NAMED])] if with_any else []


def health_tiles(found: health.Health) -> Iterator[Json]:
    yield _mover_tile(found)
    notes = [_agreement(found)] if found.mirror == "up" else [_("due jobs are looked for in the database")]
    if found.mirror == "up" and found.repaired:
        many = ngettext("%(n)s missed job was put back", "%(n)s missed jobs were put back", found.repaired)
        notes.append(many % {"n": number(found.repaired)})
    level = {"up": LOOK if found.differences else OK, "down": BAD, "off": PLAIN}[found.mirror]
    value = {"up": _("up"), "down": _("down"), "off": _("off")}[found.mirror]
    yield tile("mirror", _("Mirror"), value, *notes, level=level)


def _mover_tile(found: health.Health) -> Json:
    if found.looked_ms is None:
        return tile("mover", _("Mover"), _("none yet"), _("no beat and no worker has ever looked"), level=BAD)
    looked = _("looked %(span)s ago") % {"span": _span(found.looked_ms)}
    value = _("alive") if found.moving else _("silent")
    return tile("mover", _("Mover"), value, looked, level=OK if found.moving else BAD)


def _agreement(found: health.Health) -> str:
    if found.audited_ms is None:
        return _("not yet compared with the database")
    said = (
        _("%(found)s of %(checked)s differed, repaired %(span)s ago")
        if found.differences
        else _("agreed with the database on %(checked)s jobs %(span)s ago")
    )
    return said % {
        "found": number(found.differences), "checked": number(found.checked), "span": _span(found.audited_ms),
    }  # fmt: skip


# -- what was -----------------------------------------------------------------------------------


def hour_tiles(hour: LastHour, only: Collection[str] | None) -> Iterator[Json]:
    """What happened in the last hour; `finished` says of how much of it is known."""
    per_topic = hour.topics(only)
    tally = lasthour.total(per_topic.values())
    minutes = hour.minutes_known
    finished, died = tally.outcomes[Outcome.FINISHED], tally.outcomes[Outcome.DEAD]
    rate = _("%(number)s a minute") % {"number": f"{finished / minutes:,.1f}"}
    known = "" if hour.whole else _("of the last %(n)d minutes: too much happened to count it all") % {"n": minutes}
    yield tile("finished", _("Finished, last hour"), number(finished), rate, known)
    yield _late_tile(tally)
    wrong = sum(tally.outcomes[outcome] for outcome in (Outcome.FAILED, Outcome.EXPIRED))
    level = LOOK if wrong > FAILING * (wrong + finished) else PLAIN
    expired = _("%(number)s outlived their TTR") % {"number": number(tally.outcomes[Outcome.EXPIRED])}
    yield tile("wrong", _("Failed attempts, last hour"), number(wrong), expired, level=level)
    most = sorted(per_topic.items(), key=lambda pair: -pair[1].outcomes[Outcome.DEAD])
    who = [(name, Count(each.outcomes[Outcome.DEAD])) for name, each in most if each.outcomes[Outcome.DEAD]]
    yield tile("died", _("Died, last hour"), number(died), _who(who[:NAMED]), level=BAD if died else OK)


def _late_tile(tally: Tally) -> Json:
    p50, p99 = tally.late_ms(0.5), tally.late_ms(0.99)
    if p50 is None or p99 is None:
        return tile("late", _("Late, p99 of the last hour"), "–", _("no job was begun"))
    level = BAD if p99 >= STUCK_MS else LOOK if p99 >= SLOW_MS else OK
    half = _("p50 %(half)s, the worst %(worst)s") % {"half": _span(p50), "worst": _span(tally.worst_ms)}
    return tile("late", _("Late, p99 of the last hour"), _span(p99), half, level=level)


def hour_charts(hour: LastHour, only: Collection[str] | None) -> Json:
    series = hour.series(only)
    minutes = [minute * lasthour.MINUTE_MS for minute, _tally in series]
    tallies = [tally for _minute, tally in series]
    notes = [] if hour.whole else [_("So much happened that not all of the hour could be counted yet.")]
    frame = {
        "labels": [_clock(ms) for ms in minutes],
        "ticks": [(n, _clock(ms)) for n, ms in enumerate(minutes) if _on_the(ms, forecast.MINUTE_MS, 10)],
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
        "summary": ", ".join(f"{label} {sum(values):,}" for label, values in zip(labels, columns, strict=True)),
    }


def _lateness(tallies: Sequence[Tally]) -> Json:
    """Lines on a scale where each step is ten times the one before."""
    lines = [
        ("p50", _("p50"), [t.late_ms(0.5) for t in tallies]),
        ("p99", _("p99"), [t.late_ms(0.99) for t in tallies]),
        ("worst", _("the worst"), [t.worst_ms for t in tallies]),
    ]
    worst = max((ms for ms in lines[2][2] if ms is not None), default=None)
    summary = _("No job was begun.") if worst is None else _("The worst was %(span)s late.") % {"span": _span(worst)}
    return {
        "series": [{"name": name, "label": label, "values": values} for name, label, values in lines],
        "legend": [(name, label) for name, label, _values in lines],
        "texts": [[_span(ms) for ms in values] for _name, _label, values in lines],
        "ladder": [(ms, _span(ms)) for ms in LADDER],
        "summary": summary,
    }
