"""The ledger, which is the database table of loaded chunks, and the parallel loading of chunks that are not in it."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from ..sources.database import Database, DatabaseUnavailable, NotAllowed
from ..spark.progress import report_progress
from ..tables.lake import Lake, LakeError
from .inserts import load_chunk
from .jobs import Chunk, Run, TransactionConflict

if TYPE_CHECKING:
    import pyarrow

PRIVILEGES = (
    "A load needs the primary server, SELECT, INSERT and UPDATE on delaytasks_job, delaytasks_jobevent and "
    "delaytasks_loadchunk, and TEMPORARY on the database."
)
POLL_SECONDS = 0.5
MESSAGE_SECONDS = 3.0
NOW_MS = {
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


@dataclass(frozen=True)
class Totals:
    """Totals of the loaded chunks of a run. chunks: how many; stamps, numbers: their distinct stamps and numbers."""

    chunks: int = 0
    rows: int = 0
    inserted: int = 0
    kept: int = 0
    replaced: int = 0
    refused: int = 0
    stamps: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()


class Ledger:
    """The rows of one load run in the table delaytasks_loadchunk."""

    def __init__(self, database: Database, run: str) -> None:
        self.database, self.run = database, run

    def totals(self) -> Totals:
        """Return the totals of the run's loaded chunks. Raises DatabaseUnavailable."""
        sql = "SELECT chunk, stamp, rows, inserted, kept, replaced, refused FROM delaytasks_loadchunk WHERE run = {}"
        with self.database.connect() as connection:
            chunks = connection.execute(sql.format(self.database.placeholder), (self.run,)).fetchall()
        rows, inserted, kept, replaced, refused = (sum(chunk[n] for chunk in chunks) for n in range(2, 7))
        stamps, numbers = frozenset(chunk[1] for chunk in chunks), frozenset(chunk[0] for chunk in chunks)
        return Totals(len(chunks), rows, inserted, kept, replaced, refused, stamps, numbers)

    def now_ms(self) -> int:
        """Return the time by the database's clock, in ms since 1970. Raises DatabaseUnavailable."""
        with self.database.connect() as connection:
            return int(connection.execute(NOW_MS[self.database.vendor]).fetchone()[0])


def load_pending_chunks(spark: SparkSession, database: Database, lake: Lake, run: Run, chunks: list[Chunk]) -> str:
    """Load the chunks that are not loaded yet. Return the first error message, or "" if all are loaded.

    Executors load several chunks at once. SQLite has one writer, so this process loads its chunks one after the other,
    up to the first error.
    """
    ledger = Ledger(database, run.name)
    loaded = ledger.totals().numbers
    pending = [each for each in chunks if each.number not in loaded]
    if not pending:
        return ""
    with ProgressReporter(ledger, sum(each.rows for each in chunks)):
        if database.vendor == "sqlite":
            return next(filter(None, (_load_chunk(database, lake, run, each) for each in pending)), "")
        rows = [(each.number, each.path, each.rows) for each in pending]
        frame = spark.createDataFrame(rows, "number int, path string, rows int").repartition(len(rows))
        reports = frame.mapInArrow(partial(_load_chunks, database, lake.root, run), "error string").collect()
    return next((report.error for report in reports if report.error), "")


def _load_chunks(
    database: Database, root: str, run: Run, batches: Iterator["pyarrow.RecordBatch"]
) -> Iterator["pyarrow.RecordBatch"]:
    import pyarrow

    lake = Lake(root)
    for batch in batches:
        errors = [_load_chunk(database, lake, run, Chunk(**each)) for each in batch.to_pylist()]
        yield pyarrow.RecordBatch.from_pydict({"error": errors}, schema=pyarrow.schema([("error", pyarrow.string())]))


def _load_chunk(database: Database, lake: Lake, run: Run, chunk: Chunk) -> str:
    """Load a chunk. Return an error message, or "" if it is loaded.

    Errors are returned and not raised, because Spark would wrap an exception in a stack trace.
    """
    try:
        load_chunk(database, lake, run, chunk)
    except NotAllowed as error:
        message = f"{error} {PRIVILEGES}"
    except LakeError as error:
        message = f"{socket.gethostname()}: {error}"  # name the host: other executors may be able to read the chunk
    except DatabaseUnavailable as error:
        message = str(error)
    except (TransactionConflict, OSError, database.error) as error:
        message = f"Chunk {chunk.number} could not be loaded: {error}."
    else:
        return ""
    return " ".join(message.split())  # libpq's messages have several lines


class ProgressReporter:
    """Context manager that reports how many chunks are loaded, and every MESSAGE_SECONDS also a message with the speed.

    rows   number of rows of the whole run
    """

    def __init__(self, ledger: Ledger, rows: int) -> None:
        self.ledger, self.rows = ledger, rows
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> None:
        self.first, self.began = self._totals(), time.monotonic()
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _totals(self) -> Totals:
        try:
            return self.ledger.totals()
        except DatabaseUnavailable:
            return Totals()

    def _poll(self) -> None:
        chunks_seen, last_message = self.first.chunks, self.began
        while not self.stopped.wait(POLL_SECONDS):
            totals = self._totals()
            message_due = time.monotonic() - last_message >= MESSAGE_SECONDS
            if totals.chunks > chunks_seen or message_due:
                report_progress(self._message(totals) if message_due else "", chunks=totals.chunks)
                chunks_seen, last_message = totals.chunks, time.monotonic() if message_due else last_message

    def _message(self, totals: Totals) -> str:
        speed = (totals.rows - self.first.rows) / (time.monotonic() - self.began)
        remaining = f", {(self.rows - totals.rows) / speed:.0f} s left" if speed > 0 else ""
        return f"{totals.rows} of {self.rows} rows loaded, {speed:.0f} rows/s{remaining}"
