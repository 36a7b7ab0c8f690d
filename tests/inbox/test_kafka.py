"""Messages from a topic of Kafka: offsets after the rows, dead letters, outages. Librdkafka's mock cluster."""

import contextlib
import dataclasses
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from django.db import OperationalError, ProgrammingError

from delaytasks.inbox import consumer
from delaytasks.inbox.consumer import connect, consume, step
from delaytasks.inbox.sources import BrokerDown
from delaytasks.models import InboxMessage, Job

from .conftest import text

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def inbox(kafka, make_inbox, name, settings):
    settings.DELAYTASKS["BROKERS"]["kafka"] |= kafka.group_options
    inbox = make_inbox(kafka=name, batch_max=10)
    for topic in (name, inbox.dead_letter):
        kafka.create_topic(topic)
    return inbox


@pytest.fixture
def stop():
    """An event that is set after a minute at the latest."""
    event = threading.Event()
    timer = threading.Timer(60, event.set)
    timer.start()
    yield event
    timer.cancel()


@pytest.fixture
def source(inbox):
    with contextlib.closing(connect(inbox)) as source:
        yield source


def take(source, inbox, count):
    """Take `count` messages. Return what became of them."""
    counts, deadline = Counter(), time.monotonic() + 60
    while counts.total() < count:
        assert time.monotonic() < deadline, f"only {counts}"
        counts += step(source, inbox, "default")
    return dict(counts)


def take_anew(inbox, count):
    with contextlib.closing(connect(inbox)) as source:
        return take(source, inbox, count)


def dead(kafka, inbox, count):
    found = kafka.messages(inbox.dead_letter, count)
    return [({name: value.decode() for name, value in each.headers()}, each.value()) for each in found]


def test_messages_schedule_and_cancel_and_are_not_delivered_again(kafka, inbox, source, name):
    kafka.produce(name, text("1"), text("2", key="order:2"), text("3", "cancel"), key="a")
    assert take(source, inbox, 3) == {"stored": 3}
    assert [job.key for job in Job.objects.live()] == ["order:2"]
    source.close()
    kafka.produce(name, text("4", key="order:4"), key="a")
    assert take_anew(inbox, 1) == {"stored": 1}


def test_a_cloudevent_in_binary_mode_is_taken(kafka, inbox, source, name):
    kafka.produce(
        name, '{"n": 1}', **{"content-type": "application/json"}, ce_specversion="1.0", ce_id="e1", ce_source="/shop",
        ce_type="shop.close", ce_subject="order:1", ce_delaytasksdelay="60",
    )  # fmt: skip
    assert take(source, inbox, 1) == {"stored": 1}
    assert Job.objects.get().body == {"n": 1}


def test_a_message_with_plain_headers_is_taken_and_a_bad_one_is_a_dead_letter(kafka, inbox, source, name):
    headers = {"delaytasks-topic": "shop.close", "delaytasks-key": "order:1", "delaytasks-due": "2035-01-02T00:00:00Z"}
    kafka.produce(name, '{"n": 1}', **headers, **{"delaytasks-id": "h1"})
    kafka.produce(name, '{"n": 2}', **{**headers, "message-id": "h2", "delaytasks-due": "tomorrow"})
    assert take(source, inbox, 2) == {"stored": 1, "refused": 1}
    job = Job.objects.get()
    assert (job.key, job.body, job.due_at) == ("order:1", {"n": 1}, datetime(2035, 1, 2, tzinfo=UTC))
    ((found, value),) = dead(kafka, inbox, 1)
    assert (value, found["delaytasks-due"], found["delaytasks-code"]) == (b'{"n": 2}', "tomorrow", "invalid")
    assert "delaytasks-due is 'tomorrow'" in found["delaytasks-reason"]


def test_a_message_that_is_stored_and_not_confirmed_is_repeated_and_does_nothing(kafka, inbox, source, name):
    kafka.produce(name, text())
    source.confirm = lambda: None
    assert take(source, inbox, 1) == {"stored": 1}
    source.close()
    assert take_anew(inbox, 1) == {"repeated": 1}
    assert (Job.objects.count(), InboxMessage.objects.count()) == (1, 1)


