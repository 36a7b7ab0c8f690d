"""The numbers of the last minutes, while they happen: events to the lake and to minutes as they are committed.

A Structured Streaming query reads settled ids (following.py, watermark.py); each of its batches is published whole
and once (batches.py). The position is in what is published, so a run that was killed is gone on with from there.
"""

import contextlib
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from . import causes, following, sources, story, streamed
from .batches import Batches
from .database import Database, DatabaseAway
from .lake import Lake, LakeError
from .settings import BadSettings
from .snapshot import Snapshot
from .stopping import Over, stop_signals
from .streamed import ANEW
from .watermark import NoWatermark, Watermark

MOST = 250_000  # events of a batch: what bounds the memory when it catches up
LOOK_SECONDS = 1  # between two looks whether to stop
STOP_SECONDS = 600.0  # for the last batch
ITEM = "SELECT job_id, outcome, done_ms FROM delaytasks_jobevent WHERE id = {}"
NEXT = "SELECT min(id) FROM delaytasks_jobevent WHERE id > {}"


class Stopping(Exception):
    """The stream stops: what it was to begin with now is left to the next run."""


class OtherDatabase(LakeError):
    """What the stream has published did not happen in this database."""


def run(
    spark: SparkSession,
    database: Database,
    lake: Lake,
    *,
    every_seconds: float = 2.0,
    for_seconds: float | None = None,
    once: bool = False,
    keep_days: float = 0,
    most: int = MOST,
    parent: int | None = None,
) -> dict[str, Any]:
    """{"events", "batches", "folds", "to", "seconds"}, when it was told to stop: by SIGTERM, SIGINT, its parent's end.

    every_seconds  how often it looks
    for_seconds    it stops by itself
    once           it takes what there is and ends; open transactions are waited for, a minute at most
    keep_days      how long what it wrote is kept; 0: for ever
    most           events of one batch
    parent         the id of the process that started this one and whose end is to end it; None: nobody's

    Raises DatabaseAway when the database goes away: nothing is lost or doubled when it is started again.
    """  # fmt: skip
    if not isinstance(spark, SparkSession):
        raise BadSettings("A stream publishes from the process that was started: it does not run over Spark Connect.")
    began = time.monotonic()
    with database.alone("stream") as still, stop_signals() as told:
        batches = Batches(spark, database, lake, keep_days=keep_days)
        verify(database, lake, batches.state)
        streamed.clear(lake, batches.state)
        guarded = Guarded(batches)
        over = Over(told, still, parent, None if for_seconds is None else began + for_seconds)
        with translated(database, guarded):
            catch_up(spark, database, batches, most, over)
            if not over():
                frame = following.read(spark, database, after=batches.state.to, most=most)
                every = f"{round(every_seconds * 1000)} milliseconds"
                follow(frame, guarded, over, {"availableNow": True} if once else {"processingTime": every})
    return {"events": batches.events, "batches": batches.batches, "folds": batches.folds, "to": batches.state.to,
            "seconds": round(time.monotonic() - began, 1)}  # fmt: skip


class Guarded:
    """What Spark calls for each batch. After stop() it begins no other; an error in it is kept for who asks."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.error: Exception | None = None
        self.stopping = False
        self._turn = threading.Lock()

    def __call__(self, frame: DataFrame, number: int) -> None:
        with self._turn:
            if self.stopping:
                raise Stopping
            try:
                self.batches.take(frame)
            except Exception as error:
                self.error = error
                raise

    def stop(self) -> None:
        """Returns when no batch is being worked at, and none will be."""
        self.stopping = True
        if self._turn.acquire(timeout=STOP_SECONDS):
            self._turn.release()


def follow(frame: DataFrame, guarded: Guarded, over: Over, trigger: dict[str, Any]) -> None:
    """Return when all has been read that a trigger asks for, or after a batch when it is over."""
    with tempfile.TemporaryDirectory(prefix="delaytasks-stream-") as folder:
        about = frame.writeStream.foreachBatch(guarded).option("checkpointLocation", f"file://{folder}/checkpoint")
        watch(about.trigger(**trigger).start(), guarded, over)


def watch(query: StreamingQuery, guarded: Guarded, over: Over) -> None:
    """Return when the query has ended, or was stopped after a batch because it is over."""
    try:
        while not query.awaitTermination(LOOK_SECONDS) and not over():
            pass
    finally:
        guarded.stop()
        query.stop()


# Whether it may go on


def verify(database: Database, lake: Lake, state: streamed.Streamed) -> None:
    """Raises OtherDatabase, unless the last event that was published is in the tables or the archive, as it was.

    A database that was set back to before it, or is another one, would use its id again: so ids after it may be read.
    """
    if not state.to:
        return
    wanted = tuple(state.newest[name] for name in ("job_id", "outcome", "done_ms"))
    found = Snapshot(database, 0, 0, 0).ask(ITEM, [state.to])
    if not found and (told := story.by_id(lake, state.newest["job_id"])):
        found = [(each["job_id"], each["outcome"], each["done_ms"]) for each in told.events if each["id"] == state.to]
    if [tuple(row) for row in found] != [wanted]:
        what = "is another one there" if found else "is neither there nor in the archive of this lake"
        raise OtherDatabase(
            f"The last event in {lake.path(streamed.DOCUMENT)}, {state.to}, {what}: {database} was set back, is "
            f"another one, or its jobs were archived elsewhere. {ANEW}"
        )


def catch_up(spark: SparkSession, database: Database, batches: Batches, most: int, over: Callable[[], bool]) -> None:
    """Take what was archived since the last run before it could be read, with what the tables have in between.

    most   ids of one batch, and so events: a stream that was down for weeks takes no more memory for it
    over   asked before each batch whether to stop; the next run goes on there

    What is not settled yet is left to the query. Raises LakeError and DatabaseAway.
    """
    unread = batches.unread()
    if unread is None:
        return
    with contextlib.closing(Watermark(database)) as watermark:
        last = min(unread[1], watermark.settled(following.LAST_PATIENCE_SECONDS))
        watermark.secure()
    snapshot = Snapshot(replace(database, jdbc=""), 0, 0, 0)  # as the query will read
    table, ((there,),) = sources.read(spark, snapshot, "events"), snapshot.ask(NEXT, [batches.state.to])
    first = max(batches.state.to + 1, min(unread[0], there or unread[0]))
    for low in range(first, last + 1, most):
        if over():
            return
        end = min(low + most - 1, last)
        batches.take(table.where(F.col("id") <= end), end)


# What went wrong, in a sentence


@contextlib.contextmanager
def translated(database: Database, guarded: Guarded) -> Iterator[None]:
    """What Spark says of a query that failed, as what made it fail."""
    try:
        yield
    except PySparkException as error:
        if guarded.error is not None and not isinstance(guarded.error, PySparkException):
            raise guarded.error from error
        text = str(guarded.error or error)
        for kind in (NoWatermark, DatabaseAway):
            if found := re.search(rf"{re.escape(kind.__module__)}\.{kind.__name__}: (.*)", text):
                raise kind(found[1]) from error
        if why := causes.away(text):
            raise DatabaseAway(f"{database} went away: {why}.") from error
        with database.connect():  # raises, if that is what is wrong
            pass
        raise
