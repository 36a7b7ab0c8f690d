"""Timeouts: the test kit."""

import math
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self

from django.conf import settings
from django.test import override_settings
from django.utils import timezone

from .. import conf, databases, handlers
from ..clock import from_ms, to_ms
from ..exceptions import BadInput, UnknownTopic
from ..jobs.handles import Handle
from ..jobs.inputs import check_name
from ..jobs.subjects import Instance, to_subject
from ..models import Job
from . import engine
from .clock import VirtualClock, check_freezegun, patched
from .engine import DueJob
from .exceptions import RedisInUse, TestKitError, TooManyRuns
from .runs import Run, Runs

MAX_RUNS = 10_000  # of one advance()
Topic = str | Handle[Any]
Before = Literal["handler", "commit"]


class Timeouts:
    """The test kit: a virtual clock, and the jobs that fall due on it.

    start       aware datetime, the first time of the clock; None: the real time
    mirror      True: use the Redis of DELAYTASKS["REDIS_URL"], with a prefix of its own; tests that use it must
                commit. False: no Redis
    using       str, a database alias; None: the router's database for writes
    reconciles  False: advance() and run_due() never call reconcile() by themselves. For long replays, because each
                call compares all rows of the models with declared timeouts

    It is a context manager; the pytest fixture `timeouts` and TimeoutsTestMixin enter it for a test. Inside,
    timezone.now(), Django's Now() and db_default=Now(), and the times of all jobs come from its clock, which
    stands still. Due jobs run one at a time, in the order of their due times, in the test's own transaction.

    Raises ClockConflict (freezegun is active), RedisInUse (mirror=True beside a live worker).
    """

    def __init__(
        self, *, start: datetime | None = None, mirror: bool = False, using: str | None = None, reconciles: bool = True
    ) -> None:
        self._start, self._mirror, self._given_using, self._reconciles = start, mirror, using, reconciles
        self._deaths: dict[str, deque[Before]] = {}
        self._reconciled_ms = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        check_freezegun()
        with ExitStack() as stack:
            self._using = databases.alias(self._given_using)
            stack.enter_context(self._redis())
            stack.enter_context(engine.declarations_applied())
            self._clock = VirtualClock(to_ms(self._start or timezone.now()))
            stack.enter_context(patched(self._clock))
            if self._start is not None:
                self._clock.set(to_ms(self._start))
            engine.start_mirror(self._using)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @contextmanager
    def _redis(self) -> Iterator[None]:
        """Switch the mirror off, or give it a prefix of its own."""
        given = getattr(settings, "DELAYTASKS", {})
        if not self._mirror:
            with override_settings(DELAYTASKS={**given, "REDIS_URL": None}):
                yield
            return
        if engine.check_redis(self._using):
            raise RedisInUse(
                f"A live worker uses the Redis of DELAYTASKS['REDIS_URL'] ({conf.get().prefix!r}): the test kit does "
                "not run beside it. Stop the worker, or give the tests a Redis of their own."
            )
        prefix = f"{conf.get().prefix}-test-{uuid.uuid4().hex[:12]}"
        with override_settings(DELAYTASKS={**given, "PREFIX": prefix, "AHEAD_MS": 0}):
            try:
                yield
            finally:
                engine.clear_mirror(self._using)

    # -- the clock ------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of the virtual clock, aware."""
        return self._clock.now()

    def advance(
        self, delta: timedelta | None = None, *, days: float = 0, hours: float = 0, minutes: float = 0,
        seconds: float = 0, milliseconds: float = 0,
    ) -> Runs:  # fmt: skip
        """Move the clock on, and run each job that falls due until then, at its due time. Return the runs.

        What a job schedules on the way runs too, if it falls due in that time. A job that is due at the new
        time itself runs. The result is false if no job ran.

        Raises BadInput (backwards), TooManyRuns (over 10,000 runs).
        """
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        step += delta or timedelta(0)
        if step < timedelta(0):
            raise BadInput(f"advance() was asked to go back by {-step}: time only moves on. travel_to() may go back.")
        return self._run_until(self._clock.now_ms() + -(-step // timedelta(milliseconds=1)))

    def advance_to(self, moment: datetime) -> Runs:
        """As advance(), to an aware datetime. A job that is due at that moment runs: it is before what comes next."""
        if to_ms(moment) < self._clock.now_ms():
            raise BadInput(f"advance_to({moment.isoformat()}) is before the clock's time, {self.now.isoformat()}.")
        return self._run_until(to_ms(moment))

    def run_due(self) -> Runs:
        """Run the jobs that are due now, and those they schedule for now. Never moves the clock. Return the runs."""
        return self._run_until(self._clock.now_ms())

    def travel_to(self, moment: datetime) -> None:
        """Set the clock, forwards or backwards, without running a job. Overdue jobs run at the next advance()."""
        self._clock.set(to_ms(moment))

    def reconcile(self) -> None:
        """Compare the rows of all declared timeouts with their jobs now, as workers do each RECONCILE_SECONDS.

        Makes, moves and cancels the jobs of rows that were written by update(), bulk_create() or raw SQL. advance() and
        run_due() do it each RECONCILE_SECONDS of the clock's time, unless reconciles=False.
        """
        with engine.running_callbacks():
            engine.reconcile_all(self._using)
        self._reconciled_ms = self._clock.now_ms()

    def _next_pass_ms(self) -> float:
        """Return when workers reconcile next, of what is written now; never: infinity."""
        if not self._reconciles:
            return math.inf
        interval_ms = conf.get().reconcile_seconds * 1000
        passes = -(-(self._clock.now_ms() - self._reconciled_ms) // interval_ms)
        return self._reconciled_ms + max(1, passes) * interval_ms

    def _run_until(self, until_ms: int) -> Runs:
        runs: list[Run] = []
        pass_ms = self._next_pass_ms()
        since_ms = abs(self._clock.now_ms() - self._reconciled_ms)
        if self._reconciles and since_ms >= conf.get().reconcile_seconds * 1000:
            self.reconcile()
            pass_ms = math.inf  # a pass changes nothing if nothing was written after the one before
        leases = engine.has_reserved(self._using)  # asked once: only a death reserves a job for longer than its run
        while True:
            due = engine.next_due(self._using, leases=leases)
            if pass_ms <= until_ms and (due is None or pass_ms < due.at_ms):
                self._clock.set(max(int(pass_ms), self._clock.now_ms()))
                self.reconcile()
                pass_ms = math.inf
                continue
            if due is None or due.at_ms > until_ms:
                break
            if len(runs) >= MAX_RUNS:
                raise _too_many(runs, due)
            self._clock.set(max(due.at_ms, self._clock.now_ms()))
            runs.append(self._run(due))
            engine.make_next_firing(self._using, runs[-1].key)
            leases = leases or runs[-1].outcome == "died"
            pass_ms = min(pass_ms, self._next_pass_ms())
        self._clock.set(max(until_ms, self._clock.now_ms()))
        return Runs(runs)

    def _run(self, due: DueJob) -> Run:
        if due.leased:
            with engine.running_callbacks():
                engine.take_back(self._using, due.id)
            return self._report(due.id, "")
        self._wait_for_mirror(due)
        with engine.running_callbacks():
            attempt = engine.claim(self._using, due)
            if attempt is None:
                raise TestKitError(f"Job {due.id} of {due.topic} is due, but another transaction has locked it.")
            deaths = self._deaths.get(due.topic)
            died = bool(deaths)
            if deaths:
                engine.die(self._using, attempt, deaths.popleft())
            else:
                engine.run(self._using, attempt)
        return self._report(due.id, "died" if died else "")

    def _report(self, job_id: int, known: str) -> Run:
        job = Job.objects.using(self._using).get(pk=job_id)
        outcome, error = (known, "") if known else engine.outcome(self._using, job_id, job.attempt)
        return Run(job.topic, job.key, outcome, self.now, error)

    def _wait_for_mirror(self, due: DueJob) -> None:
        """Move the clock on by ticks of the guard until the mirror offers the job, as after lose_mirror()."""
        for _ in range(engine.MAX_TICKS):
            if engine.offered(self._using, due):
                return
            self._clock.set(self._clock.now_ms() + conf.get().guard_tick_ms)
            engine.guard_once(self._using)
        raise TestKitError(f"The mirror does not offer job {due.id} of {due.topic}, which is due.")

    # -- assertions -----------------------------------------------------------------------------

    def assert_scheduled(
        self, topic: Topic, key: str | None = None, *, subject: Instance | None = None,
        within: timedelta | None = None, due_at: datetime | None = None, body: Any = None,
    ) -> Job:  # fmt: skip
        """Assert that a live job exists, and return its row.

        topic     str or a decorated handler
        key       str; None: any key, or that of the subject's jobs
        subject   a model instance: the subject of the job; None: any
        within    timedelta: it is due no later than this, from now
        due_at    aware datetime: exactly when it is due
        body      what its body is equal to; None: anything

        Raises AssertionError, which lists the live jobs of the topic.
        """
        name = _name(topic)
        jobs = list(self._live(name, key, subject).order_by("due_at", "id"))
        wanted = _describe(name, key, subject)
        if not jobs:
            raise AssertionError(f"No live job of {wanted}. {self._listed(name)}")
        fitting = [job for job in jobs if body is None or job.body == body]
        if not fitting:
            raise AssertionError(f"The body of {wanted} is {jobs[0].body!r}, not {body!r}.")
        job: Job = fitting[0]
        if within is not None and job.due_at > self.now + within:
            raise AssertionError(f"{wanted} is due at {job.due_at.isoformat()}, {job.due_at - self.now} from now.")
        if due_at is not None and job.due_at != due_at:
            raise AssertionError(f"{wanted} is due at {job.due_at.isoformat()}, not at {due_at.isoformat()}.")
        return job

    def assert_not_scheduled(self, topic: Topic, key: str | None = None, *, subject: Instance | None = None) -> None:
        """Assert that no live job exists; the arguments are those of assert_scheduled(). Raises AssertionError."""
        name = _name(topic)
        job = self._live(name, key, subject).first()
        if job is not None:
            wanted = _describe(name, key, subject)
            raise AssertionError(f"A live job of {wanted} exists: {job.key!r}, due at {job.due_at.isoformat()}.")

    def _live(self, topic: str, key: str | None, subject: Instance | None) -> Any:
        check_name(topic, "any" if key is None else key)
        if topic not in handlers.known():
            raise UnknownTopic(f"Topic {topic!r} is unknown here. Known are: {', '.join(handlers.known()) or 'none'}.")
        jobs = Job.objects.using(self._using).live().filter(topic=topic)
        if key is not None:
            jobs = jobs.filter(key=key)
        if subject is not None:
            label, pk = to_subject(subject)
            jobs = jobs.filter(subject_label=label, subject_pk=pk)
        return jobs

    def _listed(self, topic: str) -> str:
        rows = list(Job.objects.using(self._using).live().filter(topic=topic).order_by("due_at", "id")[:10])
        listed = ", ".join(f"{row.key} (due {row.due_at.isoformat()})" for row in rows)
        return f"Live jobs of {topic}: {listed or 'none'}."

    # -- faults ---------------------------------------------------------------------------------

    def die_in(self, topic: Topic, before: Before = "commit", *, times: int = 1) -> None:
        """Let the process die in the next run of the topic. Its outcome is "died".

        before   "handler": after the claim, before the handler is called. "commit": the handler runs, and
                 its transaction is rolled back; what it did outside of the database stays
        times    int: in how many runs, one after the other

        As after a real death, the job stays reserved until its TTR is over; then it is taken back (outcome
        "expired", or "dead" when its attempts are used up) and runs again.

        Raises UnknownTopic (no handler), BadInput.
        """
        name = _name(topic)
        if handlers.find(name) is None:
            raise UnknownTopic(f"die_in: topic {name!r} has no handler, so no job of it runs here.")
        if before not in ("handler", "commit"):
            raise BadInput(f"die_in: before is {before!r}; use 'handler' or 'commit'.")
        self._deaths.setdefault(name, deque()).extend([before] * times)

    def lose_mirror(self) -> None:
        """Let Redis lose all that it knows of jobs. They run nevertheless: as late as the guard finds them.

        Raises TestKitError without mirror=True.
        """
        if not self._mirror:
            raise TestKitError("lose_mirror() needs the mirror: @pytest.mark.timeouts(mirror=True).")
        engine.clear_mirror(self._using)


def _name(topic: Topic) -> str:
    return topic.topic if isinstance(topic, Handle) else topic


def _describe(topic: str, key: str | None, subject: Instance | None) -> str:
    about = "" if subject is None else " about {} {}".format(*to_subject(subject))
    return f"{topic}{'' if key is None else f' {key!r}'}{about}"


def _too_many(runs: list[Run], due: DueJob) -> TooManyRuns:
    topic, count = Counter(run.topic for run in runs).most_common(1)[0]
    return TooManyRuns(
        f"{len(runs):,} jobs ran in one advance, {count:,} of them of topic {topic!r}, and {due.topic!r} is due again "
        f"at {from_ms(due.at_ms).isoformat()}. Does a handler schedule its next job without a delay? Otherwise advance "
        "in smaller steps."
    )
