"""One trial: load, one or more faults in the middle of it, quiet, and the checker's verdict."""

import statistics
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import connection

from delaytasks.models import Job
from tests.servers import wait_until

from . import checker, evidence, ledger
from .arena import Arena
from .faults import Fault

WARM_SECONDS, AFTER_SECONDS = 2.0, 3.0
QUIET_SECONDS = 60.0  # in which everything that is due has to end
MENDED_SECONDS = 30.0  # in which the mirror has to agree with the rows again
FAR_SECONDS = 120  # what is due later than this is not waited for


@dataclass
class Verdict:
    faults: list[str]
    jobs: int = 0  # promised in this trial
    begun: int = 0
    broken: int = 0  # calls whose caller got no answer
    late_ms: dict[str, int] = field(default_factory=dict)  # p50, p99, max of first attempts
    seconds: float = 0
    violations: list[checker.Violation] = field(default_factory=list)
    trouble: str = ""  # the fault itself could not be done

    @property
    def ok(self) -> bool:
        return not self.violations and not self.trouble

    def by_kind(self) -> Counter[str]:
        return Counter(violation.kind for violation in self.violations)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"violations": [violation._asdict() for violation in self.violations[:50]]}


def run(arena: Arena, faults: Sequence[Fault], *, seed: int, per_second: float = 25, seconds: float = 0) -> Verdict:
    """Put load on the arena, inflict the faults at once, wait for quiet, and check everything that ever was there.

    seconds   how long the load lasts at least
    """
    began, began_ns = time.monotonic(), ledger.now_ns()
    verdict = Verdict([fault.name for fault in faults])
    caller = arena.enlist_python("caller", "tests.torture.caller", f"s{seed}", str(seed), str(per_second))
    caller.process.await_line("calling")
    arena.hold(WARM_SECONDS)
    verdict.trouble = _inflict(arena, faults)
    arena.hold(max(AFTER_SECONDS, began + seconds - time.monotonic()))
    arena.stay_down("caller")
    connection.close()  # the fault may have broken it
    arena.until_quiet(_live, seconds=QUIET_SECONDS)
    found = _mended_evidence(arena)
    verdict.violations = checker.check(found)
    _count(verdict, [entry for entry in found.entries if entry["at"] >= began_ns])
    verdict.seconds = round(time.monotonic() - began, 1)
    return verdict


def _inflict(arena: Arena, faults: Sequence[Fault]) -> str:
    """Do them all at once; what could not be done."""
    trouble: list[str] = []

    def one(fault: Fault) -> None:
        try:
            fault.inflict(arena)
        except Exception:
            trouble.append(f"{fault.name}: {traceback.format_exc()}")
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=[fault]) for fault in faults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "\n".join(trouble)


def _live() -> int:
    """How many jobs are to end soon and have not. A database that is not back yet counts as one."""
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


def _mended_evidence(arena: Arena) -> evidence.Evidence:
    """What there is once the mirror agrees with the rows, or when it has had its time."""
    found: list[evidence.Evidence] = []

    def agrees() -> bool:
        found[:] = [evidence.collect(arena.ledger)]
        return not any(violation.kind in ("drift", "stuck") for violation in checker.check(found[0]))

    try:
        wait_until(agrees, seconds=MENDED_SECONDS, what="the mirror to agree")
    except AssertionError:
        pass  # the verdict says so
    return found[0]


def _count(verdict: Verdict, entries: list[ledger.Entry]) -> None:
    first = [e["now_ms"] - e["due_ms"] for e in entries if e["kind"] == "begins" and e["attempt"] == 1]
    verdict.jobs = sum(e["kind"] == "answers" and e["said"] == "scheduled" for e in entries)
    verdict.begun = sum(e["kind"] == "begins" for e in entries)
    verdict.broken = sum(e["kind"] == "answers" and e["said"] == "broken" for e in entries)
    if len(first) > 1:
        cuts = statistics.quantiles(first, n=100, method="inclusive")
        verdict.late_ms = {"p50": round(cuts[49]), "p99": round(cuts[98]), "max": max(first)}
