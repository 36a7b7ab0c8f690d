"""Optimize: rewrite the archive's tables as few large files, sorted for lookups. Needs no Spark."""

from typing import Any

from ..sources import identity
from ..sources.database import Database
from ..tables import archives, optimization
from ..tables.lake import Lake, LakeError


def run(database: Database, lake: Lake) -> dict[str, Any]:
    """Rewrite the archive's tables in z-order. Return {"jobs", "events"}: the number of files of each table.

    Raises Busy while `pipeline archive` is running, and LakeError if there is no archive or it cannot be read.
    """
    if not lake.has(archives.DOCUMENT):
        raise LakeError(f"There is nothing to optimize: {lake.base} has no {archives.DOCUMENT}.")
    with database.lock("archive"):
        with database.connect() as connection:
            archive = archives.load(lake, identity.identify(database, connection))
        archive = archives.recover(archive)  # before the vacuum, which removes what a killed run has not committed
        files = optimization.z_order(archive)
    return {"jobs": files[archives.JOBS], "events": files[archives.EVENTS]}
