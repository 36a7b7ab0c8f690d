"""What the inbox makes of the cases of the CloudEvents conformance tests, from Kafka and from AMQP.

Each has what a schedule needs in addition: a key, which is the subject, and a delay.
"""

import json
from datetime import UTC, datetime

import pytest

from delaytasks import handlers
from delaytasks.clock import to_ms
from delaytasks.inbox.formats import PREFIXES, Refused
from delaytasks.inbox.messages import decode

from ..support.cloudevents_cases import BINARY_TYPES, DATA, EVENT, INVALID, STRUCTURED_TYPES, VALID
from .conftest import received

NOW_MS = to_ms(datetime(2030, 1, 1, tzinfo=UTC))
OURS = {"subject": "order:1", "delaytasksdelay": "60"}
# Invalid events that the inbox accepts: the library reads these attributes leniently, and the inbox does not use them.
UNUSED = {"invalidTimeToMinute", "invalidTimeOffsetHourOnly", "invalidNonRfc2046DataContentType"}
TOPICS = (EVENT["type"], "io.cloudevents.test")


@pytest.fixture(params=["kafka", "amqp"])
def inbox(request, make_inbox):
    for topic in TOPICS:
        handlers.handler(topic)(lambda job: None)
    yield make_inbox(topics=list(TOPICS), **{request.param: "delays"})
    for topic in TOPICS:
        handlers.unregister(topic)


def read(inbox, body, content_type, headers=None):
    return decode(received(body, content_type=content_type, **(headers or {})), inbox, now_ms=NOW_MS)


def structured(event):
    return json.dumps(event).encode()


def test_the_event_of_the_scenarios_in_binary_mode(inbox):
    prefix = PREFIXES[inbox.protocol]
    headers = {f"{prefix}{name}": value for name, value in (EVENT | OURS).items()}
    for content_type in BINARY_TYPES:
        command = read(inbox, json.dumps(DATA).encode(), content_type, headers)
        assert (command.identity, command.topic) == ((EVENT["source"], EVENT["id"]), EVENT["type"])
        assert command.terms["body"] == DATA


def test_the_event_of_the_scenarios_in_structured_mode(inbox):
    event = {**EVENT, **OURS, "datacontenttype": "application/json", "data": DATA}
    for content_type in STRUCTURED_TYPES:
        command = read(inbox, structured(event), content_type)
        assert (command.identity, command.topic) == ((EVENT["source"], EVENT["id"]), EVENT["type"])
        assert command.terms["body"] == DATA


@pytest.mark.parametrize("case", VALID)
def test_a_valid_event_is_accepted(inbox, case):
    event = VALID[case]
    command = read(inbox, structured(event | OURS), STRUCTURED_TYPES[0])
    assert (command.identity, command.topic) == ((event["source"], event["id"]), event["type"])
    assert command.terms.get("body") == event.get("data")


@pytest.mark.parametrize("case", sorted(UNUSED))
def test_a_wrong_attribute_that_the_inbox_does_not_use_is_ignored(inbox, case):
    assert read(inbox, structured(OURS | INVALID[case]), STRUCTURED_TYPES[0]).message_id == "invalid"


@pytest.mark.parametrize("case", sorted(INVALID.keys() - UNUSED))
def test_an_invalid_event_is_refused(inbox, case):
    with pytest.raises(Refused) as raised:
        read(inbox, structured(OURS | INVALID[case]), STRUCTURED_TYPES[0])
    assert raised.value.code in ("invalid", "not-allowed")


@pytest.mark.parametrize("name", ["specversion", "id", "source", "type"])
def test_an_event_in_binary_mode_without_a_required_attribute_is_refused(inbox, name):
    prefix = PREFIXES[inbox.protocol]
    headers = {f"{prefix}{each}": value for each, value in (EVENT | OURS).items() if each != name}
    with pytest.raises(Refused, match=f"it has no {name}"):
        read(inbox, b"{}", "application/json", headers)
