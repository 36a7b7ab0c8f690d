"""A job is claimed just before its handler is called: until then it can be cancelled, moved and run elsewhere."""

import re
import threading
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.utils import timezone
from psycopg.pq import Trace

from delaytasks import Snooze, cancel, databases, mirror, reschedule, schedule, schedule_many
from delaytasks.db import dialects, transitions
from delaytasks.maintenance import sweep
from delaytasks.mirror.base import Settlement
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from delaytasks.worker import process_name, runner
from delaytasks.worker.claim import OFFERED, RESERVE_MS
from project.shop.models import Customer, Order
from tests.support.locks import somebody_waits

from ..support.servers import wait_until
from ..support.stage import Boom, outcomes, state_of


class ProcessEnds(BaseException):
    """As if the process was killed: nothing after it is done."""


def schedule_group(stage, count: int = 5, **options) -> None:
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0, **options} for n in range(count))
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=count)


def kill(monkeypatch, stage) -> None:
    """Run the topic in a process that is killed in the first handler: it neither ends nor hands back a job."""
    with monkeypatch.context() as patch:
        for name in ("end_if_held", "end_and_claim", "unclaim"):
            patch.setattr(transitions, name, lambda *_, **__: (_ for _ in ()).throw(ProcessEnds))
        with pytest.raises(ProcessEnds):
            stage.run("t")


def killed_together(self, group):
    """As Executor.run_together(), but without its handling of errors: the process is gone."""
    if self.handler.batch:
        return self.call(group.begin_all(), group.begun)
    return [self.call([each], each) for each in group]


@pytest.mark.on_both
def test_a_process_that_is_killed_charges_only_the_job_that_had_begun(stage, db_clock, monkeypatch):
    begun = []

    @stage.handler("t", ttr=10, max_attempts=3)
    def killer(job):
        begun.append(job.key)
        raise ProcessEnds

    schedule_group(stage, 20)
    kill(monkeypatch, stage)

    assert begun == ["k0"]
    assert Job.objects.filter(attempt__gt=0).count() == 1
    db_clock.advance(seconds=11)
    sweep.take_back_expired("default")
    assert list(Job.objects.filter(failures__gt=0).values_list("key", flat=True)) == ["k0"]


@pytest.mark.on_both
@pytest.mark.parametrize(
    "options",
    [{"batch": 50}, {"one_commit": True}, {"batch": 50, "atomic": False}],
    ids=["batch handler", "one commit", "without transaction"],
)
def test_a_group_whose_process_was_killed_is_not_charged_and_its_jobs_run_alone(stage, db_clock, monkeypatch, options):
    groups, deadly = [], [True]

    @stage.handler("t", ttr=10, max_attempts=1, **options)
    def killer(jobs):
        group = [job.key for job in (jobs if isinstance(jobs, list) else [jobs])]
        groups.append(group)
        if "k1" in group and deadly[0]:
            raise ProcessEnds

    schedule_group(stage, 4)
    with monkeypatch.context() as patch:
        for name in ("end_if_held", "end_and_claim", "unclaim"):
            patch.setattr(transitions, name, lambda *_, **__: (_ for _ in ()).throw(ProcessEnds))
        patch.setattr(runner.Executor, "run_together", killed_together)
        with pytest.raises(ProcessEnds):
            stage.run("t")
    assert Job.objects.filter(grouped=True, attempt=1).count() == 4
    db_clock.advance(seconds=11)
    assert sweep.take_back_expired("default") == 4
    assert list(Job.objects.values_list("state", "failures", "alone").distinct()) == [(State.DELAYED, 0, True)]

    groups.clear()
    deadly.clear()
    deadly.append(False)
    stage.go()
    assert sorted(groups) == [["k0"], ["k1"], ["k2"], ["k3"]]
    assert outcomes("k1") == ["expired", "finished"]


@pytest.mark.on_both
def test_a_job_that_waits_behind_a_running_one_is_cancelled_moved_and_replaced(stage):
    answers, keys = [], []

    @stage.handler("t")
    def slow(job):
        keys.append(job.key)
        if job.key == "k0":
            answers.append(cancel("t", "k1"))
            reschedule("t", "k2", delay=3600)
            schedule("t", "k3", delay=3600, body={"new": 1}, on_conflict="replace")
            answers.append(cancel("t", "k0"))

    schedule_group(stage)
    stage.run("t")
    assert answers == ["cancelled", "running"]
    assert keys == ["k0", "k4"]
    assert (state_of("k1"), state_of("k2"), state_of("k3")) == ("cancelled", "delayed", "delayed")


