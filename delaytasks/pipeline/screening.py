"""Judges each row by the rules of schedule(): what may be loaded, and what is rejected with its reason.

In Python, as the rules are: there is one list of them (rules.py), and it knows neither Spark nor Django.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from .. import rules
from ..clock import to_ms
from ..exceptions import (
    BadBody,
    BadDelay,
    BadInput,
    BadKey,
    BadTopic,
    BadTTR,
    BodyTooLarge,
    NaiveDatetime,
    UnknownTopic,
    shown,
)
from .mapping import FILE, MESSAGE, PROBLEM, ROW

if TYPE_CHECKING:
    import pyarrow

GOOD, REJECT = "chunk", "reject"
PROMISE = ("topic", "key", "due_ms", "ttr_ms", "body")
NUMBERS = ("due_ms", "ttr_ms", "spread_ms", "row")
SCREENED = StructType([
    StructField(name, LongType() if name in NUMBERS else StringType())
    for name in ("kind", *PROMISE, "spread_ms", "file", "row", "reason", "message", "raw")
])  # fmt: skip
NOTHING = (None,) * (len(PROMISE) + 1)
READ = (  # of what mapping.mapped() and spread() give
    FILE, ROW, PROBLEM, MESSAGE, "topic", "key", "due_us", "due", "delay", "ttr", "ttr_ms", "body", "spread_ms",
)  # fmt: skip
DAY = len("2030-01-31")
NAMED = 20  # topics that a reject names


_FROM_JSON = json.JSONDecoder().decode


class ClockChange(BadDelay):
    """A local time that does not exist, or exists twice, as the clocks were changed."""


REASONS: dict[type[BadInput], str] = {  # the words by which rejects are counted; the first that fits
    UnknownTopic: "unknown topic", BadTopic: "topic", BadKey: "key", NaiveDatetime: "no zone",
    ClockChange: "clock change", BadDelay: "due", BadTTR: "ttr", BodyTooLarge: "body too large", BadBody: "body",
}  # fmt: skip
TWICE = "twice"


@dataclass(frozen=True)
class Limits:
    """What the rules are told, as a run has it.

    topics        those that are known -> the TTR of their jobs in ms
    now_ms        when the run began, by the database's clock
    zone          of local times; "": such a time is rejected
    last_counts   of rows with the same topic and key the last is loaded; else the first
    """

    topics: Mapping[str, int]
    now_ms: int
    max_delay_seconds: int
    max_body_bytes: int
    zone: str = ""
    last_counts: bool = False


def screened(rows: DataFrame, limits: Limits) -> DataFrame:
    """SCREENED of what mapped() and spread() give: GOOD rows, each topic and key once, and REJECTs; in no order."""
    order = [F.col(name).desc() if limits.last_counts else F.col(name) for name in (FILE, ROW)]
    together = rows.repartition("topic", "key").sortWithinPartitions("topic", "key", *order)
    return together.mapInArrow(partial(_screen, limits), SCREENED)


def spread(rows: DataFrame, over_ms: int) -> DataFrame:
    """Adds spread_ms: how much later it is to be, by what topic and key say, the same in each run. Below over_ms.

    Needs topic, key. It is added when a row is loaded, as what is overdue then is to be spread from then on.
    """
    offset = F.pmod(F.xxhash64("topic", "key"), F.lit(over_ms)) if over_ms else F.lit(0)
    return rows.withColumn("spread_ms", offset.cast("long"))


def _screen(limits: Limits, batches: Iterator["pyarrow.RecordBatch"]) -> Iterator["pyarrow.RecordBatch"]:
    import pyarrow

    judge = Judge(limits)
    target = pyarrow.schema([
        (each.name, pyarrow.int64() if each.name in NUMBERS else pyarrow.string()) for each in SCREENED
    ])  # fmt: skip
    for batch in batches:
        rows = zip(*(batch.column(name).to_pylist() for name in READ), strict=True)
        found = [judge.judged(*row) for row in rows]
        raw = batch.column("raw")  # most are good, and their raw is not wanted
        said = [None if row[0] == GOOD else raw[place].as_py() for place, row in enumerate(found)]
        values = [*zip(*found, strict=True), said] if found else [()] * len(target)
        arrays = [pyarrow.array(each, type=kind.type) for each, kind in zip(values, target, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=target)


class NotOnce(BadInput):
    """The topic and key are in the source twice."""


@dataclass
class Judge:
    """Judges rows that come sorted by topic and key, one after the other."""

    limits: Limits
    known: str = field(init=False)  # topics, for people
    last: tuple[str, str] | None = None  # topic and key of the last good row
    place: tuple[str, int] = ("", 0)
    ttrs: dict[tuple[str, str | None, str | None], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = sorted(self.limits.topics)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        self.known = (", ".join(names[:NAMED]) or "none") + more

    def judged(
        self, file: str, number: int, problem: str | None, message: str | None, topic: str | None, key: str | None,
        due_us: int | None, due: str | None, delay: str | None, ttr: str | None, ttr_ms: str | None, body: str | None,
        spread_ms: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        """SCREENED of a row with the columns READ, but its raw."""
        if problem is not None:
            return (REJECT, *NOTHING, file, number, problem, message)
        try:
            name = self.name(topic, key)
            due_ms = self.due_ms(due_us, due, delay)
            self.check_spread(due_ms, spread_ms)
            promise = (*name, due_ms, self.ttr_ms(name[0], ttr, ttr_ms), self.body(body), spread_ms)
            if self.last == name:
                raise NotOnce(f"{topic} {key!r} is in {self.where()} as well, which is the one that counts.")
        except BadInput as error:
            return (REJECT, *NOTHING, file, number, _reason(error), str(error))
        self.last, self.place = name, (file, number)
        return (GOOD, *promise, file, number, None, None)

    def where(self) -> str:
        return f"row {self.place[1]} of {self.place[0]}"

    def name(self, topic: str | None, key: str | None) -> tuple[str, str]:
        if topic is not None and topic in self.limits.topics:
            return topic, rules.check_key(key)
        rules.check_topic(topic)
        raise UnknownTopic(
            f"Topic {topic!r} is unknown: no handler, setting or Topic row names it. Known: {self.known}."
        )

    def due_ms(self, micros: int | None, text: str | None, delay: str | None) -> int:
        about = {"now_ms": self.limits.now_ms, "max_seconds": self.limits.max_delay_seconds}
        if micros is None and delay is None:
            return rules.to_due_ms(to_moment(text, self.limits.zone), **about)
        ms = to_ms(to_moment(text, self.limits.zone)) if micros is None else -(-micros // 1000)
        if delay is not None:
            ms += rules.to_delay_ms(_number("delay", delay, BadDelay), max_seconds=self.limits.max_delay_seconds)
        return rules.limited_due_ms(ms, **about)

    def check_spread(self, due_ms: int, spread_ms: int) -> None:
        most = self.limits.max_delay_seconds
        if max(due_ms, self.limits.now_ms) + spread_ms > self.limits.now_ms + most * 1000:
            raise BadDelay(
                f"With {spread_ms} ms for the spread (--spread) the due time, {due_ms} ms since 1970, is more than "
                f"{most:,} seconds ahead (MAX_DELAY_SECONDS)."
            )

    def ttr_ms(self, topic: str, seconds: str | None, ms: str | None) -> int:
        asked = (topic, seconds, ms)
        if asked not in self.ttrs:
            if len(self.ttrs) > 10_000:
                self.ttrs.clear()
            self.ttrs[asked] = self._ttr_ms(*asked)
        return self.ttrs[asked]

    def _ttr_ms(self, topic: str, seconds: str | None, ms: str | None) -> int:
        if seconds is not None:
            return rules.to_ttr_ms(_number("ttr", seconds, BadTTR))
        return self.limits.topics[topic] if ms is None else rules.to_ttr_ms(_number("ttr_ms", ms, BadTTR) / 1000)

    def body(self, text: str | None) -> str:
        if text is None or text == "{}":
            return "{}"
        try:
            value = _FROM_JSON(text)
        except (ValueError, RecursionError) as error:
            raise BadBody(f"The body is {shown(text)}, which is not JSON: {error}.") from None
        return rules.to_body(rules.JSON_NULL if value is None else value, max_bytes=self.limits.max_body_bytes)


def _reason(error: BadInput) -> str:
    return next((word for kind, word in REASONS.items() if isinstance(error, kind)), TWICE)


def _number(what: str, text: str, kind: Callable[[str], BadInput]) -> float:
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise kind(f"{what} is {shown(text)}: it must be a number.")


def to_moment(text: str | None, zone: str) -> datetime:
    """The instant of a text in ISO 8601; of a local time by the zone. Raises BadDelay, NaiveDatetime, ClockChange."""
    if text is None:
        raise BadDelay("There is no due time.")
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadDelay(f"The due time is {shown(text)}: give it in ISO 8601, such as 2030-01-31T09:00+01:00.") from None
    if len(text.strip()) <= DAY:
        raise BadDelay(f"The due time is {shown(text)}, a day: say when in it.")
    if found.tzinfo is not None:
        return found
    if not zone:
        raise NaiveDatetime(
            f"The due time {text} has no time zone: write its offset (+01:00) or Z, or say what zone it is (--zone)."
        )
    return _localized(found, zone)


def _localized(local: datetime, zone: str) -> datetime:
    first, second = (local.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first
    if first.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) != local:
        raise ClockChange(f"{local.isoformat()} does not exist in {zone}: the clocks are put forward over it.")
    raise ClockChange(f"{local.isoformat()} is twice in {zone}, as the clocks are put back: write its offset.")
