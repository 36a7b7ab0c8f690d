"""What is in the archive: the document that names its runs, and each run's list of partitions.

Read with pyarrow alone. A run is there when archive.json names it, and not before. The document is there before the
first run's folder, so where there are folders without it, it was lost.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, repeat

from . import identity
from .database import Busy
from .identity import Identity
from .lake import VERSION, Lake, LakeError

DOCUMENT = "archive.json"
PARTITIONS = "partitions.json"
MARK = ".pruned"  # after a run's name: a file beside its folder
NAMED = 5  # partitions that a message names


@dataclass(frozen=True)
class Partition:
    """The jobs of one topic that ended on one day (UTC), as one run wrote them.

    digest   of the jobs and of their events: sums that do not depend on the order of rows
    files    paths below the lake
    sizes    of the files in bytes: the jobs' and then the events'
    """

    topic: str
    ended_on: str
    jobs: int
    events: int
    digest: str
    first_id: int
    last_id: int
    job_files: tuple[str, ...] = ()
    event_files: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic} of {self.ended_on}"


@dataclass(frozen=True)
class Run:
    """folder    below the lake
    pruned_ms  when the rows had left the operational tables; None: not all of them have
    withdrawn  ids of jobs that changed before they could be pruned: they live on there, and what is here is not true
    """

    folder: str
    published_ms: int
    jobs: int
    events: int
    first_id: int
    last_id: int
    pruned_ms: int | None = None
    withdrawn: tuple[int, ...] = ()

    def may_have(self, job_id: int) -> bool:
        return self.first_id <= job_id <= self.last_id and job_id not in self.withdrawn


@dataclass(frozen=True)
class Archive:
    """revision  how often it was published: who finds another one than expected is not alone
    database  whose jobs it has
    runs      oldest first
    """

    revision: int = 0
    database: Identity = field(default_factory=dict)
    runs: tuple[Run, ...] = ()


def load(lake: Lake, asking: Identity | None = None) -> Archive:
    """What is published. Raises LakeError: damaged, lost, or of another database than the one that asks."""
    # Looked for before the document is, which is there before a folder is, and names a run before it gets a mark.
    folders, marks = lake.runs("archive"), [each for each in lake.beside("archive") if each.endswith(MARK)]
    document = lake.document(DOCUMENT)
    if not document:
        if folders or marks:
            raise LakeError(_lost(lake))
        return Archive()
    document.pop("version", None)
    try:
        found = Archive(**{**document, "runs": tuple(_run(each) for each in document["runs"])})
    except (TypeError, KeyError) as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error}.") from error
    unnamed = {mark.removesuffix(MARK) for mark in marks} - {each.folder for each in found.runs}
    if unnamed:
        raise LakeError(_older(lake, sorted(unnamed)))
    if asking and identity.differ(found.database, asking):
        raise LakeError(_another(lake, found.database, asking))
    return found


def _run(told: dict[str, object]) -> Run:
    run = Run(**told)  # type: ignore[arg-type]
    return replace(run, withdrawn=tuple(run.withdrawn))


def _lost(lake: Lake) -> str:
    return (
        f"{lake.path(DOCUMENT)} is missing, but {lake.path('archive')} has runs. Nothing was touched. Put the file "
        f"back from its newest copy; or, if the archive is to begin anew, move {lake.path('archive')} away."
    )


def _older(lake: Lake, folders: list[str]) -> str:
    return (
        f"{lake.path(DOCUMENT)} is an older copy: it does not name {lake.path(folders[0])}"
        f"{_and_more(folders, 'runs')}, whose jobs have left the tables. Nothing was touched. Put its newest copy "
        f"back; or, to do without a run, move its folder and its file {MARK} away."
    )


def _another(lake: Lake, theirs: Identity, ours: Identity) -> str:
    return (
        f"{lake.path(DOCUMENT)} is the archive of another database ({identity.words(theirs)}; this one is "
        f"{identity.words(ours)}). Nothing was touched. Each database needs a lake, or an alias, of its own. If it is "
        f'the same one, restored, upgraded or renamed, change that file to say "database": {json.dumps(ours)}.'
    )


def runs(lake: Lake, asking: Identity | None = None) -> tuple[Run, ...]:
    """The published runs, oldest first. Raises LakeError, as load() does."""
    return load(lake, asking).runs


def opened(lake: Lake, database: Identity) -> Archive:
    """What is published, for a run that will write beside it; an empty one is published if there is none.

    Raises LakeError, as load() does.
    """
    found = load(lake, database)
    whose = {**found.database, **database}
    if found.revision and whose == found.database:
        return found
    return _replaced(lake, replace(found, database=whose))


def publish(lake: Lake, archive: Archive, run: Run) -> Archive:
    """Name a run in the document, in the place of what was said of it before; what is published then.

    archive   what is published. Raises Busy if that is not what is there.
    """
    others = [each for each in archive.runs if each.folder != run.folder]
    return _replaced(lake, replace(archive, runs=(*others, run)))


def _replaced(lake: Lake, archive: Archive) -> Archive:
    found = load(lake).revision
    if found != archive.revision:
        raise Busy(
            f"Another archive publishes to {lake.path(DOCUMENT)} (revision {found}, expected {archive.revision}): "
            "each database needs a lake, or an alias, of its own."
        )
    made = replace(archive, revision=found + 1)
    lake.publish(DOCUMENT, asdict(made))
    return made


def mark(lake: Lake, run: Run) -> None:
    """Called before the first of its jobs leaves the tables: from then on a document that does not name it is wrong."""
    lake.write(run.folder + MARK, b"")


def write_partitions(lake: Lake, folder: str, partitions: list[Partition]) -> None:
    text = json.dumps({"version": VERSION, "partitions": [asdict(each) for each in partitions]})
    lake.write(f"{folder}/{PARTITIONS}", text.encode())


def partitions(lake: Lake, run: Run) -> list[Partition]:
    """Raises LakeError for a run whose list is missing or damaged."""
    found = _listed(lake, run.folder)
    if not found:
        raise LakeError(f"{lake.path(run.folder)} has no {PARTITIONS}, but {DOCUMENT} names it.")
    return found


def _listed(lake: Lake, folder: str) -> list[Partition]:
    name = f"{folder}/{PARTITIONS}"
    try:
        return [Partition(**each) for each in lake.document(name).get("partitions", ())]
    except TypeError as error:
        raise LakeError(f"{lake.path(name)} is damaged: {error}.") from error


def check(lake: Lake, folder: str) -> None:
    """Do nothing if every file is there that a run's list names, and no other. One without a list is still being made.

    Who reads a whole folder would not notice that a file of it is gone. Raises LakeError, which names partitions.
    """
    listed = _listed(lake, folder)
    if not listed:
        return
    there = dict(lake.parquet(folder))
    wrong = {path: each for each in listed for path, size in _files(each) if size != there.pop(path, None)}
    if wrong:
        where = sorted({str(each) for each in wrong.values()})
        raise LakeError(
            f"The archive is not whole: {lake.path(min(wrong))}{_and_more(wrong)} ({', '.join(where[:NAMED])}): gone, "
            "or of another size than was written. Put back a copy and run it again."
        )
    if there:
        raise LakeError(
            f"{lake.path(min(there))}{_and_more(there)}: there in a run of the archive whose {PARTITIONS} does not "
            "name it. Take it out of there, or what is in it would be counted."
        )


def _files(each: Partition) -> Iterator[tuple[str, int]]:
    """Each file and its size; -1 where the list tells none."""
    named = (*each.job_files, *each.event_files)
    return zip(named, chain(each.sizes, repeat(-1)), strict=False)


def _and_more(paths: Collection[str], what: str = "files") -> str:
    return f" and {len(paths) - 1} more {what}" if len(paths) > 1 else ""
