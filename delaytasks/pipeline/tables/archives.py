"""The archive: its document archive.json, and its two Delta tables, jobs and events.

Uses pyarrow and deltalake, no Spark. A run commits its events first and its jobs last: it is published when its jobs
are committed. The document stores the identity of the archived database, and which runs have been pruned from it. It is
created before the tables, so tables without a document mean that the document was lost.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

from .. import schemas
from ..sources import identity
from ..sources.identity import Identity
from . import data_files
from .delta import Table
from .lake import VERSION, Lake, LakeError

DOCUMENT = "archive.json"
FORMAT = 2  # version of the document; 1 named folders of runs instead of tables
FOLDER, JOBS, EVENTS = "archive", "archive/jobs", "archive/events"
RECENT_MS = 86_400_000  # how long the document keeps the time at which a run was pruned


@dataclass(frozen=True)
class Archive:
    """The contents of archive.json, and the tables.

    database   the database of the archived jobs
    deleting   number of the newest run whose pruning has begun
    pruned     number of the newest run of which no job is in the database any more, except withdrawn jobs
    recent     number of a run -> time at which it was pruned, in milliseconds since 1970; only runs of the last day
    id         tells this archive from a later one, whose runs begin at 1 again; "" in one of an earlier delaytasks
    """

    lake: Lake
    database: Identity = field(default_factory=dict)
    deleting: int = 0
    pruned: int = 0
    recent: Mapping[int, int] = field(default_factory=dict)
    id: str = ""

    # The table of jobs is loaded first. A run commits its events before its jobs, so no loaded job lacks its events.

    @cached_property
    def jobs(self) -> Table:
        return Table(self.lake, JOBS).check(schemas.ARCHIVED_JOBS)

    @cached_property
    def events(self) -> Table:
        _ = self.jobs
        return Table(self.lake, EVENTS).check(schemas.ARCHIVED_EVENTS)

    @property
    def unpruned(self) -> bool:
        """Whether the newest run's jobs may still be in the database."""
        return self.jobs.log is not None and self.jobs.run > self.pruned

    def pruned_before(self, ms: int) -> int:
        """Return the number of the last run that was pruned before this time, like all runs before it.

        ms   in milliseconds since 1970
        """
        return min([self.pruned, *(run - 1 for run, pruned_ms in self.recent.items() if pruned_ms >= ms)])


def load(lake: Lake, database: Identity | None = None) -> Archive:
    """Return the archive, or an empty one before the first run.

    database   identity of the database, to compare with the document's; None: do not compare

    Raises LakeError if the document is damaged, lost, in an earlier format or of another database, and if a table is
    older than the document or than the other table.
    """
    # List the folders before reading the document: it is created before the first folder.
    folders = lake.runs(FOLDER)
    document = lake.document(DOCUMENT, FORMAT)
    if not document:
        if folders:
            raise LakeError(_missing_message(lake))
        return Archive(lake)
    archive = _parse(lake, document)
    if archive.deleting > archive.jobs.run:
        raise LakeError(_outdated_message(lake, archive))
    if archive.events.run < archive.jobs.run:  # events are committed first
        raise LakeError(
            f"{lake.path(EVENTS)} is an outdated copy: it ends with run {archive.events.run}, but {lake.path(JOBS)} "
            f"with run {archive.jobs.run}. The archive was not changed. Restore the newest backup of "
            f"{lake.path(FOLDER)}."
        )
    check_database(lake, archive.database, database or {})
    return archive


def check_database(lake: Lake, theirs: Identity, ours: Identity) -> None:
    """Check that the document's database is ours. Raises LakeError."""
    if identity.differ(theirs, ours):
        raise LakeError(_wrong_database_message(lake, theirs, ours))


