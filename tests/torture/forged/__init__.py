"""Forged evidence, each with one breach of one promise, or with something that is allowed and looks like a breach."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

from .forge import Forge

Build = Callable[[Forge], None]


class Breach(NamedTuple):
    kind: str
    why: str
    job: int | None
    build: Build


BREACHES: list[Breach] = []
SOUND: list[Build] = []


def breach(kind: str, why: str, *, job: int | None = 1) -> Callable[[Build], Build]:
    """What the decorated function forges is this violation, of this job, and no other."""

    def register(build: Build) -> Build:
        BREACHES.append(Breach(kind, why, job, build))
        return build

    return register


def sound(build: Build) -> Build:
    """What the decorated function forges is no violation."""
    SOUND.append(build)
    return build


def load_all() -> None:
    """Fill BREACHES and SOUND from every module here."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
