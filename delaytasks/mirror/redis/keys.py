"""Names of the mirror's keys, and its members and scores.

A bucket's keys have the same hash tag and so share one slot of a Redis Cluster.

The number of buckets is part of the tag: if the setting changes, all keys are new, and the guard finds the mirror empty
and rebuilds it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...states import AGE_MS


@dataclass(frozen=True)
class Keys:
    prefix: str
    using: str  # the database's alias: two databases may have jobs with the same id
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

    def set_aside(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:set_aside"

    def counters(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:counters"

    def tick(self, bucket: int) -> str:
        return f"{self.tag(bucket)}:tick"

    def write_probe(self, bucket: int) -> str:
        """Return a key that never exists, and a channel without listeners."""
        return f"{self.tag(bucket)}:accepts_writes"

    def bucket_of(self, job_id: int) -> int:
        return job_id % self.buckets

    # Keys that concern all buckets have the hash tag of bucket 0.
    def slots(self, topic: str) -> str:
        return f"{self.tag(0)}:slots:{topic}"

    def waiting_runners(self, runner_group: str) -> str:
        return f"{self.tag(0)}:lingering:{runner_group}"

    def pending_message(self, topic: str) -> str:
        return f"{self.tag(0)}:bell:{topic}"

    @property
    def wake_prefix(self) -> str:
        return f"{self.tag(0)}:wake:"

    def lock(self, name: str) -> str:
        return f"{self.tag(0)}:alone:{name}"

    def mover_heartbeat(self, handlers_digest: str) -> str:
        """Return the key that exists while a mover thread with these handlers runs."""
        return f"{self.tag(0)}:moving:{handlers_digest}"

    @property
    def probe(self) -> str:
        return f"{self.tag(0)}:probe"

    @property
    def channel(self) -> str:
        """Channel that notifies this database's movers when the earliest due time moves to an earlier time."""
        return f"{self.prefix}:wake" if self.using == "default" else f"{self.prefix}:wake:{self.using}"

    @property
    def ready_channel(self) -> str:
        """Channel to the waiting consumers: a message is "count:topic" of jobs of this database that became ready."""
        return f"{self.prefix}:ready:{self.using}"


def member(job_id: int, topic: str) -> str:
    return f"{job_id}:{topic}"


def decode_score(score: float) -> tuple[int, int]:
    """Return the due time, in ms since 1970, and the priority of an entry's score, as score.lua does."""
    due_ms = math.ceil(score)
    priority = int((due_ms - score) * 64)
    if priority > 32:
        priority -= 32
        due_ms += priority * AGE_MS
    return due_ms, priority


def scores_in_order(entries: Sequence[str]) -> list[tuple[int, float]]:
    """Return (job id, score) for each of [member, score, member, score, ...], by score and then by id."""
    ids = (int(each.partition(":")[0]) for each in entries[::2])
    return [(job_id, score) for score, job_id in sorted(zip(map(float, entries[1::2]), ids, strict=True))]
