"""A million jobs pending, a hundred thousand due in the same second: `python -m tests.torture.load --help`.

While workers and consumers over HTTP work it off, staff look at the admin and callers schedule and cancel. Says what
each process took up at most and how long each had to wait. Exit status 1 if a promise or a bound was broken.
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

FAR = "load.far"  # the topic of what is pending: rows and nothing else
SHARES = {"torture.batch": 0.94, "torture.together": 0.03, "torture.once": 0.01, "torture.http": 0.02}
AT_ONCE = 5_000  # promised in one call
HEAD_START_SECONDS_PER_JOB = 1 / 1_500  # in which they are made before they are due
LOOK_SECONDS = 1.0
# What each process may take at most, whatever is pending or due: of its own, with its share of what it shares.
BOUNDS_MIB = {"web": 300, "worker main": 200, "worker child": 200, "beat": 150, "consumer": 150}
REDIS_BYTES_PER_JOB = 400  # of those within the horizon, and its own beginnings
REDIS_BYTES = 20 * 1024 * 1024
ANSWER_MS = 10_000  # within which everybody is answered


@dataclass
class Seen:
    """What a run showed."""

    pending: int
    due: int
    facts: dict[str, Any] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)  # bytes, of the largest process of each part
    redis_bytes: int = 0
    latencies: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"{self.pending} pending, {self.due} due in the same second"]
        lines += [f"{name:28} {said}" for name, said in self.facts.items()]
        lines += [f"{name:28} {peak / 1024 / 1024:7.0f} MiB at most" for name, peak in sorted(self.peaks.items())]
        lines += [f"{'redis, its data':28} {self.redis_bytes / 1024 / 1024:7.1f} MiB at most", *self.latencies]
        return "\n".join([*lines, *(f"BROKEN  {each}" for each in self.broken)])


def fill(count: int) -> None:
    """So many jobs due between two and twelve hours from now, by one statement."""
    from django.db import connection

    from delaytasks.models import Topic

    for name in (FAR, *SHARES):  # none of them has its handler in this process
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
    """So many jobs due at the same moment, of several topics, each call all or none."""
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


def run(arena: Any, *, pending: int, due: int, minutes: float) -> Seen:
    """Fill, promise, wait until all that is due has ended, and check. `arena` is populated, with a web process."""
    from django.db import connection
    from django.utils import timezone

    from tests.servers import wait_until

    from . import measuring
    from .ledger import Ledger

    seen = Seen(pending, due)
    began = time.monotonic()
    fill(pending)
    seen.facts["filled in"] = f"{time.monotonic() - began:.0f} s"
    due_at = timezone.now() + timedelta(seconds=5 + due * HEAD_START_SECONDS_PER_JOB)
    began = time.monotonic()
    promise(Ledger(arena.ledger, "load"), due, due_at)
    seen.facts["promised in"] = f"{time.monotonic() - began:.0f} s"
    latencies, staff = measuring.Latencies(), measuring.log_in(arena)
    early = int(due_at > timezone.now())
    seen.facts["made before they were due"] = "yes" if early else "no"
    with (
        measuring.meanwhile(lambda: _look(arena, seen), LOOK_SECONDS),
        measuring.meanwhile(lambda: _ask(latencies, staff), LOOK_SECONDS),
    ):
        live = due_jobs(due_at).filter(ended_at=None)
        try:
            wait_until(lambda: not live.exists(), seconds=minutes * 60, what="all that is due to end")
        except AssertionError:
            seen.broken.append(f"after {minutes} minutes {live.count()} of {due} are live still")
        seconds = (timezone.now() - due_at).total_seconds()
    seen.facts["worked off in"] = f"{seconds:.0f} s, {due / seconds:.0f} a second"
    seen.latencies = latencies.lines()
    seen.broken += latencies.failures[:10]
    seen.broken += [f"{n}: {max(ms):.0f} ms for an answer" for n, ms in latencies.ms.items() if max(ms) > ANSWER_MS]
    connection.close()
    _check(arena, seen)
    return seen


def _look(arena: Any, seen: Seen) -> None:
    from . import measuring

    for part, those in measuring.pids(arena).items():
        takes = [measuring.memory(pid) for pid in those]
        most = sum(takes) if part == "postgres" else max(takes, default=0)
        seen.peaks[part] = max(seen.peaks.get(part, 0), most)
    seen.redis_bytes = max(seen.redis_bytes, measuring.redis_takes(arena).get("redis bytes", 0))


def _ask(latencies: Any, staff: Any) -> None:
    """What people and programs do meanwhile. What is cancelled is said to be cancelled."""
    from delaytasks import cancel, schedule

    key = f"probe-{time.monotonic_ns()}"

    def cancelled() -> None:
        said = cancel(FAR, key=key)
        assert said == "cancelled", said

    latencies.time("schedule()", lambda: schedule(FAR, key=key, delay=7_200))
    latencies.time("cancel()", cancelled)
    latencies.time("admin, jobs", lambda: staff.get("/admin/delaytasks/job/"))
    latencies.time("admin, jobs of a topic", lambda: staff.get(f"/admin/delaytasks/job/?topic={FAR}"))
    latencies.time("admin, board", lambda: staff.get("/admin/delaytasks/board/"))


def _check(arena: Any, seen: Seen) -> None:
    from delaytasks.models import Job
    from delaytasks.states import State

    from . import checker, evidence
    from .trial import MENDED_SECONDS

    over = time.monotonic() + MENDED_SECONDS
    while True:
        found = evidence.collect(arena.ledger)
        wrong = checker.check(found)
        if not wrong or time.monotonic() > over:
            break
        arena.hold(1)  # what the mirror was told in another order than it happened, a mover puts right
    seen.broken += [f"{v.kind}: {v.topic} {v.key} (job {v.job}): {v.why}" for v in wrong[:10]]
    if len(wrong) > 10:
        seen.broken.append(f"{len(wrong) - 10} more of them")
    late = sorted(e["now_ms"] - e["due_ms"] for e in found.entries if e["kind"] == "begins" and e["attempt"] == 1)
    seen.facts["late p50, max"] = f"{late[len(late) // 2]} ms, {late[-1]} ms"
    untouched = Job.objects.filter(topic=FAR, key__startswith="far-", state=State.DELAYED, attempt=0).count()
    if untouched != seen.pending:
        seen.broken.append(f"of {seen.pending} far jobs {untouched} are as they were")
    for part, most in BOUNDS_MIB.items():
        if seen.peaks.get(part, 0) > most * 1024 * 1024:
            seen.broken.append(f"{part} took {seen.peaks[part] // 1024 // 1024} MiB, more than {most}")
    if seen.redis_bytes > REDIS_BYTES + REDIS_BYTES_PER_JOB * seen.due:
        seen.broken.append(f"redis took {seen.redis_bytes} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.load", description=__doc__.split("\n")[0])
    parser.add_argument("--pending", type=int, default=1_000_000, help="jobs due in hours")
    parser.add_argument("--due", type=int, default=100_000, help="jobs due in the same second")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=20, help="in which all that is due has to end")
    parser.add_argument("--report", type=Path, default=Path("var/torture/load.txt"))
    asked = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from .arena import arena

    with tempfile.TemporaryDirectory(prefix="load-") as directory, arena(Path(directory)) as there:
        there.populate(workers=asked.workers, consumers=asked.consumers)
        seen = run(there, pending=asked.pending, due=asked.due, minutes=asked.minutes)
    text = seen.text()
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(text + "\n")
    print(text)
    return 1 if seen.broken else 0


if __name__ == "__main__":
    sys.exit(main())
