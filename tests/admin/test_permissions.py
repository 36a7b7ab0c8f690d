"""Permissions to see and change jobs: without permission neither button nor data, and status 403.

A job of a hidden topic is not found: 404, as for an unknown ID.
"""

import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delaytasks import handlers, permissions
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.states import State

from .conftest import TOPIC, make_job
from .test_job_list import keys

LIST = "/admin/delaytasks/job/"
VIEW, OPERATE = "delaytasks.view_job", "delaytasks.operate_job"
HIDDEN = "test.hidden"
OTHER_RIGHTS = ("delaytasks.add_job", "delaytasks.delete_job", "delaytasks.change_topic")


@pytest.fixture
def group() -> Group:
    return Group.objects.create(name="finance")


@pytest.fixture
def hidden(group: Group) -> Job:
    """A job of a topic that only one group sees."""
    Topic.objects.create(name=HIDDEN, visible_to=[group.pk])
    return make_job("secret:1", topic=HIDDEN)


def act(client: Client, action: str, job: Job, **fields: str) -> Any:
    return client.post(LIST, {"action": action, "_selected_action": job.pk, "index": 0, "confirmed": 1, **fields})


# Permissions

#  (method, URL, POST data): status without permissions, with view, with operate only, with both
TABLE = [
    ("get", "", {}, (403, 200, 403, 200)),
    ("get", "?q=order", {}, (403, 200, 403, 200)),
    ("get", "?state=live&topic=test.close", {}, (403, 200, 403, 200)),
    ("post", "", {"action": "cancel_jobs", "_selected_action": "{pk}", "confirmed": "1"}, (403, 403, 403, 302)),
    ("post", "", {"action": "retry_jobs", "_selected_action": "{pk}", "index": "0"}, (403, 403, 403, 302)),
    ("post", "", {"action": "run_jobs_now", "_selected_action": "{pk}", "confirmed": "1"}, (403, 403, 403, 302)),
    ("post", "", {"action": "postpone_jobs", "_selected_action": "{pk}", "index": "0"}, (403, 403, 403, 200)),
    ("get", "all/?state=live", {}, (403, 403, 403, 200)),
    ("get", "{pk}/change/", {}, (403, 200, 403, 200)),
    ("post", "{pk}/change/", {"key": "x"}, (403, 403, 403, 403)),
    ("get", "{pk}/history/", {}, (403, 200, 403, 200)),
    ("get", "{pk}/now/", {}, (403, 200, 403, 200)),
    ("get", "{pk}/delete/", {}, (403, 403, 403, 403)),
    ("post", "{pk}/delete/", {"post": "yes"}, (403, 403, 403, 403)),
    ("get", "add/", {}, (403, 403, 403, 200)),
    ("post", "add/", {"key": "x"}, (403, 403, 403, 200)),
    ("get", "999999/change/", {}, (403, 404, 403, 404)),
    ("get", "999999/history/", {}, (403, 404, 403, 404)),
]  # fmt: skip
PEOPLE: dict[str, tuple[str, ...]] = {
    "nobody": OTHER_RIGHTS,
    "views": (VIEW, *OTHER_RIGHTS),
    "operates": (OPERATE, *OTHER_RIGHTS),
    "both": (VIEW, OPERATE, *OTHER_RIGHTS),
}


@pytest.mark.parametrize("person", range(4), ids=list(PEOPLE))
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]} {row[1]} {row[2].get('action', '')}")
def test_each_url_allows_exactly_the_permitted_users(staff, person, row):
    method, address, sent, statuses = row
    job = make_job("order:1")
    client = staff(*list(PEOPLE.values())[person])
    data = {name: value.format(pk=job.pk) for name, value in sent.items()}
    answer = getattr(client, method)(LIST + address.format(pk=job.pk), data)
    assert answer.status_code == statuses[person]
    if answer.status_code == 403:
        assert b"order:1" not in answer.content
    if person != 3:
        assert not JobEvent.objects.exists()


