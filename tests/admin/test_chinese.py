"""The admin in Chinese: no page contains untranslated English."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone
from django.utils.translation import override

from delaytasks import formatting, handlers
from delaytasks.admin import display, log_entries
from delaytasks.api.access import tokens
from delaytasks.api.models import ServiceAccount, Token
from delaytasks.bulk import changes as bulk
from delaytasks.models import BulkChange, CalendarDay, Job, Schedule, Topic, TopicStat
from delaytasks.monitoring import health
from delaytasks.outcomes import FORMER_ERRORS, FORMER_RESULTS, ErrorCode, Result
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.states import Outcome, State
from tests.support.untranslated import english_in, in_chinese

from .conftest import NOW, TOPIC, make_event, make_job

JOBS, CHANGES, TOPICS = "/admin/delaytasks/job/", "/admin/delaytasks/bulkchange/", "/admin/delaytasks/topic/"
BOARD, TOKENS = "/admin/delaytasks/board/", "/admin/delaytasks_api/token/"
ACCOUNTS = "/admin/delaytasks_api/serviceaccount/"
KNOWN = {"close", "test"}  # the names of the handler and its topic in conftest.py
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nE: 银行没有回答'


def close(job: object) -> None:
    """关闭没有付款的订单。"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, _topic: None) -> None:
    """Send no bulk change to a worker, and use a handler with a Chinese docstring."""
    monkeypatch.setattr(bulk, "send", lambda pk, using: None)
    handlers.unregister(TOPIC)
    handlers.handler(TOPIC, ttr=60, max_attempts=3)(close)
    Topic.objects.exclude(name=TOPIC).delete()  # the docstrings of the shop's handlers are English


@pytest.fixture
def client(db: None) -> Client:
    return in_chinese(User.objects.create_superuser("安娜", password="x"))


def left(response: Any) -> list[str]:
    assert response.status_code == 200
    return english_in(response, known=KNOWN)


def press(client: Client, action: str, *jobs: Job, **fields: Any) -> Any:
    """Submit an action of the list for these jobs; return the resulting page."""
    chosen = {"action": action, "_selected_action": [job.pk for job in jobs], "index": "0"}
    if action in ("cancel_jobs", "run_jobs_now"):
        chosen["confirmed"] = "1"
    return client.post(JOBS, chosen | fields, follow=True)


def make_jobs() -> list[Job]:
    """Create a job in each state, with failures, errors and bodies."""
    jobs = [make_job(f"o:{n}", state, body={"订单": n}) for n, state in enumerate(State)]
    failed = {"attempt": 2, "failures": 1, "reserved_at": NOW - timedelta(seconds=2), "error": TRACEBACK}
    jobs.append(make_job("o:11", **failed))
    jobs.append(make_job("o:12", State.DEAD, attempt=3, failures=3, error=ErrorCode.TIMED_OUT, reserved_at=NOW))
    jobs.append(make_job("o:13", State.READY, due=timedelta(days=3), error=ErrorCode.BURIED))
    return jobs


# -- jobs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["", "q=o", "q=zz", "due=overdue", "due=hour", "topic=test.close", "p=x", "topic=a.b",
              *(f"state={state.word}" for state in State), "state=live&due=today"],
)  # fmt: skip
def test_the_list_of_jobs_is_in_chinese(client, query):
    make_jobs()
    assert left(client.get(f"{JOBS}?{query}", follow=True)) == []


def test_full_and_partial_pages_of_the_list_are_in_chinese(client, monkeypatch):
    from delaytasks.admin import jobs
    from delaytasks.db import pagination

    for n in range(6):
        make_job(f"o:{n}")
    monkeypatch.setattr(jobs.JobAdmin, "list_per_page", 2)
    assert left(client.get(f"{JOBS}?state=live")) == []
    monkeypatch.setattr(pagination, "ROUNDS", (2,))
    monkeypatch.setattr(pagination, "ROUND_BY_ID", 2)
    monkeypatch.setattr(pagination, "SMALL_TOPIC", 2)
    page = client.get(f"{JOBS}?state=cancelled&topic={TOPIC}")
    assert "查找在此暂停" in page.content.decode()
    assert left(page) == []


def test_a_jobs_page_is_in_chinese_in_every_state(client):
    for job in make_jobs():
        assert left(client.get(f"{JOBS}{job.pk}/change/")) == [], job.key


