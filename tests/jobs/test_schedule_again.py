"""schedule(on_conflict="again"): a job that is running runs once more, however its attempt ends."""

from datetime import timedelta

import pytest
from django.db import transaction

from delaytasks import Retry, Skip, Snooze, cancel, cancel_many, schedule, schedule_many
from delaytasks.clock import from_ms
from delaytasks.db import lookups, transitions
from delaytasks.exceptions import KeyIsLive, Reserved
from delaytasks.jobs.control import cancel_job
from delaytasks.maintenance import sweep
from delaytasks.models import AuditEntry, Job, JobEvent
from delaytasks.states import Outcome, State
from delaytasks.worker import completion, leases
from delaytasks.worker.completion import Completion, complete

from ..support.stage import Boom, outcomes, state_of

pytestmark = pytest.mark.on_both


def again(key: str = "a", delay: float = 0, body: object = None, **options: object) -> Job:
    return schedule("t", key, delay=delay, body=body, on_conflict="again", **options)


def live() -> Job:
    return Job.objects.live().get()


def seconds_from_now(job: Job, clock: object) -> float:
    return (job.due_ms - clock.now_ms) / 1000


@pytest.fixture
def held(stage):
    """A running job with the key "a", whose retry would come after 60 s."""
    stage.handler("t", max_attempts=2, ttr=10)(lambda job: None)
    schedule("t", "a", delay=0, body={"n": 1})
    [held] = stage.take("t")
    return held


def test_a_job_that_is_scheduled_again_while_it_runs_runs_once_more_with_the_last_body(stage):
    bodies = []

    @stage.handler("t")
    def handle(job):
        bodies.append(job.body["n"])
        if job.body["n"] == 1:
            job_row = again(body={"n": 2})
            assert not job_row.is_new
            again(body={"n": 3})

    schedule("t", "a", delay=0, body={"n": 1})
    stage.go()
    assert bodies == [1, 3]
    assert list(Job.objects.order_by("id").values_list("state", "again")) == [(State.FINISHED, False)] * 2


def test_the_end_of_a_job_that_was_not_scheduled_again_looks_for_no_next_run(stage, held, monkeypatch):
    monkeypatch.setattr(transitions, "insert_next_runs", lambda using, ids: pytest.fail(f"jobs {ids} have none"))
    completion.take_back("default", lookups.get_snapshots("default", [held.id]))
    schedule("t", "b", delay=0)
    complete("default", [Completion(each, completion.Outcome.FINISHED) for each in stage.take("t")])
    assert Job.objects.filter(state=State.FINISHED).exists()


def test_the_next_run_is_live_in_the_commit_that_ends_the_attempt(held):
    again(delay=30, body={"n": 2}, ttr=77)
    with transaction.atomic():
        complete("default", [Completion(held, completion.Outcome.FINISHED)])
        job = live()
        assert (job.body, job.ttr_ms, job.attempt) == ({"n": 2}, 77_000, 0)
        transaction.set_rollback(True)
    assert live().pk == held.id


ENDINGS = [
    (completion.Outcome.FINISHED, None, 300),
    (completion.Outcome.SKIPPED, None, 300),
    (completion.Outcome.DEAD, None, 300),
    (completion.Outcome.FAILED, 60_000, 60),
    (completion.Outcome.SNOOZED, 60_000, 60),
    (completion.Outcome.SNOOZED, 900_000, 300),
    (completion.Outcome.FAILED, 900_000, 300),
    (completion.Outcome.RELEASED, 900_000, 300),
    (completion.Outcome.RELEASED, None, 0),
]


@pytest.mark.parametrize(("outcome", "delay_ms", "expected_seconds"), ENDINGS)
def test_however_the_attempt_ends_the_next_run_is_at_the_earlier_time_with_the_newer_body(
    stage, held, db_clock, outcome, delay_ms, expected_seconds
):
    again(delay=300, body={"n": 2}, ttr=77)
    complete("default", [Completion(held, outcome, delay_ms, "Boom" if delay_ms else "")])
    job = live()
    assert (job.state, job.body, job.ttr_ms, job.failures, job.again) == (State.DELAYED, {"n": 2}, 77_000, 0, False)
    assert seconds_from_now(job, db_clock) == expected_seconds
    db_clock.advance(seconds=expected_seconds)
    assert [each.body for each in stage.take("t")] == [{"n": 2}], "the mirror knows the next run"


