"""Staff over HTTP: with Django's session they see, do and leave behind what they would in the admin, and no more."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group

from delaytasks import scheduling
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.redaction import HIDDEN
from tests.api.queue.conftest import QueueClient
from tests.api.rest_client import TOPICS, Rest, fields

VIEW, OPERATE, MANAGE = "delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic"
WHY = "They paid by phone."


@pytest.fixture(autouse=True)
def _jobs(rest_topics: None, db_clock: Any) -> None:
    """mail.send is for everybody, sms.send for one group; each has a job, with something secret in its body."""
    Topic.objects.create(name="mail.send")
    Topic.objects.create(name="sms.send", visible_to=[Group.objects.create(name="Mobile").pk])
    for topic in ("mail.send", "sms.send"):
        scheduling.schedule(topic, key=f"{topic}:1", delay=60, body={"to": "anna", "password": "hunter2"})


@pytest.fixture
def anna(staff_api: Callable[..., Any]) -> Rest:
    """Who may do everything, with topics that everybody may see."""
    return Rest(staff_api(VIEW, OPERATE, MANAGE))


def job_of(topic: str) -> Job:
    return Job.objects.get(key=f"{topic}:1")


def logged() -> list[tuple[str, str]]:
    """(who, what) of every entry in Django's log, oldest first."""
    return list(LogEntry.objects.order_by("pk").values_list("user__username", "change_message"))


def ask_for_reasons() -> None:
    Topic.objects.filter(name="mail.send").update(ask_reason=True)


# -- what they see ------------------------------------------------------------------------------


def test_a_topic_for_others_answers_as_one_that_does_not_exist(anna: Rest) -> None:
    hidden = job_of("sms.send").pk
    for path in ("", "cancel/", "reschedule/", "run-now/", "retry/"):
        call = anna.post if path else anna.get
        assert call(f"jobs/{hidden}/{path}", status=404) == call(f"jobs/{hidden + 99}/{path}", status=404)
    for path in ("", "pause/", "resume/"):
        call = anna.post if path else anna.get
        there, nowhere = (call(f"topics/{name}/{path}", status=403)["detail"] for name in ("sms.send", "no.such"))
        assert there.replace("sms.send", "no.such") == nowhere
    anna.get("jobs/", 403, topic="sms.send")
    anna.post("jobs/", {"topic": "sms.send", "key": "sms:2", "delay_seconds": 1}, 403)
    assert Job.objects.filter(topic="sms.send").count() == 1
    assert not Topic.objects.get(name="sms.send").paused
    assert logged() == []


def test_lists_leave_out_what_is_for_others(anna: Rest) -> None:
    assert [job["key"] for job in anna.get("jobs/")["results"]] == ["mail.send:1"]
    assert {"mail.print", "mail.send"} == {topic["name"] for topic in anna.get("topics/")["results"]} & set(TOPICS)


def test_the_queue_knows_nothing_of_what_is_for_others(anna: Rest) -> None:
    queue = QueueClient(anna.client)
    for command in ("peek", "delete"):
        assert "unknown" in queue(command, id="sms.send:1")["error"]
    queue.refused(403, "peek", topic="sms.send")
    assert job_of("sms.send").ended_at is None


@pytest.mark.parametrize("who", ["member", "superuser"])
def test_members_of_the_group_and_superusers_see_it(staff_api: Callable[..., Any], who: str) -> None:
    client = staff_api(VIEW, OPERATE)
    if who == "member":
        client.user.groups.add(Group.objects.get())
    else:
        client.user.is_superuser = True
        client.user.save()
    assert len(Rest(client).get("jobs/")["results"]) == 2
    Rest(client).post(f"jobs/{job_of('sms.send').pk}/cancel/")


def test_who_may_operate_and_not_look_can_do_neither(staff_api: Callable[..., Any]) -> None:
    rest, job_id = Rest(staff_api(OPERATE)), job_of("mail.send").pk
    assert rest.get("jobs/")["results"] == []
    rest.get(f"jobs/{job_id}/", 404)
    rest.post(f"jobs/{job_id}/cancel/", status=404)
    assert job_of("mail.send").ended_at is None


