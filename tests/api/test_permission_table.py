"""Who gets which answer where: every address and method of the URL configuration, and every command of the queue.

TABLE is written by hand; an address, a method or a command that has no row in it fails. `404` of who sees nothing of
the topic is checked to be, word for word, that of a job that does not exist. `none` is the queue's "there is no such
job": HTTP 200, and `success` is false.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from django.urls import NoReverseMatch, URLPattern, URLResolver, reverse

from delaytasks import schedule
from delaytasks.api import urls
from delaytasks.api.queue_protocol.commands import COMMANDS
from delaytasks.jobs import control
from delaytasks.models import Job, Schedule, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.worker import leases

TOPIC, OTHER, NO_JOB, NO_KEY = "mail.send", "sms.send", 9_000_000_000, "nokey"
HOLDER = "php-shop"  # make_token's account: without a receipt, only the account that holds an attempt ends it
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
CHANGES = ("produce", "consume", "manage")
STAFF = {
    "staff": (
        "delaytasks.view_job",
        "delaytasks.operate_job",
        "delaytasks.change_topic",
        "delaytasks.add_schedule",
        "delaytasks.change_schedule",
        "delaytasks.delete_schedule",
    ),
    "viewer": ("delaytasks.view_job", "delaytasks.view_schedule"),
    "nothing": (),
}

# nobody     no token and no session             elsewhere  a token with every right, on another topic
# ungranted  a token without any grant           staff      may view and operate jobs, change topics and schedules
# customer   signed in, and not of the staff     viewer, nothing: staff who may view jobs and schedules, and nothing
TABLE = """
                     nobody customer ungranted elsewhere submit produce consume manage  staff viewer nothing
GET jobs             401    401      200       200       200    200     200     200     200   200    200
POST jobs            401    401      403       403       201    201     403     403     201   403    403
GET job              401    401      404       404       404    200     200     200     200   200    404
POST cancel          401    401      404       404       404    200     403     200     200   403    404
POST reschedule      401    401      404       404       404    200     403     200     200   403    404
POST run-now         401    401      404       404       404    403     403     200     200   403    404
POST retry           401    401      404       404       404    403     403     200     200   403    404
POST finish          401    401      404       404       404    403     200     403     403   403    404
POST release         401    401      404       404       404    403     200     403     403   403    404
POST touch           401    401      404       404       404    403     200     403     403   403    404
POST bury            401    401      404       404       404    403     200     403     403   403    404
GET topics           401    401      200       200       200    200     200     200     200   200    200
GET topic            401    401      403       403       403    200     200     200     200   200    403
POST pause           401    401      403       403       403    403     403     200     200   403    403
POST resume          401    401      403       403       403    403     403     200     200   403    403
POST reserve         401    401      403       403       403    403     200     403     403   403    403
GET schedules        401    401      200       200       200    200     200     200     200   200    200
POST schedules       401    401      403       403       403    201     403     403     201   403    403
GET schedule         401    401      404       404       404    200     200     200     200   200    404
PATCH schedule       401    401      404       404       404    200     403     403     200   403    404
DELETE schedule      401    401      404       404       404    200     403     200     200   403    404
POST pause-schedule  401    401      404       404       404    200     403     200     200   403    404
POST resume-schedule 401    401      404       404       404    200     403     200     200   403    404
POST run-schedule    401    401      404       404       404    201     403     201     201   403    404
GET next-runs        401    401      404       404       404    200     200     200     200   200    404
POST backfill        401    401      404       404       404    200     403     200     200   403    404
GET health           200    200      200       200       200    200     200     200     200   200    200
GET schema           401    401      200       200       200    200     200     200     200   200    200
GET docs             401    401      200       200       200    200     200     200     200   200    200
GET nowhere          401    401      404       404       404    404     404     404     404   404    404
queue add            401    401      403       403       200    200     403     403     200   403    403
queue pop            401    401      403       403       403    403     200     403     403   403    403
queue finish         401    401      none      none      none   403     200     403     403   403    none
queue touch          401    401      none      none      none   403     200     403     403   403    none
queue release        401    401      none      none      none   403     200     403     403   403    none
queue bury           401    401      none      none      none   403     200     403     403   403    none
queue delete         401    401      none      none      none   200     403     200     200   403    none
queue peek           401    401      none      none      none   200     200     200     200   200    none
"""
ROLES, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
EXPECTED = {(method, name): dict(zip(ROLES, cells, strict=True)) for method, name, *cells in ROWS}

# What is sent, so that who has the right succeeds.
DATA: dict[str, dict[str, Any]] = {
    "jobs": {"topic": TOPIC, "key": "new", "delay_seconds": 60},
    "reschedule": {"delay_seconds": 60},
    **{name: {"attempt": 1} for name in ("finish", "release", "touch", "bury")},
    "add": {"topic": TOPIC, "id": "new", "delay": 60, "TTR": 30, "body": None},
    "pop": {"topic": TOPIC},
    "schedules": {"name": "new", "topic": TOPIC, "every_seconds": 600},
    "backfill": {"first_at": "2020-01-01T00:00:00Z", "last_at": "2020-01-01T00:00:00Z"},
}
# How the job is meanwhile; delayed where nothing else is said.
STATES = {"retry": "dead", **dict.fromkeys(("finish", "release", "touch", "bury"), "reserved")}


def addresses(patterns: list[Any] = urls.urlpatterns) -> Iterator[tuple[str, str]]:
    """Yield (method, URL name) of all views; NotFoundView handles every method alike."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern.url_patterns)
            continue
        assert isinstance(pattern, URLPattern)
        assert pattern.name, f"{pattern} has no name"
        view = pattern.callback.cls  # type: ignore[attr-defined]
        methods = [method for method in METHODS if hasattr(view, method.lower())]
        yield from ((method, pattern.name) for method in methods or ["GET"])


