"""Merge the counts of the pool's ended processes into one file for each kind of metric.

prometheus_client keeps the counts of each process in files of its own, and each scrape reads all of them. A worker
whose processes are often replaced would otherwise have more files, and slower scrapes, from day to day.
"""

import os

from prometheus_client.mmap_dict import MmapedDict

from .heartbeat import has_ended

KINDS = ("counter", "histogram", "summary", "gauge_mostrecent")  # gauges of other kinds tell processes apart
MERGED = 0  # in the name of a merged file: the id of no process


def merge_ended(directory: str) -> None:
    """Merge the files of processes that have ended. No process may be forked, and no file be read, meanwhile."""
    for name in sorted(os.listdir(directory)):
        kind, _, pid = name.removesuffix(".db").rpartition("_")
        if kind in KINDS and pid.isdigit() and int(pid) != MERGED and has_ended(int(pid)):
            _merge(os.path.join(directory, name), os.path.join(directory, f"{kind}_{MERGED}.db"))


def _merge(path: str, merged: str) -> None:
    is_gauge = os.path.basename(path).startswith("gauge")
    values: list[tuple[str, float, float, int]] = []
    if os.path.getsize(path):  # 0: the process was killed before it wrote to its file
        values.extend(MmapedDict.read_all_values_from_file(path))  # first: a damaged file must add none of its values
    total = MmapedDict(merged)
    try:
        for key, value, timestamp, _ in values:
            old, old_timestamp = total.read_value(key)
            if not is_gauge:
                total.write_value(key, old + value, timestamp)
            elif timestamp >= old_timestamp:
                total.write_value(key, value, timestamp)
    finally:
        total.close()
    os.unlink(path)
