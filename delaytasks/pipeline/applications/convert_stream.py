"""Convert the stream that an earlier version wrote, as one folder for each part, to Delta tables. Needs no Spark."""

import os
from collections.abc import Mapping
from typing import Any

from ...clock import from_ms
from ..tables import row_counts, stream_tables
from ..tables.delta import APPLICATION as POSITION
from ..tables.delta import Table
from ..tables.lake import VERSION, Lake, LakeError
from ..tables.stream_tables import CONFIGURATION, DAY, DOCUMENT, EVENTS, FOLDER, FORMAT, MINUTES, SCHEMAS

APPLICATION = "delaytasks-convert"  # id of the Delta transactions; the version is the position of the part, from 1
KINDS = {EVENTS: "events", MINUTES: "minutes"}  # table -> its folder in a part


def run(lake: Lake) -> int:
    """Convert the stream. Return the number of parts; 0 if there is nothing to convert.

    Moves files and copies nothing. The new document is published last, so a killed conversion can be repeated.

    Raises LakeError before anything is changed if the document is damaged, or a file is missing or damaged.
    """
    document = lake.document(DOCUMENT, FORMAT)
    if not document or document.get("version", VERSION) >= FORMAT:
        return 0
    try:
        parts, to = [dict(each) for each in document.get("parts", ())], int(document.get("to", 0))
        days = {each["folder"]: f"{from_ms(each['published_ms']):%Y-%m-%d}" for each in parts}
        archived_run = int(document.get("archive", {}).get("run", -1))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LakeError(f"{lake.path(DOCUMENT)} is damaged: {error!r}.") from error
    for part in parts:
        _check(lake, part, days[part["folder"]])
    for name, schema in SCHEMAS.items():
        table = Table(lake, name, DAY).create(schema, CONFIGURATION)
        for number, (folder, day) in enumerate(days.items(), 1):
            table = _add(table, number, folder, day)
        table.commit("none", to, application=POSITION)
    stream_tables.publish(lake, archived_run)
    for folder in lake.runs(FOLDER):
        if folder not in SCHEMAS:
            lake.remove(folder)
    return len(parts)


def _new_path(path: str, table: str, day: str) -> str:
    """Return a file's path in the Delta table. path: its former path, stream/<part>/<kind>/<file>."""
    _, part, _, file = path.split("/")
    return f"{table}/{part}/{DAY}={day}/{file}"


def _check(lake: Lake, part: Mapping[str, Any], day: str) -> None:
    """Check that a part, moved or not, has all its events and a file of minutes. Raises LakeError."""
    counts = {}
    for table, kind in KINDS.items():
        new_folder = f"{table}/{os.path.basename(part['folder'])}/{DAY}={day}"
        paths = [path for name in (f"{part['folder']}/{kind}", new_folder) for path, _ in lake.parquet(name)]
        counts[kind] = row_counts.count(lake, paths) if paths else -1
    if counts["events"] != part["events"] or counts["minutes"] < 0:
        raise LakeError(
            f"{lake.path(part['folder'])} is damaged: it has {max(counts['events'], 0)} of {part['events']} events"
            f"{' and no minutes' if counts['minutes'] < 0 else ''}. The stream was not changed: "
            f"restore it from a backup. {stream_tables.RESTART}"
        )


def _add(table: Table, number: int, folder: str, day: str) -> Table:
    """Move the files of a part into a table and commit them. Return the table's new version."""
    lake, name = table.lake, os.path.basename(folder)
    for path, _ in lake.parquet(f"{folder}/{KINDS[table.name]}"):
        lake.move(path, _new_path(path, table.name, day))
    lake.sync(f"{table.name}/{name}")
    return table.commit(name, number, application=APPLICATION)
