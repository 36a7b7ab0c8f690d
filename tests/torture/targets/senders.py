"""The product's side of each target: what forward() is given."""

from collections.abc import Callable

import celery
import kombu

from delaytasks.forwarding import Amqp, CeleryTask, Kafka, Target, Webhook

from ..constants import FORWARDED, QUEUE_ARGUMENTS, TIMEOUT_SECONDS

LOOPBACK = ["127.0.0.0/8"]


def make(topic: str, address: str) -> Target:
    """Return the target of a topic. Its broker has the name of the topic."""
    return _TARGETS[topic.removeprefix(FORWARDED)](topic, address)


def _webhook(topic: str, address: str) -> Target:
    return Webhook(address, allow_http=True, allow_networks=LOOPBACK, timeout=TIMEOUT_SECONDS)


def _amqp(topic: str, address: str) -> Target:
    return Amqp("", topic, broker=topic, timeout=TIMEOUT_SECONDS)


def _kafka(topic: str, address: str) -> Target:
    return Kafka(topic, key="key", broker=topic, timeout=TIMEOUT_SECONDS)


def _task(topic: str, address: str) -> Target:
    """A task of another site, with its own broker."""
    site = celery.Celery("site", set_as_current=False)
    site.conf.broker_write_url = address  # CELERY_BROKER_URL in the environment would be preferred to broker_url
    exchange = kombu.Exchange(topic, "direct")
    site.conf.task_queues = [kombu.Queue(topic, exchange, topic, queue_arguments=QUEUE_ARGUMENTS)]
    return CeleryTask("site.tasks.close", queue=topic, app=site, timeout=TIMEOUT_SECONDS)


_TARGETS: dict[str, Callable[[str, str], Target]] = {
    "webhook": _webhook, "amqp": _amqp, "celery": _task, "kafka": _kafka,
    "rabbit": _amqp, "rabbit-celery": _task, "redis": _task, "cluster": _kafka,
}  # fmt: skip
