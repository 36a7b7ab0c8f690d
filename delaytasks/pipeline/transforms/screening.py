"""Validate each input row by the rules of schedule(). A row is accepted, or rejected with a reason.

The rules are implemented once, in validators.py. So the rows are validated in Python and not by Spark's expressions.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ... import validators
from ...clock import from_ms, to_ms
from ...exceptions import (
    BadBody,
    BadDelay,
    BadInput,
    BadKey,
    BadTopic,
    BadTTR,
    BodyTooLarge,
    NaiveDatetime,
    NoOpenHours,
    UnknownTopic,
    short_repr,
)
from ..delays.due_times import DueTimes
from ..delays.durations import DAY_SECONDS
from .mapping import FILE, MESSAGE, PROBLEM, ROW

if TYPE_CHECKING:
    import pyarrow

GOOD, REJECT = "chunk", "reject"
JOB_COLUMNS = ("topic", "key", "due_ms", "ttr_ms", "body")
INTEGER_COLUMNS = ("due_ms", "ttr_ms", "spread_ms", "row")
SCREENED = StructType([
    StructField(name, LongType() if name in INTEGER_COLUMNS else StringType())
    for name in ("kind", *JOB_COLUMNS, "spread_ms", "file", "row", "reason", "message", "raw")
])  # fmt: skip
NO_JOB = (None,) * (len(JOB_COLUMNS) + 1)
INPUT_COLUMNS = (  # columns from mapping.map_columns() and add_spread()
    FILE, ROW, PROBLEM, MESSAGE, "topic", "key", "due_us", "due", "delay", "delay_days", "ttr", "ttr_ms",
    "body", "spread_ms",
)  # fmt: skip
TIME_OF_DAY = re.compile(r"[Tt ]\d")  # Python allows any character before it, so also the sign of a date's offset
SHOWN_TOPICS = 20  # maximum number of topics in the message of a reject


_FROM_JSON = json.JSONDecoder().decode


class ClockChange(BadDelay):
    """A local time that does not exist, or exists twice, because the clocks change."""


REASONS: dict[type[BadInput], str] = {  # reasons by which rejects are counted; the first match applies
    UnknownTopic: "unknown topic", BadTopic: "topic", BadKey: "key", NaiveDatetime: "no zone",
    ClockChange: "clock change", BadDelay: "due", BadTTR: "ttr", BodyTooLarge: "body too large", BadBody: "body",
}  # fmt: skip
DUPLICATE = "twice"


@dataclass(frozen=True)
class Limits:
    """Parameters of the validation in one run.

    topics        known topics -> default TTR of their jobs in ms
    now_ms        start of the run by the database's clock, in ms since 1970
    zone          time zone of local times and of a delay's days; "": local times are rejected
    calendar      snapshot of the calendar of delays; None: there is none
    last_counts   of several rows with the same topic and key, accept the last (True) or the first (False)
    """

    topics: Mapping[str, int]
    now_ms: int
    max_delay_seconds: int
    max_body_bytes: int
    zone: str = ""
    calendar: Mapping[str, Any] | None = None
    last_counts: bool = False


def screen(rows: DataFrame, limits: Limits) -> DataFrame:
    """Return all rows with the columns SCREENED, in no order.

    kind is GOOD for an accepted row and REJECT for a rejected row. Accepted rows are unique by topic and key.
    """
    order = [F.col(name).desc() if limits.last_counts else F.col(name) for name in (FILE, ROW)]
    sorted_rows = rows.repartition("topic", "key").sortWithinPartitions("topic", "key", *order)
    return sorted_rows.mapInArrow(partial(_screen, limits), SCREENED)


def add_spread(rows: DataFrame, over_ms: int) -> DataFrame:
    """Add the column spread_ms: a delay below over_ms, derived from topic and key and thus the same in each run.

    Needs topic, key. When a job is loaded, the delay is added to its due time or, if that is past, to the current time.
    """
    offset = F.pmod(F.xxhash64("topic", "key"), F.lit(over_ms)) if over_ms else F.lit(0)
    return rows.withColumn("spread_ms", offset.cast("long"))


def _screen(limits: Limits, batches: Iterator["pyarrow.RecordBatch"]) -> Iterator["pyarrow.RecordBatch"]:
    import pyarrow

    validator = RowValidator(limits)
    target = pyarrow.schema([
        (each.name, pyarrow.int64() if each.name in INTEGER_COLUMNS else pyarrow.string()) for each in SCREENED
    ])  # fmt: skip
    for batch in batches:
        rows = zip(*(_values(batch.column(name)) for name in INPUT_COLUMNS), strict=True)
        results = [validator.validate(*row) for row in rows]
        raw = batch.column("raw")  # only the rejects need its values
        raws = [None if row[0] == GOOD else raw[n].as_py() for n, row in enumerate(results)]
        values = [*zip(*results, strict=True), raws] if results else [()] * len(target)
        arrays = [pyarrow.array(each, type=kind.type) for each, kind in zip(values, target, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=target)


def _values(column: "pyarrow.Array") -> list[Any]:
    """Return the column's values. Bytes that are not UTF-8 become surrogates, which the validators reject."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:  # Spark casts binary values to text without a check
        found = column.cast("binary").to_pylist()
        return [each if each is None else each.decode("utf-8", "surrogateescape") for each in found]


