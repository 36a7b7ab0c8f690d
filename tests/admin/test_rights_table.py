"""Every address of the admin, for everybody: without the right there is neither button nor data, and 403.

What belongs to a topic of other groups is not there: 404, or Django's own way back to the index.
"""

from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from delaytasks import bulk
from delaytasks.api import tokens
from delaytasks.api.models import ServiceAccount, Token
from delaytasks.models import BulkChange, Job, JobEvent, Topic

from .conftest import TOPIC, make_job

APPS = ("delaytasks", "delaytasks_api")
KEY, NOTE = "secret:1", "their-bank"


def each(app: str, *models: str, may: str = "add change delete view") -> tuple[str, ...]:
    return tuple(f"{app}.{codename}_{model}" for model in models for codename in may.split())


VIEW = each("delaytasks", "job", "topic", may="view")
OPERATE = (*VIEW, "delaytasks.operate_job")
MANAGE = (*VIEW, *each("delaytasks", "topic"), *each("delaytasks_api", "token", "serviceaccount"))
# Rights over what nobody may add, change or delete here: they open nothing.
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
LEADS_ON = (302,) * 6  # to change/, which asks for the right

# The name of an address: (how it is asked, what each of PEOPLE gets)
TABLE: dict[str, tuple[str, tuple[int, ...]]] = {
    "board": ("get", LOOKS),
    "board numbers/": ("get", LOOKS),
    "job": ("get", LOOKS),
    "job all/": ("get", ACTS),
    "job add/": ("get", NOBODY),
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
    "topic <id>/delete/": ("get", (403, 403, 403, 403, 302, 403)),  # it has a handler: it stays
    "topic <id>/": ("get", LEADS_ON),
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
    """Each address that the admin's configuration has for these apps, by its name here."""
    found = {}
    for model, model_admin in admin.site._registry.items():
        app, name = model._meta.app_label, str(model._meta.model_name)
        if app in APPS:
            for pattern in model_admin.get_urls():
                rest = str(pattern.pattern).replace("<path:object_id>", "<id>").replace("<str:object_id>", "<id>")
                found[f"{name} {rest}".strip()] = f"/admin/{app}/{name}/{rest}"
    return found


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One row of each kind, by model: the ids that stand in an address."""
    monkeypatch.setattr(bulk, "send", lambda pk, using: None)
    job = make_job(KEY, body={"to": NOTE}, error=NOTE)
    change = bulk.start("cancel", [job.pk], by="anna", reason=NOTE, wish={"topics": {TOPIC: 1}})
    token, _secret = tokens.make("mailer", {"produce": ["mail.*"]}, name=NOTE)
    account: Any = ServiceAccount.objects.get()
    return {"job": job.pk, "bulkchange": change.pk, "topic": TOPIC, "token": token.pk, "serviceaccount": account.pk}


def ask(client: Client, name: str, rows: dict[str, Any]) -> Any:
    method, _statuses = TABLE[name]
    address = addresses()[name].replace("<id>", str(rows.get(name.split()[0], "")))
    return getattr(client, method)(address + ("?state=live" if name == "job all/" else ""))


def test_the_table_has_a_row_for_every_address_and_for_nothing_else():
    assert addresses().keys() - TABLE.keys() == set(), "an address that nobody has thought about"
    assert TABLE.keys() - addresses().keys() == set(), "rows that nothing belongs to"


@pytest.mark.parametrize("person", list(PEOPLE))
def test_each_person_gets_each_address_or_403(staff, admin_client, rows, person):
    outsider = person.startswith("all rights")
    Topic.objects.filter(name=TOPIC).update(visible_to=[999] if outsider else [])
    client = admin_client if person == "superuser" else staff(*PEOPLE[person])
    got, told = {}, []
    for name in TABLE:
        answer = ask(client, name, rows)
        got[name] = answer.status_code
        said = answer.content.decode() if answer.status_code != 200 or outsider else ""
        told += [
            (name, word) for word in (KEY, NOTE, TOPIC) if word in said and not name.startswith(("token", "servic"))
        ]
    expected = {name: statuses[list(PEOPLE).index(person)] for name, (_method, statuses) in TABLE.items()}
    assert got == expected
    assert told == [], "a refusal tells nothing of what it refuses"
    assert not JobEvent.objects.exists()


def test_whoever_is_not_logged_in_is_asked_to_for_every_address(rows):
    for name in TABLE:
        answer = ask(Client(), name, rows)
        assert answer.status_code == 302, name
        assert answer["Location"].startswith("/admin/login/"), name
    assert BulkChange.objects.get().state == "waiting"


# What each person can press, by a piece of the page's HTML: (the page, who sees it)
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
def test_each_person_sees_the_buttons_that_are_theirs(staff, admin_client, rows, person):
    client = admin_client if person == "superuser" else staff(*PEOPLE[person])
    pages = {name: ask(client, name, rows).content.decode() for name in {page for page, _who in BUTTONS.values()}}
    seen = {button for button, (page, _who) in BUTTONS.items() if button in pages[page]}
    assert seen == {button for button, (_page, who) in BUTTONS.items() if person in who.split()}


def test_the_table_is_about_every_kind_of_row(rows):
    assert {Job, Topic, BulkChange, Token, ServiceAccount} <= set(admin.site._registry)
    assert set(rows) == {name.split()[0] for name in TABLE} - {"board"}
