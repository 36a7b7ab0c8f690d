"""The audit log of tokens, topics, staff and refused requests, and the command that ships it."""

import asyncio
import json
import socket
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.urls import reverse

import delaytasks
from delaytasks.api.access import refusals
from delaytasks.api.models import Grant, ServiceAccount, Token
from delaytasks.db import transitions
from delaytasks.jobs import audit_log
from delaytasks.jobs.audit_log import Source
from delaytasks.models import AuditEntry, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from tests.api.test_tokens import ACCOUNTS, MANAGES, made, run, token_form

pytestmark = pytest.mark.urls("project.urls")
ADDRESS = "127.0.0.1"


def entries(action: str = "") -> list[AuditEntry]:
    found = AuditEntry.objects.order_by("pk")
    return list(found.filter(action=action) if action else found)


def only(action: str) -> AuditEntry:
    (entry,) = entries(action)
    return entry


def signature(account: str = "php-shop") -> str:
    return f"{account} (token {Token.objects.get().prefix})"


# Over HTTP


def test_pausing_by_a_token_leaves_a_row(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "manage"}))
    client.post("/api/topics/order.close/pause/", {"reason": "shop is closed"})
    client.post("/api/topics/order.close/pause/", {"reason": "again"})  # changes nothing
    client.post("/api/topics/order.close/resume/")
    paused, resumed = entries()
    assert (paused.action, resumed.action) == ("topic.paused", "topic.resumed")
    assert (paused.actor, paused.address, paused.reason) == (signature(), ADDRESS, "shop is closed")
    assert (paused.target, paused.topic) == ("topic order.close", "order.close")
    assert paused.request == "POST /api/topics/order.close/pause/"


@pytest.mark.parametrize("door", ["rest", "queue", "bulk"])
def test_a_body_replaced_over_http_leaves_a_trace(door: str, make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "produce"}))
    for amount in (10, 9999):
        job = {"topic": "order.close", "body": {"amount": amount}}
        if door == "queue":
            sent = job | {"command": "add", "id": "order:1", "delay": 60, "TTR": 60, "on_conflict": "replace"}
            assert client.post("/api/queue/", sent).json()["success"]
        else:
            job |= {"key": "order:1", "delay_seconds": 60}
            sent = {"jobs": [job], "on_conflict": "replace"} if door == "bulk" else job | {"on_conflict": "replace"}
            assert client.post("/api/jobs/", sent).status_code in (200, 201)
    entry = only("job.replaced")
    assert (entry.actor, entry.address) == (signature(), ADDRESS)
    assert entry.before["body_sha256"] == audit_log.body_sha256({"amount": 10})
    assert entry.after["body_sha256"] == audit_log.body_sha256({"amount": 9999})


@pytest.mark.parametrize("_path", ["views", "fast"], indirect=True)
@pytest.mark.parametrize("door", ["rest", "queue", "bulk"])
def test_a_next_run_replaced_over_http_leaves_a_trace(door: str, make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "produce"}))
    held = delaytasks.schedule("order.close", key="order:1", delay=0, body={"amount": 10})
    transitions.claim("default", "order.close", [held.pk], "w1")
    for amount in (11, 9999):
        job = {"topic": "order.close", "body": {"amount": amount}}
        if door == "queue":
            sent = job | {"command": "add", "id": "order:1", "delay": 60, "TTR": 60, "on_conflict": "again"}
            assert client.post("/api/queue/", sent).json()["result"] == "again"
        else:
            job |= {"key": "order:1", "delay_seconds": 60}
            sent = {"jobs": [job], "on_conflict": "again"} if door == "bulk" else job | {"on_conflict": "again"}
            assert client.post("/api/jobs/", sent).status_code == 200
    first, second = entries()
    assert [first.action, second.action] == ["job.next_run_scheduled", "job.next_run_replaced"]
    for entry, before, after in ((first, 10, 11), (second, 11, 9999)):
        assert (entry.actor, entry.address, entry.target) == (signature(), ADDRESS, f"job {held.pk}")
        assert entry.request == f"POST /api/{'queue' if door == 'queue' else 'jobs'}/"
        assert entry.before["body_sha256"] == audit_log.body_sha256({"amount": before})
        assert entry.after["body_sha256"] == audit_log.body_sha256({"amount": after})


