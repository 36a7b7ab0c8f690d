"""What is for others leaves no trace: not in a cursor, not in an action; and an address that cannot be is no error."""

import pytest
from django.contrib import admin

from delaytasks.models import Topic

from .conftest import TOPIC, make_job
from .test_job_list import keys

LIST = "/admin/delaytasks/job/"
VIEW, OPERATE = "delaytasks.view_job", "delaytasks.operate_job"


@pytest.mark.parametrize("others", [True, False], ids=["beside another topic", "the only topic"])
@pytest.mark.parametrize("query", [{"q": "patient"}, {"state": "live"}, {"o": "2"}, {}, {"state": "dead"}])
def test_no_page_of_a_hidden_topic_leads_to_a_next_one(staff, query, others):
    Topic.objects.update(visible_to=[999])
    if others:
        Topic.objects.create(name="open.topic")
    for number in range(120):  # more than a page
        make_job(f"patient:{number:03}")
    client = staff(VIEW)
    for topic in ({"topic": TOPIC}, {}):
        cl = client.get(LIST, query | topic).context["cl"]
        assert (cl.result_list, cl.next_url, cl.previous_url, cl.further_url) == ([], "", "", "")


def test_all_that_match_are_those_of_the_topic_that_the_address_names(admin_client):
    """Also where no topic has a row, so that there is none to choose from."""
    make_job("a", topic="test.one")
    make_job("b", topic="test.two")
    Topic.objects.all().delete()
    query = {"topic": "test.one", "state": "live"}
    assert keys(admin_client.get(LIST, query)) == ["a"]
    page = admin_client.get(f"{LIST}all/", query)
    assert (page.context["count"], page.context["topics"]) == (1, [("test.one", "1")])


def test_of_a_hidden_topic_nothing_matches(staff):
    Topic.objects.update(visible_to=[999])
    make_job("secret:1")
    page = staff(VIEW, OPERATE).get(f"{LIST}all/", {"topic": TOPIC, "state": "live"})
    assert page.context["refused"] == "none"


def test_an_action_of_the_site_gets_the_jobs_that_the_person_sees(staff):
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
def test_a_topic_that_can_be_none_is_no_error_of_the_server(admin_client, settings, topic, more):
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "nul" not in name]  # the project's own guard
    make_job("a")
    for page in ("", "all/"):
        answer = admin_client.get(f"{LIST}{page}", {"topic": topic} | more, follow=True)
        assert answer.status_code == 200
        if "\0" in topic:
            assert answer.redirect_chain[-1][0] == f"{LIST}?e=1"
