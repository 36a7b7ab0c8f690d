"""The scenarios. Each module lists its FORMS and is imported on demand."""

from importlib import import_module
from importlib.util import find_spec

from ..plan import Form

NAMES = ("schedule", "burst", "slow", "punctual", "pending", "cancel", "http", "scale", "forward", "idle")


def exists(name: str) -> bool:
    return find_spec(f"{__name__}.{name}") is not None


def forms_of(name: str) -> list[Form]:
    """Return the forms of a scenario. Raises ModuleNotFoundError."""
    return import_module(f"{__name__}.{name}").FORMS
