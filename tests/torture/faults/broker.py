"""run_topic messages that are lost, duplicated or late, and RabbitMQ as the broker."""

import signal

from ..environment import Arena
from ..interceptor import Deliver, intercepted
from . import fault

LASTS_SECONDS = 6
DOWN_SECONDS = 3
SILENT_SECONDS = 20


def _through(arena: Arena, deliver: Deliver, *, seconds: float = LASTS_SECONDS) -> None:
    with intercepted(arena.broker.url(), deliver) as interceptor:
        arena.hold(seconds)
    assert interceptor.taken > seconds / 2, f"Only {interceptor.taken} messages were sent in {seconds} s."


@fault("all messages to workers are lost for a while", uses="broker", quick=True)
def lose(arena: Arena) -> None:
    """Including beat's: only mover threads and running tasks are left."""
    _through(arena, lambda arrival: [])


@fault("each message to workers comes three times", uses="broker")
def double(arena: Arena) -> None:
    _through(arena, lambda arrival: [arrival, arrival, arrival + 1])


@fault("each message to workers is six seconds late", uses="broker")
def delay(arena: Arena) -> None:
    _through(arena, lambda arrival: [arrival + 6], seconds=10)


@fault("each message to workers is a minute late", uses="broker")
def delay_long(arena: Arena) -> None:
    """So late that it has expired. At the end the messages of the last minute arrive together."""
    _through(arena, lambda arrival: [arrival + 60], seconds=65)


@fault("the broker accepts messages and never answers", uses="broker", arena="silent broker")
def silent(arena: Arena) -> None:
    arena.proxy.swallows = True
    try:
        arena.hold(SILENT_SECONDS)
    finally:
        arena.proxy.heal()
        arena.proxy.cut_all()  # a connection that lost replies would stay out of step


@fault("RabbitMQ as broker is restarted", uses="broker", arena="amqp", needs=("rabbitmq-server", "epmd"))
def restart_rabbit(arena: Arena) -> None:
    """An orderly restart. The queues need not survive: a lost message only costs time."""
    arena.broker.stop()
    try:
        arena.hold(DOWN_SECONDS)
    finally:
        arena.broker.start()


@fault("RabbitMQ as broker is killed", uses="broker", arena="amqp", needs=("rabbitmq-server", "epmd"))
def kill_rabbit(arena: Arena) -> None:
    arena.broker.stop(signal.SIGKILL)
    try:
        arena.hold(DOWN_SECONDS)
    finally:
        arena.broker.start()
