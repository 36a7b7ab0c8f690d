"""Fields of the queue protocol's commands, and error messages for malformed requests."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from ...exceptions import BadKey
from ...validators import check_key
from ...worker.leases import MAX_ERROR
from ..serializers.fields import (
    MAX_ATTEMPT,
    MAX_COUNT,
    MAX_ID,
    CheckedField,
    ChoiceField,
    DocumentedField,
    IntegerField,
    SecondsField,
    TextField,
    key_field,
    topic_field,
)
from ..serializers.requests import MAX_CONSUMER, MAX_WAIT_SECONDS, MODES, StrictSerializer, receipt_field


class Malformed(Exception):
    """The request is not a valid command. The message names the field."""


# -- fields of this protocol --------------------------------------------------------------------


class CommandName(DocumentedField):
    """The name of the command: a constant that identifies the kind of request in the schema."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "const": self.name}


def id_field(**kwargs: Any) -> CheckedField:
    """Return the field for the job's key, which this protocol calls "id"."""
    text = "The key of the job: the kind and the id of a business object, for example `order:1042`."
    field = key_field(help_text=text)
    return CheckedField(_check_id, field.schema, help_text=field.help_text, **kwargs)


def _check_id(value: object) -> str:
    try:
        return check_key(value)
    except BadKey as error:
        raise BadKey(f"id{str(error).removeprefix('key')}") from None


def wait_field() -> SecondsField:
    return SecondsField(0, MAX_WAIT_SECONDS, default=0, help_text="Seconds to wait if no job is ready.")


def count_field() -> IntegerField:
    text = "Largest number of jobs. If it is given, the value is a list."
    return IntegerField(1, MAX_COUNT, required=False, help_text=text)


def consumer_field() -> TextField:
    return TextField(maximum=MAX_CONSUMER, default="", help_text="Name of the account's consumer; stored with the job.")


def attempt_field() -> IntegerField:
    text = "The attempt that pop returned: the fencing token. Default: the attempt that the account itself holds."
    return IntegerField(1, MAX_ATTEMPT, required=False, help_text=text)


def message_field(help_text: str) -> TextField:
    return TextField(maximum=MAX_ERROR, multiline=True, default="", help_text=help_text)


def mode_field() -> ChoiceField:
    text = (
        "What to do if a job with this topic and id is live. `reject`: refuse the command. `keep`: keep the job. "
        "`replace`: replace it. `again`: run it once more after the running attempt; a waiting job is kept."
    )
    return ChoiceField(MODES, "OnConflict", default="reject", help_text=text)


def lease_fields(**fields: Any) -> dict[str, Any]:
    """Return the fields of a command on a popped job: the common ones and the given ones."""
    number = IntegerField(1, MAX_ID, required=False, help_text="The job number that pop returned.")
    return {
        "id": id_field(), "attempt": attempt_field(), "job": number, "topic": topic_field(required=False),
        "receipt": receipt_field(), **fields,
    }  # fmt: skip


# -- a command's request ------------------------------------------------------------------------


def build_request_serializer(
    command: str, description: str, rules: Mapping[str, Any], **fields: Any
) -> type[StrictSerializer]:
    """Build the serializer of a command's request; `rules` are additional JSON Schema keywords."""
    members = {"__doc__": description, "rules": rules, "command": CommandName(command), **fields}
    return type(f"{command.title()}CommandSerializer", (StrictSerializer,), members)


def read(command: str, request: type[StrictSerializer], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated fields of a command. Raises Malformed, which names every invalid field."""
    serializer = request(data=sent)
    if not serializer.is_valid():
        usage = _usage(command, serializer)
        errors = [
            (field, detail)
            for field, details in serializer.errors.items()
            for detail in ([details] if isinstance(details, str) else details)
        ]
        raise Malformed(" ".join(_error_message(field, detail, usage) for field, detail in errors))
    return dict(serializer.validated_data)


def _error_message(field: str, detail: Any, usage: str) -> str:
    if detail.code == "required":
        return f"{field} is missing: {usage}"
    return str(detail) if detail.startswith(f"{field} ") else f"{field}: {detail}"


def _usage(command: str, serializer: serializers.Serializer) -> str:
    fields = {name: field for name, field in serializer.fields.items() if name != "command"}
    required = [name for name, field in fields.items() if field.required]
    optional = [name for name in fields if name not in required]
    also = f" Optional: {', '.join(optional)}." if optional else ""
    return f"{command} requires {', '.join(required)}.{also}"
