"""Merge the small files of the lake's tables into fewer and larger ones.

The rows do not change, and replaced files stay for the table's retention time, so that readers can finish. Small files
are merged after each run, so that a partition has one at most (the stream's current day has more). A file that has
reached SMALL_BYTES is not rewritten again. So the cost of a run depends on its own rows and one small file in each
partition, not on the size of the table.
"""

from collections.abc import Iterable, Iterator, Sequence

from .archives import EVENTS, JOBS, Archive
from .data_files import DeltaFile
from .delta import Table

SMALL_BYTES = 8 << 20  # files below this size are merged
TARGET_BYTES = 128 << 20  # about the maximum size of a file that is written here
Z_ORDER = {JOBS: ("key", "ended_at"), EVENTS: ("job_id", "done_ms")}


def compact(archive: Archive) -> None:
    """Merge the small files of each topic, and remove files that were replaced a week ago or earlier."""
    for table in (archive.jobs, archive.events):
        merge_small_files(table)


def merge_small_files(table: Table) -> None:
    """Merge the small files of each partition, and remove files that were replaced before the retention time."""
    merge(table).vacuum()


def merge(table: Table, growing: str = "", most: int = 1) -> Table:
    """Merge the small files of each partition that has several. Return the table's new version.

    growing   a partition whose small files are merged only if there are more than `most`; "": none
    """
    return table.merge(
        group
        for partition, small in _small_files(table).items()
        if len(small) > (most if partition == growing else 1)
        for group in _groups(small)
    )


def _small_files(table: Table) -> dict[str, list[DeltaFile]]:
    """Return partition -> its small files, those of the oldest run first."""
    by_partition: dict[str, list[DeltaFile]] = {}
    for each in sorted(table.files, key=lambda each: (each.newest_run, each.low.get("id") or 0, each.path)):
        if each.size < SMALL_BYTES:
            by_partition.setdefault(each.partition, []).append(each)
    return by_partition


def _groups(files: Iterable[DeltaFile]) -> Iterator[Sequence[DeltaFile]]:
    """Yield groups of files with a total of at least TARGET_BYTES, then the remaining files if there are several."""
    group: list[DeltaFile] = []
    for each in files:
        group.append(each)
        if sum(each.size for each in group) >= TARGET_BYTES:
            yield group
            group = []
    if len(group) > 1:
        yield group


def z_order(archive: Archive) -> dict[str, int]:
    """Rewrite both tables in the order Z_ORDER, so that a lookup by key, job or time reads fewer files.

    Return name of the table -> number of its files afterwards.
    """
    return {table.name: len(_z_order(table).files) for table in (archive.jobs, archive.events)}


def _z_order(table: Table) -> Table:
    for topic in _topics(table):
        table = table.z_order(topic, Z_ORDER[table.name], TARGET_BYTES)
    table.vacuum()
    return table


def _topics(table: Table) -> Iterable[str]:
    return sorted({each.partition for each in table.files})
