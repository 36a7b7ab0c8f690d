"""Serializer fields of requests and responses. Each field validates values and describes itself in JSON Schema.

Types are strict: quoted numbers and booleans are not numbers, and a time must have an offset. Limits that come from
settings are read on each use.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NoReturn

from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from rest_framework import serializers

from ... import conf, validators
from ...clock import rfc3339
from ...exceptions import BadInput, short_repr
from ...states import MAX_PRIORITY

MAX_ID = 2**63 - 1
MAX_ATTEMPT = 2**31 - 1
MAX_COUNT = 200  # jobs that a request may reserve; BATCH_MAX can lower this
MAX_TTR_SECONDS = validators.MAX_TTR_MS // 1000

TOPIC_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
# Forbidden characters. Lone surrogates are refused, too, but JSON Schema cannot express them.
_CONTROL = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_LINE_PATTERN = f"^[^{_CONTROL}]*$"
_LINES_PATTERN = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]*$"
_KEY_PATTERN = rf"^[^{_CONTROL}]*[^{_CONTROL}\s][^{_CONTROL}]*$"
_BAD_IN_LINE = re.compile(r"[\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff]")
_BAD_IN_LINES = re.compile(r"[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\ud800-\udfff]")

Limit = float | Callable[[], float]


def short_json(value: Any) -> str:
    """Return a value of a request for a message, shortened: a string as short_repr() does, anything else as JSON."""
    return short_repr(value) if isinstance(value, str) else f"{json.dumps(value, ensure_ascii=False):.120}"


def resolve_limit(limit: Limit) -> float:
    return limit() if callable(limit) else limit


class DocumentedField(serializers.Field):
    """Base class of fields that provide their JSON Schema.

    getter   for responses: function of (instance, context) that returns the value; None: use the attribute of the
             field's name
    """

    default_error_messages: ClassVar = {"required": "It is missing.", "null": "It must not be null."}

    def __init__(self, *, getter: Callable[[Any, Mapping[str, Any]], Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.getter = getter

    def json_schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) if self.getter is None else self.getter(instance, self.context)

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value

    def refuse(self, message: str) -> NoReturn:
        raise serializers.ValidationError(message)


class DocumentedFieldExtension(OpenApiSerializerFieldExtension):
    target_class = DocumentedField
    match_subclasses = True

    def get_name(self) -> str | None:
        return getattr(self.target, "component", None) or None

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        return dict(self.target.json_schema())


class TextField(DocumentedField):
    """A string of at most `maximum` printable characters. `multiline` also allows line breaks and tabs."""

    def __init__(self, *, maximum: int | None = None, multiline: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maximum, self.multiline = maximum, multiline

    def json_schema(self) -> dict[str, Any]:
        if self.maximum is None:
            return {"type": "string"}
        return {
            "type": "string",
            "maxLength": self.maximum,
            "pattern": _LINES_PATTERN if self.multiline else _LINE_PATTERN,
        }

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.refuse(f"{short_json(data)} is not a string.")
        if self.maximum is not None and len(data) > self.maximum:
            self.refuse(f"It has {len(data):,} characters; at most {self.maximum:,} are allowed.")
        bad = (_BAD_IN_LINES if self.multiline else _BAD_IN_LINE).search(data)
        if bad is not None:
            self.refuse(f"It contains the control character {bad[0]!r}; use printable characters.")
        return str(data)


class CheckedField(DocumentedField):
    """A string validated by a function of the engine, which raises BadInput."""

    def __init__(self, check: Callable[[object], str], schema: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check, self.schema = check, schema

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", **self.schema}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.refuse(f"{short_json(data)} is not a string.")
        try:
            return self.check(data)
        except BadInput as error:
            raise serializers.ValidationError(str(error)) from None


def topic_field(**kwargs: Any) -> CheckedField:
    kwargs.setdefault("help_text", "A kind of job, for example `order.close`.")
    return CheckedField(validators.check_topic, {"pattern": TOPIC_PATTERN, "maxLength": 100}, **kwargs)


def key_field(**kwargs: Any) -> CheckedField:
    kwargs.setdefault(
        "help_text", "The business name of the job, for example `order:1042`. Unique among the live jobs of a topic."
    )
    schema = {"minLength": 1, "maxLength": validators.MAX_KEY, "pattern": _KEY_PATTERN}
    return CheckedField(validators.check_key, schema, **kwargs)


class IntegerField(DocumentedField):
    """An integer. `from_query` is for query parameters: it also accepts digits in a string."""

    def __init__(
        self, minimum: Limit | None = None, maximum: Limit | None = None, *, from_query: bool = False, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.minimum, self.maximum, self.from_query = minimum, maximum, from_query

    def json_schema(self) -> dict[str, Any]:
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        schema = {name: int(resolve_limit(limit)) for name, limit in limits.items() if limit is not None}
        # Without a format, generated clients in Go, Java and C# use 32 bits.
        width = {} if schema.get("maximum", MAX_ID) < 2**31 else {"format": "int64"}
        return {"type": "integer", **width, **schema}

    def to_internal_value(self, data: Any) -> int:
        if self.from_query and isinstance(data, str) and re.fullmatch(r"-?[0-9]{1,19}", data):
            data = int(data)
        if isinstance(data, float) and data.is_integer():
            data = int(data)  # 1.0 is an integer in JSON
        if isinstance(data, bool) or not isinstance(data, int):
            self.refuse(f"{short_json(data)} is not a whole number.")
        assert self.minimum is not None
        assert self.maximum is not None
        minimum, maximum = int(resolve_limit(self.minimum)), int(resolve_limit(self.maximum))
        if not minimum <= data <= maximum:
            self.refuse(f"{short_json(data)} is out of range: it must be from {minimum:,} to {maximum:,}.")
        return int(data)


class SecondsField(DocumentedField):
    """A number of seconds; less than a millisecond counts as one millisecond."""

    def __init__(self, minimum: Limit = 0, maximum: Limit | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.minimum, self.maximum = minimum, maximum

    def json_schema(self) -> dict[str, Any]:
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        schema = {name: resolve_limit(limit) for name, limit in limits.items() if limit is not None}
        return {"type": "number", "format": "double", **schema}

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.refuse(f"{short_json(data)} is not a number of seconds.")
        assert self.maximum is not None
        minimum, maximum = resolve_limit(self.minimum), resolve_limit(self.maximum)
        if not minimum <= data <= maximum:  # also refuses NaN
            self.refuse(f"{short_json(data)} is out of range: it must be from {minimum:,} to {maximum:,} seconds.")
        return float(data) if isinstance(data, float) else int(data)


def delay_field(**kwargs: Any) -> SecondsField:
    kwargs.setdefault("help_text", "Time from now until the job is due, to the millisecond.")
    return SecondsField(0, lambda: conf.get().max_delay_seconds, **kwargs)


def ttr_field(**kwargs: Any) -> SecondsField:
    kwargs.setdefault("help_text", "Time to run: how long one attempt may take. Default: the topic's TTR.")
    return SecondsField(0.001, MAX_TTR_SECONDS, **kwargs)


def expires_field(**kwargs: Any) -> SecondsField:
    kwargs.setdefault(
        "help_text",
        "How long after its due time the job may begin; later it is skipped. Default: as the topic's handler says.",
    )
    return SecondsField(0.001, validators.MAX_EXPIRES_SECONDS, required=False, **kwargs)


def priority_field() -> IntegerField:
    text = (
        "0 to 9. Of the topic's due jobs, those with a higher priority run first. A minute of waiting makes up for one "
        "level of priority."
    )
    return IntegerField(0, MAX_PRIORITY, required=False, default=0, help_text=text)


class DateTimeField(DocumentedField):
    """A time in RFC 3339 with an offset. Output is in UTC, to the millisecond.

    `from_query` is for query parameters: the error messages show an offset as it is written in a URL.
    """

    FORMAT = re.compile(
        r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-5][0-9])?"
    )
    EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
    LATEST = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)

    def __init__(self, *, from_query: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.offset_example = "%2B02:00" if from_query else "+02:00"

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}

    def to_representation(self, value: datetime) -> str:
        return rfc3339(value)

    def to_internal_value(self, data: Any) -> datetime:
        match = self.FORMAT.fullmatch(data) if isinstance(data, str) and len(data) <= 100 else None
        if match is None:
            example = f"2031-05-01T09:30:00.250{self.offset_example}"
            self.refuse(f"{short_json(data)} is not an RFC 3339 time: write it as {example}.")
        assert match is not None
        day, time, seconds, fraction, offset = match.groups()
        if offset is None:
            with_offset = f"{data}{self.offset_example}"
            self.refuse(f"{short_json(data)} has no offset from UTC: write {data}Z if it is UTC, or {with_offset}.")
        try:
            return self._clamped(day, time, int(seconds), fraction or "", offset.upper())
        except ValueError:
            self.refuse(f"{short_json(data)} is not a valid date and time.")
            raise

    def _clamped(self, day: str, time: str, seconds: int, fraction: str, offset: str) -> datetime:
        """Return the time, clamped to 1970-9999: due times are never earlier, and later ones cannot be stored."""
        leap = seconds == 60  # valid in RFC 3339, but not in datetime
        year = day[:4] if day[:4] != "0000" else "0004"
        at = datetime.fromisoformat(
            f"{year}{day[4:]}T{time}:{59 if leap else seconds:02d}{offset.replace('Z', '+00:00')}"
        )
        after = timedelta(seconds=int(leap), microseconds=math.ceil(int(fraction or 0) / 10 ** (len(fraction) - 6)))
        try:
            at = at.astimezone(UTC) + after
        except OverflowError:
            return self.EARLIEST if at.year == 1 else self.LATEST
        return min(max(at, self.EARLIEST), self.LATEST)


def due_field(**kwargs: Any) -> DateTimeField:
    kwargs.setdefault("help_text", "The due time, to the millisecond; a past time means now.")
    return DateTimeField(**kwargs)


class ChoiceField(DocumentedField):
    """One of several words. `component` is the enum's name in the schema, needed if several fields use it."""

    def __init__(self, choices: Iterable[str], component: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.choices, self.component = tuple(choices), component

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in self.choices:
            self.refuse(f"{short_json(data)} is not one of {', '.join(self.choices)}.")
        return str(data)


class BooleanField(DocumentedField):
    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class JSONField(DocumentedField):
    """Any JSON, including null. inputs.to_body checks whether the database can store it."""

    def validate_empty_values(self, data: Any) -> tuple[bool, Any]:
        return (True, None) if data is None else super().validate_empty_values(data)

    def json_schema(self) -> dict[str, Any]:
        return {}


class ObjectField(JSONField):
    """A JSON object."""

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": True}


class TopicsField(DocumentedField):
    """Up to 100 topic names, one per query parameter."""

    MAXIMUM = 100

    def json_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "pattern": TOPIC_PATTERN}, "maxItems": self.MAXIMUM}

    def to_internal_value(self, data: list[str]) -> list[str]:
        if len(data) > self.MAXIMUM:
            self.refuse(f"It is given {len(data):,} times; at most {self.MAXIMUM} times are allowed.")
        try:
            return sorted({validators.check_topic(topic) for topic in data})
        except BadInput as error:
            raise serializers.ValidationError(str(error)) from None


class ItemsField(DocumentedField):
    """A list of `minimum` to `maximum` items. The items are validated elsewhere, one by one."""

    def __init__(self, item: type[serializers.Serializer], minimum: int, maximum: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.item, self.minimum, self.maximum = item, minimum, maximum

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            self.refuse(f"{short_json(data)} is not a list.")
        if not self.minimum <= len(data) <= self.maximum:
            self.refuse(f"It has {len(data):,} entries; {self.minimum:,} to {self.maximum:,} are allowed.")
        return list(data)


class ItemsFieldExtension(OpenApiSerializerFieldExtension):
    target_class = ItemsField
    priority = 1  # takes precedence over DocumentedFieldExtension, which also matches

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        component = auto_schema.resolve_serializer(self.target.item, direction)
        return {
            "type": "array", "items": component.ref, "minItems": self.target.minimum, "maxItems": self.target.maximum,
        }  # fmt: skip
