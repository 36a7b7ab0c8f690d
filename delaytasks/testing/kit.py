"""Timeouts: the test kit."""

import math
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self

from django.utils import timezone

from .. import conf, databases, handlers, topics
from ..clock import from_ms, to_ms
from ..exceptions import BadInput, UnknownTopic, short_repr
from ..jobs.handles import Handle
from ..jobs.inputs import check_name
from ..jobs.series import is_firing
from ..jobs.subjects import Instance, to_subject
from ..models import Job
from ..timeouts import applied_declarations, reconcile
from ..validators import check_aware
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

    start       aware datetime at which the clock starts; None: the real time
    mirror      True: use the Redis of DELAYTASKS["REDIS_URL"], with a prefix of its own; tests that use it must
                commit. False: no Redis
    using       str, a database alias; None: the router's database for writes
    reconciles  False: advance() and run_due() never call reconcile(), and rows that exist already get no jobs. For long
                replays, because each call compares all rows of the models with declared timeouts

    It is a context manager; the pytest fixture `timeouts` and TimeoutsTestMixin enter it for a test. Inside,
    timezone.now(), Django's Now() and db_default=Now(), and the times of all jobs come from its clock, which
    stands still. Due jobs run one at a time, in the order of their due times, in the test's own transaction.

    Raises ClockConflict (freezegun is active), RedisInUse (mirror=True beside a live worker), NaiveDatetime.
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
            stack.enter_context(engine.no_jitter())
            stack.enter_context(applied_declarations.automatically())
            stack.enter_context(engine.calendars_read_again())
            self._clock = VirtualClock(to_ms(check_aware(self._start or timezone.now())))
            stack.enter_context(patched(self._clock))
            if self._start is not None:
                self._clock.set(to_ms(self._start))
            engine.start_mirror(self._using)
            if self._reconciles:
                with engine.running_callbacks():
                    engine.make_declared(self._using)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @contextmanager
    def _redis(self) -> Iterator[None]:
        """Switch the mirror off, or give it a prefix of its own."""
        if not self._mirror:
            with conf.overridden(REDIS_URL=None):
                yield
            return
        if engine.check_redis(self._using):
            raise RedisInUse(
                f"A live worker uses the Redis of DELAYTASKS['REDIS_URL'] ({conf.get().prefix!r}), which the test kit "
                "does not share with it. Stop the worker, or give the tests a Redis of their own."
            )
        prefix = f"{conf.get().prefix}-test-{uuid.uuid4().hex[:12]}"
        with conf.overridden(PREFIX=prefix, AHEAD_MS=0):
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
        """Move the clock forward, and run each job that falls due by the new time, at its due time. Return the runs.

        Jobs that these jobs schedule run too, if they fall due by then. A job that is due exactly at the new time
        runs. The result is false in a boolean context if no job ran.

        Raises BadInput for a negative time and for a number, TooManyRuns after 10,000 runs.
        """
        if not isinstance(delta, timedelta | None):
            raise BadInput(f"advance() was called with {short_repr(delta)}: give a timedelta, or minutes=30.")
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        step += delta or timedelta(0)
        if step < timedelta(0):
            raise BadInput(f"advance() was called with {step}: it only moves forward. To go back, use travel_to().")
        return self._run_until(self._clock.now_ms() + -(-step // timedelta(milliseconds=1)))

    def advance_to(self, moment: datetime) -> Runs:
        """Like advance(), but to this aware datetime. A job that is due exactly then runs.

        Raises NaiveDatetime, and as advance() does.
        """
        until_ms = to_ms(check_aware(moment))
        if until_ms < self._clock.now_ms():
            raise BadInput(f"advance_to({moment.isoformat()}) is before the clock's time, {self.now.isoformat()}.")
        return self._run_until(until_ms)

    def run_due(self) -> Runs:
        """Run the jobs that are due now, and those that they schedule for now, at the clock's time. Return the runs."""
        return self._run_until(self._clock.now_ms())

    def travel_to(self, moment: datetime) -> None:
        """Set the clock, forwards or backwards, without running a job. Overdue jobs run at the next advance().

        Raises NaiveDatetime.
        """
        self._clock.set(to_ms(check_aware(moment)))

    def reconcile(self) -> None:
        """Compare the rows of all declared timeouts with their jobs now, as workers do every RECONCILE_SECONDS.

        Makes, moves and cancels the jobs of rows that were written by update(), bulk_create() or raw SQL. advance() and
        run_due() call it every RECONCILE_SECONDS of the clock's time, unless reconciles=False.
        """
        with engine.running_callbacks():
            reconcile.reconcile(self._using)
        self._reconciled_ms = self._clock.now_ms()

    def _next_pass_ms(self) -> float:
        """Return when the next reconciliation is due, in ms since 1970; infinity if there is none."""
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
            pass_ms = math.inf  # until a job runs: without writes, another pass would change nothing
        leases = engine.has_reserved(self._using)  # queried once: later only a simulated death leaves one
        firing_ms = engine.next_firing_ms(self._using)
        while True:
            due = engine.next_due(self._using, leases=leases)
            if firing_ms <= min(until_ms, pass_ms) and (due is None or firing_ms < due.at_ms):
                self._clock.set(max(int(firing_ms), self._clock.now_ms()))
                firing_ms = self._make_firings()
                continue
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
            if is_firing(runs[-1].key):  # perhaps of a schedule that a job has begun
                firing_ms = engine.next_firing_ms(self._using)
            leases = leases or runs[-1].outcome == "died"
            pass_ms = min(pass_ms, self._next_pass_ms())
        self._clock.set(max(until_ms, self._clock.now_ms()))
        return Runs(runs)

    def _make_firings(self) -> float:
        """Make the next jobs of schedules. Return when the next ones must be made; infinity if that is not possible."""
        engine.make_firings(self._using)
        next_ms = engine.next_firing_ms(self._using)
        return next_ms if next_ms > self._clock.now_ms() else math.inf

    def _run(self, due: DueJob) -> Run:
        if due.leased:
            with engine.running_callbacks():
                engine.take_back(self._using, due.id)
            return self._report(due.id, "")
        self._wait_for_mirror(due)
        with engine.running_callbacks():
            attempt = engine.claim(self._using, due)
            if attempt is None:
                if not Job.objects.using(self._using).live().filter(pk=due.id).exists():
                    return self._report(due.id, "")  # ended because it must not run: it has expired, for example
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
        """Move the clock forward by ticks of the guard until the mirror has the job: needed after lose_mirror()."""
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
        key       str; None: any key
        subject   a model instance, the expected subject of the job; None: any
        within    timedelta: the job must be due at most this long from now
        due_at    aware datetime: the job must be due exactly then, to the millisecond
        body      the expected body; None: any

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
        if due_at is not None:
            at_time = [each for each in fitting if each.due_ms == to_ms(check_aware(due_at))]
            if not at_time:
                raise AssertionError(f"{wanted} is due at {job.due_at.isoformat()}, not at {due_at.isoformat()}.")
            job = at_time[0]
        if within is not None and job.due_at > self.now + within:
            raise AssertionError(f"{wanted} is due at {job.due_at.isoformat()}, {job.due_at - self.now} from now.")
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
        known = topics.known(self._using)
        if topic not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UnknownTopic(f"Topic {topic!r} is unknown in this process. Known topics: {listed}.")
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
        """Simulate the death of the process in the next run of the topic. The outcome of that run is "died".

        before   "handler": it dies after the claim, before the handler is called. "commit": the handler runs, and its
                 transaction is rolled back; effects outside of the database stay
        times    int, the number of successive runs in which it dies

        As after a real death, the job stays reserved until its TTR is over. Then it is taken back (outcome "expired",
        or "dead" if it has no attempts left) and runs again.

        Raises UnknownTopic (no handler), BadInput.
        """
        name = _name(topic)
        if handlers.find(name) is None:
            raise UnknownTopic(f"die_in: topic {name!r} has no handler, so no job of it runs here.")
        if before not in ("handler", "commit"):
            raise BadInput(f"die_in: before is {before!r}; use 'handler' or 'commit'.")
        self._deaths.setdefault(name, deque()).extend([before] * times)

    def lose_mirror(self) -> None:
        """Empty the mirror in Redis. Jobs still run, but late: after the guard has found them.

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
        f"at {from_ms(due.at_ms).isoformat()}. Check whether a handler schedules its next job without a delay. "
        "Otherwise advance in smaller steps."
    )