def test_poison_goes_to_the_dead_letters_with_the_reason_and_blocks_nothing(kafka, inbox, source, name):
    poison = (b"\xff{", text("2", topic="shop.other"), text("3", action="\ud800"), text("1", body=5))
    kafka.produce(name, text("1"), *poison, key="k", shop="eu")
    assert take(source, inbox, 5) == {"stored": 1, "refused": 4}
    letters = dead(kafka, inbox, 4)
    codes = sorted(headers["delaytasks-code"] for headers, _ in letters)
    assert codes == ["invalid", "not-allowed", "not-json", "repeated-id"]
    headers, value = next(each for each in letters if each[0]["delaytasks-code"] == "not-json")
    assert (value, headers["shop"], headers["delaytasks-inbox"]) == (b"\xff{", "eu", inbox.name)
    assert "not JSON" in headers["delaytasks-reason"]
    assert headers["delaytasks-origin"].startswith(f"{name}[")


def test_a_message_without_a_value_is_refused(kafka, inbox, source, name):
    kafka.produce(name, None)
    assert take(source, inbox, 1) == {"refused": 1}


def test_a_dead_letter_that_is_too_large_has_its_reason_alone(kafka, inbox, name, settings):
    kafka.produce(name, b"x" * 5000)
    settings.DELAYTASKS["BROKERS"]["kafka"]["message.max.bytes"] = 2000
    assert take_anew(inbox, 1) == {"refused": 1}
    ((headers, value),) = dead(kafka, inbox, 1)
    assert (value or b"", headers["delaytasks-code"]) == (b"", "not-json")
    assert "MSG_SIZE_TOO_LARGE" in headers["delaytasks-value"]


def test_a_dead_letter_whose_headers_are_too_large_has_the_value_and_the_reason(kafka, inbox, source, name):
    kafka.produce(name, b"{", key="a", h="x" * 999_850)
    kafka.produce(name, text(), key="a")
    assert take(source, inbox, 2) == {"stored": 1, "refused": 1}
    ((headers, value),) = dead(kafka, inbox, 1)
    assert (value, headers["delaytasks-code"], "h" in headers) == (b"{", "not-json", False)
    assert "MSG_SIZE_TOO_LARGE" in headers["delaytasks-headers"]


def test_a_header_whose_name_is_not_utf8_refuses_that_message_alone(kafka, inbox, source, name):
    kafka.produce(name, *(text(f"a{n}") for n in range(30)), ok="1")  # afterwards Python's bytecode is optimized
    assert take(source, inbox, 30) == {"stored": 30}
    kafka.produce_with_header(name, text("1").encode(), b"caf\xe9", b"1")
    kafka.produce(name, text("2", key="order:2"))
    assert take(source, inbox, 2) == {"stored": 1, "refused": 1}
    assert Job.objects.filter(key="order:2").exists()
    ((headers, value),) = dead(kafka, inbox, 1)
    assert (value, headers["delaytasks-code"]) == (text("1").encode(), "invalid")
    assert "utf-8" in headers["delaytasks-headers"]


