"""What a scenario says of itself: its forms, each measured once per repeat and contestant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stand import Stand

USUAL_JOBS = 20_000


@dataclass(frozen=True)
class Options:
    """What the caller asked for; `database` is that of the stand that is being measured."""

    jobs: int = USUAL_JOBS
    repeats: int = 3
    database: str = "postgres"

    def scaled(self, usual: int) -> int:
        """A number that is `usual` in a full run, smaller where --jobs is."""
        return max(1, round(usual * self.jobs / USUAL_JOBS))


@dataclass(frozen=True)
class Measured:
    """One figure of one repeat. `form`, `unit` and `better` replace the Form's where a measure has several."""

    value: float
    more: Mapping[str, float] = field(default_factory=dict)
    form: str = ""
    unit: str = ""
    better: str = ""


Measure = Callable[["Stand", Options], Measured | Sequence[Measured]]


@dataclass(frozen=True)
class Form:
    """One way to do a scenario.

    needs       what a contestant's `can` must hold; "" means nothing beyond being there
    only        contestants by name; () means all
    better      "more" or "less": which of two values is the better one
    repeats     instead of --repeats, for what is costly
    databases   on which of them our own column is measured
    """

    scenario: str
    name: str
    unit: str
    measure: Measure
    needs: str = ""
    only: tuple[str, ...] = ()
    better: str = "more"
    repeats: int | None = None
    note: str = ""
    databases: tuple[str, ...] = ("postgres", "sqlite")

    def fits(self, contestant: str, can: Collection[str], database: str) -> bool:
        """Whether this contestant is measured in this form."""
        named = not self.only or contestant in self.only
        return named and (not self.needs or self.needs in can) and database in self.databases

    def runs(self, repeat: int, repeats: int) -> bool:
        """Whether repeat number `repeat`, from 0, includes this form."""
        return repeat < min(repeats, self.repeats or repeats)
