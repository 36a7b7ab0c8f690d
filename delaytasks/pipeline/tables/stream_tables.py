"""The stream: its document stream.json, and its Delta tables, events and minutes, partitioned by day of publication.

Uses pyarrow and deltalake, no Spark. A batch commits its events first and its counts last. In both commits, the version
of the application transaction is the id of the batch's last event. This id is the stream's position, so the events and
the position change in one commit. The document is created before the tables, so tables without a document mean that the
document was lost.
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
TIMES = {EVENTS: "done_ms", MINUTES: "minute_ms"}  # the time column of each table, by which expire() removes files
DAY_MS = 86_400_000
# With a batch every two seconds there are 43,200 commits a day. So the log is kept only for a day, and replaced files
# only for an hour, which is the time that readers of an older version have.
CONFIGURATION = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
MAX_SMALL_FILES = 60  # if the current day has more small files, they are merged
RESTART = "To start again from the events in the tables, move stream.json and the folder stream/ out of the lake."


@dataclass(frozen=True)
class Stream:
    """The contents of stream.json, and the tables at one version.

    archived_run   the last archive run whose events the stream does not need, because it began after that run. -1: it
                   needs the events of all runs, including converted files; None: the stream has not begun
    archive_id     the archive of this run; the stream needs the events of all runs of another archive
    """

    lake: Lake
    archived_run: int | None = None
    archive_id: str = ""

    @cached_property
    def events(self) -> Table:
        return Table(self.lake, EVENTS, DAY).check(SCHEMAS[EVENTS])

    @cached_property
    def minutes(self) -> Table:
        return Table(self.lake, MINUTES, DAY).check(SCHEMAS[MINUTES])

    @property
    def to(self) -> int:
        """Id of the last published event; 0 if there is none."""
        return self.events.run


def load(lake: Lake) -> Stream:
    """Return the stream with the newest versions of its tables.

    Raises LakeError if the document is damaged, older than this version of delaytasks, or missing although there are
    folders of the stream.
    """
    folders = lake.runs(FOLDER)  # list them before reading the document: it is created before the first folder
    document = lake.document(DOCUMENT, FORMAT)
    if not document:
        if folders:
            raise LakeError(
                f"{lake.path(DOCUMENT)} is missing, but {lake.path(FOLDER)} has {len(folders)} folders. The stream was "
                "not changed: restore it from a backup. " + RESTART
            )
        return Stream(lake)
    if document.get("version", VERSION) < FORMAT:
        raise LakeError(
            f"{lake.path(DOCUMENT)} was written by an earlier delaytasks, which did not use Delta tables. Run "
            "`manage.py delaytasks pipeline convert` once: it keeps the files and copies nothing."
        )
    try:
        return Stream(lake, int(document["archived_run"]), document.get("archive_id", ""))
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error!r}.") from error


def open_stream(lake: Lake, archived_run: int, archive_id: str) -> Stream:
    """Complete or remove what a killed run left, and return the stream, for a run that writes to it.

    archived_run, archive_id   for a new stream: number of the last archive run whose events it does not need

    Raises LakeError.
    """
    if load(lake).archived_run is None:
        publish(lake, archived_run, archive_id)
    for name, schema in SCHEMAS.items():
        Table(lake, name, DAY).create(schema, CONFIGURATION)
    return _recover(load(lake))


def publish(lake: Lake, archived_run: int, archive_id: str = "") -> None:
    lake.publish(DOCUMENT, {"version": FORMAT, "archived_run": archived_run, "archive_id": archive_id})


def _recover(stream: Stream) -> Stream:
    """Complete a batch that has only its first commit, and remove the files of a batch that has no commit."""
    lake, to, done = stream.lake, stream.to, stream.minutes.run
    folder = data_files.folder_of_run(lake, MINUTES, done + 1) if done < to else None
    # A vacuum of another program leaves empty folders.
    if done > to or (done < to and (folder is None or not lake.parquet(f"{MINUTES}/{folder}"))):
        raise LakeError(
            f"{lake.path(EVENTS)} ends with event {to}, but {lake.path(MINUTES)} with {done}. The stream was not "
            f"changed. Restore the newest backup of {lake.path(FOLDER)}. {RESTART}"
        )
    for table in (EVENTS, MINUTES):
        data_files.remove_uncommitted(lake, table, to, RESTART)
    if folder is None:
        return stream
    stream.minutes.commit(folder, to)
    return load(lake)


def commit(stream: Stream, folder: str, to: int, *, events: int, counts: int) -> Stream:
    """Commit the files of a batch to both tables, and return the stream's new version.

    folder           folder of the batch in both tables, already flushed to the disk: the result of
                     data_files.new_folder(stream.to + 1)
    to               id of the batch's last event
    events, counts   number of rows that were written to each table

    Raises Busy if another process has published meanwhile, and LakeError if files of the batch were removed.
    """
    stream.events.commit(folder, to, rows=events)
    stream.minutes.commit(folder, to, rows=counts)
    return load(stream.lake)


def compact(stream: Stream, today: str) -> bool:
    """Merge the small files of past days, and those of today if there are many. Return whether a table changed."""
    changed = False
    for table in (stream.events, stream.minutes):
        merged = optimization.merge(table, today, MAX_SMALL_FILES)
        if merged is not table:
            merged.vacuum()
            changed = True
    return changed


def expire(stream: Stream, before_ms: int) -> bool:
    """Remove files whose rows are all older than before_ms (ms since 1970). Return whether a table changed.

    The file with the last published event stays: a start of the stream compares it with the database.
    """
    changed = False
    for table in (stream.events, stream.minutes):
        expired = [
            each for each in table.files
            if each.high.get(TIMES[table.name], before_ms) < before_ms and each.high.get("id", -1) != stream.to
        ]  # fmt: skip
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
