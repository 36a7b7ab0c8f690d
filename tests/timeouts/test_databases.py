"""A row and its job are in one database; each database has its own."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models import Q

from delaytasks import Calendar, databases, timeout
from delaytasks.calendars import registry
from delaytasks.db import calendar_days
from delaytasks.models import CalendarDay, Job
from delaytasks.testing import Timeouts
from delaytasks.timeouts import reconcile
from tests.support.databases import SECOND

from .app.models import Order
from .conftest import HALF_HOUR, START

pytestmark = [
    pytest.mark.only_on("sqlite"), pytest.mark.django_db(databases=["default", SECOND]),
    pytest.mark.usefixtures("second_database"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _both_have_jobs(settings: Any, automatic: None) -> Iterator[None]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default", SECOND]}
    yield
    databases.clock.cache_clear()


def live(using: str) -> dict[str, datetime]:
    return {job.key: job.due_at for job in Job.objects.using(using).live()}


@pytest.mark.usefixtures("db_clock")
def test_a_save_and_a_pass_change_the_jobs_of_their_own_database() -> None:
    timeout(Order, on="created_at", after=HALF_HOUR, while_=Q(state="open"), topic="declared.close")(lambda o, j: None)
    Order.objects.create(pk=7, created_at=START)
    other = Order.objects.using(SECOND).create(pk=7, created_at=START + HALF_HOUR)
    assert live("default") == {"order:7": START + HALF_HOUR}
    assert live(SECOND) == {"order:7": START + 2 * HALF_HOUR}
    other.state = "paid"
    other.save()
    assert (list(live("default")), live(SECOND)) == (["order:7"], {})
    Order.objects.update(state="paid")
    Order.objects.using(SECOND).update(state="open")
    assert reconcile.reconcile(SECOND)["declared.close"][:3] == (1, 0, 0)
    assert list(live("default")) == list(live(SECOND)) == ["order:7"]
    other.delete()
    assert (list(live("default")), live(SECOND)) == (["order:7"], {})


@pytest.mark.usefixtures("db_clock")
def test_using_names_the_only_database_whose_rows_have_jobs() -> None:
    timeout(Order, on="created_at", topic="declared.close", using=SECOND)(lambda order, job: None)
    for using in ("default", SECOND):
        Order.objects.using(using).create(created_at=START)
    assert (len(live("default")), len(live(SECOND))) == (0, 1)
    assert (reconcile.reconcile("default"), list(reconcile.reconcile(SECOND))) == ({}, ["declared.close"])


def test_the_edit_of_a_calendar_begins_a_pass_in_each_database_that_answers(
    db_clock: Any, monkeypatch: Any, caplog: Any, django_capture_on_commit_callbacks: Any
) -> None:
    always = Calendar("always open but on one day", tz="UTC", hours={"mon-sun": "00:00-24:00"})
    timeout(Order, on="created_at", after=HALF_HOUR, calendar=always, topic="declared.close")(lambda order, job: None)
    Order.objects.using(SECOND).create(created_at=START)
    reconcile.step_all(SECOND)
    now = databases.now

    def now_of_the_second(using: str) -> datetime:
        if using != SECOND:
            raise OperationalError("no connection")
        return now(using)

    with monkeypatch.context() as patch, django_capture_on_commit_callbacks(execute=True):
        patch.setattr(databases, "now", now_of_the_second)
        CalendarDay.objects.create(calendar=always.name, day=START.date())
    assert "declared.close: no pass began in 'default'" in caplog.text
    db_clock.advance(seconds=2)
    calendar_days.clear_cache()
    reconcile.step_all(SECOND)
    registry.unregister(always.name)
    assert list(live(SECOND).values()) == [START + timedelta(days=1) + HALF_HOUR]


def test_a_job_locks_and_receives_the_row_of_its_own_database() -> None:
    @timeout(Order, on="created_at", after=HALF_HOUR, while_=Q(state="open"), topic="declared.close")
    def close(order: Order, job: Any) -> None:
        order.state = "closed"
        order.save()

    with Timeouts(using=SECOND) as kit:
        for using in ("default", SECOND):
            Order.objects.using(using).create(pk=7, created_at=kit.now)
        assert kit.advance(minutes=30).outcomes == {"finished": 1}
    assert [Order.objects.using(using).get().state for using in ("default", SECOND)] == ["open", "closed"]
