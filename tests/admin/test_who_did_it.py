"""Every action leaves who, when and why: an event in the story of the job, and an entry in Django's log.

Topics, accounts and tokens have no story of their own: theirs is Django's log alone.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from delaytasks import bulk
from delaytasks.admin.bulk import BulkActions
from delaytasks.admin.bulkforms import BulkForm
from delaytasks.admin.operate import Operation
from delaytasks.admin.topics import TopicAdmin
from delaytasks.api import tokens
from delaytasks.api.admin import TokenAdmin
from delaytasks.api.models import ServiceAccount, Token
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import Outcome, State

from .conftest import NOW, TOPIC, make_job

JOBS, TOPICS, TOKENS = "/admin/delaytasks/job/", "/admin/delaytasks/topic/", "/admin/delaytasks_api/token/"
CHANGES, ACCOUNTS = "/admin/delaytasks/bulkchange/", "/admin/delaytasks_api/serviceaccount/"
WHY = "the customer called"
HOURS = {"amount": "2", "unit": "hours"}

# action: (the operation, the state that the job is in, what else is sent, the outcome, what the log says)
ACTIONS: dict[str, tuple[Operation, State, dict[str, str], Outcome, str]] = {
    "cancel_jobs": (Operation.CANCEL, State.DELAYED, {}, Outcome.CANCELLED, "Cancelled"),
    "postpone_jobs": (Operation.POSTPONE, State.DELAYED, HOURS, Outcome.RESCHEDULED, "Postponed by 2 h 0 min"),
    "run_jobs_now": (Operation.RUN_NOW, State.DELAYED, {}, Outcome.RESCHEDULED, "Made ready"),
    "retry_jobs": (Operation.RETRY, State.DEAD, {}, Outcome.RETRIED, "Retried"),
}


@pytest.fixture
def anna(staff: Callable[..., Client]) -> Client:
    """She may operate."""
    return staff("delaytasks.view_job", "delaytasks.operate_job")


def test_the_table_knows_every_action():
    assert set(ACTIONS) == set(BulkActions.actions)
    assert {operation for operation, *_rest in ACTIONS.values()} == set(Operation)
    assert set(TopicAdmin.actions) == {"pause", "resume"}
    assert set(TokenAdmin.actions) == {"revoke"}
    assert set(BulkForm.base_fields) >= {"what", "amount", "unit", "reason"}


def story(job: Job) -> dict[str, Any]:
    """The one event that the job has: what, by whom, why."""
    return JobEvent.objects.filter(job_id=job.pk).values("outcome", "actor", "reason", "done_ms").get()


def logged(model: str, pk: Any) -> list[tuple[str, str]]:
    """Who, and what they did, in Django's log of a row, the oldest first. All of it was just now."""
    entries = LogEntry.objects.filter(content_type__model=model, object_id=str(pk)).order_by("pk")
    assert all(timezone.now() - entry.action_time < timedelta(minutes=5) for entry in entries)
    return [(entry.user.username, entry.get_change_message()) for entry in entries]


def left_both(job: Job, who: str, outcome: Outcome, message: str, why: str) -> None:
    event = story(job)
    assert event | {"done_ms": 0} == {"outcome": outcome.value, "actor": who, "reason": why, "done_ms": 0}
    assert datetime.fromtimestamp(event["done_ms"] / 1000, NOW.tzinfo) == NOW
    assert [by for by, _said in logged("job", job.pk)] == [who]
    said = logged("job", job.pk)[0][1]
    assert said.startswith(message.split()[0])
    assert (why in said) if why else said.endswith(".")


