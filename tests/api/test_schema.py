"""The OpenAPI document: complete, committed, true; and its page, which asks nobody else."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.staticfiles import finders
from django.urls import URLPattern
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.validation import validate_schema

from delaytasks.api import schema, urls
from delaytasks.api.base import BaseView
from tests.api.documented import mistakes
from tests.api.rest_client import Rest

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.yaml"
AGAIN = "docs/openapi.yaml is not what the code says: run `make openapi` and commit it."


@pytest.fixture
def afresh() -> Iterator[None]:
    """The document is made anew."""
    schema._documents.clear()
    yield
    schema._documents.clear()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema.document()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


# -- the document -------------------------------------------------------------------------------


def test_what_is_committed_is_what_the_code_says(afresh: None) -> None:
    assert COMMITTED.read_text() == schema.as_yaml(), AGAIN


def test_a_warning_of_the_generator_is_an_error(afresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseView, "authentication_classes", [type("Unknown", (), {})])
    with GENERATOR_STATS.silence(), pytest.raises(schema.Problems):
        schema.as_yaml()


def test_it_is_openapi_3_1() -> None:
    made = schema.document()
    assert made["openapi"].startswith("3.1")
    assert made["info"]["title"] == "delaytasks HTTP API"
    assert "servers" not in made
    validate_schema(made)


def test_every_address_is_described() -> None:
    def address(pattern: URLPattern) -> str:
        return "/api/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(pattern.pattern))

    described = [address(pattern) for pattern in urls.urlpatterns if pattern.name != "nowhere"]
    assert sorted(schema.document()["paths"]) == sorted(described)


def test_every_operation_has_a_name_a_summary_and_a_description_of_its_own() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names)
    tags = {tag["name"] for tag in schema.document()["tags"]}
    for _, path, operation in operations():
        assert operation["summary"], path
        assert operation["description"], path
        assert set(operation["tags"]) <= tags


def test_whatever_needs_a_caller_says_so_and_what_becomes_of_nobody() -> None:
    for _, path, operation in operations():
        if path == "/api/health/":
            assert "security" not in operation
        else:
            assert operation["security"] == [{"token": []}, {"session": []}], path
            assert {"401", "429", "503"} <= operation["responses"].keys(), path


def test_every_answer_and_every_field_of_a_problem_is_described() -> None:
    for method, path, operation in operations():
        for status, answer in operation["responses"].items():
            assert answer["description"], (method, path, status)
            assert answer["content"], (method, path, status)


def examples(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    for media_type in content.values():
        for name, example in media_type.get("examples", {}).items():
            yield name, media_type["schema"], example["value"]


def test_every_example_is_what_its_schema_says() -> None:
    seen = 0
    for method, path, operation in operations():
        contents = [operation.get("requestBody", {}), *operation["responses"].values()]
        for name, of, value in (each for content in contents for each in examples(content.get("content", {}))):
            seen += 1
            assert not mistakes(of, value), (method, path, name)
    assert seen > 25


def test_every_request_refuses_unknown_fields_in_the_document_too() -> None:
    components = schema.document()["components"]["schemas"]
    for name in ("NewJob", "NewJobs", "NewJobTerms", "Reschedule", "Reason", "Reserve", "Held", "Release", "Bury"):
        assert components[name]["additionalProperties"] is False, name


def test_only_where_a_request_can_be_empty_its_body_can_be_left_out(rest: Rest) -> None:
    bodies = {operation["operationId"]: operation.get("requestBody") for _, _, operation in operations()}
    can_be_empty = {name for name, body in bodies.items() if body and not body.get("required")}
    assert can_be_empty == {"reserveJobs", "cancelJob", "runJobNow", "retryJob", "pauseTopic", "resumeTopic"}
    assert rest.post("topics/mail.send/reserve/") == {"jobs": []}


@pytest.mark.parametrize("terms", [{}, {"due_at": "2031-05-01T09:30:00Z", "delay_seconds": 5}])
def test_exactly_one_due_time_is_asked_for_in_the_document_too(terms: dict[str, Any]) -> None:
    job = {"topic": "mail.send", "key": "k"}
    assert mistakes({"$ref": "#/components/schemas/NewJob"}, job | terms)
    assert not mistakes({"$ref": "#/components/schemas/NewJob"}, job | {"delay_seconds": 5})


def test_limits_that_settings_decide_are_those_of_this_site(settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "MAX_DELAY_SECONDS": 60}
    components = schema.document()["components"]["schemas"]
    assert components["Reschedule"]["properties"]["delay_seconds"]["maximum"] == 60


def test_it_depends_on_nothing_that_the_site_says_to_the_generator(
    afresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = schema.as_yaml()
    theirs = {
        "TITLE": "The site", "SERVERS": [{"url": "https://elsewhere"}], "SCHEMA_PATH_PREFIX": "/site", "VERSION": "9",
        "COMPONENT_SPLIT_REQUEST": True, "CAMELIZE_NAMES": True, "OAS_VERSION": "3.0.3", "SECURITY": [{"x": []}],
    }  # fmt: skip
    for name, value in theirs.items():
        monkeypatch.setattr(spectacular_settings, name, value)
    schema._documents.clear()
    assert schema.as_yaml() == before
    assert {name: getattr(spectacular_settings, name) for name in theirs} == theirs


def test_two_who_ask_at_once_get_the_same_and_leave_the_sites_settings_alone(afresh: None) -> None:
    title = spectacular_settings.TITLE
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: schema.document(), range(4)))
    assert all(each is made[0] for each in made)
    assert title == spectacular_settings.TITLE


# -- as it is served ----------------------------------------------------------------------------


def test_it_is_served_as_it_is_committed(rest: Rest) -> None:
    answer = rest.client.get("/api/schema/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, schema.MEDIA_TYPE)
    assert json.loads(answer.content) == yaml.safe_load(COMMITTED.read_text()), AGAIN


@pytest.mark.parametrize("path", ["schema", "docs"])
def test_both_need_a_caller(api: Callable[..., Any], path: str) -> None:
    Rest(api()).get(f"{path}/", 401)


@pytest.mark.parametrize("path", ["schema", "docs"])
def test_whoever_is_known_may_read_them(
    make_token: Callable[..., str], api: Callable[..., Any], staff_api: Callable[..., Any], path: str
) -> None:
    for client in (api(make_token(topics={})), staff_api()):
        assert client.get(f"/api/{path}/").status_code == 200


def test_the_page_asks_no_other_site_for_anything(rest: Rest) -> None:
    answer = rest.client.get("/api/docs/")
    page = answer.content.decode()
    assert answer.headers["Content-Type"].startswith("text/html")
    assert not re.search(r"(https?:)?//\w", page)
    assert '"validatorUrl": null' in page
    assert 'url: "/api/schema/"' in page
    assert "delaytasks HTTP API" in page
    files = re.findall(r'(?:src|href)="/static/([^"]+)"', page)
    assert len(files) == len(re.findall(r"(?:src|href)=", page)) == 4
    assert all(finders.find(file) for file in files)


# -- everywhere else ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "jobs", "job/", "jobs/7/explode/", "jobs/x/", "topics/a b/", "v2/jobs/", "%00"])
def test_any_other_address_is_a_problem_and_not_a_page(rest: Rest, api: Callable[..., Any], path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        answer = rest.client.request(method, f"/api/{path}")
        assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json"), method
        assert api().request(method, f"/api/{path}").status_code == 401


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "jobs/7/"), ("PUT", "jobs/"), ("GET", "jobs/7/cancel/"), ("POST", "topics/")]
)
def test_another_method_is_a_problem_that_says_which_there_are(rest: Rest, method: str, path: str) -> None:
    answer = rest.client.request(method, f"/api/{path}")
    assert (answer.status_code, answer.headers["Content-Type"]) == (405, "application/problem+json")
    assert answer.headers["Allow"]
