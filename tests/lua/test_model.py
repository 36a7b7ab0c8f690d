"""Random stories about a few jobs, against a small model: one place at most, and never later than the row.

The messages of callers and workers arrive at any time and in any order, or never where that only leaves
an entry early. While one is under way that makes an entry earlier, the entry may be late: that is its way.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delaytasks.places import GONE
from tests.lua.bench import GRACE, TOPIC, Bench
from tests.lua.conftest import fresh_bench

JOBS = st.sampled_from([0, 0, 0, 1])  # mostly one job, so that something happens to it
STEPS = st.integers(0, 3)
ANY = st.integers(0, 9)
VERBS = {
    "make": [JOBS, STEPS],
    "move": [JOBS, STEPS],
    "cancel": [JOBS],
    "promote": [STEPS],  # time goes on, and a mover passes
    "reserve": [st.integers(1, 2)],  # a worker reserves and claims
    "give_back": [JOBS, STEPS],  # snoozed, failed, expired or released
    "die_and_be_retried": [JOBS],
    "tell": [ANY],  # one of the messages under way arrives
    "lose": [ANY],  # one never does
    "flush": [],  # Redis comes back empty and is filled again
}
OFTEN = ["make", "move", "promote", "reserve", "tell"]  # else few stories get anywhere
STORIES = st.lists(
    st.sampled_from([*VERBS, *OFTEN * 3]).flatmap(lambda verb: st.tuples(st.just(verb), *VERBS[verb])),
    min_size=20,
    max_size=60,
)


class Row(NamedTuple):
    at: int  # ms: when it is due, or when the lease of its holder ends
    held: bool


class Message(NamedTuple):
    job: int
    seen: int | None  # None: added, with a mark; else settled
    new: int

    @property
    def makes_earlier(self) -> bool:
        return self.seen is None or 0 <= self.new < self.seen


class Model:
    """What the rows say, and which messages are under way to the mirror.

    No time comes twice: times are a hundred ms apart, more than all the marks of a story.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.empty()
        self.rows: dict[int, Row | None] = {}
        self.under_way: list[Message] = []
        self.serial = count(1)
        self.step = 0

    def empty(self) -> None:
        self.bench.client.delete(self.bench.due_key, self.bench.keys.ready(0, TOPIC))

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
                self.rows[job] = Row(new, held=False)  # nobody is told: the entry is early

    def place(self, job: int, at: int) -> None:
        self.rows[job] = Row(at, held=False)
        self.under_way.append(Message(job, None, at))

    def cancel(self, job: int) -> None:
        row = self.rows.get(job)
        if row and not row.held:
            self.rows[job] = None
            self.under_way.append(Message(job, row.at, GONE))

    def promote(self, steps: int) -> None:
        self.step += steps
        self.bench.promote(self.time(), batch=2)

    def reserve(self, batch: int) -> None:
        now = self.time()
        until = now + GRACE + next(self.serial) * 100
        for job in self.bench.reserve(batch, until):
            row = self.rows.get(job)
            if row and row.at <= now:
                self.rows[job] = row = Row(self.time(3), held=True)
                self.bench.settle(job, until, row.at)  # before its handler begins
            else:
                self.under_way.append(Message(job, until, row.at if row else GONE))

    def give_back(self, job: int, step: int) -> None:
        row = self.rows.get(job)
        if row and row.held:
            self.rows[job] = Row(self.time(step), held=False)
            self.under_way.append(Message(job, row.at, self.rows[job].at))

    def die_and_be_retried(self, job: int) -> None:
        row = self.rows.get(job)
        if row and row.held:
            self.under_way.append(Message(job, row.at, GONE))
            self.place(job, self.time())

    def tell(self, which: int) -> None:
        if self.under_way:
            job, seen, new = self.under_way.pop(which % len(self.under_way))
            if seen is None:
                self.bench.add(job, new, mark=True)
            else:
                self.bench.settle(job, seen, new)

    def lose(self, which: int) -> None:
        harmless = [message for message in self.under_way if not message.makes_earlier]
        if harmless:
            self.under_way.remove(harmless[which % len(harmless)])

    def flush(self) -> None:
        self.empty()
        for job, row in self.rows.items():
            if row:
                self.bench.add(job, row.at)

    def check(self) -> None:
        waiting = {message.job for message in self.under_way if message.makes_earlier}
        for job, row in self.rows.items():
            places = self.bench.everywhere(job)
            assert len(places) <= 1, f"job {job} is in two places: {places}"
            if row and job not in waiting:
                assert places, f"job {job}: {row} is nowhere"
                in_time = places[0].place == "ready" or places[0].ms <= row.at
                assert in_time, f"job {job}: {places[0]} is later than {row}"


@pytest.fixture(scope="module")
def one_bench(redis_server: Any) -> Iterator[Bench]:
    with fresh_bench(redis_server) as made:
        yield made


@settings(max_examples=250, deadline=None, database=None)
@given(story=STORIES)
def test_a_job_is_in_one_place_at_most_and_never_later_than_its_row(one_bench: Bench, story: list) -> None:
    model = Model(one_bench)
    for verb, *args in story:
        model.do(verb, *args)
        model.check()
    while model.under_way:
        model.tell(0)
        model.check()
