"""Spark streaming source of new events. It reads id ranges with the code of the batch source, arrow.py."""

import json
import sys
from collections.abc import Iterator, Sequence
from time import monotonic as clock
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from . import arrow
from .arrow import IdRange, TableReader
from .database import Database
from .relations import RELATIONS
from .watermark import Watermark

if TYPE_CHECKING:
    import pyarrow

RANGE_IDS = 50_000  # ids in a partition; a batch has several partitions
MAX_RANGES = 64
WAIT_SECONDS = 0.2  # how long each poll waits for open transactions: most are shorter
FINAL_WAIT_SECONDS = 60.0  # how long the last poll (once=True) and stream.catch_up() wait for open transactions
WARNING_SECONDS = 60.0  # how long an id is blocked before the first warning, and time between two warnings
Offset = dict[str, int]  # {"to": the id of the last event that was read}


def read(spark: SparkSession, database: Database, *, after: int, max_events: int) -> DataFrame:
    """Return a streaming frame of relations.RELATIONS["events"] with ids above `after`.

    max_events   maximum number of events in a batch
    """
    options = database.as_options() | {"relation": "events", "after": str(after), "most": str(max_events)}
    options["server"] = json.dumps(database.server() or [])
    return spark.readStream.format(arrow.NAME).schema(RELATIONS["events"].columns).options(**options).load()


class EventReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader of events with settled ids. A batch that is read again has the same rows: they never change.

    An offset is always the id of an existing event, never a settled id without an event: if the sequence was set back,
    the server would assign such an id to a new event, which would be missed.
    """

    def __init__(self, table: TableReader, after: int, max_events: int) -> None:
        self.table, self.after, self.max_events = table, after, max_events
        self.watermark = Watermark(table.database)
        self.end: int | None = None  # last id to read; None: no end
        self._blocked_id, self._blocked_since = 0, 0.0  # oldest unsettled id; time of its first poll or last warning

    def initialOffset(self) -> Offset:
        return {"to": self.after}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        self.end = self.watermark.settled(FINAL_WAIT_SECONDS, above=self.after)
        self._warn_if_blocked(0.0)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        last_settled = self._settled(start["to"]) if self.end is None else self.end
        max_events = last_settled - start["to"] if isinstance(limit, ReadAllAvailable) else self.max_events
        if last_settled <= start["to"]:
            return start
        return {"to": self.watermark.newest(start["to"], max_events, last_settled)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        low, high = start["to"] + 1, end["to"] + 1
        step = max(RANGE_IDS, -(-(high - low) // MAX_RANGES))
        return [IdRange(each, min(each + step, high)) for each in range(low, high, step)]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        return self.table.read(partition)

    def stop(self) -> None:
        self.watermark.close()

    def _settled(self, above: int) -> int:
        found = self.watermark.settled(WAIT_SECONDS, above=above)
        self._warn_if_blocked(WARNING_SECONDS)
        return found

    def _warn_if_blocked(self, after_seconds: float) -> None:
        """Print a warning that names the blocking transactions if the same id has not been settled for `after_seconds`.

        When the oldest unsettled id changes, the time starts again: on a busy database some transaction is inserting at
        almost any moment, which is no problem as long as each one ends.
        """
        (oldest, holders), now = self.watermark.blocked, clock()
        if oldest != self._blocked_id:
            self._blocked_id, self._blocked_since = oldest, now
        if holders and now - self._blocked_since >= after_seconds:
            names = ", ".join(sorted(holders))
            print(f"delaytasks stream: waiting for open transactions that insert events ({names})", file=sys.stderr)
            self._blocked_since = now

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the reader for executors without the watermark, which may hold a connection."""
        return EventReader, (self.table, self.after, self.max_events)
