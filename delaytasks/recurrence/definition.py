"""Definition: the validated times, job and policies of a schedule."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from .. import clock
from ..calendars.wall_time import to_zone
from ..exceptions import BadSchedule, BadTopic, short_repr
from ..validators import check_topic, to_ttr_ms
from .cron import Cron
from .intervals import Every, Series, Times
from .rrule import RRule
from .wall_times import Gap, Overlap

if TYPE_CHECKING:
    from ..models import Schedule

Missed = Literal["all", "last", "none"]
Running = Literal["skip", "queue", "allow"]
Duration = timedelta | float | int
MAX_NAME = 100
FIRST_YEAR, LAST_YEAR = 1900, 9000  # limits of `start`, with a margin to those of datetime
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "gap": get_args(Gap), "overlap": get_args(Overlap), "missed": get_args(Missed), "running": get_args(Running),
}  # fmt: skip
TIMES = ("tz", "cron", "every", "rrule", "delay", "period", "repeat", "start", "gap", "overlap")


@dataclass(frozen=True)
class Definition:
    """A schedule's definition; recurring() explains the fields. Raises BadSchedule, BadTimeZone, BadTopic, BadTTR."""

    name: str
    topic: str
    tz: str = "UTC"
    cron: str = ""
    every: Duration | None = None
    rrule: str = ""
    delay: Duration | None = None
    period: Duration | None = None
    repeat: int | None = 0
    start: datetime | None = None
    gap: Gap = "run"
    overlap: Overlap = "once"
    missed: Missed = "last"
    within: Duration | None = None
    running: Running = "skip"
    body: Any = field(default_factory=dict)
    ttr: Duration | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_topic(self.topic)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadSchedule(f"{name} is {short_repr(getattr(self, name))}: use one of {', '.join(choices)}.")
        if self.start is not None and (not isinstance(self.start, datetime) or self.start.utcoffset() is None):
            raise BadSchedule(f"start is {short_repr(self.start)}: give an aware datetime.")
        if self.start is not None and not FIRST_YEAR <= self.start.year <= LAST_YEAR:
            raise BadSchedule(f"start is {self.start.isoformat()}: give a year from {FIRST_YEAR} to {LAST_YEAR}.")
        if self.ttr is not None:
            to_ttr_ms(self.ttr)
        to_ms(self.within, "within")
        self.times(self.start or datetime(2026, 1, 1, tzinfo=UTC))

    def times(self, start: datetime) -> Times:
        """Return the times of the schedule.

        start   aware: the start of every= and of a series, the DTSTART of rrule=, and the earliest time of cron=
        """
        return _times(self._key(clock.to_ms(start)))

    def _key(self, start_ms: int) -> tuple[Any, ...]:
        durations = tuple(to_ms(getattr(self, name), name) for name in ("every", "delay", "period"))
        return (self.tz, self.cron, self.rrule, *durations, self.repeat, start_ms, self.gap, self.overlap)

    def made_until(self, now: datetime) -> datetime:
        """Return the initial made_until of a new schedule: firings later than it are made.

        It is just before `now` if the schedule may have its first run at `now`.
        """
        begins_with_start = self.rrule or (not self.cron and self.every is None)
        return now - timedelta(milliseconds=1) if self.start is None and begins_with_start else now

    def columns(self) -> dict[str, Any]:
        """Return the values of the columns of Schedule, except start_at."""
        return {
            "name": self.name, "topic": self.topic, "body": self.body, "tz": to_zone(self.tz).key,
            "cron": self.cron or "", "rrule": self.rrule or "", "repeat": self.repeat,
            "gap": self.gap, "overlap": self.overlap, "missed": self.missed, "running": self.running,
            "ttr_ms": None if self.ttr is None else to_ttr_ms(self.ttr),
            **{f"{name}_ms": to_ms(getattr(self, name), name) for name in ("every", "delay", "period", "within")},
        }  # fmt: skip


