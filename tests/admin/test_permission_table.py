"""Permissions of every URL of the admin: without permission neither button nor data, and status 403.

Rows of hidden topics are not found: 404, or Django's redirect to the index.
"""

from datetime import date
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from delaytasks.api.access import tokens
from delaytasks.api.models import ServiceAccount, Token
from delaytasks.bulk import changes
from delaytasks.models import BulkChange, CalendarDay, Job, JobEvent, Schedule, Topic

from .conftest import NOW, TOPIC, make_job

APPS = ("delaytasks", "delaytasks_api")
KEY, NOTE = "secret:1", "their-bank"


def each(app: str, *models: str, may: str = "add change delete view") -> tuple[str, ...]:
    return tuple(f"{app}.{codename}_{model}" for model in models for codename in may.split())


VIEW = each("delaytasks", "job", "topic", may="view")
OPERATE = (*VIEW, "delaytasks.operate_job")
MANAGE = (*VIEW, *each("delaytasks", "topic"), *each("delaytasks_api", "token", "serviceaccount"))
# Permissions for models that are read-only here: they have no effect.
USELESS = (*each("delaytasks", "job", may="add change delete"), *each("delaytasks", "jobevent"))

PEOPLE: dict[str, tuple[str, ...]] = {
    "no right": USELESS,
    "views": (*VIEW, *USELESS),
    "operates": (*OPERATE, *USELESS),
    "manages": (*MANAGE, *USELESS),
    "all rights, but in none of the topic's groups": (*OPERATE, *MANAGE, *USELESS),
    "superuser": (),
}

NOBODY = (403, 403, 403, 403, 403, 403)
LOOKS = (403, 200, 200, 200, 200, 200)
LOOKS_AT_ONE = (403, 200, 200, 200, 404, 200)
ACTS = (403, 403, 200, 403, 200, 200)
ACTS_ON_ONE = (403, 403, 200, 403, 404, 200)
MANAGES = (403, 403, 403, 200, 200, 200)
RULES = (403, 403, 403, 403, 403, 200)  # the permissions of these models are in none of PEOPLE
LEADS_ON = (302,) * 6  # to change/, which checks the permission

# URL: (method, status for each of PEOPLE)
TABLE: dict[str, tuple[str, tuple[int, ...]]] = {
    "board": ("get", LOOKS),
    "board numbers/": ("get", LOOKS),
    "job": ("get", LOOKS),
    "job all/": ("get", ACTS),
    "job add/": ("get", ACTS),
    "job <id>/change/": ("get", LOOKS_AT_ONE),
    "job <id>/now/": ("get", LOOKS_AT_ONE),
    "job <id>/history/": ("get", LOOKS_AT_ONE),
    "job <id>/delete/": ("get", (403, 403, 403, 403, 404, 403)),
    "job <id>/": ("get", LEADS_ON),
    "bulkchange": ("get", ACTS),
    "bulkchange add/": ("get", NOBODY),
    "bulkchange <id>/change/": ("get", ACTS_ON_ONE),
    "bulkchange <id>/progress/": ("get", ACTS_ON_ONE),
    "bulkchange <id>/stop/": ("post", (403, 403, 302, 403, 404, 302)),
    "bulkchange <id>/go-on/": ("post", (403, 403, 302, 403, 404, 302)),
    "bulkchange <id>/history/": ("get", (403, 403, 200, 403, 302, 200)),
    "bulkchange <id>/delete/": ("get", NOBODY),
    "bulkchange <id>/": ("get", LEADS_ON),
    "topic": ("get", LOOKS),
    "topic add/": ("get", MANAGES),
    "topic <id>/change/": ("get", (403, 200, 200, 200, 302, 200)),
    "topic <id>/history/": ("get", (403, 200, 200, 200, 302, 200)),
    "topic <id>/delete/": ("get", (403, 403, 403, 403, 302, 403)),  # a topic with a handler cannot be deleted
    "topic <id>/": ("get", LEADS_ON),
    "calendarday": ("get", RULES),
    "calendarday add/": ("get", RULES),
    "calendarday <id>/change/": ("get", RULES),
    "calendarday <id>/history/": ("get", RULES),
    "calendarday <id>/delete/": ("get", RULES),
    "calendarday <id>/": ("get", LEADS_ON),
    "schedule": ("get", RULES),
    "schedule add/": ("get", RULES),
    "schedule preview/": ("get", RULES),
    "schedule <id>/backfill/": ("get", RULES),
    "schedule <id>/change/": ("get", RULES),
    "schedule <id>/history/": ("get", (403, 403, 403, 403, 302, 200)),
    "schedule <id>/delete/": ("get", RULES),
    "schedule <id>/": ("get", LEADS_ON),
    "serviceaccount": ("get", MANAGES),
    "serviceaccount add/": ("get", MANAGES),
    "serviceaccount <id>/change/": ("get", MANAGES),
    "serviceaccount <id>/history/": ("get", MANAGES),
    "serviceaccount <id>/delete/": ("get", MANAGES),
    "serviceaccount <id>/": ("get", LEADS_ON),
    "token": ("get", MANAGES),
    "token add/": ("get", MANAGES),
    "token <id>/change/": ("get", MANAGES),
    "token <id>/history/": ("get", MANAGES),
    "token <id>/delete/": ("get", MANAGES),
    "token <id>/": ("get", LEADS_ON),
}


