"""The cache of the days that staff have changed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta

import pytest
from django.db import connection, transaction

from delaytasks import Calendar
from delaytasks.calendars import registry
from delaytasks.db import calendar_days
from delaytasks.exceptions import BadCalendar
from delaytasks.models import CalendarDay

pytestmark = pytest.mark.django_db(transaction=True)
DAY = date(2030, 1, 2)  # a Wednesday


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calendar]:
    monkeypatch.setattr(calendar_days, "CACHE_SECONDS", 3600.0)
    yield Calendar("cached office", tz="UTC", hours={"mon-fri": "09:00-17:00"})
    registry.unregister("cached office")
    calendar_days.clear_cache()


def test_a_change_that_is_rolled_back_is_not_cached(office: Calendar) -> None:
    with transaction.atomic():
        CalendarDay.objects.create(calendar=office.name, day=DAY)
        assert not office.is_working_day(DAY)
        transaction.set_rollback(True)
    assert office.is_working_day(DAY)
    with transaction.atomic():
        with transaction.atomic():
            CalendarDay.objects.create(calendar=office.name, day=DAY)
            transaction.set_rollback(True)
        assert office.is_working_day(DAY)


def test_a_change_is_seen_before_its_commit_and_afterwards(office: Calendar) -> None:
    assert office.is_working_day(DAY)
    with transaction.atomic():
        CalendarDay.objects.create(calendar=office.name, day=DAY)
        assert not office.is_working_day(DAY)
    assert not office.is_working_day(DAY)
    with transaction.atomic():
        CalendarDay.objects.all().delete()
        assert office.is_working_day(DAY)
    assert office.is_working_day(DAY)


def test_days_are_read_once_if_nobody_changes_them(office: Calendar, django_assert_num_queries: object) -> None:
    with transaction.atomic(), django_assert_num_queries(1):  # type: ignore[operator]
        for _ in range(3):
            assert office.is_working_day(DAY)


@pytest.mark.parametrize("hours", ["9:00-17:00", "09:00-12:00,11:00-13:00", None, ["09:00-12:00"]])
def test_hours_that_cannot_be_read_are_not_stored(office: Calendar, hours: object) -> None:
    with pytest.raises(BadCalendar, match="'cached office' on 2030-01-02: "):
        CalendarDay.objects.create(calendar=office.name, day=DAY, hours=hours)
    assert not CalendarDay.objects.exists()


def test_a_row_whose_hours_cannot_be_read_is_left_out_and_logged_once(
    office: Calendar, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = CalendarDay(calendar=office.name, day=DAY, hours="9:00-17:00")
    CalendarDay.objects.bulk_create([wrong, CalendarDay(calendar=office.name, day=DAY + timedelta(days=1))])
    for _ in range(2):
        assert office.is_working_day(DAY)
        assert not office.is_working_day(DAY + timedelta(days=1))
        calendar_days.refresh(office.name)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "'cached office' on 2030-01-02: '9:00-17:00' is not a span of open hours" in record.getMessage()


@pytest.mark.only_on("postgresql")
def test_what_an_old_snapshot_sees_is_not_used_by_other_threads(office: Calendar) -> None:
    def close() -> None:
        CalendarDay.objects.create(calendar=office.name, day=DAY)
        connection.close()

    def is_open() -> bool:
        found = office.is_working_day(DAY)
        connection.close()
        return found

    with ThreadPoolExecutor(1) as thread, transaction.atomic():
        connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert office.is_working_day(DAY)
        thread.submit(close).result()
        assert office.is_working_day(DAY)
        assert not thread.submit(is_open).result()
    assert not office.is_working_day(DAY)
