"""recurring(): declare a schedule in code, beside its handler."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Unpack
from zoneinfo import ZoneInfo

from .. import handlers
from ..handlers import HandlerOptions, Single
from ..jobs.handles import Handle
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

    name     str, of the schedule; None: the topic
    tz       IANA name of the zone whose clocks cron and rrule mean
    cron     five fields, as Debian's cron reads them; "L" is the last day of a month
    every    timedelta or seconds from 0.1 on: elapsed time from `start` on, without drift
    rrule    a recurrence rule of RFC 5545; `start` is its DTSTART
    delay, period, repeat
             repeat + 1 runs, `period` apart, the first `delay` after `start`, or after each time of cron; repeat=None:
             without end; repeat needs period
    start    aware datetime; None: when the schedule is first applied, which is then the first run of a series without
             delay, and of a rule that has this time
    gap      for a time of cron or rrule that clocks skip: "run" at the end of the gap, or "skip"
    overlap  for one that they show twice: "once", the first time, or "both"
    missed   for firings that could not begin on time: "all" run, only the "last" due one, or "none"
    within   timedelta or seconds: what could not begin so soon after its time is skipped
    running  if the run before is still running: "skip" this one, "queue" it, or "allow" both
    body     the body of its jobs, JSON; None is stored as {}
    was      names of this schedule in earlier versions: its row is renamed and its chain goes on

    The other options are those of handler(). `ttr` is stored with the schedule: in a deployment, processes of the old
    version may make its jobs, too. `manage.py delaytasks schedules apply` stores the schedule, after
    migrate; until then nothing runs.

    Raises BadSchedule, BadTimeZone, and the exceptions of handler().
    """
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
