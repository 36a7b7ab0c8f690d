"""What is in the archive: the document that names its runs, and each run's list of partitions.

Read with pyarrow alone. A run is there when archive.json names it, and not before.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, repeat
from typing import Any

from .lake import VERSION, Lake, LakeError

DOCUMENT = "archive.json"
PARTITIONS = "partitions.json"
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


def runs(lake: Lake) -> list[Run]:
    """The published runs, oldest first. Raises LakeError."""
    try:
        found = [Run(**each) for each in lake.document(DOCUMENT).get("runs", ())]
    except TypeError as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error}.") from error
    return [replace(each, withdrawn=tuple(each.withdrawn)) for each in found]


def publish(lake: Lake, run: Run) -> None:
    """Name a run in the document, in the place of what was said of it before."""
    others = [each for each in runs(lake) if each.folder != run.folder]
    lake.publish(DOCUMENT, {"runs": [asdict(each) for each in [*others, run]]})


def write_partitions(lake: Lake, folder: str, partitions: list[Partition]) -> None:
    text = json.dumps({"version": VERSION, "partitions": [asdict(each) for each in partitions]})
    lake.write(f"{folder}/{PARTITIONS}", text.encode())


def partitions(lake: Lake, run: Run) -> Iterator[Partition]:
    """Raises LakeError for a run whose list is missing."""
    found: dict[str, Any] = lake.document(f"{run.folder}/{PARTITIONS}")
    if not found:
        raise LakeError(f"{lake.path(run.folder)} has no {PARTITIONS}, but {DOCUMENT} names it.")
    for each in found["partitions"]:
        yield Partition(**each)


def check(lake: Lake, folder: str) -> None:
    """Do nothing if every file is there that a run's list names, and no other. One without a list is still being made.

    Who reads a whole folder would not notice that a file of it is gone. Raises LakeError, which names partitions.
    """
    listed = [Partition(**each) for each in lake.document(f"{folder}/{PARTITIONS}").get("partitions", ())]
    if not listed:
        return
    there = dict(lake.parquet(folder))
    wrong = {path: each for each in listed for path, size in _files(each) if size != there.pop(path, None)}
    if wrong:
        where = sorted({f"{each.topic} of {each.ended_on}" for each in wrong.values()})
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


def _and_more(paths: Collection[str]) -> str:
    return f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