def test_a_dead_job_stays_dead_beside_its_next_run(held):
    again(delay=300, body={"n": 2})
    complete("default", [Completion(held, completion.Outcome.DEAD, None, "Boom")])
    assert list(Job.objects.order_by("id").values_list("state", "failures")) == [(State.DEAD, 1), (State.DELAYED, 0)]


def test_a_next_run_whose_time_has_passed_is_due_when_the_attempt_ends(held, db_clock):
    again()
    db_clock.advance(seconds=5)
    complete("default", [Completion(held, completion.Outcome.FINISHED)])
    assert live().due_ms == db_clock.now_ms


@pytest.mark.parametrize("max_attempts", [1, 2], ids=["dead", "ready"])
def test_an_attempt_whose_lease_ends_is_followed_by_the_next_run(stage, db_clock, max_attempts):
    stage.handler("t", max_attempts=max_attempts, ttr=10)(lambda job: None)
    schedule("t", "a", delay=0)
    stage.take("t")
    again(body={"n": 2})
    db_clock.advance(seconds=11)
    assert sweep.take_back_expired("default") == 1
    assert (live().body, live().failures) == ({"n": 2}, 0)
    assert live().due_ms <= db_clock.now_ms
    assert state_of("a") == "delayed"
    assert [each.body for each in stage.take("t")] == [{"n": 2}]


@pytest.mark.parametrize("max_attempts", [1, 2], ids=["dead", "ready"])
def test_a_killed_process_is_followed_by_the_next_run(stage, max_attempts):
    from delaytasks.maintenance import liveness

    stage.handler("t", max_attempts=max_attempts, ttr=3600)(lambda job: None)
    schedule("t", "a", delay=0)
    stage.take("t")
    again(body={"n": 2})
    assert liveness.take_back_jobs("default", "w2") == 1
    assert (live().body, live().failures) == ({"n": 2}, 0)


def test_a_job_that_is_handed_back_unbegun_gets_the_newer_terms(stage, held):
    from delaytasks.db import transitions

    again(delay=300, body={"n": 2})
    assert transitions.unclaim("default", [(held.id, held.attempt)]) == {held.id}
    job = live()
    assert (job.pk, job.state, job.body, job.again) == (held.id, State.DELAYED, {"n": 2}, False)


def test_a_job_that_is_deferred_unbegun_runs_once_with_the_newer_terms(stage, held):
    from delaytasks.db import transitions

    again(delay=300, body={"n": 2})
    assert transitions.defer("default", held.id, held.attempt, delay_ms=100) is not None
    job = live()
    assert (job.pk, job.state, job.body, job.again) == (held.id, State.DELAYED, {"n": 2}, False)


def test_a_waiting_job_is_kept(stage, db_clock):
    stage.recorder("t")
    first = schedule("t", "a", delay=5, body={"n": 1})
    second = again(delay=60, body={"n": 2})
    assert (second.pk, second.body, seconds_from_now(second, db_clock)) == (first.pk, {"n": 1}, 5)
    assert (second.is_new, second.runs_again, outcomes("a")) == (False, False, [])


def test_a_key_that_is_not_live_is_scheduled(stage):
    stage.recorder("t")
    assert again().is_new


def test_other_modes_treat_a_running_job_as_before(held):
    again(body={"n": 2})
    assert schedule("t", "a", delay=0, on_conflict="keep").pk == held.id
    with pytest.raises(KeyIsLive):
        schedule("t", "a", delay=0)
    with pytest.raises(Reserved):
        schedule("t", "a", delay=0, on_conflict="replace")
    assert Job.objects.get(key="a").again_body == {"n": 2}


@pytest.mark.parametrize("call", [lambda job: cancel("t", "a"), lambda job: cancel_job(job.id)])
def test_cancel_withdraws_the_next_run_and_answers_running(held, call):
    again()
    assert call(held) == "running"
    assert (live().again, live().again_due_at, live().again_body) == (False, None, None)
    leases.finish(held.id, held.attempt, using="default")
    assert not Job.objects.live().exists()
    assert outcomes("a") == ["finished"]


