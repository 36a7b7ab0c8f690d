"""Open the logs of Delta tables, refuse tables that the pipeline would misread, and translate errors of delta-rs."""

import contextlib
import re
from collections.abc import Iterator

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from ..sources.database import Busy
from .lake import Lake, LakeError

READER_VERSION = 1  # Spark reads the files without the log, so the log may not mark rows as deleted or rename columns
WRITER_VERSION = 7  # the newest version that delta-rs supports


@contextlib.contextmanager
def translated(lake: Lake, name: str) -> Iterator[None]:
    """Raise LakeError or Busy instead of the exceptions of delta-rs."""
    try:
        yield
    except DeltaError as error:
        if "Unsupported" in str(error):
            raise LakeError(
                f"{lake.path(name)} was changed by another program to a protocol that is not known here: {error}. "
                "Restore the table from a backup."
            ) from error
        if isinstance(error, CommitFailedError):
            raise Busy(
                f"Another process changes the table {lake.path(name)}: {error} Each database needs its own lake or "
                "alias."
            ) from error
        raise LakeError(f"The table {lake.path(name)} is damaged or cannot be read: {error}") from error


def open_log(lake: Lake, name: str, partition: str) -> DeltaTable | None:
    """Return the newest version of a table's log; None if there is no table.

    Raises LakeError if the log is damaged, has features that are not supported, or has other partition columns, and for
    a path that delta-rs would misread.
    """
    if lake.scheme == "file" and (found := re.search(r"[%\\]", lake.base)):
        raise LakeError(f"The lake cannot be in {lake.base}: its path has a {found[0]}. Rename the folder.")
    with translated(lake, name):
        try:
            table = DeltaTable(lake.location(name))
        except TableNotFoundError:
            return None
        protocol, partitions = table.protocol(), table.metadata().partition_columns
    if protocol.min_reader_version > READER_VERSION:
        features = ", ".join(protocol.reader_features or ()) or f"reader version {protocol.min_reader_version}"
        raise LakeError(
            f"{lake.path(name)} was changed by another program to use {features}, which the pipeline does not read. "
            "Restore the table from a backup, or rewrite it without them."
        )
    if protocol.min_writer_version > WRITER_VERSION:
        raise LakeError(
            f"{lake.path(name)} was changed by another program to writer version {protocol.min_writer_version}, which "
            "the pipeline does not know. Restore the table from a backup."
        )
    if partitions != [partition]:
        raise LakeError(foreign_message(lake, name, f"its partition columns are {partitions}, not {partition}"))
    return table


def foreign_message(lake: Lake, name: str, difference: str) -> str:
    return (
        f"{lake.path(name)} was written by another program or a newer delaytasks: {difference}. The table was not "
        "changed. Restore it from a backup, move it away, or update delaytasks here."
    )
