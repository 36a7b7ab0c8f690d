"""CeleryTask: a target that calls a Celery task for each due job."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import celery
from kombu.exceptions import EncodeError

from ..worker import sender
from . import brokers, events
from .links import Links
from .publisher import ERRORS, Publisher, Sending, raise_as_result
from .targets import BatchTarget, Message, Rejected, Report, report_failures

BROKER = "Celery's broker"
_links = Links(by_thread=True)


class CeleryTask(BatchTarget):
    """A Celery task, called once for each due job. The task's id is the id of the job.

    name      str, the name of the task; it need not be registered in this process
    queue     str, the queue to send to; None: the queue of the task or of the app's routes
    app       Celery app; None: the current one
    timeout   seconds to wait for the broker's confirmation; default: 15

    The format is "json" by default: a body that is an object becomes keyword arguments, a list becomes positional
    arguments, and null means no arguments. Any other body is refused, and the job is dead. So are arguments that a task
    which is registered in this process does not take. With "cloudevents" the task has one argument, the event as a
    dict. "cloudevents-binary" is "json" plus the event's attributes in the headers.

    RabbitMQ confirms each message. With other brokers, such as Redis, a message is confirmed when the call that sends
    it returns.

    Raises ValueError for a bad argument.
    """

    default_format = "json"
    max_batch = 200

    def __init__(
        self, name: str, *, queue: str | None = None, app: celery.Celery | None = None, timeout: float = 15
    ) -> None:
        self.name = brokers.check_name(name, "name", "CeleryTask")
        self.queue = None if queue is None else brokers.check_name(queue, "queue", "CeleryTask")
        self.timeout = brokers.check_timeout(timeout, "CeleryTask")
        self.app = app

    def __repr__(self) -> str:
        return (
            f"CeleryTask({self.name!r})" if self.queue is None else f"CeleryTask({self.name!r}, queue={self.queue!r})"
        )

    def deliver_many(self, messages: Sequence[Message], timeout_seconds: float, report: Report) -> None:
        """Send tasks and wait for their confirmations. Raises TargetDown, Rejected, BatchRefused."""
        app = self.app or celery.current_app._get_current_object()
        sendings = report_failures(messages, lambda message: self._sending(app, message, report), report)
        _link(app).publish(sendings, min(self.timeout, timeout_seconds))

    def _sending(self, app: celery.Celery, message: Message, report: Report) -> Sending:
        """Return the task's message for the publisher. Raises Rejected if the body cannot be its arguments."""
        args, kwargs = arguments(message)
        _check_signature(app, self.name, args, kwargs)
        headers = events.encode(message, "rabbitmq").headers
        options: dict[str, Any] = {"task_id": message.id, "retry": False, "add_to_parent": False, "headers": headers}
        if self.queue is not None:
            options["queue"] = self.queue
        task = app.signature(self.name, args=args, kwargs=kwargs)  # finds a registered task with its own options
        return Sending(message.id, partial(_send, app, task, options), lambda error: report(message, error))


def arguments(message: Message) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of the task. Raises Rejected for another type of body."""
    if message.format == "cloudevents":
        return [events.as_dict(message)], {}
    body = message.body
    if body is None or isinstance(body, list):
        return body or [], {}
    if isinstance(body, dict):
        return [], body
    raise Rejected(f"The body is a {type(body).__name__}; a Celery task takes an object, a list or null as arguments.")


def _check_signature(app: celery.Celery, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise Rejected if the task is registered here, checks its arguments, and does not take these."""
    task = app.tasks.get(name)
    check = getattr(task, "__header__", None)
    if check is None or not task.typing:
        return
    try:
        check(*args, **kwargs)
    except TypeError as error:
        raise Rejected(f"The body does not fit the arguments of the Celery task: {error}.") from error


def _link(app: celery.Celery) -> "Publisher | Direct":
    if app.conf.task_always_eager:
        return Direct(app)
    if app.connection_for_write().get_transport_cls().driver_type == "amqp":
        return _links.get(("amqp", id(app)), lambda: Publisher(lambda transport: _connection(app, transport), BROKER))
    return _links.get(("other", id(app)), lambda: Direct(app))


def _send(app: celery.Celery, task: Any, options: dict[str, Any], channel: Any) -> None:
    try:
        task.apply_async(**options, **({} if channel is None else {"producer": _producer(app, channel)}))
    except EncodeError as error:
        raise Rejected(f"Celery's serializer refuses the body: {error}.") from error


def _connection(app: celery.Celery, transport: dict[str, Any]) -> Any:
    connection = sender.connect(app)
    # Publisher matches confirmations to messages. With confirm_publish, py-amqp would accept that of another message.
    connection.transport_options = {**connection.transport_options, **transport, "confirm_publish": False}
    return connection


def _producer(app: celery.Celery, channel: Any) -> Any:
    return app.amqp.Producer(channel, auto_declare=False)


class Direct:
    """Publish over a transport without publisher confirms, such as Redis: publish() returns when the broker answers.

    With task_always_eager, the tasks run here, and there is no connection.
    """

    def __init__(self, app: celery.Celery) -> None:
        self._app = app
        self._connection: Any = None

    def publish(self, sendings: Sequence[Sending], seconds: float) -> None:
        """Publish messages one after the other. Raises TargetDown, Rejected."""
        deadline = time.monotonic() + seconds
        try:
            for sending in sendings:
                if time.monotonic() > deadline:
                    raise TimeoutError("The broker has not confirmed the message in time.")
                sending.send(self._channel())
                sending.answered()
        except BaseException as error:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.collect(socket_timeout=0.1)
            if isinstance(error, ERRORS):
                raise_as_result(error, BROKER)
            raise

    def _channel(self) -> Any:
        if self._app.conf.task_always_eager:
            return None
        if self._connection is None:
            self._connection = sender.connect(self._app)
        return self._connection.default_channel