def test_a_withdrawal_by_a_person_is_in_the_audit_log(held):
    again()
    cancel("t", "a", by="alice", reason="not needed")
    [entry] = AuditEntry.objects.filter(action="job.next_run_withdrawn")
    assert (entry.actor, entry.target, entry.reason) == ("alice", f"job {held.id}", "not needed")


def test_cancel_many_withdraws_next_runs(held):
    again()
    assert cancel_many(topic="t") == (0, 1, 0)
    assert not live().again


def test_a_fenced_job_does_not_run_again(held):
    again()
    Job.objects.update(fenceable=True)
    assert cancel("t", "a", running="fence") == "cancelled"
    sweep.sweep()
    assert not Job.objects.live().exists()
    assert Job.objects.get().again_due_at is None


def test_a_job_that_cannot_be_fenced_loses_its_next_run(held):
    again()
    assert cancel("t", "a", running="fence") == "running"
    assert not live().again


def test_who_scheduled_again_is_recorded(held):
    again(delay=60, by="alice")
    event = JobEvent.objects.get()
    assert (event.outcome, event.attempt, event.actor) == ("scheduled", held.attempt, "alice")
    assert from_ms(event.next_due_ms) == live().again_due_at


@pytest.mark.parametrize("chunk", [500, 3], ids=["one-chunk", "two-chunks"])
def test_many_are_scheduled_again(stage, held, monkeypatch, chunk):
    monkeypatch.setattr("delaytasks.jobs.schedule.CHUNK", chunk)
    schedule("t", "waiting", delay=60)
    items = [{"topic": "t", "key": key, "delay": 5, "body": {"n": 2}} for key in ("new", "waiting", "a", "a")]
    done = schedule_many(items, on_conflict="again")
    assert (tuple(done), done.again) == ((1, 2, 0), 1)
    assert done.job_ids[2:] == [held.id] * 2
    assert Job.objects.get(key="waiting").body == {}
    assert Job.objects.get(key="a").again_body == {"n": 2}


def test_of_several_items_with_one_key_the_first_makes_the_job_and_the_last_its_next_run(held):
    items = [{"topic": "t", "key": key, "delay": n, "body": {"n": n}} for n in (1, 2) for key in ("new", "a")]
    done = schedule_many(items, on_conflict="again")
    assert (tuple(done), done.again) == ((1, 2, 0), 1)
    assert Job.objects.get(key="new").body == {"n": 1}, "as two calls of schedule() do"
    assert Job.objects.get(key="a").again_body == {"n": 2}


def test_a_handler_with_its_own_transactions_schedules_itself_again(stage):
    ran = []

    @stage.handler("t", atomic=False)
    def handle(job):
        ran.append(job.body)
        if len(ran) == 1:
            again(body={"n": 2})
            return Snooze(timedelta(hours=1))
        return None

    schedule("t", "a", delay=0)
    stage.go()
    assert ran == [{}, {"n": 2}]
    assert outcomes("a") == ["snoozed", "finished"]


def test_a_next_run_of_a_handler_that_fails_is_rolled_back_with_it(stage):
    @stage.handler("t")
    def handle(job):
        again(body={"n": 2})
        raise Retry(delay=60)

    schedule("t", "a", delay=0)
    stage.go()
    assert (live().body, live().failures, live().again) == ({}, 1, False)


@pytest.mark.parametrize(("mode", "body"), [("reject", {"own": 1}), ("replace", {"own": 1}), ("keep", {"n": 2})])
def test_a_handler_that_schedules_its_own_key_meets_a_next_run_of_somebody_else(stage, db_clock, mode, body):
    @stage.handler("t")
    def handle(job):
        if not job.body:
            again(delay=10, body={"n": 2})
            schedule("t", "a", delay=600, body={"own": 1}, on_conflict=mode)

    schedule("t", "a", delay=0)
    stage.go()
    assert (live().body, seconds_from_now(live(), db_clock)) == (body, 10)