def check_name(name: object) -> str:
    """Return the name of a schedule if it is valid. Raises BadSchedule."""
    try:
        return check_topic(name)
    except BadTopic:
        raise BadSchedule(
            f"{short_repr(name)} is not a schedule's name: use 1 to {MAX_NAME} of A-Z a-z 0-9 . _ -, "
            "beginning with a letter or digit, for example 'report.daily'."
        ) from None


def to_ms(duration: Duration | None, what: str) -> int | None:
    """Convert a duration (timedelta or seconds) to ms. Raises BadSchedule."""
    if duration is None:
        return None
    if isinstance(duration, bool) or not isinstance(duration, timedelta | int | float):
        raise BadSchedule(f"{what} is {short_repr(duration)}: give a timedelta or a number of seconds.")
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds <= 3660 * 86_400:
        raise BadSchedule(f"{what} is {short_repr(duration)}: give from 0 s to ten years.")
    return round(seconds * 1000)


def of_row(row: "Schedule") -> Definition:
    """Return the definition that a row stores. Raises BadSchedule if the row was stored without being checked."""
    return Definition(**terms_of_row(row))


def terms_of_row(row: "Schedule") -> dict[str, Any]:
    """Return the fields of the definition that a row stores, without checking them."""
    durations = ("every", "delay", "period", "within", "ttr")
    values: dict[str, Any] = {name: _from_ms(getattr(row, f"{name}_ms")) for name in durations}
    same = {each.name for each in fields(Definition)} - values.keys() - {"start", "repeat"}
    repeat = 0 if row.period_ms is None else row.repeat  # repeat has no meaning without period
    return {"start": row.start_at, "repeat": repeat, **values, **{name: getattr(row, name) for name in same}}


def times_of_row(row: "Schedule") -> Times:
    """Return the times of a row. Raises BadSchedule, BadTimeZone."""
    return of_row(row).times(row.start_at)


def past_times_of_row(row: "Schedule") -> Times:
    """Return the times of a row for a backfill: with cron, also those before its start. Raises as times_of_row()."""
    return of_row(row).times(datetime(FIRST_YEAR, 1, 1, tzinfo=UTC) if row.cron else row.start_at)


def state_of(row: "Schedule", now: datetime) -> str:
    """Return the state of a schedule: "running", "paused", "ended", or "stopped", which its `problem` explains."""
    if row.problem:
        return "stopped"
    if row.paused:
        return "paused"
    # row.ended: all jobs are made, those of the next ten seconds ahead. made_until is the time of the last one.
    return "ended" if row.ended and row.made_until <= now else "running"


def _from_ms(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


@functools.lru_cache(maxsize=2000)
def _times(key: tuple[Any, ...]) -> Times:
    tz, cron, rrule, every_ms, delay_ms, period_ms, repeat, start_ms, gap, overlap = key
    zone, start = to_zone(tz), clock.from_ms(start_ms)
    series = delay_ms is not None or period_ms is not None
    given = [name for name, value in (("cron", cron), ("every", every_ms is not None), ("rrule", rrule)) if value]
    if len(given) > 1 or (series and given not in ([], ["cron"])) or not (given or series):
        found = ", ".join([*given, *(["delay or period"] if series else [])]) or "none of them"
        raise BadSchedule(
            f"A schedule needs one of cron, every and rrule, or delay or period, alone or with cron; it has {found}."
        )
    if not series and repeat != 0:
        remedy = {"every": "remove repeat", "rrule": "remove it and write COUNT in the rule"}.get(given[0])
        raise BadSchedule(
            f"repeat is {repeat!r} with {given[0]}, which has its own runs: {remedy}."
            if remedy
            else f"repeat is {repeat!r} without period: give the time between two runs as period."
        )
    if every_ms is not None:
        return Every(timedelta(milliseconds=every_ms), zone, start=start)
    if rrule:
        return RRule(rrule, zone, start=start.astimezone(zone), gap=gap, overlap=overlap)
    base = Cron(cron, zone, gap=gap, overlap=overlap, start=start) if cron else None
    if not series:
        assert base is not None
        return base
    return Series(
        zone, start=start, delay=_from_ms(delay_ms) or timedelta(), period=_from_ms(period_ms), repeat=repeat, cron=base
    )


def body_text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))