def addresses() -> dict[str, str]:
    """Return all admin URLs of these apps, by name."""
    found = {}
    for model, model_admin in admin.site._registry.items():
        app, name = model._meta.app_label, str(model._meta.model_name)
        if app in APPS:
            for pattern in model_admin.get_urls():
                rest = str(pattern.pattern).replace("<path:object_id>", "<id>").replace("<str:object_id>", "<id>")
                found[f"{name} {rest}".strip()] = f"/admin/{app}/{name}/{rest}"
    return found


@pytest.fixture
def rows(no_worker: None) -> dict[str, Any]:
    """One row per model: the ids for the URLs."""
    job = make_job(KEY, body={"to": NOTE}, error=NOTE)
    change = changes.start("cancel", [job.pk], by="anna", reason=NOTE, selection={"topics": {TOPIC: 1}})
    token, _secret = tokens.create("mailer", {"produce": ["mail.*"]}, name=NOTE)
    account: Any = ServiceAccount.objects.get()
    day = CalendarDay.objects.create(calendar=NOTE, day=date(2030, 1, 1))
    row = Schedule.objects.create(name=NOTE, topic=TOPIC, tz="UTC", cron="0 0 * * *", start_at=NOW, made_until=NOW)
    return {
        "job": job.pk, "bulkchange": change.pk, "topic": TOPIC, "token": token.pk, "serviceaccount": account.pk,
        "calendarday": day.pk, "schedule": row.pk,
    }  # fmt: skip


def ask(client: Client, name: str, rows: dict[str, Any]) -> Any:
    method, _statuses = TABLE[name]
    address = addresses()[name].replace("<id>", str(rows.get(name.split()[0], "")))
    return getattr(client, method)(address + ("?state=live" if name == "job all/" else ""))


def test_the_table_contains_exactly_the_urls_of_the_admin():
    assert addresses().keys() - TABLE.keys() == set(), "a URL that is missing in the table"
    assert TABLE.keys() - addresses().keys() == set(), "rows without a URL"


@pytest.mark.parametrize("person", list(PEOPLE))
def test_each_url_allows_exactly_the_permitted_users(staff, admin_client, rows, person):
    outsider = person.startswith("all rights")
    Topic.objects.filter(name=TOPIC).update(visible_to=[999] if outsider else [])
    client = admin_client if person == "superuser" else staff(*PEOPLE[person])
    got, leaks = {}, []
    for name in TABLE:
        answer = ask(client, name, rows)
        got[name] = answer.status_code
        text = answer.content.decode() if answer.status_code != 200 or outsider else ""
        leaks += [
            (name, word) for word in (KEY, NOTE, TOPIC) if word in text and not name.startswith(("token", "servic"))
        ]
    expected = {name: statuses[list(PEOPLE).index(person)] for name, (_method, statuses) in TABLE.items()}
    assert got == expected
    assert leaks == [], "a refusal reveals nothing about the row"
    assert not JobEvent.objects.exists()


def test_every_url_requires_a_login(rows):
    for name in TABLE:
        answer = ask(Client(), name, rows)
        assert answer.status_code == 302, name
        assert answer["Location"].startswith("/admin/login/"), name
    assert BulkChange.objects.get().state == "waiting"


# The buttons, by a part of the page's HTML: (page, users who see it)
BUTTONS = {
    'value="cancel_jobs"': ("job", "operates superuser"),
    'value="postpone_jobs"': ("job", "operates superuser"),
    'value="run_jobs_now"': ("job", "operates superuser"),
    'value="retry_jobs"': ("job", "operates superuser"),
    'name="action" value="cancel_jobs"': ("job <id>/change/", "operates superuser"),
    'name="reason"': ("job <id>/change/", "operates superuser"),
    'id="dt-stop"': ("bulkchange <id>/change/", "operates superuser"),
    'href="/admin/delaytasks/bulkchange/"': ("job", "operates superuser"),
    'value="pause"': ("topic", "manages superuser"),
    'value="resume"': ("topic", "manages superuser"),
    'href="/admin/delaytasks/topic/add/"': ("topic", "manages superuser"),
    'name="paused"': ("topic <id>/change/", "manages superuser"),
    'name="_save"': ("topic <id>/change/", "manages superuser"),
    'href="/admin/delaytasks_api/token/"': ("job", "manages superuser"),
    'value="revoke"': ("token", "manages superuser"),
    'href="/admin/delaytasks/board/"': ("job", "views operates manages superuser"),
}


@pytest.mark.parametrize("person", [name for name in PEOPLE if not name.startswith("all rights")])
def test_each_user_sees_the_permitted_buttons(staff, admin_client, rows, person):
    client = admin_client if person == "superuser" else staff(*PEOPLE[person])
    pages = {name: ask(client, name, rows).content.decode() for name in {page for page, _who in BUTTONS.values()}}
    seen = {button for button, (page, _who) in BUTTONS.items() if button in pages[page]}
    assert seen == {button for button, (_page, who) in BUTTONS.items() if person in who.split()}


def test_the_table_covers_every_model(rows):
    assert {Job, Topic, BulkChange, Token, ServiceAccount} <= set(admin.site._registry)
    assert set(rows) == {name.split()[0] for name in TABLE} - {"board"}
