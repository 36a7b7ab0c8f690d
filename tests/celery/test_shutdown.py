"""The flag for the shutdown of a worker."""

from collections.abc import Iterator

import pytest

from delaytasks.celery import shutdown
from tests.support.forks import succeeds_in_fork


@pytest.fixture(autouse=True)
def _own_flag() -> Iterator[None]:
    shutdown.reset()
    yield
    shutdown.reset()


def test_a_worker_shares_the_flag_with_the_processes_of_its_pool() -> None:
    assert succeeds_in_fork(shutdown.stop)
    assert shutdown.stopping()


def test_a_worker_does_not_share_the_flag_with_another_one_that_was_forked_from_the_same_process() -> None:
    def run_worker() -> None:
        shutdown.reset()
        shutdown.stop()

    assert succeeds_in_fork(run_worker)
    assert not shutdown.stopping()
