"""Stream: write new events and per-minute statistics to the lake as the events are committed.

A Structured Streaming query reads events with settled ids (sources/events.py, sources/watermark.py). Each batch is
published exactly once, together with the stream's position (batches.py), so the next run after a kill continues there.
"""

import contextlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from ..config import BadSettings
from ..sources import arrow, events
from ..sources.database import Database, DatabaseUnavailable
from ..sources.snapshot import Snapshot
from ..sources.watermark import NoWatermark, Watermark
from ..spark import errors
from ..spark.shutdown import StopCondition, stop_signals
from ..tables import archived_history, stream_tables
from ..tables.lake import Lake, LakeError
from ..tables.stream_tables import RESTART, Stream
from .batches import Batches

MAX_EVENTS = 250_000  # events of a batch; bounds the memory when many events are waiting
MAX_STARTS = 5  # how often the query is started if its Python process is slow to start
POLL_SECONDS = 1  # between two checks whether to stop
STOP_TIMEOUT_SECONDS = 600.0  # how long to wait for the last batch
EVENT_QUERY = "SELECT job_id, outcome, done_ms FROM delaytasks_jobevent WHERE id = {}"
NEXT_ID_QUERY = "SELECT min(id) FROM delaytasks_jobevent WHERE id > {}"


class Stopping(Exception):
    """The stream is stopping, so this batch was not published. The next run publishes its events."""


class OtherDatabase(LakeError):
    """The stream's last event is not an event of this database."""


def run(
    spark: SparkSession,
    database: Database,
    lake: Lake,
    *,
    every_seconds: float = 2.0,
    for_seconds: float | None = None,
    once: bool = False,
    keep_days: float = 0,
    most: int = MAX_EVENTS,
    parent: int | None = None,
) -> dict[str, Any]:
    """Stream until SIGTERM, SIGINT or the parent's end. Return {"events", "batches", "folds", "to", "seconds"}.

    every_seconds  polling interval
    for_seconds    stop after this time; None: no time limit
    once           stop when all events that exist at the start are published; waits for open transactions, for a
                   minute at most
    keep_days      number of days to keep a file of the tables after its last event; 0: forever
    most           maximum number of events in a batch
    parent         process id; stop when this process ends. None: no parent is watched

    Members of the answer:

    folds          number of times that small files were merged
    to             id of the last published event

    Raises BadSettings over Spark Connect, OtherDatabase (see verify()), and DatabaseUnavailable if the connection is
    lost. A stream that is started again loses and duplicates nothing.
    """  # fmt: skip
    if not isinstance(spark, SparkSession):
        raise BadSettings("A stream publishes from its own process: it does not run over Spark Connect.")
    began = time.monotonic()
    with database.lock("stream") as check_lock, stop_signals() as stop_event:
        batches = Batches(spark, database, lake, keep_days=keep_days)
        verify(database, batches.stream)
        stop_condition = StopCondition(
            stop_event, check_lock, parent, None if for_seconds is None else began + for_seconds
        )
        every = f"{round(every_seconds * 1000)} milliseconds"
        trigger = {"availableNow": True} if once else {"processingTime": every}
        start = partial(publish_new_events, spark, database, batches, most, stop_condition, trigger)
        start_again_if_python_is_slow(start)
    return {"events": batches.events, "batches": batches.batches, "folds": batches.folds, "to": batches.to,
            "seconds": round(time.monotonic() - began, 1)}  # fmt: skip


def start_again_if_python_is_slow(start: Callable[[], None]) -> None:
    """Call start(). Call it again if Spark timed out waiting for the Python worker that reads the source.

    Spark waits for 10 seconds, which may be too short on a busy machine. No batch has begun then.
    """
    for _ in range(MAX_STARTS - 1):
        try:
            return start()
        except StreamingQueryException as error:
            if not errors.is_slow_python(str(error)):
                raise
            print("delaytasks stream: Python did not start within 10 seconds; starting it again", file=sys.stderr)
    return start()


def publish_new_events(
    spark: SparkSession,
    database: Database,
    batches: Batches,
    most: int,
    stop_condition: StopCondition,
    trigger: dict[str, Any],
) -> None:
    """Publish the events after the last published one, until the trigger or the stop condition ends the query."""
    handler = BatchHandler(batches)
    with translate_errors(database, handler):
        catch_up(spark, database, batches, most, stop_condition)
        if not stop_condition():
            frame = events.read(spark, database, after=batches.to, max_events=most)
            follow(frame, handler, stop_condition, trigger)


