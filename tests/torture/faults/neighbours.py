"""Jobs that wait behind a slow one, or behind one that kills its process, under a steady load of others.

They use every part, so that no other fault is the reason for what is asserted here.
"""

import time
from collections.abc import Sequence

from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from tests.support.servers import wait_until

from ..constants import CROWD, CROWD_ATTEMPTS, TTR_SECONDS
from ..environment import Arena
from . import fault

ALONE = "topics worker pool mover beat redis broker postgres database web handlers consumer"
MANY_WRITERS = ("postgres",)  # on SQLite a slow handler that has written keeps all others from writing
ENDS_SECONDS = 60
LEAD_SECONDS = 2.0  # so that all are scheduled and in the mirror before they are due
WARM, NEIGHBOURS = 60, 150
RESERVED = 15  # so few that one run reserves all of them, and that others run them in time on a busy machine
SLOW_SECONDS, HERD_SECONDS = 3.0, 2.5  # below the TTR


def _job(key: str, *, delay: float = LEAD_SECONDS, seconds: float = 0, kills: bool = False) -> dict[str, object]:
    return {"key": key, "delay": delay, "ttr": TTR_SECONDS, "body": {"seconds": seconds, "kills": kills}}


def _warm_up(arena: Arena, group: str) -> None:
    """Let a run of the topic learn that its jobs are quick, so that it reserves many at once."""
    arena.schedule(f"{group}-warm", CROWD, [_job(f"{group}-warm-{n}", delay=0) for n in range(WARM)])
    _await_ends(f"{group}-warm-")


def _await_ends(prefix: str) -> None:
    live = Job.objects.filter(topic=CROWD, key__startswith=prefix, ended_at=None)
    wait_until(lambda: not live.exists(), seconds=ENDS_SECONDS, what=f"the jobs {prefix} to end")


def _assert_begun_before_end(keys: Sequence[str], ended: Sequence[str]) -> None:
    """Check that the first attempts of these jobs began before one of `ended` ended. No bound: load delays both."""
    events = JobEvent.objects.filter(job__topic=CROWD, attempt=1)
    end_ms = min(event.done_ms for event in events.filter(job__key__in=ended))
    begins_ms = [event.reserved_ms or end_ms for event in events.filter(job__key__in=keys)]
    begun_ms = sorted(begin_ms - end_ms for begin_ms in begins_ms)
    assert len(begun_ms) == len(keys)
    assert begun_ms[-1] < 0, f"Jobs began so many ms after the end of another one: {begun_ms}"


@fault("a job kills its process, with others reserved behind it", uses=ALONE, quick=True)
def killer(arena: Arena) -> None:
    """It is dead at last. The others run elsewhere, and none of them is charged a failure."""
    group = f"killer-{time.monotonic_ns()}"
    _warm_up(arena, group)
    jobs = [_job(f"{group}-it", delay=LEAD_SECONDS - 0.01, kills=True)]
    arena.schedule(group, CROWD, [*jobs, *(_job(f"{group}-{n}") for n in range(NEIGHBOURS))])
    _await_ends(group)
    done = Job.objects.filter(topic=CROWD, key__startswith=group)
    it = done.get(key=f"{group}-it")
    assert (it.state, it.failures) == (State.DEAD, CROWD_ATTEMPTS), it
    charged = done.exclude(pk=it.pk).exclude(failures=0, state=State.FINISHED)
    assert not charged.exists(), f"{charged.count()} of {NEIGHBOURS} were charged: {list(charged[:3])}"


@fault("a job is slow, with others reserved behind it", uses=ALONE, databases=MANY_WRITERS, quick=True)
def slow_neighbour(arena: Arena) -> None:
    """Idle run slots take the others."""
    group = f"slow-{time.monotonic_ns()}"
    _warm_up(arena, group)
    jobs = [_job(f"{group}-it", delay=LEAD_SECONDS - 0.01, seconds=SLOW_SECONDS)]
    others = [f"{group}-{n}" for n in range(RESERVED)]
    arena.schedule(group, CROWD, [*jobs, *map(_job, others)])
    _await_ends(group)
    _assert_begun_before_end(others, [f"{group}-it"])


@fault("a herd of slow jobs is due at once", uses=ALONE, databases=MANY_WRITERS)
def herd(arena: Arena) -> None:
    """Each process gets one at once, not one a second."""
    group = f"herd-{time.monotonic_ns()}"
    processes = sum(len(arena.children(worker)) for worker in arena.those("worker"))
    assert processes > 1
    keys = [f"{group}-{n}" for n in range(processes)]
    arena.schedule(group, CROWD, [_job(key, seconds=HERD_SECONDS) for key in keys])
    _await_ends(group)
    _assert_begun_before_end(keys, keys)