@pytest.mark.on_both
def test_jobs_behind_a_slow_call_are_ready_for_others_after_the_reservation(stage, db_clock):
    ran = []

    @stage.handler("t")
    def slow(job):
        ran.append((job.key, job.worker))
        if job.key == "k0":
            db_clock.advance(ms=RESERVE_MS)
            stage.mover.move_due()
            stage.run("t", worker_name="other")

    schedule_group(stage)
    stage.run("t")
    assert ran == [("k0", "w1"), *((f"k{n}", "other") for n in range(1, 5))]
    assert all(outcomes(f"k{n}") == ["finished"] for n in range(5))


def test_a_run_that_ends_early_makes_its_reserved_jobs_ready_again_at_once(stage, db_clock):
    keys = stage.recorder("t")
    schedule_group(stage)
    stage.run("t", stopping=lambda: bool(keys))
    stage.mover.move_due()
    stage.run("t", worker_name="other")
    assert keys == [f"k{n}" for n in range(5)]


@pytest.mark.on_both
def test_lateness_is_the_time_from_the_due_time_to_the_call(stage, db_clock):
    @stage.handler("t")
    def slow(job):
        db_clock.advance(ms=40)

    schedule_group(stage, 4)
    stage.run("t")
    assert [event.late_ms for event in JobEvent.objects.order_by("id")] == [0, 40, 80, 120]
    assert {event.ran_ms for event in JobEvent.objects.all()} == {40}


@pytest.mark.parametrize("options", [{"batch": 50}, {"one_commit": True}], ids=["batch handler", "one commit"])
def test_lateness_of_the_jobs_of_a_group(stage, db_clock, options):
    @stage.handler("t", **options)
    def slow(_):
        db_clock.advance(ms=40)

    schedule_group(stage, 3)
    stage.run("t")
    assert [event.late_ms for event in JobEvent.objects.order_by("id")] == (
        [0, 0, 0] if "batch" in options else [0, 40, 80]
    )


def test_the_lateness_of_a_retry_counts_from_the_due_time_of_the_retry(stage, db_clock):
    @stage.handler("t")
    def fails_once(job):
        if job.attempt == 1:
            raise Boom

    schedule("t", "a", delay=0)
    stage.go()
    db_clock.advance(ms=Job.objects.get().due_ms - db_clock.now_ms + 70)
    stage.go()
    assert [event.late_ms for event in JobEvent.objects.order_by("id")] == [0, 70]


def test_a_run_that_leaves_ready_jobs_starts_the_next_run_before_its_first_job(stage):
    dispatched = []

    @stage.handler("t")
    def slow(job):
        dispatched.append(list(stage.dispatched))

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    stage.mover.move_due()
    stage.dispatched.clear()
    stage.run("t")
    assert dispatched[0] == ["t"]


def test_a_handler_of_a_shared_commit_that_schedules_the_key_of_another_job_keeps_it(stage):
    ran = []

    @stage.handler("t", one_commit=True)
    def meddler(job):
        ran.append(job.key)
        if job.key == "k0":
            assert not schedule("t", "k1", delay=0, on_conflict="keep").is_new

    schedule_group(stage, 2)
    stage.go()
    assert sorted(ran) == ["k0", "k1"]
    assert Job.objects.count() == 2


# -- the claim with the end of the job before ---------------------------------------------------


def statements(stage, monkeypatch) -> list[str]:
    """Record which statements claim and end jobs."""
    used: list[str] = []
    for name in ("claim_first", "end_if_held", "end_and_claim"):
        monkeypatch.setattr(transitions, name, recorded(used, getattr(transitions, name)))
    return used


def recorded(used, function):
    def record(*args, **options):
        used.append(function.__name__)
        return function(*args, **options)

    return record


@pytest.mark.only_on("postgresql")
def test_the_end_of_a_job_claims_the_next_one_in_one_statement(stage, monkeypatch):
    keys, used = stage.recorder("t"), statements(stage, monkeypatch)
    schedule_group(stage, 4)
    stage.run("t")
    assert used == ["claim_first", "end_and_claim", "end_and_claim", "end_and_claim", "end_if_held"]
    assert keys == ["k0", "k1", "k2", "k3"]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("what", ["on_commit", "on_dead", "relaxed", "repeatable read"])