def test_changes_of_a_job_have_an_address(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "manage"}))
    job = delaytasks.schedule("order.close", key="order:1", delay=60, body={})
    client.post(f"/api/jobs/{job.pk}/run-now/")
    client.post(f"/api/jobs/{job.pk}/cancel/", {"reason": "paid"})
    client.post(f"/api/jobs/{job.pk}/cancel/")  # it has ended
    made_ready, cancelled = entries()
    assert (made_ready.action, cancelled.action) == ("job.made_ready", "job.cancelled")
    assert (cancelled.actor, cancelled.address, cancelled.reason) == (signature(), ADDRESS, "paid")
    assert (cancelled.target, cancelled.name) == (f"job {job.pk}", "order:1")


def test_staff_over_http_are_recorded_once(staff_api: Any) -> None:
    staff = staff_api("delaytasks.view_job", "delaytasks.operate_job")
    job = delaytasks.schedule("order.close", key="order:1", delay=60, body={})
    staff.post(f"/api/jobs/{job.pk}/cancel/")
    assert (only("job.cancelled").actor, only("job.cancelled").address) == (staff.user.username, ADDRESS)


def test_a_changed_schedule_is_recorded_with_before_and_after(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "produce"}))
    terms = {"name": "nightly", "topic": "order.close", "every_seconds": 3600, "body": {"amount": 10}}
    assert client.post("/api/schedules/", terms).status_code == 201
    sent = {"body": {"amount": 9999}, "every_seconds": 60}
    assert client.request("PATCH", "/api/schedules/nightly/", sent).status_code == 200
    Topic.objects.update_or_create(name="order.close", defaults={"keep_bodies": True})
    assert client.post("/api/schedules/nightly/pause/").status_code == 200
    assert client.request("DELETE", "/api/schedules/nightly/").status_code == 200
    created, changed, paused, deleted = entries()
    assert created.before is None
    assert created.after == changed.before
    assert (changed.before["every_ms"], changed.after["every_ms"]) == (3_600_000, 60_000)
    assert changed.before["body_sha256"] == audit_log.body_sha256({"amount": 10})
    assert changed.after["body_sha256"] == audit_log.body_sha256({"amount": 9999})
    assert "body" not in changed.before | changed.after
    assert (paused.before["paused"], paused.after["paused"]) == (False, True)
    assert (deleted.before["body"], deleted.after) == ({"amount": 9999}, None)


def test_a_schedule_changed_in_the_admin_is_recorded_with_before_and_after(staff_api: Any) -> None:
    rows = [schedules.define(Definition(name="nightly", topic="order.close", cron="0 3 * * *", body={"amount": 10}))]
    staff = staff_api("delaytasks.view_schedule", "delaytasks.change_schedule", "delaytasks.delete_schedule",
                      "delaytasks.view_job")  # fmt: skip
    address = reverse("admin:delaytasks_schedule_change", args=[rows[0].pk])
    form = dict(staff.client.get(address).context["adminform"].form.initial)
    sent = {name: value for name, value in form.items() if value is not None} | {"body": '{"amount": 9999}'}
    answer = staff.client.post(address, sent)
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    changed = only("schedule.changed")
    assert changed.before["body_sha256"] == audit_log.body_sha256({"amount": 10})
    assert changed.after["body_sha256"] == audit_log.body_sha256({"amount": 9999})
    staff.client.post(reverse("admin:delaytasks_schedule_delete", args=[rows[0].pk]), {"post": "yes"})
    assert only("schedule.deleted").before == changed.after


# Refused requests


