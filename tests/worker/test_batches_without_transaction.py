"""batch= with atomic=False: each job of a batch has an end of its own, and all are ended in one statement."""

from django.db import connection

from delaytasks import Skip, Snooze, schedule, schedule_many
from delaytasks.db import transitions
from delaytasks.exceptions import TTRExceeded
from delaytasks.models import Job, JobEvent
from delaytasks.worker import runner

from ..support.stage import Boom, outcomes, state_of


class Statements(list[str]):
    """The statements that end attempts."""

    def __call__(self, execute, sql, params, many, context):
        if "state = next_state" in sql:
            self.append(sql)
        return execute(sql, params, many, context)


def fill(stage, count, **options):
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0, **options} for n in range(count))
    runner._paces["t"] = runner.Pace(size=max(count, 1))


def by_key(jobs):
    return {job.key: job for job in jobs}


def test_each_job_of_a_batch_has_its_own_end_in_one_statement(stage):
    died = []

    @stage.handler("t", batch=10, atomic=False, give_up_on=KeyError, on_dead=lambda job: died.append(job.key))
    def some(jobs):
        assert not connection.in_atomic_block
        found = by_key(jobs)
        results = {"k1": Snooze(5), "k2": Skip("no need"), "k3": Boom("k3 is bad"), "k4": KeyError("never")}
        return {found[key].id: result for key, result in results.items()}

    fill(stage, 6)
    statements = Statements()
    with connection.execute_wrapper(statements):
        stage.mover.move_due()
        stage.run("t")
    ends = [outcomes(f"k{n}") for n in range(6)]
    assert ends == [["finished"], ["snoozed"], ["skipped"], ["failed"], ["dead"], ["finished"]]
    assert len(statements) == 1
    assert list(Job.objects.order_by("id").values_list("failures", flat=True)) == [0, 0, 0, 1, 1, 0]
    assert "k3 is bad" in JobEvent.objects.get(job__key="k3").error
    assert died == ["k4"]


def test_if_the_call_raises_its_jobs_run_alone_and_only_the_bad_one_fails(stage):
    sizes = []

    @stage.handler("t", batch=10, atomic=False, max_attempts=1)
    def some(jobs):
        sizes.append(len(jobs))
        if "k1" in by_key(jobs):
            raise Boom("k1 is bad")

    fill(stage, 3)
    stage.go()
    assert sizes == [3, 1, 1, 1]
    assert [state_of(f"k{n}") for n in range(3)] == ["finished", "dead", "finished"]


def test_a_job_that_was_lost_does_not_keep_the_others_from_their_ends_and_nothing_is_called_again(stage):
    calls = []

    @stage.handler("t", batch=10, atomic=False)
    def overtaken(jobs):
        calls.append(len(jobs))
        lost = transitions.Ending(jobs[1].id, jobs[1].attempt, 4, None, 0, "", worker=jobs[1].worker)
        transitions.end_if_held("default", [lost])
        return {jobs[2].id: Boom()}

    fill(stage, 3)
    stage.mover.move_due()
    stage.run("t")
    assert calls == [3]
    assert [outcomes(f"k{n}") for n in range(3)] == [["finished"], ["finished"], ["failed"]]


def test_an_interrupted_batch_keeps_its_ends_and_the_rest_is_taken_back_uncharged_to_run_alone(stage, db_clock):
    calls = []

    @stage.handler("t", batch=10, atomic=False, ttr=10)
    def interrupted(jobs):
        calls.append(sorted(by_key(jobs)))
        if len(jobs) > 1:
            db_clock.advance(seconds=10)
            error = TTRExceeded()
            return {job.id: error for job in jobs if job.key in ("k1", "long")}
        return None

    schedule("t", "long", delay=0, ttr=3600)  # its own TTR is not over
    fill(stage, 3)
    runner._paces["t"] = runner.Pace(size=4)
    stage.mover.move_due()
    stage.run("t", stopping=lambda: bool(calls))
    rows = Job.objects.filter(key__in=("k1", "long")).values_list("state", "failures", "alone")
    assert list(rows) == [(1, 0, True)] * 2
    assert [outcomes(key) for key in ("k0", "k2")] == [["finished"]] * 2
    assert [outcomes(key) for key in ("k1", "long")] == [["expired"]] * 2
    stage.dispatched.append("t")
    stage.go()
    assert calls[0] == ["k0", "k1", "k2", "long"]
    assert sorted(calls[1:]) == [["k1"], ["long"]]
    assert (state_of("k1"), state_of("long")) == ("finished", "finished")


def test_a_job_that_is_interrupted_alone_is_charged(stage, db_clock):
    calls = []

    @stage.handler("t", batch=1, atomic=False, ttr=10)
    def interrupted(jobs):
        calls.append(len(jobs))
        db_clock.advance(seconds=10)
        return {jobs[0].id: TTRExceeded()}

    fill(stage, 1)
    stage.mover.move_due()
    stage.run("t", stopping=lambda: bool(calls))
    assert (outcomes("k0"), Job.objects.get().failures) == (["expired"], 1)
