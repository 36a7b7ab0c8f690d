"""One job over REST: create, read, cancel, reschedule, run now and retry."""

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import include, path

from delaytasks.api.models import Token
from delaytasks.api.views.base import BaseView
from delaytasks.jobs import control, schedule
from delaytasks.models import Job, JobEvent
from delaytasks.outcomes import Result
from delaytasks.worker import leases
from tests.api.rest_client import NO_JOB, T0, Rest, at, events, fields

urlpatterns = [path("v1/", include(([path("api/", include("delaytasks.api.urls"))], "shop"), namespace="v1"))]


def held(rest: Rest, **terms: Any) -> int:
    """Create a reserved job and return its id."""
    job = rest.make(**terms)
    assert [each["id"] for each in rest.take()] == [job["id"]]
    return int(job["id"])


def ended(rest: Rest, how: str, **terms: Any) -> int:
    """Create a finished, dead or cancelled job and return its id."""
    if how == "cancelled":
        job_id = rest.make(**{"delay_seconds": 60} | terms)["id"]
        rest.post(f"jobs/{job_id}/cancel/")
        return int(job_id)
    job_id = held(rest, **terms)
    rest.post(f"jobs/{job_id}/{'finish' if how == 'finished' else 'bury'}/", {"attempt": 1})
    return job_id


# -- made ---------------------------------------------------------------------------------------


def test_created_job_is_returned_with_all_fields(rest: Rest) -> None:
    made = rest.make(delay_seconds=1800, body={"order": 7}, ttr_seconds=1.5, expires_seconds=90, priority=7)
    assert made == {
        "id": made["id"], "topic": "mail.send", "key": "mail:1", "state": "delayed", "due_at": at(1800),
        "ttr_seconds": 1.5, "expires_seconds": 90, "priority": 7, "attempt": 0, "failures": 0,
        "body": {"order": 7}, "created_at": at(0), "reserved_at": None, "lease_until": None, "ended_at": None,
        "worker": "", "error": "", "error_code": None,
        "result": "created",
    }  # fmt: skip
    assert rest.last.headers["Location"] == f"/api/jobs/{made['id']}/"
    assert events(made["id"]) == [("scheduled", "php")]
    job = Job.objects.get(pk=made["id"])
    assert (job.topic, job.key, job.body, job.ttr_ms) == ("mail.send", "mail:1", {"order": 7}, 1500)
    assert (job.expires_ms, job.priority) == (90_000, 7)