@pytest.mark.parametrize("why", [WHY, ""], ids=["with a reason", "without"])
@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_done_to_a_selected_job_leaves_both(anna, action, why):
    _operation, state, sent, outcome, message = ACTIONS[action]
    job = make_job("order:1", state)
    anna.post(JOBS, {"action": action, "_selected_action": job.pk, "index": "0", "reason": why, **sent})
    left_both(job, anna.user.username, outcome, message, why)


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_done_on_a_jobs_page_leaves_both(anna, action):
    _operation, state, sent, outcome, message = ACTIONS[action]
    job = make_job("order:1", state)
    anna.post(JOBS, {"action": action, "_selected_action": job.pk, "index": "0", "_job": "1", "reason": WHY, **sent})
    left_both(job, anna.user.username, outcome, message, WHY)


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_done_to_all_that_match_leaves_both_for_each_job(anna, action, monkeypatch):
    operation, state, sent, outcome, message = ACTIONS[action]
    monkeypatch.setattr(bulk, "send", lambda pk, using: bulk.work(pk, using=using, seconds=60))
    jobs = [make_job(f"order:{n}", state) for n in range(3)]
    page = anna.get(JOBS + f"all/?state={state.word}")
    anna.post(
        JOBS + f"all/?state={state.word}",
        {"what": operation.value, "shown": "3", "once": page.context["once"], "reason": WHY, **sent},
    )
    change = BulkChange.objects.get()
    if change.state != "done":  # the message was sent when nobody had committed yet
        bulk.work(change.pk, using="default", seconds=60)
    change.refresh_from_db()
    assert (change.by, change.reason, change.state) == (anna.user.username, WHY, "done")
    for job in jobs:
        left_both(job, anna.user.username, outcome, message, WHY)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_topic_that_asks_for_a_reason_gets_one_or_nothing_is_done(anna, action):
    _operation, state, sent, outcome, message = ACTIONS[action]
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    job = make_job("order:1", state)
    asked = {"action": action, "_selected_action": job.pk, "index": "0", "confirmed": "1", **sent}
    assert anna.post(JOBS, asked).status_code == 200, "it asks again"
    assert not JobEvent.objects.exists()
    assert not LogEntry.objects.exists()
    anna.post(JOBS, asked | {"reason": WHY})
    left_both(job, anna.user.username, outcome, message, WHY)


def test_stopping_a_bulk_change_is_logged(anna, monkeypatch):
    monkeypatch.setattr(bulk, "send", lambda pk, using: None)
    change = bulk.start("cancel", [make_job("order:1").pk], by="ben", wish={"topics": {TOPIC: 1}})
    anna.post(f"{CHANGES}{change.pk}/stop/")
    assert logged("bulkchange", change.pk) == [(anna.user.username, "Stopped.")]


# What has no story: Django's log alone.


def test_a_topic_that_is_paused_resumed_and_changed_is_logged(staff):
    boss = staff("delaytasks.view_topic", "delaytasks.change_topic")
    boss.post(TOPICS, {"action": "pause", "_selected_action": TOPIC, "index": "0"})
    boss.post(TOPICS, {"action": "resume", "_selected_action": TOPIC, "index": "0"})
    boss.post(f"{TOPICS}{TOPIC}/change/", {"paused": "on", "concurrency": "3", "ask_reason": "on"})
    who, said = zip(*logged("topic", TOPIC), strict=True)
    assert set(who) == {boss.user.username}
    assert said[:2] == ("Paused.", "Resumed.")
    assert [
        word for word in ("paused", "concurrency", "ask for a reason") if word not in " ".join(said[2:]).lower()
    ] == []


def test_a_topic_that_is_made_and_deleted_is_logged(staff):
    boss = staff(*(f"delaytasks.{right}_topic" for right in ("view", "add", "delete")))
    boss.post(f"{TOPICS}add/", {"name": "mail.send"})
    boss.post(f"{TOPICS}mail.send/delete/", {"post": "yes"})
    assert [
        (by, flag) for by, flag in LogEntry.objects.order_by("pk").values_list("user__username", "action_flag")
    ] == [
        (boss.user.username, 1),
        (boss.user.username, 3),
    ]


def test_an_account_and_a_token_that_are_made_changed_and_revoked_are_logged(staff):
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
    assert tokens.standing(Token.objects.get()) == "revoked"
