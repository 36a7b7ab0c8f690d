"""Where the jobs of a topic are forwarded: the fields in the admin, their refusals, permissions and log entries."""

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group

from delaytasks.forwarding import Webhook, forward, holds
from delaytasks.handlers import unregister
from delaytasks.models import AuditEntry, Topic

from .conftest import TOPIC

LIST = "/admin/delaytasks/topic/"
NAME = "order.timeout"
PAGE = f"{LIST}{NAME}/change/"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STORED = {
    "kind": "webhook", "url": "https://shop.example/hooks", "settings": "shop", "format": "cloudevents",
    "source": "/delaytasks", "timeout": 15,
}  # fmt: skip
WEBHOOK = {"target_kind": "webhook", "webhook_url": "https://shop.example/hooks", "webhook_settings": "shop"}
EDITORS = ("delaytasks.view_topic", "delaytasks.change_topic", "delaytasks.forward_topic")


@pytest.fixture(autouse=True)
def _row(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DELAYTASKS = {
        **settings.DELAYTASKS,
        "WEBHOOKS": {"shop": SECRET, "inside": {"allow_networks": ["10.0.0.0/8"]}},
        "BROKERS": {"events": {"bootstrap.servers": "kafka:1"}, "rabbit": "amqp://user:s3cret@rabbit//"},
    }
    # Networks for documents, such as 203.0.113.0/24, are not public.
    addresses = {"shop.example": "8.8.8.8", "intranet.example": "10.0.0.7"}
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, port, **_: [(2, 1, 6, "", (addresses.get(host, host), port))]
    )
    Topic.objects.create(name=NAME)


def target(name: str = NAME) -> Any:
    return Topic.objects.get(name=name).target


def page_of(client, page: str = PAGE) -> dict[str, Any]:
    """Return the form data that a browser would send for the unchanged page."""
    form = client.get(page).context["adminform"].form
    sent: dict[str, Any] = {}
    for box in form:
        sent |= {box.html_name: box.value(), box.html_initial_name: box.initial}
    return {
        name: "on" if value is True else value for name, value in sent.items() if value not in (None, False, "", [])
    }


def save(client, page: str = PAGE, **fields: str):
    return client.post(page, page_of(client, page) | fields)


def errors(response) -> dict[str, list[str]]:
    return dict(response.context["adminform"].form.errors)


def log_messages() -> list[str]:
    return [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]


# -- set, change, remove ---------------------------------------------------------------------------


def test_staff_set_change_and_remove_a_target(admin_client):
    save(admin_client, **WEBHOOK)
    assert target() == STORED
    save(admin_client, webhook_url="https://shop.example/other", target_format="json", target_timeout="7")
    assert target() == {**STORED, "url": "https://shop.example/other", "format": "json", "timeout": 7}
    save(admin_client, target_kind="")
    assert target() is None


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        (
            {"target_kind": "kafka", "kafka_topic": "orders", "kafka_key": "key", "kafka_broker": "events"},
            {"kind": "kafka", "topic": "orders", "key": "key", "broker": "events", "format": "cloudevents"},
        ),
        (
            {"target_kind": "amqp", "amqp_exchange": "", "amqp_routing_key": "{topic}", "amqp_broker": "rabbit"},
            {"kind": "amqp", "exchange": "", "routing_key": "{topic}", "broker": "rabbit", "format": "cloudevents"},
        ),
        (
            {"target_kind": "celery", "celery_task": "shop.tasks.close", "celery_queue": "shop"},
            {"kind": "celery", "task": "shop.tasks.close", "queue": "shop", "format": "json"},
        ),
    ],
)
def test_each_kind_has_its_own_fields(admin_client, fields, stored):
    save(admin_client, **fields)
    assert target() == stored | {"source": "/delaytasks", "timeout": 15}
    save(admin_client, **WEBHOOK)
    assert target() == STORED | {"format": stored["format"]}  # nothing of the other kind stays


def test_a_topic_is_added_with_its_target(admin_client):
    admin_client.post(f"{LIST}add/", {"name": "order.remind", **WEBHOOK})
    assert target("order.remind") == STORED


def test_saving_an_unchanged_page_changes_and_logs_nothing(admin_client):
    Topic.objects.update(target=STORED)
    save(admin_client)
    assert (target(), log_messages()) == (STORED, [])


def test_saving_an_old_page_does_not_revert_a_target_of_others(admin_client):
    page = page_of(admin_client)
    Topic.objects.update(target=STORED)
    admin_client.post(PAGE, page | {"ask_reason": "on"})
    assert target() == STORED
    assert Topic.objects.get(name=NAME).ask_reason


