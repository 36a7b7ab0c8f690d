"""The OpenAPI document is complete, committed and correct; its page loads nothing from other sites."""

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

from delaytasks.api import urls
from delaytasks.api.schema import document
from delaytasks.api.views.base import BaseView
from tests.api.rest_client import Rest
from tests.api.schema_checks import schema_errors

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.yaml"
AGAIN = "docs/openapi.yaml is not what the code says: run `make openapi` and commit it."


@pytest.fixture
def no_cached_document() -> Iterator[None]:
    """Clear the cached document."""
    document._documents.clear()
    yield
    document._documents.clear()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document.document()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


# -- the document -------------------------------------------------------------------------------


def test_committed_document_is_current(no_cached_document: None) -> None:
    assert COMMITTED.read_text() == document.as_yaml(), AGAIN


def test_generator_warning_is_an_error(no_cached_document: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseView, "authentication_classes", [type("Unknown", (), {})])
    with GENERATOR_STATS.silence(), pytest.raises(document.GeneratorWarnings):
        document.as_yaml()


def test_document_is_openapi_3_1() -> None:
    made = document.document()
    assert made["openapi"].startswith("3.1")
    assert made["info"]["title"] == "delaytasks HTTP API"
    assert "servers" not in made
    validate_schema(made)


def test_every_url_is_described() -> None:
    def address(pattern: URLPattern) -> str:
        return "/api/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(pattern.pattern))

    json_schema = [address(pattern) for pattern in urls.urlpatterns if pattern.name != "nowhere"]
    assert sorted(document.document()["paths"]) == sorted(json_schema)


def test_every_operation_has_a_name_a_summary_and_a_description_of_its_own() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names)
    tags = {tag["name"] for tag in document.document()["tags"]}
    for _, path, operation in operations():
        assert operation["summary"], path
        assert operation["description"], path
        assert set(operation["tags"]) <= tags


def test_authenticated_operations_declare_security_and_401() -> None:
    for _, path, operation in operations():
        if path == "/api/health/":
            assert "security" not in operation
        else:
            assert operation["security"] == [{"token": []}, {"session": []}], path
            assert {"401", "429", "503"} <= operation["responses"].keys(), path


def test_every_response_and_problem_field_is_described() -> None:
    for method, path, operation in operations():
        for status, answer in operation["responses"].items():
            assert answer["description"], (method, path, status)
            assert answer["content"], (method, path, status)


