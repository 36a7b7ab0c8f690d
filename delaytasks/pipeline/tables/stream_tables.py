"""The stream: its document stream.json, and its Delta tables, events and minutes, partitioned by day of publication.

Uses pyarrow and deltalake, no Spark. A batch commits its events first and its counts last, both with the id of its last
event as the version of the application transaction: this id is the stream's position. So events and position change in
one commit. The document is created before the tables, so tables without a document mean that the document was lost.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyarrow import parquet

from .. import schemas
from . import data_files, optimization
from .delta import Table
from .lake import VERSION, Lake, LakeError

DOCUMENT = "stream.json"
FORMAT = 2  # version of the document; 1 named folders of parts instead of tables
FOLDER, EVENTS, MINUTES, DAY = "stream", "stream/events", "stream/minutes", "day"
SCHEMAS = {EVENTS: schemas.STREAMED_EVENTS, MINUTES: schemas.STREAMED_COUNTS}
TIMES = {EVENTS: "done_ms", MINUTES: "minute_ms"}  # column of each table by which its files expire
DAY_MS = 86_400_000
# A batch every two seconds makes 43,200 commits a day. Readers have an hour to read the files of a version.
CONFIGURATION = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
MAX_SMALL_FILES = 60  # of the current day; with more, they are merged
RESTART = "To start again from the events in the tables, move stream.json and the folder stream/ out of the lake."


@dataclass(frozen=True)
class Stream:
    """The contents of stream.json, and the tables at one version.

    archived_run   the stream needs no events that this or an earlier run of the archive has archived. -1: it also needs
                   those of converted runs; None: the stream has not begun
    """

    lake: Lake
    archived_run: int | None = None

    @cached_property
    def events(self) -> Table:
        return Table(self.lake, EVENTS, DAY)

    @cached_property
    def minutes(self) -> Table:
        return Table(self.lake, MINUTES, DAY)

    @property
    def to(self) -> int:
        """Id of the last published event; 0 if there is none."""
        return self.events.run


def load(lake: Lake) -> Stream:
    """Return the stream with the newest versions of its tables.

    Raises LakeError if the document is damaged, older than this version of delaytasks, or missing although there are
    folders of the stream.
    """
    folders = lake.runs(FOLDER)  # before the document, which is created first
    document = lake.document(DOCUMENT, FORMAT)
    if not document:
        if folders:
            raise LakeError(
                f"{lake.path(DOCUMENT)} is missing, but {lake.path(FOLDER)} has {len(folders)} folders. Nothing was "
                "changed: restore it from a backup. " + RESTART
            )
        return Stream(lake)
    if document.get("version", VERSION) < FORMAT:
        raise LakeError(
            f"{lake.path(DOCUMENT)} was written by an earlier delaytasks, which did not use Delta tables. Run "
            "`manage.py delaytasks pipeline convert` once: it keeps the files and copies nothing."
        )
    try:
        return Stream(lake, int(document["archived_run"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error!r}.") from error


def open_stream(lake: Lake, archived_run: int) -> Stream:
    """Return the stream before a run writes to it, after completing or removing what a killed run left.

    archived_run   for a new stream: number of the newest run of the archive that it leaves out

    Raises LakeError.
    """
    if load(lake).archived_run is None:
        publish(lake, archived_run)
    for name, schema in SCHEMAS.items():
        Table(lake, name, DAY).create(schema, CONFIGURATION)
    return _recover(load(lake))


def publish(lake: Lake, archived_run: int) -> None:
    lake.publish(DOCUMENT, {"version": FORMAT, "archived_run": archived_run})


def _recover(stream: Stream) -> Stream:
    """Complete a batch that was killed between its two commits, and remove the files of one that committed nothing."""
    lake, to, done = stream.lake, stream.to, stream.minutes.run
    for table in (EVENTS, MINUTES):
        data_files.remove_uncommitted(lake, table, to)
    if done == to:
        return stream
    folder = data_files.folder_of_run(lake, MINUTES, done + 1)
    if folder is None or not lake.parquet(f"{MINUTES}/{folder}"):  # a vacuum of another program leaves empty folders
        raise LakeError(
            f"{lake.path(EVENTS)} ends with event {to}, but {lake.path(MINUTES)} with {done}. Nothing was changed. "
            f"Restore the newest backup of {lake.path(FOLDER)}. {RESTART}"
        )
    stream.minutes.commit(folder, to)
    return load(lake)


def commit(stream: Stream, folder: str, to: int, *, events: int, counts: int) -> Stream:
    """Publish the files of a batch, which have been flushed, and return the stream's new version.

    folder           of the batch in both tables: data_files.new_folder() of the id after the stream's position
    to               id of its last event
    events, counts   number of rows that were written to each table

    Raises Busy if another process has published meanwhile, and LakeError if files of the batch were removed.
    """
    stream.events.commit(folder, to, rows=events)
    stream.minutes.commit(folder, to, rows=counts)
    return load(stream.lake)


def compact(stream: Stream, today: str) -> bool:
    """Merge the small files of each day that is over, and those of today if there are many. Return whether any were."""
    changed = False
    for table in (stream.events, stream.minutes):
        merged = optimization.merge(table, today, MAX_SMALL_FILES)
        if merged is not table:
            merged.vacuum()
            changed = True
    return changed


def expire(stream: Stream, before_ms: int) -> bool:
    """Remove the files whose rows all happened before this time, in ms since 1970. Return whether there were any."""
    changed = False
    for table in (stream.events, stream.minutes):
        expired = [each for each in table.files if each.high.get(TIMES[table.name], before_ms) < before_ms]
        if expired:
            table.remove(expired)
            changed = True
    return changed


def event(stream: Stream, event_id: int) -> dict[str, Any]:
    """Return id, job_id, outcome and done_ms of a published event. Raises LakeError if the table does not have it."""
    lake = stream.lake
    for each in stream.events.select("id", event_id, event_id):
        with lake.reading(each.path) as name:
            rows = parquet.read_table(
                name, filesystem=lake.files, filters=[("id", "=", event_id)], partitioning=None,
                columns=["id", "job_id", "outcome", "done_ms"],
            ).to_pylist()  # fmt: skip
        if rows:
            return dict(rows[0])
    raise LakeError(f"{lake.path(EVENTS)} has no event {event_id}, the last one that was published. {RESTART}")
