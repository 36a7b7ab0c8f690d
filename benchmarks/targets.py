"""The performance targets, and their evaluation against the figures of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .results import Result, ratio


class Against(NamedTuple):
    """Another figure of the same run."""

    contestant: str
    scenario: str
    form: str


@dataclass(frozen=True)
class Target:
    """A bound on a number of delaytasks, or on its ratio to another figure.

    number     "value" or the name of an additional number
    at_least   the lower bound; or at_most, the upper bound
    against    if set, the bound applies to our number divided by this one
    """

    description: str
    scenario: str
    form: str
    number: str = "value"
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    against: Against | None = None
    ours: str = "delaytasks"

    @property
    def bound(self) -> str:
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        shown = f"{limit:,.0f}" if limit and limit >= 100 else f"{limit:.3g}"
        return f"{sign} {shown} {'×' if self.against else self.unit}".rstrip()


class Judged(NamedTuple):
    """A target and its measurement; `met` is None if a figure is missing."""

    target: Target
    measured: float
    met: bool | None


NEVER = ("early", "twice", "missing")  # no repeat may have one
BARE_CELERY = Against("celery", "burst", "noop")

TARGETS: Sequence[Target] = (
    Target("burst, batch handler, against BullMQ's no-op", "burst", "batch", at_least=1.2,
           against=Against("bullmq", "burst", "noop")),
    Target("burst, batch handler, against Celery's no-op", "burst", "batch", at_least=6, against=BARE_CELERY),
    Target("burst, per job with one commit per batch, against Celery's no-op", "burst", "one-commit", at_least=4,
           against=BARE_CELERY),
    Target("burst, per job with its own transaction that updates a row, against Celery with the same", "burst",
           "update", at_least=1.5, against=Against("celery", "burst", "update")),
    Target("burst, the same with a relaxed finish, against Celery's no-op", "burst", "update-relaxed", at_least=1,
           against=BARE_CELERY),
    Target("herd of 1,000 jobs of 200 ms on eight processes", "slow", "herd", unit="s", at_most=27),
    Target("jobs beside one of 5 s, each in its own transaction", "slow", "call", unit="ms late", at_most=1_000),
    Target("jobs beside one of 5 s, one commit per batch", "slow", "call-one-commit", unit="ms late", at_most=1_000),
    Target("schedule in bulk, against Procrastinate's batch_defer", "schedule", "bulk", at_least=1.5,
           against=Against("procrastinate", "schedule", "bulk")),
    Target("schedule in bulk, against BullMQ's addBulk", "schedule", "bulk", at_least=2,
           against=Against("bullmq", "schedule", "bulk")),
    Target("schedule one at a time, against Procrastinate", "schedule", "one", at_least=1,
           against=Against("procrastinate", "schedule", "one")),
    Target("schedule one at a time, due in a day, against Procrastinate", "schedule", "one-tomorrow", at_least=1,
           against=Against("procrastinate", "schedule", "one-tomorrow")),
    Target("punctual at 200/s, p50", "punctual", "200", unit="ms", at_most=3),
    Target("punctual at 200/s, p99", "punctual", "200", "p99_ms", "ms", at_most=15),
    Target("punctual at 1,000/s, p99", "punctual", "1000", "p99_ms", "ms", at_most=60),
    Target("never early, at 200/s", "punctual", "200", "early", "jobs", at_most=0),
    Target("never early, at 1,000/s", "punctual", "1000", "early", "jobs", at_most=0),
    Target("100,000 pending for a week: Redis", "pending", "week.100k", unit="bytes/job", at_most=0),
    # A worker's memory always varies by some pages; a byte per job would be significant.
    Target("100,000 pending for a week: workers", "pending", "week.100k", "worker_bytes", "bytes/job", at_most=1),
    Target("1,000,000 pending for a week: Redis", "pending", "week.1m", unit="bytes/job", at_most=0),
    Target("1,000,000 pending for a week: workers", "pending", "week.1m", "worker_bytes", "bytes/job", at_most=1),
    Target("100,000 pending for an hour: Redis", "pending", "hour.100k", unit="bytes/job", at_most=150),
    Target("1,000,000 pending for an hour: Redis", "pending", "hour.1m", unit="bytes/job", at_most=150),
    Target("mover: members through promote_due.lua", "scale", "promote", unit="members/s", at_least=100_000),
    Target("scale: mover at 10 million pending against 10,000", "scale", "mover.10m", at_most=4 / 3,
           against=Against("delaytasks", "scale", "mover.10k")),
    Target("scale: claim at 10 million pending against 10,000", "scale", "claim.10m", at_most=4 / 3,
           against=Against("delaytasks", "scale", "claim.10k")),
    Target("forward to RabbitMQ, against the client's bare loop", "forward", "rabbitmq", "ratio", "×", at_least=0.5),
    Target("forward to Kafka whose answers take 2 ms, against the client's bare loop", "forward", "kafka-2ms", "ratio",
           "×", at_least=0.5),
    Target("HTTP: add at one connection, against the former engine", "http", "add.1", at_least=4,
           against=Against("former", "http", "add.1")),
    Target("HTTP: add at 64 connections, against the former engine", "http", "add.64", at_least=20,
           against=Against("former", "http", "add.64")),
    Target("HTTP: add at 64 connections", "http", "add.64", unit="jobs/s", at_least=2_000),
    Target("HTTP: add, pop and finish by 64 clients, against the former engine", "http", "cycle.64", at_least=10,
           against=Against("former", "http", "cycle.64")),
    Target("HTTP: p99 of add at half of the highest load", "http", "add.half", "p99 ms", "ms", at_most=50),
    Target("HTTP: jobs popped twice by 200 consumers", "http", "fleet.pop", "twice", "jobs", at_most=0),
    Target("HTTP: jobs never popped by 200 consumers", "http", "fleet.pop", "missing", "jobs", at_most=0),
    Target("HTTP: jobs reserved twice by 200 consumers", "http", "fleet.reserve", "twice", "jobs", at_most=0),
    Target("HTTP: jobs never reserved by 200 consumers", "http", "fleet.reserve", "missing", "jobs", at_most=0),
    *(Target(f"HTTP: fed 2,000 jobs/s, deliveries of {form}", "http", form, unit="jobs/s", at_least=1_950)
      for form in ("fleet.pop.2", "fleet.reserve.2")),
    Target("idle: the whole system", "idle", "cpu", unit="% of a core", at_most=1),
    Target("idle: statements", "idle", "statements", unit="per minute", at_most=150),
)  # fmt: skip


def judge(target: Target, result: Result) -> Judged:
    """Compare a target with the result."""
    measured = _measured(target, result)
    if math.isnan(measured):
        return Judged(target, measured, None)
    if target.at_least is not None:
        return Judged(target, measured, measured >= target.at_least)
    assert target.at_most is not None
    return Judged(target, measured, measured <= target.at_most)


def _measured(target: Target, result: Result) -> float:
    ours = result.find(target.scenario, target.form, target.ours)
    if ours is None:
        return math.nan
    number = worst(ours.numbers(target.number)) if target.number in NEVER else ours.number(target.number)
    if target.against is None:
        return number
    other = result.find(target.against.scenario, target.against.form, target.against.contestant)
    return ratio(number, other.number(target.number)) if other else math.nan


def worst(numbers: Sequence[float]) -> float:
    """Return the maximum of all repeats: no job may ever be early."""
    return max(numbers, default=math.nan)


def judged(result: Result) -> list[Judged]:
    return [judge(target, result) for target in TARGETS]
