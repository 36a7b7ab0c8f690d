"""Service level as a kind of declared timeout: its due times come from clocks, which each sync of a row stores."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.db.models import Q

from ..calendars import snapshot
from ..timeouts import applied_declarations, conditions
from ..timeouts.declarations import Declaration
from . import clocks, store

logger = logging.getLogger("delaytasks")


@dataclass(frozen=True, eq=False)
class SlaDeclaration(Declaration):
    """A service level declared on a model. Each row has at most one live job, for the next level of its clock.

    target     timedelta of working time
    warn       parts of the target, ascending: (0.5, 0.9)
    start      Q: rows that match start their clock. None: all rows
    pause      Q: rows that match have a paused clock. None: no rows
    stop       Q: rows that match have a stopped clock
    """

    target: timedelta = timedelta(0)
    warn: tuple[float, ...] = ()
    start: Q | None = None
    pause: Q | None = None
    stop: Q = field(default_factory=Q)

    computes_due_times = True

    @property
    def levels(self) -> tuple[float, ...]:
        """The warnings, followed by 1.0, the breach."""
        return (*self.warn, 1.0)

    @cached_property
    def thresholds_ms(self) -> tuple[int, ...]:
        return tuple(-(-(self.target * level) // clocks.MS) for level in self.levels)

    @property
    def conditions(self) -> tuple[Q | None, Q | None, Q]:
        return self.start, self.pause, self.stop

    @property
    def named_conditions(self) -> dict[str, Q]:
        named = zip(("start", "pause", "stop"), self.conditions, strict=True)
        return {name: each for name, each in named if each is not None}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the arguments that determine clocks and due times. Equal in all processes."""
        texts = ["" if each is None else conditions.canonical(each) for each in self.conditions]
        hours = None if self.calendar is None else snapshot.definition(self.calendar)
        meaning = [self.label, repr(self.target), repr(self.levels), hours, *texts]
        return hashlib.sha256(repr(meaning).encode()).hexdigest()

    @cached_property
    def paths(self) -> frozenset[str]:
        found = [conditions.paths(each, self.model) for each in self.conditions if each is not None]
        return frozenset().union(*found)

    # -- methods of Declaration -------------------------------------------------------------------

    def due_times(self, pks: Sequence[Any], using: str) -> Iterator[tuple[str, int]]:
        yield from self._due_times(store.read(self, pks, using, applied_declarations.find(self.topic, using)))

    def _due_times(self, rows: Iterable[store.RowClock]) -> Iterator[tuple[str, int]]:
        for row in rows:
            if row.retried and row.now is not None and row.now.last_due_ms is not None:
                yield row.text, row.now.last_due_ms
                continue
            if row.now is None or not clocks.awaits_level(self, row.now):
                continue
            due = clocks.due_ms(self, row.now)
            if due is not None:
                yield row.text, due
            else:
                name = self.calendar and self.calendar.name
                logger.warning(
                    "%s: the row with the primary key %.80r has no job: the calendar %r has too little open time. "
                    "Check its hours and exceptions.", self.topic, row.text, name,
                )  # fmt: skip

    def before_sync(self, pks: Sequence[Any], using: str, *, noticed: bool) -> Sequence[tuple[str, int]] | None:
        known = applied_declarations.find(self.topic, using)
        rows = store.read(self, pks, using, known, noticed=noticed)
        store.delete_others(self, pks, [row.text for row in rows], using)
        if applied_declarations.is_automatic() or (known is not None and known.fingerprint == self.fingerprint):
            store.save(self, [row for row in rows if row.is_outdated], using)
        return list(self._due_times(rows))

    def outdated(self, pks: Sequence[Any], using: str) -> list[str]:
        rows = store.read(self, pks, using, applied_declarations.find(self.topic, using))
        return [row.text for row in rows if row.is_outdated]
