"""Random stories about a few jobs, against a small model: one place at most, and never later than the row.

What makes an entry earlier arrives at once here; what makes it later or removes it arrives at any time, in any
order, or never. test_overtaking.py lets the verbs' own messages overtake each other.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delaytasks.places import GONE
from tests.lua.bench import GRACE, TOPIC, Bench, Settle
from tests.lua.conftest import fresh_bench

JOBS = st.integers(0, 2)
STEPS = st.integers(0, 9)
VERBS = st.one_of(
    st.tuples(st.just("move"), JOBS, STEPS),  # the row's due time is changed, or the job is made
    st.tuples(st.just("end"), JOBS),  # cancelled, finished, dead
    st.tuples(st.just("feed"), JOBS),  # a guard reads the row and adds it
    st.tuples(st.just("tell"), st.integers(0, 99)),  # one of the messages under way arrives
    st.tuples(st.just("lose"), st.integers(0, 99)),  # one never does
    st.tuples(st.just("promote"), st.integers(0, 4)),  # time goes on, and a mover passes
    st.tuples(st.just("reserve"), st.integers(1, 3)),  # a worker reserves and claims; what it found is under way
    st.tuples(st.just("flush")),  # Redis comes back empty and is filled again
)


class Model:
    """What the rows say, and which messages are under way to the mirror.

    No row comes back to a due time that it had: times are a hundred ms apart, more than all the marks of a story.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.bench.client.delete(bench.due_key, bench.keys.ready(0, TOPIC))
        self.rows: dict[int, int | None] = {}
        self.under_way: list[Settle] = []
        self.serial = count(1)
        self.step = 0

    def time(self, step: int) -> int:
        return (self.step + step) * 100_000 + next(self.serial) * 100

    def do(self, verb: str, *args: int) -> None:
        getattr(self, verb)(*args)

    def move(self, job: int, step: int) -> None:
        seen, new = self.rows.get(job), self.time(step)
        self.rows[job] = new
        if seen is not None and new > seen:
            self.under_way.append(Settle(job, seen, new))
        else:
            self.bench.add(job, new, mark=True)

    def end(self, job: int) -> None:
        seen = self.rows.get(job)
        if seen is not None:
            self.rows[job] = None
            self.under_way.append(Settle(job, seen, GONE))

    def feed(self, job: int) -> None:
        due = self.rows.get(job)
        if due is not None:
            self.bench.add(job, due)

    def tell(self, which: int) -> None:
        if self.under_way:
            self.bench.settle(*self.under_way.pop(which % len(self.under_way)))

    def lose(self, which: int) -> None:
        if self.under_way:
            self.under_way.pop(which % len(self.under_way))

    def promote(self, steps: int) -> None:
        self.step += steps
        self.bench.promote(self.time(0), batch=2)

    def reserve(self, batch: int) -> None:
        now = self.time(0)
        until = now + GRACE + next(self.serial) * 100
        for job in self.bench.reserve(batch, until):
            due = self.rows.get(job)
            if due is not None and due <= now:  # claimed: the row is due again when its lease ends
                self.rows[job] = due = self.time(3)
            self.under_way.append(Settle(job, until, GONE if due is None else due))

    def flush(self) -> None:
        self.bench.client.delete(self.bench.due_key, self.bench.keys.ready(0, TOPIC))
        for job in self.rows:
            self.feed(job)

    def check(self) -> None:
        for job, due in self.rows.items():
            places = self.bench.everywhere(job)
            assert len(places) <= 1, f"job {job} is in two places: {places}"
            if due is not None:
                assert places, f"job {job}, due at {due}, is nowhere"
                assert places[0].ms <= due, f"job {job}: {places[0]} is later than {due}"


@pytest.fixture(scope="module")
def one_bench(redis_server: Any) -> Iterator[Bench]:
    with fresh_bench(redis_server) as made:
        yield made


@settings(max_examples=250, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(story=st.lists(VERBS, min_size=5, max_size=40))
def test_a_job_is_in_one_place_at_most_and_never_later_than_its_row(one_bench: Bench, story: list) -> None:
    model = Model(one_bench)
    for verb, *args in story:
        model.do(verb, *args)
        model.check()
    while model.under_way:
        model.tell(0)
        model.check()
