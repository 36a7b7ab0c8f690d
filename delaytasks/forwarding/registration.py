"""forward(): declare that the due jobs of a topic go to a target."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, get_args

from .. import handlers
from ..backoff import Backoff
from ..worker.attempt import RunningJob
from . import brokers
from .targets import Format, Rejected, Target


def forward(
    topic: str,
    target: Target,
    *,
    format: Format | None = None,
    source: str = "/delaytasks",
    ttr: timedelta | float | int = 60,
    max_attempts: int = 20,
    concurrency: int | None = None,
    queue: str | None = None,
    backoff: Backoff | None = None,
    on_dead: Any = None,
) -> None:
    """Forward the due jobs of a topic to a target.

    topic    str; a topic has a handler or a target, not both (the system check delaytasks.E002)
    target   a Kafka, Amqp, Webhook or CeleryTask, or an object with the method deliver() of Target
    format   "cloudevents" (one JSON document), "cloudevents-binary" (attributes in headers) or "json" (the body alone);
             None: "json" for a CeleryTask, "cloudevents" for the others
    source   str, the `source` of the CloudEvents: a URI or a path

    The other arguments are those of handler(). A job is finished when the target has confirmed its message. A message
    may be sent more than once, always with the id of the job as its id; after "ALIAS-" if the job is not in the default
    database. No order is promised. Jobs that are due together are sent in batches to a BatchTarget; each of them is
    finished by its own confirmation.

    While the target is unavailable or refuses the sender, the topic is held: its jobs stay ready, and now and then one
    of them is sent as a probe. A job that was sent in vain is snoozed, which counts no failed attempt, unless that
    happens again while others are confirmed. If the target refuses the content of a job, the job is dead at once. Any
    other error counts as a failed attempt.

    Raises BadTopic, BadTTR, and ValueError for a bad format, source or target.
    """
    default: Format = getattr(target, "default_format", "cloudevents")
    format = default if format is None else format
    if format not in get_args(Format):
        raise ValueError(f"forward({topic!r}): format is {format!r}; use {', '.join(map(repr, get_args(Format)))}.")
    if not callable(getattr(target, "deliver", None)):
        raise ValueError(
            f"forward({topic!r}): {target!r:.100} is not a target; give a Kafka, Amqp, Webhook or CeleryTask."
        )
    brokers.check_name(source, "source", f"forward({topic!r})", longest=1000)
    caller = sys._getframe(1).f_globals.get("__name__", "")
    named: Any = _Forwarder(target, format, source, f"forward({topic!r}, {target!r})", caller)
    handlers.handler(
        topic, ttr=ttr, max_attempts=max_attempts, concurrency=concurrency, queue=queue, backoff=backoff,
        atomic=False, on_dead=on_dead, batch=getattr(target, "max_batch", 1), give_up_on=Rejected,
    )(named)  # fmt: skip


class _Forwarder:
    """The handler of a forwarded topic, with the module and the name that the admin and the system checks show."""

    forwards = True

    def __init__(self, target: Target, format: Format, source: str, name: str, module: str) -> None:
        self.target, self.format, self.source = target, format, source
        self.__qualname__, self.__module__ = name, module

    def __call__(self, jobs: Sequence[RunningJob]) -> dict[int, Any]:
        from .delivery import deliver  # loads the models; forward() may be called before the app registry is ready

        return deliver(jobs, target=self.target, format=self.format, source=self.source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Forwarder) and other._fields() == self._fields()

    def __hash__(self) -> int:
        return hash(self.__qualname__)

    def _fields(self) -> tuple[Any, ...]:
        # A module may be imported twice: its targets are different objects with equal attributes.
        return self.__qualname__, self.format, self.source, getattr(self.target, "__dict__", self.target)
