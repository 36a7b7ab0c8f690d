"""Convert: turn the archive, hourly statistics and stream that an earlier version wrote into Delta tables.

Needs no Spark. The Parquet files are moved (on a disk: renamed) into the tables' folders and committed unchanged, run
by run. The new document is published last, so a killed conversion can be repeated; until then readers raise LakeError.
At the end small files are merged, as after each run.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import schemas
from ..sources import identity
from ..sources.database import Database
from ..tables import archives, optimization, stream_tables
from ..tables.archives import DOCUMENT, EVENTS, FOLDER, FORMAT, JOBS, Archive
from ..tables.delta import Table
from ..tables.lake import VERSION, Lake, LakeError
from . import convert_hours, convert_stream, report

# Id of the Delta application transactions. The version of a transaction is the run's position in the document, from 1.
APPLICATION = "delaytasks-convert"
PARTITIONS, PRUNED_SUFFIX = "partitions.json", ".pruned"
SCHEMAS = {EVENTS: schemas.ARCHIVED_EVENTS, JOBS: schemas.ARCHIVED_JOBS}  # in the order of the commits


@dataclass(frozen=True)
class FormerRun:
    """A run of the archive as version 1 of its document stores it.

    pruned_ms   when its jobs were deleted from the database; None: not yet
    withdrawn   ids of jobs whose rows in this run are outdated
    """

    folder: str
    pruned_ms: int | None
    withdrawn: tuple[int, ...]

    def new_path(self, path: str) -> str:
        """Return a file's path in the Delta table from its former path. Both are relative to the lake's root."""
        table, _, rest = path.removeprefix(f"{self.folder}/").partition("/")
        return f"{FOLDER}/{table}/{os.path.basename(self.folder)}/{rest}"


def run(database: Database, lake: Lake) -> dict[str, Any]:
    """Convert a lake. Return {"runs", "months", "parts", "jobs", "events"}.

    Members of the answer:

    runs           number of converted runs of the archive
    months         number of converted months of hourly statistics
    parts          number of converted parts of the stream
    jobs, events   number of jobs and events in the archive afterwards

    Raises LakeError if the lake has nothing to convert, if a document is damaged, outdated or of another database, or
    if a file is missing or damaged. The archive, the statistics and the stream are converted in this order; each is
    checked before any of its files is moved.
    """
    documents = (DOCUMENT, report.DOCUMENT, stream_tables.DOCUMENT)
    if not any(map(lake.has, documents)):
        raise LakeError(f"There is nothing to convert: {lake.base} has none of {', '.join(documents)}.")
    with database.lock("archive"), database.lock("report"), database.lock("stream"):
        with database.connect() as connection:
            runs = _convert_archive(lake, identity.identify(database, connection))
        months, parts = convert_hours.run(lake), convert_stream.run(lake)
        archive, stream = archives.load(lake), stream_tables.load(lake)
        for table in (archive.jobs, archive.events, stream.events, stream.minutes):
            optimization.merge(table)  # no vacuum: it would remove a killed run's files, which the next run completes
    jobs, events = (sum(each.rows for each in table.files) for table in (archive.jobs, archive.events))
    return {"runs": runs, "months": months, "parts": parts, "jobs": jobs, "events": events}


def _convert_archive(lake: Lake, ours: identity.Identity) -> int:
    """Convert the archive. Return the number of its runs; 0 if there is nothing to convert. Raises LakeError.

    ours   identity of the database, which must be that of the archive
    """
    document = lake.document(DOCUMENT, FORMAT)
    if not document or document.get("version", VERSION) >= FORMAT:
        return 0
    theirs = document.get("database", {})
    archives.check_database(lake, theirs, ours)
    runs, existing = _runs(lake, document), dict(lake.parquet(FOLDER))
    files = {each.folder: list(_check(lake, each, existing)) for each in runs}
    for table in (Table(lake, name).create(schema) for name, schema in SCHEMAS.items()):
        for number, each in enumerate(runs, 1):
            table = _add(table, number, each, files[each.folder])
    _publish(lake, theirs, runs)
    _remove_former(lake)
    return len(runs)


def _runs(lake: Lake, document: dict[str, Any]) -> list[FormerRun]:
    try:
        runs = [FormerRun(each["folder"], each["pruned_ms"], tuple(each["withdrawn"])) for each in document["runs"]]
    except (KeyError, TypeError) as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error}.") from error
    named = {each.folder + PRUNED_SUFFIX for each in runs}
    unnamed = [each for each in lake.files_in(FOLDER) if each.endswith(PRUNED_SUFFIX) and each not in named]
    if unnamed:
        raise LakeError(
            f"{lake.path(DOCUMENT)} is an outdated copy: it does not name {lake.path(unnamed[0])}, whose jobs have "
            "left the database. Nothing was changed. Restore its newest backup."
        )
    return runs


def _check(lake: Lake, run: FormerRun, existing: dict[str, int]) -> Iterator[str]:
    """Yield the former path of each of the run's files.

    Raises LakeError if a file has another size than was written, is neither at its former nor at its new path, or is in
    the run's former folder but not listed.

    existing   path -> size of each file in the archive; this run's files are removed from it
    """
    for path, size in _listed(lake, run):
        if size not in (existing.pop(path, None), existing.pop(run.new_path(path), None)):
            raise LakeError(
                f"The archive is damaged: {lake.path(path)} is missing or has another size than was written. Nothing "
                "was changed. Restore it from a backup, then run this again."
            )
        yield path
    extra = sorted(path for path in existing if path.startswith(f"{run.folder}/"))
    if extra:
        raise LakeError(f"{lake.path(extra[0])} is not listed in the {PARTITIONS} of its archive run. Move it away.")


def _listed(lake: Lake, run: FormerRun) -> Iterator[tuple[str, int]]:
    """Yield the former path and the size in bytes of each file that the run's partitions.json lists."""
    name = f"{run.folder}/{PARTITIONS}"
    try:
        for each in lake.document(name)["partitions"]:
            yield from zip((*each["job_files"], *each["event_files"]), each["sizes"], strict=True)
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(f"{lake.path(name)} is missing or damaged: {error}. Restore it from a backup.") from error


