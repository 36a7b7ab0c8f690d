"""Messages from a queue of AMQP: acknowledgements after the rows, dead letters. A scripted peer, and a RabbitMQ."""

import contextlib
import json
import time
from collections import Counter
from datetime import UTC, datetime

import amqp
import kombu
import pytest

from delaytasks.inbox.consumer import connect, step
from delaytasks.inbox.sources import BrokerDown
from delaytasks.models import InboxMessage, Job

from ..forwarding import amqp_peer as steps
from ..support.servers import free_port
from .conftest import text

pytestmark = pytest.mark.usefixtures("transactional_db")


def take(inbox, count):
    """Take `count` messages over a connection of its own. Return what became of them."""
    with contextlib.closing(connect(inbox)) as source:
        counts, deadline = Counter(), time.monotonic() + 20
        while counts.total() < count:
            assert time.monotonic() < deadline, f"only {counts}"
            counts += step(source, inbox, "default")
        return dict(counts)


# -- the scripted peer --------------------------------------------------------------------------


@pytest.fixture
def inbox(peer, make_inbox):
    return make_inbox(amqp="q", batch_max=10)


def test_messages_are_acknowledged_after_their_rows_are_stored(peer, inbox):
    peer.queue += [amqp.Message(text("1")), amqp.Message(text("2", key="order:2")), amqp.Message(text("3", "cancel"))]
    for message in peer.queue:
        message.body = message.body.encode()
    assert take(inbox, 3) == {"stored": 3}
    assert peer.confirmed.wait(5)
    assert (peer.queue, [job.key for job in Job.objects.live()]) == ([], ["order:2"])


def test_properties_and_headers_count(peer, inbox):
    sent = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp())
    body = {"action": "schedule", "topic": "shop.close", "key": "order:1", "due_at": "2029-12-31T12:00:00Z"}
    event = {"ce-id": "e1", "ce-source": "/s", "ce-type": "shop.close", "ce-specversion": "1.0"}
    event |= {"ce-subject": "order:2", "ce-delaytasksdelay": "60"}
    peer.queue += [
        amqp.Message(json.dumps(body).encode(), message_id="p1", timestamp=sent, content_encoding="utf-8"),
        amqp.Message(b'{"n": 1}', application_headers=event, content_type="application/json"),
    ]
    assert take(inbox, 2) == {"stored": 2}
    assert set(InboxMessage.objects.values_list("source", "message_id")) == {("", "p1"), ("/s", "e1")}
    assert Job.objects.get(key="order:2").body == {"n": 1}


def test_plain_headers_may_have_the_types_of_amqp(peer, inbox):
    due_at = datetime(2035, 1, 2, tzinfo=UTC)
    plain = {"delaytasks-topic": "shop.close", "delaytasks-key": "order:1", "delaytasks-ttr": 5}
    peer.queue += [
        amqp.Message(b'{"n": 1}', application_headers=plain | {"delaytasks-due": due_at}, message_id="p1"),
        amqp.Message(b"", application_headers=plain | {"delaytasks-id": 2, "delaytasks-key": "order:2",
                                                       "delaytasks-delay": 60.5, "delaytasks-expires": None}),
        amqp.Message(b"{}", application_headers=plain | {"delaytasks-delay": True}, message_id="p3"),
    ]  # fmt: skip
    assert take(inbox, 3) == {"stored": 2, "refused": 1}
    first, second = Job.objects.order_by("key")
    assert (first.body, first.due_at, first.ttr_ms) == ({"n": 1}, due_at, 5000)
    assert (second.body, second.key) == ({}, "order:2")
    assert set(InboxMessage.objects.values_list("message_id", flat=True)) == {"p1", "2"}


def test_a_message_that_was_stored_and_not_acknowledged_is_repeated_and_does_nothing(peer, inbox):
    peer.queue += [amqp.Message(text().encode())]
    with contextlib.closing(connect(inbox)) as source:
        source.confirm = lambda: None
        assert step(source, inbox, "default") == Counter(stored=1)
    assert take(inbox, 1) == {"repeated": 1}
    assert Job.objects.count() == 1


