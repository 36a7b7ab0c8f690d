"""A million jobs pending, a hundred thousand due in the same second: `python -m tests.torture.load --help`.

While workers and HTTP consumers run the due jobs, staff use the admin and callers schedule and cancel. Reports the
peak memory of each process and the response times. Exit status 1 if a promise or a bound was broken.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

FAR = "load.far"  # topic of the pending jobs, which are only rows
SHARES = {"torture.batch": 0.94, "torture.together": 0.03, "torture.once": 0.01, "torture.http": 0.02}
AT_ONCE = 5_000  # jobs scheduled in one call
HEAD_START_SECONDS_PER_JOB = 1 / 1_500  # the time to schedule them before they are due
SAMPLE_SECONDS = 1.0
# Memory limits of each process, whatever is pending or due: its own and its share of shared memory.
BOUNDS_MIB = {"web": 300, "worker main": 200, "worker child": 200, "beat": 150, "consumer": 150}
REDIS_BYTES_PER_JOB = 400  # per job within the horizon, in addition to REDIS_BYTES
REDIS_BYTES = 20 * 1024 * 1024
ANSWER_MS = 10_000  # the longest response time


@dataclass
class Result:
    """Measurements and problems of a run."""

    pending: int
    due: int
    facts: dict[str, Any] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)  # bytes of the largest process of each part
    redis_bytes: int = 0
    latencies: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"{self.pending} pending, {self.due} due in the same second"]
        lines += [f"{name:28} {value}" for name, value in self.facts.items()]
        lines += [f"{name:28} {peak / 1024 / 1024:7.0f} MiB at most" for name, peak in sorted(self.peaks.items())]
        lines += [f"{'redis, its data':28} {self.redis_bytes / 1024 / 1024:7.1f} MiB at most", *self.latencies]
        return "\n".join([*lines, *(f"BROKEN  {each}" for each in self.broken)])


def fill(count: int) -> None:
    """Insert `count` jobs due in two to twelve hours, in one statement."""
    from django.db import connection

    from delaytasks.models import Topic

    for name in (FAR, *SHARES):  # this process has no handlers
        Topic.objects.get_or_create(name=name)
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO delaytasks_job
                   (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, worker, error)
               SELECT %s, 'far-' || n, 1, now() + interval '2 hours' + n * interval '36000 seconds' / %s,
                   60000, 0, 0, '{"order": 1}', now(), '', '' FROM generate_series(1, %s) n""",
            [FAR, count, count],
        )
        cursor.execute("VACUUM ANALYZE delaytasks_job")


def promise(ledger: Any, count: int, due_at: datetime) -> None:
    """Schedule `count` jobs of several topics for the same moment; each call all or none."""
    from delaytasks import clock, schedule_many

    for topic, share in SHARES.items():
        left = round(count * share)
        while left > 0:
            size = min(left, AT_ONCE)
            group = f"{topic}-{left}"
            keys = [f"{group}-{i}" for i in range(size)]
            asks = ({"n": f"load-{key}", "key": key} for key in keys)
            ledger.write("asks", *asks, op="schedule", topic=topic, delay_ms=None, group=group)
            schedule_many([{"topic": topic, "key": key, "due_at": due_at, "ttr": 30} for key in keys])
            due_ms = clock.to_ms(due_at)
            ledger.write("answers", *({"n": f"load-{key}"} for key in keys), said="scheduled", job=None, due_ms=due_ms)
            left -= size


def due_jobs(due_at: datetime) -> Any:
    from delaytasks.models import Job

    return Job.objects.filter(topic__in=list(SHARES), due_at__lte=due_at + timedelta(minutes=5))


