"""Declared timeouts, schedules and ordinary jobs, while the primary is killed and the standby promoted."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from delaytasks.models import Job, Schedule
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.recurrence.wall_times import parse_label

from .. import declared_load, ledger, trial
from ..checker import Violation
from ..constants import TICK
from ..environment import DURABLE, Arena, arena
from ..faketime import sweep_up
from ..faults import Fault
from ..installations import pooler
from ..standby import ReplicatedServer

SETTINGS = "tests.torture.failover.settings"
AWAY_SECONDS = 3.0  # from the death of the primary to the promotion
LAG_SECONDS = 1.0  # of the asynchronous standby
START_SECONDS = 20  # from the scheduling of the orders' timeouts until the first is due
SCHEDULES = 20  # each with a run every second
MENDED_SECONDS = 75.0  # a job whose end was committed without an answer stays in the mirror until its TTR is over
# Broken promises that no lost commit excuses.
NEVER = {"effect twice", "stuck", "drift"}


@dataclass(frozen=True)
class Case:
    """How the standby follows the primary, how far its clock is ahead, and how the processes find the new primary.

    pooled   they reach it through a PgBouncer, whose configuration is changed; otherwise libpq tries both addresses
    """

    synchronous: bool = True
    ahead_seconds: int = 0
    pooled: bool = False


CASES = {
    "synchronous": Case(),
    "ahead": Case(ahead_seconds=20),
    "behind": Case(ahead_seconds=-20),
    "asynchronous": Case(synchronous=False),
    "pooled": Case(pooled=True),
}


@dataclass
class Result:
    """Figures and problems of a case."""

    facts: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"{name:42} {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, *(f"BROKEN  {each}" for each in self.broken)])


@contextlib.contextmanager
def installation(directory: Path, case: Case) -> Iterator[Arena]:
    server = ReplicatedServer(synchronous=case.synchronous, ahead_seconds=case.ahead_seconds, **DURABLE)
    try:
        with arena(directory, postgres=server, settings=SETTINGS) as there, contextlib.ExitStack() as stack:
            if case.pooled:
                stack.enter_context(pooler(there))
            yield there
    finally:
        sweep_up()


class Failover:
    """The fault. It starts schedules, pays orders all the time, and kills the primary in the middle.

    began, killed, promoted   by the ledger's clock: when the standby received its last bytes, when the primary died,
                              and when the standby had become the primary
    paid                      number of the order -> when its payment was answered
    """

    def __init__(self, case: Case, seconds: float, orders: int) -> None:
        self.case, self.seconds, self.orders = case, seconds, orders
        self.began = self.killed = self.promoted = self.killed_ms = 0
        self.paid: dict[int, int] = {}

    def inflict(self, there: Arena) -> None:
        self._start_schedules()
        killer = threading.Thread(target=self._kill, args=(there,))
        killer.start()
        began = time.monotonic()
        turns = declared_load.payments(self.orders, self.seconds, random.Random(0))
        for turn, numbers in enumerate(turns):
            there.hold(max(0.0, began + turn - time.monotonic()))
            self._pay(there, numbers)
        killer.join()

    def _start_schedules(self) -> None:
        """Create schedules that end by themselves after `seconds`."""
        for n in range(SCHEDULES):
            period = {"period": 1, "repeat": round(self.seconds)}
            schedules.create(Definition(f"tick.{n}", TICK, missed="all", running="allow", **period))

    def _pay(self, there: Arena, numbers: Sequence[int]) -> None:
        from tests.timeouts.app.models import Order

        while numbers:
            try:
                Order.objects.filter(pk__in=numbers, state="open").update(state="paid")
                break
            except (DatabaseError, InterfaceError):
                connection.close()
                there.hold(0.2)
        self.paid |= dict.fromkeys(numbers, ledger.now_ns())

    def _kill(self, there: Arena) -> None:
        server = there.postgres
        assert isinstance(server, ReplicatedServer)
        there.hold(self.seconds / 3)
        self.began = ledger.now_ns()
        if self.case.synchronous:
            server.kill_primary()
        else:
            with server.lagging():
                there.hold(LAG_SECONDS)
        self.killed, self.killed_ms = ledger.now_ns(), time.time_ns() // 1_000_000
        there.hold(AWAY_SECONDS)
        server.promote()
        if self.case.pooled:
            there.pooler.point_at(server.standby)
        self.promoted = ledger.now_ns()
        there.jumps.append((self.killed, self.case.ahead_seconds * 1_000_000_000))


def run(there: Arena, case: Case, *, orders: int = 3_000, seconds: float = 30, workers: int = 2) -> Result:
    """Play a case with so many orders, a tenth of them due within `seconds`, and check. `there` has no workers yet."""
    result, failover = Result(), Failover(case, seconds, orders)
    start = timezone.now() + timedelta(seconds=START_SECONDS)
    declared_load.fill(orders, start, seconds)
    there.manage("delaytasks", "timeouts", "triggers", "install")
    there.manage("delaytasks", "timeouts", "apply", "--overdue", "run")
    there.populate(workers=workers)
    there.hold(max(0.0, (start - timezone.now()).total_seconds() - trial.WARM_SECONDS))
    fault = Fault("failover", "postgres", failover.inflict, frozenset({"postgres"}), (), "", ("postgres",), False)
    verdict = trial.run(there, [fault], seed=1, mended_seconds=MENDED_SECONDS)
    there.until_quiet(declared_load._unsettled, seconds=trial.QUIET_SECONDS)
    there.until_quiet(_schedules_left, seconds=trial.QUIET_SECONDS)
    if verdict.trouble:
        result.broken.append(verdict.trouble)
    _judge_jobs(there, result, failover, verdict)
    _judge_orders(result, failover)
    _judge_schedules(result, round(seconds) + 1)
    connection.close()
    return result


def _judge_jobs(there: Arena, result: Result, failover: Failover, verdict: trial.Verdict) -> None:
    entries = ledger.read(there.ledger)
    result.facts["without a primary"] = f"{(failover.promoted - failover.killed) / 1e9:.1f} s"
    result.facts["jobs scheduled; handlers begun"] = f"{verdict.jobs}; {verdict.begun}"
    result.facts["calls without an answer"] = verdict.broken
    result.facts["late"] = ", ".join(f"{name} {ms} ms" for name, ms in verdict.late_ms.items())
    result.facts["first handler after the promotion"] = _first_begin(entries, failover)
    excused = [] if failover.case.synchronous else [v for v in verdict.violations if v.kind not in NEVER]
    touched = _touched(entries, failover.began, failover.killed)
    excused = [v for v in excused if v.job in touched or (v.topic, v.key) in touched]
    if failover.case.ahead_seconds < 0:  # an attempt over the jump ended before it began, so it seems to hold nothing
        excused += [v for v in verdict.violations if v.why.endswith("but no attempt held it at that time")]
    for violation in verdict.violations:
        if violation not in excused:
            result.broken.append(f"{violation.kind}: {violation.topic} {violation.key}: {violation.why}")
    if not failover.case.synchronous:
        answered = sum(e["kind"] == "answers" and failover.began <= e["at"] <= failover.killed for e in entries)
        result.facts["answers of the lost tail"] = answered
        for what, count in Counter(map(_what_was_lost, excused)).most_common():
            result.facts[f"lost: {what}"] = count


def _first_begin(entries: Sequence[ledger.Entry], failover: Failover) -> str:
    times = [e["at"] for e in entries if e["kind"] == "begins" and e["at"] > failover.promoted]
    return f"{(min(times) - failover.promoted) / 1e9:.1f} s" if times else "none"


def _touched(entries: Sequence[ledger.Entry], since: int, until: int) -> set[Any]:
    """Return the jobs, and the topics with keys, of which something was answered or done in that time."""
    asks = {e["n"]: e for e in entries if e["kind"] == "asks"}
    found: set[Any] = set()
    for entry in entries:
        if since <= entry["at"] <= until:
            ask = asks.get(entry.get("n"), entry)
            found |= {entry.get("job"), (ask.get("topic"), ask.get("key"))} - {None, (None, None)}
    return found


def _what_was_lost(violation: Violation) -> str:
    return f"{violation.kind}: {''.join(c for c in violation.why if not c.isdigit())}"


def _early_orders(failover: Failover) -> list[int]:
    """Return the orders that were closed before they were due, by the clock of the primary of that moment."""
    rows = declared_load._rows(
        """SELECT id, floor(extract(epoch FROM due_at) * 1000)::bigint, split_part(note, ' ', 1)::bigint FROM orders
           WHERE state = 'closed'"""
    )
    ahead_ms = failover.case.ahead_seconds * 1000
    return [pk for pk, due_ms, at_ms in rows if at_ms + (ahead_ms if at_ms >= failover.killed_ms else 0) < due_ms]


def _judge_orders(result: Result, failover: Failover) -> None:
    found = {what: [row[0] for row in declared_load._rows(sql)] for what, sql in declared_load.WRONG.items()}
    for what, wrong in (found | {declared_load.EARLY: _early_orders(failover)}).items():
        if wrong:
            result.broken.append(f"{len(wrong)} orders: {what}, such as {wrong[:3]}")
    states = dict(declared_load._rows("SELECT id, state FROM orders"))
    counts = Counter(states.values())
    result.facts["orders closed; paid; open"] = "; ".join(str(counts[name]) for name in ("closed", "paid", "open"))
    undone = [number for number in failover.paid if states[number] == "open"]
    excused = [number for number in undone if failover.began <= failover.paid[number] <= failover.killed]
    if failover.case.synchronous:
        excused = []
    else:
        result.facts["lost: payments"] = len(excused)
    if lost := sorted(set(undone) - set(excused)):
        result.broken.append(f"{len(lost)} payments are lost, such as {lost[:3]}")


def _schedules_left() -> int:
    """Return how many schedules and jobs of theirs have not ended."""
    left = Schedule.objects.filter(topic=TICK, ended=False).count()
    return left + Job.objects.filter(topic=TICK, ended_at=None).count()


def _judge_schedules(result: Result, expected: int) -> None:
    """Each of the expected instants has one job, which has finished once. No case excuses another number."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT key, count(DISTINCT job.id), count(event.id) FILTER (WHERE outcome = 'finished')
               FROM delaytasks_job AS job LEFT JOIN delaytasks_jobevent AS event ON job_id = job.id
               WHERE topic = %s GROUP BY key""",
            [TICK],
        )
        rows = cursor.fetchall()
    runs = {key: finished for key, _, finished in rows}
    result.facts["schedules; runs of each"] = f"{SCHEDULES}; {expected}"
    for key, jobs, finished in rows:
        if (jobs, finished) != (1, 1):
            result.broken.append(f"the run {key} has {jobs} jobs and finished {finished} times")
    for n in range(SCHEDULES):
        labels = sorted(key.partition("@")[2] for key in runs if key.startswith(f"tick.{n}@"))
        instants = [parse_label(label, ZoneInfo("UTC")).due for label in labels]
        if len(instants) != expected or instants[-1] - instants[0] != timedelta(seconds=expected - 1):
            result.broken.append(f"tick.{n} has {len(instants)} runs of {expected}")
