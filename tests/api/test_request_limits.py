"""What a hostile body costs: limits by address, by values, by bytes a minute; and nothing is read from strangers."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler

from delaytasks import conf
from delaytasks.api import middleware
from delaytasks.api.fast_path import bodies
from delaytasks.api.fast_path.application import FastPath
from delaytasks.models import Job
from tests.api.rest_client import Rest
from tests.support import asgi_client

MIB = 1024 * 1024
ADD = {"command": "add", "topic": "mail.send", "id": "k", "delay": 60, "TTR": 60}


@pytest.fixture(params=["views", "fast"], autouse=True)
def _both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.api.conftest.ApiClient.fast", request.param == "fast")


@pytest.mark.parametrize(
    "unit", [b"[],", b"{},", b'{"jobs":', b"[[[],[]],"], ids=["lists", "objects", "nested", "mixed"]
)
def test_body_of_brackets_is_refused_without_being_parsed(rest: Rest, unit: bytes) -> None:
    rest.make("warm")
    body = b'{"jobs":[' + unit * (3 * MIB // len(unit))
    tracemalloc.start()
    problem = rest.post("jobs/", body, 400)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "brackets" in problem["detail"]
    assert peak < 6 * len(body), f"{peak / MIB:.0f} MiB for a body of {len(body) / MIB:.0f} MiB"


def test_body_of_commas_is_refused_without_being_parsed(rest: Rest) -> None:
    assert "commas" in rest.post("jobs/", b'{"jobs":[' + b"1," * MIB + b"1]}", 400)["detail"]


def test_bulk_of_a_thousand_ordinary_jobs_is_within_the_limits(rest: Rest) -> None:
    body = {"lines": [{"article": n, "amount": 1, "tags": ["a", "b"]} for n in range(10)]}
    jobs = [{"topic": "mail.send", "key": f"k{n}", "delay_seconds": 60, "body": body} for n in range(1000)]
    assert rest.post("jobs/", {"jobs": jobs}, 201)["created"] == 1000


@pytest.mark.parametrize("path", ["queue/", "jobs/", "topics/mail.send/reserve/", "jobs/{}/finish/"])
def test_single_request_has_128_kib_beyond_the_largest_job_body(rest: Rest, path: str) -> None:
    most = conf.get().max_body_bytes + 128 * 1024
    job_id = rest.make("other")["id"]
    response = rest.client.post(f"/api/{path.format(job_id)}", json.dumps({"x": "x" * most}).encode())
    assert response.status_code == 413
    assert f"{most:,} bytes, the limit of a request with one job" in response.content.decode()


def test_largest_job_body_fits_into_a_single_request(rest: Rest) -> None:
    made = rest.post(
        "jobs/", {"topic": "mail.send", "key": "k", "delay_seconds": 60, "body": "\N{SNOWMAN}" * 21_000}, 201
    )
    assert len(made["body"]) == 21_000


def test_bytes_a_minute_are_limited(rest: Rest, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "API_BYTES_PER_MINUTE": 2000}
    for n in range(2):
        rest.make(f"k{n}", body="x" * 700)
    refused = rest.post("jobs/", {"topic": "mail.send", "key": "k2", "delay_seconds": 0, "body": "x" * 700}, 429)
    assert refused["type"].endswith(":too-many-requests")
    assert int(rest.last.headers["Retry-After"]) >= 1
    assert Job.objects.count() == 2


# -- before the body ----------------------------------------------------------------------------


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon on the rest of a body that never comes."""
    monkeypatch.setattr(middleware, "DISCARD_SECONDS", 0.05)


def statuses_without_body(headers: dict[str, str], length: int = 4 * MIB) -> list[int]:
    """Send a request whose body never comes. Return the statuses of its answers; fail if there is none."""
    sent: list[Any] = []

    async def run() -> None:
        async def receive() -> Any:
            await asyncio.Event().wait()  # the client sends no more

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/api/jobs/", "raw_path": b"/api/jobs/", "query_string": b"", "root_path": "",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"),
                        (b"content-length", str(length).encode()),
                        *((name.encode(), value.encode()) for name, value in headers.items())],
            "client": ("127.0.0.1", 4), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        await asyncio.wait_for(FastPath(ASGIHandler())(scope, receive, send), 20)

    asyncio.run_coroutine_threadsafe(run(), asgi_client._loop()).result(30)
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert all((b"connection", b"close") in start["headers"] for start in starts), "the rest would be read"
    return [start["status"] for start in starts]


@pytest.mark.usefixtures("_quick")
def test_body_of_a_stranger_is_not_waited_for() -> None:
    assert statuses_without_body({}) == [401]
    assert statuses_without_body({"authorization": "Bearer nobody.has-this"}) == [401]


@pytest.mark.usefixtures("_quick")
def test_body_above_the_limit_is_not_waited_for(make_token: Any) -> None:
    secret = make_token()
    assert statuses_without_body({"authorization": f"Bearer {secret}"}, length=5 * MIB) == [413]


def test_unfinished_body_is_kept_in_a_file() -> None:
    async def run() -> bool:
        with bodies.Body() as body:
            for _ in range(32):
                body.add(b"x" * 32 * 1024)
            assert len(body.read()) == body.size == MIB
            return body.is_in_memory

    assert not asyncio.run(run())
