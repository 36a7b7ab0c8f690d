"""Topics: pause one, give it run slots, see its handler."""

import pytest
from django.contrib.admin.models import LogEntry

from delaytasks.models import Topic

from .conftest import TOPIC, make_job

LIST = "/admin/delaytasks/topic/"
ADD = f"{LIST}add/"
PAGE = f"{LIST}{TOPIC}/change/"


def topic() -> Topic:
    return Topic.objects.get(name=TOPIC)


def test_the_list_names_the_handler(admin_client):
    page = admin_client.get(LIST).content.decode()
    assert "tests.admin.conftest.close_order" in page
    assert "dt-running" in page


def test_the_page_shows_what_the_handler_does(admin_client):
    page = admin_client.get(PAGE).content.decode()
    assert "Close an order that nobody paid." in page
    assert "Its stock goes back on sale." in page
    assert "60 s to run, 3 attempts, 8 run slots" in page


def test_a_topic_is_paused_and_resumed(admin_client):
    admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]})
    assert topic().paused
    assert "dt-paused" in admin_client.get(LIST).content.decode()
    admin_client.post(LIST, {"action": "resume", "_selected_action": [TOPIC]})
    assert not topic().paused
    assert LogEntry.objects.filter(object_id=TOPIC).count() == 2


def test_pausing_what_is_paused_says_that_nothing_changed(admin_client):
    Topic.objects.filter(name=TOPIC).update(paused=True)
    page = admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]}, follow=True)
    assert "0 topics paused" in page.content.decode()
    assert not LogEntry.objects.exists()


def test_pausing_does_not_touch_what_the_engine_keeps_in_the_row(admin_client):
    Topic.objects.filter(name=TOPIC).update(slots={"token": 1})
    admin_client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]})
    assert topic().slots == {"token": 1}


def test_run_slots_are_given_on_the_page(admin_client):
    admin_client.post(PAGE, {"concurrency": "3"})
    assert topic().concurrency == 3
    admin_client.post(PAGE, {"concurrency": ""})
    assert topic().concurrency is None


def test_no_run_slots_are_refused_with_advice(admin_client):
    page = admin_client.post(PAGE, {"concurrency": "0"})
    assert "pause the topic instead" in page.content.decode()


def test_a_topic_keeps_its_name(admin_client):
    admin_client.post(PAGE, {"name": "test.renamed", "concurrency": "2"})
    assert topic().concurrency == 2
    assert not Topic.objects.filter(name="test.renamed").exists()


def test_a_new_topic_is_made_with_a_name_that_can_be_one(admin_client):
    page = admin_client.post(ADD, {"name": "no spaces"})
    assert "is not a topic" in page.content.decode()
    admin_client.post(ADD, {"name": "mail.send"})
    assert Topic.objects.filter(name="mail.send").exists()


def test_a_topic_with_a_handler_or_with_jobs_stays(admin_client):
    Topic.objects.create(name="mail.send")
    Topic.objects.create(name="mail.unused")
    make_job("mail:1", topic="mail.send")
    admin_client.post(
        LIST,
        {"action": "delete_selected", "_selected_action": [TOPIC, "mail.send"], "post": "yes"},
    )
    assert Topic.objects.filter(name__in=[TOPIC, "mail.send"]).count() == 2
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": ["mail.unused"], "post": "yes"})
    assert not Topic.objects.filter(name="mail.unused").exists()


def test_the_list_asks_nothing_per_topic(admin_client, django_assert_max_num_queries):
    for number in range(20):
        Topic.objects.create(name=f"mail.n{number}")
    with django_assert_max_num_queries(6):
        admin_client.get(LIST)


def test_who_may_only_look_cannot_pause(staff):
    client = staff("delaytasks.view_topic")
    assert client.get(LIST).status_code == 200
    client.post(LIST, {"action": "pause", "_selected_action": [TOPIC]})
    assert not topic().paused


@pytest.mark.parametrize("name", ["<script>alert(1)</script>"])
def test_a_hostile_name_is_escaped(admin_client, name):
    Topic.objects.create(name=name)
    assert "<script>alert(1)" not in admin_client.get(LIST).content.decode()
