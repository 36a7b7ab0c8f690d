"""The stream's document: its published parts and its position.

Uses pyarrow only. A part is a folder with the events of one or more batches and with their counts per minute:

    stream/<part>/events/     Parquet, schemas.EVENTS and the topic
    stream/<part>/minutes/    Parquet, schemas.COUNTS

The document also stores the stream's position: the id of the last published event. Parts and position change in one
rename, so they always agree. Spark's own checkpoint is used within one run only.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyarrow import parquet

from ..sources.database import Busy
from .lake import Lake, LakeError

DOCUMENT, FOLDER = "stream.json", "stream"
RESTART = "To start again from the events in the tables, move stream.json and the folder stream/ out of the lake."


@dataclass(frozen=True)
class Part:
    """A part of the stream.

    first_id, last_id   the least and the greatest id of its events
    first_ms, last_ms   the least and the greatest done_ms of its events, in ms since 1970
    published_ms        time of publication of its newest batch, in ms since 1970
    batches             number of batches that were compacted into it
    """

    folder: str
    events: int
    first_id: int
    last_id: int
    first_ms: int
    last_ms: int
    published_ms: int
    batches: int = 1


@dataclass(frozen=True)
class Streamed:
    """The contents of stream.json.

    revision   number of publications; an unexpected revision means that another process publishes to this lake
    to         id of the last published event
    newest     this event; the stream continues only if the database or the archive still has it
    archive    {"run": number}: the stream needs no events that this or an earlier run of the archive has archived
    retired    folder of a former part -> time of its retirement in ms since 1970; readers may use it a little longer
    """

    revision: int = 0
    to: int = 0
    newest: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    archive: Mapping[str, int] = field(default_factory=dict)
    retired: Mapping[str, int] = field(default_factory=dict)

    @property
    def folders(self) -> set[str]:
        return {part.folder for part in self.parts} | {*self.retired}


def load(lake: Lake) -> Streamed:
    """Return the published state, or an empty one before the first publication.

    Raises LakeError if the document is damaged, or if it is missing although there are folders of parts.

    The document is created before the first part. Without it, the valid parts and the position are unknown.
    """
    document = lake.document(DOCUMENT)
    if not document and (folders := lake.runs(FOLDER)):
        raise LakeError(
            f"{lake.path(DOCUMENT)} is missing, but {lake.path(FOLDER)} has {len(folders)} folders of parts. "
            "Nothing was changed: restore it from a backup. " + RESTART
        )
    document.pop("version", None)
    try:
        return Streamed(**{**document, "parts": tuple(Part(**part) for part in document.get("parts", ()))})
    except TypeError as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error}.") from error


def publish(lake: Lake, streamed: Streamed) -> None:
    """Publish the next revision of the document. Raises Busy if another process has published a revision since."""
    revision = load(lake).revision
    if revision != streamed.revision - 1:
        raise Busy(
            f"Another stream publishes to {lake.path(DOCUMENT)} (revision {revision}, "
            f"expected {streamed.revision - 1}): each database needs its own lake or alias."
        )
    lake.publish(DOCUMENT, asdict(streamed))


def clear(lake: Lake, streamed: Streamed) -> None:
    """Remove the folders that are neither parts nor retired: they were never published or are no longer in use."""
    for folder in lake.runs(FOLDER):
        if folder not in streamed.folders:
            lake.remove(folder)


def measure(lake: Lake, folder: str, published_ms: int) -> Part | None:
    """Return the part that was written to a folder, measured by its files' footers, or None if it has no events."""
    events, ids, times = 0, [], []
    for path, _ in lake.parquet(f"{folder}/events"):
        footer_data = footer(lake, path)
        if footer_data.num_rows:
            events += footer_data.num_rows
            ids.append(bounds(footer_data, "id"))
            times.append(bounds(footer_data, "done_ms"))
    if not events:
        return None
    return Part(
        folder, events, min(low for low, _ in ids), max(high for _, high in ids), min(low for low, _ in times),
        max(high for _, high in times), published_ms,
    )  # fmt: skip


def footer(lake: Lake, path: str) -> Any:
    """Return a file's Parquet footer. Raises LakeError if the file is missing or damaged."""
    with lake.reading(path) as name, lake.files.open_input_file(name) as file:
        return parquet.read_metadata(file)


def files(lake: Lake, part: Part, kind: str) -> list[str]:
    """Return the paths of a part's files, relative to the lake's root. Raises LakeError if there are none.

    kind   "events" or "minutes"; each part has at least one file of both
    """
    paths = [path for path, _ in lake.parquet(f"{part.folder}/{kind}")]
    if not paths:
        raise LakeError(
            f"{lake.path(part.folder)}/{kind} is missing, though {DOCUMENT} names it ({part.events} events). "
            "Restore it from a backup."
        )
    return paths


def verify(lake: Lake, part: Part) -> None:
    """Check that the files of a part exist and have all its events. Raises LakeError."""
    for path in files(lake, part, "minutes"):
        footer(lake, path)
    events = sum(footer(lake, path).num_rows for path in files(lake, part, "events"))
    if events != part.events:
        raise LakeError(
            f"{lake.path(part.folder)}/events has {events} events, but {DOCUMENT} says {part.events}. Restore it from "
            "a backup."
        )


def bounds(footer_data: Any, column: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer column, from a file's footer."""
    index = footer_data.schema.names.index(column)
    groups = [footer_data.row_group(n).column(index).statistics for n in range(footer_data.num_row_groups)]
    return min(group.min for group in groups), max(group.max for group in groups)


def event(lake: Lake, part: Part, event_id: int) -> dict[str, Any]:
    """Return one event of a part. Raises LakeError if the part does not have it."""
    for path in files(lake, part, "events"):
        with lake.reading(path) as name:
            rows = parquet.read_table(
                name, filesystem=lake.files, filters=[("id", "=", event_id)], partitioning=None,
                columns=["id", "job_id", "outcome", "done_ms"],
            ).to_pylist()  # fmt: skip
        if rows:
            return dict(rows[0])
    raise LakeError(f"{lake.path(part.folder)} has no event {event_id}.")
