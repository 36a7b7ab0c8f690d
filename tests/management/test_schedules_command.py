"""manage.py delaytasks schedules."""

import json
import socket
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delaytasks.jobs import audit_log
from delaytasks.models import AuditEntry, Job, Schedule
from delaytasks.recurrence import registry, schedules
from delaytasks.recurrence.definition import Definition

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _tick(stage, db_clock):
    stage.recorder("tick")
    schedules.define(Definition(name="tick", topic="tick", cron="30 2 * * *", tz="Europe/Berlin"))


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delaytasks", "schedules", *arguments, stdout=out)
    return out.getvalue()


def data(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_list_names_times_and_state():
    text = run("list")
    assert "cron 30 2 * * *" in text
    assert "running" in text
    assert data("list")[0]["name"] == "tick"


def test_next_shows_local_time_and_utc():
    assert "Tue 2030-01-01 02:30:00+0100  Tue 2030-01-01 01:30:00+0000" in run("next", "tick")
    assert len(data("next", "tick", "--count", "3")) == 3


def test_plan_and_apply():
    registry.add(registry.Declared(Definition(name="tock", topic="tick", every=60)))
    try:
        assert data("plan") == [{"name": "tock", "kind": "create"}]
        assert data("apply") == [{"name": "tock", "kind": "create"}]
        assert data("plan") == [{"name": "tock", "kind": "keep"}]
    finally:
        registry.unregister("tock")


def test_a_backfill_says_how_many_runs_were_made():
    text = run("backfill", "tick", "--from", "2029-12-30T00:00Z", "--to", "2029-12-31T12:00Z")
    assert text == "2 runs were made\n"


def test_pause_resume_run_and_backfill():
    assert data("pause", "tick")["changed"]
    assert Schedule.objects.get().paused
    assert "running" in run("resume", "tick")
    assert Job.objects.filter(pk=data("run", "tick")["id"], key__startswith="tick@now:").exists()
    assert data("backfill", "tick", "--from", "2029-12-30T00:00Z", "--to", "2029-12-31T12:00Z")["made"] == 2


def entries() -> list[AuditEntry]:
    return list(AuditEntry.objects.order_by("pk"))


def test_a_change_of_a_schedule_is_in_the_audit_log_with_before_and_after(monkeypatch):
    monkeypatch.setenv("LOGNAME", "carol")
    row = Schedule.objects.get()
    for arguments in (
        ["pause", "tick"], ["pause", "tick"], ["resume", "tick"], ["run", "tick"],
        ["backfill", "tick", "--from", "2029-12-30T00:00Z", "--to", "2029-12-31T12:00Z"],
    ):  # fmt: skip
        run(*arguments)
    paused, resumed, ran, backfilled = entries()
    assert [entry.action for entry in entries()] == [
        "schedule.paused", "schedule.resumed", "schedule.run_once", "schedule.backfilled",
    ]  # fmt: skip
    assert {(entry.actor, entry.address, entry.target, entry.topic, entry.name) for entry in entries()} == {
        ("command:carol", socket.gethostname(), f"schedule {row.pk}", "tick", "tick")
    }
    assert (paused.before["paused"], paused.after["paused"]) == (False, True)
    assert (resumed.before["paused"], resumed.after["paused"]) == (True, False)
    assert ran.request == "manage.py delaytasks schedules"
    assert backfilled.reason == "2 from 2029-12-30T00:00:00+00:00 to 2029-12-31T12:00:00+00:00"


def test_refused_and_reading_calls_leave_no_entry():
    for arguments in (["list"], ["next", "tick"], ["plan"], ["apply"]):
        run(*arguments)
    with pytest.raises(CommandError):
        run("backfill", "tick", "--from", "2031-01-01T00:00Z", "--to", "2031-01-02T00:00Z")
    assert entries() == []


def test_apply_leaves_an_entry_for_each_schedule_that_it_changes():
    registry.add(registry.Declared(Definition(name="tock", topic="tick", every=60, body={"amount": 10})))
    try:
        run("apply")
        run("apply")
        registry.unregister("tock")
        registry.add(registry.Declared(Definition(name="tock", topic="tick", every=60, body={"amount": 9999})))
        run("apply")
    finally:
        registry.unregister("tock")
    run("apply")
    created, changed, deleted = entries()
    assert [entry.action for entry in entries()] == ["schedule.created", "schedule.changed", "schedule.deleted"]
    assert (created.before, created.after, deleted.after) == (None, changed.before, None)
    assert changed.before["body_sha256"] == audit_log.body_sha256({"amount": 10})
    assert changed.after == deleted.before
    assert {(entry.name, entry.topic) for entry in entries()} == {("tock", "tick")}


def test_a_schedule_that_somebody_else_changes_during_apply_is_not_logged_as_ours(monkeypatch):
    apply = schedules.apply

    def apply_meanwhile(**options: Any) -> list[schedules.Change]:
        Schedule.objects.filter(name="tock").update(paused=True)
        return apply(**options)

    registry.add(registry.Declared(Definition(name="tock", topic="tick", every=60)))
    try:
        run("apply")
        registry.add(registry.Declared(Definition(name="tack", topic="tick", every=60)))
        monkeypatch.setattr(schedules, "apply", apply_meanwhile)
        run("apply")
    finally:
        registry.unregister("tock")
        registry.unregister("tack")
    assert [(entry.action, entry.name) for entry in entries()] == [
        ("schedule.created", "tock"), ("schedule.created", "tack"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["next", "x"], "no schedule 'x'"),
        (["next"], "Give the name"),
        (["backfill", "tick"], "Give the range"),
        (["backfill", "tick", "--from", "2031-01-01T00:00Z", "--to", "2031-01-02T00:00Z"], "range in the past"),
    ],
)
def test_a_wrong_call_says_what_to_do(arguments, words):
    with pytest.raises(CommandError, match=words):
        run(*arguments)


@pytest.mark.parametrize("action", ["list", "plan", "apply", "from-beat"])
def test_a_name_is_refused_where_all_schedules_are_meant(action):
    with pytest.raises(CommandError, match=f"schedules {action} takes no name") as raised:
        run(action, "report.daily")
    assert raised.value.returncode == 2
