"""Commands of inside.py: forward due jobs to a broker, and publish to it in the client's own loop."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import kombu
from django.db.models import Count, Max

from benchmarks.contestants.ours.timeouts import FORWARDED
from delaytasks import conf, schedule_many
from delaytasks.models import Job, JobEvent

LEAD_SECONDS = 2.0
SCHEDULED_PER_SECOND = 2_500
TIMEOUT_SECONDS = 300.0
BODY: dict[str, Any] = {"order": 1042, "customer": "c-17", "amount": "19.90", "currency": "EUR", "note": "x" * 200}


def forward(kind: str, count: int) -> dict[str, Any]:
    """Forward `count` jobs that are due at one instant; return the messages per second until the last finish."""
    topic, prefix = FORWARDED[kind], uuid4().hex[:8]
    due = datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS + count / SCHEDULED_PER_SECOND)
    keys = [f"{prefix}:{n}" for n in range(count)]
    for start in range(0, count, 1000):
        schedule_many({"topic": topic, "key": key, "due_at": due, "body": BODY} for key in keys[start : start + 1000])
    if datetime.now(UTC) > due:
        raise RuntimeError(f"{count} jobs could not be scheduled before they were due")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while Job.objects.filter(topic=topic, ended_at=None).exists():
        if time.monotonic() > deadline:
            raise RuntimeError("the jobs were not forwarded in time")
        time.sleep(0.1)
    events = JobEvent.objects.filter(job__topic=topic, job__key__startswith=prefix)
    ends = dict(events.values_list("outcome").annotate(number=Count("id")))
    if ends != {"finished": count}:
        raise RuntimeError(f"of {count} jobs: {ends}")
    last_ms = events.aggregate(last=Max("done_ms"))["last"]
    return {"per_second": count / (last_ms / 1000 - due.timestamp())}


def bare(kind: str, count: int) -> dict[str, Any]:
    """Publish `count` messages, each after the confirmation of the one before; return them per second."""
    publish = {"amqp": _bare_amqp, "kafka": _bare_kafka}[kind]
    began = time.perf_counter()
    publish(count, json.dumps(BODY))
    return {"per_second": count / (time.perf_counter() - began)}


def _bare_amqp(count: int, body: str) -> None:
    options = {"confirm_publish": True}
    with kombu.Connection(conf.get().brokers["amqp"], transport_options=options) as connection:
        channel = connection.channel()
        channel.queue_declare("bench", durable=True, auto_delete=False)
        for n in range(count):
            message = channel.prepare_message(
                body, content_type="application/json", content_encoding="utf-8",
                properties={"message_id": str(n), "delivery_mode": 2},
            )  # fmt: skip
            channel.basic_publish(message, exchange="", routing_key="bench", mandatory=True)


def _bare_kafka(count: int, body: str) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({**conf.get().brokers["kafka"], "acks": "all", "linger.ms": 0})
    for n in range(count):
        answers: list[Any] = []
        producer.produce("bench", body, key=str(n), on_delivery=lambda error, _, to=answers: to.append(error))
        while not answers:
            producer.poll(1)
        if answers[0] is not None:
            raise RuntimeError(f"not confirmed: {answers[0]}")
