"""Scheduling a job from the admin: the same checks as schedule(), errors at the fields, and who did it and why."""

import html
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.messages import get_messages
from django.test import Client

from delaytasks.admin.scheduling import page
from delaytasks.models import AuditEntry, Job, JobEvent, Topic
from delaytasks.states import State

from .conftest import NOW, TOPIC, make_job

ADD = "/admin/delaytasks/job/add/"
OPERATE = ("delaytasks.view_job", "delaytasks.operate_job")
FIELDS = {
    "topic": TOPIC, "key": "order:1", "amount": "30", "unit": "minutes", "due_at_0": "", "due_at_1": "",
    "body": '{"order": 1}', "priority": "0", "ttr": "", "reason": "",
}  # fmt: skip


def submit(client: Client, **fields: Any) -> Any:
    return client.post(ADD, FIELDS | fields)


def errors(client: Client, **fields: Any) -> dict[str, list[str]]:
    """Return the errors of a submission by field. Nothing may be stored."""
    before = Job.objects.count()
    response = submit(client, **fields)
    assert response.status_code == 200
    assert Job.objects.count() == before
    assert not LogEntry.objects.exists()
    return {name: [str(message) for message in found] for name, found in response.context["form"].errors.items()}


def test_a_job_is_scheduled_and_its_page_follows(admin_client):
    response = submit(admin_client, priority="3", ttr="90")
    job = Job.objects.get()
    assert (job.topic, job.key, job.body, job.priority, job.ttr_ms) == (TOPIC, "order:1", {"order": 1}, 3, 90_000)
    assert job.due_at == NOW + timedelta(minutes=30)
    assert response.url == f"/admin/delaytasks/job/{job.pk}/change/"
    (message,) = get_messages(response.wsgi_request)
    assert (message.level_tag, str(message)) == ("success", "Job order:1 is scheduled, due at 2030-01-01 00:30:00")


def test_without_a_ttr_the_job_has_that_of_its_topic(admin_client):
    submit(admin_client)
    assert Job.objects.get().ttr_ms == 60_000


@pytest.mark.parametrize(("text", "body"), [("null", None), ("", {}), ("[]", [])])
def test_the_body_is_what_was_entered(admin_client, text, body):
    submit(admin_client, body=text)
    assert Job.objects.get().body == body


def test_without_a_delay_or_a_time_or_with_both_nothing_is_scheduled(admin_client):
    text = "Enter a delay, or a date and a time."
    assert errors(admin_client, amount="") == {"amount": [text]}
    both = {"due_at_0": "2030-01-02", "due_at_1": "10:00:00"}
    assert errors(admin_client, **both) == {"amount": ["Enter either a delay or a date and a time, not both."]}


def test_a_due_time_is_in_the_time_zone_of_the_browser(admin_client):
    admin_client.cookies["delaytasks_zone"] = "Asia/Kolkata"
    shown = admin_client.get(ADD).content.decode()
    assert "Times are in Asia/Kolkata." in shown
    assert 'data-admin-utc-offset="19800"' in shown
    submit(admin_client, amount="", due_at_0="2030-01-02", due_at_1="10:00:00")
    assert Job.objects.get().due_at.isoformat() == "2030-01-02T04:30:00+00:00"


def test_a_local_time_that_does_not_exist_is_an_error(admin_client):
    admin_client.cookies["delaytasks_zone"] = "Europe/Berlin"
    found = errors(admin_client, amount="", due_at_0="2030-03-31", due_at_1="02:30:00")
    assert list(found) == ["due_at"]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("key", "", "This field is required."),
        ("key", "a\tb", "Enter 1 to 255 printable characters."),
        ("key", "k" * 256, "Ensure this value has at most 255 characters (it has 256)."),
        ("body", "{", "Enter a valid JSON."),
        ("body", "[" * 100_000, "Enter a valid JSON."),
        ("body", "NaN", "Enter a valid JSON."),
        ("body", json.dumps("x" * 70_000), "The body may have at most 65,536 bytes as JSON."),
        ("priority", "10", "Ensure this value is less than or equal to 9."),
        ("ttr", "0", "Enter a time to run of at least 0.001 s and at most 7 d 0 h."),
        ("topic", "no.such", "Select a valid choice. no.such is not one of the available choices."),
        ("reason", "two\nlines", "Enter one line of at most 255 printable characters."),
    ],
    ids=[
        "no-key",
        "key-with-tab",
        "long-key",
        "broken-json",
        "deep-json",
        "nan",
        "large-body",
        "priority",
        "ttr",
        "topic",
        "reason",
    ],
)
def test_an_error_is_at_its_field(admin_client, field, value, error):
    assert errors(admin_client, **{field: value}) == {field: [error]}


