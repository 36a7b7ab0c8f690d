"""Whoever guesses the number or the key of somebody else's job learns nothing, nor from how long the answer takes."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import schedule
from delaytasks.api.models import Grant
from tests.api.test_grants_table import DATA, EXPECTED, NO_JOB, NO_KEY, OTHER, call, without_names

SECRET = "sms.secret"
ON_A_JOB = ["job", "cancel", "reschedule", "run-now", "retry", "finish", "release", "touch", "bury"]
BY_KEY = ["finish", "touch", "release", "bury", "delete", "peek"]


@pytest.fixture
def stranger(rest_topics: None, make_token: Callable, api: Callable) -> Any:
    """A token with every right, on another topic than the job's."""
    return api(make_token(topics={OTHER: "produce consume manage"}))


def asked(client: Any, method: str, name: str, job_id: int, key: str) -> tuple[Any, list[str]]:
    """The answer, and the shape of each query that it took."""
    call(client, method, name, job_id, key)  # what is noted once a minute is noted now
    with CaptureQueriesContext(connection) as captured:
        answer = call(client, method, name, job_id, key)
    return answer, [query["sql"].split("WHERE")[0] for query in captured.captured_queries]


@pytest.mark.parametrize(
    ("method", "name"),
    [*(("GET" if name == "job" else "POST", name) for name in ON_A_JOB), *(("queue", name) for name in BY_KEY)],
)
def test_a_job_of_another_topic_costs_the_same_queries_as_one_that_does_not_exist(
    stranger: Any, settings: Any, method: str, name: str
) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {**settings.DELAYTASKS["TOPICS"], SECRET: {}}}
    job = schedule(SECRET, key="payment:1", delay=3600, body={"big": "x" * 10_000})
    theirs, costs = asked(stranger, method, name, job.pk, job.key)
    nobodys, costs_nothing = asked(stranger, method, name, NO_JOB, NO_KEY)

    assert theirs.status_code == nobodys.status_code == (200 if method == "queue" else 404)
    assert without_names(theirs, job) == without_names(nobodys, job, NO_JOB, NO_KEY)
    assert costs == costs_nothing


def test_every_address_of_a_job_is_asked() -> None:
    rows = {(method, name) for method, name in EXPECTED if EXPECTED[method, name]["elsewhere"] in ("404", "none")}
    assert rows - {("GET", "nowhere")} == {
        *(("GET" if name == "job" else "POST", name) for name in ON_A_JOB),
        *(("queue", name) for name in BY_KEY),
    }
    assert set(DATA) - set(ON_A_JOB) == {"jobs", "add", "pop"}


def test_a_grant_that_is_taken_away_leaves_nothing_behind(
    make_token: Callable, api: Callable, rest_topics: None
) -> None:
    """From the next request on, the job is one that does not exist."""
    job = schedule(OTHER, key="sms:1", delay=3600)
    client = api(make_token(topics={OTHER: "produce"}))
    assert call(client, "GET", "job", job.pk, job.key).status_code == 200
    Grant.objects.all().delete()
    theirs, nobodys = (call(client, "GET", "job", number, NO_KEY) for number in (job.pk, NO_JOB))
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.content == nobodys.content
