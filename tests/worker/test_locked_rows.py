"""Due jobs whose rows another transaction has locked hold up none of the free jobs behind them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import schedule_many

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def lock(stage, db_clock) -> Callable[..., AbstractContextManager[None]]:
    @contextmanager
    def lock(count: int, *, free: int) -> Iterator[None]:
        """Schedule due jobs, of which another transaction locks the first ones: l0, l1, ...; f0, f1, ... are free."""
        keys = [f"l{n}" for n in range(count)] + [f"f{n}" for n in range(free)]
        schedule_many({"topic": "t", "key": key, "delay": n / 1000} for n, key in enumerate(keys))
        db_clock.advance(seconds=1)
        stage.mover.move_due()
        other = connection.copy()
        other.set_autocommit(False)
        try:
            with other.cursor() as cursor:
                cursor.execute("SELECT 1 FROM delaytasks_job WHERE key LIKE 'l%' FOR UPDATE")
            yield
        finally:
            other.rollback()
            other.close()

    return lock


@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_run_finds_the_free_jobs_behind_locked_ones_in_a_few_steps(stage, lock, count):
    keys = stage.recorder("t")
    with lock(count, free=3), CaptureQueriesContext(connection) as queries:
        stage.run("t")
    assert keys == ["f0", "f1", "f2"]
    assert len(queries) < 60


@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_consumer_gets_the_free_jobs_behind_locked_ones_in_their_order(stage, lock, count):
    stage.recorder("t")
    with lock(count, free=5):
        for n in range(5):
            with CaptureQueriesContext(connection) as queries:
                assert [job.key for job in stage.take("t", 1)] == [f"f{n}"]
            assert len(queries) < 40  # some of them measure the clock, when that is due


def test_a_consumer_behind_a_slow_line_gets_the_free_job_behind_locked_ones(stage, lock, monkeypatch):
    stage.recorder("t")
    monkeypatch.setattr("delaytasks.worker.claim.TAKE_SECONDS", 0)
    with lock(20, free=1):
        assert [job.key for job in stage.take("t", 1)] == ["f0"]


def test_a_consumer_of_locked_jobs_is_answered_and_they_are_ready_later(stage, lock, db_clock):
    stage.recorder("t")
    with lock(20, free=0):
        assert stage.take("t", 1) == []
    db_clock.advance(seconds=1)
    assert len(stage.take("t", 20)) == 20