def test_the_timeline_of_a_job_is_in_chinese_for_every_event(client):
    job = make_job("o:1", State.DEAD, attempt=2, error=TRACEBACK)
    for outcome in Outcome:
        make_event(job, outcome, reserved_ms=1, next_due_ms=2, worker="w1", actor="安娜", reason="银行关门")
    for error in (*ErrorCode, *FORMER_ERRORS):
        make_event(job, Outcome.EXPIRED, error=error)
    make_event(job, Outcome.FAILED, error=TRACEBACK)
    page = client.get(f"{JOBS}{job.pk}/change/")
    assert left(page) == []
    assert all(str(word) in page.content.decode() for word in formatting.OUTCOMES.values())


def test_a_dead_job_with_a_live_key_and_a_long_timeline_are_in_chinese(client, monkeypatch):
    from delaytasks.admin import timeline

    monkeypatch.setattr(timeline, "NEWEST", 1)
    Topic.objects.update(ask_reason=True)
    job = make_job("o:1", State.DEAD)
    make_job("o:1")
    make_event(job, Outcome.DEAD)
    make_event(job, Outcome.RETRIED)
    assert left(client.get(f"{JOBS}{job.pk}/change/")) == []


def test_errors_of_the_engine_are_translated():
    with override("zh-hans"):
        for sentence, code in FORMER_ERRORS.items():
            assert formatting.error(sentence) == formatting.error(code) not in (sentence, code)
        assert formatting.error(TRACEBACK) == TRACEBACK


# -- changes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["cancel_jobs", "postpone_jobs", "run_jobs_now", "retry_jobs"])
def test_the_messages_of_an_action_are_in_chinese(client, action):
    jobs = make_jobs()
    running = make_job("o:20", State.RESERVED)
    response = press(client, action, *jobs, running, amount="2", unit="hours", reason="银行关门")
    assert response.context["messages"]
    assert left(response) == []


def test_a_message_that_names_some_of_many_is_in_chinese(client):
    jobs = [make_job(f"o:{n}", State.FINISHED) for n in range(13)]
    assert left(press(client, "cancel_jobs", *jobs)) == []


@pytest.mark.parametrize("fields", [{}, {"amount": "", "confirmed": "1"}, {"amount": "-1"}, {"amount": "1e9"}])
def test_the_confirmation_page_of_selected_jobs_is_in_chinese(client, fields):
    Topic.objects.update(ask_reason=True)
    page = press(client, "postpone_jobs", *make_jobs(), **fields)
    assert "推迟多久" in page.content.decode()
    assert left(page) == []


def test_an_action_without_selected_jobs_is_refused_in_chinese(client):
    make_jobs()
    assert left(press(client, "cancel_jobs")) == []
    assert left(press(client, "")) == []


def all_page(client: Client, query: str, **fields: Any) -> Any:
    return client.post(f"{JOBS}all/?{query}", fields) if fields else client.get(f"{JOBS}all/?{query}")


def test_the_confirmation_page_of_all_matches_is_in_chinese(client, monkeypatch):
    make_jobs()
    Topic.objects.update(ask_reason=True)
    queries = (
        "",
        "state=finished",
        "q=zz",
        "state=dead",
        "due=overdue",
        f"topic={TOPIC}",
        "q=o",
        "state=ready",
        "all=",
    )
    for query in queries:
        assert left(all_page(client, query)) == [], query
    assert left(all_page(client, "q=o", what="postpone", amount="", shown="9")) == []
    assert left(all_page(client, "q=o", what="postpone", amount="99999999", reason="a\x01b", shown="9")) == []
    assert left(all_page(client, "q=o", shown="0")) == []
    for n in range(20):
        make_job(f"o:1{n:02}")
    assert "之前显示 0 个" in all_page(client, "q=o", what="cancel", reason="停", shown="0").content.decode()
    assert left(all_page(client, "q=o", what="cancel", reason="停", shown="0")) == []
    assert "与之前显示的不同" in all_page(client, "q=o:12", what="cancel", reason="停", shown="1").content.decode()
    monkeypatch.setattr(bulk, "MAX_JOBS", 2)
    assert left(all_page(client, "q=o")) == []