def test_refused_calls_are_recorded_with_their_address(make_token: Any, api: Any) -> None:
    secret = make_token(topics={"order.*": "produce"})
    api().get("/api/topics/")
    api("abcdefgh." + "x" * 32).get("/api/topics/")
    api(secret).get("/api/topics/refund.check/")
    api(secret).post("/api/queue/", {"command": "pop", "topic": "order.close"})
    nobody, unknown, no_right, no_consumer = entries("request.refused")
    assert {entry.address for entry in entries()} == {ADDRESS}
    assert (nobody.actor, nobody.request) == ("", "GET /api/topics/")
    assert (unknown.actor, unknown.after) == ("token abcdefgh", {"why": "token not accepted"})
    assert (no_right.actor, no_right.topic) == (signature(), "refund.check")
    assert (no_consumer.topic, no_consumer.after) == ("order.close", {"why": "right consume"})


def test_a_request_for_an_attempt_of_another_account_is_recorded(make_token: Any, api: Any) -> None:
    holder, other = (api(make_token(name, topics={"order.*": "consume"})) for name in ("a", "b"))
    delaytasks.schedule("order.close", key="order:1", delay=0)
    (held,) = holder.post("/api/topics/order.close/reserve/", {}).json()["jobs"]
    proofs: list[dict[str, Any]] = [{"attempt": 1}, {"attempt": 1, "receipt": "0" * 32}]
    for proof in proofs:
        assert other.post(f"/api/jobs/{held['id']}/finish/", proof).status_code == 403
        assert not other.post("/api/queue/", {"command": "finish", "id": "order:1", **proof}).json()["success"]
    recorded = {(entry.actor, entry.topic, entry.address, entry.after["why"]) for entry in entries("request.refused")}
    signature_of_b = f"b (token {Token.objects.get(account__name='b').prefix})"
    assert recorded == {(signature_of_b, "order.close", ADDRESS, f"receipt of job {held['id']}, attempt 1")}
    assert len(entries("request.refused")) == 4


def test_a_refusal_never_records_a_secret(make_token: Any, api: Any) -> None:
    secret = make_token()
    Token.objects.update(revoked=True)
    for sent in (secret, secret.partition(".")[2], secret + "\u00e9", f"{secret}\x00"):
        api(sent.encode().decode("latin-1")).get("/api/topics/")
    assert secret.partition(".")[2] not in json.dumps(run_log())


def test_refusals_cannot_fill_the_database(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    limiter = refusals.Limiter(lambda: now[0])
    monkeypatch.setattr(refusals, "limiter", limiter)
    for _ in range(refusals.MAX_PER_ADDRESS + 5):
        api().get("/api/topics/")
    assert len(entries()) == refusals.MAX_PER_ADDRESS
    now[0] += refusals.WINDOW_SECONDS
    api().get("/api/topics/")
    assert entries()[-1].after == {"why": "no token and no session of staff", "left_out": 5}


def test_many_addresses_cannot_fill_the_database_either() -> None:
    limiter = refusals.Limiter(lambda: 0.0)
    admitted = [limiter.admit(f"2001:db8::{n:x}") for n in range(5_000)]
    assert sum(each is not None for each in admitted) == refusals.MAX_PER_PROCESS
    assert len(limiter._counts) <= refusals.MAX_ADDRESSES


def test_a_refusal_that_cannot_be_recorded_is_refused_all_the_same(api: Any, caplog: Any) -> None:
    def read_only(execute: Any, sql: str, *args: Any) -> Any:
        if "delaytasks_auditentry" in sql:
            raise DatabaseError("cannot execute INSERT in a read-only transaction")
        return execute(sql, *args)

    with connection.execute_wrapper(read_only):
        assert api().get("/api/topics/").status_code == 401
    assert "Could not record a refused request" in caplog.text


def test_an_event_loop_does_not_wait_for_the_record() -> None:
    async def refuse() -> None:
        refusals.record(Source("192.0.2.9", "GET /"), "", "no token")

    asyncio.run(refuse())
    refusals._executor.submit(int).result(10)
    assert only("request.refused").address == "192.0.2.9"


# Tokens, grants, accounts and topics


def test_the_command_records_who_made_and_revoked_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "carol")
    made("--produce", "order.*", "--consume", "order.close", "--expires-days", "7")
    token = Token.objects.get()
    assert token.created_by == "command:carol"
    run("revoke", token.prefix)
    token.refresh_from_db()
    assert token.revoked_by == "command:carol"
    assert token.revoked_at is not None
    added, revoked = entries()
    assert (added.action, revoked.action) == ("token.added", "token.revoked")
    assert (added.actor, added.address) == ("command:carol", socket.gethostname())
    assert added.after["grants"] == {"order.*": ["produce"], "order.close": ["consume"]}
    assert added.name == token.prefix
    (listed,) = json.loads(run("list", "--json"))
    assert (listed["created_by"], listed["revoked_by"]) == ("command:carol", "command:carol")


