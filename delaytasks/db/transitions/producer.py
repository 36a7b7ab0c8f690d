"""The producer of the jobs that are inserted in this context: the API token whose limit of live jobs counts them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_producer: ContextVar[str | None] = ContextVar("delaytasks_producer", default=None)


@contextmanager
def produced_by(producer: str | None) -> Iterator[None]:
    """Store this producer with the jobs that are inserted inside the block. None: they count towards no limit."""
    token = _producer.set(producer)
    try:
        yield
    finally:
        _producer.reset(token)


def current_producer() -> str | None:
    return _producer.get()