def test_the_api_may_be_mounted_in_a_namespace_of_the_site(rest: Rest, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    for address, data in (
        ("jobs/", {"topic": "mail.send", "key": "mail:1", "delay_seconds": 60}),
        ("schedules/", {"name": "report", "topic": "mail.send", "every_seconds": 60}),
        ("schedules/report/run-now/", {}),
    ):
        answer = rest.client.post(f"/v1/api/{address}", data)
        assert answer.status_code == 201, answer.content
        assert rest.client.get(answer.headers["Location"]).status_code == 200
    assert "/v1/api/schema/" in rest.client.get("/v1/api/docs/").content.decode()
    assert "/v1/api/jobs/{job_id}/" in rest.client.get("/v1/api/schema/").json()["paths"]


def test_missing_fields_have_the_topics_defaults(rest: Rest) -> None:
    made = rest.make(delay_seconds=0.25)
    assert (made["ttr_seconds"], made["body"], made["due_at"]) == (30, {}, at(0.25))


@pytest.mark.parametrize(
    ("due_at", "seconds"),
    [
        ("2030-01-01T00:00:10Z", 10),
        ("2030-01-01T01:00:10.25+01:00", 10.25),
        ("2029-12-31t18:30:10.250-05:30", 10.25),
        ("2030-01-01 00:00:10.1230001z", 10.124),  # to the millisecond, and never earlier
        ("2030-01-01T00:00:60Z", 60),  # a leap second
        ("1999-01-01T00:00:00Z", 0),  # a time that has passed means now
        ("0000-02-29T00:00:00+23:59", 0),
    ],
)
def test_a_due_time_may_have_any_offset_and_keeps_its_milliseconds(rest: Rest, due_at: str, seconds: float) -> None:
    assert rest.make(due_at=due_at)["due_at"] == at(seconds)


@pytest.mark.parametrize("body", [[], [1, {"b": None}], "text", "", 0, 1.5, True, False, {"ü": "☃ 𝄞"}])
def test_any_json_body_is_returned_unchanged(rest: Rest, body: Any) -> None:
    job_id = rest.make(body=body)["id"]
    assert rest.get(f"jobs/{job_id}/")["body"] == body


def test_live_key_is_refused_with_the_id_of_its_job(rest: Rest) -> None:
    first = rest.make(delay_seconds=60)
    problem = rest.post("jobs/", {"topic": "mail.send", "key": "mail:1", "delay_seconds": 5}, 409)
    assert (problem["type"], problem["job_id"]) == ("urn:delaytasks:problem:key-is-live", first["id"])
    assert Job.objects.get().due_at.timestamp() == T0.timestamp() + 60


def test_repeated_request_keeps_the_job(rest: Rest) -> None:
    first = rest.make(delay_seconds=60)
    again = rest.post("jobs/", {"topic": "mail.send", "key": "mail:1", "delay_seconds": 5, "on_conflict": "keep"})
    assert again == first | {"result": "kept"}
    assert events(first["id"]) == [("scheduled", "php")]


def test_live_job_is_replaced_and_its_event_records_the_actor(rest: Rest, rest_of: Callable[..., Rest]) -> None:
    first = rest.make(delay_seconds=60)
    terms = {"topic": "mail.send", "key": "mail:1", "delay_seconds": 5, "body": [2], "on_conflict": "replace"}
    assert rest_of(account="go").post("jobs/", terms) == first | {"due_at": at(5), "body": [2], "result": "replaced"}
    assert events(first["id"]) == [("scheduled", "php"), ("rescheduled", "go")]


def test_reserved_job_cannot_be_replaced(rest: Rest) -> None:
    job_id = held(rest)
    terms = {"topic": "mail.send", "key": "mail:1", "delay_seconds": 5, "on_conflict": "replace"}
    assert rest.post("jobs/", terms, 409)["type"] == "urn:delaytasks:problem:reserved"
    assert rest.state(job_id) == "reserved"


def test_reserved_job_runs_again_and_a_waiting_one_is_kept(rest: Rest) -> None:
    job_id = held(rest)
    terms = {"topic": "mail.send", "key": "mail:1", "delay_seconds": 5, "body": [2], "on_conflict": "again"}
    assert rest.post("jobs/", terms)["result"] == "again"
    assert rest.state(job_id) == "reserved"
    assert Job.objects.get().again_body == [2]
    rest.make("mail:2", delay_seconds=60)
    kept = rest.post("jobs/", terms | {"key": "mail:2"})
    assert (kept["result"], kept["due_at"]) == ("kept", at(60))


@pytest.mark.parametrize("how", ["finished", "dead", "cancelled"])
def test_key_can_be_reused_after_its_job_has_ended(rest: Rest, how: str) -> None:
    assert ended(rest, how) != rest.make()["id"]


GOOD = {"topic": "mail.send", "key": "mail:1", "delay_seconds": 5}


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"topic": None}, ["topic"]),
        ({"topic": 5}, ["topic"]),
        ({"topic": "mail send"}, ["topic"]),
        ({"topic": "m" * 101}, ["topic"]),
        ({"key": ""}, ["key"]),
        ({"key": " \t"}, ["key"]),
        ({"key": 1042}, ["key"]),
        ({"key": "k" * 256}, ["key"]),
        ({"key": "mail\u0000"}, ["key"]),
        ({"key": "mail\n1"}, ["key"]),
        ({"key": "mail\u2028"}, ["key"]),
        ({"key": ["mail:1"]}, ["key"]),
        ({"delay_seconds": "5"}, ["delay_seconds"]),
        ({"delay_seconds": True}, ["delay_seconds"]),
        ({"delay_seconds": -0.001}, ["delay_seconds"]),
        ({"delay_seconds": 1e300}, ["delay_seconds"]),
        ({"delay_seconds": 10**400}, ["delay_seconds"]),
        ({"delay_seconds": None}, ["delay_seconds"]),
        ({"due_at": "2030-01-01T00:00:00Z"}, ["due_at"]),  # beside delay_seconds
        ({"ttr_seconds": 0}, ["ttr_seconds"]),
        ({"ttr_seconds": 0.0009}, ["ttr_seconds"]),
        ({"ttr_seconds": 604_801}, ["ttr_seconds"]),
        ({"ttr_seconds": "60"}, ["ttr_seconds"]),
        ({"ttr_seconds": False}, ["ttr_seconds"]),
        ({"expires_seconds": 0}, ["expires_seconds"]),
        ({"expires_seconds": 31_622_401}, ["expires_seconds"]),
        ({"expires_seconds": None}, ["expires_seconds"]),
        ({"priority": 10}, ["priority"]),
        ({"priority": -1}, ["priority"]),
        ({"priority": "5"}, ["priority"]),
        ({"priority": True}, ["priority"]),
        ({"priority": 1.5}, ["priority"]),
        ({"priority": None}, ["priority"]),
        ({"on_conflict": "ignore"}, ["on_conflict"]),
        ({"on_conflict": None}, ["on_conflict"]),
        ({"on_conflict": ["keep"]}, ["on_conflict"]),
        ({"delay": 5}, ["delay"]),
        ({"TTR": 5, "id": 7}, ["TTR", "id"]),
        ({"\u0000": 5}, [r"\x00"]),
        ({"key": "", "ttr_seconds": 0}, ["key", "ttr_seconds"]),
    ],
)
def test_invalid_field_is_named(rest: Rest, change: dict[str, Any], named: list[str]) -> None:
    problem = rest.post("jobs/", GOOD | change, 400)
    assert sorted(fields(problem)) == named
    assert all(name in problem["detail"] for name in named)
    assert not Job.objects.exists()


