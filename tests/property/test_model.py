"""Random verbs, clock steps, crashes and Redis losses, against a small model of what a job is."""

from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from delaytasks import cancel, mirror, reschedule, retry_dead, run_now, schedule, sweeper
from delaytasks.changing import CancelResult
from delaytasks.exceptions import KeyIsLive, LeaseLost, NotDead, NotLive, Reserved
from delaytasks.models import Job, JobEvent
from delaytasks.states import Outcome, State, allowed

KEYS = ("a", "b", "c")
TTR_MS = 10_000
MOST = 3  # max_attempts
keys = st.sampled_from(KEYS)
delays = st.sampled_from([0, 1, 5, 30, 7200])


def _shown_as(word: str) -> list[State]:
    return [State.DELAYED, State.READY] if word == "delayed" else [State[word.upper()]]


@dataclass
class Model:
    """A job as simple as it can be."""

    state: str = "none"  # none, delayed, reserved, finished, cancelled, dead
    due_ms: int = 0
    lease_ms: int = 0
    attempt: int = 0
    failures: int = 0

    @property
    def live(self) -> bool:
        return self.state in ("delayed", "reserved")

    def go(self, state: str) -> None:
        """Only by a move of the one table. A stored "delayed" is delayed or ready."""
        befores, afters = (_shown_as(self.state), _shown_as(state))
        assert any(allowed(before, after) for before in befores for after in afters), (self.state, state)
        self.state = state


