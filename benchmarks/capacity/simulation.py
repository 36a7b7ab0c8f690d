"""Simulate a day of an installation: jobs become due at random and in herds, processes begin the oldest first.

Two simulations: the whole day in steps of 0.1 s, where all jobs of a step are one amount of work; and any window job by
job, to check the first. Neither uses the formulas of model.py, and neither is in real time.
"""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model import DAY_SECONDS, HERDS_PER_DAY, Workload

STEP_SECONDS = 0.1
RETRY_SECONDS = 5  # of the default backoff
PARTS = 1_000  # a herd's positions in the line, in the whole day
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Day:
    """The 99th percentile of lateness in seconds: of each hour's herd, and of each hour's other jobs."""

    jobs: int
    herds: Floats
    others: Floats

    @property
    def worst(self) -> float:
        return float(max(self.herds.max(initial=0.0), self.others.max()))


def day_rates(workload: Workload, steps: int) -> Floats:
    """Return jobs per second without herds for each step: a bell whose highest point is the peak, in mid-day."""
    angle = np.linspace(-np.pi, np.pi, steps, endpoint=False)
    low, high = 0.0, 500.0
    for _ in range(60):
        width = (low + high) / 2
        mean = float(np.exp(width * (np.cos(angle[:: max(1, steps // 10_000)]) - 1)).mean())
        low, high = (width, high) if mean > 1 / workload.peak else (low, width)
    return workload.peak_rate * np.exp(low * (np.cos(angle) - 1))


def simulate_day(workload: Workload, processes: int, service: float, *, seed: int = 1) -> Day:
    """Simulate a day. Service times vary as much as their mean; some attempts fail and come again after 5 s.

    processes   worker processes
    service     seconds that an attempt occupies one on average
    """
    random = np.random.default_rng(seed)
    steps, per_hour = round(DAY_SECONDS / STEP_SECONDS), round(3600 / STEP_SECONDS)
    due = random.poisson(day_rates(workload, steps) * STEP_SECONDS)
    herd_steps = np.arange(HERDS_PER_DAY) * per_hour
    due[herd_steps] += round(workload.herd)
    again = round(RETRY_SECONDS / STEP_SECONDS)
    attempts = due.copy()
    attempts[again:] += random.binomial(due[:-again], workload.retries)
    work = np.maximum(0, random.normal(attempts * service, np.sqrt(attempts) * service))
    ahead = _backlog(work, processes * STEP_SECONDS)
    late = (ahead + work / 2) / processes
    others = due.copy()
    others[herd_steps] -= round(workload.herd)
    of_herds = work[herd_steps] * round(workload.herd) / np.maximum(1, attempts[herd_steps])
    herds = [_herd(*each, processes) for each in zip(ahead[herd_steps], of_herds, strict=True)] if workload.herd else []
    hours = [slice(hour * per_hour, (hour + 1) * per_hour) for hour in range(HERDS_PER_DAY)]
    return Day(int(due.sum()), np.array(herds), np.array([_percentile(late[hour], others[hour]) for hour in hours]))


def _backlog(work: Floats, capacity: float) -> Floats:
    """Return the work that is waiting when each step begins, if `capacity` of it is done in each step."""
    total = np.cumsum(work - capacity)
    waiting = total - np.minimum(np.minimum.accumulate(total), 0)
    return np.concatenate([[0.0], waiting[:-1]])


def _herd(ahead: float, work: float, processes: int) -> float:
    positions = (np.arange(PARTS) + 0.5) / PARTS
    return float(np.percentile((ahead + positions * work) / processes, 99))


def _percentile(late: Floats, count: NDArray[np.integer[Any]]) -> float:
    """Return the 99th percentile of lateness over steps with so many jobs each."""
    order = np.argsort(late)
    reached = np.cumsum(count[order])
    return float(late[order][np.searchsorted(reached, 0.99 * reached[-1])])


def simulate_jobs(due: Floats, processes: int, service: float, *, seed: int = 1) -> Floats:
    """Simulate each job by itself. Return the lateness of each in seconds, for due times in ascending order."""
    durations = np.random.default_rng(seed).exponential(service, len(due))
    free = [0.0] * processes
    late = np.empty(len(due))
    for n, (at, duration) in enumerate(zip(due.tolist(), durations.tolist(), strict=True)):
        begin = max(at, free[0])
        heapq.heapreplace(free, begin + duration)
        late[n] = begin - at
    return late
