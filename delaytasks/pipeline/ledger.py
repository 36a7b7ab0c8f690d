"""What is loaded of a run, by the database's ledger; and the loading of what is not, in parallel."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from .database import Database, DatabaseAway, NotAllowed
from .lake import Lake, LakeError
from .placing import place
from .progress import say
from .stages import Chunk, Overtaken, Run

if TYPE_CHECKING:
    import pyarrow

NEEDS = (
    "A load needs the primary server, SELECT, INSERT and UPDATE on delaytasks_job, delaytasks_jobevent and "
    "delaytasks_loadchunk, and TEMPORARY on the database."
)
LOOK_SECONDS = 0.5
SAY_SECONDS = 3.0
NOW_MS = {
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


@dataclass(frozen=True)
class Totals:
    chunks: int = 0
    rows: int = 0
    inserted: int = 0
    kept: int = 0
    replaced: int = 0
    refused: int = 0
    stamps: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()


class Ledger:
    def __init__(self, database: Database, run: str) -> None:
        self.database, self.run = database, run

    def totals(self) -> Totals:
        """Of the chunks that are loaded. Raises DatabaseAway."""
        sql = "SELECT chunk, stamp, rows, inserted, kept, replaced, refused FROM delaytasks_loadchunk WHERE run = {}"
        with self.database.connect() as connection:
            found = connection.execute(sql.format(self.database.mark), (self.run,)).fetchall()
        rows, inserted, kept, replaced, refused = (sum(row[n] for row in found) for n in range(2, 7))
        stamps, numbers = frozenset(row[1] for row in found), frozenset(row[0] for row in found)
        return Totals(len(found), rows, inserted, kept, replaced, refused, stamps, numbers)

    def now_ms(self) -> int:
        with self.database.connect() as connection:
            return int(connection.execute(NOW_MS[self.database.vendor]).fetchone()[0])


def put_chunks(spark: SparkSession, database: Database, lake: Lake, run: Run, chunks: list[Chunk]) -> str:
    """Load the chunks that are not loaded; what went wrong, or "".

    Several at once, by the executors; SQLite has one writer, and gets them one after the other.
    """
    ledger = Ledger(database, run.name)
    done = ledger.totals().numbers
    todo = [each for each in chunks if each.number not in done]
    if not todo:
        return ""
    with Watch(ledger, sum(each.rows for each in chunks)):
        if database.vendor == "sqlite":
            return next(filter(None, (_placed(database, lake, run, each) for each in todo)), "")
        rows = [(each.number, each.path, each.rows) for each in todo]
        frame = spark.createDataFrame(rows, "number int, path string, rows int").repartition(len(rows))
        told = frame.mapInArrow(partial(_place_all, database, lake.root, run), "error string").collect()
    return next((row.error for row in told if row.error), "")


def _place_all(
    database: Database, root: str, run: Run, batches: Iterator["pyarrow.RecordBatch"]
) -> Iterator["pyarrow.RecordBatch"]:
    import pyarrow

    lake = Lake(root)
    for batch in batches:
        errors = [_placed(database, lake, run, Chunk(**each)) for each in batch.to_pylist()]
        yield pyarrow.RecordBatch.from_pydict({"error": errors}, schema=pyarrow.schema([("error", pyarrow.string())]))


def _placed(database: Database, lake: Lake, run: Run, chunk: Chunk) -> str:
    """What went wrong, as a sentence; it is not raised, as Spark would put a page of its own around it."""
    try:
        place(database, lake, run, chunk)
    except NotAllowed as error:
        told = f"{error} {NEEDS}"
    except (DatabaseAway, LakeError) as error:
        told = str(error)
    except (Overtaken, OSError, database.error) as error:
        told = f"Chunk {chunk.number} could not be loaded: {error}."
    else:
        return ""
    return " ".join(told.split())  # libpq says it in several lines


class Watch:
    """While its block runs, says how far it is: each new chunk at once to the command, each few seconds to people."""

    def __init__(self, ledger: Ledger, rows: int) -> None:
        self.ledger, self.rows = ledger, rows
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self.first, self.began = self._totals(), time.monotonic()
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _totals(self) -> Totals:
        try:
            return self.ledger.totals()
        except DatabaseAway:
            return Totals()

    def _look(self) -> None:
        seen, said = self.first.chunks, self.began
        while not self.over.wait(LOOK_SECONDS):
            now = self._totals()
            late = time.monotonic() - said >= SAY_SECONDS
            if now.chunks > seen or late:
                say(self._sentence(now) if late else "", chunks=now.chunks)
                seen, said = now.chunks, time.monotonic() if late else said

    def _sentence(self, now: Totals) -> str:
        speed = (now.rows - self.first.rows) / (time.monotonic() - self.began)
        rest = f", {(self.rows - now.rows) / speed:.0f} s left" if speed > 0 else ""
        return f"{now.rows} of {self.rows} rows loaded, {speed:.0f} rows/s{rest}"
