"""The loop of an inbox: receive a batch, store it, send refused messages to the dead letters, confirm the batch.

A batch is confirmed only after its rows are committed. If the process dies in between, the broker delivers the batch
again, and its messages are recognized by their InboxMessage rows.
"""

import contextlib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from django.db import DataError, IntegrityError, connections, transaction
from django.db.utils import Error

from .. import databases
from ..db.retries import waited_too_long
from ..exceptions import BadInput
from ..models import InboxMessage
from .declarations import Inbox
from .messages import Command, Received, Refused, decode
from .sources import BrokerDown, Source
from .store import store

logger = logging.getLogger("delaytasks.inbox")
WAIT_SECONDS = 0.5  # how long one call waits for a message; a stop may take as long
FIRST_PAUSE_SECONDS = 0.5  # after an error; doubled after each further one that follows soon
LONGEST_PAUSE_SECONDS = 30.0
RAISED = "P0001"  # PostgreSQL: raise_exception, for example in a trigger of the project
MAX_LOCKED = 5  # a batch is given up when this many of its jobs are locked by other transactions


def consume(inbox: Inbox, *, using: str | None = None, stop: threading.Event) -> Counter[str]:
    """Take messages until `stop` is set. Return counts: stored, repeated, refused.

    While the database or the broker is unavailable, the connection to the broker stays closed, so that no message is
    taken; later it is opened again. No message is refused because of an outage.

    Raises BadInput if the inbox or its broker is declared wrongly, or a library is not installed.
    """
    using, counts, pause = databases.alias(using), Counter[str](), FIRST_PAUSE_SECONDS
    inbox.broker_options()
    inbox.check_libraries()
    while not stop.is_set():
        began = time.monotonic()
        try:
            _check_database(using)  # before messages are taken: some brokers count how often each is delivered
            with contextlib.closing(connect(inbox)) as source:
                while not stop.is_set():
                    if done := step(source, inbox, using):
                        counts += done
                        pause = FIRST_PAUSE_SECONDS
        except (BrokerDown, Error) as error:
            if time.monotonic() - began > LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            logger.warning("inbox %s: %s: %s; next try in %g s", inbox.name, type(error).__name__, error, pause)
            stop.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    return counts


def connect(inbox: Inbox) -> Source:
    """Return a connection to the broker of an inbox. Raises BrokerDown, BadInput."""
    if inbox.kafka:
        from .kafka import KafkaSource

        return KafkaSource(inbox)
    from .amqp import AmqpSource

    return AmqpSource(inbox)


def step(source: Source, inbox: Inbox, using: str) -> Counter[str]:
    """Receive, store and confirm one batch. Return counts: stored, repeated, refused; empty if no message came.

    Raises BrokerDown, and errors of the database. No message is confirmed then.
    """
    batch = source.receive(inbox.batch_max, WAIT_SECONDS)
    if not batch:
        return Counter()
    answers, repeated = _store(using, inbox, batch)
    refused = 0
    for received, answer in zip(batch, answers, strict=True):
        if answer is not None:
            logger.warning("inbox %s: message %r is refused: %s", inbox.name, received.message_id, answer)
            source.refuse(received, answer)
            refused += 1
    source.confirm()
    return Counter(stored=len(batch) - refused - repeated, repeated=repeated, refused=refused)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set. Restores the former signal handlers at the end."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _store(using: str, inbox: Inbox, batch: Sequence[Received]) -> tuple[list[Refused | None], int]:
    now_ms = databases.now_ms(using)
    decoded = [_decode(received, inbox, now_ms) for received in batch]
    commands = [each for each in decoded if isinstance(each, Command)]
    stored, repeated = _store_commands(using, inbox.name, commands)
    results = iter(stored)
    return [next(results) if isinstance(each, Command) else each for each in decoded], repeated


def _decode(received: Received, inbox: Inbox, now_ms: int) -> Command | Refused:
    try:
        return decode(received, inbox, now_ms=now_ms)
    except Refused as refused:
        return refused
    except BadInput:  # a library is missing: no message is to blame
        raise
    except Exception as error:
        logger.exception("inbox %s: message %r cannot be read", inbox.name, received.message_id)
        return Refused("error", f"{type(error).__name__}: {error}")


def _store_commands(using: str, inbox: str, commands: Sequence[Command]) -> tuple[list[Refused | None], int]:
    """Store the messages together. If that fails, store each by itself, and refuse those that fail again."""
    if not commands:
        return [], 0
    try:
        return store(using, inbox, commands)
    except Exception as error:
        if _is_outage(error) and not (waited_too_long(error) and len(commands) > 1):
            raise
        if len(commands) == 1:
            logger.exception("inbox %s: message %r cannot be stored", inbox, commands[0].message_id)
            return [Refused("error", f"{type(error).__name__}: {error}")], 0
    return _store_singly(using, inbox, commands)


def _store_singly(using: str, inbox: str, commands: Sequence[Command]) -> tuple[list[Refused | None], int]:
    """Store each message by itself. Raises the database's error at the end if a job was locked for too long.

    The messages for a locked job are skipped, so that their order is kept. Those for other jobs are stored first.
    """
    answers, repeated, locked = list[Refused | None](), 0, dict[tuple[str, str], Error]()
    for command in commands:
        if (command.topic, command.key) in locked:
            continue
        try:
            own, own_repeated = _store_commands(using, inbox, [command])
        except Error as error:
            if not waited_too_long(error) or len(locked) == MAX_LOCKED - 1:
                raise
            locked[command.topic, command.key] = error
            continue
        answers, repeated = answers + own, repeated + own_repeated
    for first in locked.values():
        raise first
    return answers, repeated


def _is_outage(error: Exception) -> bool:
    """Return whether the error is a failure of the database and not caused by a message."""
    by_message = isinstance(error, DataError | IntegrityError) or getattr(error.__cause__, "sqlstate", "") == RAISED
    return isinstance(error, Error) and not by_message


def _check_database(using: str) -> None:
    """Check that the database accepts writes: insert a row and roll it back. Raises the database's error."""
    connection: Any = connections[using]
    connection.close()
    with transaction.atomic(using):
        row = InboxMessage(message_id=str(uuid4()), received_at=databases.now(using))
        row.save(using=using, force_insert=True)
        transaction.set_rollback(True, using)
