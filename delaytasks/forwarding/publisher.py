"""Publish over AMQP 0-9-1 and wait for the broker's confirmation of exactly the messages that were published."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import amqp
import kombu
from kombu.exceptions import KombuError

from .targets import Rejected, TargetDown

CONNECT_SECONDS = 5.0
ERRORS = (amqp.AMQPError, KombuError, OSError)
_ONE_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0}  # of connecting; kombu's default is no limit


class Unroutable(Exception):
    """The broker has returned the message: its routing key leads to no queue."""


class Publisher:
    """One connection and one channel in confirm mode. Used by one thread only.

    connect   returns an unopened connection with these transport options

    py-amqp takes the next confirmation for that of the message that waits, although it may belong to an earlier one
    that was given up. Confirmations are therefore counted here, by delivery tag. After an error, a timeout or an
    interrupt the connection is closed: what it still delivers is about messages for which nobody waits.
    """

    def __init__(self, connect: Callable[[dict[str, Any]], kombu.Connection]) -> None:
        self._connect = connect
        self._connection: Any = None
        self._channel: Any = None
        self._reset()

    def _reset(self) -> None:
        self._last_tag = 0
        self._unconfirmed: set[int] = set()
        self._refused = False
        self._returned: str | None = None
        self._blocked: str | None = None

    def publish(self, send: Callable[[Any], object], seconds: float) -> None:
        """Call send(channel), which publishes, and wait until the broker has confirmed all that it published.

        If a connection fails that was used before, send() is called again with a new one: the broker may have closed
        it while it was idle.

        Raises Unroutable, TargetDown, or an error of ERRORS.
        """
        deadline = time.monotonic() + seconds
        is_used = self._channel is not None
        try:
            self._publish(send, deadline)
        except (*amqp.Connection.connection_errors, KombuError) as error:
            if not is_used or _timed_out(error):
                raise
            self._publish(send, deadline)
        if self._returned is not None:
            raise Unroutable(self._returned)
        if self._refused:
            raise TargetDown("The broker has refused a message (nack): a queue may be full.")

    def close(self) -> None:
        """Close the connection at once, without waiting for the broker's answer."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.collect(socket_timeout=0.1)

    def _publish(self, send: Callable[[Any], object], deadline: float) -> None:
        try:
            if self._channel is None:
                self._open()
            self._refused, self._returned = False, None
            send(self._channel)
            self._wait(deadline)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._reset()
        options = {"on_blocked": self._on_blocked, "read_timeout": CONNECT_SECONDS, "write_timeout": CONNECT_SECONDS}
        self._connection = self._connect(options)
        self._connection.ensure_connection(**_ONE_RETRY)
        channel = self._connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        publish = channel.basic_publish

        def counting(*args: Any, **options: Any) -> Any:
            self._last_tag += 1
            self._unconfirmed.add(self._last_tag)
            return publish(*args, **options)

        channel.basic_publish = counting
        self._channel = channel

    def _wait(self, deadline: float) -> None:
        while self._unconfirmed:
            if self._blocked is not None:
                raise TargetDown(f"The broker blocks publishers: {self._blocked}.")
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("The broker has not confirmed the message in time.")
            with contextlib.suppress(socket.timeout):
                self._connection.drain_events(timeout=seconds)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._unconfirmed = {each for each in self._unconfirmed if (each > tag if multiple else each != tag)}

    def _on_nack(self, tag: int, multiple: bool) -> None:
        before = len(self._unconfirmed)
        self._on_ack(tag, multiple)
        self._refused = self._refused or len(self._unconfirmed) < before

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        self._returned = (
            f"No queue of exchange {exchange!r} takes routing key {routing_key!r:.300} ({error.reply_text})."
        )

    def _on_blocked(self, reason: str) -> None:
        self._blocked = reason


def raise_as_result(error: BaseException, broker: str) -> None:
    """Raise Rejected if the message is too large, TargetDown for the other errors of ERRORS."""
    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error  # kombu wraps some errors
    text = f"{broker}: {type(cause).__name__}: {cause}"
    too_large = isinstance(error, amqp.PreconditionFailed) and "message size" in str(error)
    if too_large or isinstance(error, amqp.ContentTooLarge):
        raise Rejected(text) from error
    raise TargetDown(text) from error


def _timed_out(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, TimeoutError) or _timed_out(error.__cause__))