def test_the_admin_records_who_made_changed_and_revoked_a_token(staff_api: Any) -> None:
    staff = staff_api(*MANAGES, *ACCOUNTS, "delaytasks_api.delete_token")
    account = ServiceAccount.objects.create(name="php-shop")
    staff.client.post(reverse("admin:delaytasks_api_token_add"), token_form(account, ("order.close", "produce")))
    token, grant = Token.objects.get(), Grant.objects.get()
    address = reverse("admin:delaytasks_api_token_change", args=[token.pk])
    form = token_form(account, ("order.close", "manage"), first=1)
    form |= {"grants-0-id": str(grant.pk), "grants-0-token": str(token.pk)}
    staff.client.post(address, form)
    staff.client.post(address, form | {"revoked": "on"})
    staff.client.post(reverse("admin:delaytasks_api_token_delete", args=[token.pk]), {"post": "yes"})
    name = staff.user.username
    assert {(entry.actor, entry.address) for entry in entries()} == {(name, ADDRESS)}
    changed = entries("token.changed")[0]
    assert changed.before["grants"] == {"order.close": ["produce"]}
    assert changed.after["grants"] == {"order.close": ["manage"]}
    assert only("token.added").after["grants"] == {"order.close": ["produce"]}
    assert only("token.revoked").name == token.prefix
    assert only("token.deleted").before["revoked"] is True


def test_revoking_in_the_list_records_one_entry_for_each_token(staff_api: Any, make_token: Any) -> None:
    make_token(), make_token(), make_token(revoked=True)
    staff = staff_api(*MANAGES)
    form = {"action": "revoke", "_selected_action": [str(token.pk) for token in Token.objects.all()]}
    staff.client.post(reverse("admin:delaytasks_api_token_changelist"), form)
    assert len(entries("token.revoked")) == len(entries()) == 2
    assert set(Token.objects.values_list("revoked_by", flat=True)) == {staff.user.username, ""}


def test_a_changed_account_and_topic_are_recorded_with_before_and_after(staff_api: Any, make_token: Any) -> None:
    make_token()
    topic = Topic.objects.create(name="open.topic")
    account = ServiceAccount.objects.get()
    staff = staff_api(*ACCOUNTS, "delaytasks.view_job", "delaytasks.view_topic", "delaytasks.change_topic")
    staff.client.post(reverse("admin:delaytasks_api_serviceaccount_change", args=[account.pk]), {"note": "x"})
    form = {"concurrency": "3", "initial-concurrency": "", "hide_bodies": "on", "initial-hide_bodies": "False"}
    staff.client.post(reverse("admin:delaytasks_topic_change", args=[topic.pk]), form)
    changed = only("account.changed")
    assert (changed.before["active"], changed.after["active"], changed.actor) == (True, False, staff.user.username)
    changed = only("topic.changed")
    assert (changed.before["concurrency"], changed.after["concurrency"]) == (None, 3)
    assert (changed.before["hide_bodies"], changed.after["hide_bodies"]) == (False, True)


