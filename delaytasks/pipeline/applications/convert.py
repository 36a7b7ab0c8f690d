"""Convert: make Delta tables of an archive, hourly statistics and a stream of an earlier version. Needs no Spark.

The files are moved (on a disk: renamed) into the tables' folders and committed as they are, run by run. The new
document is published last, so a killed conversion can be repeated. Until then every reader refuses what is converted.
In the end small files are merged, as after each run.
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

APPLICATION = "delaytasks-convert"  # id of the transactions; their versions are the places of the runs in the document
PARTITIONS, PRUNED_SUFFIX = "partitions.json", ".pruned"
SCHEMAS = {EVENTS: schemas.ARCHIVED_EVENTS, JOBS: schemas.ARCHIVED_JOBS}  # in the order of the commits


@dataclass(frozen=True)
class FormerRun:
    """A run as stored in version 1 of the document. withdrawn: ids of jobs whose rows in this run are outdated."""

    folder: str
    pruned_ms: int | None
    withdrawn: tuple[int, ...]

    def moved(self, path: str) -> str:
        """Return the path of a file in the table that it belongs to. path: relative to the lake's root, as before."""
        table, _, rest = path.removeprefix(f"{self.folder}/").partition("/")
        return f"{FOLDER}/{table}/{os.path.basename(self.folder)}/{rest}"


def run(database: Database, lake: Lake) -> dict[str, Any]:
    """Convert a lake. Return {"runs", "months", "parts", "jobs", "events"}.

    Members of the answer:

    runs           number of converted runs of the archive
    months         number of converted months of hourly statistics
    parts          number of converted parts of the stream
    jobs, events   what the archive has afterwards

    Raises LakeError, before anything of the archive, of the statistics or of the stream is changed, if there is none of
    them, if its document is damaged, outdated or of another database, or if a file is missing or damaged.
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
            optimization.merge(table)  # a vacuum would remove the files of a killed run, which the next one completes
    jobs, events = (sum(each.rows for each in table.files) for table in (archive.jobs, archive.events))
    return {"runs": runs, "months": months, "parts": parts, "jobs": jobs, "events": events}


def _convert_archive(lake: Lake, ours: identity.Identity) -> int:
    """Convert the archive of our database. Return the number of runs; 0 if there is nothing to convert."""
    document = lake.document(DOCUMENT, FORMAT)
    if not document or document.get("version", VERSION) >= FORMAT:
        return 0
    archives.check_database(lake, document.get("database", {}), ours)
    runs, existing = _runs(lake, document), dict(lake.parquet(FOLDER))
    files = {each.folder: list(_check(lake, each, existing)) for each in runs}
    for table in (Table(lake, name).create(schema) for name, schema in SCHEMAS.items()):
        for number, each in enumerate(runs, 1):
            table = _add(table, number, each, files[each.folder])
    _publish(lake, document["database"], runs)
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
    """Yield the paths of the run's files, after checking that each exists in its size, moved or not. Raises LakeError.

    existing   path -> size of each file in the archive; this run's files are removed from it
    """
    for path, size in _listed(lake, run):
        if size not in (existing.pop(path, None), existing.pop(run.moved(path), None)):
            raise LakeError(
                f"The archive is damaged: {lake.path(path)} is missing or has another size than was written. Nothing "
                "was changed. Restore it from a backup, then run this again."
            )
        yield path
    extra = sorted(path for path in existing if path.startswith(f"{run.folder}/"))
    if extra:
        raise LakeError(f"{lake.path(extra[0])} is in a run of the archive that does not name it. Move it away.")


def _listed(lake: Lake, run: FormerRun) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file in the run's list of partitions."""
    name = f"{run.folder}/{PARTITIONS}"
    try:
        for each in lake.document(name)["partitions"]:
            yield from zip((*each["job_files"], *each["event_files"]), each["sizes"], strict=True)
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(f"{lake.path(name)} is missing or damaged: {error}. Restore it from a backup.") from error


def _add(table: Table, number: int, run: FormerRun, paths: list[str]) -> Table:
    """Move a run's files into a table, commit them, and delete its withdrawn jobs. Return the table's new version.

    A later run may have the same job validly: its row is committed only after the outdated one was deleted.
    """
    lake, done = table.lake, table.last_run(APPLICATION)
    folder = f"{table.name}/{os.path.basename(run.folder)}"
    for path in paths:
        target = run.moved(path)
        if target.startswith(f"{folder}/"):
            lake.move(path, target)
    if number > done:
        if lake.has(folder):
            lake.sync(folder)
        table = table.commit(os.path.basename(folder), number, application=APPLICATION)
    column = "id" if table.name == JOBS else "job_id"
    return table.delete(column, run.withdrawn) if number >= done else table


def _publish(lake: Lake, database: identity.Identity, runs: list[FormerRun]) -> None:
    """Publish the new document. The converted rows have the run 0, which is pruned if all former runs are."""
    times = [each.pruned_ms for each in runs]
    pruned_ms = [each for each in times if each is not None]
    archive = Archive(lake, database, pruned=-1) if None in times else Archive(
        lake, database, recent={0: max(pruned_ms)} if pruned_ms else {})  # fmt: skip
    archives.publish(archive)


def _remove_former(lake: Lake) -> None:
    """Remove the former folders, which have no files of the tables any more, and the former marker files."""
    for folder in lake.runs(FOLDER):
        if folder not in (JOBS, EVENTS):
            lake.remove(folder)
    for name in lake.files_in(FOLDER):
        if name.endswith(PRUNED_SUFFIX):
            lake.files.delete_file(lake.path(name))
