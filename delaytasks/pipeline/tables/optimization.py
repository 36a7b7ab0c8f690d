"""Fewer and larger files in the archive's tables. Rows stay the same, and so do older versions for a week."""

from collections import Counter
from collections.abc import Iterable

from .archives import EVENTS, JOBS, Archive
from .delta import Table

SMALL_BYTES = 8 << 20  # a file that is worth merging
TARGET_BYTES = 128 << 20
MAX_SMALL_FILES = (
    10  # of a partition; with more, they are merged. Merging after each run would rewrite the same rows often
)
Z_ORDER = {JOBS: ("key", "ended_at"), EVENTS: ("job_id", "done_ms")}


def compact(archive: Archive) -> None:
    """Merge the small files of each topic that has many, and remove files that left the tables a week ago."""
    for table in (archive.jobs, archive.events):
        merge_small_files(table)


def merge_small_files(table: Table) -> None:
    """Merge the small files of each partition that has many, and remove files that left the table a week ago."""
    small = Counter(each.partition for each in table.files if each.size < SMALL_BYTES)
    many = [partition for partition, number in small.items() if number > MAX_SMALL_FILES]
    table.compact(many, TARGET_BYTES).vacuum()


def z_order(archive: Archive) -> dict[str, int]:
    """Rewrite both tables ordered by Z_ORDER, so that fewer files are read for a key, a job or a time.

    Return table -> number of files afterwards.
    """
    return {table.name: len(_z_order(table).files) for table in (archive.jobs, archive.events)}


def _z_order(table: Table) -> Table:
    for topic in _topics(table):
        table = table.z_order(topic, Z_ORDER[table.name], TARGET_BYTES)
    table.vacuum()
    return table


def _topics(table: Table) -> Iterable[str]:
    return sorted({each.partition for each in table.files})
