"""Every key of the mirror is spelled here. A bucket is a hash tag, so it is one slot of a Redis Cluster.

The number of buckets is part of the tag: with another number all keys are new, the guard
finds them empty and rebuilds them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    prefix: str
    using: str  # the database's alias: ids of two databases must not meet
    buckets: int

    def tag(self, bucket: int) -> str:
        return f"{self.prefix}:{{{self.prefix}:{self.using}:{self.buckets}:{bucket}}}"

    def due(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:due"

    def ready_prefix(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:ready:"

    def ready(self, bucket: int, topic: str) -> str:
        return self.ready_prefix(bucket) + topic

    def topics(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:topics"

    def aside(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:set_aside"

    def counters(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:counters"

    def tick(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:tick"

    def bucket_of(self, job_id: int) -> int:
        return job_id % self.buckets

    # What belongs to a topic as a whole lives in bucket 0.
    def slots(self, topic: str) -> str:
        return f"{self.tag(0)}:slots:{topic}"

    def lingering(self, crew: str) -> str:
        return f"{self.tag(0)}:lingering:{crew}"

    def bell(self, topic: str) -> str:
        return f"{self.tag(0)}:bell:{topic}"

    @property
    def wake_prefix(self) -> str:
        return f"{self.tag(0)}:wake:"

    def alone(self, what: str) -> str:
        """The lock that lets only one process at a time do `what`."""
        return f"{self.tag(0)}:alone:{what}"

    def moving(self, handlers: str) -> str:
        """There as long as a mover's thread looks that knows these handlers."""
        return f"{self.tag(0)}:moving:{handlers}"

    @property
    def probe(self) -> str:
        return f"{self.tag(0)}:probe"

    @property
    def channel(self) -> str:
        """Where movers hear that the head became earlier."""
        return f"{self.prefix}:wake"

    @property
    def ready_channel(self) -> str:
        """Where waiting consumers hear "count:topic" of what became ready in this database."""
        return f"{self.prefix}:ready:{self.using}"


def member(job_id: int, topic: str) -> str:
    return f"{job_id}:{topic}"


def job_id_of(entry: str) -> int:
    return int(entry.partition(":")[0])
