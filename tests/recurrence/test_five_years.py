"""Five years of ten schedules in five zones on the test kit's virtual clock, compared with tables.

The tables: each wall time on its day, by walking through the instants around it; and known changes of clocks by hand.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from delaytasks import handlers
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.testing import Timeouts

pytestmark = pytest.mark.django_db
FIRST, LAST = datetime(2025, 1, 2, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
STEP = timedelta(minutes=15)

# Of each zone: its Sundays on which clocks may change, at a time that is then skipped or shown twice; and the last day
# of each month, by a recurrence rule.
SUNDAYS = {
    "Europe/Berlin": ((3, 10), time(2, 30)),
    "America/New_York": ((3, 11), time(1, 30)),
    "Australia/Lord_Howe": ((4, 10), time(2, 15)),
    "America/Santiago": ((4, 9), time(0, 30)),
    "Asia/Kolkata": ((3, 10), time(2, 30)),
}
KNOWN = {
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T00:30", "2027-03-28T01:00"],  # a gap, an overlap, a gap
    "America/New_York": ["2026-03-08T06:30", "2026-11-01T05:30"],  # before the gap; the first of two
    "Australia/Lord_Howe": ["2026-10-03T15:30", "2026-04-04T15:45"],  # a gap of half an hour; after the overlap
    "America/Santiago": ["2026-09-06T04:00", "2026-04-05T04:30"],  # a gap at midnight
    "Asia/Kolkata": ["2026-03-28T21:00"],
}


def instant(day: date, at: time, zone: ZoneInfo) -> datetime:
    """Return the first instant of this day at which clocks show this time or a later one."""
    moment = datetime.combine(day, at, UTC) - timedelta(hours=15)
    while True:
        local = moment.astimezone(zone)
        if local.date() == day and local.time() >= at:
            return moment
        moment += STEP


def days() -> Iterator[date]:
    day = date(2025, 1, 2)
    while day < date(2030, 1, 2):
        yield day
        day += timedelta(days=1)


def table(zone_name: str) -> dict[str, list[datetime]]:
    """Return the instants of the two schedules of a zone."""
    zone, ((first, second), at) = ZoneInfo(zone_name), SUNDAYS[zone_name]
    sundays = [instant(day, at, zone) for day in days() if day.isoweekday() == 7 and day.month in (first, second)]
    ends = [instant(day, time(23, 45), zone) for day in days() if (day + timedelta(days=1)).day == 1]
    return {
        f"sundays.{zone_name.replace('/', '-')}": [each for each in sundays if FIRST < each <= LAST],
        f"ends.{zone_name.replace('/', '-')}": [each for each in ends if FIRST < each <= LAST],
    }


@pytest.fixture
def begun() -> Iterator[dict[str, list[datetime]]]:
    """The instants at which the runs of each schedule have begun."""
    found: dict[str, list[datetime]] = defaultdict(list)

    def note(job: Any) -> None:
        found[job.key.partition("@")[0]].append(job.due_at)

    handlers.handler("tick")(note)
    yield found
    handlers.unregister("tick")


@pytest.mark.timeouts(reconciles=False)
def test_five_years_of_ten_schedules_in_five_zones(timeouts: Timeouts, begun: dict[str, list[datetime]]) -> None:
    """500 runs of the engine: some seconds. There are no rows with timeouts to reconcile."""
    timeouts.travel_to(FIRST)
    for zone, (months, at) in SUNDAYS.items():
        name = zone.replace("/", "-")
        cron = f"{at.minute} {at.hour} * {months[0]},{months[1]} 0"
        rule = "FREQ=MONTHLY;BYMONTHDAY=-1;BYHOUR=23;BYMINUTE=45;BYSECOND=0"
        schedules.define(Definition(f"sundays.{name}", "tick", tz=zone, cron=cron))
        schedules.define(Definition(f"ends.{name}", "tick", tz=zone, rrule=rule))
    timeouts.advance_to(LAST)
    expected = {name: instants for zone in SUNDAYS for name, instants in table(zone).items()}
    assert len(expected) == 10
    assert dict(begun) == expected
    for zone, known in KNOWN.items():
        instants = begun[f"sundays.{zone.replace('/', '-')}"]
        assert {datetime.fromisoformat(each).replace(tzinfo=UTC) for each in known} <= set(instants), zone
