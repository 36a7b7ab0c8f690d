"""What is measured. Each module lists its FORMS; it is imported when it is asked for."""

from importlib import import_module
from importlib.util import find_spec

from ..plan import Form

NAMES = ("schedule", "burst", "punctual", "pending", "cancel", "http", "scale", "idle")


def is_there(name: str) -> bool:
    return find_spec(f"{__name__}.{name}") is not None


def forms_of(name: str) -> list[Form]:
    """The forms of one scenario. Raises ModuleNotFoundError."""
    return import_module(f"{__name__}.{name}").FORMS
