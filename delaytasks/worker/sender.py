"""Send run_topic messages from a thread of its own, so that the mover never waits for a broker."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from celery import Celery
from kombu.exceptions import OperationalError as BrokerDown

from .. import databases
from ..circuit_breaker import CircuitBreaker, CircuitOpen
from ..mirror.base import RESEND_MS

logger = logging.getLogger("delaytasks")
RUN_TOPIC = "delaytasks.run_topic"
SENT_MS = "delaytasks-sent-ms"  # a header: when the message was sent, by the database's clock
UNKNOWN_MS = 2**53  # of a worker of an older version: counts as the last message
EXPIRES_SECONDS = 60
TIMEOUT_SECONDS = 3  # of connecting to the broker, and of each of its answers
BROKER_PAUSE_SECONDS = 2  # after a failure of the broker, nothing is sent to it for so long
MAX_RESEND_MS = 800  # the longest wait for a runner; after it the message is sent for the last time
BROKER_FAILURES = (BrokerDown, OSError)
_ONE_TRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0}  # kombu would try to connect without limit


class Message(NamedTuple):
    app: Celery
    using: str
    topic: str
    queue: str | None


def connect(app: Celery) -> Any:
    """Return an unopened connection to the app's broker that gives up after TIMEOUT_SECONDS.

    The project's own BROKER_TRANSPORT_OPTIONS are kept.
    """
    connection = app.connection_for_write(connect_timeout=TIMEOUT_SECONDS)
    driver = connection.get_transport_cls().driver_name
    connection.transport_options = _ONE_TRY | _timeouts(driver) | connection.transport_options
    return connection


def _timeouts(driver: str) -> dict[str, float]:
    if driver == "redis":
        return {"socket_connect_timeout": TIMEOUT_SECONDS, "socket_timeout": TIMEOUT_SECONDS}
    return {"read_timeout": TIMEOUT_SECONDS, "write_timeout": TIMEOUT_SECONDS} if driver == "py-amqp" else {}


class BrokerLink:
    """Sends messages over one connection, which it keeps open. Used by one thread only."""

    def __init__(self) -> None:
        self._app: Celery | None = None
        self._connection: Any = None

    def send(self, message: Message) -> None:
        """Send the message. Raises the exceptions BROKER_FAILURES.

        If a connection fails that was used before, the message is sent over a new one: the broker may have closed it.
        """
        is_used = self._connection is not None and self._app is message.app
        try:
            self._send(message)
        except BROKER_FAILURES as error:
            self.close()
            if not is_used or _timed_out(error):
                raise
            self._send(message)

    def _send(self, message: Message) -> None:
        if self._app is not message.app:
            self.close()
        if self._connection is None:
            self._app, self._connection = message.app, connect(message.app)
        producer = message.app.amqp.Producer(self._connection, auto_declare=False)
        apply(message, producer=producer, retry=False)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.release()
            except Exception as error:
                logger.debug("closing the connection to the broker failed: %s", error)


def apply(message: Message, **options: Any) -> None:
    """Send the message with Celery's apply_async(), or run its task here if the app's tasks are eager."""
    # A signature finds the task by name, so the task's own options and task_always_eager apply.
    headers = {}
    with suppress(RuntimeError):  # no query was made yet
        headers[SENT_MS] = databases.last_known_ms(message.using)
    options = {
        "queue": message.queue, "expires": EXPIRES_SECONDS, "ignore_result": True, "headers": headers, **options
    }  # fmt: skip
    message.app.signature(RUN_TOPIC, (message.topic, message.using), options=options).apply_async()


def sent_ms(request: Any) -> int:
    """Return when the message of a task's request was sent, in ms since 1970; UNKNOWN_MS if it does not say."""
    # Celery puts all headers into the request; only of an eager task, or if a tracer has added headers, into `headers`.
    sent = request.get(SENT_MS, (request.headers or {}).get(SENT_MS))
    return sent if isinstance(sent, int) else UNKNOWN_MS


def _timed_out(error: BaseException | None) -> bool:
    """Return whether this error or one of its causes is a timeout; each client library has its own class for it."""
    return error is not None and ("Timeout" in type(error).__name__ or _timed_out(error.__cause__))


