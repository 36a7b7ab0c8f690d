"""The mirror's audit: both sides compared, entry by entry, and put right."""

import logging
from typing import NamedTuple

from . import conf, engine, watching
from .mirror.index import Mirror
from .places import GONE, Entry, Settlement
from .states import State
from .watching import Standing

logger = logging.getLogger("delaytasks")
PAGE = 500
TOLERANCE_MS = 500
EDGE_MS = 300_000  # what has just come into the horizon may not have been fed yet


def audit(using: str | None = None, *, repair: bool = True) -> dict[str, int]:
    """Compare the mirror with the rows within the horizon; counts by name.

    missing  live rows without an entry        late     entries later than the row says
    ghosts   entries without a live row        doubled  jobs in both places
    checked  rows looked at

    What moves meanwhile is looked at twice before it counts. Raises MirrorDown.
    """
    using = engine.alias(using)
    found = engine.mirror_of(using)
    counts = {"missing": 0, "late": 0, "ghosts": 0, "doubled": 0, "checked": 0}
    if found is None:
        return counts
    _rows(found, using, counts, repair)
    _entries(found, using, counts, repair)
    if any(counts[kind] for kind in ("missing", "late", "ghosts", "doubled")):
        logger.warning("mirror audit: %s", counts, extra={"audit": counts})
    return counts


class _Suspect(NamedTuple):
    kind: str
    standing: Standing
    due_score: int | None


def _rows(found: Mirror, using: str, counts: dict[str, int], repair: bool) -> None:
    until_ms = engine.now_ms(using) + conf.get().horizon_ms - EDGE_MS
    after = (0, 0)
    while page := watching.window(using, until_ms=until_ms, after=after, limit=PAGE):
        after = (page[-1].due_ms, page[-1].id)
        counts["checked"] += len(page)
        suspects = _suspects(found, page)
        again = watching.stand(using, [suspect.standing.id for suspect in suspects]) if suspects else []
        for suspect in _suspects(found, again):
            counts[suspect.kind] += 1
            if repair:
                _repair(found, suspect)


def _suspects(found: Mirror, page: list[Standing]) -> list[_Suspect]:
    page = [s for s in page if s.state in (State.DELAYED, State.RESERVED)]
    grace_ms = conf.get().claim_grace_ms + TOLERANCE_MS  # just reserved, about to be claimed
    suspects = []
    for standing, (due, ready) in zip(page, found.scores([(s.id, s.topic) for s in page]), strict=True):
        if due is None and ready is None:
            suspects.append(_Suspect("missing", standing, due))
        elif due is not None and ready is not None:
            suspects.append(_Suspect("doubled", standing, due))
        elif due is not None and due > max(standing.entry_ms, standing.now_ms + grace_ms):
            suspects.append(_Suspect("late", standing, due))
    return suspects


def _repair(found: Mirror, suspect: _Suspect) -> None:
    standing = suspect.standing
    if suspect.kind == "doubled":
        found.settle([Settlement(standing.id, standing.topic, suspect.due_score or 0, GONE)])
    else:
        found.feed([Entry(standing.id, standing.topic, standing.entry_ms)])


def _entries(found: Mirror, using: str, counts: dict[str, int], repair: bool) -> None:
    for entries in found.entries():
        live = {s.id: s.topic for s in _live(using, entries)}
        ghosts = [e for e in entries if live.get(e.id) != e.topic]
        counts["ghosts"] += len(ghosts)
        if repair:
            found.settle(Settlement(e.id, e.topic, e.at_ms, GONE) for e in ghosts)


def _live(using: str, entries: list[Entry]) -> list[Standing]:
    if not entries:
        return []
    standings = watching.stand(using, [e.id for e in entries])
    return [s for s in standings if s.state in (State.DELAYED, State.RESERVED)]
