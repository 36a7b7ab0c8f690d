"""Jobs of a topic that this process does not know are not changed."""

import logging

import pytest

from delaytasks import handlers, schedule
from delaytasks.maintenance import sweep
from delaytasks.models import Topic

from ..support.stage import state_of

on_the_mirror = pytest.mark.parametrize("due_index", ["mirror"], indirect=True)


def test_only_a_worker_with_the_handler_makes_a_job_dead(stage, db_clock):
    """Any sweep takes back an expired lease. Only a process that knows the topic knows its max_attempts."""
    dead: list[str] = []
    keys = stage.recorder("t", ttr=5, max_attempts=1, on_dead=lambda job: dead.append(job.key))
    Topic.objects.get_or_create(name="t")
    schedule("t", key="a", delay=0)
    stage.take("t")
    handler = handlers.find("t")
    handlers.unregister("t")
    db_clock.advance(seconds=6)
    sweep.sweep()
    assert (state_of("a"), dead) == ("delayed", [])
    handlers.add(handler)
    stage.go()
    stage.dispatched.append("t")
    stage.go()
    assert (state_of("a"), dead, keys) == ("dead", ["a"], [])


@on_the_mirror
def test_ready_jobs_of_an_unknown_topic_are_logged_and_stay(stage, caplog):
    Topic.objects.create(name="gone")
    schedule("gone", key="a", delay=0)
    stage.mover.move_due()
    with caplog.at_level(logging.WARNING):
        assert sweep.sweep()["unhandled"] == 1
    assert "gone" in caplog.text
    assert state_of("a") == "delayed"
