"""manage.py delaytasks schedules."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delaytasks.models import Job, Schedule
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


def test_pause_resume_run_and_backfill():
    assert data("pause", "tick")["changed"]
    assert Schedule.objects.get().paused
    assert "running" in run("resume", "tick")
    assert Job.objects.filter(pk=data("run", "tick")["id"], key__startswith="tick@now:").exists()
    assert data("backfill", "tick", "--from", "2029-12-30T00:00Z", "--to", "2029-12-31T12:00Z")["made"] == 2


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
