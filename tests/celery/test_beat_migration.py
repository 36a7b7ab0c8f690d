"""`schedules from-beat`: entries of Celery beat and of django-celery-beat become schedules, or it says why not."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.schedules import crontab, schedule
from django.core.management import CommandError, call_command
from django.utils import timezone

from delaytasks import handlers
from delaytasks.celery import beat_migration
from delaytasks.celery.beat_entries import Entry
from delaytasks.models import AuditEntry, Job, Schedule
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition

START = datetime(2026, 1, 1, tzinfo=UTC)
TASK = "shop.report"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _report() -> Iterator[None]:
    handlers.handler(TASK)(lambda job: None)
    yield
    handlers.unregister(TASK)


def entry(times: Any, **more: Any) -> Entry:
    return Entry(**{"name": "report", "task": TASK, "schedule": times, "tz": "UTC", **more})


def conversion(times: Any, **more: Any) -> beat_migration.Conversion:
    (result,) = beat_migration.convert([entry(times, **more)], {})
    return result


def definition(times: Any, **more: Any) -> Definition:
    result = conversion(times, **more)
    assert result.definition is not None, result.problem
    return result.definition


# -- crontabs: Celery itself is the oracle --------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "cron"),
    [
        ({}, "* * * * *"),
        ({"minute": "*/15"}, "*/15 * * * *"),
        ({"minute": "*/1", "hour": "0-23"}, "* * * * *"),
        ({"minute": 30, "hour": 2}, "30 2 * * *"),
        ({"minute": 0, "hour": "9-17/2,20"}, "0 9,11,13,15,17,20 * * *"),
        ({"minute": "0,30", "hour": {8, 20}}, "0,30 8,20 * * *"),
        ({"minute": 0, "hour": 12, "day_of_week": "fri-mon"}, "0 12 * * 0,1,5,6"),
        ({"minute": 0, "hour": 12, "day_of_week": "sunday"}, "0 12 * * 0"),
        ({"minute": 0, "hour": 12, "day_of_month": "1-7/3"}, "0 12 1,4,7 * *"),
        ({"minute": 0, "hour": 12, "day_of_month": "*/2"}, "0 12 */2 * *"),
        ({"minute": 0, "hour": 0, "day_of_month": 31, "month_of_year": "jan,mar"}, "0 0 31 1,3 *"),
        ({"minute": "*/7", "hour": "*/5", "month_of_year": "*/5"}, "*/7 */5 * */5 *"),
        ({"minute": 0, "hour": 6, "day_of_month": "1-7", "day_of_week": "mon"}, ""),
        ({"minute": 0, "hour": 6, "day_of_month": 13, "day_of_week": "fri"}, ""),
    ],
)
def test_crontabs_run_when_they_ran_in_celery(times: dict[str, Any], cron: str) -> None:
    made = definition(crontab(**times))
    assert made.cron == cron
    theirs = crontab(**times, nowfun=lambda: now)
    ours = made.times(START)
    now = moment = START
    for _ in range(40):
        now = moment + theirs.remaining_estimate(moment)
        firing = ours.next_after(moment)
        assert firing is not None
        assert firing.due == now
        moment = now


def test_zone_of_the_crontab_is_kept() -> None:
    assert definition(crontab(minute=0, hour=9), tz="Asia/Tokyo").times(START).next_after(START).due.hour == 0  # type: ignore[union-attr]


# -- the rest ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [crontab(minute=0), crontab(0, 9, "mon", "1-7"), schedule(60)], ids=str)
def test_a_start_in_the_future_is_kept(times: Any) -> None:
    begin = datetime(2099, 1, 1, tzinfo=UTC)
    result = conversion(times, begin=begin, last_run_at=START)
    assert result.definition is not None
    assert (result.definition.start, result.notes) == (begin, [])


def test_intervals_go_on_from_the_last_run() -> None:
    last = START - timedelta(minutes=7)
    made = definition(schedule(timedelta(minutes=10)), last_run_at=last, args=[1], kwargs={"to": "anna"})
    assert (made.every, made.start, made.body) == (timedelta(minutes=10), last, {"args": [1], "kwargs": {"to": "anna"}})
    assert (made.missed, made.running) == ("last", "allow")


@pytest.mark.parametrize(
    ("times", "more", "problem"),
    [
        (type("Moon", (schedule,), {})(60), {}, "Moon is neither an interval nor a crontab"),
        (schedule(60), {"one_off": True}, "one_off"),
        (schedule(60), {"end": START}, "it expired at 2026-01-01"),
        (type("OpeningDays", (crontab,), {})(hour=9), {}, "OpeningDays is neither an interval nor a crontab"),
        (schedule(0.01), {}, "every is"),
        (schedule(60), {"task": "shop.other"}, 'write @handler("shop.other")'),
        (schedule(60), {"task": "a task"}, "not a topic's name"),
        (schedule(60), {"task": "celery.backend_cleanup"}, "stays in beat"),
        (schedule(60), {"task": "delaytasks.sweep"}, "stays in beat"),
        (schedule(60), {"name": "***"}, "not a schedule's name"),
        (schedule(60), {"kwargs": {"when": START}}, "body"),
    ],
)
def test_what_cannot_be_carried_over_is_named(times: Any, more: dict[str, Any], problem: str) -> None:
    result = conversion(times, **more)
    assert result.definition is None
    assert problem in result.problem


@pytest.mark.parametrize(
    ("times", "more", "note"),
    [
        (schedule(60, relative=True), {}, "relative"),
        (schedule(60), {"options": {"queue": "slow", "priority": 3}}, "the options priority, queue"),
        (schedule(60), {"options": {"expires": START}}, "the options expires"),
        (schedule(60), {"end": datetime(2099, 1, 1, tzinfo=UTC)}, "its end at 2099"),
        (schedule(60), {"enabled": False}, "the schedule is paused"),
    ],
)
def test_what_is_lost_of_a_schedule_is_named(times: Any, more: dict[str, Any], note: str) -> None:
    result = conversion(times, **more)
    assert result.definition is not None
    assert note in "; ".join(result.notes)


@pytest.mark.parametrize("expires", [90, 90.0, timedelta(seconds=90)])
def test_expires_in_seconds_becomes_within(expires: Any) -> None:
    result = conversion(schedule(60), options={"expires": expires})
    assert result.definition is not None
    assert (result.definition.within, result.notes) == (timedelta(seconds=90), [])


def test_names_become_names_of_schedules_and_stay_unique() -> None:
    entries = [entry(schedule(60), name=name) for name in ("send report, daily", "send report daily")]
    first, second = beat_migration.convert(entries, {})
    assert first.definition is not None
    assert first.definition.name == "send-report-daily"
    assert "rename one in beat" in second.problem


def test_nothing_is_stored_without_write_and_writing_twice_changes_nothing() -> None:
    entries = [entry(schedule(600), enabled=False)]
    beat_migration.convert(entries, {})
    assert not Schedule.objects.exists()
    for _ in range(2):
        beat_migration.convert(entries, {}, write=True)
    assert Schedule.objects.get().paused
    schedules.resume("report")
    beat_migration.convert(entries, {}, write=True)
    assert not Schedule.objects.get().paused


@pytest.mark.parametrize(
    ("source", "words"), [("code", "is declared in code already"), ("call", "was made by a call of schedule() already")]
)
def test_schedule_of_the_code_is_not_overwritten(source: str, words: str) -> None:
    schedules.define(Definition("report", TASK, every=60))
    Schedule.objects.update(source=source)
    assert f"the schedule 'report' {words}" in conversion(schedule(600)).problem


def test_another_topic_is_chosen_by_the_name_of_the_task() -> None:
    (result,) = beat_migration.convert([entry(schedule(600))], {TASK: "shop.unknown"})
    assert f"--topic {TASK}=TOPIC" in result.problem


def test_schedule_of_staff_that_differs_is_named_and_stays() -> None:
    """Made by hand, or changed since the first run."""
    schedules.define(Definition("report", TASK, every=60, body={"to": "anna"}))
    (result,) = beat_migration.convert([entry(schedule(600))], {}, write=True)
    assert result.definition is None
    assert "there is another schedule 'report'" in result.problem
    row = Schedule.objects.get()
    assert (row.every_ms, row.body) == (60_000, {"to": "anna"})


@pytest.mark.parametrize(
    "times", [schedule(timedelta(days=1)), crontab(minute=0, hour=12), crontab(0, 12, day_of_week="*", day_of_month=31)]
)
def test_run_that_is_due_when_beat_is_stopped_is_made_once(times: Any) -> None:
    entries = [entry(times, last_run_at=START)]
    (shown,) = beat_migration.convert(entries, {})
    assert "due since 2026-01-" in "; ".join(shown.notes)
    assert not Job.objects.exists()
    beat_migration.convert(entries, {}, write=True)
    (again,) = beat_migration.convert(entries, {}, write=True)
    assert again.notes == []
    assert Job.objects.filter(topic=TASK, due_at__lte=timezone.now()).count() == 1


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"last_run_at": START, "enabled": False},
        {"last_run_at": START, "begin": datetime(2099, 1, 1, tzinfo=UTC)},
        {"last_run_at": timezone.now().replace(microsecond=999_999)},
    ],
    ids=["unknown", "disabled", "not begun", "has run"],
)
@pytest.mark.parametrize("times", [schedule(timedelta(days=1)), crontab(minute=0, hour=0, day_of_month=1)])
def test_run_that_is_not_due_is_not_made(times: Any, more: dict[str, Any]) -> None:
    (result,) = beat_migration.convert([entry(times, **more)], {}, write=True)
    assert "due since" not in "; ".join(result.notes)
    assert not Job.objects.filter(due_at__lte=timezone.now()).exists()


def test_arguments_are_compared_as_json() -> None:
    for _ in range(2):
        entries = [entry(schedule(600), args=[(1, 2)], kwargs={"names": {1: "anna"}})]
        (result,) = beat_migration.convert(entries, {}, write=True)
        assert result.problem == ""
    assert Schedule.objects.get().body == {"args": [[1, 2]], "kwargs": {"names": {"1": "anna"}}}


def test_a_later_last_run_is_no_difference() -> None:
    for minutes in (20, 10):
        (result,) = beat_migration.convert(
            [entry(schedule(600), last_run_at=START - timedelta(minutes=minutes))], {}, write=True
        )
        assert result.problem == ""
    assert Schedule.objects.get().start_at == START - timedelta(minutes=20)


# -- the command ------------------------------------------------------------------------------------


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delaytasks", "schedules", "from-beat", *arguments, stdout=out)
    return out.getvalue()


def test_command_reads_the_app_and_names_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    app = celery.Celery("shop", set_as_current=False, broker="memory://")
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {
        "nightly": {"task": "shop.tasks.report", "schedule": crontab(minute=30, hour=2), "options": {"queue": "slow"}},
        "seconds": {"task": "shop.unknown", "schedule": 30.0},
    }
    monkeypatch.setattr(sys.modules[__name__], "beat_app", app, raising=False)
    arguments = ("--app", f"{__name__}:beat_app", "--topic", f"shop.tasks.report={TASK}")
    text = run(*arguments)
    assert "cron 30 2 * * *" in text
    assert "the options queue" in text
    assert "no handler" in text
    assert "1 of 2 can be stored: add --write" in text
    assert not AuditEntry.objects.exists()
    assert "1 of 2 were stored\n" in run(*arguments, "--write")
    for again in ((), ("--write",)):
        text = run(*arguments, *again)
        assert text.splitlines()[-1] == "1 of 2 were stored before"
    row = Schedule.objects.get()
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.name) == ("schedule.created", f"schedule {row.pk}", "nightly")
    assert (row.name, row.topic, row.tz, row.cron) == ("nightly", TASK, "Europe/Berlin", "30 2 * * *")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--app", "no.such:app"), "no.such"), (("--app", "celery.schedules:crontab"), "is not a Celery app"),
        (("--app", ":"), "Empty module name"), (("--topic", "a"), "write it as TASK=TOPIC"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        run(*arguments)


def test_tables_of_django_celery_beat(tmp_path: Path) -> None:
    """In a process of its own, with the real package installed and its tables migrated: some seconds."""
    environment = {**os.environ, "BEAT_SITE_DB": str(tmp_path / "beat.sqlite3"), "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "tests.celery.beat_site"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *answer, rows = done.stdout.strip().splitlines()
    notes = {each["entry"]: "; ".join(each["notes"]) for each in json.loads("\n".join(answer))}
    assert notes["every ten minutes"] == notes["once"] == ""
    assert "the options priority, queue" in notes["nightly"]
    assert "is paused" in notes["hourly"]
    assert "is paused" in notes["turned off"]
    assert "SolarSchedule is neither" in notes["sunset"]
    assert 'write @handler("shop.other")' in notes["another task"]
    assert "its row cannot be read: Expecting property name" in notes["bad kwargs"]
    assert "its row cannot be read: " in notes["bad times"]
    assert "stays in beat" in notes["delaytasks.sweep"]
    same = {"topic": TASK, "running": "allow", "source": "staff", "cron": "", "every_ms": None, "delay_ms": None,
            "within_ms": None, "paused": False, "tz": "UTC", "body": {"args": [], "kwargs": {}}}  # fmt: skip
    stored = {row.pop("name"): row for row in json.loads(rows)}
    assert stored == {
        "every-ten-minutes": same | {"every_ms": 600_000, "body": {"args": [], "kwargs": {"to": "anna"}}},
        "hourly": same
        | {"every_ms": 3_600_000, "body": {"args": [1], "kwargs": {}}, "within_ms": 90_000, "paused": True},
        "nightly": same | {"cron": "30 2 * * 1,2,3,4,5", "tz": "Asia/Tokyo"},
        "once": same | {"delay_ms": 0},
        "of-a-receiver": same | {"every_ms": 900_000},
        "turned-off": same | {"every_ms": 3_600_000, "paused": True},
    }
