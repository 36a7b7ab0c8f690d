"""The argument of a target's deliver(), and the exceptions with which a target reports a failure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

Encoded = TypeVar("Encoded")
Format = Literal["cloudevents", "cloudevents-binary", "json"]


@dataclass(frozen=True)
class Message:
    """A due job, as a target sends it.

    id          str, the same in every attempt: receivers recognize a repeated message by it
    topic, key  str, of the job
    body        the job's body, as JSON data
    due_at      aware datetime
    source      str, the `source` of a CloudEvent
    format      "cloudevents" (structured), "cloudevents-binary" or "json" (the body alone)
    trace_context
                str: of the span that scheduled the job, as delaytasks.tracing stores it; "": none
    hides_body  whether people may not see the topic's bodies, which a target's answer may repeat
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
    """The target is away or refuses the sender: the topic is held, and no job is charged.

    reason         str: shown to staff
    retry_seconds  when the target asked to be called again; None: it did not say
    """

    def __init__(self, reason: str, *, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.retry_seconds = reason, retry_seconds


class Rejected(Exception):
    """The target refuses this message because of its content. The job is dead at once."""


class BatchRefused(Exception):
    """The target refuses a batch because of some of its messages, and does not say because of which.

    The messages that have no report are then sent alone.
    """


class Target(Protocol):
    """Something outside that takes messages."""

    def deliver(self, message: Message, timeout_seconds: float) -> str | None:
        """Send the message and wait until the target has confirmed it.

        Returns None, or the target's answer: a text whose beginning is kept in the job's event, without secrets.

        Raises TargetDown, Rejected, or another exception: then the attempt fails and the job is retried.
        """
        ...


Report = Callable[[Message, Exception | None], None]


class BatchTarget(Target, Protocol):
    """A target that takes several messages at once.

    max_batch   the most messages of a call
    """

    max_batch: int

    def deliver_many(self, messages: Sequence[Message], timeout_seconds: float, report: Report) -> None:
        """Send the messages, and report each as soon as the target has answered: None if it has confirmed it.

        report   called with a message and None, or with the error that deliver() would raise for it. Never called for
                 a message whose confirmation is unknown

        Raises TargetDown: then the messages without a report go back, and are sent again later. After another error
        each of them is sent alone; the error of a message that was alone is its own.
        """
        ...


def deliver_alone(target: BatchTarget, message: Message, timeout_seconds: float) -> None:
    """Send one message, as Target.deliver()."""
    errors: list[Exception | None] = []
    target.deliver_many([message], timeout_seconds, lambda _, error: errors.append(error))
    if not errors:
        raise TargetDown(f"{target!r} has not reported whether the message was confirmed.")
    if errors[0] is not None:
        raise errors[0]


def report_failures(messages: Sequence[Message], encode: Callable[[Message], Encoded], report: Report) -> list[Encoded]:
    """Return the encoded messages. Those that cannot be encoded are reported and left out. Raises TargetDown."""
    encoded = []
    for message in messages:
        try:
            encoded.append(encode(message))
        except TargetDown:
            raise
        except Exception as error:
            report(message, error)
    return encoded