def test_pausing_in_the_admin_is_recorded_with_its_reason(staff_api: Any) -> None:
    Topic.objects.update_or_create(name="open.topic")
    staff = staff_api("delaytasks.view_topic", "delaytasks.change_topic")
    form = {"action": "pause", "_selected_action": ["open.topic"], "reason": "audit: of stock"}
    staff.client.post(reverse("admin:delaytasks_topic_changelist"), form)
    paused = only("topic.paused")
    assert (paused.actor, paused.reason, paused.topic) == (staff.user.username, "audit: of stock", "open.topic")
    assert (paused.before["paused"], paused.after["paused"]) == (False, True)


def test_a_job_cancelled_in_the_admin_is_recorded_with_the_address(staff_api: Any) -> None:
    job = delaytasks.schedule("order.close", key="order:1", delay=60, body={})
    staff = staff_api("delaytasks.view_job", "delaytasks.operate_job")
    form = {"action": "cancel_jobs", "_selected_action": [str(job.pk)], "reason": "paid", "confirmed": "1"}
    staff.client.post(reverse("admin:delaytasks_job_changelist"), form)
    cancelled = only("job.cancelled")
    assert (cancelled.actor, cancelled.address, cancelled.reason) == (staff.user.username, ADDRESS, "paid")


# The command


def run_log(*args: str) -> Any:
    out = StringIO()
    call_command("delaytasks", "audit-log", *args, "--json", stdout=out)
    return json.loads(out.getvalue())


def write(count: int) -> None:
    made = [audit_log.entry("topic.paused", "anna", f"topic {n}", topic=f"t{n}") for n in range(count)]
    audit_log.record("default", made)


def test_the_command_ships_entries_page_by_page() -> None:
    write(5)
    first = run_log("--limit", "3")
    rest = run_log("--limit", "3", "--after", str(first["next_after"]))
    assert [entry["topic"] for entry in first["entries"] + rest["entries"]] == ["t0", "t1", "t2", "t3", "t4"]
    assert rest["next_after"] is None
    assert set(first["entries"][0]) == {
        "id", "at", "actor", "address", "request", "action", "target", "topic", "name", "reason", "before", "after",
    }  # fmt: skip
    assert first["entries"][0]["at"].endswith("Z")


@pytest.mark.parametrize(("since", "count"), [("1h", 1), ("2000-01-01T00:00Z", 1), ("2999-01-01T00:00Z", 0)])
def test_the_command_takes_a_time_or_an_age(since: str, count: int) -> None:
    write(1)
    assert len(run_log("--since", since)["entries"]) == count


@pytest.mark.parametrize("args", [["--since", "soon"], ["--since", "2030-01-01T00:00"], ["--after", "-1"]])
def test_the_command_names_invalid_input(args: list[str]) -> None:
    with pytest.raises(CommandError, match=r"not a time|no time zone|not the id"):
        call_command("delaytasks", "audit-log", *args)


def test_the_command_shows_a_table_to_people() -> None:
    out = StringIO()
    call_command("delaytasks", "audit-log", stdout=out)
    assert out.getvalue() == "No entries.\n"
    write(2)
    out = StringIO()
    call_command("delaytasks", "audit-log", "--limit", "1", stdout=out)
    assert "topic.paused" in out.getvalue()
    assert "repeat with --after" in out.getvalue()


def test_a_request_does_not_inherit_the_source_of_the_one_before(make_token: Any, api: Any) -> None:
    api(make_token(topics={"order.*": "manage"})).get("/api/topics/")
    api().get("/api/health/")
    delaytasks.schedule("order.close", key="order:1", delay=60, body={}, by="anna")
    delaytasks.schedule("order.close", key="order:1", delay=90, body={}, by="anna", on_conflict="replace")
    assert only("job.replaced").address == ""
