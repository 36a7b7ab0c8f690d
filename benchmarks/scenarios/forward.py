"""Due jobs that are forwarded to a broker: confirmed messages per second, beside the client's own bare loop.

The bare loop is one process without a database: it publishes a message of the same size, waits for its confirmation,
and goes on. It runs before and after the worker in each round, because a shared machine changes; the ratio is to the
mean of both. The worker's time is from the due instant of all jobs to the last finish: claim, publish, confirm, finish.

RabbitMQ is Debian's, with a durable queue and persistent messages. Kafka is the mock cluster of librdkafka: it has no
disk, no replicas and no network, so a bare loop is faster there than with any real brokers. "kafka-2ms" lets each
answer of the cluster take 2 ms.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.support.servers import ServerMissing

from ..drivers import DriverFailed
from ..plan import Form, Measured, Options
from ..stand import Testbed
from .ourselves import inside, with_settings

BARE_SHARE = 10  # the bare loop publishes this part of the jobs, twice: it is slow
Broker = Callable[[], AbstractContextManager[dict[str, Any]]]


@contextmanager
def rabbitmq() -> Iterator[dict[str, Any]]:
    from tests.support.rabbitmq import RabbitServer

    with RabbitServer() as server:
        yield {"amqp": server.url()}


@contextmanager
def kafka(round_trip_ms: int = 0) -> Iterator[dict[str, Any]]:
    try:
        from tests.support.kafka_cluster import kafka_cluster
    except ImportError as error:
        raise DriverFailed(f"no Kafka: {error}; pip install confluent-kafka") from error
    with kafka_cluster() as cluster:
        cluster.set_round_trip(round_trip_ms)
        yield {"kafka": {"bootstrap.servers": cluster.servers}}


@contextmanager
def started(broker: Broker) -> Iterator[dict[str, Any]]:
    """Start a broker and yield its BROKERS. Raises DriverFailed, which says what is missing."""
    try:
        with broker() as brokers:
            yield brokers
    except ServerMissing as error:
        raise DriverFailed(str(error)) from error


def form(name: str, kind: str, broker: Broker, note: str) -> Form:
    def measure(testbed: Testbed, options: Options) -> list[Measured]:
        count, bare = options.jobs, max(100, options.jobs // BARE_SHARE)
        with (
            started(broker) as brokers,
            with_settings(testbed, BROKERS=brokers),
            inside(testbed, BROKERS=brokers) as driver,
            testbed.workers(),
        ):
            before = driver.do("bare", kind=kind, count=bare)["per_second"]  # declares the queue
            driver.do("forward", kind=kind, count=200)  # connections, plans
            ours = driver.do("forward", kind=kind, count=count)["per_second"]
            after = driver.do("bare", kind=kind, count=bare)["per_second"]
        bare_loop = (before + after) / 2
        return [Measured(ours, {"ratio": ours / bare_loop}), Measured(bare_loop, form=f"{name}, bare loop")]

    return Form("forward", name, "messages/s", measure, only=("delaytasks",), note=note)


FORMS = [
    form("rabbitmq", "amqp", rabbitmq, "due jobs to a durable queue of RabbitMQ, each confirmed"),
    form("kafka", "kafka", kafka, "due jobs to a topic of librdkafka's mock cluster, each confirmed"),
    form("kafka-2ms", "kafka", lambda: kafka(2), "the same, and each answer of the cluster takes 2 ms"),
]
