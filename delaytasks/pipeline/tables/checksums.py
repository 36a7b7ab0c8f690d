"""Counts and checksums per topic, to compare the files in the lake with the rows that were read."""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SHOWN = 5  # maximum number of topics named in a message


class Differs(Exception):
    """The written files differ from the rows that were read."""


class Digest(NamedTuple):
    """A topic's number of jobs and events, and their checksums.

    digest   checksum of the jobs, "/", checksum of the events
    days     number of UTC days on which the jobs ended
    """

    jobs: int
    events: int
    digest: str
    days: int


Digests = dict[str, Digest]  # by topic


def digests(jobs: DataFrame, events: DataFrame) -> Digests:
    """Return the digest of each topic. Both frames need `topic`, and `jobs` needs `ended_at`."""
    days = F.count_distinct(F.to_date("ended_at")).alias("days")
    job_sums = jobs.groupBy("topic").agg(F.count("*").alias("jobs"), checksum(jobs).alias("jobs_sum"), days)
    event_sums = events.groupBy("topic").agg(F.count("*").alias("events"), checksum(events).alias("events_sum"))
    rows = job_sums.join(event_sums, "topic", "full").collect()
    return {
        row.topic: Digest(row.jobs or 0, row.events or 0, f"{row.jobs_sum or 0}/{row.events_sum or 0}", row.days or 0)
        for row in rows
    }


def checksum(frame: DataFrame) -> Column:
    """Return the sum of the hashes of all rows, which does not depend on their order.

    Each hash includes which columns are null, because xxhash64 skips null values.
    """
    names = sorted(frame.columns)
    hashed = F.xxhash64(*names, *(F.col(name).isNull() for name in names))
    return F.sum(hashed.cast("decimal(20, 0)")).cast("decimal(38, 0)")


def compare(expected: Digests, found: Digests) -> None:
    """Check that both have the same topics and digests. Raises Differs, which names the first topics that differ."""
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if wrong:
        details = "; ".join(f"{name}: {_difference(expected, found, name)}" for name in wrong[:SHOWN])
        raise Differs(
            f"The files of {len(wrong)} topics differ from the rows that were read ({details}). These files were not "
            "published. Run this again; if it happens again, check the disk."
        )


def _difference(expected: Digests, found: Digests, name: str) -> str:
    read, written = (each.get(name, Digest(0, 0, "", 0)) for each in (expected, found))
    counts = f"{written.jobs} jobs and {written.events} events instead of {read.jobs} and {read.events}"
    return "other contents" if (read.jobs, read.events) == (written.jobs, written.events) else counts