def test_poison_goes_to_the_dead_letters_and_blocks_nothing(peer, inbox):
    peer.queue += [amqp.Message(b"\xff{"), amqp.Message(text().encode())]
    assert take(inbox, 2) == {"stored": 1, "refused": 1}
    assert peer.confirmed.wait(5)
    assert peer.published == [("", inbox.dead_letter, True, b"\xff{")]
    assert peer.queue == []


@pytest.mark.parametrize("encoding", ["idna", "utf-8-sig", "utf-16", "base64", "no-such-encoding"])
def test_a_message_with_any_content_encoding_is_read_as_it_came(peer, inbox, encoding):
    poison = b"{" + b"x" * 100
    peer.queue += [amqp.Message(each, content_encoding=encoding) for each in (poison, text().encode())]
    assert take(inbox, 2) == {"stored": 1, "refused": 1}
    assert peer.published == [("", inbox.dead_letter, True, poison)]


@pytest.mark.parametrize(
    "properties",
    [b"\x20\x00\x00\x00\x00\x03\x02aa", b"\x00\x80\x02\xff\xff", b"\x20\x00\x00\x00\x00\x04\x01al\x00"],
    ids=["a header without a value", "a message_id that is not UTF-8", "half a number"],
)
def test_a_message_that_the_client_library_cannot_parse_is_an_error_of_the_broker(peer, inbox, properties):
    message = amqp.Message(b"{}")
    message._serialize_properties = lambda: properties
    peer.queue += [message]
    with pytest.raises(BrokerDown):
        take(inbox, 1)


@pytest.mark.parametrize("levels", [100, 500, 900])
def test_a_message_whose_headers_are_nested_deeply_is_refused(peer, inbox, levels):
    """py-amqp reads lists inside lists that it cannot write, and that Python cannot format."""
    item = b"t\x01"
    for _ in range(levels):
        item = b"A" + len(item).to_bytes(4, "big") + item
    message = amqp.Message(b"{")
    message._serialize_properties = lambda: b"\x20\x00" + (len(item) + 2).to_bytes(4, "big") + b"\x01h" + item
    peer.queue += [message]
    assert take(inbox, 1) == {"refused": 1}
    assert peer.published == [("", inbox.dead_letter, True, b"{")]


def test_a_header_whose_name_is_not_utf_8_is_ignored(peer, inbox):
    message = amqp.Message(text().encode(), message_id="m1")
    message._serialize_properties = lambda: b"\x20\x00" + (4).to_bytes(4, "big") + b"\x01\xfft\x01"
    peer.queue += [message]
    assert take(inbox, 1) == {"stored": 1}


def test_a_message_without_a_body_is_refused(peer, inbox):
    peer.queue += [amqp.Message(b"")]
    assert take(inbox, 1) == {"refused": 1}


@pytest.mark.parametrize("answer", [steps.nack, steps.return_and_ack, steps.hang_up])
def test_nothing_is_acknowledged_until_the_dead_letter_is_confirmed(peer, inbox, answer):
    peer.queue += [amqp.Message(b"{"), amqp.Message(text().encode())]
    peer.script(answer)
    with pytest.raises(BrokerDown, match=r"\.dead: "):
        take(inbox, 2)
    assert len(peer.queue) == 2
    assert take(inbox, 2) == {"repeated": 1, "refused": 1}
    assert peer.confirmed.wait(5)


def test_a_broker_that_hangs_up_is_down(peer, inbox):
    with contextlib.closing(connect(inbox)) as source:
        source._connection.connection.transport.sock.shutdown(2)
        with pytest.raises(BrokerDown):
            step(source, inbox, "default")


def test_a_broker_that_is_away_is_down(inbox, settings):
    settings.DELAYTASKS["BROKERS"]["amqp"] = f"amqp://127.0.0.1:{free_port()}//"
    with pytest.raises(BrokerDown, match="Error"):
        connect(inbox)


# -- RabbitMQ -----------------------------------------------------------------------------------


@pytest.fixture
def rabbit_inbox(rabbit, make_inbox, name):
    with kombu.Connection(rabbit.url()) as connection:
        for queue in (name, f"{name}.dead"):
            connection.channel().queue_declare(queue, durable=True, auto_delete=False)
    return make_inbox(amqp=name, batch_max=10)


