"""For every URL: changes require a CSRF token, and GET requests change nothing."""

import datetime
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

from delaytasks.api.access import tokens
from delaytasks.api.access.refusals import REFUSED
from delaytasks.bulk import changes
from delaytasks.models import AuditEntry, BulkChange, CalendarDay, Job, Schedule, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.states import State
from project.shop.models import Cart, Customer, Device, Lesson, Order, Product, Seller

from .all_urls import every, filled, stored
from .conftest import TOPIC, make_job

CSRF, IDLE = "x" * 32, "test.idle"
LOGGING = 'INSERT INTO "delaytasks_auditentry"'
# Fields for all forms: each page takes what it needs.
FIELDS = {
    "index": "0", "amount": "1", "unit": "hours", "reason": "they paid", "post": "yes", "what": "cancel", "shown": "9",
    "confirmed": "1", "product": "1", "quantity": "1", "keep": "120", "language": "zh-hans", "username": "u",
    "password": "p", "first_at": "2029-12-30T00:00", "last_at": "2029-12-31T12:00",
}  # fmt: skip


@pytest.fixture(autouse=True)
def rows(no_worker: None) -> None:
    """A row of each kind, so that changes would be visible."""
    jobs = [make_job("order:1"), make_job("order:2", State.DEAD)]
    changes.start("cancel", [job.pk for job in jobs], by="anna", reason="why", selection={"topics": {TOPIC: 2}})
    tokens.create("mailer", {"produce": ["mail.*"]}, name="note")
    Group.objects.create(name="finance")
    Topic.objects.create(name=IDLE)
    CalendarDay.objects.create(calendar="office", day=datetime.date(2030, 1, 2))
    schedules.define(Definition(name="report", topic=TOPIC, cron="30 2 * * *", tz="Europe/Berlin"))
    tea = Product.objects.create(pk=1, name="Tea", price=1, stock=5)
    customer = Customer.objects.create(name="Ada", email="ada@shop.example")
    Order.objects.create(pk=1, customer=customer, pay_by=timezone.now())
    Cart.objects.create(customer=customer, product=tea)
    Lesson.objects.create(title="Brewing tea", starts_at=timezone.now())
    Seller.objects.create(name="Cups & Co", email="cups@shop.example")
    Device.objects.create(name="kettle", address="http://127.0.0.1/", command="boil")


@pytest.fixture
def browser() -> Client:
    """A client with the cookies of a superuser and CSRF checks."""
    user = User.objects.create_superuser("root", password="x")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    client.cookies["csrftoken"] = CSRF
    return client


ROUTES = sorted(set(every()))


def test_the_list_of_urls_is_complete() -> None:
    assert len(ROUTES) > 90
    for start in ("/admin/delaytasks/job/", "/admin/delaytasks_api/token/", "/orders/", "/i18n/setlang/", "/api/jobs/"):
        assert start in ROUTES


@contextmanager
def writes() -> Iterator[list[str]]:
    """Collect the statements that change rows, except sessions: a GET request may start one."""
    found: list[str] = []

    def record(execute: Any, sql: str, *args: Any) -> Any:
        if sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")) and "django_session" not in sql:
            found.append(sql)
        return execute(sql, *args)

    with connection.execute_wrapper(record):
        yield found


def urls_of(route: str) -> list[str]:
    return filled(route, topic=TOPIC, job_id=Job.objects.values_list("pk", flat=True).first())


def test_every_url_requires_a_csrf_token(browser: Client) -> None:
    """The API records a refused request in the audit log: that is the only change."""
    before, sessions = stored(), Session.objects.count()
    logged = set(AuditEntry.objects.values_list("pk", flat=True))
    for address in [address for route in ROUTES for address in urls_of(route)]:
        for headers in ({"Origin": "http://evil.example"}, {}):
            with writes() as found:
                answer = browser.post(address, FIELDS, headers=headers)
            assert answer.status_code == 403 or address == "/api/health/", address
            is_logged = address.startswith("/api/")
            assert [sql for sql in found if not (is_logged and sql.lstrip().startswith(LOGGING))] == [], address
    new = AuditEntry.objects.exclude(pk__in=logged)
    assert {entry.action for entry in new} <= {REFUSED}
    label = AuditEntry._meta.label
    assert stored() | {label: before[label]} == before
    assert Session.objects.count() == sessions, "logged in or out"


