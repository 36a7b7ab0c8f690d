"""What messages are sent to: a receiver of webhooks, a cluster of Kafka, a RabbitMQ, and a peer that breaks rules."""

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import kombu
import pytest

from delaytasks.forwarding import kafka as kafka_target
from delaytasks.forwarding.targets import Format, Message

from ..support.kafka_cluster import KafkaCluster, kafka_cluster
from ..support.rabbitmq import RabbitServer
from .amqp_peer import Peer

DUE = datetime(2030, 1, 1, tzinfo=UTC)
CERTIFICATE = Path(__file__).parents[1] / "support" / "localhost.pem"


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Records requests and answers each with `status`, `headers` and `body`, which a test may change."""

    def __init__(self, tls: bool) -> None:
        self.requests: list[Request] = []
        self.status, self.headers, self.body = 204, dict[str, str](), b""
        self.answer: Callable[[Any], None] | None = None  # instead of a response
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append(Request(self.path, headers, body))
                if receiver.answer is not None:
                    return receiver.answer(self)
                self.send_response(receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(receiver.body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # type: ignore[method-assign]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver(tls=False)
    yield receiver
    receiver.stop()


@pytest.fixture
def tls_receiver() -> Iterator[Receiver]:
    receiver = Receiver(tls=True)
    yield receiver
    receiver.stop()


@pytest.fixture(scope="session")
def _kafka_cluster() -> Iterator[KafkaCluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.fixture
def kafka(_kafka_cluster: KafkaCluster, settings: Any) -> Iterator[KafkaCluster]:
    """A cluster of Kafka, in BROKERS as "kafka". Producers of earlier tests, whose brokers were down, are not used."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": {"kafka": {"bootstrap.servers": _kafka_cluster.servers}}}
    for producer in list(vars(kafka_target._links._holder).values()):
        kafka_target._links.drop(producer)
    yield _kafka_cluster
    if isinstance(_kafka_cluster, KafkaCluster):
        _kafka_cluster.set_down(down=False)
        _kafka_cluster.set_round_trip(0)


@pytest.fixture
def rabbit(rabbit_server: RabbitServer, settings: Any) -> Iterator[RabbitServer]:
    """A RabbitMQ, in BROKERS as "amqp"."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": {"amqp": rabbit_server.url()}}
    yield rabbit_server
    if rabbit_server.process is None:
        rabbit_server.start()


class Queue:
    """A queue of the test's own, bound to an exchange of the same name with the routing key "due.#"."""

    def __init__(self, server: RabbitServer) -> None:
        self.server, self.name = server, f"q-{uuid4().hex[:8]}"
        with kombu.Connection(server.url()) as connection:
            channel = connection.channel()
            channel.exchange_declare(self.name, "topic", durable=True, auto_delete=False)
            channel.queue_declare(self.name, durable=True, auto_delete=False)
            channel.queue_bind(self.name, self.name, "due.#")

    def messages(self) -> list[Any]:
        with kombu.Connection(self.server.url()) as connection:
            channel, found = connection.channel(), []
            while (raw := channel.basic_get(self.name, no_ack=True)) is not None:
                found.append(channel.message_to_python(raw))
            return found


@pytest.fixture
def queue(rabbit: RabbitServer) -> Queue:
    return Queue(rabbit)


@pytest.fixture
def settled_queue(rabbit: RabbitServer, queue: Queue) -> Queue:
    """A queue whose binding outlives a kill."""
    rabbit.sync()
    return queue


@pytest.fixture
def peer(settings: Any) -> Iterator[Peer]:
    """A scripted peer that speaks AMQP, in BROKERS as "amqp"."""
    with Peer() as peer:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": {"amqp": peer.url}}
        yield peer


@pytest.fixture
def message() -> Callable[..., Message]:
    def make(body: Any = None, *, format: Format = "cloudevents", key: str = "order:1042") -> Message:
        return Message("42", "order.close", key, {"order": 1042} if body is None else body, DUE, format=format)

    return make
