"""Play random histories in the kit and with the installation's workers, all at the same time, and compare the rows.

python -m tests.torture.declared.player SEED...: prints a JSON object for each history. Run by `same_rows`.
"""

import json
import sys
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import django

ROOM_MS = 200  # how late a run or an act may be, for each unit; a quarter of a unit later, an act may come before it
WAIT_SECONDS = 300  # after the last act, for all jobs to end
VIRTUAL_START = datetime(2030, 1, 1, tzinfo=UTC)
SAME, DIFFERENT, LATE = "same", "different", "late"


class Event(NamedTuple):
    outcome: str
    attempt: int
    at_ms: int  # after the beginning of the history


class Row(NamedTuple):
    topic: str
    key: str
    state: int
    failures: int
    attempt: int
    events: Sequence[Event]


def delete_rows() -> None:
    """Delete the rows of earlier rounds, which have ended."""
    from django.db import connection

    with connection.cursor() as cursor:
        for table in ("delaytasks_jobevent", "delaytasks_job", "declared_ticket"):
            cursor.execute(f"DELETE FROM {table}")


def rows(seed: int, start: datetime) -> list[Row]:
    """Return the jobs of a history with their events, oldest first for each key."""
    from delaytasks import clock
    from delaytasks.models import Job

    jobs = [job for prefix in ("", "ticket:") for job in Job.objects.filter(key__startswith=f"{prefix}{seed}:")]
    start_ms = clock.to_ms(start)
    return [
        Row(job.topic, job.key, job.state, job.failures, job.attempt, [
            Event(event.outcome, event.attempt, (event.done_ms if event.reserved_ms is None else event.reserved_ms)
                  - start_ms) for event in job.events.order_by("id")
        ])
        for job in sorted(jobs, key=lambda job: (job.topic, job.key, job.pk))
    ]  # fmt: skip


def in_the_kit(seed: int) -> list[Row]:
    """Play a history in virtual time. Nothing of it is committed: no worker sees it."""
    from django.db import transaction

    from delaytasks.testing import Timeouts

    from .histories import random_history

    with transaction.atomic(), Timeouts(start=VIRTUAL_START) as timeouts:
        for act in random_history(seed):
            timeouts.advance_to(VIRTUAL_START + timedelta(milliseconds=act.at_ms))
            act.do(VIRTUAL_START)
        timeouts.advance(hours=1)
        found = rows(seed, VIRTUAL_START)
        transaction.set_rollback(True)
    return found


def with_workers(seeds: Iterable[int]) -> tuple[dict[int, list[Row]], int]:
    """Play histories in real time, all at once. Return the rows of each, and how late the latest act was, in ms."""
    from delaytasks import clock, databases

    from .histories import random_history

    acts = sorted(((act.at_ms, seed, act) for seed in seeds for act in random_history(seed)), key=lambda act: act[:2])
    start_ms = (databases.now_ms("default") // 1000 + 2) * 1000
    start, never, latest_ms = clock.from_ms(start_ms), threading.Event(), 0
    for at_ms, _, act in acts:
        never.wait(max(0, start_ms + at_ms - databases.now_ms("default")) / 1000)
        act.do(start)
        latest_ms = max(latest_ms, databases.now_ms("default") - start_ms - at_ms)
    _await_the_end()
    return {seed: rows(seed, start) for seed in seeds}, latest_ms


def _await_the_end() -> None:
    from delaytasks.models import Job
    from tests.support.servers import wait_until

    live = Job.objects.live().filter(topic__startswith="history.")
    wait_until(lambda: not live.exists(), seconds=WAIT_SECONDS, what=lambda: f"the end of {live.count()} jobs")


def compare(kit: Sequence[Row], workers: Sequence[Row], latest_act_ms: int, room_ms: int = ROOM_MS) -> str:
    """Return SAME if rows and outcomes are equal, DIFFERENT, or LATE: so late that an act may have come first."""
    if [without_times(row) for row in kit] == [without_times(row) for row in workers] and most_ms(kit, workers) >= 0:
        return SAME
    return LATE if max(latest_act_ms, most_ms(kit, workers)) > room_ms else DIFFERENT


def without_times(row: Row) -> Row:
    return row._replace(events=[event._replace(at_ms=0) for event in row.events])


def most_ms(kit: Sequence[Row], workers: Sequence[Row]) -> int:
    """Return how much later than in the kit the workers were at most, as long as both did the same; or -1: earlier."""
    most = 0
    for one, other in zip(kit, workers, strict=False):
        for mine, theirs in zip(one.events, other.events, strict=False):
            if mine[:2] != theirs[:2]:
                break
            if theirs.at_ms < mine.at_ms:
                return -1
            most = max(most, theirs.at_ms - mine.at_ms)
    return most


def main() -> None:
    django.setup()
    from .histories import UNIT

    seeds = [int(seed) for seed in sys.argv[1:]]
    delete_rows()
    expected = {seed: in_the_kit(seed) for seed in seeds}
    found, latest_act_ms = with_workers(seeds)
    for seed in seeds:
        result = compare(expected[seed], found[seed], latest_act_ms, ROOM_MS * UNIT)
        said: dict[str, Any] = {"seed": seed, "result": result, "late_ms": most_ms(expected[seed], found[seed])}
        said |= {"jobs": len(found[seed]), "events": sum(len(row.events) for row in found[seed])}
        if result == DIFFERENT:
            said |= {"kit": expected[seed], "workers": found[seed]}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