def _parse(lake: Lake, document: dict[str, Any]) -> Archive:
    if document.pop("version", VERSION) < FORMAT:
        raise LakeError(
            f"{lake.path(DOCUMENT)} was written by an earlier delaytasks, which did not use Delta tables. Run "
            "`manage.py delaytasks pipeline convert` once: it keeps the files and copies nothing."
        )
    try:
        recent = {int(run): int(ms) for run, ms in document.pop("recent").items()}
        archive = Archive(lake, recent=recent, **document)
        for name, type_ in (("id", str), ("database", dict), ("deleting", int), ("pruned", int)):  # people edit them
            if not isinstance(getattr(archive, name), type_):
                raise TypeError(f'"{name}" is {getattr(archive, name)!r}')
        return archive
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error}.") from error


def _missing_message(lake: Lake) -> str:
    return (
        f"{lake.path(DOCUMENT)} is missing, but {lake.path(FOLDER)} has tables. The archive was not changed. Restore "
        f"the file from its newest backup. To start a new archive instead, move {lake.path(FOLDER)} away."
    )


def _outdated_message(lake: Lake, archive: Archive) -> str:
    return (
        f"{lake.path(JOBS)} is an outdated copy: jobs up to run {archive.deleting} have left the database, but the "
        f"table ends with run {archive.jobs.run}. The archive was not changed. Restore the newest backup of "
        f'{lake.path(FOLDER)}. To give these runs up instead, change "deleting" in {lake.path(DOCUMENT)}.'
    )


def _wrong_database_message(lake: Lake, theirs: Identity, ours: Identity) -> str:
    return (
        f"{lake.path(DOCUMENT)} is the archive of another database ({identity.describe(theirs)}; this one is "
        f"{identity.describe(ours)}). The archive was not changed. Each database needs its own lake or alias. If it is "
        f'the same database, restored, upgraded or renamed, change that file to contain "database": {json.dumps(ours)}.'
    )


def open_archive(lake: Lake, database: Identity) -> Archive:
    """Return the archive, for a run that writes to it. Creates the document if there is none. Raises LakeError."""
    archive = load(lake, database)
    merged = {**archive.database, **database}
    if not archive.database:
        return publish(replace(archive, id=str(uuid4()), database=merged))
    return archive if merged == archive.database else publish(replace(archive, database=merged))


def publish(archive: Archive) -> Archive:
    """Publish the document, and return the archive with the newest versions of its tables."""
    document = {name: getattr(archive, name) for name in ("id", "database", "deleting", "pruned", "recent")}
    archive.lake.publish(DOCUMENT, {"version": FORMAT, **document})
    return replace(archive)


def mark_deleting(archive: Archive, run: int) -> Archive:
    """Record that the pruning of a run begins.

    If the tables are later replaced by an older copy without this run, load() raises LakeError.
    """
    return archive if archive.deleting >= run else publish(replace(archive, deleting=run))


def mark_pruned(archive: Archive, run: int, now_ms: int) -> Archive:
    """Record that no job of this run is in the database any more, except withdrawn ones."""
    recent = {each: ms for each, ms in archive.recent.items() if ms >= now_ms - RECENT_MS}
    return publish(replace(archive, pruned=run, recent={**recent, run: now_ms}))


def recover(archive: Archive) -> Archive:
    """Complete or remove what a killed run left, and return the archive.

    A run that was killed between its two commits is completed, because its files had been compared with the database.
    Files of a run that has committed nothing are removed. Raises LakeError if the files of the jobs are missing.
    """
    lake, run = archive.lake, archive.events.run
    for table in (JOBS, EVENTS):
        data_files.remove_uncommitted(lake, table, run)
    if archive.jobs.run < run:
        folder = data_files.folder_of_run(lake, JOBS, run)
        if folder is None or not lake.parquet(f"{JOBS}/{folder}"):  # a vacuum of another program leaves empty folders
            raise LakeError(
                f"{lake.path(EVENTS)} has run {run}, but {lake.path(JOBS)} has not. The archive was not changed. "
                f"Restore the newest backup of {lake.path(FOLDER)}."
            )
        archive.jobs.commit(folder, run)
        return replace(archive)
    return archive
