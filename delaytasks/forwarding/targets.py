"""The interface of targets: their methods, the messages that they send, and the exceptions that they raise."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from ..worker.coroutines import await_result

Encoded = TypeVar("Encoded")
Format = Literal["cloudevents", "cloudevents-binary", "json"]


@dataclass(frozen=True)
class Message:
    """A due job as it is given to a target.

    id          str, the same in every attempt: receivers recognize a repeated message by it
    topic, key  str, of the job
    body        the job's body, as JSON data
    due_at      aware datetime: the same in every attempt, unless the job was moved
    source      str, the `source` of a CloudEvent
    format      "cloudevents" (structured), "cloudevents-binary" or "json" (the body alone)
    trace_context  str: trace context of the span that scheduled the job, in the form of delaytasks.tracing; "": none
    hides_body  True: the topic's bodies are hidden from people, so that the target's answer, which may repeat the
                body, must be hidden too
    """

    id: str
    topic: str
    key: str
    body: Any
    due_at: datetime
    source: str = "/delaytasks"
    format: Format = "cloudevents"
    trace_context: str = ""
    hides_body: bool = False


class TargetDown(Exception):
    """The target is unavailable or refuses the sender. The topic is held; no attempt counts as failed.

    If it is raised again for the same job while others are confirmed, and without retry_seconds, that attempt fails.

    reason         str: shown to staff
    retry_seconds  seconds after which the target asked to be called again; None: it did not say
    """

    def __init__(self, reason: str, *, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.retry_seconds = reason, retry_seconds


class Rejected(Exception):
    """The target refuses this message because of its content. The job is dead at once."""


class Failed(Exception):
    """The target answered with an error that may be temporary: the attempt fails and is retried."""


class BatchRefused(Exception):
    """The target refuses a batch because of some of its messages, without saying which.

    The messages that have no report are then sent one by one.
    """


class Target(Protocol):
    """An external system that takes messages. Its methods may be coroutine functions."""

    def deliver(self, message: Message, timeout_seconds: float) -> str | Coroutine[Any, Any, str | None] | None:
        """Send the message and wait until the target has confirmed it.

        Returns None, or the target's answer: a text whose beginning is kept in the job's event, without secrets.

        Raises TargetDown, Rejected, or another exception: then the attempt fails and the job is retried. An exception
        that it returns counts as raised.
        """
        ...


Report = Callable[[Message, Exception | None], None]


class BatchTarget(Target, Protocol):
    """A target that takes several messages at once.

    max_batch   int, the largest number of messages in a call of deliver_many()
    """

    max_batch: int

    def deliver(self, message: Message, timeout_seconds: float) -> None:
        """Send one message by deliver_many(). Raises as Target.deliver() does."""
        errors: list[Exception | None] = []
        await_result(self.deliver_many([message], timeout_seconds, lambda _, error: errors.append(error)))
        if not errors:
            raise TargetDown(f"{self!r} has not reported whether the message was confirmed.")
        if errors[0] is not None:
            raise errors[0]

    def deliver_many(
        self, messages: Sequence[Message], timeout_seconds: float, report: Report
    ) -> Coroutine[Any, Any, None] | None:
        """Send the messages, and report each of them as soon as the target has answered.

        report   called with a message and None if it is confirmed, otherwise with the error that deliver() would raise
                 for it. Not called if it is unknown whether the message was confirmed

        Raises TargetDown: the messages without a report are then sent again later. After another exception they are
        sent one by one, and an exception for a message that was sent alone is the result of that message.
        """
        ...


def report_failures(messages: Sequence[Message], encode: Callable[[Message], Encoded], report: Report) -> list[Encoded]:
    """Return the encoded messages. A message that cannot be encoded is reported and left out. Raises TargetDown."""
    encoded = []
    for message in messages:
        try:
            encoded.append(encode(message))
        except TargetDown:
            raise
        except Exception as error:
            report(message, error)
    return encoded
