"""The minutes that a stream has written, for staff and for programs: read with pyarrow alone, no database asked.

from delaytasks.pipeline import lake, minutes
minutes.read(lake.Lake("/var/lake/default"), since_ms=...)
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow
from pyarrow import parquet

from . import streamed
from .lake import Lake, LakeError
from .outcomes import OUTCOMES, SHARES, SUMS
from .streamed import Part

LOOKS = 3  # a part may be folded into another one, and go, while it is read
COUNTS = pyarrow.schema([
    ("topic", pyarrow.string()), ("minute_ms", pyarrow.int64()), ("outcome", pyarrow.string()),
    ("late_ms", pyarrow.int64()), ("number", pyarrow.int64()), ("worst_ms", pyarrow.int64()),
])  # fmt: skip
Minute = dict[str, Any]


def read(lake: Lake, since_ms: int, until_ms: int | None = None, topic: str | None = None) -> list[Minute]:
    """What happened in each minute that begins at since_ms or later and before until_ms, by minute and topic.

    Each has the columns of schemas.MINUTES, but `minute_ms` (since 1970) for the instant. A minute in which nothing
    happened is not there; one of a moment ago may still grow. Raises LakeError.
    """
    for _ in range(LOOKS - 1):
        try:
            return _read(lake, since_ms, until_ms, topic)
        except LakeError:
            continue
    return _read(lake, since_ms, until_ms, topic)


def published_ms(lake: Lake) -> int | None:
    """When the stream last published a batch, by its host's clock; None: never. Raises LakeError."""
    return max((part.published_ms for part in streamed.load(lake).parts), default=None)


def _read(lake: Lake, since_ms: int, until_ms: int | None, topic: str | None) -> list[Minute]:
    limits: list[tuple[str, str, Any]] = [("minute_ms", ">=", since_ms)]
    limits += [("minute_ms", "<", until_ms)] if until_ms is not None else []
    limits += [("topic", "=", topic)] if topic is not None else []
    files = [path for part in streamed.load(lake).parts if _may_have(part, since_ms, until_ms)
             for path in streamed.files(lake, part, "minutes")]  # fmt: skip
    return told(pyarrow.concat_tables([COUNTS.empty_table(), *(_counts(lake, path, limits) for path in files)]))


def _counts(lake: Lake, path: str, limits: list[tuple[str, str, Any]]) -> pyarrow.Table:
    with lake.reading(path) as name:
        return parquet.read_table(name, filesystem=lake.files, filters=limits, partitioning=None).cast(COUNTS)


def _may_have(part: Part, since_ms: int, until_ms: int | None) -> bool:
    return part.last_ms >= since_ms and (until_ms is None or part.first_ms < until_ms)


def told(counts: pyarrow.Table) -> list[Minute]:
    """Minutes, from schemas.COUNTS of any number of batches together: what steps.by_minute() tells."""
    by = ["minute_ms", "topic", "outcome", "late_ms"]
    summed = counts.group_by(by).aggregate([("number", "sum"), ("worst_ms", "max")]).to_pylist()
    minutes: defaultdict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for each in summed:
        minutes[each["minute_ms"], each["topic"]].append(each)
    return [_minute(minute_ms, topic, each) for (minute_ms, topic), each in sorted(minutes.items())]


def _minute(minute_ms: int, topic: str, counts: list[dict[str, Any]]) -> Minute:
    numbers = {name: sum(each["number_sum"] for each in counts if each["outcome"] in of)
               for name, of in OUTCOMES.items()}  # fmt: skip
    late: defaultdict[int, int] = defaultdict(int)
    for each in counts:
        if each["late_ms"] is not None:
            late[each["late_ms"]] += each["number_sum"]
    begun = sum(late.values())
    worst = max((each["worst_ms_max"] for each in counts if each["worst_ms_max"] is not None), default=None)
    return {
        "topic": topic, "minute_ms": minute_ms, SUMS[0]: sum(each["number_sum"] for each in counts), **numbers,
        "begun": begun, **{name: _reached(sorted(late.items()), begun * share) for name, share in SHARES.items()},
        "late_worst_ms": worst,
    }  # fmt: skip


def _reached(late: Iterable[tuple[int, int]], wanted: float) -> int | None:
    """The lateness that so many did not exceed."""
    so_far = 0
    for ms, number in late:
        so_far += number
        if so_far >= wanted:
            return ms
    return None
