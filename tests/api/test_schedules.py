"""Schedules over REST: create, list, read, change, delete, pause, resume, run now, next runs, backfill."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.db import connection

from delaytasks import schedule
from delaytasks.api import job_list
from delaytasks.api.views import schedules as views
from delaytasks.models import AuditEntry, Job, Schedule, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.redaction import HIDDEN
from tests.api.rest_client import T0, Rest, at, fields

DAILY = {"name": "report", "topic": "mail.send", "cron": "30 2 * * *", "tz": "Europe/Berlin"}
SHOWN = DAILY | {
    "body": {}, "ttr_seconds": None, "every_seconds": None, "rrule": "", "delay_seconds": None, "period_seconds": None,
    "repeat": 0, "start_at": at(0), "gap": "run", "overlap": "once", "missed": "last", "within_seconds": None,
    "running": "skip", "source": "staff", "state": "running", "problem": "", "next_run_at": at(5400),
}  # fmt: skip


def live_keys() -> list[str]:
    return list(Job.objects.filter(ended_at=None).order_by("due_at", "key").values_list("key", flat=True))


def audited() -> list[tuple[str, str, str]]:
    rows = AuditEntry.objects.filter(target__startswith="schedule ").order_by("id")
    return list(rows.values_list("action", "name", "reason"))


@pytest.fixture
def report(rest: Rest) -> dict[str, Any]:
    made: dict[str, Any] = rest.post("schedules/", DAILY, 201)
    return made


# -- create -------------------------------------------------------------------------------------


def test_schedule_is_created_with_its_first_job(rest: Rest, report: dict[str, Any]) -> None:
    assert report == SHOWN
    assert rest.last.headers["Location"] == "/api/schedules/report/"
    assert rest.get("schedules/report/") == SHOWN
    assert live_keys() == ["report@2030-01-01T02:30:00"]
    assert audited() == [("schedule.created", "report", "")]


@pytest.mark.parametrize(
    ("terms", "due"),
    [
        ({"every_seconds": 0.5}, 0.5),
        ({"rrule": "FREQ=DAILY;BYHOUR=3", "start_at": at(0)}, 3 * 3600),
        ({"delay_seconds": 5, "period_seconds": 60, "repeat": None}, 5),
        ({"cron": "0 1 * * *", "delay_seconds": 5, "period_seconds": 60, "repeat": 3}, 3605),
    ],
)
def test_all_kinds_of_times(rest: Rest, terms: dict[str, Any], due: float) -> None:
    made = rest.post("schedules/", {"name": "s", "topic": "mail.send", **terms}, 201)
    assert made["next_run_at"] == at(due)
    assert {name: made[name] for name in terms} == terms


def test_a_schedule_ends_with_its_last_run_not_when_its_jobs_are_made(rest: Rest, db_clock: Any) -> None:
    """The jobs of the next ten seconds are made ahead."""
    thrice = {"name": "s", "topic": "mail.send", "delay_seconds": 1, "period_seconds": 2, "repeat": 2}
    made = rest.post("schedules/", thrice, 201)
    assert (made["state"], made["next_run_at"], len(live_keys())) == ("running", at(1), 3)
    db_clock.advance(seconds=4)
    assert rest.get("schedules/s/")["next_run_at"] == at(5)
    db_clock.advance(seconds=1)
    over = rest.get("schedules/s/")
    assert (over["state"], over["next_run_at"]) == ("ended", None)


def test_job_policies_and_body_are_kept(rest: Rest) -> None:
    terms = {
        "body": {"to": "anna", "password": "hunter2"}, "ttr_seconds": 1.5, "gap": "skip", "overlap": "both",
        "missed": "all", "within_seconds": 3600, "running": "queue",
    }  # fmt: skip
    made = rest.post("schedules/", DAILY | terms, 201)
    assert {name: made[name] for name in terms} == terms  # who consumes the topic reads bodies
    assert Job.objects.get().ttr_ms == 1500


def test_a_start_before_1970_keeps_its_day_of_the_week(rest: Rest) -> None:
    mondays = {"name": "s", "topic": "mail.send", "every_seconds": 7 * 86_400, "start_at": "1900-01-01T00:00:00.000Z"}
    made = rest.post("schedules/", mondays, 201)
    assert (made["start_at"], made["next_run_at"]) == (mondays["start_at"], "2030-01-07T00:00:00.000Z")
    problem = rest.post("schedules/", mondays | {"name": "t", "start_at": "1899-12-31T23:59:59Z"}, 400)
    assert "give a year from 1900" in problem["detail"]


def test_name_that_is_taken_is_409(rest: Rest, report: dict[str, Any]) -> None:
    problem = rest.post("schedules/", DAILY | {"cron": "0 1 * * *"}, 409)
    assert problem["type"].endswith(":schedule-exists")
    assert "'report' already" in problem["detail"]
    assert Schedule.objects.get().cron == "30 2 * * *"


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({}, "it has none of them"),
        ({"cron": "* * * * * *", "tz": "UTC"}, "with 6 fields; write five"),
        ({"cron": "0 0 30 2 *"}, "no such day comes"),
        ({"cron": "@reboot"}, "names such as @daily are not supported"),
        ({"cron": "0 12-12 * * *"}, "has only one value"),
        ({"cron": "0 12 * * *", "tz": "Mars/Base"}, "'Mars/Base' is not a time zone"),
        ({"cron": "0 12 * * *", "every_seconds": 60}, "it has cron, every"),
        ({"rrule": "FREQ=DAILY;COUNT=3;UNTIL=20310101T000000Z"}, "COUNT"),
        ({"rrule": "FREQ=DAILY;UNTIL=20200101T000000Z"}, "would never run"),
        ({"repeat": 3, "delay_seconds": 1}, "repeat is 3 without period"),
    ],
)
def test_times_that_are_wrong_are_400_and_nothing_is_stored(rest: Rest, terms: dict[str, Any], told: str) -> None:
    problem = rest.post("schedules/", {"name": "s", "topic": "mail.send", **terms}, 400)
    assert problem["type"].endswith((":bad-schedule", ":bad-time-zone"))
    assert told in problem["detail"]
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("terms", "field", "told"),
    [
        ({"name": "a b"}, "name", "is not a schedule's name"),
        ({"name": None}, "name", "must not be null"),
        ({"every_seconds": 0}, "every_seconds", "must be from 0.1 to 316,224,000 seconds"),
        ({"every_seconds": "60"}, "every_seconds", "is not a number of seconds"),
        ({"start_at": "2030-01-01T00:00:00"}, "start_at", "has no offset"),
        ({"missed": "some"}, "missed", "is not one of all, last, none"),
        ({"repeat": -1}, "repeat", "out of range"),
        ({"colour": "red"}, "colour", "Unknown field"),
        ({"paused": True}, "paused", "Unknown field"),
    ],
)
def test_fields_that_are_wrong_are_400(rest: Rest, terms: dict[str, Any], field: str, told: str) -> None:
    problem = rest.post("schedules/", {"name": "s", "topic": "mail.send", **terms}, 400)
    assert fields(problem) == [field]
    assert told in problem["errors"][0]["detail"]


def test_unknown_topic_and_body_that_no_database_stores_are_400(make_token: Any, api: Any, rest: Rest) -> None:
    problem = rest.post("schedules/", DAILY | {"topic": "mail.unknown"}, 400)
    assert problem["type"].endswith(":unknown-topic")
    assert "sms.send" not in problem["detail"]
    assert rest.post("schedules/", DAILY | {"body": {"a": "\u0000"}}, 400)["type"].endswith(":bad-body")
    assert not Schedule.objects.exists()


# -- list ---------------------------------------------------------------------------------------


def test_list_has_the_visible_schedules_by_name_in_pages(rest: Rest) -> None:
    for name in ("b", "d", "a", "c"):
        rest.post("schedules/", DAILY | {"name": name, "topic": "mail.print" if name == "d" else "mail.send"}, 201)
    schedules.define(Definition("hidden", "sms.send", every=60))
    seen, path = [], "schedules/?limit=3"
    while path:
        page = rest.get(path)
        seen.append([each["name"] for each in page["results"]])
        path = page["next"]
    assert seen == [["a", "b", "c"], ["d"]]
    assert [each["name"] for each in rest.get("schedules/", topic="mail.print")["results"]] == ["d"]
    rest.get("schedules/", 403, topic="sms.send")
    assert fields(rest.get("schedules/", 400, limit=0)) == ["limit"]
    assert fields(rest.get("schedules/?limit=1&limit=2", 400)) == ["limit"]


def test_a_page_ends_after_so_many_characters_of_bodies(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 200 schedules with 64 KiB each had 17 MB and took seconds to redact."""
    for number, size in enumerate([10, 990, 10, 2000, 990]):
        rest.post("schedules/", DAILY | {"name": f"s{number}", "body": "x" * (size - 2)}, 201)
    monkeypatch.setattr(job_list, "MAX_PAGE_BODIES", 1000)
    seen, path = [], "schedules/?limit=200"
    while path:
        page = rest.get(path)
        seen.append([each["name"] for each in page["results"]])
        path = page["next"]
    assert seen == [["s0", "s1"], ["s2"], ["s3"], ["s4"]]


