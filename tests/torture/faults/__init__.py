"""The faults: functions that break something in an Arena and repair it, if necessary, before they return.

`uses` names the parts that a fault needs exclusively: faults that use the same part never run together.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

from ..environment import Arena

Inflict = Callable[[Arena], None]


class Fault(NamedTuple):
    name: str  # a clause: "Redis is flushed"
    area: str  # its module
    inflict: Inflict
    uses: frozenset[str]
    needs: tuple[str, ...]  # programs that must be on PATH
    arena: str  # the kind of installation; all "plain" faults share one
    databases: tuple[str, ...]
    quick: bool  # part of the short run

    @property
    def alone(self) -> bool:
        return self.arena != "plain"


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    *,
    uses: str = "",
    needs: tuple[str, ...] = (),
    arena: str = "plain",
    databases: tuple[str, ...] = ("postgres", "sqlite"),
    quick: bool = False,
) -> Callable[[Inflict], Inflict]:
    """Register the decorated function; `uses` is a list of words separated by blanks."""

    def register(inflict: Inflict) -> Inflict:
        assert name not in FAULTS, name
        area = inflict.__module__.rpartition(".")[2]
        FAULTS[name] = Fault(name, area, inflict, frozenset(uses.split()), needs, arena, databases, quick)
        return inflict

    return register


def load_all() -> dict[str, Fault]:
    """Import all modules here; return the faults by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return FAULTS
