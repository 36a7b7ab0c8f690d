"""Which columns make a promise of a row: expressions of Spark SQL over the columns of what is loaded.

Whatever is not said is taken from the column of that name: topic, key, due_at, and, if they are there, body (JSON)
and ttr_ms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from .settings import BadSettings

FILE, ROW, PROBLEM, MESSAGE, TEXT = "__file", "__row", "__problem", "__message", "__text"
ABOUT = (FILE, ROW, PROBLEM, MESSAGE, TEXT)  # of a row, beside its columns


@dataclass(frozen=True)
class Terms:
    """topic     a topic's name; topic_from: an expression that gives it
    key         the business name
    due         an instant, or a text in ISO 8601
    since       the same; the due time is so many seconds after it: `delay`, a number or an interval
    ttr         seconds
    body        member -> expression; body_from: an expression that gives all of it, as JSON or a struct
    """

    topic: str = ""
    topic_from: str = ""
    key: str = ""
    due: str = ""
    since: str = ""
    delay: str = ""
    ttr: str = ""
    body_from: str = ""
    body: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topic and self.topic_from:
            raise BadSettings("The mapping has both topic and topic_from: give one.")
        if self.body and self.body_from:
            raise BadSettings("The mapping has both body and body_from: give one.")
        if self.due and (self.since or self.delay):
            raise BadSettings("The mapping has both due and since with delay: give one.")
        if bool(self.since) != bool(self.delay):
            raise BadSettings("The mapping's since and delay go together: due is so long after that.")

    @classmethod
    def told(cls, given: Mapping[str, Any]) -> "Terms":
        """Raises BadSettings: an unknown word, or what does not go together."""
        known = [each.name for each in fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise BadSettings(f"A mapping has no {', '.join(unknown)}; it has {', '.join(known)}.")
        body = given.get("body", {})
        if not isinstance(body, Mapping):
            raise BadSettings("The mapping's body is a table, each member with its expression; body_from takes one.")
        texts = {name: _text(name, value) for name, value in given.items() if name != "body"}
        return cls(**texts, body={name: _text(f"body.{name}", value) for name, value in body.items()})


def _text(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadSettings(f"The mapping's {name} is {value!r}: it must be an expression, as a text or a number.")
    return str(value)


def mapped(frame: DataFrame, terms: Terms, source: str) -> DataFrame:
    """The row's ABOUT, and as texts topic, key, due, delay, ttr (seconds), ttr_ms, body, raw; due_us as a number.

    source   as a message names it. Raises BadSettings: a column that is not there, or what is no expression.
    """
    return Mapper(frame, terms, source).mapped()


class Mapper:
    def __init__(self, frame: DataFrame, terms: Terms, source: str) -> None:
        self.frame, self.terms, self.source = frame, terms, source
        self.columns = [name for name in frame.columns if name not in ABOUT]
        self._lower = {name.lower() for name in self.columns}

    def mapped(self) -> DataFrame:
        terms = self.terms
        topic = F.lit(terms.topic) if terms.topic else self._part("topic_from", terms.topic_from or self._own("topic"))
        key = self._part("key", terms.key or self._own("key"))
        when = ("since", terms.since) if terms.since else ("due", terms.due or self._own("due_at"))
        due_us, due = self._moment(*when)
        ttr, ttr_ms = self._optional("ttr", terms.ttr), self._optional("ttr_ms", "", "ttr_ms")
        return self.frame.select(
            FILE, ROW, PROBLEM, MESSAGE, topic.cast("string").alias("topic"), key.cast("string").alias("key"),
            due_us.cast("long").alias("due_us"), due.cast("string").alias("due"), self._delay().alias("delay"),
            ttr.alias("ttr"), (F.lit(None).cast("string") if terms.ttr else ttr_ms).alias("ttr_ms"),
            self._body().alias("body"), self._raw().alias("raw"),
        )  # fmt: skip

    def _own(self, name: str) -> str:
        """The column of that name. Raises BadSettings."""
        if name not in self._lower:
            options = {"due_at": "--due, or --since and --delay", "topic": "--topic or --topic-from"}
            raise BadSettings(
                f"{self.source} has no column {name}; it has {', '.join(self.columns)}. "
                f"Say where it comes from: {options.get(name, '--' + name)}."
            )
        return f"`{name}`"

    def _part(self, part: str, text: str) -> Column:
        """An expression that can be worked out. Raises BadSettings."""
        self._kind(part, text)
        return F.expr(text)

    def _kind(self, part: str, text: str) -> DataType:
        try:
            return self.frame.select(F.expr(text).alias("it")).schema["it"].dataType
        except (AnalysisException, ParseException) as error:
            raise BadSettings(self._why(part, text, error)) from error

    def _why(self, part: str, text: str, error: PySparkException) -> str:
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            name = (error.getMessageParameters() or {}).get("objectName", "a column")
            return (
                f"The mapping's {part} asks for {name.strip('`')}, which {self.source} does not have; "
                f"it has {', '.join(self.columns)}."
            )
        said = str(error).strip().split("\n")[0]
        return f"The mapping's {part}, {text}, cannot be worked out: {said}"

    def _moment(self, part: str, text: str) -> tuple[Column, Column]:
        """(microseconds since 1970, text): the one or the other is null."""
        kind, found, none = self._kind(part, text), F.expr(text), F.lit(None)
        if isinstance(kind, TimestampType):
            return F.unix_micros(found), none
        if isinstance(kind, StringType | TimestampNTZType | DateType):
            return none, found
        raise BadSettings(
            f"The mapping's {part}, {text}, is a {kind.simpleString()}: it must be a timestamp or a text in ISO 8601. "
            f"timestamp_millis({text}) makes one of milliseconds since 1970, timestamp_seconds({text}) of seconds."
        )

    def _delay(self) -> Column:
        text = self.terms.delay
        if not text:
            return F.lit(None).cast("string")
        kind = self._kind("delay", text)
        if isinstance(kind, DayTimeIntervalType):
            return self._told(F.expr(f"unix_micros(timestamp_micros(0) + ({text}))") / 1_000_000)
        if not isinstance(kind, NumericType | StringType):
            raise BadSettings(
                f"The mapping's delay, {text}, is a {kind.simpleString()}: give a number of seconds or an interval."
            )
        return self._told(F.expr(text))

    def _told(self, delay: Column) -> Column:
        """As a text; one that is null is a reject, and not no delay."""
        return F.coalesce(delay.cast("string"), F.lit(""))

    def _optional(self, part: str, text: str, column: str = "") -> Column:
        if not text and column not in self._lower:
            return F.lit(None).cast("string")
        return self._part(part, text or self._own(column)).cast("string")

    def _body(self) -> Column:
        """As JSON. A null member stays one."""
        if self.terms.body:
            members = [self._part(f"body.{name}", text).alias(name) for name, text in self.terms.body.items()]
            return F.to_json(F.struct(*members), {"ignoreNullFields": "false"})
        if not self.terms.body_from and "body" not in self._lower:
            return F.lit(None).cast("string")
        text = self.terms.body_from or "`body`"
        kind, found = self._kind("body_from", text), F.expr(text)
        if isinstance(kind, StructType | MapType | ArrayType):
            return F.to_json(found, {"ignoreNullFields": "false"})
        return found.cast("string")

    def _raw(self) -> Column:
        """The row as it was read, as JSON: for the rejects."""
        whole = F.to_json(F.struct(*(F.col(f"`{name}`") for name in self.columns)), {"ignoreNullFields": "false"})
        return F.when(F.col(TEXT).isNull(), whole).otherwise(F.to_json(F.struct(F.col(TEXT).alias("text"))))