class DuplicateRow(BadInput):
    """The input has this topic and key twice."""


@dataclass
class RowValidator:
    """Validates rows one after the other. The rows must be sorted by topic and key."""

    limits: Limits
    known_topics: str = field(init=False)  # for messages
    due_times: DueTimes = field(init=False)
    last: tuple[str, str] | None = None  # topic and key of the last good row
    location: tuple[str, int] = ("", 0)
    ttrs: dict[tuple[str, str | None, str | None], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = sorted(self.limits.topics)
        more = f" and {len(names) - SHOWN_TOPICS} more" if len(names) > SHOWN_TOPICS else ""
        self.due_times = DueTimes(self.limits.zone, self.limits.calendar)
        self.known_topics = (", ".join(names[:SHOWN_TOPICS]) or "none") + more

    def validate(
        self, file: str, number: int, problem: str | None, message: str | None, topic: str | None, key: str | None,
        due_us: int | None, due: str | None, delay: str | None, delay_days: int | None, ttr: str | None,
        ttr_ms: str | None, body: str | None, spread_ms: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Validate a row with the columns INPUT_COLUMNS. Return its values for the columns SCREENED, except raw."""
        if problem is not None:
            return (REJECT, *NO_JOB, file, number, problem, message)
        try:
            name = self.name(topic, key)
            due_ms = self.due_ms(due_us, due, delay, delay_days)
            self.check_spread(due_ms, spread_ms)
            job = (*name, due_ms, self.ttr_ms(name[0], ttr, ttr_ms), self.body(body), spread_ms)
            if self.last == name:
                raise DuplicateRow(f"{topic} {key!r} is also in {self.location_text()}, which is loaded instead.")
        except BadInput as error:
            return (REJECT, *NO_JOB, file, number, _reason(error), str(error))
        self.last, self.location = name, (file, number)
        return (GOOD, *job, file, number, None, None)

    def location_text(self) -> str:
        return f"row {self.location[1]} of {self.location[0]}"

    def name(self, topic: str | None, key: str | None) -> tuple[str, str]:
        if topic is not None and topic in self.limits.topics:
            return topic, validators.check_key(key)
        validators.check_topic(topic)
        raise UnknownTopic(
            f"Topic {topic!r} is unknown: no handler, setting or Topic row names it. Known: {self.known_topics}."
        )

    def due_ms(self, micros: int | None, text: str | None, delay: str | None, days: int | None) -> int:
        limits = {"now_ms": self.limits.now_ms, "max_seconds": self.limits.max_delay_seconds}
        if micros is None and delay is None:
            return validators.to_due_ms(parse_due_time(text, self.limits.zone), **limits)
        ms = to_ms(parse_due_time(text, self.limits.zone)) if micros is None else -(-micros // 1000)
        if delay is not None:
            ms = self._add_delay(ms, delay, days)
        return validators.check_due_ms(ms, **limits)

    def _add_delay(self, start_ms: int, delay: str, days: int | None) -> int:
        max_seconds = self.limits.max_delay_seconds
        if not delay:
            raise BadDelay("The delay is null: give a number of seconds or an interval.")
        if days is not None and days < 0:
            raise BadDelay(f"The delay is {days} days: it must not be negative.")
        time_ms = validators.to_delay_ms(_number("delay", delay, BadDelay), max_seconds=max_seconds)
        if days is None and not self.limits.calendar:
            return start_ms + time_ms
        if days is not None and days > max_seconds / DAY_SECONDS:
            raise BadDelay(f"The delay is {days} days, more than {max_seconds:,} seconds (MAX_DELAY_SECONDS).")
        try:
            return to_ms(self.due_times.add(from_ms(start_ms), days, timedelta(milliseconds=time_ms)))
        except (NoOpenHours, OverflowError, ValueError) as error:
            raise BadDelay(f"The due time cannot be computed: {error}") from None

    def check_spread(self, due_ms: int, spread_ms: int) -> None:
        max_seconds = self.limits.max_delay_seconds
        if max(due_ms, self.limits.now_ms) + spread_ms > self.limits.now_ms + max_seconds * 1000:
            raise BadDelay(
                f"With a spread of {spread_ms} ms (--spread) the due time, {due_ms} ms since 1970, is more than "
                f"{max_seconds:,} seconds ahead (MAX_DELAY_SECONDS)."
            )

    def ttr_ms(self, topic: str, seconds: str | None, ms: str | None) -> int:
        arguments = (topic, seconds, ms)
        if arguments not in self.ttrs:
            if len(self.ttrs) > 10_000:
                self.ttrs.clear()
            self.ttrs[arguments] = self._ttr_ms(*arguments)
        return self.ttrs[arguments]

    def _ttr_ms(self, topic: str, seconds: str | None, ms: str | None) -> int:
        if seconds is not None:
            return validators.to_ttr_ms(_number("ttr", seconds, BadTTR))
        return self.limits.topics[topic] if ms is None else validators.to_ttr_ms(_number("ttr_ms", ms, BadTTR) / 1000)

    def body(self, text: str | None) -> str:
        if text is None or text == "{}":
            return "{}"
        try:
            value = _FROM_JSON(text)
        except (ValueError, RecursionError) as error:
            raise BadBody(f"The body is {short_repr(text)}, which is not JSON: {error}.") from None
        return validators.to_body(
            validators.JSON_NULL if value is None else value, max_bytes=self.limits.max_body_bytes
        )


def _reason(error: BadInput) -> str:
    return next((reason for kind, reason in REASONS.items() if isinstance(error, kind)), DUPLICATE)


def _number(what: str, text: str, kind: Callable[[str], BadInput]) -> float:
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise kind(f"{what} is {short_repr(text)}: it must be a number.")


def parse_due_time(text: str | None, zone: str) -> datetime:
    """Return the time of an ISO 8601 text. A time without an offset is a local time in the time zone `zone`.

    Raises BadDelay if the text is not a time, NaiveDatetime for a local time if `zone` is "", and ClockChange for a
    local time that does not exist or exists twice.
    """
    if text is None:
        raise BadDelay("There is no due time.")
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadDelay(
            f"The due time is {short_repr(text)}: give it in ISO 8601, such as 2030-01-31T09:00+01:00."
        ) from None
    if not TIME_OF_DAY.search(text.strip()):
        raise BadDelay(f"The due time is {short_repr(text)}, a day: give a time of day as well.")
    if moment.tzinfo is not None:
        return moment
    if not zone:
        raise NaiveDatetime(
            f"The due time {text} has no time zone: add its offset (+01:00) or Z, or give its time zone (--zone)."
        )
    return _localize(moment, zone)


def _localize(local: datetime, zone: str) -> datetime:
    first, second = (local.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first
    if first.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) != local:
        raise ClockChange(f"{local.isoformat()} does not exist in {zone}: the clocks skip it.")
    raise ClockChange(f"{local.isoformat()} exists twice in {zone}, as the clocks are set back: add its offset.")
