"""Whether the machinery works: does a mover look, does the mirror answer, does it agree with the database."""

from typing import Any, NamedTuple

from . import clock, engine, keeping, metrics
from .models import MirrorMark

FRESH_SECONDS = 4
SILENT_MS = 30_000  # a guard writes down that it looked every ten seconds
DIFFERENCES = ("missing", "ghosts", "late", "doubled")


class Health(NamedTuple):
    now_ms: int
    looked_ms: int | None  # how long ago a mover looked; None: none ever did
    mirror: str  # "up", "down", "off"
    audited_ms: int | None  # how long ago both sides were compared; None: never
    checked: int  # rows that the audit looked at
    differences: int  # that it found, and repaired
    repaired: int  # overdue jobs that the mirror missed, since it was last emptied
    rebuilt: int  # how often it was filled from the database

    @property
    def moving(self) -> bool:
        return self.looked_ms is not None and self.looked_ms < SILENT_MS


def health(using: str) -> Health:
    """A few seconds old."""
    return keeping.keep(keeping.name_of("health", using), FRESH_SECONDS, lambda before: _look(using))


def _look(using: str) -> Health:
    now_ms = engine.now_ms(using)
    mark = MirrorMark.objects.using(using).filter(pk=1).first()
    looked_at = mark.looked_at if mark else None
    audit: dict[str, Any] = (mark.audit if mark else None) or {}
    mirror, counters = metrics.mirror_state(using)
    return Health(
        now_ms,
        None if looked_at is None else max(0, now_ms - clock.to_ms(looked_at)),
        mirror,
        None if "at_ms" not in audit else max(0, now_ms - audit["at_ms"]),
        audit.get("checked", 0),
        sum(audit.get(kind, 0) for kind in DIFFERENCES),
        counters.get("repaired", 0),
        counters.get("rebuilt", 0),
    )
