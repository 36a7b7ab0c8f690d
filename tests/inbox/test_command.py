"""The command: until SIGTERM, and after a kill -9 between the commit and the confirmation."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from delaytasks.models import Job

from ..support.servers import die_with_parent, wait_until
from .conftest import text

pytestmark = [pytest.mark.on_both, pytest.mark.usefixtures("transactional_db")]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(kafka, name):
    """Start an inbox in a process of its own."""
    processes = []
    kafka.create_topic(name)
    broker = {"bootstrap.servers": kafka.servers, "session.timeout.ms": 400, "heartbeat.interval.ms": 50}
    keys = ("NAME", "USER", "PASSWORD", "HOST", "PORT", "ENGINE")
    given = {
        "database": {key: str(connection.settings_dict[key]) for key in keys}, "brokers": {"kafka": broker},
        "name": name, "options": {"kafka": name, "topics": ["shop.close"], "dead_letter": f"{name}.dead"},
    }  # fmt: skip

    def start(*, hang):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.inbox.consumer_process", json.dumps(given | {"hang": hang})], cwd=ROOT,
            stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent(),
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=20)


def test_a_consumer_that_is_killed_before_it_confirms_doubles_no_job(kafka, name, start):
    kafka.produce(name, *(text(str(n), key=f"order:{n}") for n in range(3)), key="a")
    killed = start(hang=True)
    assert killed.stdout.readline() == "committed\n"
    stored = Job.objects.count()
    assert stored > 0
    killed.kill()
    killed.wait(20)
    kafka.produce(name, text("last", key="order:last"), key="a")
    process = start(hang=False)
    wait_until(Job.objects.filter(key="order:last").exists, seconds=30, what="the last job is not there")
    process.send_signal(signal.SIGTERM)
    counts = json.loads(process.communicate(timeout=20)[0])
    assert process.returncode == 0
    assert counts == {"stored": 4 - stored, "repeated": stored, "refused": 0}
    assert sorted(Job.objects.values_list("key", flat=True)) == ["order:0", "order:1", "order:2", "order:last"]


def test_an_unknown_inbox_is_named_with_those_that_exist(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "INBOXES": {"shop": {}}}
    with pytest.raises(CommandError, match=r"There is no inbox 'shpo'; .* declare: shop") as raised:
        call_command("delaytasks", "inbox", "shpo")
    assert raised.value.returncode == 2
