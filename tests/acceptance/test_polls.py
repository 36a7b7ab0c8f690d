"""Polling ladders with processes that are killed."""

import json

from delaytasks import schedule
from delaytasks.models import Job
from delaytasks.outcomes import ErrorCode
from delaytasks.states import State

from ..support.installation import World


def test_a_poll_whose_process_is_killed_skips_no_rung_and_giving_up_has_its_effects_once(world: World) -> None:
    """A skipped rung would be an hour."""
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"LEASE_SECONDS": 3})
    world.start_all(concurrency=1)
    schedule("polled", key="a", delay=0, ttr=3600)
    schedule("gives-up", key="b", delay=0, ttr=3600)

    world.until(lambda: world.ended(2, state=State.FINISHED), seconds=40, what="both polls to end")
    assert world.outcomes("a") == [("snoozed", 1), ("expired", 2), ("snoozed", 3), ("finished", 4)]
    assert [effect.attempt for effect in world.effects("polled")] == [1, 3, 4]
    first, _, second = Job.objects.get(key="a").events.order_by("id")[:3]
    assert [event.next_due_ms - event.done_ms for event in (first, second)] == [300, 500]
    assert world.outcomes("b") == [("snoozed", 1), ("expired", 2), ("finished", 3)]
    assert world.mark("gives-up", "b", 2), "it was killed while it gave up"
    assert [effect.attempt for effect in world.effects("gives-up")] == [3]
    job = Job.objects.get(key="b")
    assert (job.error, job.polls) == (ErrorCode.GAVE_UP, 1)
    assert job.due_ms - int(job.created_at.timestamp() * 1000) == 1000, "at the deadline itself"
