"""Inboxes in the settings and in code, and what is wrong with them."""

import threading
from importlib.util import find_spec
from inspect import signature

import pytest
from django.core import checks as django_checks
from django.core.exceptions import ImproperlyConfigured

from delaytasks import conf
from delaytasks.exceptions import BadInput
from delaytasks.inbox import Inbox, declarations, declare
from delaytasks.inbox.consumer import consume

GOOD = {"kafka": "delays", "topics": ["shop.close"], "dead_letter": "delays.dead"}
BROKERS = {"kafka": {"bootstrap.servers": "kafka:9092"}, "amqp": "amqp://guest:s3cret@rabbit//"}


@pytest.fixture
def inboxes(settings):
    def inboxes(**options):
        settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": BROKERS, "INBOXES": options}

    return inboxes


def problems():
    return [each.msg for each in django_checks.run_checks(tags=["delaytasks"]) if each.id == "delaytasks.E050"]


def test_the_setting_declares_inboxes(inboxes):
    inboxes(shop=GOOD)
    assert declarations.find("shop") == Inbox("shop", **GOOD)
    assert problems() == []


def test_code_declares_inboxes_and_precedes_the_setting(inboxes):
    inboxes(shop=GOOD)
    try:
        declare("shop", amqp="delays", topics=["shop.close"], dead_letter="dead")
        assert (declarations.find("shop").protocol, declarations.names()) == ("amqp", ["shop"])
    finally:
        declarations.unregister("shop")
    assert declarations.find("shop").protocol == "kafka"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kafka": ""}, 'give either "kafka", the name of a Kafka topic'),
        ({"amqp": "delays"}, "not both"),
        ({"dead_letter": ""}, '"dead_letter" must name another topic or queue'),
        ({"dead_letter": "delays"}, '"dead_letter" must name another'),
        ({"topics": []}, '"topics" is []; give a list'),
        ({"topics": "shop.close"}, "\"topics\" is 'shop.close'"),
        ({"topics": ["shop close"]}, "'shop close' is not a topic's name"),
        ({"past_seconds": -1}, '"past_seconds" is -1'),
        ({"batch_max": 0}, '"batch_max" is 0; give a number from 1 to 1,000'),
        ({"broker": "kafak"}, "there is no broker 'kafak'"),
        ({"broker": "amqp"}, 'needs {"bootstrap.servers"'),
        ({"kafka": "", "amqp": "q", "broker": "kafka"}, "needs a URL that begins with amqp://"),
        ({"kafka": "", "amqp": "q", "group": "g"}, '"group" is for Kafka only'),
        ({"kafka": 5}, "'kafka' is 5"),
        ({"topic": "x"}, "unknown option 'topic'. Known: topics, dead_letter"),
    ],
)
def test_the_check_says_what_is_wrong(inboxes, change, problem):
    inboxes(shop=GOOD | change)
    (found,) = problems()
    assert problem in found
    assert "s3cret" not in found


def test_the_name_and_the_options_must_be_of_their_types(inboxes):
    inboxes(shop=5)
    assert problems() == ["Inbox 'shop' is 5; it must be a dict."]
    with pytest.raises(BadInput, match="The name of an inbox is ''"):
        declare("", **GOOD)


def test_the_check_names_an_inbox_whose_name_is_a_number(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": BROKERS, "INBOXES": {"shop": GOOD, 1: GOOD}}
    (found,) = problems()
    assert found.startswith("The name of an inbox is 1")


def test_the_setting_must_be_a_dict_and_the_days_positive():
    with pytest.raises(ImproperlyConfigured, match="INBOXES"):
        conf.from_dict({"INBOXES": ["shop"]})
    with pytest.raises(ImproperlyConfigured, match="INBOX_RETENTION_DAYS"):
        conf.from_dict({"INBOX_RETENTION_DAYS": 0})


def test_declare_takes_the_options_of_an_inbox_with_their_defaults():
    given = {name: each.default for name, each in signature(declare).parameters.items() if each.default != each.empty}
    inbox = Inbox("shop", **GOOD | {"kafka": "delays"})
    assert ["name", *declarations.OPTIONS] == list(signature(declare).parameters)
    assert {name: getattr(inbox, name) for name in given if name != "kafka"} == {
        name: default for name, default in given.items() if name != "kafka"
    }


@pytest.mark.parametrize(
    ("options", "library", "extra"),
    [(GOOD, "confluent_kafka", "kafka"), (GOOD, "cloudevents", "kafka"),
     (GOOD | {"kafka": "", "amqp": "delays"}, "cloudevents", "amqp")],
)  # fmt: skip
def test_a_missing_library_is_named_before_a_message_is_taken(inboxes, monkeypatch, options, library, extra):
    inboxes(shop=options)
    monkeypatch.setattr(declarations, "find_spec", lambda name: None if name == library else find_spec(name))
    problem = f"Inbox 'shop': {library} is not installed: pip install 'delaytasks[{extra}]'."
    assert problems() == [problem]
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(BadInput, match=f"{library} is not installed"):
        consume(declarations.find("shop"), stop=stopped)
