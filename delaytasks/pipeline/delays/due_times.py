"""Add a delay to a start time, for one row in Python and for each row of a Spark frame.

A delay is a number of days plus a length of time. With a time zone, adding days keeps the local time of day, also when
the clocks change. With a calendar, days are working days, and the time counts only while the calendar is open. Without
a zone and a calendar, a delay has no days. Days and open time are added in Python, by the code of delaytasks.calendars,
because Spark has no calendars and treats local times that a clock change skips differently.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DayTimeIntervalType, LongType, NumericType, StringType

from ... import clock
from ...calendars.durations import WorkingDays
from ...calendars.snapshot import CalendarSnapshot
from ...calendars.wall_time import resolve, to_zone
from ...exceptions import NoOpenHours
from .durations import Duration

DAY_MICROS = 86_400_000_000
MIN_MS = clock.to_ms(datetime(1, 1, 1, tzinfo=UTC))
MAX_MS = clock.to_ms(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))


class BadDelayType(ValueError):
    """The expression of a delay has an unsupported type. The message continues a sentence: "is date: give …"."""


class DelayColumns(NamedTuple):
    """Columns with the delay of each row.

    days      number of days; None: no row has days
    seconds   number of seconds; a string column if the mapping's expression is a string
    """

    days: Column | None
    seconds: Column


def parenthesized(text: str) -> str:
    """Return the expression in parentheses. Without them, Spark reads `60 days` as the number 60 with the alias `days`.

    The line break ends a comment at the end of the expression.
    """
    return f"({text}\n)"


def constant(duration: Duration) -> DelayColumns:
    days = None if duration.days is None else F.lit(duration.days).cast("long")
    return DelayColumns(days, F.lit(duration.seconds))


def from_expression(text: str, kind: DataType, *, zone: str, calendar: str) -> DelayColumns:
    """Return the columns for an expression: a number of seconds, or an interval of days and hours.

    kind   type of the expression

    With a zone or a calendar, the whole days of an interval become `days`. Otherwise `seconds` is the whole interval,
    with days of 24 hours. Raises BadDelayType.
    """
    if isinstance(kind, NumericType | StringType):
        return DelayColumns(None, F.expr(parenthesized(text)))
    if not isinstance(kind, DayTimeIntervalType):
        raise BadDelayType(f"is {kind.simpleString()}: give a number of seconds or an interval of days and hours.")
    micros = f"unix_micros(timestamp_micros(0) + {parenthesized(text)})"
    if kind.startField != DayTimeIntervalType.DAY or not (zone or calendar):
        return DelayColumns(None, F.expr(micros) / 1_000_000)
    if calendar and kind.endField != DayTimeIntervalType.DAY:
        raise BadDelayType(
            f"is {kind.simpleString()}: with a calendar it cannot mix days and hours. Give a number of seconds of open "
            "time, or CAST(… AS INTERVAL DAY) for working days."
        )
    return DelayColumns(F.expr(f"{micros} div {DAY_MICROS}"), F.expr(f"{micros} % {DAY_MICROS}") / 1_000_000)


class DueTimes:
    """Adds delays to start times. Can be pickled, for executors.

    zone       name of the time zone in which days are added; "": none. Not used if there is a calendar
    calendar   result of calendars.snapshot.take(); None: no calendar
    """

    def __init__(self, zone: str = "", calendar: Mapping[str, Any] | None = None) -> None:
        self.zone, self.calendar_values = zone, calendar

    def __getstate__(self) -> dict[str, Any]:
        return {"zone": self.zone, "calendar_values": self.calendar_values}

    @cached_property
    def calendar(self) -> CalendarSnapshot | None:
        return CalendarSnapshot(self.calendar_values) if self.calendar_values else None

    def add(self, moment: datetime, days: int | None, time: timedelta) -> datetime:
        """Return the moment after `days` and then `time`. Neither may be negative.

        As in Calendar.add(), a local time that the clocks skip becomes the end of the gap; of a local time that occurs
        twice, the first is taken. Raises NoOpenHours, and OverflowError beyond the years of datetime.
        """
        if self.calendar:
            if days is not None:
                moment = self.calendar.add(moment, WorkingDays(days))
            return moment if days is not None and not time else self.calendar.add(moment, time)
        if days:
            zone = to_zone(self.zone)
            moment = resolve(moment.astimezone(zone).replace(tzinfo=None) + timedelta(days=days), zone)
        return moment.astimezone(UTC) + time

    def add_ms(self, start_ms: int | None, days: int | None, time_ms: int | None) -> int | None:
        """Return the due time in ms since 1970; None if it cannot be computed.

        That is, if the start or the time is None, the delay is negative, the calendar never opens, or the due time is
        beyond the years of datetime.
        """
        if start_ms is None or time_ms is None or time_ms < 0 or (days or 0) < 0:
            return None
        try:
            return clock.to_ms(self.add(clock.from_ms(start_ms), days, timedelta(milliseconds=time_ms)))
        except (NoOpenHours, OverflowError, ValueError):
            return None

    def due_ms(self, start_ms: Column, days: Column | None, time_ms: Column) -> Column:
        """Return the due time of each row in ms since 1970; null if it cannot be computed."""
        if days is None and not self.calendar_values:
            due_ms = start_ms + time_ms
            return F.when(due_ms.between(MIN_MS, MAX_MS), due_ms)

        # Spark's stubs require the argument functionType, but with type hints Spark warns about it.
        @F.arrow_udf(LongType())  # type: ignore[call-overload]
        def due(start: pyarrow.Array, days: pyarrow.Array, time: pyarrow.Array) -> pyarrow.Array:
            rows = zip(start.to_pylist(), days.to_pylist(), time.to_pylist(), strict=True)
            return pyarrow.array([self.add_ms(*row) for row in rows], type=pyarrow.int64())

        column: Column = due(start_ms, F.lit(None).cast("long") if days is None else days, time_ms)
        return column
