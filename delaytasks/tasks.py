"""The Celery tasks. A message is a bell: it says that a topic has ready jobs, and may be lost or doubled."""

import functools
import logging
import os
import socket
import time
import traceback
from collections import Counter

from celery import shared_task
from django.db import InterfaceError, OperationalError
from kombu.exceptions import OperationalError as BrokerDown

from . import bulk, conf, engine, sweeper, topics, worker
from .bells import Bells
from .connecting import keeping_connections
from .mover import Mover
from .stopping import stopping

logger = logging.getLogger("delaytasks")
BELL_EXPIRES_SECONDS = 60


BROKER_PAUSE_SECONDS = 2
_broker_left_alone_until = 0.0


def ring(using: str, topic: str, queue: str | None) -> None:
    """Send the bell. A broker that does not answer is left alone for a moment; then the mover rings again."""
    global _broker_left_alone_until
    if time.monotonic() < _broker_left_alone_until:
        return
    try:
        run_topic.apply_async((topic, using), queue=queue, expires=BELL_EXPIRES_SECONDS, retry=False)
    except (BrokerDown, OSError) as error:
        _broker_left_alone_until = time.monotonic() + BROKER_PAUSE_SECONDS
        logger.warning("the bell for topic %s was not sent, the mover rings again: %s", topic, error)


@functools.cache
def bells(using: str) -> Bells:
    return Bells(using, functools.partial(ring, using))


def new_mover(using: str) -> Mover:
    return Mover(
        functools.partial(engine.places, using),
        functools.partial(engine.exact_ms, using),
        topics.handled,
        bells(using).ring,
        conf.get().guard_tick_ms,
    )


@functools.cache
def _mover(using: str) -> Mover:
    return new_mover(using)


@shared_task(name="delaytasks.move_due", ignore_result=True, acks_late=False)
@keeping_connections
def move_due() -> float:
    """By beat, each second while no mover's thread looks: passes until nothing is due, and the guard.

    Returns how many ms it might rest.
    """
    rests = []
    for using in engine.aliases():
        over = time.monotonic() + conf.get().guard_tick_ms / 1000
        rest_ms = _mover(using).move_due()
        while rest_ms == 0 and time.monotonic() < over:
            rest_ms = _mover(using).move_due()
        sweeper.guard(using)
        rests.append(rest_ms)
    return min(rests)


@shared_task(name="delaytasks.run_topic", ignore_result=True, acks_late=False)
@keeping_connections
def run_topic(topic: str, using: str | None = None) -> int:
    """Run what is ready of a topic; how many jobs were run."""
    using = engine.alias(using)
    name = f"{socket.gethostname()}:{os.getpid()}"
    return worker.run_topic(topic, using=using, worker=name, ring=bells(using).ring, stopping=stopping)


@shared_task(name=bulk.TASK, ignore_result=True, acks_late=False)
@keeping_connections
def bulk_change(pk: int, using: str) -> None:
    """Some seconds of a change to many jobs; then the next."""
    try:
        if bulk.work(pk, using=using):
            bulk.send(pk, using)
    except (OperationalError, InterfaceError):
        raise  # the database was away or busy: the sweep sends it again
    except Exception:
        bulk.fail(pk, traceback.format_exc(), using=using)
        raise


@shared_task(name="delaytasks.sweep", ignore_result=True, acks_late=False)
@keeping_connections
def sweep() -> dict[str, int]:
    """Every half minute, by beat: leases that ended, the horizon's next window, the audit, bulk changes."""
    done: Counter[str] = Counter()
    for using in engine.aliases():
        done.update(sweeper.sweep(using))
        for pk in bulk.stalled(using):
            bulk.send(pk, using)
        bulk.prune(using)
    return dict(done)