def changes() -> Iterator[BulkChange]:
    """Yield a bulk change in each state, with each result."""
    jobs = make_jobs()
    selection = {
        "filters": {"state": "live", "topic": TOPIC, "due": "hour", "q": "o"},
        "topics": {TOPIC: 9},
        "shown": 5,
    }
    for operation in BulkChange.Operation:
        terms = {"delay_ms": 5_400_000} if operation == BulkChange.Operation.POSTPONE else {}
        yield bulk.start(
            operation, [job.pk for job in jobs], by="安娜", reason="银行关门", selection=selection, **terms
        )
    every = dict.fromkeys((*Result, *FORMER_RESULTS), 25)
    samples = {word: [[jobs[0].pk, TOPIC, "o:1"], [99, "", ""]] for word in every}
    long_ago = timezone.now() - timedelta(minutes=3)
    for state in BulkChange.State:
        change = bulk.start("cancel", [job.pk for job in jobs], by="安娜", selection=selection)
        terms = {"error": ErrorCode.NOT_ALLOWED} if state == BulkChange.State.FAILED else {}
        BulkChange.objects.filter(pk=change.pk).update(
            state=state, outcomes=every, samples=samples, position=3, created_at=long_ago, worked_at=long_ago, **terms
        )
        yield change
    change = bulk.start("cancel", [job.pk for job in jobs], by="安娜", selection=selection)
    BulkChange.objects.filter(pk=change.pk).update(state="running", worked_at=timezone.now())
    yield change


def test_the_pages_of_bulk_changes_are_in_chinese(client):
    for change in changes():
        assert left(client.get(f"{CHANGES}{change.pk}/change/")) == []
        assert left(client.get(f"{CHANGES}{change.pk}/progress/")) == []
    assert left(client.get(CHANGES)) == []


def test_the_message_after_stopping_a_bulk_change_is_in_chinese(client):
    change = bulk.start("cancel", [make_job("o:1").pk], by="安娜")
    stop = f"{CHANGES}{change.pk}/stop/"
    assert left(client.post(stop, follow=True)) == []
    assert left(client.post(stop, follow=True)) == []


def test_the_message_about_a_double_submission_is_in_chinese(client):
    terms = {"what": "cancel", "shown": "1", "listed": make_job("o:1").pk, "once": "abc"}
    client.post(f"{JOBS}all/?q=o", terms)
    assert left(client.post(f"{JOBS}all/?q=o", terms, follow=True)) == []


# -- topics -------------------------------------------------------------------------------------


def test_topics_are_in_chinese(client):
    make_jobs()
    group = Group.objects.create(name="财务")
    Topic.objects.filter(name=TOPIC).update(visible_to=[group.pk, 99], concurrency=3)
    Topic.objects.create(name="b.c", paused=True)
    for job in Job.objects.filter(state=State.DEAD):
        make_event(job, Outcome.FINISHED, attempt=1, reserved_ms=1_893_455_900_000, done_ms=1_893_455_900_100)
    assert left(client.get(TOPICS)) == []
    assert left(client.get(f"{TOPICS}{TOPIC}/change/")) == []
    assert left(client.get(f"{TOPICS}b.c/change/")) == []
    assert left(client.get(f"{TOPICS}add/")) == []
    assert left(client.post(f"{TOPICS}add/", {"name": "a b", "concurrency": "0"})) == []
    assert left(client.get(f"{TOPICS}b.c/delete/")) == []


def test_a_read_only_topic_page_is_in_chinese(staff):
    client = staff("delaytasks.view_topic", "delaytasks.view_job")
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "zh-CN"
    User.objects.update(username="安娜")
    for page in (TOPICS, f"{TOPICS}{TOPIC}/change/", JOBS, BOARD, "/admin/", "/admin/delaytasks/"):
        assert left(client.get(page)) == [], page


@pytest.mark.parametrize("retries", [{"max_attempts": 1}, {"max_attempts": 12}, {"max_attempts": 3}])
def test_the_retry_policy_is_in_chinese(client, retries):
    handlers.unregister(TOPIC)
    handlers.handler(TOPIC, ttr=60, **retries)(close)
    assert left(client.get(f"{TOPICS}{TOPIC}/change/")) == []


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_messages_and_log_entries_of_pausing_are_in_chinese(client, action):
    Topic.objects.update(paused=action == "resume")
    done = client.post(TOPICS, {"action": action, "_selected_action": [TOPIC], "index": "0"}, follow=True)
    assert left(done) == []
    assert left(client.get(f"{TOPICS}{TOPIC}/history/")) == []