def test_secrets_in_a_body_are_shown_to_programs_alone(
    anna: Rest, make_token: Callable[..., str], api: Callable[..., Any]
) -> None:
    job_id, seen = job_of("mail.send").pk, {"to": "anna", "password": HIDDEN}
    assert anna.get(f"jobs/{job_id}/")["body"] == seen
    assert anna.get("jobs/")["results"][0]["body"] == seen
    again = {"topic": "mail.send", "key": "mail.send:1", "delay_seconds": 1, "on_conflict": "keep"}
    assert anna.post("jobs/", again)["body"] == seen
    assert QueueClient(anna.client)("peek", id="mail.send:1")["value"]["body"] == seen
    assert anna.post(f"jobs/{job_id}/run-now/")["body"] == seen
    program = Rest(api(make_token(topics={"mail.*": "consume"})))
    assert program.get(f"jobs/{job_id}/")["body"]["password"] == "hunter2"
    assert program.take()[0]["body"]["password"] == "hunter2"


# -- what they leave behind ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "data", "word"),
    [
        ("cancel", {}, "Cancelled"),
        ("reschedule", {"delay_seconds": 5}, "Rescheduled"),
        ("run-now", {}, "Made ready"),
        ("retry", {}, "Retried"),
    ],
)
@pytest.mark.parametrize("why", ["", WHY])
def test_a_change_is_in_the_story_and_in_the_log(
    anna: Rest, action: str, data: dict[str, Any], word: str, why: str
) -> None:
    job, name = job_of("mail.send"), anna.client.user.username
    if action == "retry":
        Job.objects.filter(pk=job.pk).update(state=6, ended_at=job.due_at, died_at=job.due_at)
    anna.post(f"jobs/{job.pk}/{action}/", data | ({"reason": why} if why else {}))
    event = JobEvent.objects.filter(job_id=job.pk).latest("id")
    assert (event.actor, event.reason) == (name, why)
    assert logged() == [(name, f"{word}: {why}" if why else f"{word}.")]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr) == (str(job.pk), str(job))


def test_what_did_not_happen_is_not_logged(anna: Rest) -> None:
    job_id = job_of("mail.send").pk
    anna.post(f"jobs/{job_id}/retry/", status=409)
    anna.post(f"jobs/{job_id}/cancel/")
    anna.post(f"jobs/{job_id}/cancel/")  # it had been cancelled before: nobody's doing
    anna.post(f"jobs/{job_id}/reschedule/", {"delay_seconds": 1}, 409)
    assert [what for _who, what in logged()] == ["Cancelled."]


