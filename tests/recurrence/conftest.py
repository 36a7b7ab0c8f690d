"""Declarations and handlers of a test are removed after it; the database's clock stands until it is advanced."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from delaytasks import clock, conf, handlers
from delaytasks.maintenance import sweep
from delaytasks.models import Job
from delaytasks.recurrence import maker, registry, schedules
from delaytasks.recurrence.definition import Definition

START = datetime(2030, 1, 1, tzinfo=UTC)  # the initial time of db_clock, a Tuesday


@pytest.fixture(autouse=True)
def _forget_declarations() -> Iterator[None]:
    known = set(registry.declared())
    yield
    for name in set(registry.declared()) - known:
        registry.unregister(name)


@pytest.fixture
def tick(db_clock: Any) -> Iterator[None]:
    """A topic whose handler does nothing."""
    handlers.handler("tick")(lambda job: None)
    yield
    handlers.unregister("tick")


@pytest.fixture
def define(stage: Any, db_clock: Any) -> Callable[..., Any]:
    """Define a schedule "tick" of the topic "tick", each ten minutes unless options say otherwise."""

    def define(name: str = "tick", **options: Any) -> Any:
        return schedules.define(Definition(name=name, **{"topic": "tick", "every": 600} | options))

    return define


def run_until(stage: Any, db_clock: Any, moment: datetime, *, step_seconds: float = 60) -> None:
    """Advance the clock in steps; in each, make firings and run jobs. Sweep as often as beat does."""
    sweep_at = db_clock.now_ms
    while db_clock.now_ms < clock.to_ms(moment):
        db_clock.advance(seconds=min(step_seconds, (clock.to_ms(moment) - db_clock.now_ms) / 1000))
        maker.make_due("default")
        if db_clock.now_ms >= sweep_at:
            sweep.sweep("default")  # enters what comes within the mirror's horizon
            sweep_at = db_clock.now_ms + conf.get().sweep_seconds * 1000
        stage.go()


def due_times(name: str = "tick") -> list[str]:
    """Return the time of day of each job of a schedule that is live, in order."""
    jobs = Job.objects.filter(key__startswith=f"{name}@", ended_at=None).order_by("due_at")
    return [job.due_at.strftime("%H:%M:%S") for job in jobs]
