"""One trial: load, one or more faults under load, quiet, and the checker's verdict."""

import statistics
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import connection

from delaytasks.models import Job

from . import checker, evidence, ledger
from .environment import Arena
from .faults import Fault

WARM_SECONDS, AFTER_SECONDS = 2.0, 3.0
QUIET_SECONDS = 60.0  # the time in which all due jobs have to end
MENDED_SECONDS = 30.0  # the time in which the mirror has to agree with the rows again
NOT_RUN = "NOT RUN"  # prefix of `trouble` for a fault that this machine does not support
ANSWERING = frozenset(("postgres", "web"))  # parts that callers need
FAR_SECONDS = 120  # jobs due later than this are not waited for
# Threads outlive the trials: a server started by a fault dies with the thread that started it.
_threads = ThreadPoolExecutor(thread_name_prefix="fault")


@dataclass
class Verdict:
    faults: list[str]
    jobs: int = 0  # scheduled in this trial
    begun: int = 0
    broken: int = 0  # calls without an answer
    late_ms: dict[str, int] = field(default_factory=dict)  # p50, p99, max of first attempts
    seconds: float = 0
    violations: list[checker.Violation] = field(default_factory=list)
    trouble: str = ""  # why the fault failed, or which process ended that it does not use; a summary in the first line

    @property
    def ran(self) -> bool:
        """False: this machine does not support the fault."""
        return not self.trouble.startswith(NOT_RUN)

    @property
    def ok(self) -> bool:
        return not self.violations and not self.trouble

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"violations": [violation._asdict() for violation in self.violations[:50]]}


def run(
    arena: Arena,
    faults: Sequence[Fault],
    *,
    seed: int,
    per_second: float = 25,
    seconds: float = 0,
    in_turn: bool = False,
    mended_seconds: float = MENDED_SECONDS,
) -> Verdict:
    """Put load on the arena, inject the faults, wait for quiet, and check all jobs of the arena.

    seconds          the least duration of the load
    in_turn          inject the faults one after the other; otherwise all at once
    mended_seconds   how long violations may take to be repaired after the quiet

    Violations reported by an earlier trial in this arena are not reported again.
    """
    began, began_ns = time.monotonic(), ledger.now_ns()
    verdict = Verdict([fault.name for fault in faults])
    started = {name: one.starts for name, one in arena.crew.items()}
    arena.load(seed=seed, per_second=per_second)
    arena.hold(WARM_SECONDS)
    for group in [[fault] for fault in faults] if in_turn else [faults]:
        verdict.trouble += _inflict(arena, group)
    arena.hold(max(AFTER_SECONDS, began + seconds - time.monotonic()))
    arena.unload()
    connection.close()  # the fault may have broken it
    arena.until_quiet(_live, seconds=QUIET_SECONDS)
    found, verdict.violations = _mended(arena, mended_seconds)
    arena.seen.update(map(_identity, verdict.violations))
    _count(verdict, [entry for entry in found.entries if entry["at"] >= began_ns])
    verdict.trouble = _ended(arena, started, faults) + unanswered(verdict.broken, faults) + verdict.trouble
    verdict.seconds = round(time.monotonic() - began, 1)
    return verdict


def _inflict(arena: Arena, faults: Sequence[Fault]) -> str:
    """Inject all faults at once; return the errors of those that failed."""
    trouble: list[str] = []
    arena.at_once = len(faults)

    def one(fault: Fault) -> None:
        try:
            fault.inflict(arena)
        except Exception as error:
            trouble.append(f"{fault.name}: {type(error).__name__}: {error}\n{traceback.format_exc()}")
        finally:
            connection.close()

    list(_threads.map(one, faults))
    return "\n".join(trouble)


def _ended(arena: Arena, started: dict[str, int], faults: Sequence[Fault]) -> str:
    """Return which processes ended although no fault uses them, and their last words; they should have survived."""
    used = {kind for fault in faults for kind in fault.uses}
    ended = [
        name
        for name, one in arena.crew.items()
        if one.starts > started.get(name, one.starts) and name.rstrip("0123456789") not in used
    ]
    words = [words for name in ended for words in arena.crew[name].last_words[started[name] - 1 :]]
    return "\n".join([f"{', '.join(ended)} ended. ", *words, ""]) if ended else ""


def unanswered(calls: int, faults: Sequence[Fault]) -> str:
    """Return how many calls had no answer if no fault explains it. On SQLite, a call may wait in vain for the lock."""
    if not calls or connection.vendor == "sqlite" or any(fault.uses & ANSWERING for fault in faults):
        return ""
    return f"{calls} calls had no answer, although no fault uses PostgreSQL or the web process.\n"


def _live() -> int:
    """Return the number of live jobs due soon; 1 while the database is down."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT count(*) FROM {Job._meta.db_table} WHERE ended_at IS NULL AND due_at < %s", [_soon()]
            )
            return cursor.fetchone()[0]
    except Exception:
        connection.close()
        return 1


def _soon() -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) + timedelta(seconds=FAR_SECONDS)


def _mended(arena: Arena, seconds: float) -> tuple[evidence.Evidence, list[checker.Violation]]:
    """Collect and check until there is no new violation or the time is over; return the last result."""
    deadline = time.monotonic() + seconds
    while True:
        found = evidence.collect(arena.ledger, arena.jumps)
        violations = [each for each in checker.check(found) if _identity(each) not in arena.seen]
        if not violations or time.monotonic() > deadline:
            return found, violations
        arena.hold(0.5)


def _identity(violation: checker.Violation) -> tuple[Any, ...]:
    return violation[:4]  # without `why`: the lateness in it changes


def _count(verdict: Verdict, entries: list[ledger.Entry]) -> None:
    first = [e["now_ms"] - e["due_ms"] for e in entries if e["kind"] == "begins" and e["attempt"] == 1]
    verdict.jobs = sum(e["kind"] == "answers" and e["said"] == "scheduled" for e in entries)
    verdict.begun = sum(e["kind"] in ("begins", "received") for e in entries)
    verdict.broken = sum(e["kind"] == "answers" and e["said"] == "broken" for e in entries)
    if len(first) > 1:
        cuts = statistics.quantiles(first, n=100, method="inclusive")
        verdict.late_ms = {"p50": round(cuts[49]), "p99": round(cuts[98]), "max": max(first)}
