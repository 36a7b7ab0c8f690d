"""Forward the due jobs of a topic to an external target: Kafka, RabbitMQ, a webhook or a Celery task.

    from delaytasks import forward
    from delaytasks.forwarding import Kafka

    forward("order.timeout", Kafka("orders", key="key"))

Importing this package opens no connection and loads no models.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Amqp", "BatchRefused", "BatchTarget", "CeleryTask", "Kafka", "Message", "Rejected", "Target", "TargetDown",
    "Webhook", "forward",
]  # fmt: skip

if TYPE_CHECKING:
    from .amqp import Amqp
    from .celery_task import CeleryTask
    from .kafka import Kafka
    from .registration import forward
    from .targets import BatchRefused, BatchTarget, Message, Rejected, Target, TargetDown
    from .webhook import Webhook
else:
    from importlib import import_module

    _HOMES = {
        "Amqp": "amqp",
        "BatchRefused": "targets",
        "BatchTarget": "targets",
        "CeleryTask": "celery_task",
        "Kafka": "kafka",
        "Message": "targets",
        "Rejected": "targets",
        "Target": "targets",
        "TargetDown": "targets",
        "Webhook": "webhook",
        "forward": "registration",
    }

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
