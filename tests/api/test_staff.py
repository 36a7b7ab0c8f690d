"""Staff over HTTP: the same visibility, permissions and log entries as in the admin."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group

from delaytasks.jobs import schedule
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.redaction import HIDDEN
from tests.api.queue_protocol.conftest import QueueClient
from tests.api.rest_client import TOPICS, Rest, fields

VIEW, OPERATE, MANAGE = "delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic"
WHY = "They paid by phone."


@pytest.fixture(autouse=True)
def _jobs(rest_topics: None, db_clock: Any) -> None:
    """mail.send is visible to all staff, sms.send to one group; each has a job with a secret in its body."""
    Topic.objects.create(name="mail.send")
    Topic.objects.create(name="sms.send", visible_to=[Group.objects.create(name="Mobile").pk])
    for topic in ("mail.send", "sms.send"):
        schedule.schedule(topic, key=f"{topic}:1", delay=60, body={"to": "anna", "password": "hunter2"})


@pytest.fixture
def anna(staff_api: Callable[..., Any]) -> Rest:
    """A client with all permissions, for topics that all staff see."""
    return Rest(staff_api(VIEW, OPERATE, MANAGE))


def job_of(topic: str) -> Job:
    return Job.objects.get(key=f"{topic}:1")


def logged() -> list[tuple[str, str]]:
    """Return (user, message) of each entry in Django's log, oldest first."""
    return list(LogEntry.objects.order_by("pk").values_list("user__username", "change_message"))


def require_reasons() -> None:
    Topic.objects.filter(name="mail.send").update(ask_reason=True)


# -- what they see ------------------------------------------------------------------------------


def test_hidden_topic_is_answered_like_a_missing_one(anna: Rest) -> None:
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


def test_lists_leave_out_hidden_topics(anna: Rest) -> None:
    assert [job["key"] for job in anna.get("jobs/")["results"]] == ["mail.send:1"]
    assert {"mail.print", "mail.send"} == {topic["name"] for topic in anna.get("topics/")["results"]} & set(TOPICS)


def test_queue_protocol_hides_hidden_topics(anna: Rest) -> None:
    queue = QueueClient(anna.client)
    for command in ("peek", "delete"):
        assert "unknown" in queue(command, id="sms.send:1")["error"]
    queue.refused(403, "peek", topic="sms.send")
    assert job_of("sms.send").ended_at is None


@pytest.mark.parametrize("who", ["member", "superuser"])
def test_group_members_and_superusers_see_a_restricted_topic(staff_api: Callable[..., Any], who: str) -> None:
    client = staff_api(VIEW, OPERATE)
    if who == "member":
        client.user.groups.add(Group.objects.get())
    else:
        client.user.is_superuser = True
        client.user.save()
    assert len(Rest(client).get("jobs/")["results"]) == 2
    Rest(client).post(f"jobs/{job_of('sms.send').pk}/cancel/")


def test_operate_permission_without_view_permission_grants_nothing(staff_api: Callable[..., Any]) -> None:
    rest, job_id = Rest(staff_api(OPERATE)), job_of("mail.send").pk
    assert rest.get("jobs/")["results"] == []
    rest.get(f"jobs/{job_id}/", 404)
    rest.post(f"jobs/{job_id}/cancel/", status=404)
    assert job_of("mail.send").ended_at is None


