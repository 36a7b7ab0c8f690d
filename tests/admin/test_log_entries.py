"""Every action on a job writes an event and an entry in Django's log, with user, time and reason.

Topics, accounts and tokens have no events, only entries in Django's log.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from delaytasks.admin.bulk.actions import BulkActions
from delaytasks.admin.bulk.forms import BulkForm
from delaytasks.admin.job_actions import Operation
from delaytasks.admin.topics import TopicAdmin
from delaytasks.api.access import tokens
from delaytasks.api.admin import TokenAdmin
from delaytasks.api.models import ServiceAccount, Token
from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import Outcome, State

from .conftest import NOW, TOPIC, make_job

JOBS, TOPICS, TOKENS = "/admin/delaytasks/job/", "/admin/delaytasks/topic/", "/admin/delaytasks_api/token/"
CHANGES, ACCOUNTS = "/admin/delaytasks/bulkchange/", "/admin/delaytasks_api/serviceaccount/"
WHY = "the customer called"
HOURS = {"amount": "2", "unit": "hours"}

# action: (operation, state of the job, form data, outcome, log entry)
ACTIONS: dict[str, tuple[Operation, State, dict[str, str], Outcome, str]] = {
    "cancel_jobs": (Operation.CANCEL, State.DELAYED, {}, Outcome.CANCELLED, "Cancelled"),
    "postpone_jobs": (Operation.POSTPONE, State.DELAYED, HOURS, Outcome.RESCHEDULED, "Postponed by 2 h 0 min"),
    "run_jobs_now": (Operation.RUN_NOW, State.DELAYED, {}, Outcome.RESCHEDULED, "Made ready"),
    "retry_jobs": (Operation.RETRY, State.DEAD, {}, Outcome.RETRIED, "Retried"),
}


@pytest.fixture
def anna(staff: Callable[..., Client]) -> Client:
    """A client of a user who may operate."""
    return staff("delaytasks.view_job", "delaytasks.operate_job")


def test_the_table_contains_every_action():
    assert set(ACTIONS) == set(BulkActions.actions)
    assert {operation for operation, *_rest in ACTIONS.values()} == set(Operation)
    assert set(TopicAdmin.actions) == {"pause", "resume"}
    assert set(TokenAdmin.actions) == {"revoke"}
    assert set(BulkForm.base_fields) >= {"what", "amount", "unit", "reason"}


def story(job: Job) -> dict[str, Any]:
    """Return outcome, actor and reason of the job's only event."""
    return JobEvent.objects.filter(job_id=job.pk).values("outcome", "actor", "reason", "done_ms").get()


def logged(model: str, pk: Any) -> list[tuple[str, str]]:
    """Return (user, message) of each entry in Django's log of a row, oldest first, and check their times."""
    entries = LogEntry.objects.filter(content_type__model=model, object_id=str(pk)).order_by("pk")
    assert all(timezone.now() - entry.action_time < timedelta(minutes=5) for entry in entries)
    return [(entry.user.username, entry.get_change_message()) for entry in entries]


def left_both(job: Job, who: str, outcome: Outcome, message: str, why: str) -> None:
    event = story(job)
    assert event | {"done_ms": 0} == {"outcome": outcome.value, "actor": who, "reason": why, "done_ms": 0}
    assert datetime.fromtimestamp(event["done_ms"] / 1000, NOW.tzinfo) == NOW
    assert [by for by, _said in logged("job", job.pk)] == [who]
    text = logged("job", job.pk)[0][1]
    assert text.startswith(message.split()[0])
    assert (why in text) if why else text.endswith(".")


