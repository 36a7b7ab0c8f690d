"""Guessing the id or key of a job of a hidden topic reveals nothing, not even by timing."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import schedule
from delaytasks.api.models import Grant
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from tests.api.test_permission_table import DATA, EXPECTED, NO_JOB, NO_KEY, OTHER, call, without_names

SECRET = "sms.secret"
ON_A_JOB = ["job", "cancel", "reschedule", "run-now", "retry", "finish", "release", "touch", "bury"]
ON_A_SCHEDULE = [
    ("GET", "schedule"), ("PATCH", "schedule"), ("DELETE", "schedule"), ("GET", "next-runs"),
    *(("POST", name) for name in ("pause-schedule", "resume-schedule", "run-schedule", "backfill")),
]  # fmt: skip
BY_KEY = ["finish", "touch", "release", "bury", "delete", "peek"]


@pytest.fixture
def stranger(rest_topics: None, make_token: Callable, api: Callable) -> Any:
    """A client with every right on another topic than the job's."""
    return api(make_token(topics={OTHER: "produce consume manage"}))


def response_and_queries(client: Any, method: str, name: str, job_id: int, key: str) -> tuple[Any, list[str]]:
    """Return the response, and the normalized SQL of each query."""
    call(client, method, name, job_id, key)  # what is noted once a minute is noted now
    with CaptureQueriesContext(connection) as captured:
        answer = call(client, method, name, job_id, key)
    return answer, [query["sql"].split("WHERE")[0] for query in captured.captured_queries]


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("method", "name"),
    [*(("GET" if name == "job" else "POST", name) for name in ON_A_JOB), *(("queue", name) for name in BY_KEY)],
)
def test_job_of_a_hidden_topic_costs_the_same_queries_as_a_missing_job(
    stranger: Any, settings: Any, method: str, name: str
) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {**settings.DELAYTASKS["TOPICS"], SECRET: {}}}
    job = schedule(SECRET, key="payment:1", delay=3600, body={"big": "x" * 10_000})
    theirs, costs = response_and_queries(stranger, method, name, job.pk, job.key)
    nobodys, costs_nothing = response_and_queries(stranger, method, name, NO_JOB, NO_KEY)

    assert theirs.status_code == nobodys.status_code == (200 if method == "queue" else 404)
    assert without_names(theirs, job) == without_names(nobodys, job, NO_JOB, NO_KEY)
    assert costs == costs_nothing


def test_every_url_of_a_job_is_tested() -> None:
    rows = {(method, name) for method, name in EXPECTED if EXPECTED[method, name]["elsewhere"] in ("404", "none")}
    assert rows - {("GET", "nowhere")} == {
        *(("GET" if name == "job" else "POST", name) for name in ON_A_JOB),
        *(("queue", name) for name in BY_KEY),
        *ON_A_SCHEDULE,
    }
    assert set(DATA) - set(ON_A_JOB) == {"jobs", "add", "pop", "schedules", "backfill"}


@pytest.mark.on_both
@pytest.mark.parametrize(("method", "name"), ON_A_SCHEDULE)
def test_schedule_of_a_hidden_topic_costs_the_same_queries_as_a_missing_one(
    stranger: Any, settings: Any, method: str, name: str
) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {**settings.DELAYTASKS["TOPICS"], SECRET: {}}}
    row = schedules.define(Definition("payment.check", SECRET, every=600, body={"big": "x" * 10_000}))
    theirs, costs = response_and_queries(stranger, method, name, 0, row.name)
    nobodys, costs_nothing = response_and_queries(stranger, method, name, 0, NO_KEY)

    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.content.replace(row.name.encode(), b"?") == nobodys.content.replace(NO_KEY.encode(), b"?")
    assert costs == costs_nothing


def test_removed_grant_hides_the_job_at_once(make_token: Callable, api: Callable, rest_topics: None) -> None:
    """From the next request on, the job is answered like a missing one."""
    job = schedule(OTHER, key="sms:1", delay=3600)
    client = api(make_token(topics={OTHER: "produce"}))
    assert call(client, "GET", "job", job.pk, job.key).status_code == 200
    Grant.objects.all().delete()
    theirs, nobodys = (call(client, "GET", "job", number, NO_KEY) for number in (job.pk, NO_JOB))
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.content == nobodys.content
