"""Definitions of calendars, what they refuse, and what is defined at the edges."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from delaytasks import Calendar
from delaytasks.calendars import days, hours, minutes
from delaytasks.exceptions import BadCalendar, BadInput, BadTimeZone, NaiveDatetime, NoOpenHours

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2026, 3, 2, 9, tzinfo=BERLIN)
WEEK = {"mon-fri": "09:00-17:00"}


def calendar(name: str = "office", **options: object) -> Calendar:
    return Calendar(name, **{"tz": "Europe/Berlin", "hours": WEEK, "editable": False} | options)  # type: ignore[arg-type]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN)


def test_eight_hours_from_monday_morning_end_at_the_closing():
    office = calendar()
    assert office.add(MONDAY, hours(8)) == at("2026-03-02 17:00")
    assert office.add(MONDAY, hours(8) + minutes(1)) == at("2026-03-03 09:01")
    assert office.subtract(at("2026-03-02 17:00"), hours(8)) == MONDAY


def test_no_time_outside_open_hours_is_the_next_opening():
    assert calendar().add(at("2026-03-02 20:00"), timedelta()) == at("2026-03-03 09:00")


def test_a_day_is_a_working_day_and_24_hours_are_open_hours():
    office = calendar()
    assert office.add(at("2026-03-06 14:00"), days(1)) == at("2026-03-09 14:00")
    assert office.add(MONDAY, hours(24)) == at("2026-03-04 17:00")
    assert office.subtract(at("2026-03-09 14:00"), days(1)) == at("2026-03-06 14:00")


def test_public_holidays_of_a_region_are_closed():
    epiphany = date(2026, 1, 6)  # a holiday in Baden-Württemberg, not in Berlin
    south, north = calendar("south", holidays=("DE", "BW")), calendar("north", holidays=("DE", "BE"))
    assert not south.is_working_day(epiphany)
    assert north.is_working_day(epiphany)
    assert south.date_info(epiphany).source == "holiday"
    assert south.date_info(epiphany).note
    assert not calendar("country", holidays=("DE",)).is_working_day(date(2030, 10, 3))


@pytest.mark.parametrize("options", [{"holidays": [date(2026, 3, 3)]}, {"exceptions": {date(2026, 3, 3): ""}}])
def test_a_moment_counts_as_its_date_in_the_calendars_zone(options):
    office = calendar(**options)
    assert not office.is_working_day(at("2026-03-03 12:00"))
    assert not office.is_working_day(datetime(2026, 3, 2, 23, 30, tzinfo=UTC))
    assert office.date_info(at("2026-03-03 12:00")) == office.date_info(date(2026, 3, 3))
    with pytest.raises(NaiveDatetime):
        office.is_working_day(datetime(2026, 3, 3))  # noqa: DTZ001


@pytest.mark.parametrize("day", ["2026-03-03", None, 5], ids=repr)
@pytest.mark.parametrize("method", ["date_info", "is_working_day"])
def test_a_day_that_is_no_date_is_refused(method, day):
    with pytest.raises(BadInput, match=f"{day!r} is not a date: give a datetime.date or an aware datetime"):
        getattr(calendar(), method)(day)
    with pytest.raises(BadInput, match="is not a date"):
        calendar().days_between(MONDAY, day)


def test_an_exception_beats_a_holiday():
    office = calendar(holidays=("DE",), exceptions={date(2026, 1, 1): "10:00-12:00", date(2026, 1, 2): ""})
    assert office.between(at("2026-01-01 00:00"), at("2026-01-03 00:00")) == hours(2)


def test_a_night_shift_belongs_to_the_day_on_which_it_begins():
    night = calendar(hours={"mon-fri": "22:00-06:00"}, holidays=[date(2026, 3, 7)])
    assert night.is_open(at("2026-03-07 05:59"))  # Friday's shift; Saturday is a holiday
    assert not night.is_open(at("2026-03-07 06:00"))
    assert night.add(at("2026-03-02 22:00"), hours(8)) == at("2026-03-03 06:00")


def test_windows_that_meet_at_midnight_are_not_a_closing():
    weekend = calendar(hours={"sat": "08:00-24:00", "sun": "00:00-20:00"})
    assert weekend.next_closing(at("2026-03-07 12:00")) == at("2026-03-08 20:00")
    assert weekend.next_opening(at("2026-03-07 12:00")) == at("2026-03-14 08:00")


def test_a_night_shift_that_reaches_into_the_next_window_is_counted_once():
    both = calendar(hours={"mon": "22:00-06:00", "tue": "05:00-08:00"})
    assert both.between(at("2026-03-02 00:00"), at("2026-03-04 00:00")) == hours(10)


def test_the_hours_of_a_day_on_which_clocks_change_are_elapsed_time():
    always = calendar(hours={"mon-sun": "00:00-24:00"})
    assert always.between(at("2026-03-29 00:00"), at("2026-03-30 00:00")) == hours(23)
    assert always.between(at("2026-10-25 00:00"), at("2026-10-26 00:00")) == hours(25)


def test_an_opening_that_clocks_skip_is_the_end_of_the_gap():
    early = calendar(hours={"sun": "02:30-04:00"})
    assert early.next_opening(at("2026-03-28 00:00")).astimezone(UTC) == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert early.between(at("2026-03-29 00:00"), at("2026-03-30 00:00")) == hours(1)


def test_an_opening_that_clocks_show_twice_is_the_first():
    early = calendar(hours={"sun": "02:30-04:00"})
    assert early.next_opening(at("2026-10-24 00:00")).astimezone(UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert early.between(at("2026-10-25 00:00"), at("2026-10-26 00:00")) == hours(2.5)


def test_a_day_that_began_before_clocks_were_set_back_over_midnight_stays_open():
    """In Newfoundland in 2010: from Sunday 00:01 to Saturday 23:01."""
    sundays = calendar(tz="America/St_Johns", hours={"sun": "00:00-24:00"})
    opens = datetime(2010, 11, 7, 2, 30, tzinfo=UTC)
    later = opens + minutes(31)
    assert [each.astimezone(sundays.zone).strftime("%a %H:%M") for each in (opens, later)] == ["Sun 00:00", "Sat 23:31"]
    assert sundays.add(opens, minutes(31)).astimezone(UTC) == later
    assert sundays.is_open(later)
    assert sundays.subtract(later, minutes(31)).astimezone(UTC) == opens
    assert list(sundays.open_times(opens, later)) == [(opens, later)]


def test_results_are_in_the_calendars_zone():
    assert calendar().add(MONDAY.astimezone(UTC), hours(1)).tzinfo is calendar().zone


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hours": {}}, "no open hour"),
        ({"hours": {"mon-fri": ""}}, "no open hour"),
        ({"hours": {"mon-fri": "9-17"}}, "HH:MM-HH:MM"),
        ({"hours": {"mon-fri": "09:00-25:00"}}, "outside the day"),
        ({"hours": {"mon-fri": "09:00-09:00"}}, "is empty"),
        ({"hours": {"mon-fri": "09:00-12:00,11:00-17:00"}}, "overlap"),
        ({"hours": {"mon-fri": 9}}, "give a text"),
        ({"hours": {"fri-mon": "09:00-17:00"}}, "from an earlier to a later one"),
        ({"hours": {"monday": "09:00-17:00"}}, "not a day"),
        ({"hours": {"mon-wed": "09:00-17:00", "wed": "09:00-12:00"}}, "twice"),
        ({"hours": "09:00-17:00"}, "give a dict"),
        ({"hours": {1: "09:00-17:00"}}, "not a day"),
        ({"holidays": "DE"}, "give a tuple"),
        ({"holidays": None}, "holidays is None: give a country"),
        ({"holidays": date(2026, 1, 1)}, "give a country and perhaps a region, or dates"),
        ({"holidays": ("XX",)}, "does not know the country or region 'XX'"),
        ({"holidays": ("DE", "ZZ")}, "does not know the country or region 'DE, ZZ'"),
        ({"holidays": ("DE", "BW", "BY")}, "a country and perhaps a region"),
        ({"holidays": [datetime(2026, 1, 1, tzinfo=UTC)]}, "not a date"),
        ({"exceptions": [date(2026, 1, 1)]}, "give a dict"),
        ({"exceptions": {"2026-01-01": ""}}, "not a date"),
        ({"exceptions": {date(2026, 1, 1): "9"}}, "HH:MM-HH:MM"),
        ({"name": ""}, "1 to 100 characters"),
    ],
)  # fmt: skip
def test_a_wrong_definition_is_refused_and_not_registered(options, words):
    with pytest.raises(BadCalendar, match=words):
        calendar(**{"name": "wrong"} | options)
    from delaytasks.calendars import registry

    assert "wrong" not in registry.names()


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "Europe", "", "../etc/passwd", None, "CEST"])
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(BadTimeZone, match="IANA name"):
        calendar(tz=zone)


def test_two_calendars_of_one_name_are_refused_unless_they_are_alike():
    assert calendar() == calendar()
    with pytest.raises(BadCalendar, match="two calendars named 'office'"):
        calendar(tz="UTC")


def test_a_search_is_bounded():
    """One hour in a century, as far as this calendar is concerned."""
    closed = [date(2026, 1, 1) + timedelta(days=n) for n in range(40 * 366)]
    office = calendar(holidays=closed)
    searches: list[Callable[[datetime], object]] = [
        office.next_opening,
        office.next_closing,
        lambda moment: office.add(moment, hours(1)),
        lambda moment: office.add(moment, days(1)),
        lambda moment: office.subtract(moment + timedelta(days=36 * 366), hours(1)),
    ]
    for search in searches:
        with pytest.raises(NoOpenHours, match="within 7,320 days"):
            search(MONDAY)


def test_a_target_beyond_the_horizon_is_refused():
    with pytest.raises(NoOpenHours, match="the duration"):
        calendar().add(MONDAY, hours(10**6))
    with pytest.raises(NoOpenHours, match="the duration"):
        calendar().add(MONDAY, days(10**30))
    with pytest.raises(NoOpenHours, match="7,320 days apart"):
        calendar().between(MONDAY, MONDAY + timedelta(days=7400))
    with pytest.raises(NoOpenHours, match="7,320 days apart"):
        calendar().days_between(MONDAY, MONDAY + timedelta(days=7400))


def test_a_calendar_that_never_closes_has_no_next_closing():
    with pytest.raises(NoOpenHours):
        calendar(hours={"mon-sun": "00:00-24:00"}).next_closing(MONDAY)


def test_wrong_arguments_are_refused():
    office = calendar()
    with pytest.raises(NaiveDatetime):
        office.add(datetime(2026, 1, 1), hours(1))  # noqa: DTZ001
    with pytest.raises(NaiveDatetime):
        office.is_open(date(2026, 1, 1))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="timedelta of open time"):
        office.add(MONDAY, 8)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="whole number of days"):
        days(1.5)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="outside the years"):
        office.add(datetime(9999, 12, 31, tzinfo=UTC), hours(1))
    with pytest.raises(NoOpenHours):
        office.add(datetime(9998, 12, 31, tzinfo=UTC), hours(1000))
    with pytest.raises(NoOpenHours):
        office.subtract(datetime(2, 1, 1, tzinfo=UTC), hours(10_000))


def test_open_times_are_cut_and_joined() -> None:
    calendar = Calendar(
        "shifts", tz="UTC", hours={"mon": "08:00-24:00", "tue": "00:00-06:00, 10:00-12:00"}, editable=False
    )
    monday = datetime(2026, 1, 5, tzinfo=UTC)

    def found(first: float, last: float) -> list[tuple[float, float]]:
        start, end = monday + timedelta(hours=first), monday + timedelta(hours=last)
        return [
            tuple((each - monday) / timedelta(hours=1) for each in span) for span in calendar.open_times(start, end)
        ]

    assert found(0, 48) == [(8, 30), (34, 36)]
    assert found(9, 35) == [(9, 30), (34, 35)]
    assert found(9, 24) == [(9, 24)]
    assert found(30, 34) == found(12, 12) == found(12, 9) == []


def test_open_times_of_a_calendar_that_never_opens_read_no_later_days(monkeypatch: pytest.MonkeyPatch) -> None:
    calendar = Calendar("shut", tz="UTC", hours={"mon": "08:00-09:00"}, editable=False)
    read: list[date] = []
    monkeypatch.setattr(calendar, "_spans", lambda day, stored: read.append(day) or [])
    start = datetime(2026, 1, 5, tzinfo=UTC)
    assert list(calendar.open_times(start, start + timedelta(days=60))) == []
    assert len(read) < 65