def test_a_change_on_an_old_page_keeps_the_other_fields_that_others_have_changed(admin_client):
    Topic.objects.filter(name=NAME).update(target=STORED)
    old = page_of(admin_client)
    newer = STORED | {"url": "https://8.8.4.4/hooks", "format": "json"}
    Topic.objects.filter(name=NAME).update(target=newer)
    assert admin_client.post(PAGE, old | {"target_timeout": "5"}).status_code == 302
    assert target() == newer | {"timeout": 5}


@pytest.mark.parametrize("newer", [None, {"kind": "celery", "task": "a.b", "format": "json"}], ids=["none", "another"])
def test_a_field_that_the_newer_target_does_not_use_is_refused(admin_client, newer):
    Topic.objects.filter(name=NAME).update(target=STORED)
    old = page_of(admin_client)
    Topic.objects.filter(name=NAME).update(target=newer)
    (error,) = errors(admin_client.post(PAGE, old | {"webhook_url": "https://8.8.4.4/hooks"})).items()
    assert error == (
        "target_kind",
        ["The target that is stored now is of another kind: reload the page, and change it again."],
    )
    assert target() == newer


def test_a_topic_whose_target_cannot_be_used_any_more_can_still_be_changed(admin_client, settings):
    Topic.objects.update(target=STORED)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "WEBHOOKS": {}}
    save(admin_client, concurrency="3")
    assert (Topic.objects.get(name=NAME).concurrency, target()) == (3, STORED)
    response = save(admin_client, webhook_url="https://shop.example/new")
    assert errors(response) == {"webhook_settings": ["The settings (WEBHOOKS) have no shop."]}
    save(admin_client, target_kind="")
    assert target() is None


def test_a_new_target_ends_the_hold_of_the_former_one(admin_client):
    Topic.objects.update(target=STORED)
    holds.hold("default", NAME, "The receiver answered 503.", 3600)
    save(admin_client, concurrency="3")
    assert Topic.objects.get(name=NAME).held_since is not None
    save(admin_client, webhook_url="https://shop.example/other")
    row = Topic.objects.get(name=NAME)
    assert (row.held_since, row.held_why, row.held_until) == (None, "", None)


def test_a_topic_with_a_target_cannot_be_deleted(admin_client):
    Topic.objects.update(target=STORED)
    assert admin_client.post(f"{LIST}{NAME}/delete/", {"post": "yes"}).status_code == 403
    save(admin_client, target_kind="")
    admin_client.post(f"{LIST}{NAME}/delete/", {"post": "yes"})
    assert not Topic.objects.filter(name=NAME).exists()


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"webhook_url": ""}, "webhook_url", "This field is required."),
        ({"webhook_url": "https://ann:pw@shop.example/"}, "webhook_url", "a user, a password or a token"),
        ({"webhook_url": "https://shop.example/?token=abc"}, "webhook_url", "a user, a password or a token"),
        ({"webhook_url": "http://shop.example/"}, "webhook_url", "must begin with https://"),
        ({"webhook_url": "https://10.1.2.3/"}, "webhook_url", "is not public"),
        ({"webhook_url": "https://intranet.example/"}, "webhook_url", "10.0.0.7"),
        ({"webhook_url": "shop.example"}, "webhook_url", "must begin with https://"),
        ({"webhook_url": "https:///hooks"}, "webhook_url", "a URL with a host"),
        ({"webhook_settings": "gone"}, "webhook_settings", "(WEBHOOKS) have no gone"),
        ({"target_kind": "kafka"}, "kafka_topic", "This field is required."),
        ({"target_kind": "kafka", "kafka_topic": "a"}, "kafka_broker", "This field is required."),
        (
            {"target_kind": "kafka", "kafka_topic": "a", "kafka_broker": "rabbit"},
            "kafka_broker",
            "have no broker rabbit",
        ),
        ({"target_kind": "amqp", "amqp_routing_key": "{body}", "amqp_broker": "rabbit"}, "amqp_routing_key", "{body}"),
        ({"target_kind": "celery"}, "celery_task", "This field is required."),
        ({"target_kind": "pigeon"}, "target_kind", "pigeon is not one of the available choices"),
        ({"target_timeout": "0"}, "target_timeout", "greater than or equal to 0.1"),
        ({"target_format": "xml"}, "target_format", "xml is not one of"),
    ],
)
def test_wrong_targets_are_refused_at_their_field(admin_client, fields, field, words):
    response = save(admin_client, **WEBHOOK | fields)
    assert response.status_code == 200
    assert words in " ".join(errors(response)[field])
    assert (target(), log_messages()) == (None, [])
    assert '<div class="readonly">none here</div>' in response.text
    assert "s3cret" not in response.text