class Sent(NamedTuple):
    """When to check whether a runner has come for a message.

    wait_ms    how long to wait for a runner
    check_at   the end of that wait, by time.monotonic(); infinite until the message has been sent
    """

    wait_ms: int
    check_at: float = inf


class Sender:
    """Sends messages in a thread, which the first message starts. The caller never waits.

    A message that cannot be sent is dropped: the mover dispatches its topic again within GUARD_TICK_MS. After a failure
    nothing is sent for BROKER_PAUSE_SECONDS. A message is unanswered while no runner has come for it. It is then sent
    again after RESEND_MS, after twice that time, and so on up to MAX_RESEND_MS; later the mover's ticks are enough.

    is_unanswered   called in the thread a moment after a message was sent; returns whether to send it again
    dropped         called in the thread if a message could not be sent
    """

    def __init__(
        self, send: Callable[[Message], None] | None = None, breaker: CircuitBreaker | None = None,
        is_unanswered: Callable[[Message], bool] = lambda _: False, dropped: Callable[[Message], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._send = send or BrokerLink().send
        self._breaker = breaker or CircuitBreaker(BROKER_FAILURES, BROKER_PAUSE_SECONDS)
        self._is_unanswered, self._dropped = is_unanswered, dropped
        self._waiting: dict[Message, None] = {}  # in the order of submission, each message once
        self._sent: dict[Message, Sent] = {}  # messages that may be unanswered
        self._sending = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, message: Message) -> None:
        """Let the thread send the message, unless the same one is still waiting."""
        with self._changed:
            self._waiting[message] = None
            self._sent[message] = Sent(RESEND_MS)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="delaytasks-sender", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_until_sent(self, seconds: float) -> bool:
        """Wait until every message has been sent or dropped, at most `seconds`. Return False if that was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sending, seconds)

    def _run(self) -> None:
        while True:
            try:
                self._try_send(self._next())
            finally:
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()

    def _next(self) -> Message:
        """Wait for the next message to send: a new one, or one that no runner has answered."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting, self._seconds_until_check())
                if self._waiting:
                    message = next(iter(self._waiting))
                    del self._waiting[message]
                    self._sending = True
                    return message
                now = time.monotonic()
                due = {message: sent for message, sent in self._sent.items() if sent.check_at <= now}
                for message in due:
                    del self._sent[message]
            for message, sent in due.items():  # without the lock: Redis is asked
                if self._must_repeat(message):
                    with self._changed:
                        self._waiting[message] = None
                        if sent.wait_ms < MAX_RESEND_MS:
                            self._sent.setdefault(message, sent._replace(wait_ms=2 * sent.wait_ms, check_at=inf))

    def _seconds_until_check(self) -> float | None:
        first = min((sent.check_at for sent in self._sent.values()), default=inf)
        return None if first == inf else max(0.0, first - time.monotonic())

    def _must_repeat(self, message: Message) -> bool:
        try:
            return self._is_unanswered(message)
        except Exception as error:  # the thread must go on; the mover dispatches the topic again
            logger.debug("topic %s was not checked for an answer: %s", message.topic, error)
            return False

    def _try_send(self, message: Message) -> None:
        try:
            self._breaker.call(self._send, message)
            with self._changed:
                if message in self._sent:
                    sent = self._sent[message]
                    self._sent[message] = sent._replace(check_at=time.monotonic() + sent.wait_ms / 1000)
            return
        except CircuitOpen:
            pass
        except BROKER_FAILURES as error:
            logger.warning(
                "the message for topic %s was not sent to a worker; the mover sends it again: %s",
                message.topic,
                error or repr(error),
            )
        except Exception:  # the thread must go on with the next message
            logger.exception(
                "the message for topic %s could not be sent to a worker; the mover sends it again", message.topic
            )
        with self._changed:
            self._sent.pop(message, None)
        try:
            self._dropped(message)
        except Exception as error:  # the thread must go on
            logger.debug("topic %s: its message was not forgotten: %s", message.topic, error)
