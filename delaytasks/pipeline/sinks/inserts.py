"""Load a chunk into the job table: COPY it to a staging table, then INSERT its jobs from there.

The jobs and the chunk's row in the ledger are committed in one transaction. So a chunk is loaded exactly once, even if
the process is killed at any point. If a row's topic and key belong to a live job, the conflict mode decides, as in
schedule():

    reject    the row is refused; the run's rejects name the reason
    keep      the live job stays unchanged
    replace   the live job gets the new due time, body and TTR; refused if its handler is running
"""

import json
from collections.abc import Iterator
from typing import Any

from pyarrow import ArrowInvalid, RecordBatch, parquet

from ..sources.database import Database
from ..tables.lake import Lake, LakeError
from .jobs import STAGED, Chunk, ChunkResult, PostgreSQL, Run, SQLite, Stage, TransactionConflict

MODES = ("reject", "keep", "replace")
BATCH_ROWS = 500  # in memory at once, each with a body of up to MAX_BODY_BYTES
MAX_ATTEMPTS = 5  # another attempt is needed after a deadlock, or if a live job ends between two statements


def load_chunk(database: Database, lake: Lake, run: Run, chunk: Chunk) -> bool:
    """Load a chunk in one transaction. Return False if it was loaded before.

    Raises DatabaseUnavailable, NotAllowed, LakeError, and TransactionConflict after MAX_ATTEMPTS.
    """
    for attempt in range(MAX_ATTEMPTS):
        try:
            return _load_chunk(database, lake, run, chunk)
        except TransactionConflict:
            if attempt == MAX_ATTEMPTS - 1:
                raise
    return False


def _load_chunk(database: Database, lake: Lake, run: Run, chunk: Chunk) -> bool:
    with database.connect() as connection:
        stage = (SQLite if database.vendor == "sqlite" else PostgreSQL)(connection, run.by)
        if not stage.record_chunk(run, chunk):
            return False
        stage.fill(_batches(lake, chunk))
        result = load_staged(stage, run.mode, chunk.rows)
        _write_refused(lake, f"{run.folder}/rejects/live-{chunk.number:06}.json", result)
        stage.record_result(run, chunk, result)
    return True


def _batches(lake: Lake, chunk: Chunk) -> Iterator[RecordBatch]:
    path, rows = lake.path(chunk.path), 0
    try:
        with lake.files.open_input_file(path) as file:
            for batch in parquet.ParquetFile(file).iter_batches(BATCH_ROWS, columns=list(STAGED)):
                rows += batch.num_rows
                yield batch.select(list(STAGED))
    except (OSError, ArrowInvalid, KeyError) as error:
        raise LakeError(f"{path}, a chunk of this run, is missing, damaged or of another version: {error}.") from error
    if rows != chunk.rows:
        raise LakeError(f"{path}, a chunk of this run, has {rows} rows instead of {chunk.rows}.")


def _write_refused(lake: Lake, path: str, result: ChunkResult) -> None:
    """Write the refused rows to a file, before the commit. Replace or remove the file of an earlier, failed attempt."""
    if result.refused:
        lake.write(path, _to_json_lines(result.refused))
    elif lake.has(path):
        lake.files.delete_file(lake.path(path))


def load_staged(stage: "Stage", mode: str, rows: int) -> ChunkResult:
    """Move the staged rows into the job table. Rows that cannot be inserted are handled as the conflict mode says.

    rows   number of staged rows

    In every mode, rows left after MAX_ATTEMPTS rounds are refused: other transactions kept changing their keys.
    """
    result, unplaced = ChunkResult(), rows
    for _ in range(MAX_ATTEMPTS):
        inserted, low, high = stage.insert()
        if inserted:
            result.inserted += inserted
            result.low_id = min(low, result.low_id or low)
            result.high_id = max(high, result.high_id or high)
        unplaced -= inserted
        if unplaced and mode == "keep":
            kept = stage.skip_live()
            result.kept += kept
            unplaced -= kept
        elif unplaced:
            replaced = stage.replace() if mode == "replace" else []
            refused = list(stage.refuse(only_reserved=mode == "replace"))
            result.replaced_ids += replaced
            result.refused += refused
            unplaced -= len(replaced) + len(refused)
        if not unplaced:
            return result
    result.refused += stage.remaining()
    return result


def _to_json_lines(refused: list[tuple[Any, ...]]) -> bytes:
    names = ("file", "row", "topic", "key", "reason", "message")
    return b"".join(json.dumps(dict(zip(names, each, strict=True))).encode() + b"\n" for each in refused)
