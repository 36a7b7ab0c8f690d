"""The forms of a scenario. Each form is measured once per repeat and contestant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stand import Testbed

DEFAULT_JOBS = 20_000


@dataclass(frozen=True)
class Options:
    """The options of a run; `database` is that of the contestant being measured."""

    jobs: int = DEFAULT_JOBS
    repeats: int = 3
    database: str = "postgres"

    def scaled(self, full: int) -> int:
        """Scale a number of a full run by --jobs."""
        return max(1, round(full * self.jobs / DEFAULT_JOBS))


@dataclass(frozen=True)
class Measured:
    """One figure of one repeat. `form`, `unit` and `better` override those of the Form if it has several figures."""

    value: float
    more: Mapping[str, float] = field(default_factory=dict)
    form: str = ""
    unit: str = ""
    better: str = ""


Measure = Callable[["Testbed", Options], Measured | Sequence[Measured]]


@dataclass(frozen=True)
class Form:
    """One variant of a scenario.

    needs       a feature that the contestant must list in `can`; "" for none
    only        names of contestants; () for all
    better      "more" or "less"
    repeats     overrides --repeats, for expensive forms
    databases   databases on which delaytasks is measured
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
        """Return whether this contestant is measured in this form."""
        named = not self.only or contestant in self.only
        return named and (not self.needs or self.needs in can) and database in self.databases

    def runs(self, repeat: int, repeats: int) -> bool:
        """Return whether this repeat, counted from 0, includes this form."""
        return repeat < min(repeats, self.repeats or repeats)
