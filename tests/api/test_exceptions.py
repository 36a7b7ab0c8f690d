"""Problem documents (RFC 9457)."""

from typing import Any

import pytest
from django.db import InternalError, connection, transaction
from rest_framework import exceptions as drf

from delaytasks import exceptions
from delaytasks.api import exceptions as problems
from delaytasks.jobs import audit_log
from delaytasks.models import AuditEntry

pytestmark = pytest.mark.urls("tests.api.urls_for_permissions")


@pytest.mark.parametrize(
    ("what", "status", "kind"),
    [
        ("operational", 503, "unavailable"),
        ("interface", 503, "unavailable"),
        ("mirror", 503, "unavailable"),
        ("key-is-live", 409, "key-is-live"),
        ("lease-lost", 409, "lease-lost"),
        ("naive", 400, "naive-datetime"),
        ("body", 413, "body-too-large"),
        ("unknown-topic", 400, "unknown-topic"),
        ("404", 404, "not-found"),
        ("conflict", 409, "not-cancelled"),
    ],
)
def test_engine_exceptions_become_problem_documents(
    what: str, status: int, kind: str, make_token: Any, api: Any
) -> None:
    answer = api(make_token()).get(f"/raise/{what}/")
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert document["type"] == f"urn:delaytasks:problem:{kind}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]


def test_unavailable_response_has_retry_after(make_token: Any, api: Any, caplog: Any) -> None:
    answer = api(make_token()).get("/raise/operational/")
    assert answer.headers["Retry-After"] == "5"
    assert "server closed" not in answer.content.decode()
    assert "server closed" in caplog.text


def test_unknown_topic_error_names_no_other_topic(make_token: Any, api: Any) -> None:
    assert "secret" not in api(make_token()).get("/raise/unknown-topic/").content.decode()


def test_every_404_has_the_same_content(make_token: Any, api: Any) -> None:
    assert "nobody is told" not in api(make_token()).get("/raise/404/").content.decode()


def test_problem_raised_by_a_view_has_its_extension_members(make_token: Any, api: Any) -> None:
    document = api(make_token()).get("/raise/conflict/").json()
    assert document["result"] == "running"
    assert document["detail"] == "It is running."


def test_unexpected_exception_is_reported_to_django(make_token: Any, api: Any) -> None:
    client = api(make_token())
    with pytest.raises(ZeroDivisionError):
        client.get("/raise/bug/")
    client.client.raise_request_exception = False
    assert client.get("/raise/bug/").status_code == 500


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "FROBNICATE"])
def test_unsupported_method_is_refused(method: str, make_token: Any, api: Any) -> None:
    answer = api(make_token()).request(method, "/probe/")
    assert answer.status_code == 405
    assert answer.json()["type"].endswith("method-not-allowed")
    assert answer.headers["Allow"] == "GET, POST, HEAD"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_another_content_type_is_refused(content_type: str, make_token: Any, api: Any) -> None:
    answer = api(make_token()).post("/probe/", b'{"a": 1}', **{"Content-Type": content_type})
    assert answer.status_code == 415


def test_response_is_json_whatever_accept_says(make_token: Any, api: Any) -> None:
    client = api(make_token())
    for asked in ("text/html", "application/problem+json", "nonsense", "image/*;q=x"):
        assert client.request("GET", "/probe/?format=xml", Accept=asked).headers["Content-Type"] == "application/json"


def test_responses_are_not_cacheable(make_token: Any, api: Any) -> None:
    assert api(make_token()).get("/probe/").headers["Cache-Control"] == "no-store"


# Which fields are wrong


def errors(client: Any, data: Any) -> dict[str, str]:
    answer = client.post("/validated/", data)
    assert answer.status_code == 400, answer.content
    return {each["field"]: each["detail"] for each in answer.json()["errors"]}


def test_each_invalid_field_has_its_path(make_token: Any, api: Any) -> None:
    good = {"due_at": "2030-01-01T00:00:00Z", "count": 1}
    jobs = [good, {"due_at": "soon", "count": 0}, good | {"tags": ["a", "abcd"]}, good | {"count": 13}]
    found = errors(api(make_token()), {"jobs": jobs})
    assert set(found) == {"jobs[1].due_at", "jobs[1].count", "jobs[2].tags[1]", "jobs[3]"}
    assert found["jobs[3]"] == "Not thirteen."


def test_error_of_the_whole_request_has_an_empty_path(make_token: Any, api: Any) -> None:
    assert set(errors(api(make_token()), [])) == {""}


def test_detail_names_the_first_fields_and_counts_the_others(make_token: Any, api: Any) -> None:
    detail = api(make_token()).post("/validated/", {"jobs": [{}, {}, {}]}).json()["detail"]
    assert detail.startswith("jobs[0].due_at: ")
    assert detail.endswith("; and 3 more")


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("No.", [("", "No.")]),
        (["No.", "Never."], [("", "No."), ("", "Never.")]),
        ({"a": {"b": ["No."]}}, [("a.b", "No.")]),
        ({"a": {0: ["No."]}}, [("a[0]", "No.")]),
        ({"a": [{}, {"non_field_errors": ["No."]}]}, [("a[1]", "No.")]),
    ],
)
def test_nested_errors_have_paths(detail: Any, expected: Any) -> None:
    assert list(problems.flatten(drf.ValidationError(detail).detail)) == expected


def below(cls: type) -> list[type]:
    return [each for sub in cls.__subclasses__() for each in (sub, *below(sub)) if sub.__module__ == cls.__module__]


def test_every_engine_exception_is_mapped_to_a_problem() -> None:
    found = {cls.__name__: problems.classify(cls()) for cls in below(exceptions.DelaytasksError)}
    found.pop("TransactionLeftOpen", None)  # of a handler's own making: no request runs one
    assert all(problem is not None and 400 <= problem.status < 600 for problem in found.values()), found
    assert found["LeaseLost"].status == 409


@pytest.mark.parametrize("cls", below(exceptions.DelaytasksError))
def test_title_of_a_problem_is_one_sentence_and_says_nothing_of_python(cls: type[Exception]) -> None:
    problem = problems.classify(cls("detail"))
    if problem is not None and problem.kind != "unavailable":
        assert problem.title == str(cls())  # the exception's default message


@pytest.mark.only_on("postgresql")
def test_a_database_that_takes_no_changes_is_unavailable() -> None:
    """As a standby is, to which the address leads for a while after a failover."""
    with pytest.raises(InternalError) as refused, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        AuditEntry.objects.bulk_create([audit_log.entry("job.cancelled", "php", "job 7")])
    problem = problems.classify(refused.value)
    assert problem is not None
    assert (problem.status, problem.headers) == (503, {"Retry-After": "5"})


def test_another_internal_error_of_the_database_is_unexpected() -> None:
    assert problems.classify(InternalError("cache lookup failed")) is None
