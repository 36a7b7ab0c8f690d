"""Compute the columns of a job from the columns of a load's input, by Spark SQL expressions.

A column without an expression is read from the input's column of the same name: topic, key, due_at and, if they exist,
body (JSON) and ttr_ms.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..config import BadSettings
from ..delays import due_times, durations
from ..delays.due_times import DelayColumns

FILE, ROW, PROBLEM, MESSAGE, TEXT = "__file", "__row", "__problem", "__message", "__text"
METADATA = (FILE, ROW, PROBLEM, MESSAGE, TEXT)  # columns of an input row besides its data
WANTED = "__wanted"  # column: whether the row is to be loaded
RESERVED = (*METADATA, WANTED)  # names that the data may not have


@dataclass(frozen=True)
class Terms:
    """The mapping of a load. Members are Spark SQL expressions unless noted; "" means that there is none.

    topic       the name of one topic for all rows, no expression
    topic_from  the topic of each row
    key         the job's key
    due         the due time, as a timestamp or ISO 8601 text
    since       a time like `due`; the due time is `since` plus `delay`
    delay       a duration such as "60 days", which is no expression; or an expression: seconds, or an interval
    calendar    the name of the calendar of the delay's days and time, no expression
    ttr         the TTR in seconds
    body        member of the body -> its expression
    body_from   the whole body, as JSON or a struct
    when        a boolean: only rows for which it is true are loaded; other rows are neither loaded nor rejected
    """

    topic: str = ""
    topic_from: str = ""
    key: str = ""
    due: str = ""
    since: str = ""
    delay: str = ""
    calendar: str = ""
    ttr: str = ""
    body_from: str = ""
    when: str = ""
    body: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topic and self.topic_from:
            raise BadSettings("The mapping has both topic and topic_from: give one.")
        if self.body and self.body_from:
            raise BadSettings("The mapping has both body and body_from: give one.")
        if self.due and (self.since or self.delay):
            raise BadSettings("The mapping has both due and since with delay: give one.")
        if bool(self.since) != bool(self.delay):
            raise BadSettings("Give 'since' and 'delay' together in the mapping: the due time is since + delay.")
        if self.calendar and not self.delay:
            raise BadSettings("The mapping has a calendar and no delay: a calendar is for the delay's days and hours.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Terms":
        """Build the mapping from a dictionary. Raises BadSettings for unknown or contradicting keys."""
        known = [each.name for each in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise BadSettings(f"Unknown mapping keys: {', '.join(unknown)}. Known: {', '.join(known)}.")
        body = values.get("body", {})
        if not isinstance(body, Mapping):
            raise BadSettings("The mapping's body must be a table of members and expressions. Or use body_from.")
        texts = {name: _check_text(name, value) for name, value in values.items() if name != "body"}
        return cls(**texts, body={name: _check_text(f"body.{name}", value) for name, value in body.items()})


def quoted(name: str) -> str:
    """Return the name of a column as Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _check_text(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadSettings(f"The mapping's {name} is {value!r}: it must be an expression, as a string or a number.")
    return str(value)


def map_columns(frame: DataFrame, terms: Terms, source: str, zone: str) -> DataFrame:
    """Return the rows with the columns of a job. Values are not validated yet.

    The columns are METADATA except TEXT; topic, key, due, delay (seconds), ttr (seconds), ttr_ms, body and raw as
    strings; and due_us (microseconds since 1970) and delay_days as numbers.

    source   name of the input, for messages
    zone     zone of the delay's days; "" if there is none

    Raises BadSettings for an unknown column or an invalid expression.
    """
    return Mapper(frame, terms, source, zone).map_columns()


def wanted_rows(frame: DataFrame, terms: Terms, source: str) -> Column:
    """Return the condition for the rows to load. It is never null, and true for rows that could not be read.

    Raises BadSettings if `when` is invalid, uses an unknown column or is not a boolean.
    """
    return Mapper(frame, terms, source).wanted_rows()


class Mapper:
    def __init__(self, frame: DataFrame, terms: Terms, source: str, zone: str = "") -> None:
        self.frame, self.terms, self.source, self.zone = frame, terms, source, zone
        self.columns = [name for name in frame.columns if name not in METADATA]
        self._lower = {name.lower() for name in self.columns}

    def map_columns(self) -> DataFrame:
        terms = self.terms
        topic = (
            F.lit(terms.topic)
            if terms.topic
            else self._expression("topic_from", terms.topic_from or self._column_of("topic"))
        )
        key = self._expression("key", terms.key or self._column_of("key"))
        when = ("since", terms.since) if terms.since else ("due", terms.due or self._column_of("due_at"))
        due_us, due = self._time(*when)
        ttr, ttr_ms = self._optional("ttr", terms.ttr), self._optional("ttr_ms", "", "ttr_ms")
        delay_days, delay = self._delay()
        return self.frame.select(
            FILE, ROW, PROBLEM, MESSAGE, topic.cast("string").alias("topic"), key.cast("string").alias("key"),
            due_us.cast("long").alias("due_us"), due.cast("string").alias("due"), delay.alias("delay"),
            delay_days.alias("delay_days"), ttr.alias("ttr"),
            (F.lit(None).cast("string") if terms.ttr else ttr_ms).alias("ttr_ms"),
            self._body().alias("body"), self._raw().alias("raw"),
        )  # fmt: skip

    def wanted_rows(self) -> Column:
        text = self.terms.when or "true"
        kind = self._type_of("when", text)
        if not isinstance(kind, BooleanType):
            raise BadSettings(f"The mapping's when, {text}, is a {kind.simpleString()}: it must be true or false.")
        return F.col(PROBLEM).isNotNull() | F.coalesce(F.expr(text), F.lit(False))

    def _column_of(self, name: str) -> str:
        """Return the expression for the input's column of this name. Raises BadSettings if there is no such column."""
        if name not in self._lower:
            options = {"due_at": "--due, or --since and --delay", "topic": "--topic or --topic-from"}
            raise BadSettings(
                f"{self.source} has no column {name}; its columns are {', '.join(self.columns)}. "
                f"Give the value with {options.get(name, '--' + name)}."
            )
        return f"`{name}`"

    def _expression(self, part: str, text: str) -> Column:
        """Return the column of an expression. Raises BadSettings if it is invalid or uses an unknown column."""
        self._type_of(part, text)
        return F.expr(text)

    def _type_of(self, part: str, text: str, expression: str = "") -> DataType:
        """Return the type of an expression. expression: what Spark evaluates instead of `text`, if it is given.

        It is selected beside a column and within a CASE, so that Spark refuses aggregates, generators and `*`.
        """
        value = F.when(F.lit(True), F.expr(expression or text))
        try:
            return self.frame.select(FILE, value.alias("it")).schema["it"].dataType
        except (AnalysisException, ParseException) as error:
            raise BadSettings(self._error_message(part, text, error)) from error

    def _error_message(self, part: str, text: str, error: PySparkException) -> str:
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            name = (error.getMessageParameters() or {}).get("objectName", "a column")
            return (
                f"The mapping's {part} uses {name.strip('`')}, which {self.source} does not have; "
                f"its columns are {', '.join(self.columns)}."
            )
        reason = str(error).strip().split("\n")[0]
        return f"The mapping's {part}, {text}, is not a valid expression: {reason}"

    def _time(self, part: str, text: str) -> tuple[Column, Column]:
        """Return a time as two columns, microseconds since 1970 and text. One of them is null. Raises BadSettings."""
        kind, value, null = self._type_of(part, text), F.expr(text), F.lit(None)
        if isinstance(kind, TimestampType):
            return F.unix_micros(value), null
        if isinstance(kind, StringType | TimestampNTZType | DateType):
            return null, value
        raise BadSettings(
            f"The mapping's {part}, {text}, is a {kind.simpleString()}: it must be a timestamp or ISO 8601 text. "
            f"Use timestamp_millis({text}) for milliseconds since 1970, timestamp_seconds({text}) for seconds."
        )

    def _delay(self) -> tuple[Column, Column]:
        """Return the delay as (days, seconds). Seconds are "" where it is null; null means that there is no delay."""
        text, days = self.terms.delay, F.lit(None).cast("long")
        if not text:
            return days, F.lit(None).cast("string")
        try:
            found = self._delay_columns(text)
        except durations.BadDuration as error:
            raise BadSettings(f"The mapping's delay {error}") from error
        except due_times.BadDelayType as error:
            raise BadSettings(f"The mapping's delay, {text}, {error}") from error
        return days if found.days is None else found.days, F.coalesce(found.seconds.cast("string"), F.lit(""))

    def _delay_columns(self, text: str) -> DelayColumns:
        duration, calendar = durations.parse(text), self.terms.calendar
        if duration:
            durations.check(text, duration, zone=self.zone, calendar=calendar, options="a zone (--zone) or --calendar")
            return due_times.constant(duration)
        kind = self._type_of("delay", text, due_times.parenthesized(text))
        return due_times.from_expression(text, kind, zone=self.zone, calendar=calendar)

    def _optional(self, part: str, text: str, column: str = "") -> Column:
        if not text and column not in self._lower:
            return F.lit(None).cast("string")
        return self._expression(part, text or self._column_of(column)).cast("string")

    def _body(self) -> Column:
        """Return the body as JSON. Null members are kept."""
        if self.terms.body:
            kinds = {name: self._type_of(f"body.{name}", text) for name, text in self.terms.body.items()}
            members = {name: F.expr(text) for name, text in self.terms.body.items()}
            return _to_json(F.struct(*(each.alias(name) for name, each in members.items())), members, kinds)
        if not self.terms.body_from and "body" not in self._lower:
            return F.lit(None).cast("string")
        text = self.terms.body_from or "`body`"
        kind, value = self._type_of("body_from", text), F.expr(text)
        if isinstance(kind, StructType):
            kinds = {each.name: each.dataType for each in kind}
            return _to_json(value, {name: value.getField(name) for name in kinds}, kinds)
        if isinstance(kind, MapType | ArrayType):
            return F.to_json(value, {"ignoreNullFields": "false"})
        return value.cast("string")

    def _raw(self) -> Column:
        """Return the row as it was read, as JSON, for the rejects."""
        row = F.to_json(F.struct(*(F.col(quoted(name)) for name in self.columns)), {"ignoreNullFields": "false"})
        return F.when(F.col(TEXT).isNull(), row).otherwise(F.to_json(F.struct(F.col(TEXT).alias("text"))))


def _to_json(body: Column, members: Mapping[str, Column], kinds: Mapping[str, DataType]) -> Column:
    """Return a struct as JSON. A member that is NaN or infinite makes it invalid JSON, so that the row is rejected.

    Spark would write "NaN", a string.
    """
    invalid = [
        F.when(F.abs(member) >= math.inf, F.lit(json.dumps({name: math.nan})))  # in Spark NaN is above infinity
        for name, member in members.items() if isinstance(kinds[name], DoubleType | FloatType)
    ]  # fmt: skip
    return F.coalesce(*invalid, F.to_json(body, {"ignoreNullFields": "false"}))
