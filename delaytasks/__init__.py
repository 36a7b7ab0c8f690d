"""Business timeouts for Django. The public names are resolved lazily, so importing this is always safe."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "handler": "topics",
    "Snooze": "topics",
    "Retry": "topics",
    "schedule": "scheduling",
    "schedule_many": "scheduling",
    "cancel": "changing",
    "reschedule": "changing",
    "run_now": "changing",
    "retry_dead": "changing",
    "CancelResult": "changing",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