# -- schedules ----------------------------------------------------------------------------------


def test_an_ended_schedule_is_ended_in_chinese_and_not_its_end_time(client):
    report = schedules.define(Definition(name="report", topic=TOPIC, rrule="FREQ=DAILY"))
    Schedule.objects.filter(pk=report.pk).update(ended=True, made_until=NOW)
    assert display.labelled("cancelled", "已结束") in client.get("/admin/delaytasks/schedule/").content.decode()
    [row] = client.get(f"{BOARD}numbers/").json()["schedules"]["rows"]
    assert row[:3] == ["report", TOPIC, "已结束"]


# -- log entries of all users --------------------------------------------------------


def test_log_entries_written_in_english_are_shown_in_chinese(client, admin_client):
    User.objects.filter(username="admin").update(username="本")
    job = make_job("o:1")
    for reason in ("", "银行关门"):
        for action in ("postpone_jobs", "run_jobs_now", "cancel_jobs"):
            press(admin_client, action, job, amount="1", unit="hours", reason=reason)
        Job.objects.filter(pk=job.pk).update(state=State.DEAD, ended_at=NOW, died_at=NOW)
        press(admin_client, "retry_jobs", job, reason=reason)
    page = client.get(f"{JOBS}{job.pk}/history/")
    assert left(page) == []
    assert "已取消：银行关门" in page.content.decode()


def test_log_entries_name_changed_fields_in_chinese(client, admin_client):
    User.objects.filter(username="admin").update(username="本")
    group = Group.objects.create(name="财务")
    fields = {"paused": "on", "concurrency": "3", "ask_reason": "on", "visible_to": [group.pk]}
    assert admin_client.post(f"{TOPICS}{TOPIC}/change/", fields).status_code == 302
    assert left(client.get(f"{TOPICS}{TOPIC}/history/")) == []


def test_log_entries_name_changed_fields_of_schedules_and_calendars_in_chinese(client, admin_client):
    User.objects.filter(username="admin").update(username="本")
    report = schedules.define(Definition(name="report", topic=TOPIC, rrule="FREQ=DAILY"))
    day = CalendarDay.objects.create(calendar="office", day=NOW)
    rule = {
        "topic": "order.close", "body": "1", "tz": "Asia/Shanghai", "cron": "0 9 * * *", "gap": "skip",
        "overlap": "both", "missed": "all", "running": "queue", "repeat": "0",
    }  # fmt: skip
    series = rule | {"cron": "", "delay": "1", "period": "60", "repeat": "3"}
    hours = {"calendar": "shop office", "day": "2030-01-03", "hours": "10:00-11:00", "note": "年会"}
    for row, fields in ((report, rule), (report, series), (day, hours)):
        page = f"/admin/delaytasks/{row._meta.model_name}/{row.pk}/"
        answer = admin_client.post(f"{page}change/", fields)
        assert answer.status_code == 302, answer.context["adminform"].errors
        known = KNOWN | {"report", "Cron", "office", "shop"}
        assert english_in(client.get(f"{page}history/"), known=known) == []


def test_a_log_entry_of_other_origin_is_unchanged():
    with override("zh-hans"):
        assert log_entries.translate("Something else: x") == "Something else: x"
        assert log_entries.translate("Cancelled.") == "已取消。"


# -- the board ----------------------------------------------------------------------------------


def test_the_board_explains_due_and_not_the_due_time(client):
    assert ("到期", "任务应当开始的时间已到。") in client.get(BOARD).context["glossary"]


@pytest.fixture
def health_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def say(**terms: Any) -> None:
        plain = health.health("default")
        monkeypatch.setattr(health, "health", lambda using: plain._replace(**terms))

    return say


def test_the_board_is_in_chinese(client):
    assert left(client.get(BOARD)) == []
    assert left(client.get(f"{BOARD}numbers/")) == []


