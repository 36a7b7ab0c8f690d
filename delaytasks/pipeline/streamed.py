"""What the stream has published: the document that names its parts, and how far it has come.

Read with pyarrow alone. A part is a folder with the events of some batches and with what they add to each minute:

    stream/<part>/events/     Parquet, schemas.EVENTS and the topic
    stream/<part>/minutes/    Parquet, schemas.COUNTS

The document is the stream's memory, too. It says in one rename what was added and up to where that goes, so the two
cannot disagree; what Spark keeps of its own position lasts no longer than a run.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyarrow import parquet

from .database import Busy
from .lake import Lake, LakeError

DOCUMENT, FOLDER = "stream.json", "stream"
ANEW = "To begin anew from what is in the tables, move stream.json and the folder stream/ out of the lake."


@dataclass(frozen=True)
class Part:
    """first_ms, last_ms   when the first and the last of its events happened
    published_ms   when its newest batch was
    batches        how many were folded into it
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
    """revision   how often it was published: who finds another one than expected is not alone
    to         the id of the last event that is in it
    newest     that event: what the database must still have, or have archived, for the stream to go on
    archive    the archive's runs that were looked at -> the last event's id; 0: what it has is none of the stream's
    retired    folders that are not used any more, and since when: a reader may still be in them
    """

    revision: int = 0
    to: int = 0
    newest: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    archive: Mapping[str, int] = field(default_factory=dict)
    retired: Mapping[str, int] = field(default_factory=dict)

    @property
    def folders(self) -> set[str]:
        return {each.folder for each in self.parts} | {*self.retired}


def load(lake: Lake) -> Streamed:
    """What is published. Raises LakeError: also where there are parts, and the document that names them is not there.

    The document is there before the first part is. Without it nobody knows which parts are true, nor how far they go.
    """
    document = lake.document(DOCUMENT)
    if not document and (lost := lake.runs(FOLDER)):
        raise LakeError(
            f"{lake.path(DOCUMENT)} is missing, but {lake.path(FOLDER)} has {len(lost)} folders of parts. "
            "Nothing was touched: put it back from a copy. " + ANEW
        )
    document.pop("version", None)
    try:
        return Streamed(**{**document, "parts": tuple(Part(**each) for each in document.get("parts", ()))})
    except TypeError as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error}.") from error


def publish(lake: Lake, streamed: Streamed) -> None:
    """Put it in the place of the revision before it. Raises Busy if that is not what is there."""
    found = load(lake).revision
    if found != streamed.revision - 1:
        raise Busy(
            f"Another stream publishes to {lake.path(DOCUMENT)} (revision {found}, expected {streamed.revision - 1}): "
            "each database needs a lake, or an alias, of its own."
        )
    lake.publish(DOCUMENT, asdict(streamed))


def clear(lake: Lake, streamed: Streamed) -> None:
    """Remove what was never published, or is not used any more."""
    for folder in lake.runs(FOLDER):
        if folder not in streamed.folders:
            lake.remove(folder)


def measured(lake: Lake, folder: str, published_ms: int) -> Part | None:
    """A part that was written, as its files tell; None if there is nothing in it."""
    events, ids, times = 0, [], []
    for path, _ in lake.parquet(f"{folder}/events"):
        found = footer(lake, path)
        if found.num_rows:
            events += found.num_rows
            ids.append(bounds(found, "id"))
            times.append(bounds(found, "done_ms"))
    if not events:
        return None
    return Part(
        folder, events, min(low for low, _ in ids), max(high for _, high in ids), min(low for low, _ in times),
        max(high for _, high in times), published_ms,
    )  # fmt: skip


def footer(lake: Lake, path: str) -> Any:
    """Raises LakeError if the file is gone or damaged."""
    with lake.reading(path) as name, lake.files.open_input_file(name) as file:
        return parquet.read_metadata(file)


def files(lake: Lake, part: Part, kind: str) -> list[str]:
    """The paths below the lake of a part's `events` or `minutes`. Raises LakeError if it has none: each part has."""
    found = [path for path, _ in lake.parquet(f"{part.folder}/{kind}")]
    if not found:
        raise LakeError(
            f"{lake.path(part.folder)}/{kind} is gone, though {DOCUMENT} names it ({part.events} events). Put it back "
            "from a copy."
        )
    return found


def check(lake: Lake, part: Part) -> None:
    """Do nothing if a part has what it had when it was published. Raises LakeError."""
    for path in files(lake, part, "minutes"):
        footer(lake, path)
    found = sum(footer(lake, path).num_rows for path in files(lake, part, "events"))
    if found != part.events:
        raise LakeError(
            f"{lake.path(part.folder)}/events has {found} events, but {DOCUMENT} says {part.events}. Put it back from "
            "a copy."
        )


def bounds(found: Any, column: str) -> tuple[int, int]:
    """The least and the greatest value of a column, by a file's footer."""
    place = found.schema.names.index(column)
    each = [found.row_group(group).column(place).statistics for group in range(found.num_row_groups)]
    return min(one.min for one in each), max(one.max for one in each)


def event(lake: Lake, part: Part, event_id: int) -> dict[str, Any]:
    """One event of a part. Raises LakeError if it has none of that id."""
    for path in files(lake, part, "events"):
        with lake.reading(path) as name:
            found = parquet.read_table(
                name, filesystem=lake.files, filters=[("id", "=", event_id)], partitioning=None,
                columns=["id", "job_id", "outcome", "done_ms"],
            ).to_pylist()  # fmt: skip
        if found:
            return dict(found[0])
    raise LakeError(f"{lake.path(part.folder)} has no event {event_id}.")
