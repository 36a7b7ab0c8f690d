"""What is in the archive: the document that names its runs, and each run's list of partitions.

Read with pyarrow alone. A run is there when archive.json names it, and not before.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from .lake import VERSION, Lake, LakeError

DOCUMENT = "archive.json"
PARTITIONS = "partitions.json"


@dataclass(frozen=True)
class Partition:
    """The jobs of one topic that ended on one day (UTC), as one run wrote them.

    digest   of the jobs and of their events: sums that do not depend on the order of rows
    files    paths below the lake
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
