"""What missed=, within= and running= decide when a firing begins."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from delaytasks import cancel, handlers, reschedule, run_now, schedule
from delaytasks.db import schedules as statements
from delaytasks.db import transitions
from delaytasks.maintenance import sweep
from delaytasks.models import Job, JobEvent, ScheduleRun, Topic
from delaytasks.recurrence import begin, maker, schedules
from delaytasks.states import State
from delaytasks.worker import leases

from .conftest import START, run_until

HOUR = timedelta(hours=1)
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def skipped(monkeypatch) -> list[tuple[str, str]]:
    """Record (key, reason) of each firing that ends as skipped."""
    found: list[tuple[str, str]] = []

    def record(job, reason):
        found.append((job.key, reason))
        return end(job, reason)

    end = begin.end_as_skipped
    monkeypatch.setattr(begin, "end_as_skipped", record)
    return found


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        ({"missed": "all"}, 18),
        ({"missed": "last"}, 1),
        ({"missed": "none"}, 1),  # the one due when the outage ends is not late
        ({"missed": "all", "within": 3600}, 7),  # those of the last hour, both ends
        ({"missed": "last", "within": 60}, 1),
        ({"missed": "none", "within": 1800}, 4),
    ],
)
def test_an_outage_of_three_hours(define, stage, db_clock, skipped, options, ran):
    ticks = stage.recorder("tick")
    define(**options)
    db_clock.advance(seconds=3 * 3600)
    maker.make_due("default")
    stage.go()
    assert len(ticks) == ran
    assert len(ticks) + len(skipped) == 18
    assert len(set(ticks)) == ran
    assert max(ticks) == "tick@2030-01-01T03:00:00"
    assert {reason for _key, reason in skipped} <= {"late", "missed"}
    assert Job.objects.filter(ended_at=None).count() == 1  # the next


def test_none_skips_a_firing_that_is_a_little_too_late(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick")
    define(missed="none")
    db_clock.advance(seconds=600 + 61)
    stage.go()
    assert ticks == []
    assert skipped == [("tick@2030-01-01T00:10:00", "late")]


@pytest.mark.parametrize(
    ("cancelled", "ran"), [(["00:30"], "00:20"), (["00:20", "00:30"], "00:10"), (["00:20"], "00:30")]
)
def test_of_overdue_firings_the_last_that_nobody_cancelled_runs(define, stage, db_clock, skipped, cancelled, ran):
    ticks = stage.recorder("tick")
    define(missed="last")
    db_clock.advance(seconds=1801)
    maker.make_due("default")
    for time in cancelled:
        assert cancel("tick", f"tick@2030-01-01T{time}:00", by="anna") == "cancelled"
    stage.go()
    assert ticks == [f"tick@2030-01-01T{ran}:00"]


@pytest.mark.on_both
@pytest.mark.parametrize("cron", ["0 13 * * *", "*/30 * * * *"])
def test_the_last_overdue_firing_runs_after_a_change_to_times_that_have_passed(define, stage, db_clock, skipped, cron):
    ticks = stage.recorder("tick")
    define(every=None, cron="0 11,12 * * *")
    db_clock.advance(seconds=14 * 3600)
    maker.make_due("default")
    define(every=None, cron=cron)
    stage.go()
    assert ticks == ["tick@2030-01-01T12:00:00"]


@pytest.mark.on_both
def test_the_last_overdue_firing_runs_after_a_pause(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick")
    define(every=None, cron="0 * * * *")
    db_clock.advance(seconds=2.5 * 3600)
    maker.make_due("default")
    schedules.pause("tick")
    db_clock.advance(seconds=3600)
    schedules.resume("tick")
    stage.go()
    assert ticks == ["tick@2030-01-01T02:00:00"]
    assert skipped == [("tick@2030-01-01T01:00:00", "missed")]


@pytest.mark.on_both
@pytest.mark.parametrize("waits", [True, False])
def test_the_last_overdue_firing_is_that_of_the_zone_further_west(define, stage, db_clock, skipped, waits):
    ticks, times = stage.recorder("tick"), {"every": None, "cron": "0 9,14 * * *"}
    define(**times)
    run_until(stage, db_clock, START + 9 * HOUR, step_seconds=1800)
    db_clock.advance(seconds=5.5 * 3600)
    define(**times, tz="America/Chicago")  # where it is 8:30
    db_clock.advance(seconds=3600)
    if waits:
        Job.objects.filter(key="tick@2030-01-01T14:00:00").update(due_at=START + 15.4 * HOUR)
    stage.guard()
    stage.go()
    assert ticks == ["tick@2030-01-01T09:00:00"] * 2
    assert skipped == [("tick@2030-01-01T14:00:00", "missed")]


@pytest.mark.on_both
def test_the_last_overdue_firing_of_the_former_zone_runs_after_a_change_to_one_further_east(
    define, stage, db_clock, skipped
):
    ticks, times = stage.recorder("tick"), {"every": None, "cron": "0 9,14 * * *"}
    define(**times)
    for _ in range(2):
        db_clock.advance(seconds=7.5 * 3600)
        maker.make_due("default")
    define(**times, tz="Asia/Tokyo")  # where it is midnight
    stage.guard()
    stage.go()
    assert ticks == ["tick@2030-01-01T14:00:00"]
    assert skipped == [("tick@2030-01-01T09:00:00", "missed")]


def test_a_later_firing_that_somebody_ran_early_makes_none_missed(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick")
    define(every=1, missed="last")
    run_now("tick", "tick@2030-01-01T00:00:05")
    stage.go()
    run_until(stage, db_clock, START + timedelta(seconds=6), step_seconds=1)
    assert [key[-1] for key in ticks] == ["5", "1", "2", "3", "4", "6"]
    assert skipped == []


@pytest.mark.only_on("postgresql")
def test_finding_a_later_firing_reads_only_those(define, stage, db_clock):
    stage.recorder("tick")
    define()
    (job,) = Job.objects.values()
    keys = (f"tick@2029-{n}" for n in range(5_000))
    past = job | {"id": None, "state": State.FINISHED, "attempt": 1, "ended_at": START}
    Job.objects.bulk_create((Job(**past | {"key": key}) for key in keys), batch_size=5_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delaytasks_job")
        cursor.execute("EXPLAIN " + statements.has_later_sql("default"), ["tick", "tick@2029", "tick@:", 6, 0, 0, 0])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "delaytasks_job_key" in plan
    assert "Sort" not in plan


def test_what_somebody_moved_runs_however_late(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick")
    define(missed="none", within=1)
    reschedule("tick", "tick@2030-01-01T00:10:00", delay=1200)
    run_until(stage, db_clock, START + HOUR / 2)
    assert "tick@2030-01-01T00:10:00" in ticks


def test_a_retry_is_not_missed(define, stage, db_clock, skipped):
    tries = []

    @stage.handler("tick", max_attempts=5)
    def fails_once(job):
        tries.append(job.key)
        if len(tries) == 1:
            raise handlers.Retry("again", delay=1500)

    define(missed="none")
    run_until(stage, db_clock, START + HOUR)
    assert tries.count("tick@2030-01-01T00:10:00") == 2


def test_jobs_that_are_no_firings_are_not_looked_up(stage, db_clock, django_assert_num_queries):
    from types import SimpleNamespace

    for key in ("order:1042", "anna@example.org", "tick@noon", "tick@2030-01-01", "a b@2030-01-01T00:00:00"):
        with django_assert_num_queries(0):
            assert begin.decide(SimpleNamespace(key=key, topic="t", using="default")) is None  # type: ignore[arg-type]


def test_a_batch_skips_some_and_runs_the_rest(define, stage, db_clock, skipped):
    batches = []

    @stage.handler("tick", batch=50)
    def handle(jobs):
        batches.append([job.key for job in jobs])

    define(missed="last", running="allow")
    db_clock.advance(seconds=1800)
    maker.make_due("default")
    stage.go()
    assert batches == [["tick@2030-01-01T00:30:00"]]
    assert len(skipped) == 2
    assert Job.objects.filter(state=State.RESERVED).count() == 0


# -- running ------------------------------------------------------------------------------------


def hold_one(stage, define, db_clock, **options):
    """Let another worker hold the first firing, with its begin noted. Return that claim."""
    define(missed="all", **options)
    db_clock.advance(seconds=601)
    maker.make_due("default")
    (held,) = stage.take("tick")
    assert begin._occupied(begin._find("default", "tick", "tick"), held) is False  # type: ignore[arg-type]
    db_clock.advance(seconds=5)
    return held


@pytest.mark.parametrize(("running", "ran"), [("skip", 0), ("queue", 0), ("allow", 1)])
def test_while_a_run_is_running(define, stage, db_clock, skipped, running, ran):
    ticks = stage.recorder("tick", ttr=3600)
    held = hold_one(stage, define, db_clock, running=running)
    db_clock.advance(seconds=600)
    maker.make_due("default")
    stage.go()
    second = "tick@2030-01-01T00:20:00"
    assert ticks == [second] * ran
    assert skipped == ([(second, "running")] if running == "skip" else [])
    held.finish()
    run_until(stage, db_clock, START + timedelta(minutes=21), step_seconds=2)
    assert ticks == ([] if running == "skip" else [second])


@pytest.mark.parametrize("late_made", [True, False])
def test_with_missed_all_overdue_firings_wait_for_each_other(define, stage, db_clock, skipped, late_made):
    ticks = stage.recorder("tick", ttr=3600)
    define(missed="all", running="skip")
    for _ in range(1 if late_made else 4):
        db_clock.advance(seconds=2401 if late_made else 601)
        maker.make_due("default")
    stage.guard()
    (held,) = stage.take("tick", 1)
    assert begin._occupied(begin._find("default", "tick", "tick"), held) is False  # type: ignore[arg-type]
    db_clock.advance(seconds=1)
    stage.go()
    assert skipped == [("tick@2030-01-01T00:40:00", "running")]  # it is not overdue
    held.finish()
    run_until(stage, db_clock, START + timedelta(minutes=42), step_seconds=5)
    assert [key[-8:-3] for key in ticks] == ["00:20", "00:30"]


def test_with_missed_all_the_newest_overdue_firing_waits_too(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick", ttr=3600)
    define(every=None, cron="0 2 * * *", missed="all", running="skip")
    db_clock.advance(seconds=34 * 3600)
    maker.make_due("default")
    stage.guard()
    (held,) = stage.take("tick", 1)
    assert begin._occupied(begin._find("default", "tick", "tick"), held) is False  # type: ignore[arg-type]
    stage.go()
    held.finish()
    run_until(stage, db_clock, START + timedelta(hours=34, minutes=1), step_seconds=5)
    assert (ticks, skipped) == (["tick@2030-01-02T02:00:00"], [])


@pytest.mark.parametrize("why", ["retried", "moved", "run now"])
def test_what_is_no_first_attempt_at_its_time_waits_for_the_other(define, stage, db_clock, skipped, why):
    ran = []

    @stage.handler("tick", max_attempts=5, ttr=3600)
    def fails_at_first(job):
        ran.append(job.key)
        if why == "retried" and len(ran) == 1:
            raise handlers.Retry("again", delay=605)

    define(missed="all")
    waits = "tick@2030-01-01T00:10:00"
    if why == "moved":
        reschedule("tick", waits, delay=1205)
    run_until(stage, db_clock, START + timedelta(minutes=19))
    db_clock.advance(seconds=62)
    (held,) = stage.take("tick")
    assert held.key == "tick@2030-01-01T00:20:00"
    assert begin._occupied(begin._find("default", "tick", "tick"), held) is False  # type: ignore[arg-type]
    if why == "run now":
        waits = schedules.run_now("tick").key
    before = len(ran)
    run_until(stage, db_clock, START + timedelta(minutes=21), step_seconds=5)
    assert (ran[before:], skipped) == ([], [])
    held.finish()
    run_until(stage, db_clock, START + timedelta(minutes=22), step_seconds=5)
    assert (ran[before:], skipped) == ([waits], [])


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("options", "expires", "ran"), [({"missed": "last"}, None, ["00:50"]), ({"within": 900}, None, ["00:40", "00:50"]),
                                    ({}, 900, ["00:40", "00:50"]), ({}, None, ["00:20", "00:30", "00:40", "00:50"])],
    ids=str)  # fmt: skip
@pytest.mark.parametrize("late_made", [True, False])
def test_what_waits_for_a_run_is_missed_as_anything_else_and_has_no_events(
    define, stage, db_clock, options, expires, ran, late_made
):
    ticks = stage.recorder("tick", ttr=3 * 3600, expires=expires)
    held = hold_one(stage, define, db_clock, running="queue")
    define(running="queue", **{"missed": "all"} | options)
    if late_made:
        db_clock.advance(seconds=1860)  # to 00:41
    run_until(stage, db_clock, START + timedelta(minutes=52), step_seconds=60)
    assert ticks == []
    held.finish()
    run_until(stage, db_clock, START + timedelta(minutes=53), step_seconds=5)
    assert sorted(key[-8:-3] for key in ticks) == ran  # each looks once a second, so any of them may be the first
    assert Job.objects.get(key=ticks[0]).attempt > 1
    assert JobEvent.objects.filter(job__key=ticks[0]).count() == 1


@pytest.mark.parametrize("atomic", [True, False])
def test_the_other_jobs_of_a_batch_do_not_wait(define, stage, db_clock, atomic):
    ran = []

    @stage.handler("tick", batch=50, ttr=3600, atomic=atomic)
    def handle(jobs):
        ran.extend(job.key for job in jobs)

    held = hold_one(stage, define, db_clock, running="queue")
    schedule("tick", "order:1", delay=595)
    db_clock.advance(seconds=600)
    maker.make_due("default")
    stage.guard()
    stage.go()
    assert ran == ["order:1"]
    held.finish()
    db_clock.advance(seconds=2)
    stage.go()
    assert ran == ["order:1", "tick@2030-01-01T00:20:00"]


@pytest.mark.on_both
@pytest.mark.parametrize("why", ["moved", "run early", "run now"])
@pytest.mark.parametrize("minutes", [15, 25])
def test_what_somebody_moved_or_ran_now_expires_while_it_waits(define, stage, db_clock, why, minutes):
    ticks = stage.recorder("tick", ttr=3600, expires=1200)
    held, waits = hold_one(stage, define, db_clock, running="queue"), "tick@2030-01-01T00:20:00"
    if why == "moved":
        reschedule("tick", waits, delay=1)
    elif why == "run early":
        run_now("tick", waits)
    else:
        waits = schedules.run_now("tick").key
    schedules.pause("tick")
    run_until(stage, db_clock, START + timedelta(minutes=10 + minutes))
    held.finish()
    run_until(stage, db_clock, START + timedelta(minutes=11 + minutes), step_seconds=5)
    assert ticks == ([waits] if minutes == 15 else [])
    event = JobEvent.objects.filter(job__key=waits, reserved_ms__isnull=False).get()
    assert (event.outcome, event.reason) == (("finished", "") if minutes == 15 else ("skipped", "late"))


def test_a_backfill_that_waits_is_not_missed(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick", ttr=3600)
    held = hold_one(stage, define, db_clock, running="queue", within=60)
    define(running="queue", missed="last", within=60)
    assert schedules.backfill("tick", START, START) == 1
    run_until(stage, db_clock, START + timedelta(minutes=15), step_seconds=5)
    held.finish()
    run_until(stage, db_clock, START + timedelta(minutes=16), step_seconds=5)
    assert (ticks, skipped) == (["tick@2030-01-01T00:00:00"], [])


@pytest.mark.on_both
def test_a_firing_that_a_stopping_worker_gave_back_can_be_missed(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick")
    define(within=60)
    db_clock.advance(seconds=605)
    maker.make_due("default")
    (held,) = stage.take("tick", 1)
    assert transitions.unclaim("default", [(held.id, held.attempt)])
    db_clock.advance(seconds=300)
    stage.guard()
    stage.go()
    assert ticks == []
    assert skipped == [("tick@2030-01-01T00:10:00", "late")]


@pytest.mark.on_both
def test_a_change_of_the_zone_does_not_excuse_what_is_late(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick")
    define(every=None, cron="0 12 * * *", within=3600)
    db_clock.advance(seconds=20 * 3600)
    define(every=None, cron="0 12 * * *", within=3600, tz="Europe/Berlin")
    stage.guard()
    stage.go()
    assert ticks == []
    assert skipped == [("tick@2030-01-01T12:00:00", "late")]


def test_a_backfill_beside_a_run_is_skipped(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick", ttr=3600)
    hold_one(stage, define, db_clock, running="skip")
    assert schedules.backfill("tick", START, START) == 1
    stage.go()
    assert ticks == []
    assert skipped == [("tick@2030-01-01T00:00:00", "running")]


def test_a_run_whose_worker_died_does_not_hold_the_next(define, stage, db_clock, skipped):
    ticks = stage.recorder("tick", ttr=60)
    hold_one(stage, define, db_clock, running="skip")
    db_clock.advance(seconds=600)  # its TTR is over
    maker.make_due("default")
    stage.go()
    assert "tick@2030-01-01T00:20:00" in ticks
    assert skipped == []


def test_a_run_marks_itself(define, stage, db_clock):
    stage.recorder("tick")
    define()
    run_until(stage, db_clock, START + timedelta(minutes=10))
    assert ScheduleRun.objects.get().job_id == Job.objects.get(key="tick@2030-01-01T00:10:00").pk


@pytest.mark.only_on("postgresql")
def test_the_second_of_two_atomic_runs_is_skipped_and_the_chain_goes_on(define, stage, db_clock, skipped):
    begun, go_on = threading.Event(), threading.Event()

    @stage.handler("tick", concurrency=4, ttr=3600)
    def slow(job):
        begun.set()
        assert go_on.wait(30)

    def run_first() -> None:
        try:
            stage.run("tick")
        finally:
            connection.close()

    define(missed="all")
    db_clock.advance(seconds=600)
    assert maker.make_due("default") == 1
    stage.mover.move_due()
    first = threading.Thread(target=run_first)
    first.start()
    assert begun.wait(30)
    db_clock.advance(seconds=600)
    assert maker.make_due("default") == 1
    sweep.sweep("default")
    stage.mover.move_due()
    stage.run("tick", worker_name="w2")
    go_on.set()
    first.join(30)
    assert skipped == [("tick@2030-01-01T00:20:00", "running")]


# -- consumers over HTTP ------------------------------------------------------------------------


def reserve(stage) -> list[str]:
    """Reserve all ready jobs of the topic "tick" for a consumer. Return the times of day in their keys."""
    stage.guard()
    stage.mover.move_due()
    jobs = leases.reserve("tick", 10, using="default", worker="consumer")
    return [job.key[-8:-3] for job in jobs]


@pytest.fixture
def consumed() -> None:
    Topic.objects.create(name="tick")


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("options", "got", "reason"),
    [({"missed": "last"}, "00:30", "missed"), ({"missed": "all", "within": 60}, "00:30", "late")],
)
def test_a_consumer_gets_no_firing_that_was_missed(define, stage, consumed, db_clock, options, got, reason):
    define(**options)
    db_clock.advance(seconds=1801)
    maker.make_due("default")
    assert reserve(stage) == [got]
    events = JobEvent.objects.values_list("job__key", "outcome", "reason")
    assert set(events) == {(f"tick@2030-01-01T00:{n}0:00", "skipped", reason) for n in (1, 2)}


@pytest.mark.on_both
@pytest.mark.parametrize(("running", "later"), [("skip", []), ("queue", ["00:20"])])
def test_a_consumer_gets_a_firing_when_the_run_before_has_ended(define, stage, consumed, db_clock, running, later):
    define(running=running, ttr=3600)
    db_clock.advance(seconds=601)
    maker.make_due("default")
    assert reserve(stage) == ["00:10"]
    db_clock.advance(seconds=600)
    maker.make_due("default")
    assert reserve(stage) == []
    leases.finish(Job.objects.get(state=State.RESERVED).pk, 1, using="default")
    db_clock.advance(seconds=2)
    assert reserve(stage) == later


def test_a_consumer_gets_no_firing_of_a_paused_schedule(define, stage, consumed, db_clock):
    define()
    db_clock.advance(seconds=601)
    schedules.pause("tick")
    assert reserve(stage) == []
    assert JobEvent.objects.get().reason == "paused"


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("time", "tz"),
    [("2030-02-30", "UTC"), ("0001-01-01", "Etc/GMT-14"), ("9999-12-31", "Etc/GMT+12")],
)
def test_a_key_that_only_looks_like_that_of_a_firing_holds_up_nothing(define, stage, consumed, db_clock, time, tz):
    define(tz=tz)
    schedule("tick", f"tick@{time}T12:00:00", delay=600)
    schedules.pause("tick")
    schedules.resume("tick")
    db_clock.advance(seconds=601)
    assert len(reserve(stage)) == 2


def test_of_the_runs_overdue_when_clocks_are_set_back_only_the_last_one_runs(define, stage, db_clock):
    ran = stage.recorder("tick")
    db_clock.advance(seconds=(datetime(2030, 10, 27, 0, 20, tzinfo=UTC) - START).total_seconds())
    define(every=None, cron="*/15 * * * *", tz="Europe/Berlin")
    db_clock.advance(seconds=3600)
    maker.make_due("default")
    stage.go()
    assert ran == ["tick@2030-10-27T02:15:00/2"]
