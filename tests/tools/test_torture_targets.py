"""The targets of the torture test: what they record, and that they behave as badly as a fault wants them to.

Then a short run: jobs are forwarded to four targets, each of which misbehaves in another manner.
"""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.conf import settings as django_settings

from delaytasks.forwarding import Message, Target, TargetDown
from delaytasks.forwarding.http import Timeout
from tests.support.installation import ROOT
from tests.support.servers import RedisServer, free_port, stop_process, wait_until

from ..torture import ledger, report, trial
from ..torture.constants import FORWARDED, PEERS
from ..torture.faults import load_all
from ..torture.faults.targets import LABELS, MANNERS
from ..torture.targets import installations, senders
from ..torture.targets.addresses import KAFKA
from ..torture.targets.witness import manner_file

pytestmark = pytest.mark.tools

MODULES = {**installations.MODULES, "cluster": "cluster", "redis": "redis"}
GIVEN_UP = TargetDown, Timeout
LIARS = ("amqp", "celery", "kafka")  # which confirm again over the connection of the next message


class Started(NamedTuple):
    name: str
    target: Target
    process: subprocess.Popen[bytes]
    directory: Path

    def deliver(self, job: int) -> None:
        message = Message(str(job), "t", f"k{job}", {"key": f"k{job}"}, datetime(2030, 1, 1, tzinfo=UTC))
        format = getattr(self.target, "default_format", message.format)
        self.target.deliver(dataclasses.replace(message, format=format), 5)

    def behave(self, manner: str) -> None:
        manner_file(self.directory, FORWARDED + self.name).write_text(manner)

    def recorded(self, kind: str) -> list[tuple[Any, ...]]:
        found = [entry for entry in ledger.read(self.directory / "ledger") if entry["kind"] == kind]
        return [(entry["id"], entry["key"]) if kind == "received" else (entry["n"],) for entry in found]