def test_the_end_claims_nothing_where_more_than_the_commit_lies_before_the_next_call(stage, monkeypatch, what):
    options = {"on_dead": {"on_dead": lambda job: None}, "relaxed": {"relaxed_commit": True}}.get(what, {})
    used = statements(stage, monkeypatch)

    @stage.handler("t", **options)
    def plain(job):
        if what == "on_commit":
            transaction.on_commit(lambda: None)

    if what == "repeatable read":
        connection.close()  # the engine reads the default of a connection once
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation TO 'repeatable read'")
    schedule_group(stage, 3)
    try:
        stage.run("t")
    finally:
        connection.close()
    assert "end_and_claim" not in used
    assert all(outcomes(f"k{n}") == ["finished"] for n in range(3))


@pytest.mark.only_on("postgresql")
def test_a_refused_end_claims_nothing(stage):
    @stage.handler("t")
    def overtaken(job):
        if job.key == "k0":
            Job.objects.filter(pk=job.id).update(attempt=9)

    schedule_group(stage, 2)
    stage.run("t")
    assert outcomes("k1") == ["finished"]
    assert Job.objects.get(key="k1").attempt == 1


@pytest.mark.on_both
def test_the_statement_of_a_refused_end_changes_no_candidate(stage):
    """Outside a transaction, where no rollback undoes a claim."""
    stage.recorder("t")
    schedule_group(stage, 2)
    (held,) = stage.take("t", 1)
    candidate = Job.objects.exclude(pk=held.id).get().pk  # both are due at once: either may be the first
    refused = transitions.Ending(held.id, held.attempt + 1, int(State.FINISHED), None, 0, "", worker=held.worker)
    assert transitions.end_and_claim("default", refused, "t", [candidate], "w1") == ({}, None)
    other = Job.objects.get(pk=candidate)
    assert (state_of(held.key), state_of(other.key)) == ("reserved", "delayed")
    accepted = refused._replace(attempt=held.attempt)
    ended, claimed = transitions.end_and_claim("default", accepted, "t", [candidate], "w1")
    assert (set(ended), claimed and claimed.id) == ({held.id}, candidate)


@pytest.mark.only_on("postgresql")
def test_a_failed_claim_does_not_fail_the_handler(stage, monkeypatch):
    calls = []

    @stage.handler("t", max_attempts=1)
    def counted(job):
        calls.append(job.key)

    def deadlock(*_, **__):
        error = OperationalError("deadlock detected")
        error.__cause__ = type("Cause", (Exception,), {"sqlstate": "40P01"})()
        raise error

    monkeypatch.setattr(transitions, "end_and_claim", deadlock)
    schedule_group(stage, 2)
    stage.run("t")
    assert calls == ["k0", "k0", "k1"]
    assert (outcomes("k0"), outcomes("k1")) == (["finished"], ["finished"])


@pytest.fixture
def unconfirmed(stage, monkeypatch) -> Iterator[list[str]]:
    """Lose the connection after the server has committed the end of the first job. Yield the keys that are run."""
    keys = stage.recorder("t")
    backend, lost = type(connections["default"]), []
    commit = backend._commit

    def commit_without_answer(self):
        commit(self)
        if not lost and keys:
            lost.append(keys[-1])
            self.connection.close()
            raise OperationalError("the connection is closed")

    monkeypatch.setattr(backend, "_commit", commit_without_answer)
    monkeypatch.setattr(process_name, "_worker", "w")
    yield keys
    assert lost


@pytest.mark.only_on("postgresql")
def test_a_claim_whose_commit_was_not_confirmed_is_found_and_run(stage, unconfirmed):
    schedule_group(stage, 3)
    stage.run("t")
    assert unconfirmed == ["k0", "k1", "k2"]
    assert all(outcomes(f"k{n}") == ["finished"] for n in range(3))


@pytest.mark.only_on("postgresql")
def test_an_expired_job_whose_claim_was_not_confirmed_is_not_run(stage, db_clock, unconfirmed):
    schedule_group(stage, 3)
    Job.objects.filter(key="k1").update(expires_ms=1)
    db_clock.advance(seconds=1)
    stage.run("t")
    assert unconfirmed == ["k0", "k2"]
    assert outcomes("k1") == ["skipped"]


@pytest.mark.on_both
def test_a_claim_that_was_not_confirmed_is_searched_for_with_one_query(stage, django_assert_num_queries):
    stage.recorder("t")
    schedule_group(stage)
    held = stage.take("t", 1)[0]
    ids = sorted(Job.objects.values_list("pk", flat=True))
    with django_assert_num_queries(2):
        assert transitions.find_claimed("default", ids, held.worker).attempt == held.attempt
        assert transitions.find_claimed("default", ids, "another") is None


