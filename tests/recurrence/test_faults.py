"""Workers that die in a run, and a mirror that loses all that it knows: each instant takes effect once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from delaytasks import handlers
from delaytasks.models import Job
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.testing import Timeouts
from tests.support.stage import effect, effects

START = datetime(2030, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def tick() -> Iterator[None]:
    """A handler whose effect is a row with the key of its job."""
    handlers.handler("tick", ttr=60)(lambda job: effect(f"effect {job.key}"))
    yield
    handlers.unregister("tick")


def expected(*minutes: int) -> list[str]:
    return [f"effect tick@2030-01-01T00:{minute:02}:00" for minute in minutes]


@pytest.mark.timeouts(mirror=True, start=START)
def test_a_mirror_that_loses_everything_loses_and_doubles_no_run(
    with_redis: Any, timeouts: Timeouts, tick: Any
) -> None:
    schedules.define(Definition("tick", "tick", cron="* * * * *"))
    for _ in range(4):
        timeouts.advance(minutes=1)
        timeouts.lose_mirror()
    timeouts.advance(minutes=5)
    assert effects() == expected(*range(1, 10))
    assert Job.objects.live().count() == 1


@pytest.mark.timeouts(start=START)
@pytest.mark.parametrize("before", ["handler", "commit"])
def test_a_run_whose_worker_dies_takes_effect_once_and_the_chain_goes_on(
    timeouts: Timeouts, tick: Any, before: Any
) -> None:
    schedules.define(Definition("tick", "tick", cron="*/10 * * * *"))
    timeouts.die_in("tick", before, times=3)
    assert timeouts.advance(minutes=55).outcomes == {"died": 3, "expired": 3, "finished": 5}
    assert effects() == expected(10, 20, 30, 40, 50)
