"""A job's whole story from the archive: read with pyarrow alone, from as few files as the manifest allows."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

from pyarrow import parquet

from . import manifest
from .lake import Lake
from .manifest import Partition, Run


class Story(NamedTuple):
    """job     its row when it was archived; `body` as Python data, instants aware
    events   oldest first
    """

    job: dict[str, Any]
    events: list[dict[str, Any]]


def by_id(lake: Lake, job_id: int) -> Story | None:
    """The story of a job that was archived; None if it was not. Raises LakeError."""
    for run in reversed(manifest.runs(lake)):
        if not run.may_have(job_id):
            continue
        for partition in manifest.partitions(lake, run):
            if partition.first_id <= job_id <= partition.last_id:
                for job in _rows(lake, partition, partition.job_files, [("id", "=", job_id)]):
                    return _story(lake, partition, job)
    return None


def by_key(lake: Lake, topic: str, key: str, since: str = "") -> Story | None:
    """The story of the job that had this topic and key and ended last. Raises LakeError.

    since   a day (UTC, as ISO 8601 has it): none that ended before
    """
    for _, partitions in groupby(_of_topic(lake, topic, since), key=lambda pair: pair[1].ended_on):
        found = [
            (job["ended_at"], job["id"], partition, job)
            for run, partition in partitions
            for job in _rows(lake, partition, partition.job_files, [("key", "=", key)])
            if job["id"] not in run.withdrawn
        ]
        if found:
            _, _, partition, job = max(found, key=lambda each: each[:2])
            return _story(lake, partition, job)
    return None


def _of_topic(lake: Lake, topic: str, since: str) -> list[tuple[Run, Partition]]:
    """The topic's partitions, the newest day first."""
    found = [(run, each) for run in manifest.runs(lake) for each in manifest.partitions(lake, run)]
    found = [pair for pair in found if pair[1].topic == topic and pair[1].ended_on >= since]
    return sorted(found, key=lambda pair: pair[1].ended_on, reverse=True)


def _story(lake: Lake, partition: Partition, job: dict[str, Any]) -> Story:
    found = _rows(lake, partition, partition.event_files, [("job_id", "=", job["id"])])
    events = sorted(found, key=lambda each: each["id"])
    del job["last_event_id"]
    return Story({**job, "topic": partition.topic, "body": json.loads(job["body"])}, events)


def _rows(
    lake: Lake, partition: Partition, files: Iterable[str], filters: list[tuple[str, str, Any]]
) -> Iterator[dict[str, Any]]:
    for path in files:
        with lake.reading(path, str(partition)) as name:
            found = parquet.read_table(name, filesystem=lake.files, filters=filters, partitioning=None)
        for row in found.to_pylist():
            yield {name: _aware(value) for name, value in row.items()}


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