def test_networks_of_the_settings_are_allowed(admin_client):
    save(admin_client, **WEBHOOK | {"webhook_url": "https://intranet.example/", "webhook_settings": "inside"})
    assert target()["settings"] == "inside"


def test_a_target_without_its_library_is_refused(admin_client, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "standardwebhooks" else object())
    response = save(admin_client, **WEBHOOK)
    (message,) = errors(response)["target_kind"]
    assert message == "standardwebhooks is not installed here: pip install 'delaytasks[webhook]'."


def test_a_topic_with_a_handler_is_refused_and_the_message_says_where_it_is(admin_client):
    response = save(admin_client, f"{LIST}{TOPIC}/change/", **WEBHOOK)
    (message,) = errors(response)["target_kind"]
    assert "handled in code, by tests.admin.conftest.close_order." in message
    assert target(TOPIC) is None


def test_a_topic_with_a_target_in_code_is_refused_and_the_message_says_where_it_is(admin_client):
    forward(NAME, Webhook("https://shop.example/"))
    try:
        for page, name in ((PAGE, {}), (f"{LIST}add/", {"name": NAME})):
            response = save(admin_client, page, **WEBHOOK | name)
            (message,) = errors(response)["target_kind"]
            expected = f"{__name__}.forward({NAME!r}, Webhook(https://shop.example/))"
            assert f"handled in code, by {expected}." in message
        assert "forward(" in admin_client.get(LIST).text
    finally:
        unregister(NAME)
    assert target() is None


# -- who may, and what is recorded -----------------------------------------------------------------


def test_the_permission_to_change_topics_is_not_enough(staff):
    client = staff("delaytasks.view_topic", "delaytasks.change_topic")
    Topic.objects.update(target=STORED)
    response = client.get(PAGE)
    assert "https://shop.example/hooks" in response.text
    assert "id_target_kind" not in response.text
    client.post(PAGE, page_of(client) | {"target_kind": "", "concurrency": "3"})
    assert (Topic.objects.get(name=NAME).concurrency, target()) == (3, STORED)


def test_the_permission_to_forward_needs_that_to_change_topics(staff):
    client = staff("delaytasks.view_topic", "delaytasks.forward_topic")
    Topic.objects.update(target=STORED)
    assert "id_target_kind" not in client.get(PAGE).text
    assert client.post(PAGE, WEBHOOK).status_code == 403
    save(staff(*EDITORS), target_kind="")
    assert target() is None


def test_a_topic_that_is_hidden_from_a_person_cannot_be_forwarded_by_them(staff):
    Topic.objects.filter(name=NAME).update(visible_to=[Group.objects.create(name="Support").pk + 1])
    client = staff(*EDITORS)
    assert client.post(PAGE, WEBHOOK).status_code == 302  # as for an unknown topic
    assert target() is None


def test_a_change_is_in_both_logs_with_its_author_and_both_values(staff):
    client = staff(*EDITORS)
    save(client, **WEBHOOK)
    save(client, webhook_url="https://shop.example/other", concurrency="3")
    assert log_messages() == ["Changed Target.", "Changed Concurrency and Target."]
    first, second = AuditEntry.objects.filter(topic=NAME).order_by("pk")
    assert (first.actor, first.action) == (client.user.get_username(), "topic.changed")
    assert (first.before["target"], first.after["target"]) == (None, STORED)
    assert (second.before["target"]["url"], second.after["target"]["url"]) == (
        "https://shop.example/hooks", "https://shop.example/other",
    )  # fmt: skip


def test_the_list_and_the_page_say_where_jobs_go(admin_client):
    Topic.objects.update(target=STORED)
    text = admin_client.get(LIST).text
    assert "<summary>webhook https://shop.example/hooks " in text
    assert "webhook; URL: https://shop.example/hooks, settings: shop, format: CloudEvent as JSON" in text
    assert '<div class="readonly">webhook https://shop.example/hooks</div>' in admin_client.get(PAGE).text
    assert "A failed attempt is retried after 5 s" in admin_client.get(PAGE).text


def test_a_target_is_escaped(admin_client):
    Topic.objects.update(target={**STORED, "url": "https://shop.example/<script>"})
    for page in (LIST, PAGE):
        assert "<script>," not in admin_client.get(page).text


@pytest.mark.parametrize("broken", [[], 3, {"kind": "pigeon"}, {"kind": "webhook"}])
def test_a_broken_row_can_be_seen_and_mended(admin_client, broken):
    Topic.objects.update(target=broken)
    assert admin_client.get(LIST).status_code == 200
    save(admin_client, **WEBHOOK)
    assert target() == STORED
