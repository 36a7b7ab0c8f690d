"""What the commands of the queue protocol take, and the sentence that refuses a request which is none."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from .. import promises
from ..consuming import MAX_ERROR
from ..exceptions import BadKey
from .fields import (
    MAX_ATTEMPT,
    MAX_COUNT,
    MAX_ID,
    Checked,
    Described,
    Seconds,
    Text,
    Whole,
    Word,
    key_field,
    topic_field,
)
from .serializers import MAX_CONSUMER, MAX_WAIT_SECONDS, MODES, Strict


class Malformed(Exception):
    """A request that is not a command; the message names the field."""


# -- fields as this wire has them ---------------------------------------------------------------


class CommandName(Described):
    """The command itself: what tells one request from another, and so a constant of each."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name

    def described(self) -> dict[str, Any]:
        return {"type": "string", "const": self.name}


def id_field(**kwargs: Any) -> Checked:
    """A key, as it is called here."""
    field = key_field(help_text="The job, for example `order:1042`: unique, and best made of topic and business id.")
    return Checked(_check_id, field.schema, help_text=field.help_text, **kwargs)


def _check_id(value: object) -> str:
    try:
        return promises.check_key(value)
    except BadKey as error:
        raise BadKey(f"id{str(error).removeprefix('key')}") from None


def wait_field() -> Seconds:
    return Seconds(0, MAX_WAIT_SECONDS, default=0, help_text="Seconds to wait for a job if none is ready.")


def count_field() -> Whole:
    most = "At most so many jobs; the answer's value is a list then."
    return Whole(1, MAX_COUNT, required=False, help_text=most)


def consumer_field() -> Text:
    return Text(most=MAX_CONSUMER, default="", help_text="Which of the account's consumers this is; the job keeps it.")


def attempt_field() -> Whole:
    which = "What pop gave: the fence. Without: the attempt that the account itself holds."
    return Whole(1, MAX_ATTEMPT, required=False, help_text=which)


def reason_field(help_text: str) -> Text:
    return Text(most=MAX_ERROR, lines=True, default="", help_text=help_text)


def mode_field() -> Word:
    what = "What becomes of a job of this topic and id that is live: the command is refused, it stays, it is replaced."
    return Word(MODES, "OnConflict", default="reject", help_text=what)


def held_fields(**fields: Any) -> dict[str, Any]:
    """The fields of a command on a job that was popped."""
    number = Whole(1, MAX_ID, required=False, help_text="The job's number, as pop gave it: see the answer.")
    return {
        "id": id_field(), "attempt": attempt_field(), "job": number, "topic": topic_field(required=False), **fields,
    }  # fmt: skip


# -- a command's request ------------------------------------------------------------------------


def request_of(command: str, does: str, rules: Mapping[str, Any], **fields: Any) -> type[Strict]:
    """The serializer of a command's request: what it does, and what JSON Schema has to say beside its fields."""
    members = {"__doc__": does, "rules": rules, "command": CommandName(command), **fields}
    return type(f"{command.title()}CommandSerializer", (Strict,), members)


def read(command: str, request: type[Strict], sent: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a command. Raises Malformed, which names every field that is wrong."""
    serializer = request(data=sent)
    if not serializer.is_valid():
        takes = _takes(command, serializer)
        found = [
            (field, detail)
            for field, details in serializer.errors.items()
            for detail in ([details] if isinstance(details, str) else details)
        ]
        raise Malformed(" ".join(_sentence(field, detail, takes) for field, detail in found))
    return dict(serializer.validated_data)


def _sentence(field: str, detail: Any, takes: str) -> str:
    if detail.code == "required":
        return f"{field} is missing: {takes}"
    return str(detail) if detail.startswith(f"{field} ") else f"{field}: {detail}"


def _takes(command: str, serializer: serializers.Serializer) -> str:
    fields = {name: field for name, field in serializer.fields.items() if name != "command"}
    needed = [name for name, field in fields.items() if field.required]
    optional = [name for name in fields if name not in needed]
    also = f" It may have {', '.join(optional)}." if optional else ""
    return f"{command} needs {', '.join(needed)}.{also}"
