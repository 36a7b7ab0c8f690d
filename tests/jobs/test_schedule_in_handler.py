"""A handler may schedule the next job of its own key."""

import pytest
from django.db import transaction

from delaytasks import schedule, schedule_many
from delaytasks.exceptions import BadInput
from delaytasks.jobs.schedule import Scheduled
from delaytasks.models import Job
from delaytasks.states import State

from ..support.stage import Boom, outcomes, state_of


@pytest.mark.parametrize("mode", ["reject", "keep", "replace"])
def test_schedule_many_inside_a_handler_may_contain_its_own_key(stage, mode):
    @stage.handler("t")
    def again(job):
        assert schedule_many([{"topic": "t", "key": job.key, "delay": 60}], on_conflict=mode) == Scheduled(1, 0, 0)

    schedule("t", key="a", delay=0)
    stage.go()
    assert Job.objects.filter(key="a").count() == 2
    assert Job.objects.live().count() == 1


def test_a_bad_mode_does_not_finish_the_handlers_own_job(stage):
    @stage.handler("t", max_attempts=1)
    def again(job):
        with pytest.raises(BadInput):
            schedule("t", key=job.key, delay=60, on_conflict="sideways")
        raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"


@pytest.mark.parametrize("many", [False, True])
def test_a_handler_may_schedule_its_own_key_again_after_a_savepoint_was_rolled_back(stage, many):
    @stage.handler("t", max_attempts=1)
    def again(job):
        def schedule_own(delay: int) -> None:
            if many:
                schedule_many([{"topic": "t", "key": job.key, "delay": delay}])
            else:
                schedule("t", key=job.key, delay=delay)

        for _ in range(2):
            with pytest.raises(Boom), transaction.atomic():
                schedule_own(60)
                raise Boom
        schedule_own(90)

    schedule("t", key="a", delay=0)
    stage.go()
    assert list(Job.objects.order_by("id").values_list("state", "attempt")) == [(State.FINISHED, 1), (State.DELAYED, 0)]
    assert outcomes("a") == ["finished"]
