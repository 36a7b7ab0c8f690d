"""Random sequences of operations on a few jobs, checked against a model: one entry at most, never later than the row.

The mirror writes of callers and workers arrive at any time and in any order. A write may be lost if that only leaves
an entry early. While a write that makes an entry earlier is pending, the entry may be late.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delaytasks.mirror.base import GONE
from tests.mirror.lua.bucket import GRACE, TOPIC, Bucket
from tests.mirror.lua.conftest import fresh_bucket

JOBS = st.sampled_from([0, 0, 0, 1])  # mostly one job, so that it sees many operations
PRIORITIES = [9, 0]
STEPS = st.integers(0, 3)
ANY = st.integers(0, 9)
VERBS = {
    "make": [JOBS, STEPS],
    "move": [JOBS, STEPS],
    "cancel": [JOBS],
    "promote": [STEPS],  # time passes, and a mover promotes
    "reserve": [st.integers(1, 2)],  # a worker reserves and claims
    "release": [JOBS, STEPS],  # snoozed, failed, expired or released
    "die_and_be_retried": [JOBS],
    "deliver": [ANY],  # a pending write arrives
    "lose": [ANY],  # a pending write is lost
    "flush": [],  # Redis comes back empty and is rebuilt
}
FREQUENT = ["make", "move", "promote", "reserve", "deliver"]  # or few sequences get far
SEQUENCES = st.lists(
    st.sampled_from([*VERBS, *FREQUENT * 3]).flatmap(lambda verb: st.tuples(st.just(verb), *VERBS[verb])),
    min_size=20,
    max_size=60,
)


class Row(NamedTuple):
    at: int  # ms: when it is due, or when its lease ends
    held: bool


class Write(NamedTuple):
    job: int
    seen: int | None  # None: add with a mark; otherwise settle
    new: int

    @property
    def makes_earlier(self) -> bool:
        return self.seen is None or 0 <= self.new < self.seen


class Model:
    """The rows, and the pending writes to the mirror.

    All times differ by at least 100 ms, which is more than all marks of a sequence together.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.empty()
        self.rows: dict[int, Row | None] = {}
        self.pending: list[Write] = []
        self.serial = count(1)
        self.step = 0

    def empty(self) -> None:
        self.bucket.client.delete(self.bucket.due_key, self.bucket.keys.ready(0, TOPIC))

    def time(self, step: int = 0) -> int:
        return (self.step + step) * 100_000 + next(self.serial) * 100

    def do(self, verb: str, *args: int) -> None:
        getattr(self, verb)(*args)

    def make(self, job: int, step: int) -> None:
        if job not in self.rows:
            self.place(job, self.time(step))

    def move(self, job: int, step: int) -> None:
        row, new = self.rows.get(job), self.time(step)
        if row and not row.held:
            if new < row.at:
                self.place(job, new)
            else:
                self.rows[job] = Row(new, held=False)  # no write: the entry is early

    def place(self, job: int, at: int) -> None:
        self.rows[job] = Row(at, held=False)
        self.pending.append(Write(job, None, at))

    def cancel(self, job: int) -> None:
        row = self.rows.get(job)
        if row and not row.held:
            self.rows[job] = None
            self.pending.append(Write(job, row.at, GONE))

    def promote(self, steps: int) -> None:
        self.step += steps
        self.bucket.promote(self.time(), batch=2)

    def reserve(self, batch: int) -> None:
        now = self.time()
        until = now + GRACE + next(self.serial) * 100
        for job in self.bucket.reserve(batch, until):
            row = self.rows.get(job)
            if row and row.at <= now:
                self.rows[job] = row = Row(self.time(3), held=True)
                self.bucket.settle(job, until, row.at)  # written before the handler begins
            else:
                self.pending.append(Write(job, until, row.at if row else GONE))

    def release(self, job: int, step: int) -> None:
        row = self.rows.get(job)
        if row and row.held:
            self.rows[job] = Row(self.time(step), held=False)
            self.pending.append(Write(job, row.at, self.rows[job].at))

    def die_and_be_retried(self, job: int) -> None:
        row = self.rows.get(job)
        if row and row.held:
            self.pending.append(Write(job, row.at, GONE))
            self.place(job, self.time())

    def deliver(self, index: int) -> None:
        if self.pending:
            job, seen, new = self.pending.pop(index % len(self.pending))
            if seen is None:
                self.bucket.add(job, new, priority=PRIORITIES[job], mark=True)
            else:
                self.bucket.settle(job, seen, new)

    def lose(self, index: int) -> None:
        harmless = [write for write in self.pending if not write.makes_earlier]
        if harmless:
            self.pending.remove(harmless[index % len(harmless)])

    def flush(self) -> None:
        self.empty()
        for job, row in self.rows.items():
            if row:
                self.bucket.add(job, row.at, priority=PRIORITIES[job])

    def check(self) -> None:
        waiting = {write.job for write in self.pending if write.makes_earlier}
        for job, row in self.rows.items():
            entries = self.bucket.everywhere(job)
            assert len(entries) <= 1, f"job {job} has two entries: {entries}"
            assert all(entry.priority == PRIORITIES[job] for entry in entries), f"job {job}: {entries}"
            if row and job not in waiting:
                assert entries, f"job {job}: {row} has no entry"
                in_time = entries[0].zset == "ready" or entries[0].ms <= row.at
                assert in_time, f"job {job}: {entries[0]} is later than {row}"


@pytest.fixture(scope="module")
def shared_bucket(redis_server: Any) -> Iterator[Bucket]:
    with fresh_bucket(redis_server) as bucket:
        yield bucket


@settings(max_examples=250, deadline=None, database=None)
@given(sequence=SEQUENCES)
def test_a_job_has_one_entry_at_most_and_it_is_never_later_than_the_row(shared_bucket: Bucket, sequence: list) -> None:
    model = Model(shared_bucket)
    for verb, *args in sequence:
        model.do(verb, *args)
        model.check()
    while model.pending:
        model.deliver(0)
        model.check()
