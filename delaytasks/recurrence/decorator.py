"""recurring(): declare a schedule in code, together with its handler."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Unpack
from zoneinfo import ZoneInfo

from .. import handlers
from ..handlers import HandlerOptions, Single
from ..jobs.handles import Handle
from ..jobs.inputs import to_body
from . import registry
from .definition import Definition, Duration, Missed, Running
from .registry import Declared
from .wall_times import Gap, Overlap


def recurring(
    topic: str,
    *,
    name: str | None = None,
    tz: str | ZoneInfo = "UTC",
    cron: str = "",
    every: Duration | None = None,
    rrule: str = "",
    delay: Duration | None = None,
    period: Duration | None = None,
    repeat: int | None = 0,
    start: datetime | None = None,
    gap: Gap = "run",
    overlap: Overlap = "once",
    missed: Missed = "last",
    within: Duration | None = None,
    running: Running = "skip",
    body: Any = None,
    was: tuple[str, ...] = (),
    **options: Unpack[HandlerOptions],
) -> Callable[[Single], Handle[Single]]:
    """Register the decorated function as the handler of `topic`, and declare a schedule that runs it.

        @recurring("report.daily", cron="30 2 * * 1-5", tz="Europe/Berlin", within=hours(6))
        def daily_report(job: RunningJob) -> None: ...

    name     str, the name of the schedule; None: the topic
    tz       IANA name or ZoneInfo: the time zone of cron and rrule
    cron     five fields, as in Debian's cron; "L" is the last day of a month
    every    timedelta or seconds, 0.1 or more: the elapsed time between two runs, counted from `start` without drift
    rrule    a recurrence rule of RFC 5545; `start` is its DTSTART
    period   timedelta or seconds: a series of `repeat` + 1 runs, `period` apart, that begins at `start`; with cron, at
             each of its times instead
    delay    timedelta or seconds from the beginning of a series to its first run
    repeat   int, needs `period`; None: the series has no end
    start    aware datetime; earlier times of cron have no runs. None: the time at which the schedule is first applied.
             A series without delay, or an rrule that matches this time, then has its first run at once
    gap      for a time of cron or rrule that clocks skip: "run" it at the end of the gap, or "skip" it
    overlap  for a time that clocks show twice: run "once", the first time, or "both" times
    missed   for runs that could not begin on time: run "all" of them, only the "last" one, or "none"
    within   timedelta or seconds: a run that could not begin within this time is skipped
    running  if the previous run has not ended: "skip" the new one, "queue" it, or "allow" both
    body     the body of the jobs, JSON; None is stored as {}
    was      names of this schedule in earlier versions; a stored schedule with such a name is renamed

    The other options are those of handler(), without batch. `ttr` is stored with the schedule, because processes of the
    old version may make its jobs during a deployment. `manage.py delaytasks schedules apply` stores the schedule; call
    it after migrate. Nothing runs before.

    Raises BadSchedule, BadTimeZone, BadBody, BodyTooLarge, and the exceptions of handler().
    """
    to_body(body)
    zone = tz.key if isinstance(tz, ZoneInfo) else tz
    definition = Definition(
        name=name or topic, topic=topic, tz=zone, cron=cron, every=every, rrule=rrule, delay=delay, period=period,
        repeat=repeat, start=start, gap=gap, overlap=overlap, missed=missed, within=within, running=running,
        body={} if body is None else body, ttr=options.get("ttr"),
    )  # fmt: skip
    handlers.check_options("recurring()", options, HandlerOptions)
    register = handlers.handler(topic, **options)

    def declare(function: Single) -> Handle[Single]:
        registry.add(Declared(definition, was))
        return register(function)

    return declare