def test_every_url_method_and_command_is_in_the_table() -> None:
    mounted = {pair for pair in addresses() if pair != ("POST", "queue")}

    assert set(EXPECTED) == mounted | {("queue", command) for command in COMMANDS}


@pytest.fixture(autouse=True)
def _topics(rest_topics: None) -> None:
    Topic.objects.get_or_create(name=TOPIC)


@pytest.fixture
def client_of(api: Callable, make_token: Callable, staff_api: Callable) -> Callable[[str], Any]:
    """client_of(role): the client of a role in the table."""

    def make(role: str) -> Any:
        if role == "nobody":
            return api()
        if role == "customer":
            return staff_api(*STAFF["staff"], is_staff=False)
        if role in STAFF:
            return staff_api(*STAFF[role])
        grants = {"ungranted": {}, "elsewhere": {OTHER: " ".join(CHANGES)}}
        return api(make_token(topics=grants.get(role, {TOPIC: role})))

    return make


_numbers = count()


def make_job(state: str) -> Job:
    """Create a delayed, reserved or dead job of the topic. The account of all tokens has reserved it."""
    job = schedule(TOPIC, key=f"key{next(_numbers)}", delay=0 if state in ("reserved", "dead") else 3600, ttr=60)
    if state in ("reserved", "dead"):
        leases.reserve(TOPIC, 1, using="default", worker=HOLDER)
    if state == "dead":
        leases.bury(job.pk, 1, using="default")
    return job


def path_of(name: str, job_id: int, key: str = "") -> str:
    if name == "nowhere":
        return "/api/no/such/address/"
    for arguments in ({}, {"job_id": job_id}, {"topic": TOPIC}, {"schedule": key or "x"}):
        try:
            return reverse(f"delaytasks_api:{name}", kwargs=arguments)
        except NoReverseMatch:
            continue
    raise AssertionError(f"{name}: what does its address need?")


