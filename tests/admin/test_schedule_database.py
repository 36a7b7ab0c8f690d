"""The form of a schedule reads the database of jobs, to which the router writes."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import RequestFactory

from delaytasks import databases
from delaytasks.admin.recurrence import schedule_form
from delaytasks.admin.recurrence.schedules import ScheduleAdmin
from delaytasks.models import Schedule, Topic
from tests.support.databases import SECOND

pytestmark = [
    pytest.mark.only_on("sqlite"), pytest.mark.django_db(databases=["default", SECOND]),
    pytest.mark.usefixtures("second_database"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _jobs_are_in_the_second(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [SimpleNamespace(db_for_write=lambda model, **hints: SECOND)]


def test_the_form_offers_the_topics_of_that_database() -> None:
    Topic.objects.using("default").create(name="elsewhere")
    Topic.objects.using(SECOND).create(name="here")
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_active=True)
    field = ScheduleAdmin(Schedule, site).formfield_for_dbfield(Schedule._meta.get_field("topic"), request)
    assert {"elsewhere", "here"} & {name for name, _ in field.choices} == {"here"}


def test_the_preview_begins_at_the_time_of_that_database(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"default": 0, SECOND: 1_893_456_000_000}  # the second: 2030-01-01
    monkeypatch.setattr(databases, "now_ms", times.__getitem__)
    lines = schedule_form.preview_lines(
        {"tz": "UTC", "cron": "0 0 * * *", "gap": "run", "overlap": "once", "repeat": 0}
    )
    assert lines[0].startswith("2030-01-0"), lines
