"""Staff see which topics are held, since when and why."""

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User

from delaytasks import handlers
from delaytasks.forwarding import holds
from delaytasks.models import Topic


@pytest.fixture
def staff(client, db):
    client.force_login(User.objects.create_superuser("ann"))
    return client


def test_the_list_and_the_page_of_a_topic_tell_that_it_is_held(staff):
    Topic.objects.create(name="order.timeout")
    page = "/admin/delaytasks/topic/order.timeout/change/"
    assert "held" not in staff.get("/admin/delaytasks/topic/").text
    assert "Held since" not in staff.get(page).text
    holds.hold("default", "order.timeout", "No connection to <shop>", None)
    Topic.objects.update(held_since=datetime(2026, 3, 4, 5, 6, tzinfo=UTC))
    assert ">held<" in staff.get("/admin/delaytasks/topic/").text
    text = staff.get(page).text
    assert "Held since" in text
    assert "March 4, 2026, 5:06" in text
    assert "No connection to &lt;shop&gt;" in text
    holds.release("default", "order.timeout")
    assert "Held since" not in staff.get(page).text


def test_a_paused_topic_that_is_held_is_shown_as_paused(staff):
    Topic.objects.create(name="order.timeout", paused=True)
    holds.hold("default", "order.timeout", "away", None)
    assert ">paused<" in staff.get("/admin/delaytasks/topic/").text


def test_a_topic_whose_target_a_handler_has_replaced_is_not_shown_as_held(staff, request):
    request.addfinalizer(lambda: handlers.unregister("order.timeout"))
    handlers.handler("order.timeout")(print)
    holds.hold("default", "order.timeout", "away", None)
    assert ">held<" not in staff.get("/admin/delaytasks/topic/").text
    assert "Held since" not in staff.get("/admin/delaytasks/topic/order.timeout/change/").text
