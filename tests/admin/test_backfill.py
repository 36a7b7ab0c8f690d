"""Backfilling a schedule in the admin: the range in its zone, the preview, the confirmation, what is refused."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.utils.html import escape

from delaytasks import handlers
from delaytasks.models import AuditEntry, Job, Schedule, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.states import State
from tests.support.untranslated import english_in, in_chinese

from .conftest import NOW, TOPIC

DAYS = {"first_at": "2029-12-28T00:00", "last_at": "2029-12-31T02:30"}  # four runs, at 02:30
KEYS = [f"report@2029-12-{day}T02:30:00" for day in (28, 29, 30, 31)]
AHEAD = "report@2030-01-01T02:30:00"


@pytest.fixture
def report() -> Schedule:
    return schedules.define(Definition(name="report", topic=TOPIC, cron="30 2 * * *", tz="Europe/Berlin"))


def url(row: Schedule, page: str = "backfill") -> str:
    return f"/admin/delaytasks/schedule/{row.pk}/{page}/"


def text_of(page: Any) -> str:
    """Return the text of a page without its markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.content.decode()).split())


def preview(client: Any, row: Schedule, **fields: str) -> str:
    page = client.get(url(row), DAYS | fields)
    assert page.status_code == 200
    return text_of(page)


def made() -> list[str]:
    return sorted(Job.objects.exclude(key=AHEAD).values_list("key", flat=True))


def test_a_schedules_page_leads_to_its_backfill(admin_client, staff, report):
    link = f'href="{url(report)}"'
    for client, is_shown in ((admin_client, True), (staff("delaytasks.view_schedule"), False)):
        assert (link in client.get(url(report, "change")).content.decode()) is is_shown
    assert link not in admin_client.get("/admin/delaytasks/schedule/add/").content.decode()


def test_the_page_names_the_zone_and_the_limit(admin_client, report):
    page = admin_client.get(url(report))
    text = text_of(page)
    assert "Times are in Europe/Berlin, the schedule's time zone." in text.replace("&#x27;", "'")
    assert "at most 10,000 runs" in text
    assert "errornote" not in page.content.decode()


def test_the_preview_shows_the_runs_of_the_range_in_local_time_and_makes_none(admin_client, report):
    text = preview(admin_client, report)
    assert "Runs in the range 4 First 2029-12-28 02:30:00 CET Last 2029-12-31 02:30:00 CET Exist already 0" in text
    assert made() == []
    assert not LogEntry.objects.exists()


def test_the_confirmation_makes_the_runs_and_says_how_many(admin_client, report):
    answer = admin_client.post(url(report), DAYS, follow=True)
    assert answer.redirect_chain == [(url(report, "change"), 302)]
    assert "4 runs were made. They are due now." in text_of(answer)
    assert made() == KEYS
    assert {job.due_at for job in Job.objects.filter(key__in=KEYS)} == {NOW}


def test_the_confirmation_submits_the_range_of_the_preview(admin_client, report):
    page = admin_client.get(url(report), DAYS).content.decode()
    form = page[page.index('<form method="post" action=') :]
    fields = dict(re.findall(r'type="hidden" name="(\w+_at)" value="([^"]*)"', form))
    assert fields == DAYS
    assert 'name="csrfmiddlewaretoken"' in form
    assert 'value="Make 4 runs"' in form


@pytest.mark.on_both
def test_what_exists_is_counted_and_not_made_again(admin_client, report):
    admin_client.post(url(report), DAYS | {"last_at": "2029-12-30T02:29:59"})
    assert "Exist already 2 " in preview(admin_client, report)
    Job.objects.filter(key=KEYS[0]).update(state=State.CANCELLED, ended_at=NOW)
    Job.objects.filter(key=KEYS[1]).update(state=State.FINISHED, ended_at=NOW)
    assert "Exist already 1 " in preview(admin_client, report)
    assert "3 runs were made" in text_of(admin_client.post(url(report), DAYS, follow=True))
    assert "Nothing was made: all runs of the range exist" in text_of(admin_client.post(url(report), DAYS, follow=True))
    assert made() == sorted([*KEYS, KEYS[0]])


