"""The right to submit: a token creates jobs, and learns nothing of jobs but whether a key that it names is taken."""

from collections.abc import Callable
from typing import Any

import pytest

from delaytasks import schedule
from delaytasks.api.models import Grant
from delaytasks.models import Job
from delaytasks.worker import leases
from tests.api.rest_client import Rest

NEW = {"topic": "mail.send", "key": "mail:1", "delay_seconds": 0, "body": {"to": "a@example.org", "password": "x"}}
ADD = {"command": "add", "topic": "mail.send", "id": "mail:1", "delay": 0, "TTR": 30, "body": None}
STATES = ["delayed", "ready", "reserved"]
ADDRESSES = ["jobs/{}/", "jobs/", "jobs/?topic=mail.send", "jobs/?key_prefix=mail", "topics/", "topics/mail.send/"]


@pytest.fixture
def submitter(rest_of: Callable[..., Rest]) -> Rest:
    return rest_of("submit")


def make_live(state: str) -> Job:
    """Make the job mail:1 of somebody else."""
    job = schedule("mail.send", key="mail:1", delay=60 if state == "delayed" else 0, body={"secret": 7041})
    if state == "reserved":
        leases.reserve("mail.send", 1, using="default", worker="somebody")
    return job


def test_a_submitter_creates_a_job_and_sees_what_it_has_sent(submitter: Rest) -> None:
    made = submitter.post("jobs/", NEW, 201)
    assert (made["result"], made["body"]) == ("created", {"to": "a@example.org", "password": "••••••"})
    many = submitter.post("jobs/", {"jobs": [{**NEW, "key": "mail:2"}, {**NEW, "key": "mail:3"}]}, 201)
    assert many["created"] == 2
    assert submitter.client.post("/api/queue/", {**ADD, "id": "mail:4"}).json()["success"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_submitter_reads_nothing(address: str, submitter: Rest) -> None:
    job_id = submitter.post("jobs/", NEW, 201)["id"]
    answer = submitter.client.client.get(f"/api/{address.format(job_id)}", headers=submitter.client.headers)
    assert answer.status_code in (404, 403) or answer.json()["results"] == []
    assert "mail:1" not in answer.content.decode()


@pytest.mark.parametrize("body", [NEW, ADD, {"jobs": [NEW]}], ids=["job", "queue", "bulk"])
def test_a_taken_key_does_not_tell_what_became_of_its_job(body: dict[str, Any], submitter: Rest) -> None:
    path, answers = "/api/queue/" if body is ADD else "/api/jobs/", set[str]()
    for state in STATES:
        make_live(state)
        answer = submitter.client.post(path, body)
        assert answer.status_code == (200 if body is ADD else 409)
        answers.add(answer.content.decode())
        Job.objects.all().delete()
    assert len(answers) == 1
    assert "A live job has this key: use another one." in answers.pop()


@pytest.mark.parametrize("mode", ["keep", "replace", "again"])
@pytest.mark.parametrize("body", [NEW, ADD, {"jobs": [NEW]}], ids=["job", "queue", "bulk"])
def test_a_submitter_neither_keeps_nor_changes_a_job(body: dict[str, Any], mode: str, submitter: Rest) -> None:
    job = make_live("delayed")
    path = "/api/queue/" if body is ADD else "/api/jobs/"
    answer = submitter.client.post(path, {**body, "on_conflict": mode})
    assert answer.status_code == 403
    assert "lacks the right to produce" in answer.content.decode()
    assert Job.objects.get() == job
    assert Job.objects.get().body == {"secret": 7041}


def test_a_submitter_neither_cancels_nor_runs_its_job(submitter: Rest) -> None:
    job_id = submitter.post("jobs/", NEW, 201)["id"]
    for change in ("cancel", "reschedule", "run-now", "retry", "finish"):
        submitter.post(f"jobs/{job_id}/{change}/", {"attempt": 1, "delay_seconds": 1}, 404)
    deleted = submitter.client.post("/api/queue/", {"command": "delete", "id": "mail:1"}).json()
    assert deleted["error"] == "'mail:1' is unknown: no job has this id."


def test_whoever_may_also_read_gets_the_whole_answer(rest_of: Callable[..., Rest]) -> None:
    job = make_live("delayed")
    rest = rest_of("submit consume")
    assert rest.post("jobs/", NEW, 409)["job_id"] == job.pk
    rest.post("jobs/", {**NEW, "on_conflict": "keep"}, 403)


def test_a_grant_of_submit_alone_is_a_grant(make_token: Any) -> None:
    make_token(topics={"mail.*": "submit"})
    assert str(Grant.objects.get()) == "mail.*: submit"
