"""Acting on the selected rows: at once, or after a page has asked for what is missing."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import OperationalError
from django.test import Client

from delaytasks import bulk, changing, reschedule
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import State

from .conftest import NOW, TOPIC, make_job

LIST = "/admin/delaytasks/job/"
OTHER = "test.other"


def act(client: Client, action: str, *jobs: Job, query: str = "", **data: Any) -> Any:
    ids = [job.pk for job in jobs]
    return client.post(LIST + query, {"action": action, "_selected_action": ids, "index": "0"} | data)


def said(response: Any) -> list[str]:
    assert response.status_code == 302, response
    return [str(message) for message in get_messages(response.wsgi_request)]


def test_postponing_asks_by_how_much_and_then_does_it(admin_client):
    jobs = [make_job("order:1"), make_job("order:2", due=timedelta(hours=3))]
    page = act(admin_client, "postpone_jobs", *jobs, query="?state=live")
    assert page.status_code == 200
    assert not page.context["form"].errors, "nothing was wrong: it could not be known what would be asked"
    assert [row["key"] for row in page.context["first"]] == ["order:1", "order:2"]
    assert not JobEvent.objects.exists()
    done = act(admin_client, "postpone_jobs", *jobs, query="?state=live", confirmed="1", amount="30", unit="minutes")
    assert said(done) == ["postponed 2"]
    assert done["Location"] == LIST + "?state=live"
    assert [job.due_at - NOW for job in Job.objects.order_by("pk")] == [
        timedelta(minutes=90), timedelta(minutes=210)
    ]  # fmt: skip


def test_a_postponement_by_nothing_is_asked_again(admin_client):
    job = make_job("order:1")
    page = act(admin_client, "postpone_jobs", job, confirmed="1", amount="0", unit="hours")
    assert "amount" in page.context["form"].errors
    assert Job.objects.get().due_at == job.due_at


@pytest.mark.parametrize("action", ["cancel_jobs", "run_jobs_now", "retry_jobs", "postpone_jobs"])
def test_a_topic_that_asks_for_a_reason_is_not_changed_without_one(admin_client, action):
    Topic.objects.create(name=OTHER, ask_reason=True)
    state = State.DEAD if action == "retry_jobs" else State.DELAYED
    asks, other = make_job("order:1", state, topic=OTHER), make_job("order:2", state)
    page = act(admin_client, action, asks, other)
    assert page.status_code == 200
    assert f"Asked for by {OTHER}." in page.content.decode()
    page = act(admin_client, action, asks, other, confirmed="1", amount="1", unit="hours", reason=" ")
    assert "reason" in page.context["form"].errors
    assert not JobEvent.objects.exists()
    act(admin_client, action, asks, other, confirmed="1", amount="1", unit="hours", reason="fraud")
    assert set(JobEvent.objects.values_list("job_id", "reason")) == {(asks.pk, "fraud"), (other.pk, "fraud")}
    assert {entry.change_message.partition(": ")[2] for entry in LogEntry.objects.all()} == {"fraud"}


def test_a_topic_that_does_not_ask_is_changed_at_once(admin_client):
    Topic.objects.create(name=OTHER, ask_reason=True)
    assert said(act(admin_client, "cancel_jobs", make_job("order:1"))) == ["cancelled 1"]


def test_a_job_that_starts_to_run_between_the_page_and_the_click_is_told_truthfully(admin_client):
    late, still = make_job("order:1"), make_job("order:2")
    assert act(admin_client, "postpone_jobs", late, still).status_code == 200
    Job.objects.filter(pk=late.pk).update(
        state=State.RESERVED, attempt=1, due_at=NOW, reserved_at=NOW, lease_until=NOW + timedelta(minutes=1), worker="w"
    )
    answer = act(admin_client, "postpone_jobs", late, still, confirmed="1", amount="1", unit="hours")
    assert said(answer) == ["postponed 1", "not postponed: already running 1 (order:1)"]
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(still.pk)}


def test_a_button_of_the_jobs_page_may_ask_too_and_comes_back_to_it(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    job = make_job("order:1")
    page = act(admin_client, "cancel_jobs", job, _job="1")
    assert page.status_code == 200
    assert 'name="_job" value="1"' in page.content.decode()
    assert page.context["back_url"] == f"{LIST}{job.pk}/change/"
    done = act(admin_client, "cancel_jobs", job, _job="1", confirmed="1", reason="fraud")
    assert done["Location"] == f"{LIST}{job.pk}/change/"
    assert said(done) == ["cancelled 1"]


def test_a_reason_that_comes_with_the_click_is_taken(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    assert said(act(admin_client, "cancel_jobs", make_job("order:1"), reason="fraud")) == ["cancelled 1"]
    assert JobEvent.objects.get().reason == "fraud"


def test_what_was_typed_with_the_click_and_cannot_be_is_told_and_kept(admin_client):
    page = act(admin_client, "cancel_jobs", make_job("order:1"), reason="bell\x07")
    assert "reason" in page.context["form"].errors
    page = act(admin_client, "postpone_jobs", Job.objects.get(), reason="closed", amount="-5", unit="hours")
    assert "amount" in page.context["form"].errors
    assert 'value="closed"' in page.content.decode()


def test_more_than_a_page_of_them_is_worked_off_like_all_that_match(admin_client, monkeypatch):
    monkeypatch.setattr(bulk, "send", lambda pk, using: None)
    jobs = Job.objects.bulk_create(
        Job(topic=TOPIC, key=f"k{n}", state=State.DELAYED, due_at=NOW, ttr_ms=1, created_at=NOW) for n in range(101)
    )
    answer = act(admin_client, "cancel_jobs", *jobs)
    change = BulkChange.objects.get()
    assert answer["Location"] == f"/admin/delaytasks/bulkchange/{change.pk}/change/"
    assert (change.total, change.wish["topics"]) == (101, {TOPIC: 101})
    assert not JobEvent.objects.exists()


def test_what_is_selected_is_escaped_on_the_page_that_asks(admin_client):
    page = act(admin_client, "postpone_jobs", make_job("<script>alert(1)</script>"))
    assert "<script>alert" not in page.content.decode()


def test_a_button_that_is_pressed_twice_postpones_once(admin_client):
    job = make_job("a")
    page = admin_client.get(f"/admin/delaytasks/job/{job.pk}/change/").content.decode()
    (seen,) = re.findall(r'name="seen" value="([^"]+)"', page)
    again = {"amount": "1", "unit": "hours", "seen": seen}
    assert said(act(admin_client, "postpone_jobs", job, **again)) == ["postponed 1"]
    assert said(act(admin_client, "postpone_jobs", job, **again))[-1] == "not postponed: moved meanwhile 1 (a)"
    assert Job.objects.get().due_ms == job.due_ms + 3_600_000


def test_the_page_that_asks_by_how_much_knows_where_each_job_was(admin_client):
    first, second = make_job("a"), make_job("b")
    page = act(admin_client, "postpone_jobs", first, second).content.decode()
    seen = re.findall(r'name="seen" value="([^"]+)"', page)
    assert seen == [f"{job.pk}:{job.due_ms}" for job in (first, second)]
    reschedule(first.topic, first.key, delay=7200)
    moved = Job.objects.get(pk=first.pk).due_ms
    act(admin_client, "postpone_jobs", first, second, confirmed="1", amount="1", unit="hours", seen=seen)
    assert [job.due_ms for job in Job.objects.order_by("pk")] == [moved, second.due_ms + 3_600_000]


def test_a_job_that_is_ready_is_not_made_ready_again(admin_client):
    job = make_job("a", State.READY)
    assert said(act(admin_client, "run_jobs_now", job)) == ["not made ready: already ready 1 (a)"]
    assert not JobEvent.objects.exists()
    assert not LogEntry.objects.exists()


def test_a_database_that_stays_busy_changes_the_others_and_says_which_it_could_not(admin_client, monkeypatch):
    jobs = [make_job(key) for key in "abc"]
    call_off = changing.call_off

    class Deadlock(Exception):
        sqlstate = "40P01"

    def busy(job_id, **about):
        if job_id == jobs[1].pk:
            raise OperationalError("deadlock detected") from Deadlock()
        return call_off(job_id, **about)

    monkeypatch.setattr(changing, "call_off", busy)
    answers = said(act(admin_client, "cancel_jobs", *jobs))
    assert answers == ["cancelled 2", "not cancelled: the database was busy 1 (b)"]
    assert [job.state for job in Job.objects.order_by("pk")] == [State.CANCELLED, State.DELAYED, State.CANCELLED]