def test_a_range_without_anything_to_make_cannot_be_confirmed(admin_client, report):
    assert "Runs in the range 0 There is nothing to make." in preview(admin_client, report, first_at="2029-12-31T02:31",
                                                                      last_at="2029-12-31T03:00")  # fmt: skip
    admin_client.post(url(report), DAYS)
    page = admin_client.get(url(report), DAYS)
    assert "Exist already 4 There is nothing to make." in text_of(page)
    assert 'value="Make' not in page.content.decode()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"first_at": "2029-12-31T03:00"}, "The range ends before it begins."),
        ({"last_at": "2030-01-01T01:00:01"}, "Enter times up to now, 2030-01-01 01:00:00 CET."),
        ({"last_at": "9998-12-31T23:59"}, "The range ends in the future."),
        ({"first_at": ""}, "This field is required."),
        ({"first_at": "yesterday"}, "Enter a date from 1970 on and a time"),
        ({"first_at": "2029-12-28T00:00+01:00"}, "without an offset"),
        ({"first_at": "2029-12-28-05:00"}, "without an offset"),
        ({"first_at": "0001-01-01T00:00"}, "Enter a date from 1970 on"),
        ({"last_at": "9999-12-31T23:59"}, "Enter a date from 1970 on"),
    ],
)
def test_a_wrong_range_is_refused_with_what_to_do(admin_client, report, wrong, words):
    assert words in preview(admin_client, report, **wrong)
    answer = admin_client.post(url(report), DAYS | wrong)
    assert (answer.status_code, words in text_of(answer)) == (200, True)
    assert 'value="Make' not in answer.content.decode()
    assert made() == []


def test_a_range_with_too_many_runs_is_refused(admin_client):
    row = schedules.define(Definition(name="second", topic=TOPIC, every=1, start=NOW - timedelta(days=1)))
    text = preview(admin_client, row, first_at="2029-12-31T00:00", last_at="2029-12-31T02:46:40")
    assert "The range has more than 10,000 runs. Enter a shorter one." in text
    text = preview(admin_client, row, first_at="2029-12-31T00:00", last_at="2029-12-31T02:46:39")
    assert "Runs in the range 10000 " in text.replace("10,000", "10000")


def test_times_that_clocks_skip_or_show_twice_are_read_and_explained(admin_client, report):
    gap = {"first_at": "2029-03-25T02:10", "last_at": "2029-03-25T02:40"}
    text = preview(admin_client, report, **gap)
    for wall in ("02:10:00", "02:40:00"):
        note = f"Clocks in Europe/Berlin skip 2029-03-25 {wall}. It is read as 2029-03-25 03:00:00 CEST."
        assert note in text
    assert "Runs in the range 1 First 2029-03-25 03:00:00 CEST" in text
    Schedule.objects.update(overlap="both")
    twice = {"first_at": "2029-10-28T02:30", "last_at": "2029-10-28T02:30"}
    text = preview(admin_client, report, **twice)
    for read in ("CEST", "CET"):
        note = f"Clocks in Europe/Berlin show 2029-10-28 02:30:00 twice. It is read as 2029-10-28 02:30:00 {read}."
        assert note in text
    assert "Runs in the range 2 First 2029-10-28 02:30:00 CEST Last 2029-10-28 02:30:00 CET" in text


def test_a_backfill_is_in_the_history_with_its_reason(admin_client, report):
    admin_client.post(url(report), DAYS | {"reason": "The host was down."})
    admin_client.post(url(report), DAYS | {"reason": "Again."})  # makes nothing
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Backfilled: The host was down."]
    entry = AuditEntry.objects.filter(action="schedule.backfilled").get()
    assert (entry.actor, entry.reason) == ("admin", "The host was down.")
    assert "Backfilled: The host was down." in text_of(admin_client.get(url(report, "history")))


