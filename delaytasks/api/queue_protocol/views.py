"""The view of the queue protocol: POST /api/queue/ takes one command and returns one envelope.

{"command": "add", ...} -> {"success": true, "error": "", "id": "...", "value": ...}. A malformed command (missing,
unknown or invalid fields) gets HTTP 400. A command that the job's state does not allow gets HTTP 200, success false
and a reason. In this protocol a job's key is called "id", and TTR is upper case. commands.COMMANDS defines the fields,
rights and effects of each command.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from django.http import Http404
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.response import Response

from .. import exceptions
from ..long_poll import LongPoll
from ..schema import examples
from ..schema.operations import ANY_POST, ResponseDoc, operation
from ..serializers.fields import (
    MAX_ATTEMPT,
    MAX_ID,
    BooleanField,
    ChoiceField,
    DateTimeField,
    IntegerField,
    JSONField,
    SecondsField,
    TextField,
    short_json,
)
from ..views.topics import check_known
from .commands import COMMANDS, Command, envelope
from .fields import Malformed, read
from .lookup import Call, Refused


class EnvelopeSerializer(serializers.Serializer):
    """The response to every command."""

    success = BooleanField()
    error = TextField(help_text="Why success is false, else empty.")
    id = TextField(help_text="The id of the job, if the command concerns one.")
    value = JSONField(help_text="The result of the command; see its description.")
    job = IntegerField(
        1, MAX_ID, required=False, help_text="pop: the job's number; with the attempt, the fencing token."
    )
    attempt = IntegerField(1, MAX_ATTEMPT, required=False, help_text="pop: the attempt to pass to finish.")
    receipt = TextField(required=False, help_text="pop: proves that the reservation is yours.")
    TTR = SecondsField(required=False, help_text="pop: seconds until others may pop the job.")
    due_at = DateTimeField(required=False, help_text="add, pop: the due time of the job.")
    deadline = DateTimeField(required=False, help_text="pop: when the TTR ends.")
    result = ChoiceField(
        ("created", "kept", "replaced", "again"), "Result", required=False, help_text="add: what was done."
    )


_ADD = {"command": "add", "topic": "order.close", "id": "order:1042", "delay": 1800, "TTR": 60, "body": {"order": 1042}}
_POPPED: dict[str, Any] = {
    "job": 7,
    "attempt": 1,
    "receipt": examples.RECEIPT,
    "TTR": 60,
    "due_at": "2031-05-01T09:30:00.250Z",
    "deadline": "2031-05-01T09:31:00.254Z",
}
_LATE = "Attempt 1 of 'order:1042' is over: its TTR of 60 s was over at 2031-05-01T09:31:00.254Z."


class QueueView(LongPoll):
    """Run the command in a POST request and return its envelope."""

    sent_id = ""  # the id in the request; part of every envelope

    @operation(
        "queueCommand",
        tag="queue",
        summary="Run a command",
        request=PolymorphicProxySerializer(
            component_name="QueueCommand",
            serializers={name: command.request for name, command in COMMANDS.items()},
            resource_type_field_name="command",
        ),
        responses={
            200: ResponseDoc(
                EnvelopeSerializer, "The command was executed, or the job's state does not allow it: see `success`."
            )
        },
        problems={
            **ANY_POST,
            400: "The command is malformed; `error` names the field.",
            413: "The request body exceeds the caller's limit, or the job's body exceeds the limit of jobs.",
        },
        problem=(EnvelopeSerializer, "application/json"),
        examples=[
            examples.request("Close the order in half an hour", _ADD),
            examples.request("Pop a job or wait for one", {"command": "pop", "topic": "order.close", "wait": 30}),
            examples.request("Finish the job", {"command": "finish", "id": "order:1042", "attempt": 1}),
            examples.request("Cancel the job", {"command": "delete", "id": "order:1042"}),
            examples.response("A job", envelope("order:1042", {"order": 1042}, **_POPPED)),
            examples.response("No job is ready", envelope()),
            examples.response("Too late", envelope("order:1042", error=_LATE)),
            examples.response("Malformed", envelope("order:1042", error="delay is missing: ..."), 400),
        ],
    )
    def post(self, request: Any) -> Response:
        """Run one command. The response is an envelope.

        - `add` creates a job that becomes ready after `delay` seconds. Its `id` may be live only once among all topics
          that you see.
        - `pop` reserves a job for its TTR: `id` is its id and `value` its body. With `count` the value is a list of
          such jobs. If no job becomes ready within `wait` seconds, the value is `null`.
        - `finish` finishes a popped job; it is refused after the TTR. Pass the `attempt` that pop returned; the default
          is the attempt that your account holds. Pass the `job` as well if you reuse ids after their jobs have ended:
          attempts of the next job count from 1 again. Another account than the one that popped the job must give the
          `receipt` that pop returned, also to touch, release or bury it.
        - `touch` restarts the TTR; the value is the new deadline. `release` makes the job due again, after `delay`
          seconds or at once; with an `error` the attempt counts as failed. The value is `delayed` or `dead`. `bury`
          marks the job as dead.
        - `delete` cancels a job that is not popped; the value is `cancelled`, `running`, `already finished` or
          `unknown`. Of a popped job it cancels only the next run that `again` has stored; the value is `running`.
        - `peek` shows a job, or the next one of a topic, and changes nothing.

        The `id` alone identifies a job; `topic` is required if the same id is live in several topics. `add` requires
        the right to produce, or with `reject` the right to submit; `delete` to produce or to manage, `peek` any right
        but submit, and the others the right to consume.
        """
        sent = request.data
        if not isinstance(sent, dict):
            raise Malformed(f"The request is {short_json(sent)}: send a JSON object with a command.")
        self.sent_id = sent["id"] if isinstance(sent.get("id"), str) else ""
        command = _named(sent)
        fields = read(sent["command"], command.request, sent)
        if "topic" in fields:
            self.caller.require(command.rights, fields["topic"])
            _check_known(fields["topic"], self.using)
        return command.run(Call(self, self.caller, self.using, command.rights, fields))

    def get_exception_handler(self) -> Callable[..., Response]:
        return self._handle_exception

    def _handle_exception(self, error: Exception, context: Mapping[str, Any]) -> Response:
        """Return the envelope for an exception."""
        if isinstance(error, Refused):
            return Response(envelope(self.sent_id, error.value, error=str(error)))
        if isinstance(error, exceptions.STATE_CONFLICTS):
            return Response(envelope(self.sent_id, error=str(error)))
        if isinstance(error, Malformed):
            return Response(envelope(self.sent_id, error=str(error)), HTTPStatus.BAD_REQUEST)
        problem = exceptions.classify(error) or exceptions.internal_error(error, context)
        return Response(envelope(self.sent_id, error=problem.detail), problem.status, headers=dict(problem.headers))


def _named(sent: Mapping[str, Any]) -> Command:
    name = sent.get("command")
    if isinstance(name, str) and name in COMMANDS:
        return COMMANDS[name]
    problem = f"is {short_json(name)}" if "command" in sent else "is missing"
    raise Malformed(f"command {problem}: use one of {', '.join(COMMANDS)}.")


def _check_known(topic: str, using: str) -> None:
    """Raise Malformed for an unknown topic. Check rights first: the error reveals whether the topic exists."""
    try:
        check_known(topic, using)
    except Http404:
        raise Malformed(f"topic: {topic!r} is unknown: no handler, setting or row has this name.") from None