@pytest.fixture
def start(tmp_path: Path, settings: Any) -> Iterator[Callable[[str], Started]]:
    """Start a target, in a process of its own, by its name."""
    (tmp_path / "ledger").mkdir()
    env = {**os.environ, "TORTURE_LEDGER": str(tmp_path / "ledger"), "PYTHONPATH": str(ROOT)}
    started: list[subprocess.Popen[bytes]] = []

    def run(name: str, *, port: int | None = None) -> Started:
        topic, port, file = FORWARDED + name, port or free_port(), tmp_path / "address"
        where = str(file) if name == "cluster" else str(port)
        command = [sys.executable, "-m", f"tests.torture.targets.{MODULES[name]}", topic, where]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready.\n"
        if name == "redis":
            address = f"redis://127.0.0.1:{port}/0"
        elif name == "cluster":
            address = KAFKA + file.read_text()
        else:
            address = installations.ADDRESSES[name].format(port=port)
        broker = {"bootstrap.servers": address.removeprefix(KAFKA)} if address.startswith(KAFKA) else address
        settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": {topic: broker}}
        return Started(name, senders.make(topic, address), process, tmp_path)

    yield run
    for process in started:
        stop_process(process, how=signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("name", PEERS)
def test_a_target_records_what_it_receives_and_confirms(start: Callable[[str], Started], name: str) -> None:
    peer = start(name)
    peer.deliver(1)
    peer.deliver(2)
    assert peer.recorded("received") == [("1", "k1"), ("2", "k2")]
    assert len(set(peer.recorded("confirms"))) == 2


@pytest.mark.parametrize("name", PEERS)
def test_a_target_that_is_late_confirms_to_nobody(start: Callable[[str], Started], name: str) -> None:
    peer = start(name)
    peer.behave("late")
    with pytest.raises(GIVEN_UP):
        peer.deliver(1)
    assert (len(peer.recorded("received")), peer.recorded("confirms")) == (1, [])
    wait_until(lambda: peer.recorded("confirms"), seconds=10, what="the confirmation")


@pytest.mark.parametrize("name", LIARS)
def test_the_second_confirmation_of_a_message_is_not_that_of_the_next(
    start: Callable[[str], Started], name: str
) -> None:
    peer = start(name)
    peer.behave("twice")
    peer.deliver(1)
    with pytest.raises(TargetDown):
        peer.deliver(2)
    assert (len(peer.recorded("received")), len(peer.recorded("confirms"))) == (2, 1)


@pytest.mark.parametrize("name", PEERS)
def test_a_target_that_refuses_records_nothing(start: Callable[[str], Started], name: str) -> None:
    peer = start(name)
    peer.behave("refuses")
    with pytest.raises(TargetDown):
        peer.deliver(1)
    assert peer.recorded("received") == []
    peer.behave("")
    peer.deliver(1)


@pytest.mark.parametrize("name", PEERS)
def test_a_target_that_is_silent_confirms_nothing(start: Callable[[str], Started], name: str) -> None:
    peer = start(name)
    peer.deliver(1)
    peer.behave("silent")
    for _ in range(2):  # over the connection that there is, and over a new one
        with pytest.raises(GIVEN_UP):
            peer.deliver(2)
    assert len(peer.recorded("confirms")) == 1


@pytest.mark.parametrize("name", PEERS)
def test_a_target_dies_between_receiving_and_confirming(start: Callable[[str], Started], name: str) -> None:
    peer = start(name)
    peer.behave("dies")
    with pytest.raises(TargetDown):
        peer.deliver(1)
    assert peer.process.wait(10) == -signal.SIGKILL
    assert (peer.recorded("received"), peer.recorded("confirms")) == ([("1", "k1")], [])


def test_a_mock_cluster_serves_other_processes_and_keeps_its_messages(start: Callable[[str], Started]) -> None:
    cluster = start("cluster")
    cluster.deliver(1)
    cluster.behave("dies")
    with pytest.raises(TargetDown):
        while True:  # until it has read the manner
            cluster.deliver(2)
    cluster.behave("")
    wait_until(lambda: _delivered(cluster, 3), seconds=10, what="the cluster to be back")
    wait_until(lambda: ("3", "k3") in cluster.recorded("received"), seconds=10, what="the message to be recorded")
    assert ("1", "k1") in cluster.recorded("received")


def test_a_mock_cluster_refuses_for_a_while(start: Callable[[str], Started]) -> None:
    cluster = start("cluster")
    cluster.deliver(1)
    cluster.behave("refuses")
    with pytest.raises(TargetDown, match="AUTHORIZATION"):
        while True:  # until it has read the manner
            cluster.deliver(2)
    cluster.behave("")
    wait_until(lambda: _delivered(cluster, 3), seconds=10, what="the cluster to take messages")


def _delivered(target: Started, job: int) -> bool:
    try:
        target.deliver(job)
    except TargetDown:
        return False
    return True


def test_the_watcher_of_a_redis_records_each_message_once(start: Callable[..., Started]) -> None:
    with RedisServer() as redis:
        queue = start("redis", port=redis.port)
        for job in (1, 2, 3):
            queue.deliver(job)
            wait_until(lambda: len(queue.recorded("received")) >= job, seconds=10, what="the message to be recorded")  # noqa: B023
    assert queue.recorded("received") == [("1", "k1"), ("2", "k2"), ("3", "k3")]


@pytest.mark.only_on("postgresql")
@pytest.mark.xdist_group("torture")
def test_targets_that_misbehave_at_once_break_no_promise(tmp_path: Path, django_db_blocker: Any) -> None:
    manners = dict(zip(PEERS, ("dies", "late", "twice", "refuses"), strict=True))
    faults = [load_all()[f"{LABELS[name]} {MANNERS[manner]}"] for name, manner in manners.items()]
    with django_db_blocker.unblock(), installations.peers(tmp_path / "peers", django_settings.TEST_DB) as there:
        verdict = trial.run(there, faults, seed=1)
        assert verdict.ok, f"{report.line(verdict)}\n{there.report()}"
    assert verdict.jobs > 50
