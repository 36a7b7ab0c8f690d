"""Bells that are lost, doubled or late, and another broker than Redis."""

import signal

from ..arena import Arena
from ..interceptor import Deliver, intercepted
from . import fault

LASTS_SECONDS = 6
DOWN_SECONDS = 3


def _through(arena: Arena, deliver: Deliver, *, seconds: float = LASTS_SECONDS) -> None:
    with intercepted(arena.broker.url(), deliver) as interceptor:
        arena.hold(seconds)
    assert interceptor.taken > seconds / 2, f"Only {interceptor.taken} bells were rung in {seconds} s."


@fault("all bells are lost for a while", uses="broker", quick=True)
def lose(arena: Arena) -> None:
    """Beat's, too: what is left are the movers' threads, and runners that are at it already."""
    _through(arena, lambda came: [])


@fault("each bell comes three times", uses="broker")
def double(arena: Arena) -> None:
    _through(arena, lambda came: [came, came, came + 1])


@fault("each bell is six seconds late", uses="broker")
def delay(arena: Arena) -> None:
    _through(arena, lambda came: [came + 6], seconds=10)


@fault("each bell is a minute late", uses="broker")
def delay_long(arena: Arena) -> None:
    """So late that it counts no more when it comes. Those of the last minute come all at once."""
    _through(arena, lambda came: [came + 60], seconds=65)


@fault("RabbitMQ as broker is restarted", uses="broker", arena="amqp", needs=("rabbitmq-server", "epmd"))
def restart_rabbit(arena: Arena) -> None:
    """In order. Nothing in the queues is to survive: a bell that is lost costs a moment."""
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
