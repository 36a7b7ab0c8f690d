"""Puts a chunk into the job table: staged by COPY, then one guarded INSERT; a row of the ledger in the same commit.

So a chunk is loaded once, whoever is killed when: its row of the ledger is there, or nothing of it is. What a live
(topic, key) means is said by the conflict mode, as it is to schedule():

    reject    the row is refused, with its reason among the run's rejects
    keep      the live job stays as it is
    replace   it takes the new due time, body and TTR; one whose handler is running is refused
"""

import json
from collections.abc import Iterator
from typing import Any

from pyarrow import ArrowInvalid, RecordBatch, parquet

from .database import Database
from .lake import Lake, LakeError
from .stages import STAGED, Chunk, Overtaken, Placed, PostgreSQL, Run, SQLite, Stage

MODES = ("reject", "keep", "replace")
ROWS = 500  # in memory at once, of a chunk: each may have a body of MAX_BODY_BYTES
RACES = 5  # a live job that ends between our statements makes us look again


def place(database: Database, lake: Lake, run: Run, chunk: Chunk) -> bool:
    """Whether it was done now; False: the ledger has it already. Raises DatabaseAway, NotAllowed, LakeError."""
    for attempt in range(RACES):
        try:
            return _place(database, lake, run, chunk)
        except Overtaken:
            if attempt == RACES - 1:
                raise
    return False


def _place(database: Database, lake: Lake, run: Run, chunk: Chunk) -> bool:
    with database.connect() as connection:
        stage = (SQLite if database.vendor == "sqlite" else PostgreSQL)(connection, run.by)
        if not stage.claims(run, chunk):
            return False
        stage.fill(_batches(lake, chunk))
        placed = placed_of(stage, run.mode, chunk.rows)
        _write_refused(lake, f"{run.folder}/rejects/live-{chunk.number:06}.json", placed)
        stage.note(run, chunk, placed)
    return True


def _batches(lake: Lake, chunk: Chunk) -> Iterator[RecordBatch]:
    path = lake.path(chunk.path)
    try:
        with lake.files.open_input_file(path) as file:
            for batch in parquet.ParquetFile(file).iter_batches(ROWS, columns=list(STAGED)):
                yield batch.select(list(STAGED))
    except (OSError, ArrowInvalid, KeyError) as error:
        raise LakeError(f"{path}, a chunk of this run, is gone, damaged or of another version: {error}.") from error


def _write_refused(lake: Lake, path: str, placed: Placed) -> None:
    """Before the commit, so that no row is refused unsaid. What a try before said, and did not commit, goes."""
    if placed.refused:
        lake.write(path, _as_lines(placed.refused))
    elif lake.has(path):
        lake.files.delete_file(lake.path(path))


def placed_of(stage: "Stage", mode: str, rows: int) -> Placed:
    """Place what is staged."""
    placed, left = Placed(), rows
    for _ in range(RACES):
        inserted, low, high = stage.insert()
        if inserted:
            placed.inserted += inserted
            placed.low_id = min(low, placed.low_id or low)
            placed.high_id = max(high, placed.high_id or high)
        left -= inserted
        if left and mode == "keep":
            kept = stage.drop_live()
            placed.kept += kept
            left -= kept
        elif left:
            replaced = stage.replace() if mode == "replace" else []
            refused = list(stage.refuse(only_reserved=mode == "replace"))
            placed.replaced_ids += replaced
            placed.refused += refused
            left -= len(replaced) + len(refused)
        if not left:
            return placed
    placed.refused += stage.rest()
    return placed


def _as_lines(refused: list[tuple[Any, ...]]) -> bytes:
    names = ("file", "row", "topic", "key", "reason", "message")
    return b"".join(json.dumps(dict(zip(names, each, strict=True))).encode() + b"\n" for each in refused)
