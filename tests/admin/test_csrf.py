"""Nothing is changed by a form of another site, and nothing by an address alone: for every address there is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client, RequestFactory
from django.utils import timezone

from delaytasks import bulk
from delaytasks.api import tokens
from delaytasks.models import BulkChange, Job, Topic
from delaytasks.states import State
from project.shop.models import Customer, Order, Product

from .addresses import every, filled, stored
from .conftest import TOPIC, make_job

CSRF, IDLE = "x" * 32, "test.idle"
# What any of the forms would take: the first page asks for one thing, the next for another.
FIELDS = {
    "index": "0", "amount": "1", "unit": "hours", "reason": "they paid", "post": "yes", "what": "cancel", "shown": "9",
    "confirmed": "1", "product": "1", "quantity": "1", "keep": "120", "language": "zh-hans", "username": "u",
    "password": "p",
}  # fmt: skip


@pytest.fixture(autouse=True)
def rows(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something of everything, so that there would be something to change."""
    monkeypatch.setattr(bulk, "send", lambda pk, using: None)
    jobs = [make_job("order:1"), make_job("order:2", State.DEAD)]
    bulk.start("cancel", [job.pk for job in jobs], by="anna", reason="why", wish={"topics": {TOPIC: 2}})
    tokens.make("mailer", {"produce": ["mail.*"]}, name="note")
    Group.objects.create(name="finance")
    Topic.objects.create(name=IDLE)
    Product.objects.create(pk=1, name="Tea", price=1, stock=5)
    customer = Customer.objects.create(name="Ada", email="ada@shop.example")
    Order.objects.create(pk=1, customer=customer, pay_by=timezone.now())


@pytest.fixture
def browser() -> Client:
    """Of a superuser whose cookies go along with whatever another site makes it send."""
    user = User.objects.create_superuser("root", password="x")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    client.cookies["csrftoken"] = CSRF
    return client


ROUTES = sorted(set(every()))


def test_there_are_as_many_addresses_as_one_would_think() -> None:
    assert len(ROUTES) > 90
    for start in ("/admin/delaytasks/job/", "/admin/delaytasks_api/token/", "/orders/", "/i18n/setlang/", "/api/jobs/"):
        assert start in ROUTES


@contextmanager
def writes() -> Iterator[list[str]]:
    """The statements that change a row, but for the sessions': looking at a page may begin one."""
    found: list[str] = []

    def note(execute: Any, sql: str, *args: Any) -> Any:
        if sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")) and "django_session" not in sql:
            found.append(sql)
        return execute(sql, *args)

    with connection.execute_wrapper(note):
        yield found


def asked(route: str) -> list[str]:
    return filled(route, topic=TOPIC, job_id=Job.objects.values_list("pk", flat=True).first())


def test_a_form_of_another_site_is_refused_at_every_address(browser: Client) -> None:
    before, sessions = stored(), Session.objects.count()
    for address in [address for route in ROUTES for address in asked(route)]:
        for headers in ({"Origin": "http://evil.example"}, {}):
            with writes() as found:
                answer = browser.post(address, FIELDS, headers=headers)
            assert answer.status_code == 403 or address == "/api/health/", address
            assert found == [], address
    assert stored() == before
    assert Session.objects.count() == sessions, "logged out, or in"


def test_no_address_changes_anything_by_being_looked_at(browser: Client) -> None:
    before, sessions = stored(), Session.objects.count()
    act = FIELDS | {"action": "cancel_jobs", "_selected_action": Job.objects.first().pk, "csrfmiddlewaretoken": CSRF}
    for address in [address for route in ROUTES for address in asked(route)]:
        for query in ({}, act) if address.startswith("/admin/delaytasks") else (act,):
            with writes() as found:
                answer = browser.get(address, query)
            assert answer.status_code < 500, address
            assert found == [], address
    assert stored() == before
    assert Session.objects.count() == sessions, "logged out, or in"


def actions() -> list[tuple[str, str, str]]:
    """(app, model, action) of each list in the admin that has actions."""
    request = RequestFactory().get("/")
    request.user = User(is_active=True, is_superuser=True)
    return [
        (model._meta.app_label, str(model._meta.model_name), name)
        for model, model_admin in admin.site._registry.items()
        for name in model_admin.get_actions(request)
    ]


def change_list(browser: Client, app: str, model: str, action: str, **fields: str) -> Any:
    keys = list(apps.get_model(app, model)._base_manager.values_list("pk", flat=True))
    if (model, action) == ("topic", "delete_selected"):
        keys = [IDLE]  # one that has a handler stays
    return browser.post(f"/admin/{app}/{model}/", FIELDS | {"action": action, "_selected_action": keys} | fields)


def test_there_are_actions(db: None) -> None:
    assert {("delaytasks", "job", "cancel_jobs"), ("delaytasks", "topic", "pause"),
            ("delaytasks_api", "token", "revoke")} <= set(actions())  # fmt: skip


@pytest.mark.parametrize(("app", "model", "action"), actions(), ids=lambda part: part)
def test_every_action_needs_the_token_and_works_with_it(browser: Client, app: str, model: str, action: str) -> None:
    Topic.objects.update(paused=action == "resume")
    if model == "customer":
        Order.objects.all().delete()  # who has one stays
    before = stored()
    assert change_list(browser, app, model, action).status_code == 403
    assert stored() == before
    assert change_list(browser, app, model, action, csrfmiddlewaretoken=CSRF).status_code in (200, 302)
    assert stored() != before


@pytest.mark.parametrize("verb", ["stop", "go-on"])
def test_a_bulk_change_is_stopped_and_goes_on_by_a_form_of_ours_alone(browser: Client, verb: str) -> None:
    BulkChange.objects.update(state="waiting" if verb == "stop" else "stopped")
    address, before = f"/admin/delaytasks/bulkchange/{BulkChange.objects.get().pk}/{verb}/", stored()
    assert browser.get(address).status_code == 405
    assert browser.post(address).status_code == 403
    assert stored() == before
    assert browser.post(address, {"csrfmiddlewaretoken": CSRF}).status_code == 302
    assert stored() != before


def test_a_token_in_an_address_is_none(browser: Client) -> None:
    for name in ("csrfmiddlewaretoken", "csrftoken", "X-CSRFToken"):
        assert browser.post(f"/admin/delaytasks/job/?{name}={CSRF}", FIELDS).status_code == 403
        assert browser.post(f"/api/jobs/?{name}={CSRF}", "{}", content_type="application/json").status_code == 403


@pytest.mark.parametrize("content_type", ["multipart/form-data", "application/x-www-form-urlencoded", "text/plain"])
def test_the_api_takes_its_token_from_the_header_and_never_reads_a_form(browser: Client, content_type: str) -> None:
    """A form is what another site can make a browser send."""
    body = f"csrfmiddlewaretoken={CSRF}"
    for address in ("/api/jobs/", "/api/queue/"):
        assert browser.post(address, body, content_type=content_type).status_code == 403
        answer = browser.post(address, body, content_type=content_type, headers={"X-CSRFToken": CSRF})
        assert answer.status_code == 415


def test_a_language_is_chosen_by_a_form_of_ours_alone(browser: Client) -> None:
    assert "django_language" not in browser.post("/i18n/setlang/", FIELDS).cookies
    assert "django_language" not in browser.get("/i18n/setlang/", FIELDS).cookies
    chosen = browser.post("/i18n/setlang/", FIELDS | {"csrfmiddlewaretoken": CSRF, "next": "https://evil.example/"})
    assert chosen.cookies["django_language"].value == "zh-hans"
    assert chosen["Location"] == "/"
