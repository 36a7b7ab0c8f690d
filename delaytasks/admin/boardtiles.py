"""The board's tiles: one number each, what there is to say of it, and whether it is worth a look."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf, health, lasthour
from ..counting import NOTHING, Count, together
from ..forecast import Forecast, Standing, Standings
from ..lasthour import LastHour, Tally
from ..states import Outcome
from .boardwords import NAMED, names, number, span, who
from .lateness import SLOW_MS, STUCK_MS

Json = dict[str, Any]
Place = Callable[..., str]
OK, LOOK, BAD, PLAIN = "ok", "look", "bad", ""
AUDITS_MISSED = 3  # then nobody knows whether the mirror agrees
FAILING = 0.1  # of all attempts


def tile(name: str, label: str, value: str, *notes: str, level: str = PLAIN, url: str = "") -> Json:
    said = {OK: "", PLAIN: "", LOOK: _("worth a look"), BAD: _("something is wrong")}[level]
    return {
        "name": name, "label": label, "value": value, "notes": [n for n in notes if n], "level": level, "said": said,
        "url": url,
    }  # fmt: skip


def due_tiles(minutes: Forecast, hours: Forecast) -> Iterator[Json]:
    note = _("%(number)s in the next 24 hours") % {"number": number(hours.sum)}
    yield tile("due", _("Due in the next hour"), number(minutes.sum), note)


# -- what is ------------------------------------------------------------------------------------


def standing_tiles(found: Standings, place: Place, topic: str = "") -> Iterator[Json]:
    standings = found.topics
    of_all = "" if found.whole else _("of %(n)d topics: there are more") % {"n": len(standings)}

    def jobs(state: str) -> str:
        query = {"state": state} | ({"topic": topic} if topic else {})
        return f"{place('admin:delaytasks_job_changelist')}?{urlencode(query)}"

    def sum_of(counts: Iterable[Count]) -> str:
        return number(together([*counts, Count(0, found.whole)]))

    ready = sum_of(each.ready for each in standings.values())
    level, notes = _waiting(standings, found.whole)
    yield tile("ready", _("Due and waiting"), ready, *notes, of_all, level=level, url=jobs("ready"))
    running = sum_of(Count(each.reserved) for each in standings.values())
    yield tile("reserved", _("Running"), running, of_all, url=jobs("reserved"))
    dead = sum_of(each.dead for each in standings.values())
    yield tile("dead", _("Dead, not retried yet"), dead, *_of_topics(standings, "dead"), of_all, url=jobs("dead"))
    paused = [name for name, each in standings.items() if each.paused]
    if paused:
        topics, many = place("admin:delaytasks_topic_changelist"), number(Count(len(paused), found.whole))
        yield tile("paused", _("Paused topics"), many, names(paused), of_all, level=LOOK, url=topics)


def _waiting(standings: dict[str, Standing], whole: bool) -> tuple[str, list[str]]:
    """How bad it is that jobs wait, and what there is to say of it."""
    waiting = {name: each for name, each in standings.items() if each.oldest_ready_ms is not None}
    oldest = max((each.oldest_ready_ms or 0 for each in waiting.values()), default=None)
    stuck = max((each.oldest_ready_ms or 0 for each in waiting.values() if not each.paused), default=0)
    unknown = [name for name, each in waiting.items() if not each.known]
    notes = [_("the oldest for %(span)s") % {"span": span(oldest)}] if oldest is not None else []
    if oldest is None and whole:
        notes = [_("nothing is overdue")]
    if unknown:
        notes.append(_("nothing here handles %(topics)s") % {"topics": names(unknown)})
    return (BAD if stuck >= STUCK_MS else LOOK if stuck >= SLOW_MS or unknown else OK), notes


def _of_topics(standings: dict[str, Standing], what: str) -> list[str]:
    """The topics that have most of it."""
    most = sorted(standings.items(), key=lambda pair: -getattr(pair[1], what).number)
    with_any = [(name, getattr(each, what)) for name, each in most if getattr(each, what) != NOTHING]
    return [who(with_any[:NAMED])] if with_any else []


def health_tiles(found: health.Health) -> Iterator[Json]:
    yield _mover_tile(found)
    notes = [_agreement(found)] if found.mirror == "up" else [_("due jobs are looked for in the database")]
    if found.mirror == "up" and found.repaired:
        many = ngettext("%(n)s missed job was put back", "%(n)s missed jobs were put back", found.repaired)
        notes.append(many % {"n": number(found.repaired)})
    if found.rebuilt > 1:  # the first time is how it begins
        notes.append(_("filled anew %(n)s times") % {"n": number(found.rebuilt - 1)})
    lately = found.audited_ms is None or found.audited_ms <= AUDITS_MISSED * conf.get().audit_seconds * 1000
    level = {"up": OK if lately and not found.differences else LOOK, "down": BAD, "off": PLAIN}[found.mirror]
    value = {"up": _("up"), "down": _("down"), "off": _("off")}[found.mirror]
    yield tile("mirror", _("Mirror"), value, *notes, level=level)


def _mover_tile(found: health.Health) -> Json:
    if found.looked_ms is None:
        return tile("mover", _("Mover"), _("none yet"), _("no beat and no worker has ever looked"), level=BAD)
    looked = _("looked %(span)s ago") % {"span": span(found.looked_ms)}
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
        "found": number(found.differences), "checked": number(found.checked), "span": span(found.audited_ms),
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
    of = [(name, Count(each.outcomes[Outcome.DEAD])) for name, each in most if each.outcomes[Outcome.DEAD]]
    yield tile("died", _("Died, last hour"), number(died), who(of[:NAMED]), level=BAD if died else OK)


def _late_tile(tally: Tally) -> Json:
    p50, p99 = tally.late_ms(0.5), tally.late_ms(0.99)
    if p50 is None or p99 is None:
        return tile("late", _("Late, p99 of the last hour"), "–", _("no job was begun"))
    level = BAD if p99 >= STUCK_MS else LOOK if p99 >= SLOW_MS else OK
    half = _("p50 %(half)s, the worst %(worst)s") % {"half": span(p50), "worst": span(tally.worst_ms)}
    return tile("late", _("Late, p99 of the last hour"), span(p99), half, level=level)
