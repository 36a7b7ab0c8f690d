"""Schedules in the admin: defining, the next ten runs, pausing, running once, deleting."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.utils import timezone

from delaytasks import handlers
from delaytasks.admin.recurrence.schedule_form import ScheduleForm
from delaytasks.jobs import audit_log
from delaytasks.models import AuditEntry, Job, JobEvent, Schedule, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.states import State

from ..db.test_isolation_levels import alter
from ..support.html_forms import unchanged
from ..support.locks import committed_meanwhile
from .conftest import TOPIC

LIST = "/admin/delaytasks/schedule/"
ADD = f"{LIST}add/"
FORM = {
    "name": "report", "topic": TOPIC, "body": '{"to": "anna"}', "ttr": "", "tz": "Europe/Berlin",
    "cron": "30 2 * * 1-5", "every": "", "rrule": "", "delay": "", "period": "", "repeat": "0", "start_at_0": "",
    "start_at_1": "", "gap": "run", "overlap": "once", "missed": "last", "within": "3600", "running": "skip",
    "reason": "",
}  # fmt: skip


@pytest.fixture
def report() -> Schedule:
    return schedules.define(Definition(name="report", topic=TOPIC, cron="30 2 * * 1-5", tz="Europe/Berlin"))


def change_url(row: Schedule) -> str:
    return f"{LIST}{row.pk}/change/"


def test_staff_define_a_schedule_and_its_first_job_is_made(admin_client):
    answer = admin_client.post(ADD, FORM)
    assert answer.status_code == 302, answer.context["adminform"].errors
    row = Schedule.objects.get()
    assert (row.cron, row.within_ms, row.source, row.body) == ("30 2 * * 1-5", 3_600_000, "staff", {"to": "anna"})
    (job,) = Job.objects.filter(key__startswith="report@")
    assert job.key == "report@2030-01-01T02:30:00"


def test_the_page_shows_the_next_ten_runs_in_local_time(admin_client, report):
    page = admin_client.get(change_url(report)).content.decode()
    assert "2030-01-01 02:30:00 CET" in page
    assert page.count(" 02:30:00 CET") == 10
    assert "2030-01-01 02:30:00 CET" in admin_client.get(LIST).content.decode()


def test_a_schedule_whose_last_run_is_to_come_has_not_ended(admin_client, db_clock):
    schedules.define(Definition(name="report", topic=TOPIC, delay=timedelta(seconds=5)))
    listed = admin_client.get(LIST).content.decode()
    assert ">running<" in listed
    assert ">ended<" not in listed
    db_clock.advance(seconds=5)
    assert ">ended<" in admin_client.get(LIST).content.decode()


PREVIEW = f"{LIST}preview/"
TIMES = {name: FORM[name] for name in ("tz", "cron", "every", "rrule", "delay", "period", "repeat", "gap", "overlap")}


def preview(client: Any, **times: str) -> list[str]:
    lines: list[str] = client.get(PREVIEW, TIMES | times).json()["lines"]
    return lines


def test_the_form_shows_the_next_ten_runs_before_it_is_saved(admin_client):
    page = admin_client.get(ADD).content.decode()
    assert f'class="dt-next-runs" data-url="{PREVIEW}"' in page
    assert "delaytasks/schedule.js" in page
    lines = preview(admin_client, cron="0 9 * * *")
    assert (len(lines), lines[0], lines[9]) == (10, "2030-01-01 09:00:00 CET", "2030-01-10 09:00:00 CET")
    assert preview(admin_client, cron="", every="90.5")[1] == "2030-01-01 01:03:01 CET"
    ends = {"start_at_0": "2030-01-05", "start_at_1": "10:00:00", "delay": "0", "period": "60", "repeat": "1"}
    assert len(preview(admin_client, cron="", **ends)) == 2
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cron": "0 0 30 2 *"}, "no such day comes"),
        ({"cron": ""}, "it has none of them"),
        ({"tz": "Mars"}, "IANA name"),
        ({"cron": "", "every": "x"}, "Every, in seconds: Enter a number."),
        ({"cron": "", "rrule": "FREQ=DAILY;COUNT=3;UNTIL=20310101T000000Z"}, "exclude each other"),
    ],
)
def test_the_preview_says_what_is_wrong(admin_client, wrong, words):
    (line,) = preview(admin_client, **wrong)
    assert words in line


def test_the_preview_is_for_staff_who_see_schedules(staff):
    assert staff().get(PREVIEW).status_code == 403
    assert staff("delaytasks.add_schedule").get(PREVIEW, TIMES).status_code == 200


def test_a_change_moves_the_next_run(admin_client, report):
    answer = admin_client.post(change_url(report), FORM | {"cron": "0 5 * * *"})
    assert answer.status_code == 302, answer.context["adminform"].errors
    live = Job.objects.get(key__startswith="report@", ended_at=None)
    assert live.key == "report@2030-01-01T05:00:00"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cron": "0 0 30 2 *"}, "no such day comes"),
        ({"cron": "* * * * * *"}, "with 6 fields"),
        ({"tz": "Mars"}, "IANA name"),
        ({"every": "5"}, "it has cron, every"),
        ({"cron": ""}, "it has none of them"),
        ({"topic": "unknown"}, "Select a valid choice"),
        ({"name": "a name"}, "is not a schedule&#x27;s name"),
        ({"every": "0"}, "greater than or equal to 0.1"),
    ],
)
def test_what_is_wrong_is_said_on_the_form(admin_client, wrong, words):
    answer = admin_client.post(ADD, FORM | wrong)
    assert answer.status_code == 200
    assert words in answer.content.decode()
    assert not Schedule.objects.exists()


@pytest.mark.on_both
@pytest.mark.parametrize(
    "body",
    [
        '"' + "x" * 70_000 + '"', "NaN", "1e999", r'"\ud800"', r'"\u0000"', "[" * 101 + "]" * 101,
        "[" * 3000 + "]" * 3000, "9" * 5000,
    ],
    ids=range(8),
)  # fmt: skip
def test_a_body_that_is_refused_is_shown_on_the_form_again(admin_client, report, body):
    for url in (ADD, change_url(report)):
        page = admin_client.post(url, FORM | {"name": "other", "body": body})
        assert page.status_code == 200
        assert page.context["adminform"].form.errors.keys() == {"body"}
    assert Schedule.objects.get().body == {}


@pytest.mark.parametrize("name", ["every", "delay", "period", "within", "ttr"])
def test_a_time_that_is_too_long_is_refused_on_the_form(admin_client, name):
    wrong = {"cron": "", "every": "60", name: "1e20"}
    page = admin_client.post(ADD, FORM | wrong)
    assert page.context["adminform"].form.errors.keys() == {name}
    assert len(preview(admin_client, **wrong)) == 1


NEVER = {"cron": "", "rrule": "FREQ=DAILY;COUNT=1", "start_at_0": "2029-01-01", "start_at_1": "00:00:00"}


def test_times_that_never_come_are_refused_on_the_form(admin_client, report):
    for url in (ADD, change_url(report)):
        page = admin_client.post(url, FORM | NEVER | {"name": "never"})
        assert (page.status_code, "would never run" in page.content.decode()) == (200, True)
    assert list(Schedule.objects.values_list("cron", flat=True)) == ["30 2 * * 1-5"]


def test_saving_without_a_change_changes_nothing(admin_client, report):
    Schedule.objects.update(start_at=report.start_at + timedelta(microseconds=123_456))
    before = Schedule.objects.values().get()
    form = admin_client.get(change_url(report)).context["adminform"].form
    data = {each.html_name: each.value() for each in form} | FORM | {"within": ""}
    first, second = form["start_at"].field.widget.decompress(form["start_at"].value())
    data |= {"body": "{}", "start_at_0": first, "start_at_1": second}
    assert admin_client.post(change_url(report), data).status_code == 302
    assert Schedule.objects.values().get() == before


@pytest.mark.parametrize("fold", [0, 1])
def test_a_start_that_clocks_show_twice_is_kept(admin_client, report, settings, fold):
    settings.TIME_ZONE = "Europe/Berlin"
    start = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)
    Schedule.objects.update(start_at=start)
    answer = admin_client.post(change_url(report), FORM | unchanged(admin_client.get(change_url(report))))
    assert answer.status_code == 302, answer.context["adminform"].errors
    assert Schedule.objects.get().start_at == start


@pytest.mark.parametrize(("wall", "start"), [("2030-10-27 02:30:00", "00:30"), ("2030-03-31 02:30:00", "01:00")])
def test_a_start_that_clocks_show_twice_or_skip_is_saved(admin_client, report, settings, wall, start):
    settings.TIME_ZONE = "Europe/Berlin"
    day, time = wall.split()
    answer = admin_client.post(change_url(report), FORM | {"start_at_0": day, "start_at_1": time})
    assert answer.status_code == 302, answer.context["adminform"].errors
    assert f"{Schedule.objects.get().start_at.astimezone(UTC):%Y-%m-%d %H:%M}" == f"{day} {start}"


def test_changes_that_are_newer_than_the_page_are_kept(admin_client, report):
    older = FORM | unchanged(admin_client.get(change_url(report)))
    newer = Definition(
        name="report", topic=TOPIC, every=60, ttr=5, body={"to": "bert"}, start=report.start_at + timedelta(days=1)
    )
    schedules.define(newer)
    answer = admin_client.post(change_url(report), older | {"within": "30", "running": "queue", "reason": "slow"})
    assert answer.status_code == 302, answer.context["errors"]
    row = Schedule.objects.get()
    assert (row.cron, row.every_ms, row.ttr_ms, row.tz, row.body) == ("", 60_000, 5_000, "UTC", {"to": "bert"})
    assert (row.start_at, row.within_ms, row.running) == (report.start_at + timedelta(days=1), 30_000, "queue")
    assert LogEntry.objects.get().change_message == "Changed: slow"
    answer = admin_client.post(change_url(report), older | {"cron": "0 6 * * *"})
    assert "it has cron, every." in answer.content.decode()


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_committed_while_the_form_is_saved_is_kept(admin_client, report):
    form = FORM | unchanged(admin_client.get(change_url(report))) | {"running": "queue"}
    newer = Definition(name="report", topic=TOPIC, cron="0 6 * * *", tz="Europe/Berlin", start=report.start_at)
    with committed_meanwhile(lambda: schedules.define(newer)):
        assert admin_client.post(change_url(report), form).status_code == 302
    row = Schedule.objects.get()
    assert (row.cron, row.running) == ("0 6 * * *", "queue")


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("action", ["change", "delete", "delete_selected"])
def test_a_conflict_with_another_transaction_is_retried(admin_client, report, level, action):
    posts = {
        "change": (change_url(report), FORM | unchanged(admin_client.get(change_url(report))) | {"running": "queue"}),
        "delete": (f"{LIST}{report.pk}/delete/", {"post": "yes"}),
        "delete_selected": (LIST, {"action": action, "_selected_action": [report.pk], "post": "yes"}),
    }
    alter(f"SET default_transaction_isolation = '{level}'")
    try:
        with committed_meanwhile(lambda: Schedule.objects.update(missed="all")):
            answer = admin_client.post(*posts[action])
    finally:
        alter("RESET default_transaction_isolation")
    assert answer.status_code == 302
    rows = [("all", "queue")] if action == "change" else []
    assert list(Schedule.objects.values_list("missed", "running")) == rows
    assert LogEntry.objects.count() == 1


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_schedule_that_is_added_twice_at_once_is_refused_once(admin_client):
    other = Definition(name="report", topic=TOPIC, cron="0 6 * * *", tz="Europe/Berlin")
    with committed_meanwhile(lambda: schedules.define(other)):
        answer = admin_client.post(ADD, FORM)
    assert "already exists" in answer.content.decode()
    assert Schedule.objects.get().cron == "0 6 * * *"


def test_the_form_names_the_time_zone_of_the_start(report):
    """It is that of the site, not that of the schedule."""
    with timezone.override("Asia/Shanghai"):
        start = ScheduleForm(instance=report).fields["start_at"]
    assert "in the time zone Asia/Shanghai" in start.help_text


def test_an_emptied_start_is_now_as_the_preview_shows(admin_client, report):
    earlier = report.start_at - timedelta(days=40)
    Schedule.objects.update(cron="", period_ms=3_600_000, repeat=1, start_at=earlier)
    times = {"cron": "", "period": "3600", "repeat": "1"}
    assert preview(admin_client, **times)[0] == "2030-01-01 01:00:00 CET"
    assert admin_client.post(change_url(report), FORM | times).status_code == 302
    assert Job.objects.filter(key="report@2030-01-01T01:00:00", ended_at=None).exists()


def test_a_schedule_whose_topic_has_no_handler_keeps_its_topic(admin_client):
    over_http = Topic.objects.create(name="no.handler")
    row = schedules.define(Definition(name="old", topic="no.handler", cron="0 9 * * *", tz="UTC"))
    option = '<option value="no.handler"%s>no.handler</option>'
    assert option % "" in admin_client.get(ADD).content.decode()
    over_http.delete()
    assert option % " selected" in admin_client.get(change_url(row)).content.decode()


def test_schedules_are_paused_resumed_and_run_once(admin_client, report):
    def act(action: str) -> None:
        admin_client.post(LIST, {"action": action, "_selected_action": [report.pk]})

    act("pause")
    assert Schedule.objects.get().paused
    act("resume")
    assert not Schedule.objects.get().paused
    act("run_now")
    assert Job.objects.filter(key__startswith="report@now:").count() == 1


ACTIONS = {"pause": "Paused", "resume": "Resumed", "run_now": "Run once"}
NEEDED = f"A reason is required by {TOPIC}. Nothing was changed"


def act(client: Any, action: str, *rows: Schedule, **fields: str) -> str:
    """Submit an action; return the text of the page with its messages."""
    form = {"action": action, "_selected_action": [row.pk for row in rows]} | fields
    answer = client.post(LIST, form, follow=True)
    assert answer.status_code == 200
    return str(answer.content.decode())


def history() -> list[tuple[str, str]]:
    """Return (action, reason) of each entry in the audit log, and check that the admin log says the same."""
    entries = list(AuditEntry.objects.filter(action__startswith="schedule.").order_by("pk"))
    assert {entry.actor for entry in entries} <= {"admin"}
    story = [(entry.action, entry.reason) for entry in entries]
    texts = [f"{action.removeprefix('schedule.').capitalize().replace('_', ' ')}: {reason}" for action, reason in story]
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == texts
    return story


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_is_in_both_logs_with_its_reason(admin_client, report, action):
    Schedule.objects.update(paused=action == "resume")
    act(admin_client, action, report, reason="They asked.")
    entry = AuditEntry.objects.get(action__startswith="schedule.")
    assert history() == [(f"schedule.{ACTIONS[action].lower().replace(' ', '_')}", "They asked.")]
    assert (entry.before["paused"], entry.after["paused"]) == (action == "resume", action == "pause")


def test_a_page_that_is_submitted_twice_runs_a_schedule_once(admin_client, report, db_clock):
    def page_ms() -> str:
        return str(admin_client.get(LIST).context["action_form"]["page_ms"].value())

    first = page_ms()
    assert "1 job scheduled for now" in act(admin_client, "run_now", report, page_ms=first, reason="Asked.")
    Job.objects.filter(key__startswith="report@now:").update(state=State.FINISHED, ended_at=report.start_at)
    db_clock.advance(seconds=1)
    assert "0 jobs scheduled for now" in act(admin_client, "run_now", report, page_ms=first, reason="Asked.")
    assert [action for action, _ in history()] == ["schedule.run_once"]
    assert "1 job scheduled for now" in act(admin_client, "run_now", report, page_ms=page_ms())


def test_the_job_of_a_schedule_that_is_run_once_names_the_user_as_other_changes_do(admin_client, report, monkeypatch):
    monkeypatch.setattr(User, "__str__", lambda user: "Anna of the accounting department")
    act(admin_client, "run_now", report)
    event = JobEvent.objects.get(job__key__startswith="report@now:")
    assert event.actor == AuditEntry.objects.get(action="schedule.run_once").actor == "admin"


def test_an_action_that_changes_nothing_is_not_logged(admin_client, report):
    assert "0 schedules resumed" in act(admin_client, "resume", report, reason="They asked.")
    assert history() == []


@pytest.mark.parametrize("action", [*ACTIONS, "delete_selected"])
def test_an_action_requires_a_reason_if_the_topic_does(admin_client, report, action):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    Schedule.objects.update(paused=action == "resume")
    before, jobs = Schedule.objects.values().get(), Job.objects.count()
    confirmed = {"post": "yes"}
    assert NEEDED in act(admin_client, action, report, **confirmed)
    assert (Schedule.objects.values().get(), Job.objects.count(), history()) == (before, jobs, [])
    act(admin_client, action, report, reason="They asked.", **confirmed)
    assert [reason for _, reason in history()] == ["They asked."]


def test_a_schedule_that_cannot_run_is_named_and_the_others_run(admin_client, report):
    handlers.handler("test.gone")(lambda job: None)
    gone = schedules.define(Definition(name="gone", topic="test.gone", cron="0 3 * * *", tz="UTC"))
    handlers.unregister("test.gone")
    page = act(admin_client, "run_now", gone, report)
    assert "test.gone" in page
    assert "1 job scheduled for now" in page
    assert Job.objects.get(key__contains="@now").key.startswith("report@now:")
    assert AuditEntry.objects.filter(action="schedule.run_once").values_list("name", flat=True).get() == "report"


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_that_cannot_be_logged_changes_nothing(admin_client, report, action, monkeypatch):
    Schedule.objects.update(paused=action == "resume")
    before, jobs = Schedule.objects.values().get(), Job.objects.count()
    monkeypatch.setattr(audit_log, "record", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        act(admin_client, action, report)
    assert (Schedule.objects.values().get(), Job.objects.count()) == (before, jobs)


def test_saving_requires_a_reason_if_the_topic_does(admin_client, report):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    changed = FORM | {"cron": "0 5 * * *"}
    page = admin_client.post(change_url(report), changed)
    assert page.context["adminform"].form.errors.keys() == {"reason"}
    assert f"Required by {TOPIC}." in page.content.decode()
    assert Schedule.objects.get().cron == report.cron
    assert admin_client.post(change_url(report), changed | {"reason": "They asked."}).status_code == 302
    assert history() == [("schedule.changed", "They asked.")]


def test_moving_a_schedule_requires_a_reason_if_the_new_topic_does(admin_client, report):
    Topic.objects.create(name="order.archive", ask_reason=True)
    moved = FORM | {"topic": "order.archive"}
    page = admin_client.post(change_url(report), moved)
    assert page.context["adminform"].form.errors == {"reason": ["Required by order.archive."]}
    assert admin_client.post(change_url(report), moved | {"reason": "It moves."}).status_code == 302


def test_a_new_schedule_needs_no_reason(admin_client):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    assert "Reason" not in admin_client.get(ADD).content.decode()
    assert admin_client.post(ADD, FORM).status_code == 302


def test_deleting_requires_a_reason_if_the_topic_does(admin_client, report):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    url = f"{LIST}{report.pk}/delete/"
    assert NEEDED in admin_client.post(url, {"post": "yes"}, follow=True).content.decode()
    assert Schedule.objects.exists()
    assert '<input type="text" name="reason"' in admin_client.get(url).content.decode()
    admin_client.post(url, {"post": "yes", "reason": "They asked."})
    assert not Schedule.objects.exists()
    assert history() == [("schedule.deleted", "They asked.")]


def test_the_confirmation_of_deleting_several_keeps_the_reason(admin_client, report):
    assert 'name="reason" value="They asked."' in act(admin_client, "delete_selected", report, reason="They asked.")
    act(admin_client, "delete_selected", report, reason="They asked.", post="yes")
    assert history() == [("schedule.deleted", "They asked.")]


def test_deleting_a_schedule_cancels_its_next_job(admin_client, report):
    admin_client.post(f"{LIST}{report.pk}/delete/", {"post": "yes"})
    assert not Schedule.objects.exists()
    assert set(Job.objects.values_list("state", flat=True)) == {State.CANCELLED}


def test_a_schedule_of_the_code_is_shown_and_not_changed(admin_client, report):
    Schedule.objects.update(source="code")
    page = admin_client.get(change_url(report)).content.decode()
    assert "2030-01-01 02:30:00 CET" in page
    assert 'name="cron"' not in page
    assert admin_client.post(change_url(report), FORM | {"cron": "0 5 * * *"}).status_code == 403
    assert admin_client.post(f"{LIST}{report.pk}/delete/", {"post": "yes"}).status_code == 403


def test_staff_without_permission_see_nothing(staff, report):
    assert staff().get(LIST).status_code == 403
    viewer = staff("delaytasks.view_schedule")
    assert "report" in viewer.get(LIST).content.decode()
    assert viewer.get(ADD).status_code == 403
    viewer.post(LIST, {"action": "pause", "_selected_action": [report.pk]})
    assert not Schedule.objects.get().paused


def test_a_schedule_whose_topic_has_no_handler_any_more_is_not_saved_and_its_form_says_why(admin_client):
    handlers.handler("test.gone")(lambda job: None)
    gone = schedules.define(Definition(name="gone", topic="test.gone", cron="0 3 * * *", tz="UTC"))
    handlers.unregister("test.gone")
    answer = admin_client.post(change_url(gone), FORM | {"name": "gone", "topic": "test.gone", "cron": "0 5 * * *"})
    assert answer.status_code == 200
    assert "test.gone" in str(answer.context["adminform"].form.errors)
    gone.refresh_from_db()
    assert gone.cron == "0 3 * * *"


def test_a_schedule_that_is_deleted_meanwhile_is_named_and_the_others_are_paused(admin_client, report, monkeypatch):
    later = schedules.define(Definition(name="report.z", topic=TOPIC, cron="0 3 * * *"))
    pause = schedules.pause

    def pause_and_delete(name, **options):
        Schedule.objects.filter(pk=later.pk).delete()
        return pause(name, **options)

    monkeypatch.setattr(schedules, "pause", pause_and_delete)
    page = act(admin_client, "pause", report, later)
    assert "1 schedule paused" in page
    assert "There is no schedule" in page