def test_a_change_whose_entry_cannot_be_written_does_not_happen(anna: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no log")

    monkeypatch.setattr(LogEntry.objects, "log_actions", broken)
    anna.client.client.raise_request_exception = False
    assert anna.client.post(f"/api/jobs/{job_of('mail.send').pk}/cancel/").status_code == 500
    assert job_of("mail.send").ended_at is None
    assert anna.client.post("/api/topics/mail.send/pause/").status_code == 500
    assert not Topic.objects.get(name="mail.send").paused


def test_what_programs_do_is_in_the_story_alone(make_token: Callable[..., str], api: Callable[..., Any]) -> None:
    ask_for_reasons()
    rest, job_id = Rest(api(make_token(topics={"mail.*": "manage"}))), job_of("mail.send").pk
    rest.post(f"jobs/{job_id}/run-now/")
    rest.post(f"jobs/{job_id}/cancel/", {"reason": WHY})
    rest.post("topics/mail.send/pause/")
    assert JobEvent.objects.filter(job_id=job_id).latest("id").reason == WHY
    assert logged() == []


def test_jobs_that_staff_make_are_logged_and_those_that_were_kept_are_not(anna: Rest) -> None:
    name, terms = anna.client.user.username, {"topic": "mail.send", "delay_seconds": 9}
    anna.post("jobs/", {**terms, "key": "new"}, 201)
    anna.post("jobs/", {**terms, "key": "new", "on_conflict": "keep"})
    anna.post("jobs/", {**terms, "key": "new", "on_conflict": "replace"})
    QueueClient(anna.client)("add", topic="mail.send", id="newer", delay=9, TTR=9, body={})
    assert logged() == [(name, "Scheduled."), (name, "Replaced."), (name, "Scheduled.")]


@pytest.mark.parametrize(("mode", "said"), [("keep", ["Scheduled."]), ("replace", ["Scheduled.", "Replaced."])])
def test_of_many_jobs_those_are_logged_that_were_made_or_replaced(anna: Rest, mode: str, said: list[str]) -> None:
    jobs = [{"topic": "mail.send", "key": key, "delay_seconds": 9} for key in ("new", "mail.send:1")]
    anna.post("jobs/", {"jobs": jobs, "on_conflict": mode}, 201)
    assert [what for _who, what in logged()] == said


def test_a_pause_is_logged_with_its_reason(anna: Rest) -> None:
    name = anna.client.user.username
    anna.post("topics/mail.send/pause/", {"reason": "The relay is down."})
    anna.post("topics/mail.send/pause/")  # it was paused: nothing happened
    anna.post("topics/mail.send/resume/")
    assert logged() == [(name, "Paused: The relay is down."), (name, "Resumed.")]
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {"mail.send"}


# -- where a reason is asked for ----------------------------------------------------------------


@pytest.mark.parametrize("action", ["cancel", "reschedule", "run-now", "retry"])
def test_a_change_without_a_reason_is_refused_where_the_topic_asks_for_one(anna: Rest, action: str) -> None:
    ask_for_reasons()
    data = {"delay_seconds": 5} if action == "reschedule" else None
    problem = anna.post(f"jobs/{job_of('mail.send').pk}/{action}/", data, 400)
    assert fields(problem) == ["reason"]
    assert not JobEvent.objects.exists()
    assert logged() == []


def test_with_a_reason_it_is_done(anna: Rest) -> None:
    ask_for_reasons()
    anna.post(f"jobs/{job_of('mail.send').pk}/cancel/", {"reason": WHY})
    assert logged() == [(anna.client.user.username, f"Cancelled: {WHY}")]


def test_the_queue_asks_for_the_reason_too(anna: Rest) -> None:
    ask_for_reasons()
    queue = QueueClient(anna.client)
    assert "reason" in queue.refused(400, "delete", id="mail.send:1")["error"]
    assert queue("delete", id="mail.send:1", reason=WHY)["value"] == "cancelled"
    assert logged() == [(anna.client.user.username, f"Cancelled: {WHY}")]


def test_nobody_gets_round_the_reason_by_replacing_the_job(anna: Rest) -> None:
    ask_for_reasons()
    job = {"topic": "mail.send", "key": "mail.send:1", "delay_seconds": 9}
    for data in ({**job, "on_conflict": "replace"}, {"jobs": [job], "on_conflict": "replace"}):
        assert fields(anna.post("jobs/", data, 400)) == ["on_conflict"]
    command = {"topic": "mail.send", "id": "mail.send:1", "delay": 9, "TTR": 9, "body": {}, "on_conflict": "replace"}
    assert "reason" in QueueClient(anna.client).refused(400, "add", **command)["error"]
    assert not JobEvent.objects.exists()


def test_a_pause_needs_the_reason_too(anna: Rest) -> None:
    ask_for_reasons()
    assert fields(anna.post("topics/mail.send/pause/", {}, 400)) == ["reason"]
    assert not Topic.objects.get(name="mail.send").paused
    anna.post("topics/mail.send/pause/", {"reason": WHY})
    assert fields(anna.post("topics/mail.send/resume/", {"reason": ""}, 400)) == ["reason"]
    assert Topic.objects.get(name="mail.send").paused


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 256, 5, None, "\x00"])
def test_a_reason_is_one_line_of_text(anna: Rest, reason: Any) -> None:
    assert fields(anna.post(f"jobs/{job_of('mail.send').pk}/cancel/", {"reason": reason}, 400)) == ["reason"]