def call(client: Any, method: str, name: str, job_id: int, key: str) -> Any:
    if method != "queue":
        data = DATA.get(name, {}) if method == "POST" else {} if method == "PATCH" else None
        return client.request(method, path_of(name, job_id, key), data)
    data = {"command": name} | ({"id": key} if "id" in COMMANDS[name].request().fields else {}) | DATA.get(name, {})
    return client.request("POST", path_of("queue", 0), data)


def outcome(answer: Any, method: str) -> str:
    if method == "queue" and answer.status_code == 200 and not answer.json()["success"]:
        assert "There is no" in answer.json()["error"] or "unknown" in answer.json()["error"], answer.json()
        return "none"
    return str(answer.status_code)


def without_names(answer: Any, job: Job, *instead: object) -> bytes:
    """Return the response content without the job's id and key, for comparison."""
    content = answer.content
    for name in (job.key, job.pk, *instead):  # the key first: the number may be part of it
        content = content.replace(str(name).encode(), b"?")
    return content


@pytest.mark.parametrize(("method", "name"), EXPECTED, ids=lambda value: value)
def test_each_role_gets_the_response_in_the_table(method: str, name: str, client_of: Callable) -> None:
    found = {}
    for role in ROLES:
        job = make_job(STATES.get(name, "delayed"))
        schedules.define(Definition(job.key, TOPIC, every=600))
        client = client_of(role)
        answer = call(client, method, name, job.pk, job.key)
        found[role] = outcome(answer, method)
        if found[role] in ("401", "404", "none") and name != "nowhere":
            unknown = call(client, method, name, NO_JOB, NO_KEY)
            assert without_names(unknown, job, NO_JOB, NO_KEY) == without_names(answer, job), role
        if found[role] == "401":
            assert answer["WWW-Authenticate"].startswith("Bearer")
        assert OTHER.encode() not in answer.content or role == "elsewhere" or name in ("topics", "schema", "docs"), role
        control.cancel_job(job.pk, using="default")
        Job.objects.filter(topic=TOPIC, key="new").delete()
        Schedule.objects.filter(name="new").delete()

    assert found == EXPECTED[method, name]


@pytest.mark.parametrize("name", sorted({name for method, name in EXPECTED if method != "queue"} - {"nowhere"}))
def test_other_methods_are_405_for_callers_and_401_for_others(name: str, client_of: Callable) -> None:
    allowed = {method for method, other in addresses() if other == name}
    everything, nobody = client_of("manage"), client_of("nobody")
    for method in {*METHODS, "OPTIONS", "TRACE"} - allowed:
        assert call(everything, method, name, 1, "").status_code == 405, method
        assert call(nobody, method, name, 1, "").status_code == (405 if name == "health" else 401), method


def test_hidden_topics_are_in_no_list_and_no_count(client_of: Callable) -> None:
    job = make_job("delayed")
    for role in ("ungranted", "elsewhere"):
        client = client_of(role)
        assert client.get("/api/jobs/").json()["results"] == []
        assert client.get("/api/jobs/", key_prefix=job.key).json()["results"] == []
        assert TOPIC not in client.get("/api/topics/").content.decode()
        named, unknown = (client.get("/api/jobs/", topic=topic) for topic in (TOPIC, "no.such"))
        assert named.status_code == unknown.status_code == 403
        assert named.content.replace(TOPIC.encode(), b"?") == unknown.content.replace(b"no.such", b"?")


@pytest.mark.parametrize("name", ["topic", "pause", "resume", "reserve"])
def test_topic_without_a_grant_is_answered_like_a_missing_one(name: str, client_of: Callable) -> None:
    method = "GET" if name == "topic" else "POST"
    for role in ("ungranted", "elsewhere", "nothing"):
        client = client_of(role)
        there = call(client, method, name, 0, "")
        path = path_of(name, 0).replace(TOPIC, "no.such")
        nowhere = client.request(method, path, {} if method == "POST" else None)
        assert there.status_code == nowhere.status_code == 403
        assert there.content.replace(TOPIC.encode(), b"?") == nowhere.content.replace(b"no.such", b"?")
