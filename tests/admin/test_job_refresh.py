"""The polling of a live job's page: requests and responses."""

import re
from datetime import timedelta

import pytest
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import cancel, run_now
from delaytasks.admin.jobs import JobAdmin
from delaytasks.models import Job, Topic
from delaytasks.states import Outcome, State

from .conftest import TOPIC, make_event, make_job

LIST = "/admin/delaytasks/job/"


def page_of(client, job):
    return client.get(f"{LIST}{job.pk}/change/").content.decode()


def mark_of(client, job):
    return re.search(r'data-mark="([^"]+)"', page_of(client, job))[1]


def now_of(client, job, mark=""):
    answer = client.get(f"{LIST}{job.pk}/now/", {"mark": mark})
    assert "no-store" in answer["Cache-Control"]
    return answer.json()


@pytest.mark.parametrize("state", State, ids=lambda state: state.word)
def test_only_the_page_of_a_live_job_polls_for_changes(admin_client, state):
    followed = "data-mark=" in page_of(admin_client, make_job("order:1", state))
    assert followed is (state in (State.DELAYED, State.READY, State.RESERVED))


def test_an_unchanged_job_returns_no_html(admin_client):
    job = make_job("order:1")
    mark = mark_of(admin_client, job)
    assert now_of(admin_client, job, mark) == {"mark": mark, "live": True}


def test_a_changed_job_returns_the_html_of_the_page(admin_client):
    job = make_job("order:1")
    mark = mark_of(admin_client, job)
    cancel(TOPIC, key="order:1", by="ann", reason="<b>paid</b>")
    data = now_of(admin_client, job, mark)
    page = page_of(admin_client, job)
    assert (data["live"], data["mark"] == mark) == (False, False)
    assert data["says"] == "This job is cancelled. This is a final state."
    assert "dt-cancelled dt-here" in data["now"]
    assert "<button" not in data["now"]
    assert "Reason: &lt;b&gt;paid&lt;/b&gt;" in data["timeline"]
    assert "cancelled" in data["fields"]["shown_state"]
    readonly = '<div class="readonly">%s</div>'
    assert [name for name, text in data["fields"].items() if readonly % text not in page] == []


def test_each_visible_change_changes_the_version(admin_client, db_clock):
    job = make_job("order:1")
    seen = {mark_of(admin_client, job)}
    run_now(TOPIC, "order:1")
    seen.add(now_of(admin_client, job)["mark"])
    make_event(job, Outcome.SNOOZED)
    seen.add(now_of(admin_client, job)["mark"])
    Job.objects.update(due_at=job.due_at + timedelta(minutes=1))
    seen.add(now_of(admin_client, job)["mark"])
    db_clock.advance(seconds=7200)
    seen.add(now_of(admin_client, job)["mark"])
    assert len(seen) == 5


def test_buttons_are_returned_to_permitted_users_only(admin_client, staff):
    job = make_job("order:1")
    assert 'value="cancel_jobs"' in now_of(admin_client, job)["now"]
    assert "csrfmiddlewaretoken" in now_of(admin_client, job)["now"]
    assert "<button" not in now_of(staff("delaytasks.view_job"), job)["now"]


def test_a_hidden_job_is_not_found(staff):
    Topic.objects.update(visible_to=[999])
    assert staff("delaytasks.view_job").get(f"{LIST}{make_job('order:1').pk}/now/").status_code == 404


@pytest.mark.on_both
def test_polling_needs_few_queries_regardless_of_the_number_of_events(admin_client):
    job = make_job("order:1")

    def query_count(mark):
        with CaptureQueriesContext(connection) as captured:
            now_of(admin_client, job, mark)
        return len(captured)

    mark = mark_of(admin_client, job)
    before = query_count(mark)
    assert before <= 6
    for _ in range(300):
        make_event(job, Outcome.SNOOZED)
    assert query_count(mark_of(admin_client, job)) == before
    assert query_count("") <= before + 2


def test_every_field_of_the_page_is_returned(admin_client):
    data = now_of(admin_client, make_job("order:1", State.DEAD, error="boom"))
    only_of_some_jobs = {"expires", "polled"}
    assert set(data["fields"]) == set(JobAdmin(Job, admin.site).readonly_fields) - only_of_some_jobs
    expiring = now_of(admin_client, make_job("order:2", expires_ms=5000))
    assert set(expiring["fields"]) - set(data["fields"]) == {"expires"}
