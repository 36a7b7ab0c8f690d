"""Publish messages over AMQP 0-9-1, and match each confirmation of the broker to its message."""

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import amqp
import kombu
from kombu.exceptions import KombuError

from .targets import BatchRefused, Rejected, TargetDown

CONNECT_SECONDS = 5.0
ERRORS = (amqp.AMQPError, KombuError, OSError)
ONE_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0}  # to connect; by default kombu has no limit


def connection(options: dict[str, Any], transport: dict[str, Any]) -> kombu.Connection:
    """Return an unopened connection with the options of a broker and these transport options."""
    named = {"connect_timeout": CONNECT_SECONDS, **options}
    named["transport_options"] = {**transport, **named.get("transport_options", {})}
    return kombu.Connection(named.pop("url"), **named)


class Unroutable(Exception):
    """The broker has returned the message: its routing key leads to no queue."""


@dataclass(eq=False)
class Sending:
    """A message that is published and waits for its confirmation.

    id       the `message_id` in its properties; identifies the message if the broker returns it
    publish  called with the channel; publishes the message, and perhaps others that belong to it
    report   called when the broker has answered: with None, TargetDown (nack), Unroutable, or the error of publish()
    """

    id: str
    publish: Callable[[Any], object]
    report: Callable[[Exception | None], object]
    tags: set[int] = field(default_factory=set)  # delivery tags that are not confirmed yet
    error: Exception | None = None
    is_open: bool = True  # not reported yet

    def send(self, channel: Any) -> None:
        """Call publish(). Raises the errors of ERRORS. Other errors become the result if nothing was sent yet."""
        self.tags.clear()  # delivery tags of a connection that has failed
        self.error = None
        try:
            self.publish(channel)
        except ERRORS:
            raise
        except Exception as error:
            if self.tags:
                raise
            self.error = error

    def answered(self) -> None:
        """Report the result once everything that was published is confirmed."""
        if self.is_open and not self.tags:
            self.report(self.error)
            self.is_open = False


class Publisher:
    """One connection and one channel in confirm mode. Used by one thread only.

    connect   called with a dict of transport options; returns an unopened connection that has them
    broker    str, the broker's name in error messages

    py-amqp takes the next confirmation for that of the current message, even if it confirms an earlier message that
    was given up. This class therefore tracks confirmations by delivery tag. After an error, a timeout or an interrupt
    it closes the connection, so that no confirmation of a message that was given up arrives later.
    """

    def __init__(self, connect: Callable[[dict[str, Any]], kombu.Connection], broker: str) -> None:
        self._connect, self._broker = connect, broker
        self._connection: Any = None
        self._channel: Any = None
        self._reset()

    def _reset(self) -> None:
        self._last_tag = 0
        self._unconfirmed: dict[int, Sending] = {}  # by delivery tag, in ascending order
        self._current: Sending | None = None  # the message that is being published
        self._blocked: str | None = None

    def publish(self, sendings: Sequence[Sending], seconds: float) -> None:
        """Publish messages and wait until the broker has confirmed or refused each of them.

        If a connection that was used before fails, the messages without a report are published again over a new one:
        the broker may have closed the connection while it was idle.

        Raises TargetDown if the broker is unavailable. Raises Rejected if the only message is too large; BatchRefused
        if the broker has closed the channel because of one of several messages.
        """
        deadline = time.monotonic() + seconds
        is_used = self._channel is not None
        try:
            try:
                self._publish(sendings, deadline)
            except (*amqp.Connection.connection_errors, KombuError) as error:
                if not is_used or _timed_out(error):
                    raise
                self._publish([sending for sending in sendings if sending.is_open], deadline)
        except ERRORS as error:
            if isinstance(error, amqp.ChannelError) and len([each for each in sendings if each.is_open]) > 1:
                raise BatchRefused(str(error)) from error
            raise_as_result(error, self._broker)

    def publish_one(self, send: Callable[[Any], object], seconds: float) -> None:
        """Call send(channel), which publishes one message, and wait for its confirmation.

        Raises Unroutable, TargetDown, Rejected.
        """
        errors: list[Exception | None] = []
        self.publish([Sending("", send, errors.append)], seconds)
        if errors[0] is not None:
            raise errors[0]

    def close(self) -> None:
        """Close the connection at once, without waiting for the broker's answer."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.collect(socket_timeout=0.1)

    def _publish(self, sendings: Sequence[Sending], deadline: float) -> None:
        try:
            if self._channel is None:
                self._open(deadline)
            for sending in sendings:
                self._check(deadline)
                self._current = sending
                sending.send(self._channel)
                self._current = None
                sending.answered()
            self._wait(deadline)
        except BaseException:
            self.close()
            raise

    def _open(self, deadline: float) -> None:
        self._reset()
        # The timeout of each of the two attempts to connect.
        seconds = min(CONNECT_SECONDS, max(0.01, (deadline - time.monotonic()) / 2))
        options = {"on_blocked": self._on_blocked, "read_timeout": seconds, "write_timeout": CONNECT_SECONDS}
        self._connection = self._connect(options)
        self._connection.connect_timeout = min(self._connection.connect_timeout or seconds, seconds)
        self._connection.ensure_connection(**ONE_RETRY)
        channel = self._connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        publish = channel.basic_publish

        def counting(*args: Any, **options: Any) -> Any:
            assert self._current is not None
            self._last_tag += 1
            self._unconfirmed[self._last_tag] = self._current
            self._current.tags.add(self._last_tag)
            return publish(*args, **options)

        channel.basic_publish = counting
        self._channel = channel

    def _wait(self, deadline: float) -> None:
        while self._unconfirmed:
            seconds = self._check(deadline)
            with contextlib.suppress(socket.timeout):
                self._connection.drain_events(timeout=seconds)

    def _check(self, deadline: float) -> float:
        """Return the seconds until the deadline. Raises TargetDown or TimeoutError."""
        if self._blocked is not None:
            raise TargetDown(f"The broker blocks publishers: {self._blocked}.")
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("The broker has not confirmed the message in time.")
        return seconds

    def _on_ack(self, tag: int, multiple: bool, error: Exception | None = None) -> None:
        for each in list(itertools.takewhile(lambda each: each <= tag, self._unconfirmed)) if multiple else [tag]:
            sending = self._unconfirmed.pop(each, None)
            if sending is None:  # confirmed before
                continue
            sending.tags.discard(each)
            sending.error = sending.error or error
            if sending is not self._current:
                sending.answered()

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._on_ack(tag, multiple, TargetDown("The broker has refused a message (nack): a queue may be full."))

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        """Note that the broker returned a message. Its confirmation follows."""
        text = f"No queue of exchange {exchange!r} takes routing key {routing_key!r:.300} ({error.reply_text})."
        sendings = set(self._unconfirmed.values())
        returned = [sending for sending in sendings if sending.id == message.properties.get("message_id")] or sendings
        if len(returned) != 1:  # it is not known which of them was returned
            raise TargetDown(text)
        next(iter(returned)).error = Unroutable(text)

    def _on_blocked(self, reason: str) -> None:
        self._blocked = reason


def raise_as_result(error: BaseException, broker: str) -> NoReturn:
    """Raise Rejected if the message is too large, TargetDown for the other errors of ERRORS."""
    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error  # kombu wraps some errors
    text = f"{broker}: {type(cause).__name__}: {cause}"
    too_large = isinstance(error, amqp.PreconditionFailed) and "message size" in str(error)
    if too_large or isinstance(error, amqp.ContentTooLarge):
        raise Rejected(text) from error
    raise TargetDown(text) from error


def _timed_out(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, TimeoutError) or _timed_out(error.__cause__))
