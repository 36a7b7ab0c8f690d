"""The argument of a target's deliver(), and the exceptions with which a target reports a failure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

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
    """

    id: str
    topic: str
    key: str
    body: Any
    due_at: datetime
    source: str = "/delaytasks"
    format: Format = "cloudevents"
    trace_context: str = ""


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


class Target(Protocol):
    """Something outside that takes messages."""

    def deliver(self, message: Message, timeout_seconds: float) -> None:
        """Send the message and wait until the target has confirmed it.

        Raises TargetDown, Rejected, or another exception: then the attempt fails and the job is retried.
        """
        ...
