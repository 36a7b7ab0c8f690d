"""Read the per-minute statistics that the stream wrote. Needs only pyarrow, neither Spark nor the database.

from delaytasks.pipeline.applications import minutes
from delaytasks.pipeline.tables.lake import Lake
minutes.read(Lake("/var/lake/default"), since_ms=...)
"""

from collections import defaultdict
from typing import Any

import pyarrow
from pyarrow import parquet

from ..tables import stream_tables
from ..tables.lake import Lake, LakeError
from ..transforms.outcomes import OUTCOME_COLUMNS, PERCENTILES, SUM_COLUMNS, percentile

ATTEMPTS = 3  # a file may be merged and removed while it is read
COUNTS = pyarrow.schema([
    ("topic", pyarrow.string()), ("minute_ms", pyarrow.int64()), ("outcome", pyarrow.string()),
    ("late_ms", pyarrow.int64()), ("number", pyarrow.int64()), ("worst_ms", pyarrow.int64()),
])  # fmt: skip
Minute = dict[str, Any]


def read(lake: Lake, since_ms: int, until_ms: int | None = None, topic: str | None = None) -> list[Minute]:
    """Return the statistics of each topic and minute, ordered by minute, then by topic. Raises LakeError.

    since_ms   first minute, in milliseconds since 1970
    until_ms   end, excluded; None: no end
    topic      None: all topics

    Each result has the columns of schemas.MINUTES, with `minute_ms` (milliseconds since 1970) in place of minute_at.
    Minutes without events are left out. The last minutes may still change.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return _read(lake, since_ms, until_ms, topic)
        except LakeError:
            continue
    return _read(lake, since_ms, until_ms, topic)


def published_ms(lake: Lake) -> int | None:
    """Return the time of the stream's last publication, or None if it has published nothing. Raises LakeError.

    The time is in milliseconds since 1970, by the clock of the stream's host.
    """
    return stream_tables.load(lake).minutes.committed_ms


def _read(lake: Lake, since_ms: int, until_ms: int | None, topic: str | None) -> list[Minute]:
    filters: list[tuple[str, str, Any]] = [("minute_ms", ">=", since_ms)]
    filters += [("minute_ms", "<", until_ms)] if until_ms is not None else []
    filters += [("topic", "=", topic)] if topic is not None else []
    last_ms = None if until_ms is None else until_ms - 1
    paths = [each.path for each in stream_tables.load(lake).minutes.select("minute_ms", since_ms, last_ms)]
    return to_minutes(pyarrow.concat_tables([COUNTS.empty_table(), *(_counts(lake, path, filters) for path in paths)]))


def _counts(lake: Lake, path: str, filters: list[tuple[str, str, Any]]) -> pyarrow.Table:
    with lake.reading(path) as name:
        return parquet.read_table(
            name, filesystem=lake.files, filters=filters, partitioning=None, columns=COUNTS.names
        ).cast(COUNTS)


def to_minutes(counts: pyarrow.Table) -> list[Minute]:
    """Return statistics from the counts (schemas.COUNTS) of any number of batches, as lateness.by_minute() does."""
    columns = ["minute_ms", "topic", "outcome", "late_ms"]
    sums = counts.group_by(columns).aggregate([("number", "sum"), ("worst_ms", "max")]).to_pylist()
    minutes: defaultdict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for each in sums:
        minutes[each["minute_ms"], each["topic"]].append(each)
    return [_minute(minute_ms, topic, each) for (minute_ms, topic), each in sorted(minutes.items())]


def _minute(minute_ms: int, topic: str, counts: list[dict[str, Any]]) -> Minute:
    numbers = {name: sum(each["number_sum"] for each in counts if each["outcome"] in outcomes)
               for name, outcomes in OUTCOME_COLUMNS.items()}  # fmt: skip
    histogram: defaultdict[int, int] = defaultdict(int)
    for each in counts:
        if each["late_ms"] is not None:
            histogram[each["late_ms"]] += each["number_sum"]
    begun = sum(histogram.values())
    worst = max((each["worst_ms_max"] for each in counts if each["worst_ms_max"] is not None), default=None)
    lateness = sorted(histogram.items())
    return {
        "topic": topic, "minute_ms": minute_ms, SUM_COLUMNS[0]: sum(each["number_sum"] for each in counts), **numbers,
        "begun": begun, **{name: percentile(lateness, begun * share) for name, share in PERCENTILES.items()},
        "late_worst_ms": worst,
    }  # fmt: skip
