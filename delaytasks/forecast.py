"""What will fall due, and what is due now: per minute, per hour and per topic, for people who look at a board.

Counted at a bounded cost (see counting.py) and kept for a moment for everybody. `topics` is always what
somebody may see: None for all jobs, or the names of the only topics whose jobs are counted.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from . import counting, engine, keeping
from . import topics as registry
from .counting import NOTHING, Cell, Count, together
from .models import Topic

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
SECONDS, HOURS_SECONDS, NOW_SECONDS = 0.05, 0.07, 0.03  # of counting, for each kind of numbers
FRESH_SECONDS = 4
HOURS_FRESH_SECONDS = 60
HERD_TIMES, HERD_LEAST = 3, 50  # so many times what is usual around it, and at least so many
AROUND = 6  # bins on each side that say what is usual
NAMED_HERDS, NAMED_TOPICS = 3, 3
FEW = 20  # topics
OLDEST_ROWS = 4_000  # looked at, of all topics together, for what is reserved
FAR_MS = 100 * 366 * 86_400_000


class Bin(NamedTuple):
    at_ms: int  # its beginning, a whole minute or hour
    due: Count
    herd: bool = False
    topics: tuple[tuple[str, Count], ...] = ()  # of the largest herds: the topics with most of it


class Forecast(NamedTuple):
    now_ms: int
    width_ms: int
    bins: tuple[Bin, ...]  # of the first, only what is still to come

    @property
    def sum(self) -> Count:
        return together(each.due for each in self.bins)


def minutes(using: str, topics: Collection[str] | None) -> Forecast:
    """What falls due in each of the next 60 minutes, this one included; a few seconds old."""
    return _forecast(using, topics, MINUTE_MS, 60, FRESH_SECONDS, SECONDS)


def hours(using: str, topics: Collection[str] | None) -> Forecast:
    """What falls due in each of the next 24 hours, this one included; up to a minute old once all of it was counted.

    Where there is too much for one look, numbers stand that looks before found: for some minutes, a few hours a look.
    """
    return _forecast(using, topics, HOUR_MS, 24, HOURS_FRESH_SECONDS, HOURS_SECONDS)


Span = tuple[int, int]  # from ms on, before ms
Due = dict[tuple[str | None, int], counting.Known]  # (topic, or None for all; the span's key) -> how many


def _forecast(
    using: str, topics: Collection[str] | None, width_ms: int, count: int, fresh: float, seconds: float
) -> Forecast:
    def look(before: tuple[Forecast, counting.Memory] | None) -> tuple[Forecast, counting.Memory]:
        now_ms = engine.now_ms(using)
        first = now_ms // width_ms * width_ms
        spans = {at: (max(at, now_ms + 1), at + width_ms) for at in range(first, first + count * width_ms, width_ms)}
        known = {key: each for key, each in before[1].items() if key[1] != first} if before else {}
        due = _due(using, [None] if topics is None else _with_jobs(using, topics), spans, known, seconds)
        at_once = defaultdict(list)
        for (_, at), each in due.items():
            at_once[at].append(each.counted)
        bins = [Bin(at, together(at_once[at])) for at in spans]
        places = herds([each.due.number for each in bins])
        largest = sorted(places, key=lambda place: -bins[place].due.number)[:NAMED_HERDS]
        if topics is None and largest:  # whose they are was not asked yet
            herding = {bins[place].at_ms: spans[bins[place].at_ms] for place in largest}
            due |= _due(using, counting.live_topics(using), herding, known, SECONDS)
        marked = (
            each._replace(herd=place in places, topics=_most(due, each.at_ms) if place in largest else ())
            for place, each in enumerate(bins)
        )
        return Forecast(now_ms, width_ms, tuple(marked)), due

    def fresh_for(kept: tuple[Forecast, counting.Memory]) -> float:
        counted = all(known.counted.whole and not known.old for known in kept[1].values())
        return fresh if counted else min(fresh, FRESH_SECONDS)

    found: tuple[Forecast, Any] = keeping.keep(keeping.name_of("due", width_ms, using, topics=topics), fresh_for, look)
    return found[0]


def _with_jobs(using: str, topics: Collection[str]) -> list[str]:
    """Those of the topics that have live jobs; nearly all of many have none. Few are not worth the question."""
    live = set(counting.live_topics(using)) if len(topics) > FEW else set()
    return sorted(topics) if not 0 < len(live) < counting.TOPICS else sorted(live.intersection(topics))


def _due(
    using: str, topics: Sequence[str | None], spans: dict[int, Span], before: counting.Memory, seconds: float
) -> Due:
    """How many jobs of each topic (None: of all) fall due in each span."""
    cells = {(topic, at): Cell(topic, *span) for topic in topics for at, span in spans.items()}
    return counting.live(using, cells, before, seconds=seconds)


def herds(numbers: Sequence[int]) -> list[int]:
    """The places in `numbers` that are many times what is usual around them."""
    found = []
    for place, number in enumerate(numbers):
        around = [*numbers[max(0, place - AROUND) : place], *numbers[place + 1 : place + 1 + AROUND]]
        if number >= max(HERD_LEAST, HERD_TIMES * statistics.median(around or [0])):
            found.append(place)
    return found


def _most(due: Due, at: int) -> tuple[tuple[str, Count], ...]:
    """The topics with most of what falls due then."""
    counts = [(topic, each.counted) for (topic, when), each in due.items() if topic is not None and when == at]
    most = sorted(counts, key=lambda pair: (-pair[1].number, pair[0]))[:NAMED_TOPICS]
    return tuple(pair for pair in most if pair[1].number)


# -- now ----------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """How a topic stands now."""

    delayed: Count  # all of them, also those that the mirror need not know yet
    ready: Count
    reserved: int
    dead: Count
    oldest_ready_ms: int | None  # for how long the oldest one has been waiting
    paused: bool
    known: bool  # it has a handler here or is named in the settings


class Standings(NamedTuple):
    topics: dict[str, Standing]
    live: counting.Memory
    dead: counting.Memory
    whole: bool = True  # False: there are more topics


def standings(using: str, topics: Collection[str] | None) -> dict[str, Standing]:
    """How each of these topics stands; of None: each that has live or dead jobs or is paused. A few seconds old."""
    return most_standings(using, topics).topics


def most_standings(using: str, topics: Collection[str] | None) -> Standings:
    """The same, and whether these are all: more than 500 topics are not looked at."""

    def look(before: Standings | None) -> Standings:
        names, whole = topics, True
        if names is None:
            paused = Topic.objects.using(using).filter(paused=True).values_list("name", flat=True)
            live, dead = counting.live_topics(using), counting.dead_topics(using)
            names, whole = {*live, *dead, *paused}, counting.TOPICS not in (len(live), len(dead))
        found = _standings(using, sorted(names)[: counting.TOPICS], before or Standings({}, {}, {}))
        return found._replace(whole=whole and len(names) <= counting.TOPICS)

    found: Standings = keeping.keep(keeping.name_of("now", using, topics=topics), FRESH_SECONDS, look)
    return found


def standing_now(using: str, topics: Collection[str], *, within_ms: int) -> dict[str, Standing]:
    """How each of these topics stands this moment; delayed are those that fall due within so many ms."""
    return _standings(using, sorted(topics), Standings({}, {}, {}), within_ms).topics


DUE, DELAYED = 0, 1


def _standings(using: str, names: list[str], before: Standings, within_ms: int = FAR_MS) -> Standings:
    now_ms = engine.now_ms(using)
    spans = {DUE: (0, now_ms + 1), DELAYED: (now_ms + 1, now_ms + within_ms + 1)}
    live = _due(using, names, spans, before.live, NOW_SECONDS)
    dead = counting.dead(using, names, before.dead, seconds=NOW_SECONDS)
    due = [name for name in names if live[name, DUE].counted.number]
    held = counting.waiting(using, due, rows=max(200, OLDEST_ROWS // max(1, len(due))))
    paused = set(Topic.objects.using(using).filter(name__in=names, paused=True).values_list("name", flat=True))
    known = set(registry.known())
    found = {
        name: _standing(
            now_ms, live[name, DUE].counted, live[name, DELAYED].counted, dead[name].counted, held.get(name),
            name in paused, name in known,
        )
        for name in names
    }  # fmt: skip
    return Standings(found, live, dead)


def _standing(
    now_ms: int, due: Count, delayed: Count, dead: Count, held: counting.Waiting | None, paused: bool, known: bool
) -> Standing:
    if held is None:
        return Standing(delayed, NOTHING, 0, dead, None, paused, known)
    oldest = None if held.oldest_ms is None else max(0, now_ms - held.oldest_ms)
    ready = Count(max(0, due.number - held.reserved), due.whole)
    return Standing(delayed, ready, held.reserved, dead, oldest, paused, known)