def test_nothing_is_confirmed_until_the_dead_letter_is(kafka, inbox, source, name, monkeypatch):
    """Both messages are in one batch: one that is stored, and one whose dead letter the broker refuses."""
    monkeypatch.setattr("delaytasks.inbox.kafka.MORE_SECONDS", 60)
    inbox = dataclasses.replace(inbox, batch_max=2)
    kafka.produce(name, b"{", text(), key="a")
    kafka.fail_produce(*[KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2)
    with pytest.raises(BrokerDown, match=r"dead: .*AUTHORIZATION"):
        take(source, inbox, 2)
    source.close()
    kafka.clear_errors()
    assert take_anew(inbox, 2) == {"repeated": 1, "refused": 1}


def test_an_unknown_error_of_one_message_refuses_that_one(kafka, inbox, source, name, monkeypatch):
    store = consumer.store

    def store_or_fail(using, inbox_name, commands):
        if any(command.message_id == "2" for command in commands):
            raise RuntimeError("a defect")
        return store(using, inbox_name, commands)

    monkeypatch.setattr(consumer, "store", store_or_fail)
    kafka.produce(name, *(text(str(n), key=f"order:{n}") for n in range(4)), key="a")
    assert take(source, inbox, 4) == {"stored": 3, "refused": 1}
    ((headers, _),) = dead(kafka, inbox, 1)
    assert (headers["delaytasks-code"], headers["delaytasks-reason"]) == ("error", "RuntimeError: a defect")


@pytest.mark.parametrize("error", [OperationalError("gone"), ProgrammingError("no such table")])
def test_an_outage_of_the_database_loses_and_refuses_nothing(kafka, inbox, name, stop, monkeypatch, error):
    """The connection to the broker is closed meanwhile, and opened when the database answers."""
    store, connected, left = consumer.store, [], [error, error]

    def store_or_fail(*arguments):
        if left:
            raise left.pop()
        return store(*arguments)

    def check(using):
        connected.append("checked")
        if len(connected) < 3:
            raise error

    def connect_and_record(given):
        connected.append("connected")
        return connect(given)

    def stop_when_done(source, *arguments):
        counts = step(source, *arguments)
        if counts:
            stop.set()
        return counts

    monkeypatch.setattr(consumer, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(consumer, "store", store_or_fail)
    monkeypatch.setattr(consumer, "_check_database", check)
    monkeypatch.setattr(consumer, "connect", connect_and_record)
    monkeypatch.setattr(consumer, "step", stop_when_done)
    kafka.produce(name, text("1"), text("2", key="order:2"), key="a")
    counts = consume(inbox, stop=stop)
    assert counts["stored"] + counts["repeated"] == 2
    assert counts["refused"] == 0
    assert Job.objects.live().count() == 2
    assert connected == ["checked", "checked", "checked", "connected", "checked", "connected", "checked", "connected"]


def test_a_broker_that_is_away_is_tried_again(kafka, inbox, name, stop, monkeypatch):
    failures = [BrokerDown("away")] * 2

    def connect_or_fail(given):
        if failures:
            raise failures.pop()
        return connect(given)

    def stop_when_done(source, *arguments):
        counts = step(source, *arguments)
        if counts:
            stop.set()
        return counts

    monkeypatch.setattr(consumer, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(consumer, "connect", connect_or_fail)
    monkeypatch.setattr(consumer, "step", stop_when_done)
    kafka.produce(name, text())
    assert consume(inbox, stop=stop)["stored"] == 1


def test_after_a_long_time_without_errors_the_next_try_is_soon(inbox, stop, monkeypatch):
    """Also if no message came: an outage long ago must not delay the end of a short one."""
    pauses, clock = [], [0.0]

    lives = iter([0, 0, 0, 3600, 0])

    def connect_and_fail(given):
        clock[0] += next(lives)
        raise BrokerDown("away")

    def wait(seconds):
        pauses.append(seconds)
        if len(pauses) == 5:
            stop.set()

    monkeypatch.setattr(consumer, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(consumer, "connect", connect_and_fail)
    monkeypatch.setattr(stop, "wait", wait)
    consume(inbox, stop=stop)
    assert pauses == [0.5, 1, 2, 0.5, 1]


def test_offsets_that_another_consumer_has_taken_over_are_no_error(inbox, source, monkeypatch):
    refused = []

    class Moved:
        def __getattr__(self, name):
            return getattr(source._consumer, name)

        def commit(self, **options):
            import confluent_kafka

            refused.append(options["offsets"])
            raise confluent_kafka.KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))

    with monkeypatch.context() as patch:
        patch.setattr(source, "_consumer", Moved())
        source.confirm()
    assert refused == [[]]


def test_a_wrong_option_of_the_broker_is_named(inbox, settings):
    settings.DELAYTASKS["BROKERS"]["kafka"]["no.such.option"] = 1
    with pytest.raises(BrokerDown, match=r"no\.such\.option"):
        connect(inbox)


def test_a_wrong_option_of_the_producer_is_named_before_messages_are_taken(inbox, settings):
    settings.DELAYTASKS["BROKERS"]["kafka"]["compression.type"] = "no-such-type"
    with pytest.raises(BrokerDown, match="no-such-type"):
        connect(inbox)


def test_a_producer_that_cannot_be_made_again_is_an_error_of_the_broker(kafka, inbox, name):
    kafka.produce(name, b"{", key="a")
    with contextlib.closing(connect(inbox)) as source:
        source._producer = None
        source._options["compression.type"] = "no-such-type"
        with pytest.raises(BrokerDown, match="no-such-type"):
            take(source, inbox, 1)