def test_a_delay_beyond_the_limit_is_an_error_at_its_field(admin_client):
    found = errors(admin_client, amount="999999", unit="days")
    assert list(found) == ["amount"]
    assert found["amount"][0].startswith("Enter a time that is at most ")


def test_a_live_key_is_refused_with_a_link_to_its_job(admin_client):
    live = make_job("order:1", State.READY)
    (error,) = errors(admin_client)["key"]
    link = f'<a href="/admin/delaytasks/job/{live.pk}/change/">job {live.pk}</a>'
    assert error == f"This key is live already: {link}. Change that job, or use another key."
    assert link in submit(admin_client).content.decode()


def test_the_key_of_an_ended_job_can_be_used_again(admin_client):
    make_job("order:1", State.FINISHED)
    assert submit(admin_client).status_code == 302


def test_the_person_and_the_reason_are_in_the_history_the_admin_log_and_the_audit_log(staff):
    client = staff(*OPERATE)
    submit(client, reason="the customer asked for it")
    job = Job.objects.get()
    event = JobEvent.objects.get(job_id=job.pk)
    assert (event.outcome, event.actor, event.reason) == (
        "scheduled", client.user.username, "the customer asked for it",
    )  # fmt: skip
    logged = LogEntry.objects.get()
    assert (logged.user, logged.object_id, logged.action_flag) == (client.user, str(job.pk), ADDITION)
    assert logged.change_message == "Scheduled: the customer asked for it"
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.target, entry.reason, entry.request) == (
        "job.scheduled", client.user.username, f"job {job.pk}", "the customer asked for it", f"POST {ADD}",
    )  # fmt: skip
    for shown in ("change", "history"):
        address = f"/admin/delaytasks/job/{job.pk}/{shown}/"
        assert "the customer asked for it" in client.get(address).content.decode()


def test_a_topic_that_requires_a_reason_gets_none_of_these_jobs_without_one(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    assert errors(admin_client) == {"reason": [f"Required by {TOPIC}."]}
    assert submit(admin_client, reason="why").status_code == 302


def test_only_visible_topics_are_offered_and_accepted(staff):
    Topic.objects.create(name="secret.topic", visible_to=[999])
    make_job("order:1", topic="secret.topic")
    client = staff(*OPERATE)
    assert "secret.topic" not in client.get(ADD).content.decode()
    (error,) = errors(client, topic="secret.topic")["topic"]
    assert error == "Select a valid choice. secret.topic is not one of the available choices."


def test_who_may_not_operate_may_not_schedule_and_sees_no_link(staff):
    viewer, useless = staff("delaytasks.view_job"), staff("delaytasks.add_job", "delaytasks.view_job")
    for client in (viewer, useless, staff("delaytasks.operate_job")):
        assert client.get(ADD).status_code == 403
        assert submit(client).status_code == 403
    assert not Job.objects.exists()
    assert ADD not in viewer.get("/admin/delaytasks/job/").content.decode()
    assert ADD in staff(*OPERATE).get("/admin/delaytasks/job/").content.decode()


def test_the_filter_of_the_list_chooses_the_topic(admin_client):
    Topic.objects.create(name="z.last")
    listed = admin_client.get("/admin/delaytasks/job/", {"topic": "z.last", "state": "live"}).content.decode()
    link = re.search(r'href="(/admin/delaytasks/job/add/\?[^"]+)"', listed)
    assert link is not None
    for address in (f"{ADD}?topic=z.last", html.unescape(link[1])):
        assert '<option value="z.last" selected>z.last</option>' in admin_client.get(address).content.decode()


def test_without_a_filter_no_topic_is_chosen_unless_there_is_only_one(admin_client, monkeypatch):
    assert '<option value="" selected>' in admin_client.get(ADD).content.decode()
    assert errors(admin_client, topic="") == {"topic": ["This field is required."]}
    monkeypatch.setattr(page.permissions, "known_topics", lambda user, using: [TOPIC])
    assert f'<option value="{TOPIC}">{TOPIC}</option>' in admin_client.get(ADD).content.decode()
    assert '<option value=""' not in admin_client.get(ADD).content.decode()


def test_the_page_tells_what_a_topic_does_and_how_long_its_jobs_may_run(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    facts = admin_client.get(ADD).context["facts"]
    assert facts[TOPIC] == {
        "text": "Close an order that nobody paid.", "ttr": "1 min", "reason": "This topic requires a reason.",
    }  # fmt: skip


def test_a_second_submission_of_the_same_page_schedules_no_second_job(admin_client):
    submit(admin_client)
    assert submit(admin_client).status_code == 200
    assert Job.objects.count() == 1


def test_the_page_is_in_chinese(admin_client):
    shown = admin_client.get(ADD, headers={"Accept-Language": "zh-hans"}).content.decode()
    for text in ("安排任务", "优先级", "原因"):
        assert text in shown