def test_the_table_contains_every_url_of_jobs():
    names = {str(each.pattern) for each in admin.site._registry[Job].get_urls()}
    known = {address.partition("?")[0].replace("{pk}", "<path:object_id>") for _, address, _, _ in TABLE}
    assert names - known == {"<path:object_id>/"}, "only redirects to change/"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]} {row[1]}")
def test_anonymous_users_are_redirected_to_the_login(row):
    method, address, sent, _ = row
    answer = getattr(Client(), method)(LIST + address.format(pk=make_job("order:1").pk), sent)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/admin/login/")


def test_an_inactive_user_may_do_nothing(staff):
    client = staff(VIEW, OPERATE)
    User.objects.filter(pk=client.user.pk).update(is_active=False)
    assert client.get(LIST).status_code == 302


def test_users_who_may_only_view_see_neither_actions_nor_buttons(staff):
    client = staff(VIEW)
    job = make_job("order:1", State.DEAD)
    for address in (LIST, f"{LIST}?state=dead", f"{LIST}{job.pk}/change/"):
        page = client.get(address).content.decode()
        assert "order:1" in page
        assert not re.findall(r"(cancel|postpone|retry|run)_jobs?", page)
        assert 'name="reason"' not in page


# Restricted topics


def login(client: Any, *groups: Group, superuser: bool = False) -> Client:
    client.user.groups.set(groups)
    User.objects.filter(pk=client.user.pk).update(is_superuser=superuser)
    return client


def test_a_hidden_topic_is_invisible_outside_its_groups(staff, hidden):
    client = login(staff(VIEW, OPERATE), Group.objects.create(name="support"))
    make_job("order:1")
    for query in ({}, {"state": "live"}, {"state": "delayed"}, {"due": "hour"}, {"topic": TOPIC}):
        page = client.get(LIST, query)
        assert keys(page) == ["order:1"], query
        assert HIDDEN not in page.content.decode()
    for query in ({"q": "secret"}, {"q": str(hidden.pk)}, {"topic": HIDDEN}, {"topic": HIDDEN, "state": "live"}):
        page = client.get(LIST, query)
        assert keys(page) == [], query
        assert "secret:1" not in page.content.decode()
    for page in ("change", "history", "delete"):
        assert client.get(f"{LIST}{hidden.pk}/{page}/").status_code == 404


@pytest.mark.parametrize("action", ["cancel_jobs", "run_jobs_now", "postpone_jobs", "retry_jobs"])
def test_a_hidden_job_cannot_be_changed_and_counts_as_missing(staff, hidden, action):
    client = login(staff(VIEW, OPERATE))
    answer = act(client, action, hidden, amount="1", unit="hours")
    (text,) = [str(message) for message in get_messages(answer.wsgi_request)]
    assert f"no longer there 1 ({hidden.pk})" in text
    assert "secret" not in text
    assert not JobEvent.objects.exists()


@pytest.mark.parametrize("who", ["member", "superuser"])
def test_members_and_superusers_see_and_change_a_hidden_topic(staff, hidden, group, who):
    client = staff(VIEW, OPERATE)
    login(client, *([group] if who == "member" else []), superuser=who == "superuser")
    assert keys(client.get(LIST)) == ["secret:1"]
    assert keys(client.get(LIST, {"q": "secret"})) == ["secret:1"]
    assert HIDDEN in client.get(LIST).content.decode()
    assert client.get(f"{LIST}{hidden.pk}/change/").status_code == 200
    act(client, "cancel_jobs", hidden)
    assert JobEvent.objects.get().actor == client.user.username


def test_group_membership_does_not_replace_the_view_permission(staff, hidden, group):
    client = login(staff(), group)
    assert client.get(LIST).status_code == 403
    assert client.get(f"{LIST}{hidden.pk}/change/").status_code == 403


