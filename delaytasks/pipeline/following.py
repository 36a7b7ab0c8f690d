"""Events as they are written: what Spark asks a streaming source for. Read in the same parts as everything else."""

import sys
from collections.abc import Iterator, Sequence
from time import monotonic as clock
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from . import sources
from .database import Database
from .relations import RELATIONS
from .sources import IdRange, TableReader
from .watermark import Watermark

if TYPE_CHECKING:
    import pyarrow

RANGE_IDS = 50_000  # of one part of a batch
MOST_RANGES = 64
PATIENCE_SECONDS = 0.2  # for transactions that are open at a look: most are shorter
LAST_PATIENCE_SECONDS = 60.0  # the same where there is no later look
TOLD_SECONDS = 60.0  # between two complaints about a transaction that does not end
Offset = dict[str, int]  # {"to": the id of the last event that was read}


def read(spark: SparkSession, database: Database, *, after: int, most: int) -> DataFrame:
    """A streaming frame of relations.RELATIONS["events"] with greater ids, at most so many in a batch."""
    about = database.as_options() | {"relation": "events", "after": str(after), "most": str(most)}
    return spark.readStream.format(sources.NAME).schema(RELATIONS["events"].columns).options(**about).load()


class EventReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batches of settled ids: what is in one never changes, so one that is read again is the same.

    Offsets are ids of events that are there, and not the ends of what is settled: whatever happens to the server's
    sequence, an id that was passed is that event's.
    """

    def __init__(self, table: TableReader, after: int, most: int) -> None:
        self.table, self.after, self.most = table, after, most
        self.watermark = Watermark(table.database)
        self.end: int | None = None  # where this run stops; None: it goes on
        self._held, self._held_since = 0, 0.0  # the oldest id that is waited for, and since when it is

    def initialOffset(self) -> Offset:
        return {"to": self.after}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.most)

    def prepareForTriggerAvailableNow(self) -> None:
        self.end = self.watermark.settled(LAST_PATIENCE_SECONDS, above=self.after)
        self._complain(0.0)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        upto = self._settled(start["to"]) if self.end is None else self.end
        most = upto - start["to"] if isinstance(limit, ReadAllAvailable) else self.most
        return {"to": self.watermark.newest(start["to"], most, upto) if upto > start["to"] else start["to"]}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        low, high = start["to"] + 1, end["to"] + 1
        step = max(RANGE_IDS, -(-(high - low) // MOST_RANGES))
        return [IdRange(each, min(each + step, high)) for each in range(low, high, step)]

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        return self.table.read(partition)

    def stop(self) -> None:
        self.watermark.close()

    def _settled(self, above: int) -> int:
        found = self.watermark.settled(PATIENCE_SECONDS, above=above)
        self._complain(TOLD_SECONDS)
        return found

    def _complain(self, after_seconds: float) -> None:
        """Say who holds the stream up, if it has waited for the same id for so long.

        Somebody inserts at almost any moment where there is much to do, and holds up nothing by that.
        """
        (oldest, holders), now = self.watermark.held_up, clock()
        if oldest != self._held:
            self._held, self._held_since = oldest, now
        if holders and now - self._held_since >= after_seconds:
            who = ", ".join(sorted(holders))
            print(f"delaytasks stream: waits for open transactions that insert events ({who})", file=sys.stderr)
            self._held_since = now

    def __reduce__(self) -> tuple[Any, ...]:
        """What a part is read with elsewhere: never the connection."""
        return EventReader, (self.table, self.after, self.most)