@pytest.fixture
def send(rabbit, rabbit_inbox):
    def send(*bodies, **properties):
        with kombu.Connection(rabbit.url()) as connection:
            for body in bodies:
                message = amqp.Message(body, delivery_mode=2, **properties)
                connection.channel().basic_publish(message, "", rabbit_inbox.amqp)

    return send


def messages(rabbit, queue):
    with kombu.Connection(rabbit.url()) as connection:
        channel, found = connection.channel(), []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
        return found


def test_a_rabbitmq_delivers_what_was_not_acknowledged_again(rabbit, rabbit_inbox, send):
    send(text("1"), text("2", key="order:2"))
    with contextlib.closing(connect(rabbit_inbox)) as source:
        source.confirm = lambda: None
        assert step(source, rabbit_inbox, "default").total() >= 1
    assert sum(take(rabbit_inbox, 2).values()) == 2
    assert (Job.objects.count(), messages(rabbit, rabbit_inbox.amqp)) == (2, [])


def test_a_rabbitmq_has_the_dead_letter_with_its_headers_and_reason(rabbit, rabbit_inbox, send):
    send("{", application_headers={"shop": "eu"}, message_id="x", content_type="text/plain")
    assert take(rabbit_inbox, 1) == {"refused": 1}
    (letter,) = messages(rabbit, rabbit_inbox.dead_letter)
    assert (letter.body, letter.properties["message_id"], letter.headers["shop"]) == ("{", "x", "eu")
    assert (letter.headers["delaytasks-code"], letter.headers["delaytasks-origin"]) == ("not-json", rabbit_inbox.amqp)


def test_a_rabbitmq_has_messages_with_plain_headers_and_their_dead_letters(rabbit, rabbit_inbox, send):
    plain = {"delaytasks-topic": "shop.close", "delaytasks-key": "order:1", "delaytasks-due": "2035-01-02T00:00:00Z"}
    send('{"n": 1}', application_headers=plain, message_id="p1")
    send('{"n": 1}', application_headers=plain | {"delaytasks-due": "2055-01-02T00:00:00Z"}, message_id="p2")
    assert take(rabbit_inbox, 2) == {"stored": 1, "refused": 1}
    assert Job.objects.get().body == {"n": 1}
    (letter,) = messages(rabbit, rabbit_inbox.dead_letter)
    assert (letter.properties["message_id"], letter.headers["delaytasks-code"]) == ("p2", "invalid")
    assert "MAX_DELAY_SECONDS" in letter.headers["delaytasks-reason"]


def test_a_rabbitmq_has_the_dead_letter_of_a_message_whose_headers_fill_a_frame(rabbit, rabbit_inbox, send):
    send("{", application_headers={"h": "x" * 130_950})
    assert take(rabbit_inbox, 1) == {"refused": 1}
    (letter,) = messages(rabbit, rabbit_inbox.dead_letter)
    assert (letter.body, letter.headers["delaytasks-code"], "h" in letter.headers) == ("{", "not-json", False)
    assert "too large" in letter.headers["delaytasks-headers"]


def delete_dead_letters(rabbit, inbox):
    with kombu.Connection(rabbit.url()) as connection:
        connection.channel().queue_delete(inbox.dead_letter)


def test_a_rabbitmq_without_the_dead_letter_queue_delivers_nothing(rabbit, rabbit_inbox, send):
    send(text())
    delete_dead_letters(rabbit, rabbit_inbox)
    with pytest.raises(BrokerDown, match=f"no queue '{rabbit_inbox.dead_letter}'"):
        connect(rabbit_inbox)
    (message,) = messages(rabbit, rabbit_inbox.amqp)
    assert not message.delivery_info["redelivered"]


def test_a_rabbitmq_whose_dead_letter_queue_is_deleted_loses_nothing(rabbit, rabbit_inbox, send):
    send("{")
    with contextlib.closing(connect(rabbit_inbox)) as source, pytest.raises(BrokerDown, match="No queue"):
        delete_dead_letters(rabbit, rabbit_inbox)
        while True:
            step(source, rabbit_inbox, "default")
    assert [each.body for each in messages(rabbit, rabbit_inbox.amqp)] == ["{"]


def test_a_queue_that_does_not_exist_is_named(rabbit_inbox, make_inbox):
    with pytest.raises(BrokerDown, match="no queue 'in-nowhere'"):
        connect(make_inbox(amqp="in-nowhere"))