@pytest.mark.only_on("postgresql")
def test_jobs_run_in_tables_that_were_created_without_migrations(stage):
    """They lack the function of migration 0039, so the constraints are checked by a statement of their own."""
    keys = []

    @stage.handler("t", max_attempts=1)
    def counted(job):
        keys.append(job.key)
        Job.objects.count()

    with connection.cursor() as cursor:
        cursor.execute("ALTER FUNCTION delaytasks_check_constraints() RENAME TO delaytasks_not_migrated")
    dialects.has_check_function.cache_clear()
    try:
        schedule_group(stage, 3)
        stage.run("t")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER FUNCTION delaytasks_not_migrated() RENAME TO delaytasks_check_constraints")
        dialects.has_check_function.cache_clear()
    assert keys == ["k0", "k1", "k2"]
    assert [outcomes(key) for key in keys] == [["finished"]] * 3


@pytest.mark.only_on("postgresql")
def test_a_claim_that_waited_for_deferred_constraints_has_its_whole_ttr(stage):
    stage.recorder("t")
    dialects.set_clock(None)
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(2))
    first, second = Job.objects.order_by("id").values_list("id", flat=True)
    claimed = transitions.claim_first("default", "t", [first], "w1")
    ending = transitions.Ending(first, claimed.attempt, transitions.FINISHED, None, 0, "", worker="w1")
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute(
            """CREATE OR REPLACE FUNCTION delaytasks_check_constraints() RETURNS boolean LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_sleep(0.2); RETURN true; END $$"""
        )
        ended, claimed = transitions.end_and_claim("default", ending, "t", [second], "w1", check_constraints=True)
        transaction.set_rollback(True)
    assert claimed.reserved_ms - ended[first].now_ms >= 200
    assert abs(claimed.lease_ms - claimed.reserved_ms - claimed.ttr_ms) <= 1


@pytest.mark.only_on("postgresql")
def test_the_end_of_a_job_whose_handler_executed_nothing_is_one_round_trip(stage, tmp_path):
    @stage.handler("t")
    def idle(job):
        if job.key == "k0":
            connection.connection.pgconn.trace(messages.fileno())
            connection.connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)

    schedule_group(stage, 5)
    with (tmp_path / "messages").open("wb") as messages:
        stage.run("t")
        connection.close()
    sent = re.findall(r'^F\t\d+\tQuery\t "([^"]*)', (tmp_path / "messages").read_text(), re.MULTILINE)
    assert ["claimed" in query for query in sent[:5]] == [True] * 4 + [False]


@pytest.mark.only_on("postgresql")
def test_the_end_of_a_job_offers_only_a_few_of_the_reserved_jobs(stage, monkeypatch):
    offered = []
    end_and_claim = transitions.end_and_claim

    def record(using, ending, topic, ids, worker, **options):
        offered.append(len(ids))
        return end_and_claim(using, ending, topic, ids, worker, **options)

    monkeypatch.setattr(transitions, "end_and_claim", record)
    keys = stage.recorder("t")
    schedule_group(stage, 20)
    stage.run("t")
    assert keys == sorted(f"k{n}" for n in range(20))
    assert offered == [OFFERED] * 12 + [7, 6, 5, 4, 3, 2, 1]


@pytest.mark.on_both
def test_if_none_of_the_offered_jobs_is_free_others_run_and_the_mirror_is_corrected(stage):
    keys = []

    @stage.handler("t")
    def meddles(job):
        keys.append(job.key)
        if job.key == "k0":
            cancelled = {"state": State.CANCELLED, "ended_at": timezone.now()}
            Job.objects.exclude(key__in=["k0", "k99"]).update(**cancelled)

    schedule_group(stage, OFFERED + 2)
    schedule("t", "k99", delay=0)
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=OFFERED + 3)
    stage.run("t")
    assert keys == ["k0", "k99"]
    index = mirror.connect()
    assert index is None or set(index.scores([(job.pk, "t") for job in Job.objects.all()])) == {(None, None)}


@pytest.mark.on_both
@pytest.mark.parametrize("ms", [0, 2 * RESERVE_MS], ids=["quick", "slow"])
def test_jobs_that_must_run_alone_are_run_after_a_group_however_slow_it_is(stage, db_clock, ms):
    groups = []

    @stage.handler("t", batch=50)
    def batch(jobs):
        groups.append([job.key for job in jobs])
        db_clock.advance(ms=ms)

    schedule_group(stage, 4)
    Job.objects.filter(key__in=["k0", "k2"]).update(alone=True)
    stage.run("t")
    assert groups == [["k1", "k3"], ["k0"], ["k2"]]
    index = mirror.connect()
    assert index is None or set(index.scores([(job.pk, "t") for job in Job.objects.all()])) == {(None, None)}