@pytest.mark.parametrize("taken_back", [False, True])
def test_on_dead_schedules_the_key_of_its_job_which_is_then_the_next_run(stage, db_clock, taken_back):
    def replace(job):
        schedule("t", job.key, delay=600, body={"by": "on_dead"})

    @stage.handler("t", max_attempts=1, ttr=10, on_dead=replace)
    def handle(job):
        raise Boom

    schedule("t", "a", delay=0)
    [held] = stage.take("t")
    again(delay=10, body={"n": 2})
    if taken_back:
        db_clock.advance(seconds=11)
        stage.guard()
        sweep.sweep("default")
    else:
        complete("default", [Completion(held, Outcome.DEAD)])
    assert (outcomes("a"), live().body, seconds_from_now(live(), db_clock)) == (["dead"], {"by": "on_dead"}, 600)


def test_skipped_jobs_run_again(stage):
    @stage.handler("t")
    def handle(job):
        if not job.body:
            again(delay=10, body={"n": 2})
            return Skip("no")
        return None

    schedule("t", "a", delay=0)
    stage.go()
    assert live().body == {"n": 2}
    assert outcomes("a") == ["skipped"]


def test_groups_run_again(stage):
    calls = []

    @stage.handler("t", batch=10)
    def handle(jobs):
        calls.append(sorted(job.key for job in jobs))
        if {} in [job.body for job in jobs if job.key == "k1"]:
            again("k1", body={"n": 2})

    schedule_many([{"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3)])
    stage.go()
    assert [key for keys in calls for key in keys].count("k1") == 2
    assert not Job.objects.live().exists()


# -- older versions -------------------------------------------------------------------------------


def end_as_an_older_worker(held, state, **columns):
    """End the attempt without knowing of the next run."""
    Job.objects.filter(pk=held.id).update(state=state, lease_until=None, **columns)


@pytest.mark.parametrize("state", [State.FINISHED, State.DEAD, State.CANCELLED])
def test_the_sweep_makes_live_what_an_older_worker_ended(stage, held, db_clock, state):
    again(delay=300, body={"n": 2}, ttr=77)
    now = from_ms(db_clock.now_ms)
    end_as_an_older_worker(held, state, ended_at=now, died_at=now if state is State.DEAD else None)
    assert sweep.sweep()["again"] == 1
    job = live()
    assert (job.body, job.ttr_ms, seconds_from_now(job, db_clock)) == ({"n": 2}, 77_000, 300)
    assert not Job.objects.filter(again=True).exists()
    assert sweep.sweep()["again"] == 0
    db_clock.advance(seconds=300)
    assert len(stage.take("t")) == 1


def test_the_sweep_moves_what_an_older_worker_will_try_again(stage, held, db_clock):
    again(delay=30, body={"n": 2})
    end_as_an_older_worker(held, State.DELAYED, due_at=from_ms(db_clock.now_ms + 600_000))
    assert sweep.sweep()["again"] == 1
    assert (live().pk, live().body, live().again) == (held.id, {"n": 2}, False)
    assert seconds_from_now(live(), db_clock) == 30
    db_clock.advance(seconds=30)
    assert len(stage.take("t")) == 1


def test_the_sweep_forgets_the_next_run_of_a_cancelled_job_and_of_a_key_with_a_newer_job(stage, held, db_clock):
    again()
    end_as_an_older_worker(held, State.CANCELLED, ended_at=from_ms(db_clock.now_ms))
    JobEvent.objects.bulk_create([JobEvent(job_id=held.id, outcome="cancelled", attempt=1, due_ms=0, done_ms=0)])
    schedule("t", "b", delay=0)
    [b] = stage.take("t")
    again("b", body={"n": 2})
    end_as_an_older_worker(b, State.FINISHED, ended_at=from_ms(db_clock.now_ms))
    newer = schedule("t", "b", delay=0)
    assert sweep.sweep()["again"] == 0
    assert [job.pk for job in Job.objects.live()] == [newer.pk]
    assert not Job.objects.filter(again=True).exists()


def test_the_sweep_leaves_running_jobs_alone(held):
    again()
    assert sweep.sweep()["again"] == 0
    assert live().again
