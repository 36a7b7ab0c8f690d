"""A Django router that follows an explicit choice: `with database("east"): schedule(...)`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_chosen: ContextVar[str | None] = ContextVar("chosen", default=None)


@contextmanager
def database(alias: str) -> Iterator[None]:
    """Route all models to this database inside the block."""
    token = _chosen.set(alias)
    try:
        yield
    finally:
        _chosen.reset(token)


class Router:
    def db_for_read(self, model: Any, **_: Any) -> str | None:
        return _chosen.get()

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return _chosen.get()