def test_a_topic_that_requires_reasons_requires_them_here(admin_client, report):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    text = preview(admin_client, report)
    assert f"Required by {TOPIC}." in text
    assert "This field is required." not in text
    answer = admin_client.post(url(report), DAYS)
    assert "This field is required." in text_of(answer)
    assert 'value="Make 4 runs"' in answer.content.decode()
    assert made() == []
    admin_client.post(url(report), DAYS | {"reason": "They asked."})
    assert made() == KEYS


def test_paused_schedules_and_those_of_unknown_topics_are_backfilled_as_by_the_command(admin_client, report):
    Schedule.objects.update(paused=True)
    handlers.unregister(TOPIC)
    Topic.objects.all().delete()
    assert "4 runs were made" in text_of(admin_client.post(url(report), DAYS, follow=True))
    assert made() == KEYS


def test_a_schedule_of_the_code_is_backfilled(admin_client, report):
    Schedule.objects.update(source="code")
    assert f'href="{url(report)}"' in admin_client.get(url(report, "change")).content.decode()
    admin_client.post(url(report), DAYS)
    assert made() == KEYS


def test_a_schedule_whose_zone_is_unknown_says_so(admin_client, report):
    Schedule.objects.update(tz="Mars/Base")
    assert "Mars/Base" in text_of(admin_client.get(url(report)))
    assert escape("'Mars/Base' is not a time zone") in preview(admin_client, report)
    assert admin_client.post(url(report), DAYS).status_code == 200


def test_a_schedule_that_is_deleted_meanwhile_is_said(admin_client, report, monkeypatch):
    backfill = schedules.backfill

    def delete_first(*args: Any, **kwargs: Any) -> int:
        Schedule.objects.all().delete()
        return backfill(*args, **kwargs)

    monkeypatch.setattr(schedules, "backfill", delete_first)
    assert escape("There is no schedule 'report'.") in text_of(admin_client.post(url(report), DAYS, follow=True))
    assert made() == []


def test_only_staff_who_may_change_schedules_backfill(staff, report):
    viewer = staff("delaytasks.view_schedule", "delaytasks.view_job", "delaytasks.operate_job")
    assert viewer.get(url(report), DAYS).status_code == 403
    assert viewer.post(url(report), DAYS).status_code == 403
    assert made() == []
    changer = staff("delaytasks.change_schedule")
    assert "Runs in the range 4" in preview(changer, report)
    changer.post(url(report), DAYS)
    assert made() == KEYS


def test_a_schedule_of_a_hidden_topic_is_not_found(staff, report):
    Topic.objects.filter(name=TOPIC).update(visible_to=[Group.objects.create(name="finance").pk])
    changer = staff("delaytasks.change_schedule")
    for answer in (changer.get(url(report), DAYS), changer.post(url(report), DAYS), changer.get(url(Schedule(pk=0)))):
        assert answer.status_code == 404
    assert made() == []


def test_the_page_is_in_chinese(admin_user, report):
    client = in_chinese(admin_user)
    assert "补运行" in text_of(client.get(url(report, "change")))
    known = {"admin", "report", "test", "close", "Europe", "Berlin", "CET", "CEST"}
    gap = {"first_at": "2029-03-25T02:10", "last_at": "2029-10-28T02:40"}
    wrong = ({"first_at": "x"}, {"first_at": "2029-12-31T03:00"}, {"last_at": "2031-01-01T00:00"})
    pages = [client.get(url(report)), *(client.get(url(report), DAYS | each) for each in ({}, gap, *wrong))]
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    pages.append(client.post(url(report), DAYS))
    for words in ("已补 4 次运行", "没有补运行"):
        assert words in text_of(client.post(url(report), DAYS | {"reason": "他们"}, follow=True))
    pages += [client.get(url(report), DAYS), client.get(url(report, "history"))]
    Schedule.objects.update(cron="", every_ms=1000, start_at=NOW - timedelta(days=9))
    pages.append(client.get(url(report), DAYS))
    assert [english_in(page, known=known) for page in pages] == [[]] * len(pages)
