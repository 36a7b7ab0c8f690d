"""The effects of a handler and the finish of its job are one commit, even if other code fails or rolls back."""

import pytest
from django.db import transaction

from delaytasks import mirror, schedule, schedule_many
from delaytasks.models import Job
from delaytasks.worker import runner

from ..support.stage import Boom, effect, effects, outcomes


def test_a_finish_that_was_rolled_back_to_a_savepoint_is_repeated(stage):
    @stage.handler("t")
    def daring(job):
        effect(f"effect-{job.attempt}")
        try:
            with transaction.atomic():
                schedule("t", key=job.key, delay=60)  # finishes this job, in the savepoint
                raise Boom
        except Boom:
            return

    schedule("t", key="a", delay=0)
    stage.go()
    assert (outcomes("a"), len(effects())) == (["finished"], 1)
    assert Job.objects.live().count() == 0


def test_a_finishing_block_that_an_outer_block_rolled_back_is_repeated(stage):
    @stage.handler("t", atomic=False)
    def daring(job):
        try:
            with transaction.atomic():
                with job.finishing():
                    effect("effect-lost")
                raise Boom
        except Boom:
            return

    schedule("t", key="a", delay=0)
    stage.go()
    assert (outcomes("a"), effects()) == (["finished"], [])


@pytest.mark.parametrize("options", [{}, {"batch": 10}, {"one_commit": True}], ids=["single", "batch", "one commit"])
def test_a_callback_that_fails_after_the_commit_repeats_nothing(stage, options, caplog):
    calls: list[int] = []

    def fail() -> None:
        raise Boom("after the commit")

    @stage.handler("t", **options)
    def register_callback(jobs):
        calls.append(len(jobs) if isinstance(jobs, list) else 1)
        transaction.on_commit(fail)

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    runner._paces["t"] = runner.Pace(size=3)
    stage.go()
    assert sum(calls) == 3
    assert all(outcomes(f"k{n}") == ["finished"] for n in range(3))
    assert "after the commit" in caplog.text
    if mirror.connect():
        assert mirror.connect().due_count() == 0, "the mirror was updated nevertheless"


def test_an_error_after_finishing_is_logged_and_changes_nothing(stage, caplog):
    @stage.handler("t", atomic=False, max_attempts=1)
    def outside(job):
        with job.finishing():
            effect("effect-kept")
        raise Boom("afterwards")

    schedule("t", key="a", delay=0)
    stage.go()
    assert (outcomes("a"), len(effects())) == (["finished"], 1)
    assert "afterwards" in caplog.text


def test_the_mirror_is_updated_even_if_a_callback_fails_after_finishing(stage, caplog):
    def fail() -> None:
        raise Boom("after the commit")

    @stage.handler("t", atomic=False, max_attempts=1)
    def outside(job):
        with job.finishing():
            transaction.on_commit(fail)

    schedule("t", key="a", delay=0)
    stage.go()
    assert outcomes("a") == ["finished"]
    assert "after the commit" in caplog.text
    if mirror.connect():
        assert mirror.connect().due_count() == 0
