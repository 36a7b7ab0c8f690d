"""CeleryTask: send due jobs as messages of a Celery task, which any worker of the site runs."""

from typing import Any

import celery

from ..worker import sender
from . import brokers, events
from .links import Links
from .publisher import ERRORS, Publisher, raise_as_result
from .targets import Message, Rejected

_links = Links(by_thread=True)


class CeleryTask:
    """A Celery task, called once for each due job. The task's id is the id of the job.

    name      str, the name of the task; it need not be registered in this process
    queue     str, the queue to send to; None: that of the task or of the app's routes
    app       Celery app; None: the current one
    timeout   seconds to wait for the broker's confirmation; default: 15

    With format="json", the default here, an object in the body becomes keyword arguments, a list positional ones and
    null none; another body is refused, and the job is dead. With "cloudevents" the task has one argument, the event as
    dict. "cloudevents-binary" is "json" with the attributes of the event in the message's headers.

    RabbitMQ confirms each message. Other brokers, such as Redis, confirm it with their answer.

    Raises ValueError, which says what is wrong.
    """

    default_format = "json"

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

    def deliver(self, message: Message, timeout_seconds: float) -> None:
        """Send the task and wait for the confirmation. Raises TargetDown, Rejected."""
        app = self.app or celery.current_app._get_current_object()
        args, kwargs = arguments(message)
        headers = events.encode(message, "rabbitmq").headers
        options: dict[str, Any] = {"task_id": message.id, "retry": False, "add_to_parent": False, "headers": headers}
        if self.queue is not None:
            options["queue"] = self.queue
        task = app.signature(self.name, args=args, kwargs=kwargs)  # finds a registered task with its own options
        try:
            _publish(app, task, options, min(self.timeout, timeout_seconds))
        except ERRORS as error:
            raise_as_result(error, "Celery's broker")


def arguments(message: Message) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of the task. Raises Rejected."""
    if message.format == "cloudevents":
        return [events.as_dict(message)], {}
    body = message.body
    if body is None or isinstance(body, list):
        return body or [], {}
    if isinstance(body, dict):
        return [], body
    raise Rejected(f"The body is a {type(body).__name__}; a Celery task takes an object, a list or null as arguments.")


def _publish(app: celery.Celery, task: Any, options: dict[str, Any], seconds: float) -> None:
    if app.conf.task_always_eager:
        task.apply_async(**options)
        return
    link: Any
    if app.connection_for_write().get_transport_cls().driver_type == "amqp":
        link = _links.get(("amqp", id(app)), lambda: Publisher(lambda transport: _connection(app, transport)))
    else:
        link = _links.get(("other", id(app)), lambda: Direct(app))
    link.publish(lambda channel: task.apply_async(producer=_producer(app, channel), **options), seconds)


def _connection(app: celery.Celery, transport: dict[str, Any]) -> Any:
    connection = sender.connect(app)
    # Not Celery's confirm_publish: py-amqp takes any confirmation for that of the message.
    connection.transport_options = {**connection.transport_options, **transport, "confirm_publish": False}
    return connection


def _producer(app: celery.Celery, channel: Any) -> Any:
    return app.amqp.Producer(channel, auto_declare=False)


class Direct:
    """A connection of a transport whose publish() returns when the broker has answered, such as Redis."""

    def __init__(self, app: celery.Celery) -> None:
        self._app = app
        self._connection: Any = None

    def publish(self, send: Any, seconds: float) -> None:
        """Call send(channel). Raises OSError, or the errors of kombu."""
        try:
            if self._connection is None:
                self._connection = sender.connect(self._app)
            send(self._connection.default_channel)
        except BaseException:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.collect(socket_timeout=0.1)
            raise
