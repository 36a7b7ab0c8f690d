"""The command protocol of the delay queue: POST /api/queue/, one command in, one envelope out.

{"command": "add", ...} -> {"success": true, "error": "", "id": "...", "value": ...}. A command that
is none (its fields are missing, unknown or of a wrong type) is HTTP 400; one that is refused
because of what the job is now is HTTP 200, and success is false with a reason. A job's key is
called "id" here, and its TTR is upper case. What a command takes, who may use it and what it does
is said once, in queue_commands.COMMANDS.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from django.http import Http404
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.response import Response

from ..exceptions import KeyIsLive, LeaseLost, NotLive, Reserved, shown
from . import examples, problems
from .fields import MAX_ATTEMPT, MAX_ID, Flag, Json, Moment, Seconds, Text, Whole, Word
from .openapi import ANY_POST, Answer, operation
from .polling import LongPoll
from .queue_commands import COMMANDS, Command, envelope
from .queue_fields import Malformed, read
from .queue_jobs import Call, Refused
from .topics import check_known

BY_STATE = (KeyIsLive, Reserved, NotLive, LeaseLost)  # refusals that are no mistake of the request


class EnvelopeSerializer(serializers.Serializer):
    """The answer to every command, done or refused."""

    success = Flag()
    error = Text(help_text="Why success is false; else empty.")
    id = Text(help_text="The job that it is about, if it is about one.")
    value = Json(help_text="What the command is asked for: see there.")
    job = Whole(1, MAX_ID, required=False, help_text="pop: the job's number; with the attempt it is the fence.")
    attempt = Whole(1, MAX_ATTEMPT, required=False, help_text="pop: the fence to give to finish.")
    TTR = Seconds(required=False, help_text="pop: seconds from then until others may pop the job.")
    due_at = Moment(required=False, help_text="add, pop: when the job becomes, or became, ready.")
    deadline = Moment(required=False, help_text="pop: when the TTR is over.")
    result = Word(("created", "kept", "replaced"), "Result", required=False, help_text="add: what became of it.")


_ADD = {"command": "add", "topic": "order.close", "id": "order:1042", "delay": 1800, "TTR": 60, "body": {"order": 1042}}
_POPPED: dict[str, Any] = {
    "job": 7, "attempt": 1, "TTR": 60, "due_at": "2031-05-01T09:30:00.250Z", "deadline": "2031-05-01T09:31:00.254Z",
}  # fmt: skip
_LATE = "Attempt 1 of 'order:1042' is over: its TTR of 60 s was over at 2031-05-01T09:31:00.254Z."


class QueueView(LongPoll):
    """POST a command, get its envelope."""

    sent_id = ""  # of the request; in the envelope whatever the answer is

    @operation(
        "queueCommand",
        tag="queue",
        summary="The command protocol",
        request=PolymorphicProxySerializer(
            component_name="QueueCommand",
            serializers={name: command.request for name, command in COMMANDS.items()},
            resource_type_field_name="command",
        ),
        answers={200: Answer(EnvelopeSerializer, "Done, or refused because of what the job is now: see `success`.")},
        problems={
            **ANY_POST,
            400: "The request is no command; `error` names the field.",
            413: "The request's body is larger than the caller may send, or the job's larger than a job's may be.",
        },
        problem=(EnvelopeSerializer, "application/json"),
        examples=[
            examples.request("Close the order in half an hour", _ADD),
            examples.request("Take a job or wait for one", {"command": "pop", "topic": "order.close", "wait": 30}),
            examples.request("It is done", {"command": "finish", "id": "order:1042", "attempt": 1}),
            examples.request("It was paid", {"command": "delete", "id": "order:1042"}),
            examples.answer("A job", envelope("order:1042", {"order": 1042}, **_POPPED)),
            examples.answer("No job is ready", envelope()),
            examples.answer("Too late", envelope("order:1042", error=_LATE)),
            examples.answer("Not a command", envelope("order:1042", error="delay is missing: ..."), 400),
        ],
    )
    def post(self, request: Any) -> Response:
        """One command, answered by an envelope.

        - `add` makes a job, ready after `delay` seconds. Its `id` may be live once among all topics that you see.
        - `pop` reserves a job for its TTR: `id` is the job's and `value` its body. With `count` the value is a list of
          such jobs. If none is ready in `wait` seconds, it is `null`.
        - `finish` ends a job that was popped; after its TTR that is refused. Give the `attempt` that pop gave: without
          it, what your account holds is meant. Give the `job`, too, where an id is used again after its job has ended:
          attempts of the next one count from 1 again.
        - `touch` begins the TTR anew; the value is the new deadline. `release` gives the job back, after `delay`
          seconds or at once, and with an `error` as a failed attempt; the value is `delayed` or `dead`. `bury` declares
          it dead.
        - `delete` calls a job off that nobody has popped; the value is `cancelled`, `running`, `already finished` or
          `unknown`.
        - `peek` looks at a job, or at the next one of a topic, and changes nothing.

        A job is found by its `id` alone; `topic` is needed where the same id is live under several. `add` and `delete`
        need the right to produce (`delete` also: to manage), `peek` any right, the others the right to consume.
        """
        sent = request.data
        if not isinstance(sent, dict):
            raise Malformed(f"The request is {shown(sent)}: send an object, with a command.")
        self.sent_id = sent["id"] if isinstance(sent.get("id"), str) else ""
        command = _named(sent)
        fields = read(sent["command"], command.request, sent)
        if "topic" in fields:
            self.caller.require(command.rights, fields["topic"])
            _check_known(fields["topic"], self.using)
        return command.run(Call(self, self.caller, self.using, command.rights, fields))

    def get_exception_handler(self) -> Callable[..., Response]:
        return self._refusal

    def _refusal(self, error: Exception, context: Mapping[str, Any]) -> Response:
        """The envelope of what went wrong."""
        if isinstance(error, Refused):
            return Response(envelope(self.sent_id, error.value, error=str(error)))
        if isinstance(error, BY_STATE):
            return Response(envelope(self.sent_id, error=str(error)))
        if isinstance(error, Malformed):
            return Response(envelope(self.sent_id, error=str(error)), HTTPStatus.BAD_REQUEST)
        found = problems.classify(error) or problems.unforeseen(error, context)
        return Response(envelope(self.sent_id, error=found.detail), found.status, headers=dict(found.headers))


def _named(sent: Mapping[str, Any]) -> Command:
    name = sent.get("command")
    if isinstance(name, str) and name in COMMANDS:
        return COMMANDS[name]
    found = f"is {shown(name)}" if "command" in sent else "is missing"
    raise Malformed(f"command {found}: it is one of {', '.join(COMMANDS)}.")


def _check_known(topic: str, using: str) -> None:
    """Ask for the right first: who has none is not told. Raises Malformed."""
    try:
        check_known(topic, using)
    except Http404:
        raise Malformed(f"topic: {topic!r} is not known: no handler, no setting and no row has this name.") from None
