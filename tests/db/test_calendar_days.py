"""The cache of the days that staff have changed."""

from collections.abc import Iterator
from datetime import date

import pytest
from django.db import transaction

from delaytasks import Calendar
from delaytasks.calendars import registry
from delaytasks.db import calendar_days
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