@pytest.mark.parametrize("why", [WHY, ""], ids=["with a reason", "without"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_on_a_selected_job_writes_event_and_log_entry(anna, action, why):
    _operation, state, sent, outcome, message = ACTIONS[action]
    job = make_job("order:1", state)
    anna.post(JOBS, {"action": action, "_selected_action": job.pk, "index": "0", "reason": why, "confirmed": 1, **sent})
    left_both(job, anna.user.username, outcome, message, why)


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_on_a_job_page_writes_event_and_log_entry(anna, action):
    _operation, state, sent, outcome, message = ACTIONS[action]
    job = make_job("order:1", state)
    anna.post(
        JOBS,
        {
            "action": action,
            "_selected_action": job.pk,
            "index": "0",
            "_job": "1",
            "reason": WHY,
            "confirmed": 1,
            **sent,
        },
    )
    left_both(job, anna.user.username, outcome, message, WHY)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_bulk_change_writes_event_and_log_entry_for_each_job(anna, action, monkeypatch):
    operation, state, sent, outcome, message = ACTIONS[action]
    monkeypatch.setattr(changes, "send", lambda pk, using: changes.work(pk, using=using, seconds=60))
    jobs = [make_job(f"order:{n}", state) for n in range(3)]
    page = anna.get(JOBS + f"all/?state={state.word}")
    shown = {"shown": "3", "listed": [job.pk for job in jobs], "once": page.context["once"]}
    anna.post(JOBS + f"all/?state={state.word}", {"what": operation.value, "reason": WHY, **shown, **sent})
    change = BulkChange.objects.get()
    if change.state != "done":  # the task was sent before the commit
        changes.work(change.pk, using="default", seconds=60)
    change.refresh_from_db()
    assert (change.by, change.reason, change.state) == (anna.user.username, WHY, "done")
    for job in jobs:
        left_both(job, anna.user.username, outcome, message, WHY)


@pytest.mark.parametrize("action", ACTIONS)
def test_without_a_required_reason_nothing_is_changed(anna, action):
    _operation, state, sent, outcome, message = ACTIONS[action]
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    job = make_job("order:1", state)
    data = {"action": action, "_selected_action": job.pk, "index": "0", "confirmed": "1", **sent}
    assert anna.post(JOBS, data).status_code == 200, "the form is shown again"
    assert not JobEvent.objects.exists()
    assert not LogEntry.objects.exists()
    anna.post(JOBS, data | {"reason": WHY})
    left_both(job, anna.user.username, outcome, message, WHY)


def test_stopping_a_bulk_change_is_logged(anna, no_worker):
    change = changes.start("cancel", [make_job("order:1").pk], by="ben", selection={"topics": {TOPIC: 1}})
    anna.post(f"{CHANGES}{change.pk}/stop/")
    assert logged("bulkchange", change.pk) == [(anna.user.username, "Stopped.")]


# Rows without events: Django's log only.


def test_pausing_resuming_and_changing_a_topic_is_logged(staff):
    boss = staff("delaytasks.view_topic", "delaytasks.change_topic")
    boss.post(TOPICS, {"action": "pause", "_selected_action": TOPIC, "index": "0"})
    boss.post(TOPICS, {"action": "resume", "_selected_action": TOPIC, "index": "0"})
    boss.post(f"{TOPICS}{TOPIC}/change/", {"paused": "on", "concurrency": "3", "ask_reason": "on"})
    who, text = zip(*logged("topic", TOPIC), strict=True)
    assert set(who) == {boss.user.username}
    assert text[:2] == ("Paused.", "Resumed.")
    assert [
        word for word in ("paused", "concurrency", "ask for a reason") if word not in " ".join(text[2:]).lower()
    ] == []


def test_adding_and_deleting_a_topic_is_logged(staff):
    boss = staff(*(f"delaytasks.{right}_topic" for right in ("view", "add", "delete")))
    boss.post(f"{TOPICS}add/", {"name": "mail.send"})
    boss.post(f"{TOPICS}mail.send/delete/", {"post": "yes"})
    assert [
        (by, flag) for by, flag in LogEntry.objects.order_by("pk").values_list("user__username", "action_flag")
    ] == [
        (boss.user.username, 1),
        (boss.user.username, 3),
    ]


def test_adding_changing_and_revoking_accounts_and_tokens_is_logged(staff):
    boss = staff(
        *(
            f"delaytasks_api.{right}_{model}"
            for right in ("view", "add", "change")
            for model in ("token", "serviceaccount")
        )
    )
    boss.post(f"{ACCOUNTS}add/", {"name": "mailer", "active": "on", "note": ""})
    account: Any = ServiceAccount.objects.get()
    grants = {f"grants-{name}": n for name, n in (("TOTAL_FORMS", 0), ("INITIAL_FORMS", 0))}
    boss.post(f"{TOKENS}add/", {"account": account.pk, "name": "first", **grants})
    token = Token.objects.get()
    boss.post(TOKENS, {"action": "revoke", "_selected_action": token.pk, "index": "0"})
    assert logged("serviceaccount", account.pk) == [(boss.user.username, "Added.")]
    assert logged("token", token.pk) == [(boss.user.username, "Added."), (boss.user.username, "Revoked.")]
    assert not any(entry.object_repr.count(".") for entry in LogEntry.objects.filter(content_type__model="token"))
    assert tokens.status(Token.objects.get()) == "revoked"
