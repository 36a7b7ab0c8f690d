"""Exceptions of calendars in the admin, and the picture of a year."""

import re
from collections.abc import Iterator
from datetime import date, datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import Calendar
from delaytasks.calendars import hours, registry
from delaytasks.models import CalendarDay

from ..support.html_forms import unchanged

LIST = "/admin/delaytasks/calendarday/"
ADD = f"{LIST}add/"


@pytest.fixture
def office() -> Iterator[Calendar]:
    yield Calendar("office", tz="Europe/Berlin", hours={"mon-fri": "09:00-17:00"}, holidays=("DE",))
    registry.unregister("office")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    from delaytasks.db import calendar_days

    calendar_days.clear_cache()
    yield
    calendar_days.clear_cache()


def day_of(page: str, text: str) -> str:
    """Return the class of the day whose tooltip begins with this text."""
    (kind,) = re.findall(rf'<td class="dt-day-([\w-]+)" title="{re.escape(text)}', page)
    return kind


def test_an_exception_of_staff_changes_what_the_calendar_calculates(admin_client, office):
    morning = datetime(2026, 3, 2, 9, tzinfo=office.zone)
    assert office.add(morning, hours(8)).day == 2
    admin_client.post(ADD, {"calendar": "office", "day": "2026-03-02", "hours": "", "note": "moving"})
    assert office.add(morning, hours(8)).day == 3
    (row,) = CalendarDay.objects.all()
    changed = {"calendar": "office", "day": "2026-03-02", "hours": "13:00-17:00, 09:00-12:00", "note": ""}
    admin_client.post(f"{LIST}{row.pk}/change/", changed)
    row.refresh_from_db()
    assert row.hours == "09:00-12:00,13:00-17:00"
    assert office.add(morning, hours(7)) == datetime(2026, 3, 2, 17, tzinfo=office.zone)
    admin_client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"})
    assert office.add(morning, hours(8)).day == 2


def test_hours_that_are_newer_than_the_page_are_kept(admin_client, office):
    row = CalendarDay.objects.create(calendar="office", day=date(2026, 3, 2))
    older = {"calendar": "office"} | unchanged(admin_client.get(f"{LIST}{row.pk}/change/"))
    CalendarDay.objects.update(hours="09:00-12:00")
    assert admin_client.post(f"{LIST}{row.pk}/change/", older | {"note": "moving"}).status_code == 302
    row.refresh_from_db()
    assert (row.calendar, row.hours, row.note) == ("office", "09:00-12:00", "moving")


def test_an_exception_opens_a_holiday(office):
    CalendarDay.objects.create(calendar="office", day=date(2026, 1, 1), hours="10:00-12:00")
    assert office.is_open(datetime(2026, 1, 1, 11, tzinfo=office.zone))


def test_the_page_shows_the_year(admin_client, office):
    CalendarDay.objects.create(calendar="office", day=date(2026, 3, 2), note="moving")
    CalendarDay.objects.create(calendar="office", day=date(2026, 3, 7), hours="10:00-14:00")
    page = admin_client.get(LIST, {"calendar": "office", "year": "2026"}).content.decode()
    assert page.count('<table class="dt-month">') == 12
    assert day_of(page, "03/02/2026: closed (moving)") == "changed-closed"
    assert day_of(page, "03/07/2026: 10:00-14:00") == "changed-open"
    assert day_of(page, "01/01/2026: closed (") == "holiday"
    assert day_of(page, "03/03/2026: 09:00-17:00") == "open"
    assert day_of(page, "03/08/2026: closed") == "closed"
    assert f"{ADD}?calendar=office&amp;day=2026-03-03" in page
    assert "year=2027" in page


@pytest.mark.parametrize("year", ["", "x", "20260", "0001", "9999", "²026"])
def test_a_wrong_year_shows_another_one(admin_client, office, year):
    page = admin_client.get(LIST, {"year": year})
    assert page.status_code == 200
    assert page.content.decode().count('<table class="dt-month">') == 12


@pytest.mark.on_both
def test_a_calendar_with_nul_in_the_url_is_not_a_server_error(admin_client, office, settings):
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "nul" not in name]
    assert admin_client.get(LIST, {"calendar": "a\0b"}, follow=True).redirect_chain[-1][0] == f"{LIST}?e=1"


def test_the_years_queries_do_not_grow_with_exceptions(admin_client, office):
    def count() -> int:
        from delaytasks.db import calendar_days

        calendar_days.clear_cache()
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(LIST, {"calendar": "office", "year": "2026"})
        return len(queries)

    few = count()
    CalendarDay.objects.bulk_create(CalendarDay(calendar="office", day=date(2026, 3, n)) for n in range(1, 30))
    assert count() == few


@pytest.mark.parametrize("hours", ["9-17", "09:00-12:00,11:00-13:00"])
def test_wrong_hours_are_refused_with_an_example(admin_client, office, hours):
    page = admin_client.post(ADD, {"calendar": "office", "day": "2026-03-02", "hours": hours, "note": ""})
    assert f"“{hours}” is not valid. Write times that do not overlap, for example" in page.content.decode()
    assert not CalendarDay.objects.exists()


def test_only_editable_calendars_are_offered(admin_client, office):
    Calendar("fixed", tz="UTC", hours={"mon": "09:00-17:00"}, editable=False)
    try:
        page = admin_client.get(ADD).content.decode()
        assert 'value="office"' in page
        assert 'value="fixed"' not in page
        answer = admin_client.post(ADD, {"calendar": "fixed", "day": "2026-03-02", "hours": "", "note": ""})
        assert answer.status_code == 200
        assert not CalendarDay.objects.exists()
    finally:
        registry.unregister("fixed")


def test_the_year_of_a_calendar_that_staff_may_not_change_links_only_to_its_stored_exceptions(admin_client, office):
    Calendar("fixed", tz="UTC", hours={"mon": "09:00-17:00"}, editable=False)
    row = CalendarDay.objects.create(calendar="fixed", day=date(2026, 3, 2))  # from before it was fixed
    try:
        page = admin_client.get(LIST, {"calendar": "fixed", "year": "2026"}).content.decode()
    finally:
        registry.unregister("fixed")
    links = re.findall(r'<td class="dt-day-[^>]*><a href="([^"]*)"', page)
    assert links == [f"{LIST}{row.pk}/change/"], "a form for another day would add it to the calendar office"


def test_one_day_has_one_exception(admin_client, office):
    CalendarDay.objects.create(calendar="office", day=date(2026, 3, 2))
    page = admin_client.post(ADD, {"calendar": "office", "day": "2026-03-02", "hours": "", "note": ""})
    assert "already exists" in page.content.decode()


def test_without_calendars_the_page_says_so(admin_client, monkeypatch):
    monkeypatch.setattr(registry, "_calendars", {})
    assert "No calendar that staff may change" in admin_client.get(LIST).content.decode()


def test_staff_without_permission_to_add_see_no_links(staff, office):
    client = staff("delaytasks.view_calendarday")
    page = client.get(LIST, {"calendar": "office"}).content.decode()
    assert "dt-day-open" in page
    assert ADD not in page
    assert staff().get(LIST).status_code == 403


def test_a_row_that_was_written_past_the_form_is_named_not_ignored(admin_client, office):
    CalendarDay.objects.bulk_create([CalendarDay(calendar="office", day=date(2026, 3, 2), hours="nine")])
    page = admin_client.get(LIST, {"calendar": "office", "year": "2026"}).content.decode()
    assert "2026-03-02: &#x27;nine&#x27; is not a span of open hours" in page
    assert "dt-day-open" in page
