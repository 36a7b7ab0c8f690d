"""Cancel, run now and retry: each selected job gets its own result."""

import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client

from delaytasks.exceptions import Reserved
from delaytasks.jobs import control
from delaytasks.models import Job, JobEvent
from delaytasks.states import Outcome, State

from .conftest import NOW, TOPIC, make_job

LIST = "/admin/delaytasks/job/"
ACTIONS = ("cancel_jobs", "run_jobs_now", "retry_jobs")


def act(client: Client, action: str, *jobs: Job, query: str = "", **data: Any) -> list[tuple[str, str]]:
    """Submit an action; return (level, text) of each message."""
    response = client.post(
        LIST + query,
        {"action": action, "_selected_action": [job.pk for job in jobs], "index": "0", "confirmed": "1"} | data,
    )
    assert response.status_code == 302, response
    return [(message.level_tag, message.message) for message in get_messages(response.wsgi_request)]


def state_of(job: Job) -> State:
    return State(Job.objects.get(pk=job.pk).state)


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("action", ACTIONS)
def test_the_limit_for_locks_ends_with_the_action(admin_client, one_of_each, action):
    """With ATOMIC_REQUESTS the rest of the request is in the same transaction, as the rest of this test is."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        act(admin_client, action, *one_of_each.values())
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)


def test_cancel_reports_the_result_of_each_job(admin_client, one_of_each):
    more = [make_job("order:1"), make_job("order:2")]
    answers = act(admin_client, "cancel_jobs", *one_of_each.values(), *more)
    assert answers == [
        ("success", "cancelled 5"),
        (
            "warning",
            (
                "not cancelled: already running 1 (one:reserved); already finished 1 (one:finished); "
                "already cancelled 1 (one:cancelled)"
            ),
        ),
    ]
    assert [state_of(job) for job in (*more, one_of_each[State.READY], one_of_each[State.DEAD])] == [
        State.CANCELLED
    ] * 4
    assert state_of(one_of_each[State.RESERVED]) is State.RESERVED


def test_cancelling_a_running_job_keeps_its_next_run(admin_client):
    job = make_job("order:1", State.RESERVED, again=True, again_due_at=NOW, again_body={"n": 2}, again_ttr_ms=60_000)
    before = Job.objects.values().get()
    assert act(admin_client, "cancel_jobs", job) == [("warning", "not cancelled: already running 1 (order:1)")]
    assert Job.objects.values().get() == before


def test_run_now_reports_the_result_of_each_job(admin_client, one_of_each):
    answers = act(admin_client, "run_jobs_now", *one_of_each.values())
    assert answers[0][1].startswith("made ready 1, due at ")
    assert answers[1][0] == "warning"
    assert "already ready 1 (one:ready)" in answers[1][1]
    assert "already running 1 (one:reserved)" in answers[1][1]
    assert "already finished 1 (one:finished)" in answers[1][1]
    assert "already cancelled 1 (one:cancelled)" in answers[1][1]
    assert "dead 1 (one:dead)" in answers[1][1]


def test_retry_reports_the_result_of_each_job(admin_client, one_of_each):
    answers = act(admin_client, "retry_jobs", *one_of_each.values())
    assert answers[0] == ("success", "retried 1")
    assert "not dead 5 (" in answers[1][1]
    assert state_of(one_of_each[State.DEAD]) is State.DELAYED


def test_a_dead_job_with_a_live_key_is_not_retried(admin_client):
    dead = make_job("order:1", State.DEAD)
    make_job("order:1")
    assert act(admin_client, "retry_jobs", dead) == [
        ("warning", "not retried: its key is live again 1 (order:1)"),
    ]
    assert state_of(dead) is State.DEAD


def test_the_event_has_the_user(admin_client):
    job = make_job("order:1")
    act(admin_client, "cancel_jobs", job)
    event = JobEvent.objects.get(job=job)
    assert (event.outcome, event.actor) == (Outcome.CANCELLED, "admin")


def test_the_admin_log_has_an_entry_for_each_changed_job_only(admin_client, one_of_each):
    act(admin_client, "cancel_jobs", *one_of_each.values())
    entries = LogEntry.objects.filter(content_type__model="job")
    assert {entry.object_id for entry in entries} == {
        str(one_of_each[state].pk) for state in (State.DELAYED, State.READY, State.DEAD)
    }
    assert {entry.object_repr for entry in entries} == {
        f"{TOPIC} one:delayed", f"{TOPIC} one:ready", f"{TOPIC} one:dead",
    }  # fmt: skip
    assert all("Cancelled" in json.loads(entry.change_message)[0] if entry.change_message.startswith("[")
               else "Cancelled" in entry.change_message for entry in entries)  # fmt: skip


def test_one_refusal_does_not_undo_the_others(admin_client, monkeypatch):
    jobs = [make_job(f"order:{n}") for n in range(3)]
    real = control.run_job_now

    def half_way(job_id: int, **kwargs: Any) -> Job:
        moved = real(job_id, **kwargs)
        if job_id == jobs[1].pk:
            raise Reserved
        return moved

    monkeypatch.setattr(control, "run_job_now", half_way)
    answers = act(admin_client, "run_jobs_now", *jobs)
    assert answers[0][1].startswith("made ready 2, due at ")
    assert answers[1] == ("warning", "not made ready: already running 1 (order:1)")
    moved = set(JobEvent.objects.values_list("job_id", flat=True))
    assert moved == {jobs[0].pk, jobs[2].pk}, "only the refused job is rolled back"


def test_a_selected_job_that_left_the_filter_gets_a_result(admin_client):
    job = make_job("order:1", State.RESERVED)  # it was listed as "ready"
    assert act(admin_client, "cancel_jobs", job, query="?state=ready") == [
        ("warning", "not cancelled: already running 1 (order:1)")
    ]


def test_select_across_is_ignored(admin_client):
    chosen, bystander = make_job("order:1"), make_job("order:2")
    act(admin_client, "cancel_jobs", chosen, select_across="1")
    assert state_of(bystander) is State.DELAYED


@pytest.mark.on_both
def test_missing_jobs_and_invalid_ids_cause_no_error(admin_client):
    response = admin_client.post(
        LIST, {"action": "cancel_jobs", "_selected_action": ["999999", "x", str(2**70), "-1"], "index": "0"}
    )
    assert [str(m) for m in get_messages(response.wsgi_request)] == ["not cancelled: no longer there 1 (999999)"]


def test_a_long_list_of_refused_jobs_is_truncated(admin_client):
    jobs = [make_job(f"order:{n:02}", State.RESERVED) for n in range(13)]
    ((_, text),) = act(admin_client, "cancel_jobs", *jobs)
    assert "already running 13 (order:00, " in text
    assert "order:09 and 3 more)" in text


def test_a_hostile_key_is_escaped_in_the_message(admin_client):
    job = make_job("<script>alert(1)</script>", State.RESERVED)
    page = admin_client.post(LIST, {"action": "cancel_jobs", "_selected_action": [job.pk]}, follow=True)
    assert "&lt;script&gt;alert(1)" in page.content.decode()
    assert "<script>alert(1)" not in page.content.decode()


@pytest.mark.parametrize("action", ACTIONS)
def test_users_who_may_only_view_cannot_operate(staff, action):
    client = staff("delaytasks.view_job")
    job = make_job("order:1", State.DEAD if action == "retry_jobs" else State.DELAYED)
    before = job.state
    assert action not in client.get(LIST).content.decode()
    client.post(LIST, {"action": action, "_selected_action": [job.pk]})
    assert state_of(job) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_the_operate_job_permission_is_sufficient(staff, action):
    client = staff("delaytasks.view_job", "delaytasks.operate_job")
    job = make_job("order:1", State.DEAD if action == "retry_jobs" else State.DELAYED)
    ((level, _),) = act(client, action, job)
    assert level == "success"
    assert JobEvent.objects.get(job=job).actor == client.user.get_username()


def test_a_get_request_changes_nothing(admin_client):
    job = make_job("order:1")
    admin_client.get(LIST, {"action": "cancel_jobs", "_selected_action": job.pk})
    assert state_of(job) is State.DELAYED


def test_a_button_of_the_job_page_acts_and_returns_to_it(admin_client):
    job = make_job("order:1")
    page = f"{LIST}{job.pk}/change/"
    assert 'value="cancel_jobs"' in admin_client.get(page).content.decode()
    response = admin_client.post(
        LIST, {"action": "cancel_jobs", "_selected_action": job.pk, "index": 0, "_job": 1, "confirmed": 1}
    )
    assert response["Location"] == page
    assert state_of(job) is State.CANCELLED