def test_secrets_are_hidden_from_who_may_not_consume(rest_of: Callable[..., Rest], db_clock: Any) -> None:
    producer = rest_of("produce", "shop")
    made = producer.post("schedules/", DAILY | {"body": {"to": "anna", "password": "hunter2"}}, 201)
    assert made["body"] == {"to": "anna", "password": HIDDEN}
    producer.patch("schedules/report/", {"cron": "0 5 * * *"})
    assert Schedule.objects.get().body["password"] == "hunter2"  # a change of the times leaves the body


# -- change and delete --------------------------------------------------------------------------


def test_only_the_fields_given_are_changed(rest: Rest, report: dict[str, Any]) -> None:
    changed = rest.patch("schedules/report/", {"cron": "0 5 * * *", "within_seconds": 60, "reason": "Less load."})
    assert changed == SHOWN | {"cron": "0 5 * * *", "within_seconds": 60, "next_run_at": at(4 * 3600)}
    assert live_keys() == ["report@2030-01-01T05:00:00"]
    assert rest.patch("schedules/report/", {"within_seconds": None})["within_seconds"] is None
    assert audited()[1:] == [("schedule.changed", "report", "Less load."), ("schedule.changed", "report", "")]


@pytest.mark.only_on("postgresql")
def test_the_name_is_locked_before_the_row(rest: Rest, report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As schedule() and define() do: in the other order, one of two concurrent changes would end with a deadlock."""
    locks: list[int] = []

    def count_locks(row: Schedule) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
            locks.append(cursor.fetchone()[0])

    monkeypatch.setattr(views, "_require_own", count_locks)
    rest.patch("schedules/report/", {"within_seconds": 60})
    assert locks == [1]


def test_kind_of_times_is_changed_by_emptying_the_old_one(rest: Rest, report: dict[str, Any]) -> None:
    assert "it has cron, every" in rest.patch("schedules/report/", {"every_seconds": 60}, 400)["detail"]
    never = {"cron": "", "rrule": "FREQ=DAILY;UNTIL=20200101T000000Z"}
    assert "would never run" in rest.patch("schedules/report/", never, 400)["detail"]
    changed = rest.patch("schedules/report/", {"cron": "", "every_seconds": 60})
    assert (changed["cron"], changed["every_seconds"], changed["next_run_at"]) == ("", 60, at(60))


def test_an_emptied_start_is_now(rest: Rest, report: dict[str, Any]) -> None:
    Schedule.objects.update(start_at=T0 - timedelta(seconds=25))
    every = {"cron": "", "every_seconds": 60, "start_at": at(-25)}
    assert rest.patch("schedules/report/", every)["next_run_at"] == at(35)
    changed = rest.patch("schedules/report/", {"start_at": None})
    assert (changed["start_at"], changed["next_run_at"]) == (at(0), at(60))


@pytest.mark.parametrize("times", [{"period_seconds": 86_400, "repeat": 3}, {"rrule": "FREQ=DAILY;COUNT=4"}], ids=str)
def test_times_of_another_kind_start_now(rest: Rest, report: dict[str, Any], times: dict[str, Any]) -> None:
    Schedule.objects.update(start_at=T0 - timedelta(days=2))
    changed = rest.patch("schedules/report/", {"cron": "", **times})
    assert (changed["start_at"], changed["next_run_at"]) == (at(0), at(86_400))
    assert len(rest.get("schedules/report/next/?count=9")["results"]) == 3  # the first is due now


def test_other_changes_and_a_start_that_is_given_or_to_come_keep_the_start(rest: Rest, report: dict[str, Any]) -> None:
    Schedule.objects.update(start_at=T0 + timedelta(seconds=30))
    assert rest.patch("schedules/report/", {"cron": "", "every_seconds": 60})["start_at"] == at(30)
    given = {"every_seconds": None, "period_seconds": 60, "repeat": None, "start_at": at(-30)}
    assert rest.patch("schedules/report/", given)["start_at"] == at(-30)
    assert rest.patch("schedules/report/", {"period_seconds": 70})["start_at"] == at(-30)
    given = {"period_seconds": None, "repeat": 0, "cron": "0 5 * * *", "start_at": at(-40)}
    assert rest.patch("schedules/report/", given)["start_at"] == at(-40)


def test_a_schedule_that_was_stopped_is_repaired(rest: Rest, report: dict[str, Any]) -> None:
    Schedule.objects.update(tz="Mars/Base", problem="'Mars/Base' is not a time zone", ended=True)
    stopped = rest.get("schedules/report/")
    assert (stopped["state"], stopped["next_run_at"]) == ("stopped", None)
    assert rest.patch("schedules/report/", {"tz": "Europe/Berlin"})["state"] == "running"


def test_a_new_topic_needs_the_right_to_produce_there(rest: Rest, report: dict[str, Any]) -> None:
    rest.patch("schedules/report/", {"topic": "sms.send"}, 403)
    assert rest.patch("schedules/report/", {"topic": "mail.print"})["topic"] == "mail.print"
    assert list(Job.objects.filter(ended_at=None).values_list("topic", flat=True)) == ["mail.print"]


@pytest.mark.on_both
def test_a_body_with_hidden_parts_is_not_moved_to_another_topic(rest: Rest, make_token: Any, api: Any) -> None:
    secret = {"to": "anna", "password": "hunter2"}
    rest.post("schedules/", DAILY | {"body": secret}, 201)
    mover = Rest(api(make_token("mover", topics={"mail.send": "produce", "mail.print": "produce consume"})))
    problem = mover.patch("schedules/report/", {"topic": "mail.print"}, 403)
    assert problem["detail"] == "A part of the body is hidden from mover: to change the topic, give the body as well."
    assert AuditEntry.objects.get(action="request.refused").after == {"why": "hidden body of schedule report"}
    assert Schedule.objects.get().topic == "mail.send"
    assert mover.patch("schedules/report/", {"topic": "mail.print", "body": {"to": "bob"}})["body"] == {"to": "bob"}
    rest.patch("schedules/report/", {"topic": "mail.send", "body": {"to": "anna"}})
    Topic.objects.update_or_create(name="mail.send", defaults={"hide_bodies": True})
    mover.patch("schedules/report/", {"topic": "mail.print"}, 403)
    Topic.objects.update(hide_bodies=False)
    assert mover.patch("schedules/report/", {"topic": "mail.print"})["body"] == {"to": "anna"}


def test_delete_cancels_the_job_made_ahead(rest: Rest, report: dict[str, Any]) -> None:
    assert rest.delete("schedules/report/?reason=Nobody+reads+it.") == {"name": "report", "deleted": True}
    assert live_keys() == []
    assert audited()[-1] == ("schedule.deleted", "report", "Nobody reads it.")
    rest.delete("schedules/report/", 404)


def test_schedule_of_the_code_is_operated_and_not_changed(rest: Rest) -> None:
    schedules.define(Definition("code", "mail.send", every=60), source="code")
    for problem in (rest.patch("schedules/code/", {"every_seconds": 5}, 409), rest.delete("schedules/code/", 409)):
        assert problem["type"].endswith(":declared-in-code")
    assert Schedule.objects.get().every_ms == 60_000
    assert rest.post("schedules/code/pause/") == {"name": "code", "paused": True}
    assert rest.post("schedules/code/run-now/", status=201)["state"] == "ready"


# -- operate ------------------------------------------------------------------------------------


def test_pause_and_resume(rest: Rest, report: dict[str, Any]) -> None:
    for _ in range(2):
        assert rest.post("schedules/report/pause/", {"reason": "Holidays."}) == {"name": "report", "paused": True}
    assert (rest.get("schedules/report/")["state"], rest.get("schedules/report/")["next_run_at"]) == ("paused", None)
    assert rest.post("schedules/report/resume/") == {"name": "report", "paused": False}
    assert audited()[1:] == [("schedule.paused", "report", "Holidays."), ("schedule.resumed", "report", "")]


def test_run_now_makes_one_job_beside_the_times(rest: Rest, report: dict[str, Any]) -> None:
    job = rest.post("schedules/report/run-now/", {"reason": "They asked."}, 201)
    assert (job["topic"], job["state"], job["due_at"]) == ("mail.send", "ready", at(0))
    assert rest.last.headers["Location"] == f"/api/jobs/{job['id']}/"
    assert len(live_keys()) == 2
    assert audited()[-1] == ("schedule.run_once", "report", "They asked.")


def test_next_runs_are_shown_in_the_zone(rest: Rest, report: dict[str, Any]) -> None:
    first, second = rest.get("schedules/report/next/", count=2)["results"]
    assert first == {
        "wall_time": "2030-01-01T02:30:00", "due_at": at(5400), "local_time": "2030-01-01T02:30:00.000+01:00"
    }  # fmt: skip
    assert second["due_at"] == at(5400 + 86_400)
    assert len(rest.get("schedules/report/next/")["results"]) == 10
    (gap,) = rest.get("schedules/report/next/", count=1, after="2030-03-30T12:00:00Z")["results"]
    assert (gap["wall_time"], gap["local_time"]) == ("2030-03-31T02:30:00", "2030-03-31T03:00:00.000+02:00")
    assert fields(rest.get("schedules/report/next/", 400, count=101)) == ["count"]


def test_backfill_makes_what_never_ran_once(rest: Rest, report: dict[str, Any], db_clock: Any) -> None:
    db_clock.advance(seconds=3600)
    days = {"first_at": at(-3 * 86_400), "last_at": at(0)}
    assert rest.post("schedules/report/backfill/", days) == {"name": "report", "made": 3}
    assert rest.post("schedules/report/backfill/", days) == {"name": "report", "made": 0}
    assert live_keys()[:3] == [f"report@{(T0 - timedelta(days=n)).date()}T02:30:00" for n in (3, 2, 1)]
    problem = rest.post("schedules/report/backfill/", {"first_at": at(0), "last_at": at(86_400)}, 400)
    assert "give a range in the past" in problem["detail"]
    assert fields(rest.post("schedules/report/backfill/", {}, 400)) == ["first_at", "last_at"]


def test_series_is_read_paused_and_deleted_and_keeps_its_topic(rest: Rest) -> None:
    schedule("mail.send", "order:1042", period=60, repeat=None)
    (series,) = rest.get("schedules/")["results"]
    path = f"schedules/{series['name']}/"
    assert (series["source"], series["period_seconds"], series["repeat"]) == ("call", 60, None)
    assert "topic of a series cannot be changed" in rest.patch(path, {"topic": "mail.print"}, 400)["detail"]
    assert rest.patch(path, {"period_seconds": 30})["next_run_at"] == at(30)
    assert rest.post(f"{path}run-now/", status=201)["key"].startswith("order:1042#now:")
    rest.delete(path)
    assert len(live_keys()) == 2  # both are due


# -- staff --------------------------------------------------------------------------------------

STAFF = [f"delaytasks.{each}_schedule" for each in ("add", "change", "delete")]


@pytest.fixture
def anna(staff_api: Callable[..., Any], rest_topics: None, db_clock: Any) -> Rest:
    Topic.objects.create(name="mail.send")
    Topic.objects.create(name="sms.send", visible_to=[Group.objects.create(name="Mobile").pk])
    return Rest(staff_api("delaytasks.view_job", *STAFF))


def test_staff_have_the_permissions_of_the_admin(anna: Rest, staff_api: Callable[..., Any]) -> None:
    anna.post("schedules/", DAILY, 201)
    anna.patch("schedules/report/", {"cron": "0 5 * * *"})
    operator = Rest(staff_api("delaytasks.view_job", "delaytasks.operate_job"))  # of jobs: sees no schedules
    operator.get("schedules/report/", 404)
    operator.post("schedules/", DAILY | {"name": "other"}, 403)
    anna.delete("schedules/report/")
    assert list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True)) == [
        "Created.", "Changed.", "Deleted."
    ]  # fmt: skip


def test_staff_who_see_schedules_but_no_jobs_find_them_in_the_list(staff_api: Callable[..., Any], anna: Rest) -> None:
    anna.post("schedules/", DAILY, 201)
    reader = Rest(staff_api("delaytasks.view_schedule"))
    for path in ("schedules/", "schedules/?topic=mail.send"):
        assert [row["name"] for row in reader.get(path)["results"]] == ["report"]


def test_hidden_topics_are_hidden_from_staff(anna: Rest) -> None:
    schedules.define(Definition("hidden", "sms.send", every=60))
    anna.get("schedules/hidden/", 404)
    anna.post("schedules/", DAILY | {"topic": "sms.send"}, 403)
    assert anna.get("schedules/")["results"] == []


def test_topic_that_requires_reasons_requires_them_here(anna: Rest) -> None:
    anna.post("schedules/", DAILY, 201)
    Topic.objects.filter(name="mail.send").update(ask_reason=True)
    for path, data in (("pause/", {}), ("run-now/", {}), ("backfill/", {"first_at": at(0), "last_at": at(0)})):
        assert fields(anna.post(f"schedules/report/{path}", data, 400)) == ["reason"]
    assert fields(anna.patch("schedules/report/", {"cron": "0 5 * * *"}, 400)) == ["reason"]
    assert fields(anna.delete("schedules/report/", 400)) == ["reason"]
    anna.post("schedules/report/pause/", {"reason": "They asked."})


def test_a_topic_that_requires_reasons_requires_them_to_move_a_schedule_there(anna: Rest) -> None:
    anna.post("schedules/", DAILY, 201)
    Topic.objects.create(name="mail.print", ask_reason=True)
    assert fields(anna.patch("schedules/report/", {"topic": "mail.print"}, 400)) == ["reason"]
    anna.patch("schedules/report/", {"topic": "mail.print", "reason": "It moves."})
