"""Read an archived job and its events, without Spark. Only files that may contain them are read."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyarrow import parquet
from pyspark.sql.types import StructType

from .. import schemas
from . import archives
from .archives import Archive
from .data_files import DeltaFile
from .lake import Lake


class ArchivedHistory(NamedTuple):
    """An archived job with its events.

    job      the job's row when it was archived, with `body` as Python data and aware datetimes
    events   oldest first
    """

    job: dict[str, Any]
    events: list[dict[str, Any]]


def by_id(lake: Lake, job_id: int) -> ArchivedHistory | None:
    """Return an archived job with its events, or None if the job is not archived. Raises LakeError."""
    archive = archives.load(lake)
    for job in _read_rows(lake, archive.jobs.select("id", job_id, job_id), schemas.JOBS, [("id", "=", job_id)]):
        return _history(archive, job)
    return None


def by_key(lake: Lake, topic: str, key: str, since: str = "") -> ArchivedHistory | None:
    """Return the archived job with this topic and key that ended last, or None if there is none. Raises LakeError.

    since   day in ISO 8601 (UTC): only jobs that ended on this day or later; "": all jobs
    """
    archive, first = archives.load(lake), datetime.fromisoformat(since).replace(tzinfo=UTC) if since else None
    files = [each for each in archive.jobs.in_partition(topic)
             if each.may_contain("key", key, key) and each.may_contain("ended_at", first)]  # fmt: skip
    jobs = _read_rows(lake, files, schemas.JOBS, [("key", "=", key)])
    found = [job for job in jobs if first is None or job["ended_at"] >= first]
    return _history(archive, max(found, key=lambda job: (job["ended_at"], job["id"]))) if found else None


def _history(archive: Archive, job: dict[str, Any]) -> ArchivedHistory:
    files = [each for each in archive.events.select("job_id", job["id"], job["id"]) if each.partition == job["topic"]]
    rows = _read_rows(archive.lake, files, schemas.EVENTS, [("job_id", "=", job["id"])])
    events = sorted(rows, key=lambda each: each["id"])
    for event in events:
        del event["topic"]
    return ArchivedHistory({**job, "body": json.loads(job["body"])}, events)


def _read_rows(
    lake: Lake, files: Iterable[DeltaFile], schema: StructType, filters: list[tuple[str, str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the topic and the columns of the schema, without those that a newer version may have added."""
    for each in files:
        with lake.reading(each.path, each.partition) as name:
            matches = parquet.read_table(name, filesystem=lake.files, filters=filters, partitioning=None)
        for row in matches.to_pylist():
            values = {name: _aware(value) for name, value in row.items() if name in schema.names}
            yield {**values, "topic": each.partition}


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