def test_all_texts_of_the_board_are_in_chinese(client, health_of):
    for n in range(60):
        make_job(f"h:{n}", due=timedelta(minutes=20))
    for job in make_jobs():
        make_event(
            job,
            Outcome.FINISHED,
            attempt=1,
            due_ms=1_893_455_000_000,
            reserved_ms=1_893_455_900_000,
            done_ms=1_893_455_900_100,
        )
        make_event(job, Outcome.DEAD, attempt=1, done_ms=1_893_455_900_100)
    make_job("u:1", State.READY, topic="not.here")
    numbers = dict.fromkeys(("finished", "retried", "died", "cancelled", "snoozed", "begun"), 0)
    for days in (1, 7, 8):
        hour_at = NOW - timedelta(days=days)
        TopicStat.objects.create(topic=TOPIC, hour_at=hour_at, happened=7 + days, late_p95_ms=61_000, **numbers)
    Topic.objects.bulk_create([Topic(name=f"p.{n}", paused=True) for n in range(5)])
    for mirror in ("up", "down", "off"):
        for terms in (
            {"differences": 0, "audit_age_ms": 5, "checked": 9},
            {"differences": 2, "audit_age_ms": 5, "checked": 9},
            {"audit_age_ms": None, "repaired": 3, "rebuilt": 4},
        ):
            for looked in ({"heartbeat_age_ms": None}, {"heartbeat_age_ms": 5_000_000}, {"heartbeat_age_ms": 5}):
                health_of(mirror=mirror, **terms, **looked)
                assert left(client.get(f"{BOARD}numbers/")) == []


# -- tokens -------------------------------------------------------------------------------------


def test_tokens_and_accounts_are_in_chinese(client):
    token, _secret = tokens.create("a1", {"produce": ["o.c"], "consume": ["o.*"], "manage": ["*"]}, name="n1")
    other, _secret = tokens.create("a1", {"produce": ["o.c"]}, name="n2", expires_days=-1)
    for number, each in enumerate((token, other)):
        Token.objects.filter(pk=each.pk).update(prefix=f"p{number}")
    account = token.account
    for page in (
        TOKENS,
        f"{TOKENS}add/",
        f"{TOKENS}{token.pk}/change/",
        f"{TOKENS}{token.pk}/history/",
        ACCOUNTS,
        f"{ACCOUNTS}add/",
        f"{ACCOUNTS}{account.pk}/change/",
        f"{ACCOUNTS}{account.pk}/history/",
    ):
        assert left(client.get(page)) == [], page
    revoked = client.post(TOKENS, {"action": "revoke", "_selected_action": [token.pk], "index": "0"}, follow=True)
    assert left(revoked) == []
    assert left(client.get(f"{TOKENS}{token.pk}/history/")) == []
    ServiceAccount.objects.update(active=False)
    assert left(client.get(TOKENS)) == []


def test_errors_of_the_token_form_are_in_chinese(client):
    inline = {"grants-TOTAL_FORMS": "2", "grants-INITIAL_FORMS": "0"}
    bad = {"grants-0-topic": "o c", "grants-0-produce": "on", "grants-1-topic": "o.c"}
    assert left(client.post(f"{TOKENS}add/", inline | bad | {"rate_per_minute": "0"})) == []
    assert left(client.post(f"{ACCOUNTS}add/", {"name": "a b"})) == []


# -- other pages -----------------------------------------------------------------------------------


def test_the_index_and_recent_actions_are_in_chinese(client):
    job = make_job("o:1")
    press(client, "cancel_jobs", job)
    assert left(client.get("/admin/")) == []
    assert left(client.get("/admin/delaytasks/")) == []
    assert left(client.get("/admin/delaytasks_api/")) == []


def test_a_language_chosen_in_the_admin_is_kept(admin_client):
    page = admin_client.get(JOBS).content.decode()
    assert 'value="zh-hans" lang="zh-hans">简体中文</button>' in page
    chosen = admin_client.post("/i18n/setlang/", {"language": "zh-hans", "next": JOBS}, follow=True)
    assert "任务" in chosen.content.decode()
    assert 'value="en" lang="en">English</button>' in chosen.content.decode()
    assert "Jobs" in admin_client.post("/i18n/setlang/", {"language": "en", "next": JOBS}, follow=True).content.decode()


def test_api_responses_are_in_english_regardless_of_accept_language(client):
    answer = client.post("/api/jobs/", json.dumps({"topic": 3}), content_type="application/json")
    assert answer["Content-Language"] == "en"
    assert answer.content.decode().isascii()


def test_the_check_finds_english_words(client, monkeypatch):
    monkeypatch.setitem(formatting.STATES, State.DELAYED, "delayed")
    make_job("o:1")
    assert set(left(client.get(JOBS))) == {"delayed"}