@pytest.mark.parametrize("path", ["jobs/", "topics/mail.send/reserve/", "topics/mail.send/pause/"])
def test_a_query_parameter_of_a_post_is_refused(rest: Rest, path: str) -> None:
    rest.make("ready")
    problem = rest.post(f"{path}?wait_seconds=30", GOOD if path == "jobs/" else {}, 400)
    assert problem["errors"] == [{"field": "wait_seconds", "detail": "Send it in the body, not in the URL."}]
    assert Job.objects.get().attempt == 0


@pytest.mark.parametrize(("path", "status"), [("nowhere/", 404), ("health/", 405)])
def test_a_query_parameter_of_a_post_that_is_not_served_is_not_mentioned(rest: Rest, path: str, status: int) -> None:
    assert rest.client.request("POST", f"/api/{path}?wait_seconds=30").status_code == status


def test_null_instead_of_an_object_is_refused(rest: Rest) -> None:
    assert rest.post("jobs/", b"null", 400)["detail"] == "Give a JSON object, not null."


@pytest.mark.parametrize("left_out", ["topic", "key", "delay_seconds"])
def test_missing_field_is_named(rest: Rest, left_out: str) -> None:
    problem = rest.post("jobs/", {name: value for name, value in GOOD.items() if name != left_out}, 400)
    assert fields(problem) == ["due_at" if left_out == "delay_seconds" else left_out]


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("due_at", "said"),
    [
        ("2030-01-01T00:00:00", "no offset"),
        ("2030-01-01", "RFC 3339"),
        ("2030-W01-1T00:00:00Z", "RFC 3339"),
        ("20300101T000000Z", "RFC 3339"),
        ("2030-01-01T00:00Z", "RFC 3339"),
        ("2030-02-30T00:00:00Z", "not a valid date"),
        ("2030-01-01T24:00:00Z", "not a valid date"),
        ("2030-01-01T00:00:00+24:00", "not a valid date"),
        ("2030-01-01T00:00:00+05:99", "RFC 3339"),
        ("٢٠٣٠-01-01T00:00:00Z", "RFC 3339"),
        (1893456000, "RFC 3339"),
        ("", "RFC 3339"),
        ("9999-12-31T23:59:59.9999999Z", "MAX_DELAY_SECONDS"),
        ("9999-12-31T23:59:59.999-23:59", "MAX_DELAY_SECONDS"),
    ],
)
def test_invalid_time_is_refused_with_the_reason(rest: Rest, due_at: Any, said: str) -> None:
    problem = rest.post("jobs/", {"topic": "mail.send", "key": "k", "due_at": due_at}, 400)
    assert said in problem["detail"]
    assert not Job.objects.exists()


