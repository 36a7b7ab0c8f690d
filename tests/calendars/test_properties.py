"""What holds for all calendars, moments and durations, around changes of clocks in five zones."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st

from delaytasks import Calendar
from delaytasks.calendars import registry

# Changes of an hour, of half an hour, at midnight, on the southern half of the earth; and a day that was skipped.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Pacific/Apia"]
WEEKS = [
    {"mon-fri": "09:00-17:00"},
    {"mon-sun": "00:00-24:00"},
    {"mon-fri": "22:00-06:00", "sat": "22:00-06:30,12:00-14:00", "sun": "01:30-02:30,03:30-09:00"},
    {"sun": "02:15-02:45,03:00-04:30"},
    {"mon-sun": "00:00-02:30,02:30-23:00"},
]

moments = st.integers(0, 22 * 366 * 86_400).map(lambda s: datetime(2009, 1, 1, tzinfo=UTC) + timedelta(seconds=s))
durations = st.timedeltas(timedelta(), timedelta(hours=90))


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    closed = draw(st.lists(st.dates(date(2011, 12, 20), date(2012, 1, 10)), max_size=3))
    registry.unregister("drawn")
    return Calendar(
        "drawn", tz=draw(st.sampled_from(ZONES)), hours=draw(st.sampled_from(WEEKS)),
        holidays=closed, editable=False,
    )  # fmt: skip


@given(calendars(), moments, durations)
def test_between_is_the_inverse_of_add_and_subtract(calendar, moment, duration):
    assert calendar.between(moment, calendar.add(moment, duration)) == duration
    assert calendar.between(calendar.subtract(moment, duration), moment) == duration
    if duration:
        assert calendar.subtract(moment, -duration) == calendar.add(moment, duration)


@settings(max_examples=50)
@given(calendars(), moments, st.timedeltas(timedelta(), timedelta(days=8)), durations)
def test_add_and_subtract_are_monotone(calendar, moment, later, duration):
    assert calendar.add(moment, duration) <= calendar.add(moment + later, duration)
    assert calendar.subtract(moment, duration) <= calendar.subtract(moment + later, duration)
    assert calendar.add(moment, duration) <= calendar.add(moment, duration + later)
    assert calendar.add(moment, duration) >= moment >= calendar.subtract(moment, duration)


@given(calendars(), moments, durations, st.timedeltas(timedelta(microseconds=1), timedelta(hours=90)))
def test_durations_add_up(calendar, moment, first, second):
    assert calendar.add(calendar.add(moment, first), second) == calendar.add(moment, first + second)


@settings(max_examples=50)
@given(
    calendars(), moments, st.timedeltas(timedelta(), timedelta(days=20)), st.timedeltas(timedelta(), timedelta(days=9))
)
def test_open_time_adds_up_and_is_at_most_elapsed_time(calendar, start, first, second):
    middle, end = start + first, start + first + second
    assert calendar.between(start, middle) + calendar.between(middle, end) == calendar.between(start, end)
    assert calendar.between(start, end) <= end - start
    assert calendar.between(end, start) == -calendar.between(start, end)


@given(calendars(), moments)
@example(Calendar("gap", tz="America/New_York", hours=WEEKS[3], editable=False), datetime(2026, 3, 1, 8, tzinfo=UTC))
def test_openings_and_closings_are_the_edges_of_open_time(calendar, moment):
    tick = timedelta(microseconds=1)
    if {*map(str, calendar.date_info(date(2020, 6, 1)).windows)} == {"00:00-24:00"}:  # never closes
        assert calendar.is_open(moment) or moment.year in (2011, 2012)
        return
    # In UTC: in the zone, a tick before 03:00 may be a time that clocks skip, which is later than 03:00.
    opening, closing = (at.astimezone(UTC) for at in (calendar.next_opening(moment), calendar.next_closing(moment)))
    assert calendar.is_open(opening)
    assert not calendar.is_open(opening - tick)
    assert calendar.is_open(closing - tick)
    assert not calendar.is_open(closing)
    assert calendar.is_open(moment) == (calendar.add(moment, timedelta()) == moment)
    assert (closing < opening) == calendar.is_open(moment)


def slow_between(zone: str, week: dict[str, str], start: datetime, minutes: int) -> timedelta:
    """Count open minutes one by one, by what clocks show; for windows without edges in a gap or an overlap."""
    names = ["mon", "tue", "wed", "thu", "fri"]
    count = 0
    for n in range(minutes):
        local = (start + timedelta(minutes=n)).astimezone(ZoneInfo(zone))
        count += local.weekday() < len(names) and 9 * 60 <= local.hour * 60 + local.minute < 17 * 60
    return timedelta(minutes=count)


@settings(max_examples=30)
@given(st.sampled_from(ZONES), st.integers(0, 366 * 24 * 60), st.integers(0, 6_000))
@example("Pacific/Apia", 0, 10_000)
def test_open_time_is_what_counting_minutes_gives(zone, offset, minutes):
    """Pacific/Apia had no 30 December 2011, a Friday."""
    start = datetime(2011, 12, 26, tzinfo=UTC) + timedelta(minutes=offset)
    calendar = Calendar(f"slow {zone}", tz=zone, hours=WEEKS[0], editable=False)
    assert calendar.between(start, start + timedelta(minutes=minutes)) == slow_between(zone, WEEKS[0], start, minutes)
