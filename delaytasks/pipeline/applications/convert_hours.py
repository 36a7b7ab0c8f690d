"""Convert the hourly statistics that an earlier version's reports wrote to a Delta table. Needs no Spark."""

import os
from collections.abc import Mapping
from typing import Any

from .. import schemas
from ..tables import hours
from ..tables.delta import Table
from ..tables.lake import VERSION, Lake, LakeError
from .report import DOCUMENT, FORMAT

APPLICATION = "delaytasks-convert"  # id of the Delta transactions; the version is the position of the folder, from 1
FORMER = ("months", "files")  # members of the former document that the table replaces


def run(lake: Lake) -> int:
    """Convert the hours. Return the number of months; 0 if there is nothing to convert.

    Moves files and copies nothing. The new document is published last, so a killed conversion can be repeated.

    Raises LakeError before anything is changed if the document is damaged, or a file is missing or damaged.
    """
    document = lake.document(DOCUMENT, FORMAT)
    if not document or document.get("version", VERSION) >= FORMAT:
        return 0
    try:
        months, sizes = dict(document["months"]), dict(document["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error}.") from error
    _check(lake, sizes)
    folders: dict[str, list[str]] = {}
    for path in sorted(sizes):
        folders.setdefault(_run_of(path), []).append(path)
    table = Table(lake, hours.NAME, hours.MONTH).create(schemas.REPORTED_HOURS, added=schemas.ADDED_HOURS)
    for number, (folder, paths) in enumerate(sorted(folders.items()), 1):
        for path in paths:
            lake.move(path, _new_path(path))
        lake.sync(f"{hours.NAME}/{folder}")
        table = table.commit(folder, number, application=APPLICATION)
    lake.publish(DOCUMENT, {**_without_former(document), "version": FORMAT})
    return len(months)


def _without_former(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in FORMER}


def _run_of(path: str) -> str:
    """Return the run in a former path: report/<run>/hours/month=<month>/<file>."""
    return path.split("/")[1]


def _new_path(path: str) -> str:
    """Return a file's path in the Delta table from its former path. Both are relative to the lake's root."""
    month, file = path.split("/")[-2:]
    return f"{hours.NAME}/{_run_of(path)}/{month}/{file}"


def _check(lake: Lake, sizes: Mapping[str, int]) -> None:
    """Check that each file exists with its recorded size, at its former or new path. Raises LakeError.

    sizes   former path -> size in bytes
    """
    existing = dict(lake.parquet(os.path.dirname(hours.NAME)))
    for path, size in sizes.items():
        if size not in (existing.get(path), existing.get(_new_path(path))):
            raise LakeError(
                f"The hourly statistics are damaged: {lake.path(path)} is missing or has another size than was "
                "written. Restore it from a backup, then run this again; or remove report.json: the next report "
                "recomputes all hours."
            )
