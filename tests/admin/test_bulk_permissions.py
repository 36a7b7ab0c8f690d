"""Permissions for bulk changes and their pages, and visibility of topics."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.messages import get_messages
from django.test import Client

from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job, JobEvent, Topic

from .conftest import TOPIC, make_job

pytestmark = pytest.mark.usefixtures("no_worker")
LIST, ALL, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/job/all/", "/admin/delaytasks/bulkchange/"
HIDDEN = "test.hidden"
VIEW, OPERATE = "delaytasks.view_job", "delaytasks.operate_job"
MANAGE = ("delaytasks.add_job", "delaytasks.change_job", "delaytasks.delete_job")


@pytest.fixture
def change() -> BulkChange:
    return changes.start("cancel", [make_job("order:1").pk], by="anna", selection={"topics": {TOPIC: 1}})


PLACES = [
    ("get", ALL + "?state=live"), ("post", ALL + "?state=live"), ("get", ALL), ("get", CHANGES),
    ("get", CHANGES + "{pk}/change/"), ("get", CHANGES + "{pk}/progress/"), ("post", CHANGES + "{pk}/stop/"),
    ("post", CHANGES + "{pk}/go-on/"),
    ("get", CHANGES + "{pk}/history/"), ("get", CHANGES + "999999/change/"),
]  # fmt: skip


@pytest.mark.parametrize("rights", [(), (VIEW,), (OPERATE,), (VIEW, *MANAGE)], ids=str)
@pytest.mark.parametrize(("method", "place"), PLACES)
def test_each_url_is_refused_without_permission(staff, change, rights, method, place):
    client = staff(*rights)
    answer = getattr(client, method)(
        place.format(pk=change.pk), {"what": "cancel", "shown": "1"} if method == "post" else {}
    )
    assert answer.status_code == 403
    assert BulkChange.objects.get().state == "waiting"


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_anonymous_users_are_redirected_to_the_login(change, method, place):
    answer = getattr(Client(), method)(place.format(pk=change.pk))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/admin/login/")
    assert BulkChange.objects.get().state == "waiting"


@pytest.mark.parametrize(("method", "place"), PLACES[:-2])
def test_each_url_works_with_permission(staff, change, method, place):
    client = staff(VIEW, OPERATE)
    form = {"what": "cancel", "shown": "1", "listed": change.ids}
    answer = getattr(client, method)(place.format(pk=change.pk), form if method == "post" else {})
    assert answer.status_code == (302 if method == "post" else 200)


def test_users_who_may_only_view_see_neither_buttons_nor_changes(staff, change):
    client = staff(VIEW)
    answer = client.get(LIST, {"state": "live"})
    assert "all_url" not in answer.context, "even if a project adds actions for users who may only view"
    page = answer.content.decode()
    assert "/all/" not in page
    assert "postpone_jobs" not in page
    assert "bulkchange" not in client.get("/admin/").content.decode()
    client.post(
        LIST, {"action": "postpone_jobs", "_selected_action": [Job.objects.get().pk], "amount": "1", "unit": "days"}
    )
    assert not JobEvent.objects.exists()


def test_users_who_may_operate_see_buttons_and_changes(staff, change):
    client = staff(VIEW, OPERATE)
    assert "/all/" in client.get(LIST, {"state": "live"}).content.decode()
    assert CHANGES in client.get("/admin/").content.decode()


def test_a_revoked_permission_takes_effect(staff):
    client = staff(VIEW, OPERATE)
    make_job("order:1")
    assert client.get(ALL, {"state": "live"}).status_code == 200
    client.user.user_permissions.clear()
    assert client.post(ALL + "?state=live", {"what": "cancel", "shown": "1"}).status_code == 403
    assert not BulkChange.objects.exists()


@pytest.mark.parametrize("place", [ALL + "?state=live", CHANGES + "{pk}/stop/"])
def test_csrf_tokens_are_required(change, admin_user, place):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(place.format(pk=change.pk), {"what": "cancel", "shown": "1"}).status_code == 403
    assert BulkChange.objects.get().state == "waiting"


# Restricted topics


@pytest.fixture
def outsider(staff: Any) -> Client:
    """A user who may operate, but is in no group that sees the hidden topic."""
    insiders = Group.objects.create(name="insiders")
    Topic.objects.create(name=HIDDEN, visible_to=[insiders.pk])
    return staff(VIEW, OPERATE)


def test_only_visible_jobs_match(outsider):
    seen = make_job("order:1")
    make_job("order:2", topic=HIDDEN)
    for query in ("?state=live", "?q=order:", "?all=1"):
        page = outsider.get(ALL + query)
        assert page.context["count"] == 1
        assert HIDDEN not in page.content.decode()
    assert outsider.get(ALL, {"topic": HIDDEN}).context["refused"] == "none"
    outsider.post(ALL + "?state=live", {"what": "cancel", "shown": "1", "listed": seen.pk})
    assert BulkChange.objects.get().ids == [seen.pk]


def test_a_selected_hidden_job_counts_as_missing(outsider):
    job = make_job("secret:1", topic=HIDDEN)
    answer = outsider.post(LIST, {"action": "cancel_jobs", "_selected_action": [job.pk], "index": "0"})
    assert [str(each) for each in get_messages(answer.wsgi_request)] == [f"not cancelled: no longer there 1 ({job.pk})"]
    page = outsider.post(LIST, {"action": "postpone_jobs", "_selected_action": [job.pk], "index": "0"})
    assert not re.search("secret|test.hidden", page.content.decode())
    assert not JobEvent.objects.exists()


def test_many_selected_jobs_exclude_hidden_ones(outsider):
    visible = [make_job(f"order:{n}") for n in range(101)]
    jobs = [*(make_job(f"secret:{n}", topic=HIDDEN) for n in range(3)), *visible]
    outsider.post(
        LIST, {"action": "cancel_jobs", "_selected_action": [job.pk for job in jobs], "index": "0", "confirmed": 1}
    )
    change = BulkChange.objects.get()
    assert change.ids == [job.pk for job in visible]
    assert change.selection["topics"] == {TOPIC: 101}


@pytest.mark.parametrize(
    "selection",
    [{"topics": {HIDDEN: 1}}, {"topics": {TOPIC: 1, HIDDEN: 1}}, {"topics": {}}, {}, {"topics": 7}],
    ids=str,
)
def test_a_change_with_hidden_topics_is_not_shown(outsider, admin_client, selection):
    job = make_job("secret:1", topic=HIDDEN)
    change = changes.start("cancel", [job.pk], by="anna", selection=selection)
    assert outsider.get(CHANGES).context["cl"].result_list.count() == 0
    for method, part in (("get", "change"), ("get", "progress"), ("post", "stop")):
        assert getattr(outsider, method)(f"{CHANGES}{change.pk}/{part}/").status_code == 404
    assert BulkChange.objects.get().state == "waiting"
    assert admin_client.get(f"{CHANGES}{change.pk}/change/").status_code == 200


def test_users_with_permission_may_follow_and_stop_changes_of_others(outsider, change):
    assert [each.pk for each in outsider.get(CHANGES).context["cl"].result_list] == [change.pk]
    assert "By</dt><dd>anna" in outsider.get(f"{CHANGES}{change.pk}/change/").content.decode()
    assert outsider.post(f"{CHANGES}{change.pk}/stop/").status_code == 302
    assert BulkChange.objects.get().state == "stopped"


def test_a_group_member_sees_the_topic(outsider):
    change = changes.start("cancel", [make_job("s:1", topic=HIDDEN).pk], by="anna", selection={"topics": {HIDDEN: 1}})
    user: Any = User.objects.get(pk=outsider.user.pk)  # type: ignore[attr-defined]
    user.groups.add(Group.objects.get())
    assert outsider.get(f"{CHANGES}{change.pk}/change/").status_code == 200
    assert outsider.get(ALL, {"topic": HIDDEN}).context["count"] == 1