class BatchHandler:
    """Callable that Spark calls with each batch, to publish it. After stop() it raises Stopping.

    error   exception of a failed batch; None if no batch failed
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.error: Exception | None = None
        self.stopping = False
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, number: int) -> None:
        with self._lock:
            if self.stopping:
                raise Stopping
            try:
                self.batches.publish(frame)
            except Exception as error:
                self.error = error
                raise

    def stop(self) -> None:
        """Refuse further batches, and wait for the current one, at most STOP_TIMEOUT_SECONDS."""
        self.stopping = True
        if self._lock.acquire(timeout=STOP_TIMEOUT_SECONDS):
            self._lock.release()


def follow(frame: DataFrame, handler: BatchHandler, stop_condition: StopCondition, trigger: dict[str, Any]) -> None:
    """Run the query until it ends by itself (trigger availableNow), or stop it when the stop condition is met."""
    with tempfile.TemporaryDirectory(prefix="delaytasks-stream-") as folder:
        writer = frame.writeStream.foreachBatch(handler).option("checkpointLocation", f"file://{folder}/checkpoint")
        wait(writer.trigger(**trigger).start(), handler, stop_condition)


def wait(query: StreamingQuery, handler: BatchHandler, stop_condition: StopCondition) -> None:
    """Wait until the query ends, or until the stop condition is met; then stop the query after the current batch."""
    try:
        while not query.awaitTermination(POLL_SECONDS) and not stop_condition():
            pass
    finally:
        handler.stop()
        query.stop()


# Checks before the start


def verify(database: Database, stream: Stream) -> None:
    """Check that the last published event is in the tables or the archive. Raises OtherDatabase.

    If the event is missing or different, the database was restored or is another one. The ids after it may then belong
    to other events.
    """
    if not stream.to:
        return
    last = stream_tables.event(stream, stream.to)
    expected = tuple(last[name] for name in ("job_id", "outcome", "done_ms"))
    found = Snapshot(database, 0, 0, 0).query(EVENT_QUERY, [stream.to])
    if not found and (archived := archived_history.by_id(stream.lake, last["job_id"])):
        events = [each for each in archived.events if each["id"] == stream.to]
        found = [(each["job_id"], each["outcome"], each["done_ms"]) for each in events]
    if [tuple(row) for row in found] != [expected]:
        problem = "is a different event there" if found else "is neither there nor in the archive of this lake"
        raise OtherDatabase(
            f"The last event in {stream.lake.path(stream_tables.EVENTS)}, {stream.to}, {problem}: {database} was "
            f"restored to an earlier state, is another database, or its jobs were archived elsewhere. {RESTART}"
        )


def catch_up(
    spark: SparkSession, database: Database, batches: Batches, most: int, stop_condition: Callable[[], bool]
) -> None:
    """Publish events that were archived since the last run, together with the events in the tables between them.

    most            maximum number of ids in a batch: bounds the memory, however long the stream was down
    stop_condition  checked before each batch; the next run continues with that batch

    Events whose ids are not settled yet (see sources/watermark.py) are left to the streaming query. Raises LakeError
    and DatabaseUnavailable.
    """
    unread_range = batches.unread_range()
    if unread_range is None:
        return
    with contextlib.closing(Watermark(database)) as watermark:
        last = min(unread_range[1], watermark.settled(events.FINAL_WAIT_SECONDS))
        watermark.make_durable()
    snapshot = Snapshot(database, 0, 0, 0)
    table, ((next_id,),) = arrow.read(spark, snapshot, "events"), snapshot.query(NEXT_ID_QUERY, [batches.to])
    first = max(batches.to + 1, min(unread_range[0], next_id or unread_range[0]))
    for first_id in range(first, last + 1, most):
        if stop_condition():
            return
        end = min(first_id + most - 1, last)
        batches.publish(table.where(F.col("id") <= end), end)


# Errors


@contextlib.contextmanager
def translate_errors(database: Database, handler: BatchHandler) -> Iterator[None]:
    """Raise the cause of a failed query instead of Spark's exception, where the cause is known."""
    try:
        yield
    except PySparkException as error:
        if handler.error is not None and not isinstance(handler.error, PySparkException):
            raise handler.error from error
        text = str(handler.error or error)
        for error_class in (NoWatermark, DatabaseUnavailable):
            if found := re.search(rf"{re.escape(error_class.__module__)}\.{error_class.__name__}: (.*)", text):
                raise error_class(found[1]) from error
        if reason := errors.lost_connection_reason(text):
            raise DatabaseUnavailable(f"{database} went away: {reason}.") from error
        with database.connect():  # raises DatabaseUnavailable if that is the cause
            pass
        raise
