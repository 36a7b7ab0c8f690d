"""A client of the REST API. Each response must conform to the OpenAPI document."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from django.db import connection
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext

from delaytasks import topics
from delaytasks.models import JobEvent
from tests.api.schema_checks import check_accepted, check_response

T0 = datetime(2030, 1, 1, tzinfo=UTC)  # what db_clock begins with
TOPICS = {"mail.send": {"ttr": 30, "max_attempts": 3}, "mail.print": {}, "sms.send": {}}
NO_JOB = 9_000_000_000


def at(seconds: float) -> str:
    """Format the time `seconds` after the start of db_clock as in responses."""
    return (T0 + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Rest:
    """rest.get("jobs/7/") returns the data of a 200, rest.post("jobs/7/finish/", {...}, status=409) of a problem."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.last: HttpResponse

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        address = path if path.startswith("/") else f"/api/{path}"
        return self._read("GET", address, self.client.get(address, **query), status)

    def post(self, path: str, data: Any = None, status: int = 200, **headers: str) -> Any:
        address = f"/api/{path}"
        read = self._read("POST", address, self.client.post(address, data, **headers), status)
        if status < 400 and not isinstance(data, bytes):
            check_accepted("POST", address, data)
        return read

    def patch(self, path: str, data: Any, status: int = 200) -> Any:
        address = f"/api/{path}"
        read = self._read("PATCH", address, self.client.request("PATCH", address, data), status)
        if status < 400:
            check_accepted("PATCH", address, data)
        return read

    def delete(self, path: str, status: int = 200) -> Any:
        return self._read("DELETE", f"/api/{path}", self.client.request("DELETE", f"/api/{path}"), status)

    def count_queries(self, ask: Callable[[], Any]) -> int:
        """Return the number of queries that `ask` makes, whatever is cached: topics for a second, tokens for five."""
        self.get("jobs/")  # writes down that the token is used, which is done once a minute
        topics.clear_cache()
        with CaptureQueriesContext(connection) as queries:
            ask()
        return sum("delaytasks_api" not in query["sql"] for query in queries)

    def _read(self, method: str, address: str, answer: HttpResponse, status: int) -> Any:
        self.last = answer
        assert answer.status_code == status, answer.content
        check_response(method, unquote(address.partition("?")[0]), answer)
        problem = status >= 400
        assert answer.headers["Content-Type"] == ("application/problem+json" if problem else "application/json")
        data = answer.json()  # type: ignore[attr-defined]
        if problem:
            assert data["status"] == status
            assert data["type"].startswith("urn:delaytasks:problem:")
            assert data["title"]
            assert data["detail"]
        return data

    def make(self, key: str = "mail:1", **terms: Any) -> dict[str, Any]:
        """A new job, due at once unless the terms say otherwise."""
        if "due_at" not in terms:
            terms = {"delay_seconds": 0} | terms
        made: dict[str, Any] = self.post("jobs/", {"topic": "mail.send", "key": key} | terms, 201)
        return made

    def take(self, topic: str = "mail.send", **terms: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.post(f"topics/{topic}/reserve/", terms)["jobs"]
        return found

    def state(self, job_id: int) -> str:
        found: str = self.get(f"jobs/{job_id}/")["state"]
        return found


def fields(problem: dict[str, Any]) -> list[str]:
    """Return the fields named by a problem."""
    return [each["field"] for each in problem["errors"]]


def events(job_id: int) -> list[tuple[str, str]]:
    """Return (outcome, actor) of a job's events."""
    found = JobEvent.objects.filter(job_id=job_id).order_by("id").values_list("outcome", "actor")
    return [(outcome, actor.partition(" (token ")[0]) for outcome, actor in found]
