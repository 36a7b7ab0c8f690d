"""Report which disk is full: that of the lake, of Spark's temporary files on this host, of the database, or another."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping

from ..config import BadSettings
from ..tables.lake import Lake
from .errors import ExecutorCheckFailed

# The operating system's messages for a full disk, a quota and a file size limit. Java, Python, pyarrow and delta-rs all
# repeat them.
FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
OF_THE_DATABASE = re.compile(r"could not (?:extend|write|create)[^\n]*(?:No space left|Disk quota)")
LOCAL_FOLDERS = "spark.local.dir"
SHORT_BYTES = 8 << 20  # with less free space a disk counts as full; not 0, because a failed run frees some space
ADVICE = "No row is lost: free some space, then run this again."


class DiskFull(Exception):
    """A disk is full. The message says which disk, and what to do."""


@contextlib.contextmanager
def translate_errors(lake: Lake, options: Mapping[str, str]) -> Iterator[None]:
    """Raise DiskFull instead of any exception of the block whose message says that a disk is full.

    options   the site's Spark options

    BadSettings is not replaced: its message may contain such words of an expression. Neither is ExecutorCheckFailed,
    which names the host.
    """
    try:
        yield
    except (BadSettings, ExecutorCheckFailed):
        raise
    except Exception as error:
        if found := FULL.search(str(error)):
            raise DiskFull(_sentence(str(error), found.group(), lake, _temporary_folder(options))) from error
        raise


def _temporary_folder(options: Mapping[str, str]) -> str:
    folders = os.environ.get("SPARK_LOCAL_DIRS") or options.get(LOCAL_FOLDERS) or tempfile.gettempdir()
    return folders.split(",")[0]


def _sentence(message: str, words: str, lake: Lake, temporary: str) -> str:
    if OF_THE_DATABASE.search(message):
        return f"The disk of the database server is full ({words}). {ADVICE}"
    folders = {f"the lake, {lake.base},": lake.base if lake.scheme == "file" else "",
               f"Spark's temporary files, {temporary},": temporary}  # fmt: skip
    free = {name: _free_bytes(path) for name, path in folders.items() if path}
    for name, number in free.items():
        if number < SHORT_BYTES:
            return f"The disk of {name} is full ({words}; {_megabytes(number)} free). {ADVICE}"
    figures = ", ".join(f"{name} has {_megabytes(number)} free" for name, number in free.items())
    where = _path_in(message, lake)
    return (
        f"{f'{where} cannot be written' if where else 'A disk is full or a quota is used up'} ({words}). On this host "
        f"{figures}: check quotas, file size limits and the executors' disks. {ADVICE}"
    )


def _path_in(message: str, lake: Lake) -> str:
    """Return the first path of the lake in the message; "" if there is none."""
    found = re.search(rf"{re.escape(lake.base)}[^\s'\"),;:]*", message)
    return found.group().rstrip(".") if found else ""


def _free_bytes(path: str) -> int:
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def _megabytes(number: int) -> str:
    return f"{number / (1 << 20):,.1f} MB"
