"""Actions on the selected jobs: directly, or after a page that asks for a missing delay or reason."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import OperationalError
from django.test import Client

from delaytasks import reschedule
from delaytasks.admin.bulk import actions
from delaytasks.bulk import moves
from delaytasks.formatting import absolute
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import State

from ..support.locks import other_transaction
from .conftest import NOW, TOPIC, make_job

LIST = "/admin/delaytasks/job/"
OTHER = "test.other"


def act(client: Client, action: str, *jobs: Job, query: str = "", **data: Any) -> Any:
    ids = [job.pk for job in jobs]
    return client.post(LIST + query, {"action": action, "_selected_action": ids, "index": "0"} | data)


def messages_of(response: Any) -> list[str]:
    assert response.status_code == 302, response
    return [str(message) for message in get_messages(response.wsgi_request)]


def test_postponing_asks_for_the_delay_first(admin_client):
    jobs = [make_job("order:1"), make_job("order:2", due=timedelta(hours=3))]
    page = act(admin_client, "postpone_jobs", *jobs, query="?state=live")
    assert page.status_code == 200
    assert not page.context["form"].errors, "no errors before the first submission"
    assert [row["key"] for row in page.context["first"]] == ["order:1", "order:2"]
    assert not JobEvent.objects.exists()
    done = act(admin_client, "postpone_jobs", *jobs, query="?state=live", confirmed="1", amount="30", unit="minutes")
    assert messages_of(done)[0].startswith("postponed 2, due from ")
    assert done["Location"] == LIST + "?state=live"
    assert [job.due_at - NOW for job in Job.objects.order_by("pk")] == [
        timedelta(minutes=90), timedelta(minutes=210)
    ]  # fmt: skip


def test_a_delay_of_zero_shows_the_form_again(admin_client):
    job = make_job("order:1")
    page = act(admin_client, "postpone_jobs", job, confirmed="1", amount="0", unit="hours")
    assert "amount" in page.context["form"].errors
    assert Job.objects.get().due_at == job.due_at


@pytest.mark.parametrize("action", ["cancel_jobs", "run_jobs_now", "retry_jobs", "postpone_jobs"])
def test_a_topic_that_requires_a_reason_is_not_changed_without_one(admin_client, action):
    Topic.objects.create(name=OTHER, ask_reason=True)
    state = State.DEAD if action == "retry_jobs" else State.DELAYED
    asks, other = make_job("order:1", state, topic=OTHER), make_job("order:2", state)
    page = act(admin_client, action, asks, other)
    assert page.status_code == 200
    assert f"Required by {OTHER}." in page.content.decode()
    page = act(admin_client, action, asks, other, confirmed="1", amount="1", unit="hours", reason=" ")
    assert "reason" in page.context["form"].errors
    assert not JobEvent.objects.exists()
    act(admin_client, action, asks, other, confirmed="1", amount="1", unit="hours", reason="fraud")
    assert set(JobEvent.objects.values_list("job_id", "reason")) == {(asks.pk, "fraud"), (other.pk, "fraud")}
    assert {entry.change_message.partition(": ")[2] for entry in LogEntry.objects.all()} == {"fraud"}


def test_a_topic_that_requires_no_reason_is_changed_at_once(admin_client):
    Topic.objects.create(name=OTHER, ask_reason=True)
    assert messages_of(act(admin_client, "cancel_jobs", make_job("order:1"), confirmed="1")) == ["cancelled 1"]


def test_a_job_that_starts_before_the_submission_is_reported_as_running(admin_client):
    late, still = make_job("order:1"), make_job("order:2")
    assert act(admin_client, "postpone_jobs", late, still).status_code == 200
    Job.objects.filter(pk=late.pk).update(
        state=State.RESERVED, attempt=1, due_at=NOW, reserved_at=NOW, lease_until=NOW + timedelta(minutes=1), worker="w"
    )
    answer = act(admin_client, "postpone_jobs", late, still, confirmed="1", amount="1", unit="hours")
    assert messages_of(answer)[1] == "not postponed: already running 1 (order:1)"
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(still.pk)}


def test_a_button_of_the_job_page_may_show_the_form_and_returns_to_the_job_page(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    job = make_job("order:1")
    page = act(admin_client, "cancel_jobs", job, _job="1")
    assert page.status_code == 200
    assert 'name="_job" value="1"' in page.content.decode()
    assert page.context["back_url"] == f"{LIST}{job.pk}/change/"
    done = act(admin_client, "cancel_jobs", job, _job="1", confirmed="1", reason="fraud")
    assert done["Location"] == f"{LIST}{job.pk}/change/"
    assert messages_of(done) == ["cancelled 1"]


def test_a_reason_sent_with_the_action_is_used(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    assert messages_of(act(admin_client, "cancel_jobs", make_job("order:1"), reason="fraud", confirmed="1")) == [
        "cancelled 1"
    ]
    assert JobEvent.objects.get().reason == "fraud"


def test_an_invalid_value_sent_with_the_action_is_shown_with_its_error(admin_client):
    page = act(admin_client, "cancel_jobs", make_job("order:1"), reason="bell\x07")
    assert "reason" in page.context["form"].errors
    page = act(admin_client, "postpone_jobs", Job.objects.get(), reason="closed", amount="-5", unit="hours")
    assert "amount" in page.context["form"].errors
    assert 'value="closed"' in page.content.decode()


def test_more_than_a_page_of_selected_jobs_becomes_a_bulk_change(admin_client, no_worker):
    jobs = Job.objects.bulk_create(
        Job(topic=TOPIC, key=f"k{n}", state=State.DELAYED, due_at=NOW, ttr_ms=1, created_at=NOW) for n in range(101)
    )
    answer = act(admin_client, "cancel_jobs", *jobs, confirmed="1")
    change = BulkChange.objects.get()
    assert answer["Location"] == f"/admin/delaytasks/bulkchange/{change.pk}/change/"
    assert (change.total, change.selection["topics"]) == (101, {TOPIC: 101})
    assert not JobEvent.objects.exists()


def test_a_double_click_starts_one_bulk_change_of_selected_jobs(admin_client, no_worker, monkeypatch):
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    jobs = [make_job("a"), make_job("b")]
    once = act(admin_client, "postpone_jobs", *jobs).context["once"]
    answers = [
        act(admin_client, "postpone_jobs", *jobs, confirmed="1", amount="1", unit="hours", once=once) for _ in range(2)
    ]
    change = BulkChange.objects.get()
    assert {answer["Location"] for answer in answers} == {f"/admin/delaytasks/bulkchange/{change.pk}/change/"}
    assert messages_of(answers[1]) == ["Already submitted; showing the existing change."]


def test_selected_jobs_are_escaped_on_the_confirmation_page(admin_client):
    page = act(admin_client, "postpone_jobs", make_job("<script>alert(1)</script>"))
    assert "<script>alert" not in page.content.decode()


def test_a_double_click_postpones_once(admin_client):
    job = make_job("a")
    page = admin_client.get(f"/admin/delaytasks/job/{job.pk}/change/").content.decode()
    (seen,) = re.findall(r'name="seen" value="([^"]+)"', page)
    again = {"amount": "1", "unit": "hours", "seen": seen}
    assert messages_of(act(admin_client, "postpone_jobs", job, **again))[0].startswith("postponed 1, due at ")
    assert messages_of(act(admin_client, "postpone_jobs", job, **again))[-1] == "not postponed: moved meanwhile 1 (a)"
    assert Job.objects.get().due_ms == job.due_ms + 3_600_000


def test_the_confirmation_page_remembers_the_due_time_of_each_job(admin_client):
    first, second = make_job("a"), make_job("b")
    page = act(admin_client, "postpone_jobs", first, second).content.decode()
    seen = re.findall(r'name="seen" value="([^"]+)"', page)
    assert seen == [f"{job.pk}:{job.due_ms}" for job in (first, second)]
    reschedule(first.topic, first.key, delay=7200)
    moved = Job.objects.get(pk=first.pk).due_ms
    act(admin_client, "postpone_jobs", first, second, confirmed="1", amount="1", unit="hours", seen=seen)
    assert [job.due_ms for job in Job.objects.order_by("pk")] == [moved, second.due_ms + 3_600_000]


@pytest.mark.parametrize(("action", "question"), [("cancel_jobs", "Cancel 1 job"), ("run_jobs_now", "Run 1 job now")])
def test_cancel_and_run_now_ask_before_they_act(admin_client, action, question):
    job = make_job("order:1")
    page = act(admin_client, action, job, reason="they called")
    text = page.content.decode()
    assert page.status_code == 200
    assert question in text
    assert 'name="confirmed" value="1"' in text
    assert 'value="they called"' in text, "the reason is not typed twice"
    assert ("cannot be brought back" in text) == (action == "cancel_jobs")
    assert not JobEvent.objects.exists()
    act(admin_client, action, job, reason="they called", confirmed="1")
    assert JobEvent.objects.get().reason == "they called"


@pytest.mark.parametrize("action", ["cancel_jobs", "run_jobs_now"])
def test_jobs_that_cannot_be_changed_need_no_question(admin_client, action):
    jobs = [make_job("a", State.RESERVED), make_job("b", State.FINISHED)]
    assert messages_of(act(admin_client, action, *jobs))[0].startswith("not ")


def test_the_answer_has_the_new_due_times(admin_client):
    first, second = make_job("a", due=timedelta(hours=1)), make_job("b", due=timedelta(hours=3))
    one = messages_of(act(admin_client, "postpone_jobs", first, confirmed="1", amount="1", unit="days"))[-1]
    assert one == f"postponed 1, due at {absolute(NOW + timedelta(days=1, hours=1))}"
    both = messages_of(act(admin_client, "postpone_jobs", first, second, confirmed="1", amount="1", unit="days"))[-1]
    times = [absolute(NOW + timedelta(days=1, hours=3)), absolute(NOW + timedelta(days=2, hours=1))]
    assert both == f"postponed 2, due from {times[0]} to {times[1]}"
    now = messages_of(act(admin_client, "run_jobs_now", first, confirmed="1"))[-1]
    assert now == f"made ready 1, due at {absolute(NOW)}"


def test_a_job_that_is_ready_is_not_made_ready_again(admin_client):
    job = make_job("a", State.READY)
    assert messages_of(act(admin_client, "run_jobs_now", job)) == ["not made ready: already ready 1 (a)"]
    assert not JobEvent.objects.exists()
    assert not LogEntry.objects.exists()


def test_a_busy_job_is_reported_and_the_others_are_changed(admin_client, monkeypatch):
    jobs = [make_job(key) for key in "abc"]
    cancel = moves.cancel

    class Deadlock(Exception):
        sqlstate = "40P01"

    def busy(using, ids, origin):
        if jobs[1].pk in ids:
            raise OperationalError("deadlock detected") from Deadlock()
        return cancel(using, ids, origin)

    monkeypatch.setattr(moves, "cancel", busy)
    answers = messages_of(act(admin_client, "cancel_jobs", *jobs, confirmed="1"))
    assert answers == ["cancelled 2", "not cancelled: the database was busy 1 (b)"]
    assert [job.state for job in Job.objects.order_by("pk")] == [State.CANCELLED, State.DELAYED, State.CANCELLED]


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("action", "state", "done", "refused"), [
    ("cancel_jobs", State.DELAYED, "cancelled", "not cancelled"),
    ("postpone_jobs", State.DELAYED, "postponed", "not postponed"),
    ("run_jobs_now", State.DELAYED, "made ready", "not made ready"),
    ("retry_jobs", State.DEAD, "retried", "not retried"),
])  # fmt: skip
def test_a_job_that_another_transaction_has_locked_does_not_block_the_others(
    admin_client, action, state, done, refused
):
    jobs = [make_job(key, state) for key in "abc"]
    with other_transaction(lambda: Job.objects.select_for_update().get(pk=jobs[1].pk)):
        answers = messages_of(act(admin_client, action, *jobs, confirmed="1", amount="1", unit="hours"))
    assert answers[0].startswith(f"{done} 2")
    assert answers[1:] == [f"{refused}: the database was busy 1 (b)"]


def test_ids_in_forms_have_no_separators(admin_client, settings):
    settings.USE_THOUSAND_SEPARATOR = True
    job = make_job("order:1", id=1234)
    for page in (admin_client.get(f"{LIST}1234/change/"), act(admin_client, "cancel_jobs", job)):
        text = page.content.decode()
        assert 'name="_selected_action" value="1234"' in text
        assert 'name="seen" value="1234:' in text
