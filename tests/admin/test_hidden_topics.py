"""Hidden topics do not show in cursors or actions, and invalid URLs cause no errors."""

import pytest
from django.contrib import admin

from delaytasks.models import Topic

from .conftest import TOPIC, make_job
from .test_job_list import keys

pytestmark = pytest.mark.on_both  # PostgreSQL refuses some texts

LIST = "/admin/delaytasks/job/"
VIEW, OPERATE = "delaytasks.view_job", "delaytasks.operate_job"


@pytest.mark.parametrize("others", [True, False], ids=["beside another topic", "the only topic"])
@pytest.mark.parametrize("query", [{"q": "patient"}, {"state": "live"}, {"o": "2"}, {}, {"state": "dead"}])
def test_the_list_of_a_hidden_topic_has_no_next_page(staff, query, others):
    Topic.objects.update(visible_to=[999])
    if others:
        Topic.objects.create(name="open.topic")
    for number in range(120):  # more than a page
        make_job(f"patient:{number:03}")
    client = staff(VIEW)
    for topic in ({"topic": TOPIC}, {}):
        cl = client.get(LIST, query | topic).context["cl"]
        assert (cl.result_list, cl.next_url, cl.previous_url, cl.continue_url) == ([], "", "", "")


def test_only_jobs_of_the_topic_in_the_url_match(admin_client):
    """Also if no topic has a row and the filter has no choices."""
    make_job("a", topic="test.one")
    make_job("b", topic="test.two")
    Topic.objects.all().delete()
    query = {"topic": "test.one", "state": "live"}
    assert keys(admin_client.get(LIST, query)) == ["a"]
    page = admin_client.get(f"{LIST}all/", query)
    assert (page.context["count"], page.context["topics"]) == (1, [("test.one", "1")])


def test_no_job_of_a_hidden_topic_matches(staff):
    Topic.objects.update(visible_to=[999])
    make_job("secret:1")
    page = staff(VIEW, OPERATE).get(f"{LIST}all/", {"topic": TOPIC, "state": "live"})
    assert page.context["refused"] == "none"


def test_a_custom_action_gets_only_visible_jobs(staff):
    got = []

    def export(modeladmin, request, queryset):
        got.extend(queryset.values_list("key", flat=True))

    Topic.objects.create(name="secret.topic", visible_to=[999])
    chosen = [make_job("secret:1", topic="secret.topic").pk, make_job("order:1").pk]
    admin.site.add_action(export, "export")
    try:
        staff(VIEW, OPERATE).post(LIST, {"action": "export", "index": "0", "_selected_action": chosen})
    finally:
        admin.site.disable_action("export")
    assert got == ["order:1"]


@pytest.mark.parametrize("topic", ["\x00", "a\x00b", "no topic", "", "x" * 101])
@pytest.mark.parametrize("more", [{}, {"state": "live"}, {"q": "a"}])
def test_an_invalid_topic_in_the_url_is_not_a_server_error(admin_client, settings, topic, more):
    settings.MIDDLEWARE = [
        name for name in settings.MIDDLEWARE if "nul" not in name
    ]  # without the project's middleware
    make_job("a")
    for page in ("", "all/"):
        answer = admin_client.get(f"{LIST}{page}", {"topic": topic} | more, follow=True)
        assert answer.status_code == 200
        if "\0" in topic:
            assert answer.redirect_chain[-1][0] == f"{LIST}?e=1"
