"""Forged evidence with one breach of one promise, or with something allowed that looks like a breach."""

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
    """Register a function whose evidence has exactly this violation of this job."""

    def register(build: Build) -> Build:
        BREACHES.append(Breach(kind, why, job, build))
        return build

    return register


def sound(build: Build) -> Build:
    """Register a function whose evidence has no violation."""
    SOUND.append(build)
    return build


def load_all() -> None:
    """Import every module here, which fills BREACHES and SOUND."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
