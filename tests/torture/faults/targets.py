"""Targets of forwarded jobs that are killed, slow, silent, lying or unwilling for a while."""

import contextlib
import signal
from collections.abc import Iterator

from delaytasks.models import Topic
from tests.support.servers import wait_until

from .. import ledger
from ..constants import FORWARDED, PEERS
from ..environment import Arena
from ..targets.witness import manner_file
from . import fault

LASTS_SECONDS = 8
DOWN_SECONDS = 3  # in addition to the ten in which a RabbitMQ starts
SHOWS_SECONDS = 4  # more, for the fault to have an effect
LABELS = {
    "webhook": "a webhook's receiver", "amqp": "an AMQP target", "celery": "the AMQP broker of a Celery task",
    "kafka": "a Kafka target",
}  # fmt: skip
MANNERS = {
    "dies": "is killed after it received a message and before it confirms it",
    "slow": "is slow",
    "late": "confirms after its timeout",
    "twice": "confirms twice",
    "refuses": "refuses the sender",
    "silent": "accepts connections and never answers",
}
HOLDS = ("refuses", "silent")  # manners that hold the topic as soon as there is a message
CHARGED = ("webhook", "silent")  # no answer is a failure of the attempt, and holds nothing


@contextlib.contextmanager
def behaving(arena: Arena, name: str, manner: str) -> Iterator[None]:
    file = manner_file(arena.directory, FORWARDED + name)
    file.write_text(manner)
    try:
        yield
    finally:
        file.unlink()


def _receipts(arena: Arena, name: str) -> int:
    entries = ledger.read(arena.ledger)
    return sum(entry["kind"] == "received" and entry["topic"] == FORWARDED + name for entry in entries)


def _is_held(name: str) -> bool:
    return Topic.objects.filter(name=FORWARDED + name, held_since__isnull=False).exists()


def _hold_until_held(arena: Arena, *names: str, seconds: float = LASTS_SECONDS) -> None:
    arena.hold(seconds)
    what = f"the topics of {', '.join(names)} to be held"
    wait_until(lambda: all(map(_is_held, names)), seconds=SHOWS_SECONDS, what=what)


def _misbehave(arena: Arena, name: str, manner: str) -> None:
    before, starts = _receipts(arena, name), arena.crew[name].starts

    def shown() -> bool:
        if manner == "dies":
            return arena.crew[name].starts > starts
        return manner == "refuses" or _receipts(arena, name) > before

    with behaving(arena, name, manner):
        if manner in HOLDS and (name, manner) != CHARGED:
            _hold_until_held(arena, name)
        else:
            arena.hold(LASTS_SECONDS)
        wait_until(shown, seconds=SHOWS_SECONDS, what=f"{name} to be seen as one that {manner}")


def _register(name: str, manner: str) -> None:
    @fault(f"{LABELS[name]} {MANNERS[manner]}", uses=name, arena="peers")
    def inflict(arena: Arena) -> None:
        _misbehave(arena, name, manner)


for _name in PEERS:
    for _manner in MANNERS:
        _register(_name, _manner)


# What holds messages for others


@fault("a Kafka cluster is killed", uses="cluster", arena="stores")
def kill_cluster(arena: Arena) -> None:
    """What it had stored is still there afterwards."""
    with behaving(arena, "cluster", "dies"):
        _hold_until_held(arena, "cluster")


@fault("a Kafka cluster stores messages and confirms them after the timeout", uses="cluster", arena="stores")
def late_cluster(arena: Arena) -> None:
    with behaving(arena, "cluster", "late"):
        _hold_until_held(arena, "cluster")


@fault("a Kafka cluster refuses the sender", uses="cluster", arena="stores")
def refuse_cluster(arena: Arena) -> None:
    with behaving(arena, "cluster", "refuses"):
        _hold_until_held(arena, "cluster")


@fault("the Redis that is the broker of a Celery task is killed", uses="site", arena="stores")
def kill_redis(arena: Arena) -> None:
    arena.site_redis.stop(signal.SIGKILL)
    try:
        _hold_until_held(arena, "redis")
    finally:
        arena.site_redis.start()


@fault("the answers of the Redis that is the broker of a Celery task are lost", uses="site", arena="stores")
def silence_redis(arena: Arena) -> None:
    """It stores each message and seems to be down."""
    arena.proxy.swallows = True
    try:
        _hold_until_held(arena, "redis")
    finally:
        arena.proxy.heal()
        arena.proxy.cut_all()  # a connection that lost replies would stay out of step


RABBIT = ("rabbitmq-server", "epmd")


@fault("the RabbitMQ of two targets is killed", uses="site", arena="rabbit", needs=RABBIT)
def kill_target_rabbit(arena: Arena) -> None:
    arena.site_rabbit.stop(signal.SIGKILL)
    try:
        _hold_until_held(arena, "rabbit", "rabbit-celery", seconds=DOWN_SECONDS)
    finally:
        arena.site_rabbit.start()


@fault("the queues of two targets in a RabbitMQ are full", uses="site", arena="rabbit", needs=RABBIT)
def fill_queues(arena: Arena) -> None:
    """Their consumer stops; the broker refuses what does not fit."""
    site = arena.crew["site"]
    site.signal(signal.SIGSTOP)
    try:
        _hold_until_held(arena, "rabbit", "rabbit-celery")
    finally:
        site.signal(signal.SIGCONT)
