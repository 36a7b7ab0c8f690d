"""What a message may say: JSON, CloudEvents in both modes, and everything that is refused."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from cloudevents.core.bindings import kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent

from delaytasks.clock import to_ms
from delaytasks.exceptions import BadInput
from delaytasks.inbox import consumer
from delaytasks.inbox.consumer import _decode
from delaytasks.inbox.formats import to_headers, to_text
from delaytasks.inbox.messages import Refused, decode
from delaytasks.validators import JSON_NULL

from .conftest import document, received

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EVENT = {"id": "e1", "source": "/shop", "type": "shop.close", "subject": "order:1"}


@pytest.fixture
def kafka_inbox(make_inbox):
    return make_inbox(kafka="delays")


@pytest.fixture
def amqp_inbox(make_inbox):
    return make_inbox(amqp="delays")


def read(inbox, body, **properties):
    return decode(received(body, **properties), inbox, now_ms=to_ms(NOW))


def code_of(inbox, body, **properties):
    with pytest.raises(Refused) as raised:
        read(inbox, body, **properties)
    return raised.value.code


def test_a_document_says_all_that_schedule_takes(kafka_inbox):
    command = read(
        kafka_inbox,
        document(due_at="2030-01-01T02:00:00+01:00", body={"n": 1}, ttr_seconds=5, expires_seconds=9.5,
                 on_conflict="keep"),
    )  # fmt: skip
    due_at = datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert command.terms == {"due_at": due_at, "body": {"n": 1}, "ttr": 5, "expires": 9.5}
    assert (command.action, command.topic, command.key) == ("schedule", "shop.close", "order:1")
    assert (command.identity, command.on_conflict) == (("", "m1"), "keep")


def test_a_cancel_has_a_topic_and_a_key(kafka_inbox):
    command = read(kafka_inbox, document(action="cancel"))
    assert (command.action, command.terms) == ("cancel", {})


def test_the_brokers_message_id_stands_in_for_the_id(amqp_inbox):
    body = {name: value for name, value in document().items() if name != "id"}
    assert read(amqp_inbox, body, message_id="p1").message_id == "p1"
    assert code_of(amqp_inbox, body) == "invalid"


def test_a_schedule_replaces_a_live_job_unless_it_says_otherwise(kafka_inbox):
    assert read(kafka_inbox, document()).on_conflict == "replace"


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_a_cloudevent_of_kafka_has_extensions(kafka_inbox, mode):
    event = CloudEvent({**EVENT, "delaytasksdelay": "60", "delaytasksconflict": "keep"}, {"n": 1})
    message = getattr(kafka, f"to_{mode}_event")(event)
    headers = {name: value.decode() for name, value in message.headers.items()}
    command = read(kafka_inbox, message.value, content_type=headers.pop("content-type", ""), **headers)
    assert (command.identity, command.topic, command.key) == (("/shop", "e1"), "shop.close", "order:1")
    assert (command.terms, command.on_conflict) == ({"delay": 60, "body": {"n": 1}}, "keep")


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_a_cloudevent_of_amqp_has_extensions(amqp_inbox, mode):
    event = CloudEvent({**EVENT, "delaytasksdue": "2030-01-02T00:00:00Z"}, {"n": 1})
    message = getattr(rabbitmq, f"to_{mode}_event")(event)
    command = read(amqp_inbox, message.body, content_type=message.content_type or "", **message.headers)
    assert command.terms == {"due_at": NOW + timedelta(days=1), "body": {"n": 1}}


def test_a_cloudevent_may_cancel(kafka_inbox):
    message = kafka.to_structured_event(CloudEvent({**EVENT, "delaytasksaction": "cancel"}, None))
    command = read(kafka_inbox, message.value, content_type="application/cloudevents+json; charset=utf-8")
    assert (command.action, command.source, command.terms) == ("cancel", "/shop", {})


def test_two_formats_of_the_same_message_have_one_digest(kafka_inbox):
    event = CloudEvent({**EVENT, "delaytasksdelay": 60}, {"n": 1})  # a text in headers
    digests = {read(kafka_inbox, document(delay_seconds=60, body={"n": 1})).digest}
    for mode in ("binary", "structured"):
        message = getattr(kafka, f"to_{mode}_event")(event)
        headers = {name: value.decode() for name, value in message.headers.items()}
        digests.add(read(kafka_inbox, message.value, content_type=headers.pop("content-type", ""), **headers).digest)
    assert len(digests) == 1


def test_every_field_is_in_the_digest(kafka_inbox):
    given = [
        {}, {"key": "order:2"}, {"delay_seconds": 61}, {"body": {}}, {"body": None}, {"ttr_seconds": 5},
        {"expires_seconds": 5}, {"on_conflict": "keep"}, {"topic": "shop.remind"}, {"action": "cancel"},
        {"due_at": "2030-01-02T00:00:00Z"}, {"due_at": "2030-01-02T00:00:01Z"},
    ]  # fmt: skip
    assert len({read(kafka_inbox, document(**each)).digest for each in given}) == len(given)
    same = ({"on_conflict": "replace"}, {"id": "m2"}, {"ttr_seconds": None}, {"delay_seconds": 60.0})
    assert {read(kafka_inbox, document(**each)).digest for each in same} == {read(kafka_inbox, document()).digest}


def test_a_digest_is_the_same_in_another_process(kafka_inbox):
    digest = read(kafka_inbox, document(body=None)).digest
    assert digest.startswith("6be2ec1c30ac")


# -- headers ------------------------------------------------------------------------------------

PLAIN = {"delaytasks-topic": "shop.close", "delaytasks-key": "order:1", "delaytasks-id": "m1"}


@pytest.mark.parametrize("fixture", ["kafka_inbox", "amqp_inbox"])
def test_plain_headers_say_what_to_do_and_the_whole_message_is_the_body(request, fixture):
    headers = PLAIN | {"delaytasks-due": "2030-01-02T00:00:00Z", "delaytasks-ttr": "5", "delaytasks-expires": "9.5"}
    headers |= {"delaytasks-conflict": "keep", "trace": "x"}
    command = read(request.getfixturevalue(fixture), {"action": "cancel", "n": 1}, **headers)
    assert (command.action, command.topic, command.key) == ("schedule", "shop.close", "order:1")
    assert (command.identity, command.on_conflict) == (("", "m1"), "keep")
    due_at = NOW + timedelta(days=1)
    assert command.terms == {"due_at": due_at, "ttr": 5, "expires": 9.5, "body": {"action": "cancel", "n": 1}}


@pytest.mark.parametrize(("body", "terms"), [(b"", {}), (b"null", {"body": JSON_NULL}), (b"[1]", {"body": [1]})])
def test_the_body_of_a_message_with_plain_headers_is_any_json_or_nothing(kafka_inbox, body, terms):
    command = read(kafka_inbox, body, **PLAIN, **{"delaytasks-delay": "60"})
    assert command.terms == {"delay": 60, **terms}


def test_plain_headers_may_cancel(kafka_inbox):
    command = read(kafka_inbox, b"not read", **PLAIN, **{"delaytasks-action": "cancel"})
    assert (command.action, command.key, command.terms) == ("cancel", "order:1", {})


def test_the_brokers_message_id_identifies_a_message_with_plain_headers(amqp_inbox):
    headers = {name: value for name, value in PLAIN.items() if name != "delaytasks-id"} | {"delaytasks-delay": "1"}
    assert read(amqp_inbox, {}, message_id="p1", **headers).message_id == "p1"
    assert code_of(amqp_inbox, {}, **headers) == "invalid"


@pytest.mark.parametrize("key", [b"M\xfcller:1", b"M\xf6ller:1"])
def test_a_header_that_is_not_utf_8_is_refused(kafka_inbox, key):
    """Decoded with replacements, the two keys would be one."""
    assert (
        code_of(kafka_inbox, {}, **PLAIN | {"delaytasks-key": to_text(key)}, **{"delaytasks-delay": "1"}) == "invalid"
    )


@pytest.mark.parametrize("name", ["topic", "key", "action", "id", "delay", "conflict"])
def test_a_header_that_is_given_twice_is_refused(kafka_inbox, name):
    """Another program, which checks messages before this one, may have read the other of the two."""
    given = PLAIN | {"delaytasks-delay": "60", "delaytasks-action": "schedule", "delaytasks-conflict": "keep"}
    headers = to_headers([*given.items(), (f"Delaytasks-{name}", given[f"delaytasks-{name}"])])
    assert code_of(kafka_inbox, {}, **headers) in ("invalid", "not-allowed")


def test_bytes_in_a_header_that_is_not_ours_refuse_no_message(kafka_inbox):
    message = kafka.to_binary_event(CloudEvent(dict(EVENT), {"n": 1}))
    headers = {name: value.decode() for name, value in message.headers.items()}
    headers |= {"span": to_text(b"\xff\x00"), "delaytasks-delay": "60"}
    assert read(kafka_inbox, message.value, **headers).key == EVENT["subject"]


def test_plain_headers_say_the_same_as_a_document(kafka_inbox):
    plain = read(kafka_inbox, {"n": 1}, **PLAIN, **{"delaytasks-delay": "60"})
    assert plain.digest == read(kafka_inbox, document(delay_seconds=60, body={"n": 1})).digest


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_a_cloudevent_may_have_its_due_time_in_a_plain_header(kafka_inbox, mode):
    message = getattr(kafka, f"to_{mode}_event")(CloudEvent(dict(EVENT), {"n": 1}))
    headers = {name: value.decode() for name, value in message.headers.items()}
    headers |= {"delaytasks-due": "2030-01-02T00:00:00Z", "delaytasks-conflict": "again"}
    command = read(kafka_inbox, message.value, content_type=headers.pop("content-type", ""), **headers)
    assert (command.identity, command.topic, command.on_conflict) == (("/shop", "e1"), "shop.close", "again")
    assert command.terms == {"due_at": NOW + timedelta(days=1), "body": {"n": 1}}


@pytest.mark.parametrize("name", ["delaytasks-topic", "delaytasks-key", "delaytasks-id", "delaytasks-delay"])
def test_a_cloudevent_that_has_a_field_twice_is_refused(kafka_inbox, name):
    event = CloudEvent({**EVENT, "delaytasksdelay": 60}, None)
    message = kafka.to_structured_event(event)
    with pytest.raises(Refused, match=f"{name} and") as raised:
        read(kafka_inbox, message.value, content_type="application/cloudevents+json", **{name: "60"})
    assert raised.value.code == "invalid"


def test_a_dead_letter_that_is_sent_again_with_its_headers_is_read_as_before(kafka_inbox):
    """The inbox adds these headers to a dead letter."""
    dead = {f"delaytasks-{name}": "x" for name in ("inbox", "code", "reason", "origin", "value")}
    assert read(kafka_inbox, document(), **dead).digest == read(kafka_inbox, document()).digest
    assert read(kafka_inbox, {}, **PLAIN, **dead, **{"delaytasks-delay": "5"}).terms == {"delay": 5, "body": {}}


@pytest.mark.parametrize(
    ("headers", "body", "code", "reason"),
    [
        ({"delaytasks-due": "tomorrow"}, b"{}", "invalid", "delaytasks-due is 'tomorrow'; give a time such as"),
        ({"delaytasks-due": "1893456000"}, b"{}", "invalid", "delaytasks-due is '1893456000'; give a time such as"),
        ({"delaytasks-due": ""}, b"{}", "invalid", "delaytasks-due is ''; give a time such as"),
        ({"delaytasks-due": "2030-01-01T00:00:00"}, b"{}", "invalid", "NaiveDatetime"),
        ({"delaytasks-due": "2040-06-01T00:00:00Z"}, b"{}", "invalid", "MAX_DELAY_SECONDS"),
        ({"delaytasks-due": "2029-01-01T00:00:00Z"}, b"{}", "due-in-past", "past_seconds"),
        ({"delaytasks-delay": "soon"}, b"{}", "invalid", "delaytasks-delay is 'soon'; give a number of seconds"),
        ({"delaytasks-delay": "-1"}, b"{}", "invalid", "BadDelay"),
        ({"delaytasks-delay": "5", "delaytasks-due": "2030-01-02T00:00:00Z"}, b"{}", "invalid", "both were given"),
        ({"delaytasks-ttr": "5"}, b"{}", "invalid", "neither was given"),
        ({"delaytasks-delay": "5", "delaytasks-ttr": "0"}, b"{}", "invalid", "BadTTR"),
        ({"delaytasks-delay": "5", "delaytasks-conflict": "merge"}, b"{}", "invalid", "delaytasks-conflict is 'merge'"),
        ({"delaytasks-delay": "5", "delaytasks-action": "stop"}, b"{}", "invalid", "delaytasks-action is 'stop'"),
        ({"delaytasks-dleay": "5"}, b"{}", "invalid", "Unknown header 'delaytasks-dleay'. Known: delaytasks-action"),
        ({"delaytasks-delay": "5", "delaytasks-key": ""}, b"{}", "invalid", "BadKey"),
        ({"delaytasks-delay": "5", "delaytasks-id": "x" * 256}, b"{}", "invalid", "no valid id"),
        ({"delaytasks-delay": "5", "delaytasks-topic": "shop.other"}, b"{}", "not-allowed", "shop.other"),
        ({"delaytasks-delay": "5"}, b"{", "not-json", "not JSON"),
        ({"delaytasks-delay": "5"}, b"\xff", "not-json", "not JSON"),
        (
            {"delaytasks-action": "cancel", "delaytasks-delay": "5"},
            b"",
            "invalid",
            "delaytasks-delay is not allowed in a message that cancels",
        ),
    ],
)
def test_a_wrong_header_is_refused_and_named(kafka_inbox, headers, body, code, reason):
    with pytest.raises(Refused) as raised:
        read(kafka_inbox, body, **PLAIN | headers)
    assert (raised.value.code, reason in raised.value.reason) == (code, True), raised.value.reason


@pytest.mark.parametrize("name", ["topic", "key"])
def test_plain_headers_without_topic_or_key_are_refused(kafka_inbox, name):
    headers = {each: value for each, value in PLAIN.items() if not each.endswith(name)} | {"delaytasks-delay": "5"}
    with pytest.raises(Refused, match=f"no header delaytasks-{name}") as raised:
        read(kafka_inbox, {}, **headers)
    assert raised.value.code == "invalid"


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 100_000, b"[1]", b'"text"', b"null", b"1" * 5000],
    ids=["empty", "cut off", "not UTF-8", "too deep", "list", "text", "null", "long number"],
)
def test_what_is_not_an_object_of_json_is_refused(kafka_inbox, body):
    assert code_of(kafka_inbox, body) == "not-json"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"action": "delete"}, "action is 'delete'; use 'schedule' or 'cancel'"),
        ({"id": ""}, "no valid id"),
        ({"id": "x" * 256}, "no valid id"),
        ({"id": "a\x00"}, "no valid id"),
        ({"id": {}}, "no valid id"),
        ({"key": ""}, "BadKey"),
        ({"key": ["a"]}, "BadKey"),
        ({"delay": 5}, "Unknown field 'delay'. Known: id, action"),
        ({"due_at": "tomorrow"}, "give a time such as 2030-01-31T12:00:00Z"),
        ({"due_at": 5}, "give a time such as"),
        ({"due_at": "2030-01-01T00:00:00"}, "NaiveDatetime"),
        ({"due_at": "2040-06-01T00:00:00Z"}, "MAX_DELAY_SECONDS"),
        ({"delay_seconds": 11 * 366 * 86_400}, "BadDelay"),
        ({"delay_seconds": -1}, "BadDelay"),
        ({"delay_seconds": "soon"}, "delay_seconds is 'soon'; give a number of seconds"),
        ({"delay_seconds": True}, "give a number of seconds"),
        ({"delay_seconds": None}, "neither was given"),
        ({"delay_seconds": 5, "due_at": "2030-01-02T00:00:00Z"}, "both were given"),
        ({"ttr_seconds": 0}, "BadTTR"),
        ({"body": "x" * 70_000}, "MAX_BODY_BYTES"),
        ({"body": "\x00"}, "NUL"),
        ({"body": float("nan")}, "BadBody"),
        ({"on_conflict": "merge"}, "on_conflict is 'merge'; use 'replace'"),
        ({"on_conflict": []}, "on_conflict is"),
        ({"action": "cancel", "delay_seconds": 5}, "delay_seconds is not allowed in a message that cancels"),
    ],
)
def test_a_wrong_field_is_refused_and_named(kafka_inbox, settings, fields, reason):
    with pytest.raises(Refused) as raised:
        read(kafka_inbox, document(**fields))
    assert (raised.value.code, reason in raised.value.reason) == ("invalid", True), raised.value.reason


@pytest.mark.parametrize("topic", ["shop.other", "", None, ["shop.close"], 5])
def test_a_topic_that_the_inbox_does_not_allow_is_refused(kafka_inbox, topic):
    assert code_of(kafka_inbox, document(topic=topic)) == "not-allowed"


def test_a_due_time_long_before_the_message_was_sent_is_refused(kafka_inbox, make_inbox):
    due_at = (NOW - timedelta(days=1, seconds=1)).isoformat()
    assert code_of(kafka_inbox, document(due_at=due_at)) == "due-in-past"
    assert read(kafka_inbox, document(due_at=due_at), sent_ms=to_ms(NOW - timedelta(hours=1))).terms
    assert read(make_inbox(kafka="delays", past_seconds=90_000), document(due_at=due_at)).terms


def test_a_clock_of_a_producer_that_is_ahead_refuses_nothing(kafka_inbox):
    due_at = NOW.isoformat()
    assert read(kafka_inbox, document(due_at=due_at), sent_ms=to_ms(NOW + timedelta(days=9))).terms


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ({"ce_id": "e1"}, b"{}"),
        ({"ce_id": "e1", "ce_source": "/s", "ce_type": "shop.close", "ce_specversion": "1.0", "ce_time": "?"}, b"{}"),
        ({"ce_id": "e1", "ce_source": "/s", "ce_type": "shop.close", "ce_specversion": "9"}, b"{}"),
    ],
    ids=["incomplete", "wrong time", "wrong version"],
)
def test_what_is_not_a_cloudevent_is_refused(kafka_inbox, attributes, body):
    assert code_of(kafka_inbox, body, **attributes) == "invalid"


def test_the_data_of_a_cloudevent_must_be_json(kafka_inbox):
    headers = {f"ce_{name}": value for name, value in {**EVENT, "specversion": "1.0", "delaytasksdelay": "5"}.items()}
    assert code_of(kafka_inbox, b"{", content_type="application/json", **headers) == "not-json"
    assert code_of(kafka_inbox, b"\xff", content_type="image/png", **headers) == "not-json"
    assert read(kafka_inbox, b"words", content_type="text/plain", **headers).terms["body"] == "words"


@pytest.mark.parametrize("fixture", ["kafka_inbox", "amqp_inbox"])
@pytest.mark.parametrize("content_type", ["", "Application/JSON", "application/vnd.my_shop+json; charset=utf-8"])
def test_the_data_of_a_cloudevent_is_json_whatever_its_type_is_called(request, fixture, content_type):
    prefix = "ce_" if fixture == "kafka_inbox" else "ce-"
    attributes = {**EVENT, "specversion": "1.0", "delaytasksdelay": "5"}
    headers = {f"{prefix}{name}": value for name, value in attributes.items()}
    command = read(request.getfixturevalue(fixture), {"n": 1}, content_type=content_type, **headers)
    assert command.terms["body"] == {"n": 1}


def test_a_reason_fits_into_a_header():
    refused = Refused("error", "\ud800" + "x" * 5000)
    assert (refused.reason[:7], len(refused.reason), str(refused)) == ("\\ud800x", 1000, refused.reason)


def test_a_missing_library_blames_no_message(kafka_inbox, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudevents.core.bindings.kafka", None)
    headers = {f"ce_{name}": text for name, text in {**EVENT, "specversion": "1.0"}.items()}
    with pytest.raises(BadInput, match="cloudevents is not installed"):
        _decode(received({}, **headers), kafka_inbox, to_ms(NOW))


def test_an_unknown_error_of_reading_refuses_the_message(kafka_inbox, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("a defect")

    monkeypatch.setattr(consumer, "decode", fail)
    refused = _decode(received({}), kafka_inbox, to_ms(NOW))
    assert (refused.code, refused.reason) == ("error", "RuntimeError: a defect")