def _add(table: Table, number: int, run: FormerRun, paths: list[str]) -> Table:
    """Move a run's files into a table, commit them, and delete its withdrawn jobs. Return the table's new version.

    A later run may contain a valid row of a job that this run withdrew. So call this run by run: the outdated row must
    be deleted before the valid one is committed.
    """
    lake, done = table.lake, table.last_run(APPLICATION)
    folder = f"{table.name}/{os.path.basename(run.folder)}"
    for path in paths:
        target = run.new_path(path)
        if target.startswith(f"{folder}/"):
            lake.move(path, target)
    if number > done:
        if lake.has(folder):
            lake.sync(folder)
        table = table.commit(os.path.basename(folder), number, application=APPLICATION)
    column = "id" if table.name == JOBS else "job_id"
    return table.delete(column, run.withdrawn) if number >= done else table


def _publish(lake: Lake, database: identity.Identity, runs: list[FormerRun]) -> None:
    """Publish the new document. Converted rows belong to run 0, which is marked as pruned if all former runs were."""
    times = [each.pruned_ms for each in runs]
    pruned_ms = [each for each in times if each is not None]
    archive = Archive(lake, database, pruned=-1) if None in times else Archive(
        lake, database, recent={0: max(pruned_ms)} if pruned_ms else {})  # fmt: skip
    archives.publish(archive)


def _remove_former(lake: Lake) -> None:
    """Remove the former run folders, whose Parquet files have been moved, and the files that marked runs as pruned."""
    for folder in lake.runs(FOLDER):
        if folder not in (JOBS, EVENTS):
            lake.remove(folder)
    for name in lake.files_in(FOLDER):
        if name.endswith(PRUNED_SUFFIX):
            lake.files.delete_file(lake.path(name))