@pytest.mark.on_both
@pytest.mark.parametrize(
    "body", ['"\\ud800"', '{"a":"\\u0000"}', '{"\\udfff":1}', "NaN", "-Infinity", "1e999", "[" * 101 + "]" * 101]
)
def test_body_that_a_database_cannot_store_is_refused(rest: Rest, body: str) -> None:
    rest.post("jobs/", b'{"topic":"mail.send","key":"k","delay_seconds":5,"body":' + body.encode() + b"}", 400)
    assert not Job.objects.exists()


def test_a_body_that_is_too_large_is_refused_with_its_limit(rest: Rest, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "MAX_BODY_BYTES": 100}
    problem = rest.post("jobs/", GOOD | {"body": "x" * 99}, 413)
    assert "100" in problem["detail"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("sent", [b"", b"[]", b"null", b"7", b'"jobs"', b"{", b"\xff"])
def test_request_that_is_not_an_object_is_refused(rest: Rest, sent: bytes) -> None:
    rest.post("jobs/", sent, 400)


def test_only_json_is_accepted(rest: Rest) -> None:
    rest.post("jobs/", b"topic=mail.send", 415, Content_Type="application/x-www-form-urlencoded")


def test_a_topic_without_a_grant_is_refused_whether_or_not_it_exists(rest: Rest) -> None:
    details = [
        rest.post("jobs/", GOOD | {"topic": topic}, 403)["detail"].replace(topic, "?")
        for topic in ("sms.send", "sms.none")
    ]
    assert details[0] == details[1]
    assert "mail" not in details[0]


def test_unknown_granted_topic_is_refused_without_naming_others(rest: Rest) -> None:
    problem = rest.post("jobs/", GOOD | {"topic": "mail.none"}, 400)
    assert problem["type"] == "urn:delaytasks:problem:unknown-topic"
    assert "sms" not in str(problem)


@pytest.mark.parametrize("rights", ["consume", "manage", "consume manage"])
def test_creating_requires_the_right_to_produce(rest_of: Callable[..., Rest], rights: str) -> None:
    assert "produce" in rest_of(rights).post("jobs/", GOOD, 403)["detail"]
    assert not Job.objects.exists()


# -- read ---------------------------------------------------------------------------------------


def test_job_is_read_with_its_events(rest: Rest, db_clock: Any) -> None:
    job_id = rest.make(delay_seconds=10, body=[1])["id"]
    db_clock.advance(ms=10_040)
    rest.take(consumer="m1")
    db_clock.advance(ms=500)
    rest.post(f"jobs/{job_id}/release/", {"attempt": 1, "delay_seconds": 60, "error": "502\nfrom the bank"})
    token = f"php (token {Token.objects.get(account__name='php').prefix})"
    assert rest.get(f"jobs/{job_id}/") == {
        "id": job_id, "topic": "mail.send", "key": "mail:1", "state": "delayed", "due_at": at(70.54),
        "ttr_seconds": 30, "expires_seconds": None, "priority": 0, "attempt": 1, "failures": 1,
        "body": [1], "created_at": at(0), "reserved_at": at(10.04),
        "lease_until": None, "ended_at": None, "worker": "php/m1", "error": "from the bank",
        "error_code": None,
        "has_older_events": False,
        "events": [
            {"outcome": "scheduled", "attempt": 0, "at": at(0), "due_at": at(10), "next_due_at": at(10),
             "late_ms": None, "ran_ms": None, "worker": "", "actor": token, "reason": "", "error": "",
             "error_code": None},
            {"outcome": "failed", "attempt": 1, "at": at(10.54), "due_at": at(10), "next_due_at": at(70.54),
             "late_ms": 40, "ran_ms": 500, "worker": "php/m1", "actor": token, "reason": "",
             "error": "502\nfrom the bank", "error_code": None},
        ],
    }  # fmt: skip


def test_a_job_is_ready_as_soon_as_its_due_time_has_passed(rest: Rest, db_clock: Any) -> None:
    job_id = rest.make(delay_seconds=10)["id"]
    db_clock.advance(ms=9_999)
    assert rest.state(job_id) == "delayed"
    db_clock.advance(ms=1)
    assert rest.state(job_id) == "ready"


def test_only_the_newest_of_very_many_events_are_shown(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaytasks.api.job_list.MAX_EVENTS", 2)
    job_id = rest.make(delay_seconds=60)["id"]
    for seconds in (70, 80, 90):
        rest.post(f"jobs/{job_id}/reschedule/", {"delay_seconds": seconds})
    read = rest.get(f"jobs/{job_id}/")
    assert ([event["next_due_at"] for event in read["events"]], read["has_older_events"]) == ([at(80), at(90)], True)


@pytest.mark.on_both
def test_the_number_of_queries_of_a_read_does_not_grow_with_the_events(rest: Rest) -> None:
    job_id = rest.make(delay_seconds=60)["id"]
    counts = []
    for more in (0, 30):
        for _ in range(more):
            control.reschedule_job(job_id, delay=60, by="x")
        counts.append(rest.count_queries(lambda: rest.get(f"jobs/{job_id}/")))
    assert counts[0] == counts[1] <= 6


@pytest.mark.on_both
@pytest.mark.parametrize(
    "action", ["", "cancel/", "reschedule/", "run-now/", "retry/", "finish/", "release/", "touch/", "bury/"]
)
def test_job_of_a_hidden_topic_is_not_found(rest: Rest, action: str) -> None:
    hidden = schedule.schedule("sms.send", key="a", delay=60)
    call = rest.post if action else rest.get
    problems = [
        call(f"jobs/{job_id}/{action}", status=404) for job_id in (hidden.pk, NO_JOB, 0, 2**63, 10**30, "x", "-1")
    ]
    assert all(problem == problems[0] for problem in problems)
    assert events(hidden.pk) == []


@pytest.mark.parametrize(("path", "told"), [("/api/jobs", True), ("/api/jobs/1/cancel", True), ("/api/job/", False)])
def test_the_404_of_a_path_without_its_slash_says_so(rest: Rest, path: str, told: bool) -> None:
    answer = rest.client.post(path, {})
    assert (answer.status_code, "end with a slash" in answer.json()["detail"]) == (404, told)


# -- cancelled ----------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_seconds", [0, 60])
def test_delayed_or_ready_job_is_cancelled_and_its_event_records_the_actor(rest: Rest, delay_seconds: int) -> None:
    job_id = rest.make(delay_seconds=delay_seconds)["id"]
    assert rest.post(f"jobs/{job_id}/cancel/") == {"result": "cancelled"}
    assert rest.post(f"jobs/{job_id}/cancel/", {}) == {"result": "cancelled"}
    assert (rest.state(job_id), events(job_id)) == ("cancelled", [("scheduled", "php"), ("cancelled", "php")])
    assert rest.take() == []


def test_reserved_job_is_not_cancelled_and_reported_as_running(rest: Rest) -> None:
    job_id = held(rest)
    problem = rest.post(f"jobs/{job_id}/cancel/", status=409)
    assert (problem["type"], problem["result"]) == ("urn:delaytasks:problem:not-cancelled", "running")
    rest.post(f"jobs/{job_id}/finish/", {"attempt": 1})


def test_finished_job_is_not_cancelled(rest: Rest) -> None:
    job_id = ended(rest, "finished")
    assert rest.post(f"jobs/{job_id}/cancel/", status=409)["result"] == "already finished"
    assert rest.state(job_id) == "finished"


def test_dead_job_is_cancelled(rest: Rest) -> None:
    job_id = ended(rest, "dead")
    for _ in range(2):
        assert rest.post(f"jobs/{job_id}/cancel/") == {"result": "cancelled"}
    assert rest.state(job_id) == "cancelled"
    assert [outcome for outcome, _actor in events(job_id)] == ["scheduled", "dead", "cancelled"]


def test_job_deleted_before_the_cancel_is_not_found(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = rest.make()["id"]
    monkeypatch.setattr(control, "cancel_by_id", lambda *_, **__: Result.NOT_FOUND)
    rest.post(f"jobs/{job_id}/cancel/", status=404)


# -- moved, run now, retried --------------------------------------------------------------------


@pytest.mark.parametrize("when", [{"delay_seconds": 5}, {"due_at": "2030-01-01T02:00:05.000+02:00"}])
def test_job_is_rescheduled(rest: Rest, when: dict[str, Any]) -> None:
    job_id = rest.make(delay_seconds=60)["id"]
    moved = rest.post(f"jobs/{job_id}/reschedule/", when)
    assert (moved["id"], moved["due_at"], moved["state"]) == (job_id, at(5), "delayed")
    assert events(job_id)[-1] == ("rescheduled", "php")


@pytest.mark.parametrize(
    ("when", "named"),
    [
        ({}, ["due_at"]),
        ({"delay_seconds": 5, "due_at": "2030-01-01T00:00:05Z"}, ["due_at"]),
        ({"delay_seconds": "5"}, ["delay_seconds"]),
        ({"due_at": "2030-01-01T00:00:05"}, ["due_at"]),
        ({"delay": 5}, ["delay"]),
    ],
)
def test_job_is_not_rescheduled_to_an_invalid_time(rest: Rest, when: dict[str, Any], named: list[str]) -> None:
    job_id = rest.make(delay_seconds=60)["id"]
    assert fields(rest.post(f"jobs/{job_id}/reschedule/", when, 400)) == named
    assert rest.get(f"jobs/{job_id}/")["due_at"] == at(60)


def test_a_job_is_made_due_now(rest: Rest) -> None:
    job_id = rest.make(delay_seconds=60)["id"]
    moved = rest.post(f"jobs/{job_id}/run-now/")
    assert (moved["state"], moved["due_at"], events(job_id)[-1]) == ("ready", at(0), ("rescheduled", "php"))
    assert [job["id"] for job in rest.take()] == [job_id]


@pytest.mark.parametrize(("action", "data"), [("reschedule", {"delay_seconds": 5}), ("run-now", None)])
def test_reserved_job_is_not_rescheduled(rest: Rest, action: str, data: Any) -> None:
    job_id = held(rest)
    assert rest.post(f"jobs/{job_id}/{action}/", data, 409)["type"] == "urn:delaytasks:problem:reserved"
    assert rest.state(job_id) == "reserved"


@pytest.mark.parametrize(("action", "data"), [("reschedule", {"delay_seconds": 5}), ("run-now", {})])
@pytest.mark.parametrize("how", ["finished", "dead", "cancelled"])
def test_ended_job_is_not_rescheduled(rest: Rest, action: str, data: Any, how: str) -> None:
    job_id = ended(rest, how)
    assert rest.post(f"jobs/{job_id}/{action}/", data, 409)["type"] == "urn:delaytasks:problem:not-live"
    assert rest.state(job_id) == how


def test_retried_dead_job_is_ready(rest: Rest) -> None:
    job_id = ended(rest, "dead")
    retried = rest.post(f"jobs/{job_id}/retry/")
    assert (retried["state"], retried["failures"], retried["attempt"]) == ("ready", 0, 1)
    assert events(job_id)[-1] == ("retried", "php")
    assert [job["attempt"] for job in rest.take()] == [2]


@pytest.mark.parametrize("how", ["finished", "cancelled", "live"])
def test_only_a_dead_job_is_retried(rest: Rest, how: str) -> None:
    job_id = rest.make()["id"] if how == "live" else ended(rest, how)
    assert rest.post(f"jobs/{job_id}/retry/", status=409)["type"] == "urn:delaytasks:problem:not-dead"


def test_dead_job_whose_key_is_live_is_not_retried_and_the_live_job_is_named(rest: Rest) -> None:
    dead = ended(rest, "dead")
    live = rest.make()["id"]
    problem = rest.post(f"jobs/{dead}/retry/", status=409)
    assert (problem["type"], problem["job_id"]) == ("urn:delaytasks:problem:key-is-live", live)


@pytest.mark.parametrize("action", ["cancel", "run-now", "retry"])
@pytest.mark.parametrize("data", [{"force": True}, [], 0, "now"])
def test_actions_refuse_unknown_fields(rest: Rest, action: str, data: Any) -> None:
    job_id = rest.make(delay_seconds=60)["id"]
    rest.post(f"jobs/{job_id}/{action}/", data, 400)
    assert rest.state(job_id) == "delayed"


# -- who may ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rights", "action", "may"),
    [
        ("produce", "cancel", True),
        ("manage", "cancel", True),
        ("consume", "cancel", False),
        ("produce", "reschedule", True),
        ("manage", "reschedule", True),
        ("consume", "reschedule", False),
        ("produce consume", "run-now", False),
        ("manage", "run-now", True),
        ("produce consume", "retry", False),
        ("manage", "retry", True),
    ],
)
def test_rights_on_the_jobs_topic_decide_who_may_change_it(
    rest_of: Callable[..., Rest], rest: Rest, rights: str, action: str, may: bool
) -> None:
    job_id = ended(rest, "dead") if action == "retry" else rest.make(delay_seconds=60)["id"]
    before = list(JobEvent.objects.filter(job_id=job_id))
    data = {"delay_seconds": 5} if action == "reschedule" else None
    problem = rest_of(rights, "other").post(f"jobs/{job_id}/{action}/", data, 200 if may else 403)
    if may:
        assert events(job_id)[-1][1] == "other"
    else:
        assert "right" in problem["detail"]
        assert list(JobEvent.objects.filter(job_id=job_id)) == before


def test_staff_change_jobs_under_their_own_name(staff_api: Callable[..., Any], rest: Rest) -> None:
    job_id = rest.make(delay_seconds=60)["id"]
    client = staff_api("delaytasks.view_job", "delaytasks.operate_job")
    Rest(client).post(f"jobs/{job_id}/run-now/")
    assert events(job_id)[-1] == ("rescheduled", client.user.username)
    Rest(staff_api("delaytasks.view_job")).post(f"jobs/{job_id}/cancel/", status=403)
    Rest(staff_api()).get(f"jobs/{job_id}/", 404)


@pytest.mark.parametrize(
    ("action", "data", "kind"),
    [("cancel", None, "not-cancelled"), ("reschedule", {"delay_seconds": 5}, "not-live"), ("retry", None, "not-dead")],
)
def test_change_checks_the_state_again(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, action: str, data: Any, kind: str
) -> None:
    job_id = held(rest)
    look = BaseView.job

    def look_and_lose(view: BaseView, *args: Any) -> Job:
        found = look(view, *args)
        leases.finish(found.pk, 1, using="default", by="x")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(BaseView, "job", look_and_lose)
        assert rest.post(f"jobs/{job_id}/{action}/", data, 409)["type"] == f"urn:delaytasks:problem:{kind}"
    assert rest.state(job_id) == "finished"
