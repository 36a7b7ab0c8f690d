"""Metrics of requests to the HTTP API: a bounded number of labels, and nothing in a process that nobody scrapes."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import Client
from prometheus_client.metrics_core import Metric

from delaytasks.api import urls
from delaytasks.api.batching.batchers import FallBack
from delaytasks.api.fast_path import endpoints
from delaytasks.api.fast_path.application import ROUTES
from delaytasks.api.models import Token
from delaytasks.monitoring import prometheus, requests
from tests.support import asgi_client

QUEUE = "/api/queue/"


@pytest.fixture(autouse=True)
def _counted(_database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has been scraped, and nothing is counted yet."""
    monkeypatch.setattr(requests, "observers", [prometheus.observe_request])
    forget = prometheus._request_metrics.cache_clear
    forget()
    for metric in (prometheus.HTTP_REQUESTS, prometheus.HTTP_DURATION):
        metric.clear()
    yield
    forget()


def samples(metric: Any, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric's samples by their labels."""
    families: list[Metric] = list(metric.collect())
    return {
        tuple(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def counted() -> dict[tuple[str, ...], float]:
    """Return the number of requests by method, endpoint and status."""
    return samples(prometheus.HTTP_REQUESTS, "delaytasks_http_requests_total")


def durations() -> dict[tuple[str, ...], float]:
    """Return the number of measured durations by endpoint."""
    return samples(prometheus.HTTP_DURATION, "delaytasks_http_duration_seconds_count")


def test_requests_are_counted_by_method_endpoint_and_status(client):
    client.get("/api/health/")
    client.get("/api/jobs/17/")
    client.get("/api/jobs/18/")
    client.post(QUEUE, {}, content_type="application/json")
    assert counted() == {("GET", "health", "200"): 1, ("GET", "job", "401"): 2, ("POST", "queue", "401"): 1}
    assert durations() == {("health",): 1, ("job",): 2, ("queue",): 1}


def test_the_labels_are_bounded_whatever_is_requested():
    client = Client()
    for number in range(50):
        client.generic(f"VERB{number}", f"/api/no/such/address/{number}/")
        client.get(f"/api/topics/topic.{number}/")
    assert counted() == {("other", "nowhere", "401"): 50, ("GET", "topic", "401"): 50}


def test_a_request_that_fast_path_answers_and_one_that_it_passes_on_are_counted_once(make_token):
    headers = {"Authorization": f"Bearer {make_token()}"}
    send: Callable[..., Any] = async_to_sync(asgi_client.arequest)
    add = b'{"command":"add","topic":"order.close","id":"k","delay":60,"TTR":60,"body":{}}'
    asgi_client.clear_caches()
    assert send("POST", QUEUE, add, "application/json", headers).json()["success"]
    assert send("POST", QUEUE, b"{", "application/json", headers).status_code == 400
    assert counted() == {("POST", "queue", "200"): 1, ("POST", "queue", "400"): 1}
    assert durations() == {("queue",): 2}


@pytest.mark.parametrize("send", [asgi_client.request, None], ids=["fast-path", "views"])
def test_a_long_poll_is_counted_when_it_ends_with_the_time_that_it_waited(make_token, send, monkeypatch):
    headers = {"Authorization": f"Bearer {make_token()}"}
    seconds: list[float] = []
    monkeypatch.setattr(requests, "observers", [lambda method, endpoint, status, took: seconds.append(took)])
    path, body = "/api/topics/order.close/reserve/", b'{"wait_seconds": 0.2}'
    asgi_client.clear_caches()
    if send is None:
        answer = Client().generic("POST", path, body, content_type="application/json", headers=headers)
    else:
        answer = send("POST", path, body, "application/json", headers)
    assert answer.json() == {"jobs": []}
    assert len(seconds) == 1
    assert seconds[0] >= 0.2


def test_a_long_poll_that_fast_path_leaves_to_the_view_is_counted_from_its_beginning(make_token, monkeypatch):
    """Its token is revoked while it waits, so the view answers."""
    headers = {"Authorization": f"Bearer {make_token()}"}
    seconds: list[float] = []
    now = [1.0]

    async def wait_in_vain(*request: Any) -> None:
        now[0] += 20
        await sync_to_async(Token.objects.update)(revoked=True)
        raise FallBack

    monkeypatch.setattr(requests, "observers", [lambda method, endpoint, status, took: seconds.append(took)])
    monkeypatch.setattr(requests, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(endpoints, "_reserve", wait_in_vain)
    asgi_client.clear_caches()
    path, body = "/api/topics/order.close/reserve/", b'{"wait_seconds": 20}'
    assert asgi_client.request("POST", path, body, "application/json", headers).status_code == 401
    assert seconds == [20]


def test_fast_path_names_its_endpoints_as_the_urls_do():
    names = {str(pattern.pattern): pattern.name for pattern in urls.urlpatterns}
    for route in ROUTES:
        address = re.sub(r"\(.*?\)", "<>", route.pattern.pattern)
        assert {re.sub(r"<.*?>", "<>", known): name for known, name in names.items()}[address] == route.name


def test_a_metric_that_cannot_be_counted_disturbs_no_request(client, monkeypatch, caplog):
    monkeypatch.setattr(prometheus, "_request_metrics", lambda *labels: 1 / 0)
    assert client.get("/api/health/").status_code == 200
    assert "a request was not counted" in caplog.text


def test_a_process_that_nobody_scrapes_counts_nothing_and_does_not_import_the_library(tmp_path):
    assert run_requests(tmp_path, shared=None) == ("False []", [])


def test_a_process_that_shares_its_counters_counts_before_it_is_scraped_itself(tmp_path):
    shared = tmp_path / "counters"
    shared.mkdir()
    assert run_requests(tmp_path, shared) == ("True ['observe_request']", [])
    assert sorted(path.name.partition("_")[0] for path in shared.iterdir()) == ["counter", "histogram"]


def missing(directory: Path) -> tuple[Path, str]:
    """Return a path at which there is no directory, and the message that says so."""
    shared = directory / "missing"
    return shared, f"metrics: PROMETHEUS_MULTIPROC_DIR is {str(shared)!r}, which is not a directory: nothing is counted"


def test_a_directory_that_does_not_exist_is_logged_once_and_nothing_is_counted(tmp_path):
    shared, message = missing(tmp_path)
    assert run_requests(tmp_path, shared) == ("False []", [message])


def test_a_scrape_without_the_directory_is_refused_and_later_requests_are_not_logged(tmp_path):
    shared, message = missing(tmp_path)
    scrape = (
        "from django.test import RequestFactory\n"
        "from delaytasks.monitoring import views\n"
        "refused = views.metrics(RequestFactory().get('/metrics'))\n"
        "assert refused.status_code == 500 and b'create it' in refused.content"
    )
    assert run_requests(tmp_path, shared, first=scrape) == ("True []", [message])


def run_requests(directory: Path, shared: Path | None, *, first: str = "") -> tuple[str, list[str]]:
    """Send 200 requests to the API in a new process, after a line of code.

    Return whether the library is imported there and who counts, and the messages about metrics in the log.
    """
    code = (
        "import sys, django; django.setup()\n"
        "from django.test import Client\n"
        "from delaytasks.monitoring import requests\n"
        f"{first}\n"
        "for n in range(200): assert Client().get(f'/api/no/{n}/', SERVER_NAME='localhost').status_code == 401\n"
        "print('prometheus_client' in sys.modules, [each.__name__ for each in requests.observers])"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "VAR_DIR": str(directory)}
    env.pop(requests.SHARED, None)
    if shared is not None:
        env[requests.SHARED] = str(shared)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" delaytasks: ")[2] for line in done.stderr.splitlines()]
    return done.stdout.splitlines()[-1], [line for line in lines if line.startswith("metrics: ")]
