"""Whether what lies in the lake is what was read: counts and a checksum for each topic and day."""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from . import manifest, schemas
from .lake import Lake

WHERE = (StructField("topic", StringType(), False), schemas.ARCHIVED_AT)
EVENTS = [*schemas.EVENTS.names, *(field.name for field in WHERE)]
NAMED = 5  # partitions that a message names


class Differs(Exception):
    """What was written is not what was read."""


class Digest(NamedTuple):
    jobs: int
    events: int
    digest: str
    first_id: int
    last_id: int


Digests = dict[tuple[str, str], Digest]  # by topic and day


def digests(jobs: DataFrame, events: DataFrame) -> Digests:
    """Needs schemas.ARCHIVED_JOBS, and EVENTS of the same jobs; both with topic and ended_on."""
    by = [field.name for field in WHERE]
    ids = (F.min("id").alias("first_id"), F.max("id").alias("last_id"))
    found = jobs.groupBy(*by).agg(F.count("*").alias("jobs"), checksum(jobs).alias("jobs_sum"), *ids)
    told = events.groupBy(*by).agg(F.count("*").alias("events"), checksum(events).alias("events_sum"))
    rows = found.join(told, by, "full").collect()
    return {
        (row.topic, str(row.ended_on)): Digest(
            row.jobs or 0, row.events or 0, f"{row.jobs_sum or 0}/{row.events_sum or 0}", row.first_id or 0,
            row.last_id or 0,
        )
        for row in rows
    }  # fmt: skip


def checksum(frame: DataFrame) -> Column:
    """A sum over the rows that does not depend on their order; xxhash64 passes nulls by, so they are told it apart."""
    names = sorted(frame.columns)
    hashed = F.xxhash64(*names, *(F.col(name).isNull() for name in names))
    return F.sum(hashed.cast("decimal(20, 0)")).cast("decimal(38, 0)")


def written(spark: SparkSession, lake: Lake, folder: str) -> tuple[DataFrame, DataFrame]:
    """The jobs and events of a run, as they lie there. Raises LakeError if that is not what its list names."""
    manifest.check(lake, folder)
    jobs = StructType([*schemas.ARCHIVED_JOBS, schemas.ARCHIVED_AT])
    events = StructType([*schemas.EVENTS, *WHERE])
    return (
        spark.read.schema(jobs).parquet(lake.uri(f"{folder}/jobs")),
        spark.read.schema(events).parquet(lake.uri(f"{folder}/events")),
    )


def compare(expected: Digests, found: Digests) -> None:
    """Raises Differs, which names partitions."""
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if wrong:
        told = "; ".join(f"{topic} of {day}: {_told(expected, found, (topic, day))}" for topic, day in wrong[:NAMED])
        raise Differs(
            f"{len(wrong)} partitions are not as they were read ({told}). Nothing was published and nothing "
            "pruned: run it again, and look at the disk if it stays so."
        )


def _told(expected: Digests, found: Digests, name: tuple[str, str]) -> str:
    read, lies = (each.get(name, Digest(0, 0, "", 0, 0)) for each in (expected, found))
    counts = f"{lies.jobs} jobs and {lies.events} events instead of {read.jobs} and {read.events}"
    return "other contents" if (read.jobs, read.events) == (lies.jobs, lies.events) else counts
