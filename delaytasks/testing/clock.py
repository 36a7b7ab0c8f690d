"""The virtual clock: one time for timezone.now(), for Django's Now() and db_default=Now(), and for the engine's SQL."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from unittest.mock import patch

from django.db.models import DateTimeField, Value
from django.db.models.expressions import DatabaseDefault
from django.db.models.functions import Now
from django.utils import timezone

from .. import databases
from ..clock import from_ms
from ..db import dialects
from .exceptions import ClockConflict

_AS_SQL = ("as_sql", "as_postgresql", "as_sqlite", "as_mysql", "as_oracle")


class VirtualClock:
    """A clock that moves only by set(). While time-machine is active, reads and moves time-machine's clock instead."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.installed: type[datetime] | None = None  # replaces the class `datetime` of django.utils.timezone

    def now_ms(self) -> int:
        """Return the time in ms since 1970. Raises ClockConflict while freezegun is active."""
        check_freezegun()
        # freezegun replaces the class again when it ends.
        if self.installed is not None and vars(timezone)["datetime"] is not self.installed:
            raise ClockConflict("Another library has replaced the clock of django.utils.timezone during this test.")
        return time.time_ns() // 1_000_000 if _traveller() else self._now_ms

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        now_ms = self.now_ms()
        return datetime.now(UTC) if _traveller() else from_ms(now_ms)

    def set(self, now_ms: int) -> None:
        traveller = _traveller()
        if traveller is None:
            self._now_ms = now_ms
        else:  # rounded up, so that the clock is never before now_ms
            traveller.shift(timedelta(microseconds=-((time.time_ns() - now_ms * 1_000_000) // 1000)))


def check_freezegun() -> None:
    freezegun = sys.modules.get("freezegun.api")
    if freezegun is not None and freezegun.freeze_factories:
        raise ClockConflict(
            "freezegun is active, but the test kit has a clock of its own, and freezegun also stops time.monotonic(). "
            "Remove freeze_time() and call advance() or travel_to(), or use time-machine, whose clock the kit follows."
        )


def _traveller() -> Any:
    """Return the active traveller of time-machine, which moves its clock, or None."""
    time_machine = sys.modules.get("time_machine")
    stack = getattr(time_machine, "traveller_stack", None) or getattr(time_machine, "coordinates_stack", None)
    return stack[-1] if stack else None


@contextmanager
def patched(clock: VirtualClock) -> Iterator[None]:
    """Make Django and the engine use the clock inside the block. NOW() in raw SQL is still the server's time."""
    with ExitStack() as stack:
        # Patch what timezone.now() calls: many modules and fields hold a reference to the function now() itself.
        clock.installed = _datetime_class(clock)
        stack.enter_context(patch.object(timezone, "datetime", clock.installed))
        for method in _AS_SQL:
            stack.enter_context(patch.object(Now, method, _now_sql(clock), create=True))
        stack.enter_context(patch.object(DatabaseDefault, "as_sql", _default_sql(DatabaseDefault.as_sql)))
        dialects.set_clock(clock.now_ms)
        stack.callback(databases.clock.cache_clear)  # cached clocks may be set to the virtual time
        stack.callback(dialects.set_clock, None)
        yield


def _datetime_class(clock: VirtualClock) -> type[datetime]:
    class AnyDatetime(type):
        def __instancecheck__(cls, instance: object) -> bool:  # templates convert only instances of this class
            return isinstance(instance, datetime)

    class VirtualDatetime(datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            moment = clock.now()
            return moment.astimezone().replace(tzinfo=None) if tz is None else moment.astimezone(tz)

    return VirtualDatetime


def _now_sql(clock: VirtualClock) -> Any:
    def as_sql(self: Now, compiler: Any, connection: Any, **_: Any) -> Any:
        return compiler.compile(Value(clock.now(), DateTimeField()).resolve_expression(compiler.query))

    return as_sql


def _default_sql(original: Any) -> Any:
    """Return an as_sql() for DatabaseDefault: PostgreSQL's DEFAULT would be the server's time."""

    def as_sql(self: Any, compiler: Any, connection: Any) -> Any:
        if any(isinstance(each, Now) for each in self.expression.flatten()):
            return compiler.compile(self.expression)
        return original(self, compiler, connection)

    return as_sql
