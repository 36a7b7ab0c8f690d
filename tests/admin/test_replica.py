"""The admin reads the database to which the router writes, even if the router sends reads to a replica."""

from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.admin.utils import quote

from delaytasks.models import CalendarDay, Job, Schedule, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from tests.support.databases import SECOND

from ..support.html_forms import unchanged
from .conftest import TOPIC, make_job

pytestmark = [
    pytest.mark.only_on("sqlite"), pytest.mark.django_db(databases=["default", SECOND]),
    pytest.mark.usefixtures("second_database"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _read_from_replica(settings: Any) -> None:
    """The second database is a replica that lags behind: it has no rows."""

    def db_for_read(model: Any, **hints: Any) -> str | None:
        return SECOND if model._meta.app_label == "delaytasks" else None

    def db_for_write(model: Any, **hints: Any) -> str:
        return "default"

    settings.DATABASE_ROUTERS = [SimpleNamespace(db_for_read=db_for_read, db_for_write=db_for_write)]


@pytest.fixture
def report() -> Schedule:
    return schedules.define(Definition(name="report", topic=TOPIC, every=60))


def test_lists_and_pages_show_rows_that_the_replica_does_not_have_yet(admin_client: Any, report: Schedule) -> None:
    day = CalendarDay.objects.using("default").create(calendar="office", day=date(2030, 1, 2))
    for row in (make_job("order:1"), Topic.objects.using("default").get(name=TOPIC), report, day):
        model = f"/admin/delaytasks/{row._meta.model_name}/"
        assert admin_client.get(model).context["cl"].result_list, model
        assert admin_client.get(f"{model}{quote(row.pk)}/change/").status_code == 200, model


def test_a_schedule_is_changed_and_deleted(admin_client: Any, report: Schedule) -> None:
    page = f"/admin/delaytasks/schedule/{report.pk}/"
    form = unchanged(admin_client.get(f"{page}change/")) | {
        "topic": TOPIC, "gap": "run", "overlap": "once", "missed": "last", "running": "queue",
    }  # fmt: skip
    assert admin_client.post(f"{page}change/", form).status_code == 302
    assert Schedule.objects.using("default").get().running == "queue"
    assert admin_client.get(f"{page}backfill/").status_code == 200
    assert admin_client.post(f"{page}delete/", {"post": "yes"}).status_code == 302
    assert not Schedule.objects.using("default").exists()


def test_a_topic_with_jobs_cannot_be_deleted(admin_client: Any) -> None:
    Topic.objects.using("default").create(name="no.handler")
    Job.objects.using("default").filter(pk=make_job("order:1").pk).update(topic="no.handler")
    assert admin_client.post("/admin/delaytasks/topic/no.handler/delete/", {"post": "yes"}).status_code == 403
