"""The schedules that are declared in code, by name. schedules.apply() stores them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..exceptions import BadSchedule
from .definition import Definition


@dataclass(frozen=True)
class Declared:
    """A schedule that is declared in code, and its names in earlier versions. Raises BadSchedule."""

    definition: Definition
    was: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.was, str):
            raise BadSchedule(f"was is {self.was!r}: give a tuple of names, ({self.was!r},).")


_declared: dict[str, Declared] = {}


def add(new: Declared) -> None:
    """Declare a schedule. Raises BadSchedule if one with another definition has its name."""
    name = new.definition.name
    if _declared.get(name, new) != new:
        raise BadSchedule(f"There are two schedules named {name!r} in the code: give one of them another name=.")
    _declared[name] = new


def declared() -> dict[str, Declared]:
    """Return the declared schedules by name."""
    return dict(sorted(_declared.items()))


def unregister(name: str) -> None:
    """Remove a declaration. For tests."""
    _declared.pop(name, None)
