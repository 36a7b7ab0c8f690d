"""The fields of requests and answers: what each takes is checked here, and said in the same place in JSON Schema.

Nothing is guessed: a number in quotes is not a number, a boolean is not one either, and a time
without an offset is not a time. Limits that settings decide are asked for when they are needed.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NoReturn

from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from rest_framework import serializers

from .. import conf, rules, topics
from ..exceptions import BadInput, shown

MAX_ID = 2**63 - 1
MAX_ATTEMPT = 2**31 - 1
MAX_COUNT = 200  # jobs that one request may ask for; it gets no more than BATCH_MAX
MAX_TTR_SECONDS = rules.MAX_TTR_MS // 1000

TOPIC_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
# What no text may hold. Lone surrogates are refused, too; a JSON Schema speaks of characters, and they are none.
_CONTROL = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_LINE_PATTERN = f"^[^{_CONTROL}]*$"
_LINES_PATTERN = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]*$"
_KEY_PATTERN = rf"^[^{_CONTROL}]*[^{_CONTROL}\s][^{_CONTROL}]*$"
_BAD_IN_LINE = re.compile(r"[\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff]")
_BAD_IN_LINES = re.compile(r"[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\ud800-\udfff]")

Limit = float | Callable[[], float]


def asked(limit: Limit) -> float:
    return limit() if callable(limit) else limit


class Described(serializers.Field):
    """A field that says in JSON Schema what it takes and gives.

    of   in an answer: what it shows of (the thing, the serializer's context); None: its attribute of that name
    """

    default_error_messages: ClassVar = {"required": "It is missing.", "null": "It must not be null."}

    def __init__(self, *, of: Callable[[Any, Mapping[str, Any]], Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of = of

    def described(self) -> dict[str, Any]:
        raise NotImplementedError

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) if self.of is None else self.of(instance, self.context)

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value

    def refuse(self, said: str) -> NoReturn:
        raise serializers.ValidationError(said)


class DescribedExtension(OpenApiSerializerFieldExtension):
    target_class = Described
    match_subclasses = True

    def get_name(self) -> str | None:
        return getattr(self.target, "component", None) or None

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        return dict(self.target.described())


class Text(Described):
    """A string of at most `most` characters. `lines` allows line ends and tabs, as in a traceback; nothing else."""

    def __init__(self, *, most: int | None = None, lines: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.most, self.lines = most, lines

    def described(self) -> dict[str, Any]:
        if self.most is None:
            return {"type": "string"}
        return {"type": "string", "maxLength": self.most, "pattern": _LINES_PATTERN if self.lines else _LINE_PATTERN}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.refuse(f"{shown(data)} is not a string.")
        if self.most is not None and len(data) > self.most:
            self.refuse(f"It has {len(data):,} characters; at most {self.most:,} are possible.")
        bad = (_BAD_IN_LINES if self.lines else _BAD_IN_LINE).search(data)
        if bad is not None:
            self.refuse(f"It contains the control character {bad[0]!r}; use printable characters.")
        return str(data)


class Checked(Described):
    """A string that a check of the engine's has to accept; its sentence is the answer if it does not."""

    def __init__(self, check: Callable[[object], str], schema: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check, self.schema = check, schema

    def described(self) -> dict[str, Any]:
        return {"type": "string", **self.schema}

    def to_internal_value(self, data: Any) -> str:
        try:
            return self.check(data)
        except BadInput as error:
            raise serializers.ValidationError(str(error)) from None


def topic_field(**kwargs: Any) -> Checked:
    kwargs.setdefault("help_text", "A kind of job, for example `order.close`.")
    return Checked(topics.check_topic, {"pattern": TOPIC_PATTERN, "maxLength": 100}, **kwargs)


def key_field(**kwargs: Any) -> Checked:
    kwargs.setdefault("help_text", "The business name of the job, for example `order:1042`: one live job per topic.")
    schema = {"minLength": 1, "maxLength": rules.MAX_KEY, "pattern": _KEY_PATTERN}
    return Checked(rules.check_key, schema, **kwargs)


class Whole(Described):
    """A whole number. `written` is for a query, where everything is text."""

    def __init__(self, least: Limit | None = None, most: Limit | None = None, *, written: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.least, self.most, self.written = least, most, written

    def described(self) -> dict[str, Any]:
        limits = {"minimum": self.least, "maximum": self.most}
        schema = {name: int(asked(limit)) for name, limit in limits.items() if limit is not None}
        return {"type": "integer", **schema}

    def to_internal_value(self, data: Any) -> int:
        if self.written and isinstance(data, str) and re.fullmatch(r"-?[0-9]{1,19}", data):
            data = int(data)
        if isinstance(data, float) and data.is_integer():
            data = int(data)  # 1.0 is a whole number in JSON
        if isinstance(data, bool) or not isinstance(data, int):
            self.refuse(f"{shown(data)} is not a whole number.")
        assert self.least is not None
        assert self.most is not None
        least, most = int(asked(self.least)), int(asked(self.most))
        if not least <= data <= most:
            self.refuse(f"{shown(data)} is out of range: it must be from {least:,} to {most:,}.")
        return int(data)


class Seconds(Described):
    """A number of seconds; what is smaller than a millisecond counts as one."""

    def __init__(self, least: Limit = 0, most: Limit | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.least, self.most = least, most

    def described(self) -> dict[str, Any]:
        limits = {"minimum": self.least, "maximum": self.most}
        return {"type": "number"} | {name: asked(limit) for name, limit in limits.items() if limit is not None}

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.refuse(f"{shown(data)} is not a number of seconds.")
        assert self.most is not None
        least, most = asked(self.least), asked(self.most)
        if not least <= data <= most:  # neither is NaN
            self.refuse(f"{shown(data)} is out of range: it must be from {least:,} to {most:,} seconds.")
        return float(data) if isinstance(data, float) else int(data)


def delay_field(**kwargs: Any) -> Seconds:
    kwargs.setdefault("help_text", "From now until it is due; to the millisecond.")
    return Seconds(0, lambda: conf.get().max_delay_seconds, **kwargs)


def ttr_field(**kwargs: Any) -> Seconds:
    kwargs.setdefault("help_text", "Time to run: how long one attempt may take. Without: as the topic has it.")
    return Seconds(0.001, MAX_TTR_SECONDS, **kwargs)


class Moment(Described):
    """A time as RFC 3339 has it, with its offset; given in UTC, to the millisecond."""

    FORMAT = re.compile(
        r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})?"
    )
    EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
    LATEST = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)

    def described(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}

    def to_representation(self, value: datetime) -> str:
        return rfc3339(value)

    def to_internal_value(self, data: Any) -> datetime:
        found = self.FORMAT.fullmatch(data) if isinstance(data, str) and len(data) <= 100 else None
        if found is None:
            self.refuse(f"{shown(data)} is not a time as RFC 3339 has it: write 2031-05-01T09:30:00.250+02:00.")
        assert found is not None
        day, time, seconds, fraction, offset = found.groups()
        if offset is None:
            self.refuse(f"{shown(data)} has no offset from UTC: write {data}Z if it is UTC, or {data}+02:00.")
        try:
            return self._clamped(day, time, int(seconds), fraction or "", offset.upper())
        except ValueError:
            self.refuse(f"{shown(data)} is a time that no calendar has.")
            raise

    def _clamped(self, day: str, time: str, seconds: int, fraction: str, offset: str) -> datetime:
        """The time, brought to between 1970 and 9999: no job is due before, and no database knows a later one."""
        leap = seconds == 60  # which the format has, and datetime has not
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


def due_field(**kwargs: Any) -> Moment:
    kwargs.setdefault("help_text", "When it is due, to the millisecond; a time that has passed means now.")
    return Moment(**kwargs)


def rfc3339(moment: datetime) -> str:
    """UTC to the millisecond: 2031-05-01T07:30:00.250Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Word(Described):
    """One of some words. `component` is their name in the schema, where they occur in several places."""

    def __init__(self, words: Iterable[str], component: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.words, self.component = tuple(words), component

    def described(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in self.words:
            self.refuse(f"{shown(data)} is not one of {', '.join(self.words)}.")
        return str(data)


class Flag(Described):
    def described(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Json(Described):
    """Any JSON, null too. Whether the database can keep it is for promises.to_body to say."""

    def validate_empty_values(self, data: Any) -> tuple[bool, Any]:
        return (True, None) if data is None else super().validate_empty_values(data)

    def described(self) -> dict[str, Any]:
        return {}


class Topics(Described):
    """Up to 100 names of topics, each in a parameter of its own."""

    MOST = 100

    def described(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "pattern": TOPIC_PATTERN}, "maxItems": self.MOST}

    def to_internal_value(self, data: list[str]) -> list[str]:
        if len(data) > self.MOST:
            self.refuse(f"It is given {len(data):,} times; at most {self.MOST} are possible.")
        try:
            return sorted({topics.check_topic(topic) for topic in data})
        except BadInput as error:
            raise serializers.ValidationError(str(error)) from None


class Items(Described):
    """A list of `least` to `most` things that somebody else checks one by one."""

    def __init__(self, of: type[serializers.Serializer], least: int, most: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of, self.least, self.most = of, least, most

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            self.refuse(f"{shown(data)} is not a list.")
        if not self.least <= len(data) <= self.most:
            self.refuse(f"It has {len(data):,} entries; from {self.least:,} to {self.most:,} are possible.")
        return list(data)


class ItemsExtension(OpenApiSerializerFieldExtension):
    target_class = Items
    priority = 1  # before DescribedExtension, which matches, too

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        component = auto_schema.resolve_serializer(self.target.of, direction)
        return {
            "type": "array", "items": component.ref, "minItems": self.target.least, "maxItems": self.target.most,
        }  # fmt: skip
