"""The state of the system at the end as plain data for the checker: rows, events, effects, mirror."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection

from delaytasks import clock, conf
from delaytasks.db import dialects
from delaytasks.mirror.redis import client
from delaytasks.mirror.redis.keys import Keys
from delaytasks.models import Job, JobEvent, Topic

from . import ledger
from .constants import FORWARDED


@dataclass
class Row:
    id: int
    topic: str
    key: str
    state: int
    due_ms: int
    attempt: int
    failures: int
    lease_ms: int | None
    ttr_ms: int


@dataclass
class Happened:
    """A row of JobEvent."""

    job: int
    outcome: str
    attempt: int
    due_ms: int
    reserved_ms: int | None
    done_ms: int
    next_due_ms: int | None
    worker: str = ""


@dataclass
class Effect:
    """A row that an attempt wrote in the transaction of its finish."""

    job: int
    attempt: int
    at_ms: int


@dataclass
class Place:
    """An entry of the mirror. The score is its time in `due`; for a ready entry, the time it had there."""

    job: int
    topic: str
    ready: bool
    score: int


@dataclass
class Hold:
    """A topic that is held at the end."""

    topic: str
    since_ms: int
    why: str


@dataclass
class Evidence:
    entries: list[ledger.Entry] = field(default_factory=list)  # "at" by the ledger's clock, which is never set
    rows: list[Row] = field(default_factory=list)
    events: list[Happened] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    places: list[Place] | None = None  # None: there is no mirror
    holds: list[Hold] = field(default_factory=list)
    now_ms: int = 0  # the database's clock at the collection
    at: int = 0  # the same moment by the ledger's clock
    jumps: Sequence[tuple[int, int]] = ()  # (at, by) in ns: when the database's clock jumped, and how far
    horizon_ms: int = 3_600_000  # jobs due later need not be in the mirror

    def jumped(self, at: int) -> int:
        """Return a time of the ledger as if its clock had jumped with the database's. Not for orders of events."""
        return at + sum(by for jump_at, by in self.jumps if at >= jump_at)

    def earliest_jumped(self, since: int, until: int) -> int:
        """Return the earliest time that the database's clock may have shown between two times of the ledger."""
        return min(map(self.jumped, [since, *(at for at, _ in self.jumps if since <= at <= until)]))


def collect(directory: Path, jumps: Sequence[tuple[int, int]] = ()) -> Evidence:
    """Read the ledger in `directory`, the default database and the mirror. `jumps` as in Evidence."""
    return Evidence(
        entries=ledger.read(directory),
        rows=_rows(),
        events=_events(),
        effects=_effects(),
        places=_places(),
        holds=_holds(),
        now_ms=int(dialects.now_ms("default")),
        at=ledger.now_ns(),
        jumps=jumps,
        horizon_ms=conf.get().horizon_ms,
    )


def _rows() -> list[Row]:
    names = ("id", "topic", "key", "state", "due_at", "attempt", "failures", "lease_until", "ttr_ms")
    rows = Job.objects.filter(topic__startswith="torture.").order_by("id").values_list(*names)
    return [
        Row(id, topic, key, state, clock.to_ms(due), attempt, failures, _ms(lease), ttr_ms)
        for id, topic, key, state, due, attempt, failures, lease, ttr_ms in rows.iterator(chunk_size=10_000)
    ]


def _ms(at: Any) -> int | None:
    return None if at is None else clock.to_ms(at)


def _events() -> list[Happened]:
    names = ("job_id", "outcome", "attempt", "due_ms", "reserved_ms", "done_ms", "next_due_ms", "worker")
    rows = JobEvent.objects.filter(job__topic__startswith="torture.").order_by("id").values_list(*names)
    return [Happened(*row) for row in rows.iterator(chunk_size=10_000)]


def _effects() -> list[Effect]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT job_id, attempt, at_ms FROM torture_effect ORDER BY id")
        return [Effect(*row) for row in cursor.fetchall()]


def _holds() -> list[Hold]:
    rows = Topic.objects.filter(name__startswith=FORWARDED, held_since__isnull=False)
    return [Hold(row.name, clock.to_ms(row.held_since), row.held_why) for row in rows if row.held_since]


def _places() -> list[Place] | None:
    """Read the sorted sets directly, with a client of its own."""
    settings = conf.get()
    if not settings.redis_url:
        return None
    keys = Keys(settings.prefix, "default", settings.buckets)
    with contextlib.closing(client.make(settings)) as redis:
        return [place for bucket in range(keys.buckets) for place in _bucket(redis, keys, bucket)]


def _bucket(redis: Any, keys: Keys, bucket: int) -> Iterator[Place]:
    yield from _members(redis, keys.due(bucket), ready=False)
    for topic in redis.smembers(keys.topics(bucket)):
        yield from _members(redis, keys.ready(bucket, topic), ready=True)


def _members(redis: Any, key: str, *, ready: bool) -> Iterator[Place]:
    for member, score in redis.zscan_iter(key, count=1000):
        job, _, topic = member.partition(":")
        yield Place(int(job), topic, ready, int(score))
