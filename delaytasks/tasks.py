"""The Celery tasks. A message is a bell: it says that a topic has ready jobs, and may be lost or doubled."""

import functools
import logging
import os
import socket

from celery import shared_task
from kombu.exceptions import OperationalError as BrokerDown

from . import conf, engine, sweeper, topics, worker
from .bells import Bells
from .mover import Mover
from .stopping import stopping

logger = logging.getLogger("delaytasks")
BELL_EXPIRES_SECONDS = 60


def ring(topic: str, queue: str | None) -> None:
    """Send the bell. A broker that does not answer costs a guard tick: the next pass rings again."""
    try:
        run_topic.apply_async((topic,), queue=queue, expires=BELL_EXPIRES_SECONDS, retry=False)
    except (BrokerDown, OSError) as error:
        logger.warning("the bell for topic %s was not sent, the mover rings again: %s", topic, error)


@functools.cache
def bells(using: str) -> Bells:
    return Bells(using, ring)


def new_mover(using: str) -> Mover:
    return Mover(
        functools.partial(engine.places, using),
        functools.partial(engine.now_ms, using),
        topics.handled,
        bells(using).ring,
        conf.get().guard_tick_ms,
    )


@functools.cache
def _mover(using: str) -> Mover:
    return new_mover(using)


@shared_task(name="delaytasks.move_due", ignore_result=True, acks_late=False)
def move_due() -> int:
    """Each second, by beat: a pass of the mover and the guard's look at what the mirror missed."""
    using = engine.alias()
    rest_ms = _mover(using).move_due()
    sweeper.guard(using)
    return rest_ms


@shared_task(name="delaytasks.run_topic", ignore_result=True, acks_late=False)
def run_topic(topic: str) -> int:
    """Run what is ready of a topic; how many jobs were run."""
    using = engine.alias()
    name = f"{socket.gethostname()}:{os.getpid()}"
    return worker.run_topic(topic, using=using, worker=name, ring=bells(using).ring, stopping=stopping)


@shared_task(name="delaytasks.sweep", ignore_result=True, acks_late=False)
def sweep() -> dict[str, int]:
    """Every half minute, by beat: leases that ended, the next window of the horizon, the audit now and then."""
    return sweeper.sweep()