def test_no_get_request_changes_anything(browser: Client) -> None:
    before, sessions = stored(), Session.objects.count()
    act = FIELDS | {"action": "cancel_jobs", "_selected_action": Job.objects.first().pk, "csrfmiddlewaretoken": CSRF}
    for address in [address for route in ROUTES for address in urls_of(route)]:
        for query in ({}, act) if address.startswith("/admin/delaytasks") else (act,):
            with writes() as found:
                answer = browser.get(address, query)
            assert answer.status_code < 500 or address == "/readyz", address  # 503: no worker runs here
            assert found == [], address
    assert stored() == before
    assert Session.objects.count() == sessions, "logged in or out"


def actions() -> list[tuple[str, str, str]]:
    """Return (app, model, action) for each action in the admin."""
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
        keys = [IDLE]  # a topic with a handler cannot be deleted
    return browser.post(f"/admin/{app}/{model}/", FIELDS | {"action": action, "_selected_action": keys} | fields)


def test_the_list_of_actions_is_complete(db: None) -> None:
    assert {("delaytasks", "job", "cancel_jobs"), ("delaytasks", "topic", "pause"),
            ("delaytasks", "schedule", "run_now"), ("delaytasks", "calendarday", "delete_selected"),
            ("delaytasks_api", "token", "revoke")} <= set(actions())  # fmt: skip


@pytest.mark.parametrize(("app", "model", "action"), actions(), ids=lambda part: part)
def test_every_action_requires_the_csrf_token_and_works_with_it(
    browser: Client, app: str, model: str, action: str
) -> None:
    Topic.objects.update(paused=action == "resume")
    Schedule.objects.update(paused=action == "resume")
    if model == "customer":
        Order.objects.all().delete()  # users with orders cannot be deleted
    before = stored()
    assert change_list(browser, app, model, action).status_code == 403
    assert stored() == before
    assert change_list(browser, app, model, action, csrfmiddlewaretoken=CSRF).status_code in (200, 302)
    assert stored() != before


@pytest.mark.parametrize("verb", ["stop", "go-on"])
def test_stopping_and_continuing_a_bulk_change_require_the_csrf_token(browser: Client, verb: str) -> None:
    BulkChange.objects.update(state="waiting" if verb == "stop" else "stopped")
    address, before = f"/admin/delaytasks/bulkchange/{BulkChange.objects.get().pk}/{verb}/", stored()
    assert browser.get(address).status_code == 405
    assert browser.post(address).status_code == 403
    assert stored() == before
    assert browser.post(address, {"csrfmiddlewaretoken": CSRF}).status_code == 302
    assert stored() != before


def test_a_backfill_requires_the_csrf_token(browser: Client) -> None:
    address, before = f"/admin/delaytasks/schedule/{Schedule.objects.get().pk}/backfill/", stored()
    assert browser.get(address, FIELDS | {"csrfmiddlewaretoken": CSRF}).status_code == 200
    assert browser.post(address, FIELDS).status_code == 403
    assert stored() == before
    assert browser.post(address, FIELDS | {"csrfmiddlewaretoken": CSRF}).status_code == 302
    assert stored() != before


def test_an_api_token_in_the_url_is_ignored(browser: Client) -> None:
    for name in ("csrfmiddlewaretoken", "csrftoken", "X-CSRFToken"):
        assert browser.post(f"/admin/delaytasks/job/?{name}={CSRF}", FIELDS).status_code == 403
        assert browser.post(f"/api/jobs/?{name}={CSRF}", "{}", content_type="application/json").status_code == 403


@pytest.mark.parametrize("content_type", ["multipart/form-data", "application/x-www-form-urlencoded", "text/plain"])
def test_the_api_reads_its_token_from_the_header_and_ignores_forms(browser: Client, content_type: str) -> None:
    """Another site can make a browser submit a form."""
    body = f"csrfmiddlewaretoken={CSRF}"
    for address in ("/api/jobs/", "/api/queue/"):
        assert browser.post(address, body, content_type=content_type).status_code == 403
        answer = browser.post(address, body, content_type=content_type, headers={"X-CSRFToken": CSRF})
        assert answer.status_code == 415


def test_choosing_a_language_requires_the_csrf_token(browser: Client) -> None:
    assert "django_language" not in browser.post("/i18n/setlang/", FIELDS).cookies
    assert "django_language" not in browser.get("/i18n/setlang/", FIELDS).cookies
    chosen = browser.post("/i18n/setlang/", FIELDS | {"csrfmiddlewaretoken": CSRF, "next": "https://evil.example/"})
    assert chosen.cookies["django_language"].value == "zh-hans"
    assert chosen["Location"] == "/"