def test_secrets_in_a_body_are_shown_to_tokens_only(
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
def test_change_by_staff_is_in_the_events_and_in_the_log(
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


def test_refused_change_is_not_logged(anna: Rest) -> None:
    job_id = job_of("mail.send").pk
    anna.post(f"jobs/{job_id}/retry/", status=409)
    anna.post(f"jobs/{job_id}/cancel/")
    anna.post(f"jobs/{job_id}/cancel/")  # it had been cancelled before: nobody's doing
    anna.post(f"jobs/{job_id}/reschedule/", {"delay_seconds": 1}, 409)
    assert [what for _who, what in logged()] == ["Cancelled."]


def test_change_is_rolled_back_if_its_log_entry_cannot_be_written(anna: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no log")

    monkeypatch.setattr(LogEntry.objects, "log_actions", broken)
    anna.client.client.raise_request_exception = False
    assert anna.client.post(f"/api/jobs/{job_of('mail.send').pk}/cancel/").status_code == 500
    assert job_of("mail.send").ended_at is None
    assert anna.client.post("/api/topics/mail.send/pause/").status_code == 500
    assert not Topic.objects.get(name="mail.send").paused


def test_change_by_a_token_is_in_the_events_only(make_token: Callable[..., str], api: Callable[..., Any]) -> None:
    require_reasons()
    rest, job_id = Rest(api(make_token(topics={"mail.*": "manage"}))), job_of("mail.send").pk
    rest.post(f"jobs/{job_id}/run-now/")
    rest.post(f"jobs/{job_id}/cancel/", {"reason": WHY})
    rest.post("topics/mail.send/pause/")
    assert JobEvent.objects.filter(job_id=job_id).latest("id").reason == WHY
    assert logged() == []


def test_created_jobs_are_logged_and_kept_ones_are_not(anna: Rest) -> None:
    name, terms = anna.client.user.username, {"topic": "mail.send", "delay_seconds": 9}
    anna.post("jobs/", {**terms, "key": "new"}, 201)
    anna.post("jobs/", {**terms, "key": "new", "on_conflict": "keep"})
    anna.post("jobs/", {**terms, "key": "new", "on_conflict": "replace"})
    QueueClient(anna.client)("add", topic="mail.send", id="newer", delay=9, TTR=9, body={})
    assert logged() == [(name, "Scheduled."), (name, "Replaced."), (name, "Scheduled.")]


@pytest.mark.parametrize(("mode", "said"), [("keep", ["Scheduled."]), ("replace", ["Scheduled.", "Replaced."])])
def test_bulk_logs_created_and_replaced_jobs(anna: Rest, mode: str, said: list[str]) -> None:
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
def test_change_without_a_required_reason_is_refused(anna: Rest, action: str) -> None:
    require_reasons()
    data = {"delay_seconds": 5} if action == "reschedule" else None
    problem = anna.post(f"jobs/{job_of('mail.send').pk}/{action}/", data, 400)
    assert fields(problem) == ["reason"]
    assert not JobEvent.objects.exists()
    assert logged() == []


def test_change_with_the_required_reason_succeeds(anna: Rest) -> None:
    require_reasons()
    anna.post(f"jobs/{job_of('mail.send').pk}/cancel/", {"reason": WHY})
    assert logged() == [(anna.client.user.username, f"Cancelled: {WHY}")]


def test_queue_protocol_requires_the_reason_too(anna: Rest) -> None:
    require_reasons()
    queue = QueueClient(anna.client)
    assert "reason" in queue.refused(400, "delete", id="mail.send:1")["error"]
    assert queue("delete", id="mail.send:1", reason=WHY)["value"] == "cancelled"
    assert logged() == [(anna.client.user.username, f"Cancelled: {WHY}")]


def test_replacing_a_job_does_not_bypass_the_required_reason(anna: Rest) -> None:
    require_reasons()
    job = {"topic": "mail.send", "key": "mail.send:1", "delay_seconds": 9}
    for data in ({**job, "on_conflict": "replace"}, {"jobs": [job], "on_conflict": "replace"}):
        assert fields(anna.post("jobs/", data, 400)) == ["on_conflict"]
    command = {"topic": "mail.send", "id": "mail.send:1", "delay": 9, "TTR": 9, "body": {}, "on_conflict": "replace"}
    assert "reason" in QueueClient(anna.client).refused(400, "add", **command)["error"]
    assert not JobEvent.objects.exists()


def test_pause_requires_the_reason_too(anna: Rest) -> None:
    require_reasons()
    assert fields(anna.post("topics/mail.send/pause/", {}, 400)) == ["reason"]
    assert not Topic.objects.get(name="mail.send").paused
    anna.post("topics/mail.send/pause/", {"reason": WHY})
    assert fields(anna.post("topics/mail.send/resume/", {"reason": ""}, 400)) == ["reason"]
    assert Topic.objects.get(name="mail.send").paused


@pytest.mark.on_both
@pytest.mark.parametrize("reason", ["two\nlines", "x" * 256, 5, None, "\x00"])
def test_reason_must_be_one_line_of_text(anna: Rest, reason: Any) -> None:
    assert fields(anna.post(f"jobs/{job_of('mail.send').pk}/cancel/", {"reason": reason}, 400)) == ["reason"]