def test_membership_in_one_of_several_groups_is_sufficient(staff, hidden, group):
    Topic.objects.filter(name=HIDDEN).update(visible_to=[999, group.pk])
    client = login(staff(VIEW), group, Group.objects.create(name="support"))
    assert keys(client.get(LIST)) == ["secret:1"]


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        ([], True), ([999], False), (["{pk}"], True), ([None], False),
        ("{pk}", False), (5, False), ({"a": 1}, False),
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_list_of_groups_hides_the_topic(staff, hidden, group, stored, seen):
    if isinstance(stored, list):
        stored = [str(each).format(pk=group.pk) for each in stored]
    elif isinstance(stored, str):
        stored = stored.format(pk=group.pk)
    Topic.objects.filter(name=HIDDEN).update(visible_to=stored)
    client = login(staff(VIEW), group)
    assert bool(keys(client.get(LIST))) is seen


def test_jobs_of_an_unknown_topic_are_visible_only_to_unrestricted_users(staff, hidden, admin_client):
    make_job("stray:1", topic="test.unknown")
    assert keys(login(staff(VIEW)).get(LIST)) == []
    assert set(keys(admin_client.get(LIST))) == {"stray:1", "secret:1"}


def test_a_handled_topic_without_a_row_is_visible_to_everyone(staff, hidden):
    Topic.objects.filter(name=TOPIC).delete()
    make_job("order:1")
    client = login(staff(VIEW))
    assert keys(client.get(LIST)) == ["order:1"]
    assert keys(client.get(LIST, {"q": "order"})) == ["order:1"]


def test_a_handled_topic_can_be_hidden(staff, group):
    Topic.objects.filter(name=TOPIC).update(visible_to=[group.pk])
    make_job("order:1")
    client = login(staff(VIEW))
    assert keys(client.get(LIST)) == []
    assert keys(client.get(LIST, {"q": "order"})) == []


# Queries


def sent_by(client: Client, **query: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        client.get(LIST, query)
    return [each["sql"] for each in captured.captured_queries]


@pytest.mark.on_both
def test_without_restrictions_there_is_no_topic_condition(staff):
    make_job("order:1")
    client = staff(VIEW, OPERATE)
    for query in ({}, {"state": "live"}, {"state": "dead"}):
        sent = sent_by(client, **query)
        assert not [sql for sql in sent if "delaytasks_job" in sql and re.search(r"WHERE.*topic", sql)]
        assert not [sql for sql in sent if "auth_user_groups" in sql and "permission" not in sql]
        assert len([sql for sql in sent if "delaytasks_topic" in sql]) == 1


@pytest.mark.on_both
def test_jobs_of_hidden_topics_are_not_read(staff, hidden):
    client = login(staff(VIEW, OPERATE))
    for query in ({"topic": HIDDEN}, {"topic": HIDDEN, "state": "live"}, {"topic": HIDDEN, "q": "secret"}):
        assert not [sql for sql in sent_by(client, **query) if "delaytasks_job" in sql]


@pytest.mark.on_both
def test_the_visible_topics_are_queried_once_per_page(staff, hidden):
    client = login(staff(VIEW, OPERATE))
    for query in ({}, {"q": "order"}, {"topic": TOPIC}):
        sent = sent_by(client, **query)
        assert len([sql for sql in sent if "visible_to" in sql]) == 1
        assert len([sql for sql in sent if 'FROM "auth_group"' in sql and "permission" not in sql]) == 1


def test_a_user_without_groups_sees_unrestricted_topics(hidden):
    class Account:
        is_superuser = False

    assert permissions.visible_topics(Account(), "default") == sorted({TOPIC, *handlers.known()})


def test_a_superuser_sees_all(hidden):
    class Account:
        is_superuser = True

    assert permissions.visible_topics(Account(), "default") is None
    assert permissions.can_see_topic(Account(), HIDDEN, "default")


def test_the_permissions_exist():
    names = set(Permission.objects.filter(content_type__app_label="delaytasks").values_list("codename", flat=True))
    assert {"view_job", "operate_job", "change_topic"} <= names
