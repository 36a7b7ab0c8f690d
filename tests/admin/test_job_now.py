"""A live job's page follows its job: what it asks for again and again, and what it is told."""

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
def test_the_page_of_a_live_job_follows_it_and_that_of_an_ended_one_does_not(admin_client, state):
    followed = "data-mark=" in page_of(admin_client, make_job("order:1", state))
    assert followed is (state in (State.DELAYED, State.READY, State.RESERVED))


def test_what_the_page_shows_already_is_not_told_again(admin_client):
    job = make_job("order:1")
    mark = mark_of(admin_client, job)
    assert now_of(admin_client, job, mark) == {"mark": mark, "live": True}


def test_what_has_changed_is_told_as_the_page_would_show_it(admin_client):
    job = make_job("order:1")
    mark = mark_of(admin_client, job)
    cancel(TOPIC, key="order:1", by="ann", reason="<b>paid</b>")
    told = now_of(admin_client, job, mark)
    page = page_of(admin_client, job)
    assert (told["live"], told["mark"] == mark) == (False, False)
    assert told["says"] == "This job is cancelled. That is where it ends."
    assert "dt-cancelled dt-here" in told["now"]
    assert "<button" not in told["now"]
    assert "Reason: &lt;b&gt;paid&lt;/b&gt;" in told["timeline"]
    assert "cancelled" in told["fields"]["shown_state"]
    assert [name for name, text in told["fields"].items() if text not in page] == []


def test_each_change_that_can_be_seen_is_told(admin_client, db_clock):
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


def test_buttons_are_told_to_those_alone_who_may_press_them(admin_client, staff):
    job = make_job("order:1")
    assert 'value="cancel_jobs"' in now_of(admin_client, job)["now"]
    assert "csrfmiddlewaretoken" in now_of(admin_client, job)["now"]
    assert "<button" not in now_of(staff("delaytasks.view_job"), job)["now"]


def test_of_a_hidden_job_nothing_is_told(staff):
    Topic.objects.update(visible_to=[999])
    assert staff("delaytasks.view_job").get(f"{LIST}{make_job('order:1').pk}/now/").status_code == 404


def test_asking_again_costs_few_queries_however_long_the_story_is(admin_client):
    job = make_job("order:1")

    def asked(mark):
        with CaptureQueriesContext(connection) as captured:
            now_of(admin_client, job, mark)
        return len(captured)

    mark = mark_of(admin_client, job)
    before = asked(mark)
    assert before <= 6
    for _ in range(300):
        make_event(job, Outcome.SNOOZED)
    assert asked(mark_of(admin_client, job)) == before
    assert asked("") <= before + 2


def test_every_field_of_the_page_can_be_told(admin_client):
    told = now_of(admin_client, make_job("order:1", State.DEAD, error="boom"))
    assert set(told["fields"]) == set(JobAdmin(Job, admin.site).readonly_fields)
