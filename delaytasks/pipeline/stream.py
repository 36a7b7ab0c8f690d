"""The numbers of the last minutes, while they happen: events to the lake and to minutes as they are committed.

A Structured Streaming query reads settled ids (following.py, watermark.py); each of its batches is published whole
and once (batches.py). The position is in what is published, so a run that was killed is gone on with from there.
"""

import contextlib
import os
import re
import signal
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
from .watermark import ANEW, NoWatermark, Watermark

MOST = 250_000  # events of a batch: what bounds the memory when it catches up
LOOK_SECONDS = 1  # between two looks whether to stop
HELD_SECONDS = 30.0  # between two looks whether nobody else has begun
STOP_SECONDS = 600.0  # for the last batch
ITEM = "SELECT job_id, outcome, done_ms FROM delaytasks_jobevent WHERE id = {}"


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
) -> dict[str, Any]:
    """{"events", "batches", "folds", "to", "seconds"}, when it was told to stop: by SIGTERM, SIGINT, its parent's end.

    every_seconds  how often it looks
    for_seconds    it stops by itself
    once           it takes what there is and ends; open transactions are waited for, a minute at most
    keep_days      how long what it wrote is kept; 0: for ever
    most           events of one batch

    Raises DatabaseAway when the database goes away: nothing is lost or doubled when it is started again.
    """  # fmt: skip
    if not isinstance(spark, SparkSession):
        raise BadSettings("A stream publishes from the process that was started: it does not run over Spark Connect.")
    began = time.monotonic()
    with database.alone("stream") as still, stop_signals() as told:
        batches = Batches(spark, database, lake, keep_days=keep_days)
        verify(database, lake, batches.state)
        streamed.clear(lake, batches.state)
        catch_up(spark, database, batches)
        guarded = Guarded(batches)
        with tempfile.TemporaryDirectory(prefix="delaytasks-stream-") as folder, translated(database, guarded):
            frame = following.read(spark, database, after=batches.state.to, most=most)
            trigger = (
                {"availableNow": True} if once else {"processingTime": f"{round(every_seconds * 1000)} milliseconds"}
            )
            query = (
                frame.writeStream.foreachBatch(guarded)
                .option("checkpointLocation", f"file://{folder}/checkpoint").trigger(**trigger).start()
            )  # fmt: skip
            end = None if for_seconds is None else began + for_seconds
            watch(query, guarded, told, still, end)
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


def watch(
    query: StreamingQuery, guarded: Guarded, told: threading.Event, still: Callable[[], None], end: float | None
) -> None:
    """Return when the query has ended, or was stopped after a batch because it was told to or the time is over."""
    parent, held = os.getppid(), time.monotonic()
    try:
        while not query.awaitTermination(LOOK_SECONDS):
            now = time.monotonic()
            if told.is_set() or os.getppid() != parent or (end is not None and now >= end):
                break
            if now - held > HELD_SECONDS:
                still()
                held = now
    finally:
        guarded.stop()
        query.stop()


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. Only a process's main thread hears signals."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {each: signal.signal(each, lambda *_: told.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


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


def catch_up(spark: SparkSession, database: Database, batches: Batches) -> None:
    """Take what was archived since the last run before it could be read, if the tables have nothing after it."""
    last = batches.last_archived()
    if last <= batches.state.to:
        return
    watermark = Watermark(database)
    try:
        if watermark.settled(following.LAST_PATIENCE_SECONDS) < last:
            return
    finally:
        watermark.close()
    table = sources.read(spark, Snapshot(replace(database, jdbc=""), 0, 0, 0), "events")  # as the query will read
    batches.take(table.where((F.col("id") > batches.state.to) & (F.col("id") <= last)), last)


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
