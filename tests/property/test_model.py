"""Random operations, clock steps, crashes and Redis losses, compared with a small model of a job."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from delaytasks import cancel, mirror, reschedule, retry_dead, run_now, schedule
from delaytasks.clock import to_ms
from delaytasks.exceptions import KeyIsLive, LeaseLost, NotDead, NotLive, Reserved
from delaytasks.jobs.control import CancelResult
from delaytasks.maintenance import sweep
from delaytasks.models import Job, JobEvent
from delaytasks.states import MOVES, Outcome, State
from delaytasks.worker.claim import Candidates

TOPICS = {"a": "p", "b": "p", "c": "expires"}  # of each key
KEYS = tuple(TOPICS)
TTR_MS = 10_000
EXPIRES_MS = 20_000  # in the topic "expires"
MAX_ATTEMPTS = 3
keys = st.sampled_from(KEYS)
delays = st.sampled_from([0, 1, 5, 30, 7200])


def _states(word: str) -> list[State]:
    return [State.DELAYED, State.READY] if word == "delayed" else [State[word.upper()]]


class NextRun(NamedTuple):
    """The terms of the next run of a running job."""

    due_ms: int
    body: int


@dataclass
class Model:
    """The simplest model of a job. A job that is reserved in the mirror only is delayed."""

    state: str = "none"  # none, delayed, reserved (that is: claimed), finished, cancelled, dead
    due_ms: int = 0
    body: int = 0
    id: int = 0
    lease_ms: int = 0
    attempt: int = 0
    failures: int = 0
    fenceable: bool = False
    again: NextRun | None = None
    taken_back: bool = False  # the attempt before this one was

    @property
    def live(self) -> bool:
        return self.state in ("delayed", "reserved")

    def go(self, state: str) -> None:
        """Change the state; the table of moves must allow it. A stored "delayed" is delayed or ready."""
        befores, afters = (_states(self.state), _states(state))
        assert any(move.before in befores and move.after in afters for move in MOVES), (self.state, state)
        self.state = state

    def try_again(self, due_ms: int, now_ms: int, *, failed: bool, taken_back: bool = False) -> None:
        """End an attempt of a job that stays live: at the earlier of both times, with the newer body."""
        self.go("delayed")
        self.due_ms, self.failures, self.taken_back = due_ms, self.failures + failed, taken_back
        if self.again is not None:
            self.due_ms, self.failures = min(due_ms, max(self.again.due_ms, now_ms)), 0
            self.body, self.again = self.again.body, None


class Jobs(RuleBasedStateMachine):
    """Run each operation on the engine and on the model, which must agree on the answer and on the rows."""

    stage: Any
    clock: Any

    def __init__(self) -> None:
        super().__init__()
        with connection.cursor() as cursor:
            for table in ("delaytasks_job", "delaytasks_jobevent"):
                cursor.execute(f"{'TRUNCATE' if connection.vendor == 'postgresql' else 'DELETE FROM'} {table}")
        self.models = {key: Model() for key in KEYS}
        self.held: list[Any] = []
        self.reserved: list[Candidates] = []  # in the mirror
        self.number = 0
        if mirror.connect():
            self.lose_the_mirror()
            self.stage.guard()

    @initialize(claimed=st.sampled_from(["no", "taken", "reserved first"]))
    def begin(self, claimed):
        """Start with due jobs, which may be running: few random histories would come so far."""
        for key in KEYS:
            self.schedule(key=key, delay=0, mode="keep")
        if claimed == "taken":
            self.move_and_claim()
        for topic in sorted(set(TOPICS.values())) if claimed == "reserved first" else ():
            self.reserve_in_the_mirror(topic=topic, count=3)
            while self.reserved and (held := self.reserved[0].claim()) is not None:
                self._claimed(held, fenceable=True)
            self.reserved.clear()

    # -- callers

    @rule(key=keys, delay=delays, mode=st.sampled_from(["reject", "keep", "replace", "again"]))
    def schedule(self, key, delay, mode):
        model, due_ms = self.models[key], self.clock.now_ms + delay * 1000
        self.number += 1
        try:
            job = schedule(TOPICS[key], key=key, delay=delay, body=self.number, on_conflict=mode)
        except KeyIsLive:
            assert model.live
            assert mode == "reject"
        except Reserved:
            assert model.state == "reserved"
            assert mode == "replace"
        else:
            assert job.is_new == (not model.live)
            assert job.runs_again == (mode == "again" and model.state == "reserved")
            if not model.live:
                self.models[key] = Model("delayed", due_ms, self.number, job.id)
            elif job.runs_again:
                model.again = NextRun(due_ms, self.number)
            elif mode == "replace":
                model.due_ms, model.body, model.failures = due_ms, self.number, 0

    @rule(key=keys, fence=st.booleans())
    def cancel(self, key, fence):
        model = self.models[key]
        if fence and model.state == "reserved" and model.fenceable:
            assert cancel(TOPICS[key], key=key, running="fence") is CancelResult.CANCELLED
            model.go("cancelled")
            model.again = None
            return
        expected = {
            "none": CancelResult.UNKNOWN, "delayed": CancelResult.CANCELLED, "reserved": CancelResult.RUNNING,
            "finished": CancelResult.ALREADY_FINISHED, "dead": CancelResult.CANCELLED,
            "cancelled": CancelResult.CANCELLED,
        }  # fmt: skip
        assert cancel(TOPICS[key], key=key, running="fence" if fence else "leave") is expected[model.state]
        model.again = None
        if model.state in ("delayed", "dead"):
            model.go("cancelled")

    @rule(key=keys, delay=delays, now=st.booleans())
    def move(self, key, delay, now):
        model = self.models[key]
        try:
            if now:
                run_now(TOPICS[key], key)
            else:
                reschedule(TOPICS[key], key, delay=delay)
        except NotLive:
            assert not model.live
        except Reserved:
            assert model.state == "reserved"
        else:
            assert model.state == "delayed"
            later = 0 if now else delay * 1000
            model.due_ms = self.clock.now_ms + later if later else min(model.due_ms, self.clock.now_ms)

    @rule(key=keys)
    def retry(self, key):
        model = self.models[key]
        try:
            retry_dead(TOPICS[key], key)
        except (NotDead, KeyIsLive):
            assert model.state != "dead"
        else:
            assert model.state == "dead"
            model.go("delayed")
            model.due_ms, model.failures = self.clock.now_ms, 0

    # -- time, workers, faults

    @rule(ms=st.sampled_from([1, 999, 1_000, 5_000, 10_001, 3_600_000]))
    def time_passes(self, ms):
        self.clock.advance(ms=ms)

    @rule()
    def move_and_claim(self):
        """Claimed jobs are due, and were not claimed or had exceeded their TTR."""
        for topic in sorted(set(TOPICS.values())):
            for held in self.stage.take(topic):
                self._claimed(held, fenceable=False)

    @rule(topic=st.sampled_from(sorted(set(TOPICS.values()))), count=st.integers(1, 3))
    def reserve_in_the_mirror(self, topic, count):
        """A reservation changes no row, so the model does not change."""
        self.stage.mover.move_due()
        candidates = Candidates(mirror.choose("default"), topic, using="default", worker="w3")
        if candidates.reserve(count):
            self.reserved.append(candidates)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def claim_what_is_reserved(self, data):
        """Of the reserved jobs, one that is still due and free is claimed, or none if the reservation has ended."""
        candidates = self.reserved[data.draw(st.integers(0, len(self.reserved) - 1))]
        held = candidates.claim()
        if held is None:
            self.reserved.remove(candidates)
        else:
            self._claimed(held, fenceable=True)

    def _claimed(self, held: Any, *, fenceable: bool) -> None:
        self._end_by_engine(held.key)
        model = self.models[held.key]
        assert model.state == "delayed", "never claimed twice"
        assert model.due_ms <= self.clock.now_ms, "never early"
        assert not self._is_too_late(held.key), "never after it has expired"
        model.go("reserved")
        model.attempt += 1
        model.fenceable = fenceable
        assert (held.id, held.attempt) == (model.id, model.attempt), "the attempt grows by one"
        assert held.body == model.body
        model.lease_ms = self.clock.now_ms + TTR_MS
        self.held.append(held)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ending=st.sampled_from(["finish", "fail", "vanish"]))
    def end_an_attempt(self, data, ending):
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        model = self.models[held.key]
        holds_lease = (model.state, model.id, model.attempt) == ("reserved", held.id, held.attempt)
        if ending == "vanish":
            return
        try:
            self._complete(held, ending)
        except LeaseLost:
            assert not holds_lease
        else:
            assert holds_lease
            if ending == "finish":
                self._end(held.key, "finished")
            elif model.failures + 1 >= MAX_ATTEMPTS:
                model.failures += 1
                self._end(held.key, "dead")
            else:
                model.try_again(self.clock.now_ms + 1000, self.clock.now_ms, failed=True)

    def _end(self, key: str, state: str) -> None:
        """End the job. If it was scheduled again, its next run is live now."""
        model = self.models[key]
        model.go(state)
        if model.again is not None:
            due_ms = max(model.again.due_ms, self.clock.now_ms)
            self.models[key] = Model("delayed", due_ms, model.again.body, self._newest_id(key))
            assert self.models[key].id > model.id
            assert State(Job.objects.get(pk=model.id).state).word == state

    def _complete(self, held, ending):
        from delaytasks.worker.completion import Completion, complete

        if ending == "finish":
            complete("default", [Completion(held, Outcome.FINISHED)])
            return
        dead = self.models[held.key].failures + 1 >= MAX_ATTEMPTS
        outcome = Outcome.DEAD if dead else Outcome.FAILED
        complete("default", [Completion(held, outcome, None if dead else 1000, "Boom")])

    @rule()
    def sweep(self):
        sweep.sweep()
        for key in KEYS:
            self._end_by_engine(key)

    @rule()
    def lose_the_mirror(self):
        index = mirror.connect()
        if index is not None:
            for key in list(index._redis.client.scan_iter(f"*{index.settings.prefix}*")):
                index._redis.client.delete(key)

    @rule()
    def guard(self):
        self.stage.guard()

    # -- invariants

    def _newest_id(self, key: str) -> int:
        return Job.objects.filter(topic=TOPICS[key], key=key).latest("id").id

    def _end_by_engine(self, key: str) -> None:
        """Follow what the engine does by itself: it takes back expired leases, and skips jobs that are too late."""
        model = self.models[key]
        events = JobEvent.objects.filter(job_id=model.id)
        if model.state == "reserved" and model.lease_ms <= self.clock.now_ms:
            outcomes = [Outcome.EXPIRED, Outcome.DEAD]
            event = events.filter(attempt=model.attempt, outcome__in=outcomes).first()
            if event is not None and model.failures + 1 >= MAX_ATTEMPTS:
                model.failures += 1
                self._end(key, "dead")
            elif event is not None:
                due_ms = model.due_ms
                if model.taken_back and model.failures and model.again is None:
                    assert event.next_due_ms > event.done_ms, "the second time in a row, it waits"
                    due_ms = event.next_due_ms
                model.try_again(due_ms, self.clock.now_ms, failed=True, taken_back=True)
        model = self.models[key]
        skipped = JobEvent.objects.filter(job_id=model.id, attempt=model.attempt + 1, outcome=Outcome.SKIPPED)
        if model.state == "delayed" and skipped.exists():
            assert self._is_too_late(key), "skipped, but in time"
            model.go("reserved")
            model.attempt += 1
            model.go("cancelled")

    def _is_too_late(self, key: str) -> bool:
        return TOPICS[key] == "expires" and self.clock.now_ms > self.models[key].due_ms + EXPIRES_MS

    @invariant()
    def rows_and_model_agree(self):
        for key, model in self.models.items():
            self._end_by_engine(key)
            model = self.models[key]
            job = Job.objects.filter(topic=TOPICS[key], key=key).order_by("-id").first()
            if job is None:
                assert model.state == "none"
                continue
            assert State(job.state).word == model.state
            assert (job.attempt, job.failures) == (model.attempt, model.failures)
            assert (job.id, job.body) == (model.id, model.body)
            assert job.again == (model.again is not None)
            if model.state == "delayed":
                assert job.due_ms == model.due_ms
            if model.again is not None:
                assert (to_ms(job.again_due_at), job.again_body) == model.again

    @invariant()
    def the_mirror_is_never_late_and_holds_a_job_once(self):
        """An entry must not be later than its row; a missing one is found by the guard."""
        index = mirror.connect()
        live = list(Job.objects.live().filter(state=State.DELAYED))
        if index is None or not live:
            return
        for job, (due, ready) in zip(live, index.scores([(job.id, job.topic) for job in live]), strict=True):
            assert due is None or ready is None, "in two places"
            if due is not None:
                assert due <= max(job.due_ms, self.clock.now_ms + 5_000), "late"

    def teardown(self):
        """After a guard and enough time every live job is claimed: nothing is lost."""
        self.clock.advance(seconds=7_300)
        sweep.sweep()
        self.clock.advance(seconds=7_300)  # a job that was taken back twice in a row waits as its backoff says
        self.stage.guard()
        self.stage.guard()
        live = set(Job.objects.live().values_list("key", flat=True))
        claimed: set[str] = set()
        for _ in range(10):
            claimed |= {held.key for topic in set(TOPICS.values()) for held in self.stage.take(topic)}
            self.clock.advance(ms=200)
        ended = JobEvent.objects.filter(outcome__in=[Outcome.DEAD, Outcome.SKIPPED]).values_list("job__key", flat=True)
        assert live <= claimed | set(ended)


@pytest.fixture
def jobs(stage, db_clock) -> type[Jobs]:
    options = {"ttr": TTR_MS / 1000, "max_attempts": MAX_ATTEMPTS}
    stage.recorder("p", **options)
    stage.recorder("expires", expires=EXPIRES_MS / 1000, **options)
    Jobs.stage, Jobs.clock = stage, db_clock
    return Jobs


def test_random_histories_agree_with_a_small_model(jobs):
    run_state_machine_as_test(
        jobs,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
