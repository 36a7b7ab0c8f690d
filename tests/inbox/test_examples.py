"""The examples of docs/clients: a shop that speaks only the broker schedules, hears what is due, and cancels."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import kombu
import pytest

from delaytasks import forward
from delaytasks.forwarding import Amqp, Kafka
from delaytasks.inbox import declarations, declare
from delaytasks.inbox.consumer import connect, step

from ..support.servers import die_with_parent
from ..support.stage import state_of

EXAMPLES = Path(__file__).parents[2] / "docs" / "clients"


@pytest.fixture
def due_index(settings):
    """The database without a mirror: here it makes no difference."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None}


@pytest.fixture
def shop(name):
    """Start an example."""
    processes = []

    def shop(program, *arguments, **environment):
        own = {"DELAYS": name, "DUE": f"{name}.due", "TOPIC": "shop.close", "PATH": os.environ["PATH"]}
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / program), *arguments], env=own | environment, text=True,
            stdout=subprocess.PIPE, preexec_fn=die_with_parent(),
        )  # fmt: skip
        processes.append(process)
        return process

    yield shop
    for process in processes:
        process.kill()
        process.communicate()


def take(inbox, count):
    with contextlib.closing(connect(inbox)) as source:
        deadline = time.monotonic() + 60
        while count > 0:
            assert time.monotonic() < deadline
            count -= step(source, inbox, "default")["stored"]


def output(process):
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return text


def use(stage, db_clock, inbox, start):
    """Schedule two orders, cancel one, and let the other become due."""
    for key in ("order:1", "order:2"):
        assert output(start("schedule", key, "60")) == f"sent schedule {key}\n"
    take(inbox, 2)
    assert output(start("cancel", "order:2")) == "sent cancel order:2\n"
    take(inbox, 1)
    stage.go()
    assert [state_of(key) for key in ("order:1", "order:2")] == ["delayed", "cancelled"]
    db_clock.advance(seconds=61)
    stage.go()
    assert state_of("order:1") == "finished"
    assert output(start("due", "1")) == 'due order:1 {"order": "order:1"}\n'


@pytest.fixture
def declared(name, stage):
    yield lambda **source: declare(name, topics=["shop.close"], dead_letter=f"{name}.dead", **source)
    declarations.unregister(name)


def test_the_example_for_kafka(kafka, name, shop, stage, db_clock, declared, settings):
    settings.DELAYTASKS["BROKERS"]["kafka"] |= kafka.group_options
    for topic in (name, f"{name}.due"):
        kafka.create_topic(topic)
    stage.registered.append("shop.close")
    forward("shop.close", Kafka(f"{name}.due", key="key"))
    use(stage, db_clock, declared(kafka=name), lambda *words: shop("shop_kafka.py", *words, KAFKA=kafka.servers))


def test_the_example_for_amqp(rabbit, name, shop, stage, db_clock, declared):
    with kombu.Connection(rabbit.url()) as connection:
        for queue in (name, f"{name}.dead", f"{name}.due"):
            connection.channel().queue_declare(queue, durable=True, auto_delete=False)
    stage.registered.append("shop.close")
    forward("shop.close", Amqp("", f"{name}.due"))
    use(stage, db_clock, declared(amqp=name), lambda *words: shop("shop_amqp.py", *words, AMQP_URL=rabbit.url()))


def test_the_amqp_example_says_if_no_queue_has_taken_its_message(rabbit, shop, capfd):
    process = shop("shop_amqp.py", "cancel", "order:1042", AMQP_URL=rabbit.url(), DELAYS="no-such-queue")
    assert "sent" not in process.communicate(timeout=30)[0]
    assert process.returncode == 1
    assert "NO_ROUTE" in capfd.readouterr().err