class Jobs(RuleBasedStateMachine):
    """Every verb against the engine and the model; they must agree on the answer and on the rows."""

    stage: Any
    clock: Any

    def __init__(self) -> None:
        super().__init__()
        with connection.cursor() as cursor:
            for table in ("delaytasks_job", "delaytasks_jobevent"):
                cursor.execute(f"{'TRUNCATE' if connection.vendor == 'postgresql' else 'DELETE FROM'} {table}")
        self.models = {key: Model() for key in KEYS}
        self.held: list[Any] = []
        if mirror.connect():
            self.lose_the_mirror()
            self.stage.guard()

    # -- callers

    @rule(key=keys, delay=delays, mode=st.sampled_from(["reject", "keep", "replace"]))
    def schedule(self, key, delay, mode):
        model, due_ms = self.models[key], self.clock.now_ms + delay * 1000
        try:
            schedule("p", key=key, delay=delay, on_conflict=mode)
        except KeyIsLive:
            assert model.live
            assert mode == "reject"
        except Reserved:
            assert model.state == "reserved"
            assert mode == "replace"
        else:
            if not model.live:
                self.models[key] = Model("delayed", due_ms)
            elif mode == "replace":
                model.due_ms, model.failures = due_ms, 0

    @rule(key=keys)
    def cancel(self, key):
        model = self.models[key]
        expected = {
            "none": CancelResult.UNKNOWN, "delayed": CancelResult.CANCELLED, "reserved": CancelResult.RUNNING,
            "finished": CancelResult.ALREADY_FINISHED, "dead": CancelResult.ALREADY_FINISHED,
            "cancelled": CancelResult.CANCELLED,
        }  # fmt: skip
        assert cancel("p", key=key) is expected[model.state]
        if model.state == "delayed":
            model.go("cancelled")

    @rule(key=keys, delay=delays, now=st.booleans())
    def move(self, key, delay, now):
        model = self.models[key]
        try:
            if now:
                run_now("p", key)
            else:
                reschedule("p", key, delay=delay)
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
            retry_dead("p", key)
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
    def move_and_reserve(self):
        """What is taken is due, and was free or had outlived its TTR."""
        for held in self.stage.take("p"):
            self._expire_if_over(held.key)
            model = self.models[held.key]
            assert model.state == "delayed", "never two at once"
            assert model.due_ms <= self.clock.now_ms, "never early"
            model.go("reserved")
            model.attempt += 1
            assert held.attempt == model.attempt, "the fence grows by one"
            model.lease_ms = self.clock.now_ms + TTR_MS
            self.held.append(held)

    @rule(data=st.data(), how=st.sampled_from(["finish", "fail", "vanish"]))
    def end_an_attempt(self, data, how):
        if not self.held:
            return
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        model = self.models[held.key]
        mine = (model.state, model.attempt) == ("reserved", held.attempt) and self._id(held.key) == held.id
        if how == "vanish":
            return
        try:
            self._end(held, how)
        except LeaseLost:
            assert not mine
        else:
            assert mine
            if how == "finish":
                model.go("finished")
            else:
                model.failures += 1
                model.go("dead" if model.failures >= MOST else "delayed")
                model.due_ms = self.clock.now_ms + 1000

    def _end(self, held, how):
        from delaytasks.endings import Verdict, conclude

        if how == "finish":
            conclude("default", [Verdict(held, Outcome.FINISHED)])
            return
        dead = self.models[held.key].failures + 1 >= MOST
        outcome = Outcome.DEAD if dead else Outcome.FAILED
        conclude("default", [Verdict(held, outcome, None if dead else 1000, "Boom")])

    @rule()
    def sweep(self):
        sweeper.sweep()
        for key in KEYS:
            self._expire_if_over(key)

    @rule()
    def lose_the_mirror(self):
        found = mirror.connect()
        if found is not None:
            for key in list(found._line.client.scan_iter(f"*{found.settings.prefix}*")):
                found._line.client.delete(key)

    @rule()
    def guard(self):
        self.stage.guard()

    # -- what is always true

    def _id(self, key: str) -> int | None:
        return Job.objects.filter(topic="p", key=key).order_by("-id").values_list("id", flat=True).first()

    def _expire_if_over(self, key: str) -> None:
        model = self.models[key]
        job = Job.objects.filter(topic="p", key=key).order_by("-id").first()
        if job is None or model.state != "reserved" or model.lease_ms > self.clock.now_ms:
            return
        taken_back = JobEvent.objects.filter(
            job=job, attempt=model.attempt, outcome__in=[Outcome.EXPIRED, Outcome.DEAD]
        ).exists()
        if taken_back:
            model.failures += 1
            model.go("dead" if model.failures >= MOST else "delayed")

    @invariant()
    def rows_and_model_agree(self):
        for key, model in self.models.items():
            self._expire_if_over(key)
            job = Job.objects.filter(topic="p", key=key).order_by("-id").first()
            if job is None:
                assert model.state == "none"
                continue
            assert State(job.state).word == model.state
            assert (job.attempt, job.failures) == (model.attempt, model.failures)
            if model.state == "delayed":
                assert job.due_ms == model.due_ms

    @invariant()
    def the_mirror_is_never_late_and_holds_a_job_once(self):
        """An entry later than its row would break a promise; a missing one is the guard's to find."""
        found = mirror.connect()
        live = list(Job.objects.live().filter(state=State.DELAYED))
        if found is None or not live:
            return
        for job, (due, ready) in zip(live, found.scores([(job.id, job.topic) for job in live]), strict=True):
            assert due is None or ready is None, "in two places"
            if due is not None:
                assert due <= max(job.due_ms, self.clock.now_ms + 5_000), "late"

    def teardown(self):
        """Whatever happened: after a guard and enough time every live job is taken. Nothing is lost."""
        self.clock.advance(seconds=7_300)
        sweeper.sweep()
        self.stage.guard()
        self.stage.guard()
        live = set(Job.objects.live().values_list("key", flat=True))
        taken: set[str] = set()
        for _ in range(10):
            taken |= {held.key for held in self.stage.take("p")}
            self.clock.advance(ms=200)
        dead = set(Job.objects.filter(state=State.DEAD).values_list("key", flat=True))
        assert live <= taken | dead


@pytest.fixture
def jobs(stage, db_clock) -> type[Jobs]:
    stage.recorder("p", ttr=TTR_MS / 1000, max_attempts=MOST)
    Jobs.stage, Jobs.clock = stage, db_clock
    return Jobs


def test_any_history_of_verbs_time_crashes_and_losses_agrees_with_a_small_model(jobs):
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
