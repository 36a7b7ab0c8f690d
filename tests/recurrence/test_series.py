"""Series: schedule() with period=, repeat=, cron= and rrule=, and their end by cancel()."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from delaytasks import cancel, cancel_many, jobs_of, reschedule, run_now, schedule
from delaytasks.db import dialects
from delaytasks.db import schedules as sql
from delaytasks.exceptions import BadDelay, BadInput, BadKey, BadSchedule, BadTimeZone, KeyIsLive, NotLive, UnknownTopic
from delaytasks.jobs.series import is_firing
from delaytasks.models import Job, JobEvent, Schedule, ScheduleRun
from delaytasks.recurrence import maker, schedules, series
from delaytasks.states import State
from project.shop.models import Customer, Order

from .conftest import START, run_until

KEY = "order:1042"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def runs(stage):
    """Return the times of day at which jobs of the topic "tick" have run."""
    stage.recorder("tick")

    def times() -> list[str]:
        rows = Job.objects.filter(topic="tick", state=State.FINISHED).order_by("due_at")
        return [row.due_at.strftime("%H:%M:%S") for row in rows]

    return times


def make_order() -> Order:
    return Order.objects.create(id=1042, pay_by=START, customer=Customer.objects.create())


def live() -> list[str]:
    return [job.key for job in Job.objects.filter(ended_at=None).order_by("due_at")]


# -- times: the precedence of ActiveMQ's scheduled messages -------------------------------------


@pytest.mark.on_both
def test_repeat_n_is_n_plus_1_runs(runs, stage, db_clock):
    job = schedule("tick", KEY, delay=10, period=30, repeat=3, body={"order": 1042}, ttr=5)
    assert (job.is_new, job.key, job.body, job.ttr_ms) == (True, f"{KEY}#2030-01-01T00:00:10", {"order": 1042}, 5000)
    run_until(stage, db_clock, START + timedelta(minutes=10), step_seconds=5)
    assert runs() == ["00:00:10", "00:00:40", "00:01:10", "00:01:40"]
    assert Schedule.objects.get().ended


def test_without_delay_the_first_run_is_at_once(runs, stage, db_clock):
    schedule("tick", KEY, period=30, repeat=1)
    run_until(stage, db_clock, START + timedelta(minutes=2), step_seconds=5)
    assert runs() == ["00:00:00", "00:00:30"]


def test_due_at_is_the_first_run(runs, stage, db_clock):
    schedule("tick", KEY, due_at=START + timedelta(minutes=1), period=60, repeat=1)
    schedule("tick", "past", due_at=START - timedelta(days=1), period=60, repeat=1)  # a past time means now
    run_until(stage, db_clock, START + timedelta(minutes=5), step_seconds=5)
    assert runs() == ["00:00:00", "00:01:00", "00:01:00", "00:02:00"]


@pytest.mark.parametrize("fraction", [0, 0.25])
@pytest.mark.parametrize("count", [1, 3])
def test_a_rule_that_starts_now_loses_no_run(runs, stage, db_clock, count, fraction):
    db_clock.advance(seconds=fraction)
    schedule("tick", KEY, rrule=f"FREQ=MINUTELY;COUNT={count}")
    run_until(stage, db_clock, START + timedelta(minutes=10), step_seconds=5)
    assert len(runs()) == count


def test_cron_starts_each_series_of_delay_period_and_repeat(runs, stage, db_clock):
    schedule("tick", KEY, cron="30 * * * *", delay=10, period=60, repeat=2)
    run_until(stage, db_clock, START + timedelta(hours=2), step_seconds=20)
    assert runs() == ["00:30:10", "00:31:10", "00:32:10", "01:30:10", "01:31:10", "01:32:10"]


def test_no_time_of_cron_before_the_call_starts_a_series(runs, db_clock):
    assert schedule("tick", KEY, cron="0 9 * * *", delay=timedelta(days=3)).key == f"{KEY}#2030-01-04T09:00:00"


def test_none_stands_for_no_cron_and_no_rule(runs, db_clock):
    assert schedule("tick", "a", cron=None, rrule=None, period=60, repeat=1).is_new
    assert schedule("tick", "b", cron="0 9 * * *", rrule=None).is_new
    assert schedule("tick", "c", cron=None, rrule="FREQ=DAILY").is_new


def test_cron_alone_in_a_zone(runs, db_clock):
    assert schedule("tick", KEY, cron="30 2 * * *", tz="Europe/Berlin").due_at == START + timedelta(minutes=90)


def test_rrule_begins_at_due_at(runs, stage, db_clock):
    schedule("tick", KEY, rrule="FREQ=MINUTELY;INTERVAL=10;COUNT=3", due_at=START + timedelta(minutes=5))
    run_until(stage, db_clock, START + timedelta(hours=1))
    assert runs() == ["00:05:00", "00:15:00", "00:25:00"]


def test_period_without_end(runs, stage, db_clock):
    schedule("tick", KEY, period=600, repeat=None)
    run_until(stage, db_clock, START + timedelta(hours=1))
    assert len(runs()) == 7
    assert len(live()) == 1


@pytest.mark.on_both
def test_overdue_runs_that_repeat_counts_all_run(runs, stage, db_clock):
    schedule("tick", KEY, period=60, repeat=3)
    schedule("tick", "endless", period=60, repeat=None)
    db_clock.advance(seconds=3 * 3600)
    maker.make_due("default")
    for _ in range(12):  # one waits for the other
        stage.go()
        db_clock.advance(seconds=1)
    finished = Job.objects.filter(state=State.FINISHED)
    assert finished.filter(key__startswith=f"{KEY}#").count() == 4
    assert finished.filter(key__startswith="endless#").count() == 1


# -- conflicts ----------------------------------------------------------------------------------


@pytest.mark.on_both
def test_there_is_one_series_of_a_key(runs, db_clock):
    first = schedule("tick", KEY, period=60, repeat=None, delay=60)
    with pytest.raises(KeyIsLive, match="is a series already; its next job is"):
        schedule("tick", KEY, period=30, repeat=None)
    kept = schedule("tick", KEY, period=30, repeat=None, on_conflict="keep")
    assert (kept.pk, kept.is_new) == (first.pk, False)
    new = schedule("tick", KEY, period=30, repeat=None, delay=30, on_conflict="replace")
    assert live() == [f"{KEY}#2030-01-01T00:00:30"] == [new.key]
    assert Schedule.objects.count() == 1


def test_a_single_job_of_the_key_is_a_conflict(runs, db_clock):
    single = schedule("tick", KEY, delay=60)
    for mode in ("reject", "replace"):
        with pytest.raises(KeyIsLive, match="as a single job"):
            schedule("tick", KEY, period=60, repeat=None, on_conflict=mode)
    assert schedule("tick", KEY, period=60, repeat=None, on_conflict="keep").pk == single.pk
    assert not Schedule.objects.exists()


def test_a_key_can_have_another_series_after_its_end(runs, stage, db_clock):
    for _ in range(2):
        schedule("tick", KEY, period=10, repeat=1)
        run_until(stage, db_clock, datetime.fromtimestamp(db_clock.now_ms / 1000, UTC) + timedelta(minutes=1))
    assert len(runs()) == 4


@pytest.mark.on_both
@pytest.mark.parametrize("mode", ["keep", "replace", "reject", "cancel"])
def test_a_series_whose_next_run_ran_early_goes_on(runs, stage, db_clock, mode):
    assert run_now("tick", schedule("tick", KEY, cron="0 9 * * *").key)
    stage.go()
    next_key = f"{KEY}#2030-01-02T09:00:00"
    if mode == "reject":
        with pytest.raises(KeyIsLive, match="its next job is due at 2030-01-02T09:00:00"):
            schedule("tick", KEY, cron="0 9 * * *")
        assert live() == []
        return
    if mode == "cancel":
        assert cancel("tick", KEY) == "cancelled"
    job = schedule("tick", KEY, cron="0 9 * * *", on_conflict="reject" if mode == "cancel" else mode)
    assert (job.key, job.is_new, live()) == (next_key, mode != "keep", [next_key])
    run_until(stage, db_clock, START + timedelta(days=2), step_seconds=3600)
    assert runs() == ["00:00:00", "09:00:00"]


def test_a_series_whose_only_run_ran_early_is_over(runs, stage, db_clock):
    once = {"rrule": "FREQ=DAILY;COUNT=1", "due_at": START + timedelta(hours=1)}
    run_now("tick", schedule("tick", KEY, **once).key)
    stage.go()
    with pytest.raises(BadSchedule, match="would never run"):
        schedule("tick", KEY, **once, on_conflict="keep")
    assert schedule("tick", KEY, period=60, repeat=None, delay=7200).is_new


@pytest.mark.on_both
def test_a_paused_series_is_a_conflict(runs, stage, db_clock):
    schedule("tick", KEY, period=60, repeat=None, delay=60)
    schedules.pause(Schedule.objects.get().name)
    run_until(stage, db_clock, START + timedelta(minutes=5))
    assert live() == []
    with pytest.raises(KeyIsLive, match="its next job is due at 2030-01-01T00:06:00"):
        schedule("tick", KEY, period=60, repeat=None)
    job = schedule("tick", KEY, period=60, repeat=None, on_conflict="keep")
    assert (job.is_new, job.key, Schedule.objects.get().paused) == (False, f"{KEY}#2030-01-01T00:06:00", True)
    run_until(stage, db_clock, START + timedelta(minutes=8))
    assert (runs(), live()) == ([], [])
    schedules.resume(Schedule.objects.get().name)
    run_until(stage, db_clock, START + timedelta(minutes=9))
    assert runs() == ["00:09:00"]
    schedules.pause(Schedule.objects.get().name)
    assert schedule("tick", KEY, period=60, repeat=None, on_conflict="replace").is_new
    assert not Schedule.objects.get().paused


def test_a_rollback_leaves_no_series(runs, db_clock):
    with pytest.raises(RuntimeError), transaction.atomic():
        schedule("tick", KEY, period=60, repeat=None)
        raise RuntimeError
    assert (live(), Schedule.objects.count()) == ([], 0)


# -- cancel -------------------------------------------------------------------------------------


@pytest.mark.on_both
def test_cancel_ends_the_series(runs, stage, db_clock):
    schedule("tick", KEY, period=60, repeat=None)
    run_until(stage, db_clock, START + timedelta(minutes=2))
    before = runs()
    assert cancel("tick", KEY, by="anna", reason="They paid.") == "cancelled"
    assert (live(), Schedule.objects.count()) == ([], 0)
    assert list(JobEvent.objects.filter(actor="anna").values_list("outcome", "reason")) == [("cancelled", "They paid.")]
    run_until(stage, db_clock, START + timedelta(minutes=10))
    assert runs() == before
    assert cancel("tick", KEY) == "unknown"


def test_a_single_job_with_the_key_of_a_series_is_cancelled_before_the_series(runs, db_clock):
    schedule("tick", KEY, period=60, repeat=None, delay=60)
    schedule("tick", KEY, delay=30)
    assert (cancel("tick", KEY), live()) == ("cancelled", [f"{KEY}#2030-01-01T00:01:00"])
    assert (cancel("tick", KEY), live()) == ("cancelled", [])


def test_a_dead_job_with_the_key_of_a_series_is_cancelled_with_the_series(stage, db_clock):
    """Only a live job is cancelled alone: otherwise a paid order would go on to be reminded."""

    @stage.handler("tick", max_attempts=1)
    def fail(job):
        raise ValueError("no")

    schedule("tick", KEY, delay=0)
    stage.go()
    schedule("tick", KEY, period=60, repeat=None, delay=60)
    assert (cancel("tick", KEY), live()) == ("cancelled", [])
    assert set(Job.objects.values_list("state", flat=True)) == {State.CANCELLED}


@pytest.mark.on_both
def test_cancel_of_a_series_with_a_job_that_runs(stage, db_clock):
    stage.recorder("tick", ttr=60)
    schedule("tick", KEY, period=5, repeat=None)
    (held,) = stage.take("tick")
    assert cancel("tick", KEY) == "running"
    held.finish()
    assert (live(), Schedule.objects.count()) == ([], 0)


@pytest.mark.on_both
def test_keys_that_begin_alike_are_strangers(runs, stage, db_clock):
    schedule("tick", "order:1#line:2", period=60, repeat=None, delay=30)
    schedule("tick", "order:1#x", delay=600)
    strangers = live()
    first = schedule("tick", "order:1", period=60, repeat=None, delay=60)
    assert (first.is_new, first.key) == (True, "order:1#2030-01-01T00:01:00")
    schedules.run_now(Schedule.objects.get(series_key="order:1").name)
    assert cancel("tick", "order:1") == "cancelled"
    assert live() == strangers
    assert Schedule.objects.get().series_key == "order:1#line:2"


def test_a_job_of_a_series_is_moved_by_its_own_key(runs, stage, db_clock):
    job = schedule("tick", KEY, delay=60, period=60, repeat=1)
    with pytest.raises(NotLive, match="Jobs of a series have keys of their own"):
        reschedule("tick", KEY, delay=5)
    reschedule("tick", job.key, delay=5)
    run_until(stage, db_clock, START + timedelta(minutes=5), step_seconds=5)
    assert runs() == ["00:00:05", "00:02:00"]


def test_cancel_after_the_last_run(runs, stage, db_clock):
    schedule("tick", KEY, period=5, repeat=1)
    run_until(stage, db_clock, START + timedelta(minutes=1), step_seconds=5)
    assert cancel("tick", KEY) == "already finished"


def test_the_handler_can_end_its_own_series(stage, db_clock):
    answers = []

    @stage.handler("tick")
    def once(job):
        answers.append(cancel("tick", job.key.rpartition("#")[0]))

    schedule("tick", KEY, period=60, repeat=None)
    run_until(stage, db_clock, START + timedelta(minutes=5))
    assert answers == ["running"]
    assert live() == []


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("act", ["cancel", "replace", "delete"])
def test_ending_a_series_does_not_wait_for_its_running_handler(stage, db_clock, act):
    """Nor is there a deadlock if the handler ends the series as well."""
    begun, go_on, answers = threading.Event(), threading.Event(), []

    @stage.handler("tick", ttr=3600)
    def ends_its_series(job):
        begun.set()
        assert go_on.wait(10)
        answers.append(cancel("tick", KEY))

    schedule("tick", KEY, period=60, repeat=None)
    stage.mover.move_due()
    worker = threading.Thread(target=lambda: (stage.run("tick"), connection.close()))
    worker.start()
    try:
        assert begun.wait(10)
        with transaction.atomic():
            dialects.wait_at_most("default", 2000)
            if act == "delete":
                schedules.delete(Schedule.objects.get())
            elif act == "cancel":
                assert cancel("tick", KEY) == "running"
            else:
                assert schedule("tick", KEY, period=60, repeat=None, delay=60, on_conflict="replace").is_new
    finally:
        go_on.set()
        worker.join(10)
    assert answers == ["running" if act == "replace" else "unknown"]
    assert not Schedule.objects.exists()
    assert Job.objects.get(attempt=1).state == State.FINISHED


def test_a_series_that_replaces_another_waits_for_the_running_job(runs, stage, db_clock):
    schedule("tick", KEY, period=60, repeat=None)
    (held,) = stage.take("tick")
    schedule("tick", KEY, period=5, repeat=None, delay=1, on_conflict="replace")
    run_until(stage, db_clock, START + timedelta(seconds=3), step_seconds=1)
    assert runs() == []
    held.finish()
    run_until(stage, db_clock, START + timedelta(seconds=5), step_seconds=1)
    assert len(runs()) == 2


@pytest.mark.on_both
def test_what_deleted_schedules_leave_is_deleted_and_what_is_missing_is_added(define, runs, stage, db_clock):
    define("deleted")
    define()
    schedules.delete(schedules.find("deleted"))
    sql.delete_orphaned_runs("default")
    assert ScheduleRun.objects.get().schedule == schedules.find("tick")
    ScheduleRun.objects.all().delete()
    run_until(stage, db_clock, START + timedelta(minutes=10))
    assert runs() == ["00:10:00"]
    assert ScheduleRun.objects.get().schedule == schedules.find("tick")


@pytest.mark.parametrize("conditions", [{"topic": "tick"}, {"topic": "tick", "key_prefix": "order:1"}])
def test_cancel_many_ends_series(runs, stage, db_clock, conditions):
    schedule("tick", KEY, period=60, repeat=None, delay=60)
    assert cancel_many(**conditions).cancelled == 1
    assert Schedule.objects.count() == 0


@pytest.mark.on_both
def test_cancel_many_tells_upper_from_lower_case(runs, db_clock):
    for key in ("order:1042", "ORDER:1042", "order%1", "Order:1"):
        schedule("tick", key, period=60, repeat=None, delay=60)
    assert cancel_many(topic="tick", key_prefix="ORDER").cancelled == 1
    assert cancel_many(topic="tick", key_prefix="order%").cancelled == 1
    assert set(Schedule.objects.values_list("series_key", flat=True)) == {"order:1042", "Order:1"}
    assert len(live()) == 2


def test_cancel_many_leaves_schedules_of_staff(define, runs, db_clock):
    define()
    schedule("tick", KEY, period=60, repeat=None, delay=60)
    cancel_many(topic="tick")
    assert [row.name for row in Schedule.objects.all()] == ["tick"]


# -- subject, handle, by ------------------------------------------------------------------------


@pytest.mark.on_both
def test_jobs_of_a_series_have_its_subject(stage, db_clock):
    subjects = []

    @stage.handler("tick")
    def remind(job):
        subjects.append(job.subject)

    order = make_order()
    first = remind.schedule(order, period=60, repeat=2, by="anna")
    assert first.key == f"{KEY}#2030-01-01T00:00:00"
    assert JobEvent.objects.get(job_id=first.pk).actor == "anna"
    run_until(stage, db_clock, START + timedelta(minutes=1))
    assert subjects == [order, order]
    assert jobs_of(order).count() == 3
    assert remind.cancel(order) == "cancelled"
    remind.schedule("other", period=60, repeat=2, delay=60)
    assert cancel_many(subject=order).cancelled == 0
    assert Schedule.objects.get().series_key == "other"


@pytest.mark.on_both
def test_cancel_many_of_a_subject_ends_its_series(stage, db_clock):
    stage.recorder("tick")
    order = make_order()
    schedule("tick", subject=order, period=60, repeat=None, delay=60)
    assert cancel_many(subject=order).cancelled == 1
    assert not Schedule.objects.exists()


# -- operate ------------------------------------------------------------------------------------


@pytest.mark.on_both
def test_a_series_is_paused_run_and_deleted_like_a_schedule(runs, stage, db_clock):
    schedule("tick", KEY, period=60, repeat=None, delay=60)
    name = Schedule.objects.get().name
    assert str(Schedule.objects.get()) == f"tick {KEY}"
    assert schedules.run_now(name).key.startswith(f"{KEY}#now:")
    schedules.pause(name)
    run_until(stage, db_clock, START + timedelta(minutes=3))
    assert runs() == ["00:00:00"]
    schedules.resume(name)
    run_until(stage, db_clock, START + timedelta(minutes=5))
    assert runs() == ["00:00:00", "00:04:00", "00:05:00"]
    schedules.delete(schedules.find(name))
    assert live() == []


def test_apply_leaves_series(runs, db_clock):
    schedule("tick", KEY, period=60, repeat=None)
    assert schedules.apply() == []
    assert Schedule.objects.exists()


@pytest.mark.on_both
def test_a_series_that_ended_is_forgotten_after_a_day(runs, stage, db_clock, monkeypatch):
    schedule("tick", KEY, period=5, repeat=1)
    schedule("tick", "endless", period=60, repeat=None)
    run_until(stage, db_clock, START + timedelta(minutes=1), step_seconds=5)
    series.delete_ended("default")
    assert Schedule.objects.count() == 2
    db_clock.advance(seconds=86_500)
    monkeypatch.setattr(series, "_passed", {})
    series.delete_ended_throttled("default")
    assert [row.series_key for row in Schedule.objects.all()] == ["endless"]


def test_the_keys_of_a_series_are_firings():
    assert is_firing(f"{KEY}#2030-01-01T00:00:10.250/2")
    assert not is_firing(f"{KEY}#7")
    assert not is_firing(KEY)


# -- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "error", "told"),
    [
        ({"repeat": 3}, BadSchedule, "repeat is 3 without period"),
        ({"repeat": None}, BadSchedule, "repeat is None without period"),
        ({"period": 60}, BadSchedule, "period is given without repeat: repeat=3 makes four runs"),
        ({"period": 0, "repeat": 1}, BadSchedule, "period is"),
        ({"period": 60, "repeat": -1}, BadSchedule, "repeat is -1"),
        ({"period": 60, "repeat": 1, "delay": -1}, BadDelay, "delay"),
        ({"period": 60, "repeat": 1, "delay": 1, "due_at": START}, BadDelay, "not both"),
        ({"cron": "* * * *"}, BadSchedule, "with 4 fields"),
        ({"cron": "0 0 * * *", "due_at": START}, BadSchedule, "Give due_at or cron, not both"),
        ({"cron": "0 0 * * *", "rrule": "FREQ=DAILY"}, BadSchedule, "it has cron, rrule"),
        ({"cron": "0 0 * * *", "tz": "Mars/Base"}, BadTimeZone, "Mars/Base"),
        ({"cron": "0 0 * * *", "period": 60, "repeat": None}, BadSchedule, "may last 31 days"),
        ({"rrule": "FREQ=DAILY", "delay": 5}, BadSchedule, "it has rrule, delay or period"),
        ({"rrule": "FREQ=DAILY;UNTIL=20200101T000000Z"}, BadSchedule, "would never run"),
        ({"delay": 5, "tz": "Europe/Berlin"}, BadSchedule, "tz is the zone of cron and rrule"),
        ({"period": 60, "repeat": 1, "key": "k" * 229}, BadKey, "has at most 228"),
        ({"period": 60, "repeat": 1, "key": None}, BadKey, "key is None"),
        ({"period": 60, "repeat": 1, "topic": "no.such"}, UnknownTopic, "no.such"),
        ({"period": 60, "repeat": 1, "body": {1, 2}}, BadInput, "body"),
        ({"period": 60, "repeat": 1, "on_conflict": "merge"}, BadInput, "merge"),
    ],
)
def test_bad_input_writes_nothing(runs, db_clock, terms, error, told):
    arguments = {"topic": "tick", "key": KEY} | terms
    with pytest.raises(error, match=told):
        schedule(**arguments)
    assert (Job.objects.count(), Schedule.objects.count()) == (0, 0)


def test_a_series_that_is_replaced_in_a_zone_further_west_runs_there_on_the_same_day(stage, db_clock):
    stage.recorder("tick")
    schedule("tick", "user:1", cron="0 9 * * *", tz="Asia/Tokyo")
    run_until(stage, db_clock, START + timedelta(hours=5), step_seconds=600)  # 14:00 in Tokyo: today's has run
    job = schedule("tick", "user:1", cron="0 9 * * *", tz="America/New_York", on_conflict="replace")
    assert job.due_at == datetime(2030, 1, 1, 14, tzinfo=UTC)


def test_a_job_of_a_series_that_is_run_now_has_its_subject(stage, db_clock):
    seen = []

    @stage.handler("tick")
    def remind(job):
        seen.append(job.subject)

    order = make_order()
    remind.schedule(order, period=3600, repeat=None, delay=3600)
    job = schedules.run_now(Schedule.objects.get().name)
    assert job in jobs_of(order)
    run_until(stage, db_clock, START + timedelta(seconds=10), step_seconds=5)
    assert seen == [order]