@pytest.mark.on_both
def test_a_reserved_job_that_was_not_claimed_keeps_its_place(stage, db_clock):
    keys = stage.recorder("t")
    schedule_many({"topic": "t", "key": key, "delay": 0} for key in ("k0", "k1"))
    schedule("t", "later", delay=5)
    db_clock.advance(ms=10_000)
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=2)
    stage.run("t", stopping=lambda: bool(keys))
    runner._paces["t"].size = 1  # the order of the jobs of one reservation is the database's
    stage.go()
    assert keys == ["k0", "k1", "later"]


@pytest.mark.on_both
def test_only_the_process_that_claimed_an_attempt_ends_it(stage):
    """A claim that the server lost in a crash may be followed by another one with the same number."""
    stage.recorder("t")
    schedule_group(stage, 1)
    (held,) = stage.take("t")
    ending = transitions.Ending(held.id, held.attempt, int(State.FINISHED), None, 0, "", worker="another")
    assert transitions.end_if_held("default", [ending]) == {}
    assert held.id in transitions.end_if_held("default", [ending._replace(worker=held.worker)])


@pytest.mark.only_on("postgresql")
def test_a_payment_that_holds_a_referenced_row_cancels_the_next_job_without_a_deadlock(stage):
    """The handler's foreign key is checked at its commit, if not before the next job is claimed."""
    customer = Customer.objects.create(name="c", email="c@shop.example")
    answers, locked = [], threading.Event()

    def pay():
        with transaction.atomic():
            Customer.objects.select_for_update().get(pk=customer.pk)
            locked.set()
            wait_until(somebody_waits, seconds=30, what="the handler's session to wait for the customer")
            answers.append(cancel("t", "k1"))
        connection.close()

    payment = threading.Thread(target=pay)

    @stage.handler("t")
    def orders(job):
        if job.key == "k0":
            Order.objects.create(customer=customer, pay_by=timezone.now())
            payment.start()
            locked.wait(30)

    schedule_group(stage, 3)
    stage.run("t")
    payment.join(30)
    assert answers == ["cancelled"]
    assert (outcomes("k0"), outcomes("k1"), outcomes("k2")) == (["finished"], ["cancelled"], ["finished"])


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("change", "end"),
    [
        (lambda: schedule("t", "k0", delay=3600, on_conflict="again"), "finished"),
        (lambda: cancel("t", "k0", running="fence"), "cancelled"),
    ],
    ids=["scheduled again", "fenced"],
)
def test_an_end_that_waited_for_a_change_of_its_job_sees_the_change(stage, change, end):
    """The statement began before the change was committed, and has checked the deferred constraints."""
    keys, changed = [], threading.Event()

    def other():
        with transaction.atomic():
            change()
            changed.set()
            wait_until(somebody_waits, seconds=30, what="the end of the job to wait for its row")
        connection.close()

    thread = threading.Thread(target=other)

    @stage.handler("t")
    def counts(job):
        keys.append(job.key)
        Customer.objects.create(name=job.key, email=f"{job.key}@shop.example")
        if job.key == "k0":
            thread.start()
            changed.wait(30)

    schedule_group(stage, 2)
    stage.run("t")
    thread.join(30)
    assert keys == ["k0", "k1"]
    assert (outcomes("k0"), outcomes("k1")) == ([end], ["finished"])
    assert Customer.objects.filter(name="k0").exists() == (end == "finished")


def test_a_snoozed_job_is_run_again_by_its_own_run(stage, db_clock):
    """Without a mirror, the run left it out until the end of the lease that the snooze had ended."""
    keys = []

    @stage.handler("t")
    def slow(job):
        keys.append(job.key)
        db_clock.advance(ms=200)
        stage.mover.move_due()
        return Snooze(0.3) if keys == ["k0"] else None

    schedule_many({"topic": "t", "key": f"k{n}", "delay": n / 10} for n in range(12))
    stage.mover.move_due()
    stage.run("t")
    assert keys.index("k0", 1) < 8


def test_without_a_mirror_a_locked_row_does_not_dispatch_its_topic_again_and_again(stage, settings):
    """The run sees no other ready job, and the mover looks again later."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None}
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    index = mirror.choose("default")
    now_ms = databases.now_ms("default")
    assert index.ready_counts(["t"]) == {"t": 1}
    index.postpone([Settlement(Job.objects.get().pk, "t", now_ms, now_ms + 60_000)])
    assert index.ready_counts(["t"]) == {}
    schedule("t", key="b", delay=0)
    assert index.ready_counts(["t"]) == {"t": 1}
    assert mirror.choose("default").ready_counts(["t"]) == {"t": 1}, "another run tries the row anew"
