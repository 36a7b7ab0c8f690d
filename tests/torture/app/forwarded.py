"""Topics that are forwarded to the targets of the installation, if it has any."""

from collections.abc import Callable

import celery

from delaytasks import forward
from delaytasks.forwarding import Amqp, CeleryTask, Kafka, Target, Webhook

from ..constants import FORWARDED, FORWARDED_TTR_SECONDS, TIMEOUT_SECONDS
from ..targets.addresses import addresses
from .timeouts import KEEPS_TRYING

LOOPBACK = ["127.0.0.0/8"]
SLOTS = 2  # at once, so that a target that is slow leaves processes for the others


def webhook(topic: str, address: str) -> Target:
    return Webhook(address, allow_http=True, allow_networks=LOOPBACK, timeout=TIMEOUT_SECONDS)


def amqp(topic: str, address: str) -> Target:
    return Amqp("", topic, broker=topic, timeout=TIMEOUT_SECONDS)


def kafka(topic: str, address: str) -> Target:
    return Kafka(topic, key="key", broker=topic, timeout=TIMEOUT_SECONDS)


def task(topic: str, address: str) -> Target:
    """A task of another site, with its own broker."""
    site = celery.Celery("site", set_as_current=False)
    site.conf.broker_write_url = address  # CELERY_BROKER_URL in the environment would be preferred to broker_url
    return CeleryTask("site.tasks.close", queue=topic, app=site, timeout=TIMEOUT_SECONDS)


TARGETS: dict[str, Callable[[str, str], Target]] = {
    "webhook": webhook, "amqp": amqp, "celery": task, "kafka": kafka,
    "rabbit": amqp, "rabbit-celery": task, "redis": task, "cluster": kafka,
}  # fmt: skip

for topic, address in addresses().items():
    target = TARGETS[topic.removeprefix(FORWARDED)](topic, address)
    forward(topic, target, ttr=FORWARDED_TTR_SECONDS, concurrency=SLOTS, **KEEPS_TRYING)