def run(arena: Any, *, pending: int, due: int, minutes: float) -> Result:
    """Fill, schedule, wait until all due jobs have ended, and check. `arena` is populated, with a web process."""
    from django.db import connection
    from django.utils import timezone

    from tests.support.background import repeating
    from tests.support.servers import wait_until

    from . import resource_usage
    from .ledger import Ledger

    result = Result(pending, due)
    began = time.monotonic()
    fill(pending)
    result.facts["filled in"] = f"{time.monotonic() - began:.0f} s"
    due_at = timezone.now() + timedelta(seconds=5 + due * HEAD_START_SECONDS_PER_JOB)
    began = time.monotonic()
    promise(Ledger(arena.ledger, "load"), due, due_at)
    result.facts["scheduled in"] = f"{time.monotonic() - began:.0f} s"
    latencies, staff = resource_usage.Latencies(), resource_usage.log_in(arena)
    early = int(due_at > timezone.now())
    result.facts["scheduled before they were due"] = "yes" if early else "no"
    with (
        repeating(lambda: _sample(arena, result), SAMPLE_SECONDS),
        repeating(lambda: _use(latencies, staff), SAMPLE_SECONDS),
    ):
        live = due_jobs(due_at).filter(ended_at=None)
        try:
            wait_until(lambda: not live.exists(), seconds=minutes * 60, what="all due jobs to end")
        except AssertionError:
            result.broken.append(f"after {minutes} minutes {live.count()} of {due} are still live")
        seconds = (timezone.now() - due_at).total_seconds()
    result.facts["worked off in"] = f"{seconds:.0f} s, {due / seconds:.0f} a second"
    result.latencies = latencies.lines()
    result.broken += latencies.failures[:10]
    result.broken += [f"{n}: {max(ms):.0f} ms response time" for n, ms in latencies.ms.items() if max(ms) > ANSWER_MS]
    connection.close()
    _check(arena, result)
    return result


def _sample(arena: Any, result: Result) -> None:
    from . import resource_usage

    for part, pids in resource_usage.pids(arena).items():
        sizes = [resource_usage.memory(pid) for pid in pids]
        most = sum(sizes) if part == "postgres" else max(sizes, default=0)
        result.peaks[part] = max(result.peaks.get(part, 0), most)
    result.redis_bytes = max(result.redis_bytes, resource_usage.redis_usage(arena).get("redis bytes", 0))


def _use(latencies: Any, staff: Any) -> None:
    """Use the API and the admin as callers and staff do."""
    from delaytasks import cancel, schedule

    key = f"probe-{time.monotonic_ns()}"

    def cancelled() -> None:
        answer = cancel(FAR, key=key)
        assert answer == "cancelled", answer

    latencies.time("schedule()", lambda: schedule(FAR, key=key, delay=7_200))
    latencies.time("cancel()", cancelled)
    latencies.time("admin, jobs", lambda: staff.get("/admin/delaytasks/job/"))
    latencies.time("admin, jobs of a topic", lambda: staff.get(f"/admin/delaytasks/job/?topic={FAR}"))
    latencies.time("admin, board", lambda: staff.get("/admin/delaytasks/board/"))


def _check(arena: Any, result: Result) -> None:
    from delaytasks.models import Job
    from delaytasks.states import State

    from . import checker, evidence
    from .trial import MENDED_SECONDS

    deadline = time.monotonic() + MENDED_SECONDS
    while True:
        found = evidence.collect(arena.ledger)
        violations = checker.check(found)
        if not violations or time.monotonic() > deadline:
            break
        arena.hold(1)  # a mover repairs mirror entries that were written out of order
    result.broken += [f"{v.kind}: {v.topic} {v.key} (job {v.job}): {v.why}" for v in violations[:10]]
    if len(violations) > 10:
        result.broken.append(f"{len(violations) - 10} more violations")
    late = sorted(e["now_ms"] - e["due_ms"] for e in found.entries if e["kind"] == "begins" and e["attempt"] == 1)
    result.facts["late p50, max"] = f"{late[len(late) // 2]} ms, {late[-1]} ms"
    untouched = Job.objects.filter(topic=FAR, key__startswith="far-", state=State.DELAYED, attempt=0).count()
    if untouched != result.pending:
        result.broken.append(f"of {result.pending} pending jobs only {untouched} are unchanged")
    for part, most in BOUNDS_MIB.items():
        if result.peaks.get(part, 0) > most * 1024 * 1024:
            result.broken.append(f"{part} took {result.peaks[part] // 1024 // 1024} MiB, more than {most}")
    if result.redis_bytes > REDIS_BYTES + REDIS_BYTES_PER_JOB * result.due:
        result.broken.append(f"redis took {result.redis_bytes} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.load", description=__doc__.split("\n")[0])
    parser.add_argument("--pending", type=int, default=1_000_000, help="jobs due in hours")
    parser.add_argument("--due", type=int, default=100_000, help="jobs due in the same second")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=20, help="time limit for all due jobs to end")
    parser.add_argument("--report", type=Path, default=Path("var/torture/load.txt"))
    options = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from .environment import arena

    with tempfile.TemporaryDirectory(prefix="load-") as directory, arena(Path(directory)) as installation:
        installation.populate(workers=options.workers, consumers=options.consumers)
        result = run(installation, pending=options.pending, due=options.due, minutes=options.minutes)
    text = result.text()
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(text + "\n")
    print(text)
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
