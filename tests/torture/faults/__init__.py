"""The faults, each a function that hurts an Arena and, where it lasts, heals it again before it returns.

`uses` names the parts that a fault needs for itself: two faults that use the same are not done at once.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

from ..arena import Arena

Inflict = Callable[[Arena], None]


class Fault(NamedTuple):
    name: str  # a sentence's subject: "Redis is flushed"
    area: str  # the module it is in
    inflict: Inflict
    uses: frozenset[str]
    needs: tuple[str, ...]  # programs that must be on PATH
    arena: str  # which kind of installation it needs; "plain" ones share one
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
    """Register the decorated function; `uses` is words separated by blanks."""

    def register(inflict: Inflict) -> Inflict:
        assert name not in FAULTS, name
        area = inflict.__module__.rpartition(".")[2]
        FAULTS[name] = Fault(name, area, inflict, frozenset(uses.split()), needs, arena, databases, quick)
        return inflict

    return register


def load_all() -> dict[str, Fault]:
    """Every fault of every module here, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return FAULTS