def examples(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    for media_type in content.values():
        for name, example in media_type.get("examples", {}).items():
            yield name, media_type["schema"], example["value"]


def test_every_example_matches_its_schema() -> None:
    seen = 0
    for method, path, operation in operations():
        contents = [operation.get("requestBody", {}), *operation["responses"].values()]
        for name, of, value in (each for content in contents for each in examples(content.get("content", {}))):
            seen += 1
            assert not schema_errors(of, value), (method, path, name)
    assert seen > 25


def test_document_forbids_unknown_fields() -> None:
    components = document.document()["components"]["schemas"]
    for name in ("NewJob", "NewJobs", "NewJobTerms", "Reschedule", "Reason", "Reserve", "Held", "Release", "Bury"):
        assert components[name]["additionalProperties"] is False, name


def test_body_is_optional_only_where_an_empty_request_is_valid(rest: Rest) -> None:
    bodies = {operation["operationId"]: operation.get("requestBody") for _, _, operation in operations()}
    can_be_empty = {name for name, body in bodies.items() if body and not body.get("required")}
    assert can_be_empty == {
        "reserveJobs", "cancelJob", "runJobNow", "retryJob", "pauseTopic", "resumeTopic",
        "changeSchedule", "pauseSchedule", "resumeSchedule", "runSchedule",
    }  # fmt: skip
    assert rest.post("topics/mail.send/reserve/") == {"jobs": []}


def schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a part of the document, the innermost last."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from schemas_in(each)


def test_every_alternative_has_a_type() -> None:
    """Generators of typed clients make `unknown` and `Any` of an alternative that has none."""
    seen = 0
    for schema in schemas_in(document.document()):
        for alternative in schema.get("oneOf", []) + schema.get("anyOf", []):
            seen += 1
            assert {"$ref", "type"} & alternative.keys(), schema
    assert seen > 10


def test_no_number_is_cut_off_by_a_typed_client() -> None:
    """Some generators take 32 bits for an integer and for a number without a format."""
    seen = 0
    for schema in schemas_in(document.document()["components"]["schemas"]):
        for kind, wide in {"integer": "int64", "number": "double"}.items():
            if kind in schema.get("type", ()):
                seen += 1
                assert schema.get("format") == wide or schema.get("maximum", 2**63) < 2**31, schema
    assert seen > 50


@pytest.mark.parametrize("fields", [{}, {"id": "a"}, {"topic": "mail.send"}, {"id": "a", "topic": "mail.send"}])
def test_document_requires_an_id_or_a_topic_to_peek(fields: dict[str, str]) -> None:
    errors = schema_errors({"$ref": "#/components/schemas/QueueCommand"}, {"command": "peek"} | fields)
    assert bool(errors) == (not fields)


@pytest.mark.parametrize("terms", [{}, {"due_at": "2031-05-01T09:30:00Z", "delay_seconds": 5}])
def test_document_requires_exactly_one_due_time(terms: dict[str, Any]) -> None:
    job = {"topic": "mail.send", "key": "k"}
    assert schema_errors({"$ref": "#/components/schemas/NewJob"}, job | terms)
    assert not schema_errors({"$ref": "#/components/schemas/NewJob"}, job | {"delay_seconds": 5})


def test_document_has_the_limits_of_this_sites_settings(settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "MAX_DELAY_SECONDS": 60}
    components = document.document()["components"]["schemas"]
    assert components["Reschedule"]["properties"]["delay_seconds"]["maximum"] == 60


def test_document_does_not_depend_on_the_sites_generator_settings(
    no_cached_document: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = document.as_yaml()
    theirs = {
        "TITLE": "The site", "SERVERS": [{"url": "https://elsewhere"}], "SCHEMA_PATH_PREFIX": "/site", "VERSION": "9",
        "COMPONENT_SPLIT_REQUEST": True, "CAMELIZE_NAMES": True, "OAS_VERSION": "3.0.3", "SECURITY": [{"x": []}],
    }  # fmt: skip
    for name, value in theirs.items():
        monkeypatch.setattr(spectacular_settings, name, value)
    document._documents.clear()
    assert document.as_yaml() == before
    assert {name: getattr(spectacular_settings, name) for name in theirs} == theirs


def test_concurrent_generation_gives_one_document_and_keeps_the_sites_settings(no_cached_document: None) -> None:
    title = spectacular_settings.TITLE
    with ThreadPoolExecutor(4) as pool:
        made = [each["components"] for each in pool.map(lambda _: document.document(), range(4))]
    assert all(each is made[0] for each in made)
    assert title == spectacular_settings.TITLE


# -- as it is served ----------------------------------------------------------------------------


def test_served_document_is_the_committed_one(rest: Rest) -> None:
    answer = rest.client.get("/api/schema/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, document.MEDIA_TYPE)
    assert json.loads(answer.content) == yaml.safe_load(COMMITTED.read_text()), AGAIN


@pytest.mark.parametrize("path", ["schema", "docs"])
def test_document_and_page_require_authentication(api: Callable[..., Any], path: str) -> None:
    Rest(api()).get(f"{path}/", 401)


@pytest.mark.parametrize("path", ["schema", "docs"])
def test_every_authenticated_caller_may_read_document_and_page(
    make_token: Callable[..., str], api: Callable[..., Any], staff_api: Callable[..., Any], path: str
) -> None:
    for client in (api(make_token(topics={})), staff_api()):
        assert client.get(f"/api/{path}/").status_code == 200


def test_page_loads_nothing_from_other_sites(rest: Rest) -> None:
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
def test_unknown_url_is_a_problem_document(rest: Rest, api: Callable[..., Any], path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        answer = rest.client.request(method, f"/api/{path}")
        assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json"), method
        assert api().request(method, f"/api/{path}").status_code == 401


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "jobs/7/"), ("PUT", "jobs/"), ("GET", "jobs/7/cancel/"), ("POST", "topics/")]
)
def test_unsupported_method_is_a_problem_with_the_allowed_methods(rest: Rest, method: str, path: str) -> None:
    answer = rest.client.request(method, f"/api/{path}")
    assert (answer.status_code, answer.headers["Content-Type"]) == (405, "application/problem+json")
    assert answer.headers["Allow"]
