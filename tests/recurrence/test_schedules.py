"""Schedules as rows: firings one ahead, changes, pauses, deletion, renames, running now and filling in the past."""

from datetime import UTC, datetime, timedelta

import pytest

from delaytasks import cancel, clock, databases, handlers, recurring, retry_dead, run_now, schedule
from delaytasks.clock import to_ms
from delaytasks.exceptions import BadBody, BadInput, BadSchedule, UnknownTopic
from delaytasks.maintenance.retention import Retention, prune
from delaytasks.maintenance.runs import note, note_deleted
from delaytasks.models import Job, JobEvent, Schedule, Topic
from delaytasks.recurrence import checks, maker, registry, schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.signals import job_cancelled
from delaytasks.states import State

from .conftest import START, due_times, run_until

HOUR = timedelta(hours=1)
NEW_YORK = "America/New_York"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ticks(stage):
    return stage.recorder("tick")


def test_one_firing_is_made_ahead(define, ticks):
    define()
    assert due_times() == ["00:10:00"]
    assert maker.make_due("default") == 0


def test_each_firing_runs_once_and_the_next_is_made(define, ticks, stage, db_clock):
    define()
    run_until(stage, db_clock, START + HOUR)
    assert ticks == [f"tick@2030-01-01T00:{n}0:00" for n in range(1, 6)] + ["tick@2030-01-01T01:00:00"]
    assert due_times() == ["01:10:00"]


def test_schedules_with_second_grain_are_made_ten_seconds_ahead(define, ticks, stage, db_clock):
    define(every=1)
    assert due_times()[-1] == "00:00:11"
    run_until(stage, db_clock, START + timedelta(seconds=60), step_seconds=5)
    assert len(ticks) == 12  # missed="last": one of each five that were due together
    assert len(due_times()) == 11


def test_a_schedule_that_comes_to_its_end_is_made_no_more(define, ticks, stage, db_clock):
    define(every=None, delay=5, period=5, repeat=2, missed="all", running="allow")
    run_until(stage, db_clock, START + HOUR)
    assert len(ticks) == 3
    assert Schedule.objects.get().ended


@pytest.mark.parametrize("fraction", [0, 0.25])
@pytest.mark.parametrize(
    ("times", "runs"),
    [
        ({"period": 60, "repeat": 3}, 4),
        ({"period": 60}, 1),
        ({"delay": 0}, 1),
        ({"rrule": "FREQ=MINUTELY;COUNT=3"}, 3),
        ({"rrule": "FREQ=MINUTELY;COUNT=1"}, 1),
    ],
)
def test_a_start_now_is_the_first_run(define, ticks, stage, db_clock, times, runs, fraction):
    db_clock.advance(seconds=fraction)
    define(every=None, missed="all", running="allow", **times)
    run_until(stage, db_clock, START + timedelta(minutes=10), step_seconds=5)
    assert len(ticks) == runs


def test_a_start_now_is_the_first_run_while_clocks_show_an_hour_again(define, ticks, stage, db_clock):
    now = datetime(2030, 10, 27, 1, 30, tzinfo=UTC)
    db_clock.set(to_ms(now))
    define(every=None, rrule="FREQ=MINUTELY;COUNT=3", tz="Europe/Berlin", running="allow")
    run_until(stage, db_clock, now + timedelta(minutes=10), step_seconds=5)
    assert ticks == [f"tick@2030-10-27T02:3{n}:00/2" for n in range(3)]


@pytest.mark.parametrize(
    ("options", "first"), [({}, "2030-06-01T09:00:00"), ({"delay": 86_400}, "2030-06-02T09:00:00"),
                           ({"period": 3600, "repeat": 20}, "2030-06-01T09:00:00")], ids=str)  # fmt: skip
def test_a_cron_begins_at_its_start(define, ticks, db_clock, options, first):
    row = define(every=None, cron="0 9 * * *", start=datetime(2030, 6, 1, 9, tzinfo=UTC), **options)
    assert Job.objects.get().key == f"tick@{first}"
    assert schedules.next_firings(row, 1)[0].label == first
    schedules.pause("tick")
    schedules.resume("tick")
    assert Job.objects.live().get().key == f"tick@{first}"


def test_firings_keep_their_hour_when_clocks_change(define, ticks, db_clock, stage):
    define(every=None, cron="30 2 * * *", tz="Europe/Berlin", start=START)
    db_clock.set(to_ms(datetime(2030, 3, 30, tzinfo=UTC)))
    schedules.pause("tick")
    schedules.resume("tick")
    run_until(stage, db_clock, datetime(2030, 4, 2, tzinfo=UTC), step_seconds=3600)
    assert ticks[-3:] == ["tick@2030-03-30T02:30:00", "tick@2030-03-31T02:30:00", "tick@2030-04-01T02:30:00"]
    gap = Job.objects.get(key="tick@2030-03-31T02:30:00")
    assert gap.due_at == datetime(2030, 3, 31, 1, tzinfo=UTC)


# -- changes ------------------------------------------------------------------------------------


def test_a_change_of_the_times_replaces_the_firing_made_ahead(define, ticks, stage, db_clock):
    define()
    define(every=None, cron="0 * * * *")
    assert due_times() == ["01:00:00"]
    run_until(stage, db_clock, START + 2 * HOUR)
    assert ticks == ["tick@2030-01-01T01:00:00", "tick@2030-01-01T02:00:00"]
    define()
    assert due_times() == ["02:10:00"]


def test_a_definition_that_changes_nothing_writes_nothing(define, ticks):
    row = define(body={"n": 1}, start=START + timedelta(microseconds=123_456))
    again = define(body={"n": 1}, start=START + timedelta(milliseconds=124))  # rounded up
    assert (again.version, again.start_at) == (row.version, row.start_at)
    assert define(body={"n": True}).version > row.version


@pytest.mark.on_both
@pytest.mark.parametrize("times", [{"every": 3600}, {"every": None, "cron": "0 * * * *"}], ids=str)
def test_a_zone_further_west_runs_at_its_wall_times_again(define, ticks, stage, db_clock, times):
    define(**times)
    run_until(stage, db_clock, START + 8 * HOUR, step_seconds=1200)
    define(**times, tz=NEW_YORK)
    run_until(stage, db_clock, START + 14 * HOUR, step_seconds=1200)
    assert len(ticks) == 14
    assert ticks[3] == ticks[8] == "tick@2030-01-01T04:00:00"


def test_a_zone_further_west_repeats_no_run_that_somebody_ran_early(define, ticks, stage, db_clock):
    daily = {"every": None, "cron": "0 9 * * *"}
    define(**daily)
    db_clock.advance(seconds=8 * 3600)
    run_now("tick", "tick@2030-01-01T09:00:00")
    stage.go()
    define(**daily, tz=NEW_YORK)
    run_until(stage, db_clock, START + 24 * HOUR, step_seconds=1200)
    assert ticks == ["tick@2030-01-01T09:00:00"]


@pytest.mark.on_both
def test_a_backfill_of_a_zone_further_west_makes_what_only_the_former_zone_ran(define, ticks, stage, db_clock):
    define(every=3600)
    run_until(stage, db_clock, START + 8 * HOUR, step_seconds=1200)
    row = define(every=3600, tz=NEW_YORK)
    schedules.pause("tick")
    db_clock.advance(seconds=3600 * 3)
    firings = schedules.past_firings(row, START + 9 * HOUR, START + 11 * HOUR)
    assert schedules.count_made(row, firings) == 0
    assert schedules.backfill("tick", START + 9 * HOUR, START + 11 * HOUR) == 3


def test_a_change_of_the_body_reaches_the_firing_made_ahead(define, ticks):
    define()
    define(body={"to": "anna"})
    (job,) = Job.objects.filter(ended_at=None)
    assert job.body == {"to": "anna"}


def test_a_change_of_the_times_and_back_loses_no_firing(define, ticks, stage, db_clock):
    define()
    define(every=900)
    define()
    run_until(stage, db_clock, START + HOUR)
    assert len(ticks) == 6
    assert len(set(ticks)) == 6


def test_a_firing_that_somebody_cancelled_is_not_made_again(define, ticks, stage, db_clock):
    define()
    assert cancel("tick", "tick@2030-01-01T00:10:00") == "cancelled"
    define(missed="all")
    run_until(stage, db_clock, START + HOUR / 2)
    assert ticks == ["tick@2030-01-01T00:20:00", "tick@2030-01-01T00:30:00"]


def test_a_firing_that_somebody_cancelled_is_not_made_again_with_another_body(define, ticks, stage, db_clock):
    """With second grain several are ahead: those that the change withdraws are made again, that one is not."""
    define(every=1, missed="all", running="allow")
    assert cancel("tick", "tick@2030-01-01T00:00:05") == "cancelled"
    define(every=1, missed="all", running="allow", body={"to": "anna"})
    run_until(stage, db_clock, START + timedelta(seconds=8), step_seconds=1)
    assert [key[-2:] for key in ticks] == ["01", "02", "03", "04", "06", "07", "08"]


def test_a_change_leaves_the_run_that_is_live(define, ticks, stage, db_clock):
    define()
    db_clock.advance(seconds=601)
    maker.make_due("default")
    (held,) = stage.take("tick")
    define(every=None, cron="*/15 * * * *", body={"n": 1})
    live = Job.objects.get(key="tick@2030-01-01T00:10:00")
    assert (live.state, live.body) == (State.RESERVED, {})
    assert held.finish() is None
    assert due_times() == ["00:15:00"]
    run_until(stage, db_clock, START + HOUR / 2)
    assert ticks == ["tick@2030-01-01T00:15:00", "tick@2030-01-01T00:30:00"]


def test_an_overdue_firing_stands_when_the_times_change(define, ticks, stage, db_clock):
    define()
    db_clock.advance(seconds=605)
    define(every=3600)
    stage.go()
    assert ticks == ["tick@2030-01-01T00:10:00"]
    assert due_times() == ["01:00:00"]


def test_a_clock_that_jumps_back_makes_no_firing_twice(define, ticks, stage, db_clock):
    define()
    run_until(stage, db_clock, START + HOUR / 2)
    db_clock.set(to_ms(START))
    define(every=300)
    define()
    run_until(stage, db_clock, START + HOUR)
    assert sorted(ticks) == sorted(set(ticks))
    assert len([key for key in ticks if key.endswith("0:00")]) == 6


def test_retrying_and_failing_firings_do_not_touch_the_chain(define, stage, db_clock):
    @stage.handler("tick", max_attempts=1)
    def fail(job):
        raise ValueError("no")

    define()
    run_until(stage, db_clock, START + HOUR)
    assert Job.objects.filter(state=State.DEAD).count() == 6
    retry_dead("tick", "tick@2030-01-01T00:10:00")
    run_until(stage, db_clock, START + 2 * HOUR)
    assert Job.objects.exclude(state=State.DELAYED).count() == 12


# -- pause, delete, now, backfill ---------------------------------------------------------------


def test_a_pause_makes_nothing_and_skips_what_comes_due(define, ticks, stage, db_clock):
    define()
    assert schedules.pause("tick")
    assert not schedules.pause("tick")
    run_until(stage, db_clock, START + HOUR)
    assert ticks == []
    assert schedules.resume("tick")
    assert due_times() == ["01:10:00"]
    run_until(stage, db_clock, START + 2 * HOUR)
    assert len(ticks) == 6


@pytest.mark.parametrize("change", [lambda: schedules.pause("tick"), lambda: schedules.delete(schedules.find("tick"))])
def test_the_cancellation_of_a_firing_made_ahead_sends_the_signal(define, ticks, stage, db_clock, change):
    cancelled = []

    def receive(sender, job, **kwargs):
        cancelled.append((sender, job.key, job.state))

    define()
    job_cancelled.connect(receive)
    try:
        change()
    finally:
        job_cancelled.disconnect(receive)
    assert cancelled == [("tick", "tick@2030-01-01T00:10:00", State.CANCELLED)]


@pytest.mark.on_both
def test_a_run_within_a_pause_is_not_made_up_for_after_it(define, ticks, stage, db_clock):
    define(missed="all")
    schedules.pause("tick")
    assert due_times() == []
    db_clock.advance(seconds=900)  # no worker has looked meanwhile
    schedules.resume("tick")
    run_until(stage, db_clock, START + HOUR / 2)
    assert [key[-8:-3] for key in ticks] == ["00:20", "00:30"]


def test_a_firing_that_somebody_cancelled_is_not_made_again_after_a_pause(define, ticks, stage, db_clock):
    define()
    cancel("tick", "tick@2030-01-01T00:10:00")
    schedules.pause("tick")
    schedules.resume("tick")
    run_until(stage, db_clock, START + HOUR / 2)
    assert [key[-8:-3] for key in ticks] == ["00:20", "00:30"]


def test_pauses_and_resumptions_make_no_further_firings(define, ticks, stage, db_clock):
    define()
    for _ in range(3):
        schedules.pause("tick")
        schedules.resume("tick")
    assert Job.objects.live().count() == 1


def test_a_chain_with_microseconds_goes_on(define, ticks, stage, db_clock):
    """As SQL may write it."""
    define()
    run_until(stage, db_clock, START + timedelta(minutes=9))
    for microseconds in (1, 499, 500, 999):
        moment = Schedule.objects.get().made_until.replace(microsecond=0) + timedelta(microseconds=microseconds)
        Schedule.objects.update(made_until=moment)
        run_until(stage, db_clock, clock.from_ms(db_clock.now_ms) + timedelta(minutes=10))
        assert Schedule.objects.get().made_until > clock.from_ms(db_clock.now_ms)
    assert len(ticks) == 4


def test_a_pause_that_ends_before_the_firing_changes_nothing(define, ticks, stage, db_clock):
    define()
    schedules.pause("tick")
    db_clock.advance(seconds=300)
    schedules.resume("tick")
    run_until(stage, db_clock, START + HOUR / 3)
    assert len(ticks) == 2


def test_a_deleted_schedule_leaves_no_job(define, ticks, stage, db_clock):
    row = define()
    schedules.delete(row)
    run_until(stage, db_clock, START + HOUR)
    assert ticks == []
    assert not Schedule.objects.exists()


def test_a_schedule_runs_once_now_beside_its_times(define, ticks, stage, db_clock):
    define(body={"n": 1})
    job = schedules.run_now("tick", by="anna")
    stage.go()
    assert ticks == [job.key]
    assert job.body == {"n": 1}
    assert JobEvent.objects.filter(job_id=job.pk, actor="anna").exists()
    assert due_times() == ["00:10:00"]


def test_a_backfill_runs_what_never_ran_and_nothing_twice(define, ticks, stage, db_clock):
    define(missed="none")
    run_until(stage, db_clock, START + HOUR / 2)
    db_clock.advance(seconds=3600)
    maker.make_due("default")
    stage.go()  # six were missed
    before = set(ticks)
    assert schedules.backfill("tick", START - HOUR, START) == 1  # the start itself; nothing was before
    assert schedules.backfill("tick", START - HOUR, START + HOUR / 2) == 0
    stage.go()
    assert set(ticks) - before == {"tick@2030-01-01T00:00:00"}


@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [
        (START + HOUR, START, "backwards"),
        (START, START + HOUR, "future"),
        (START.replace(tzinfo=None), START, ""),
        (datetime.min.replace(tzinfo=UTC), START, ""),
    ],
)
def test_a_backfill_needs_a_range_in_the_past(define, ticks, start, end, problem):
    define()
    with pytest.raises(BadSchedule, match="backfill") as raised:
        schedules.backfill("tick", start, end)
    assert raised.value.range_problem == problem


def test_a_backfill_is_bounded(define, ticks):
    define(every=1, start=START - timedelta(days=1))
    with pytest.raises(BadSchedule, match="10,000 firings") as raised:
        schedules.backfill("tick", START - timedelta(days=1), START)
    assert raised.value.range_problem == "long"


@pytest.mark.parametrize("change", [{"tz": "Asia/Tokyo"}, {"topic": "tock"}], ids=str)
def test_a_backfill_of_times_before_a_change_of_the_keys_is_refused(define, ticks, stage, db_clock, change):
    stage.recorder("tock")
    define()
    run_until(stage, db_clock, START + HOUR / 2)
    define(**change)
    run_until(stage, db_clock, START + HOUR)
    with pytest.raises(BadSchedule, match=r"up to 2030-01-01T00:30:00\+00:00\. The schedule had another") as raised:
        schedules.backfill("tick", START + HOUR / 2, START + HOUR)
    assert raised.value.range_problem == "unknown"
    assert schedules.backfill("tick", START + timedelta(minutes=31), START + HOUR) == 0


@pytest.mark.on_both
def test_a_backfill_of_runs_that_the_retention_deleted_is_refused(define, ticks, stage, db_clock):
    define()
    run_until(stage, db_clock, START + HOUR / 2)
    schedules.pause("tick")
    db_clock.advance(seconds=86_400)
    assert sum(batch.deleted for batch in prune("default", Retention({"*": {"ended": HOUR}}))) == 4  # one cancelled
    with pytest.raises(BadSchedule, match="its old jobs were deleted"):
        schedules.backfill("tick", START, START + HOUR)
    assert schedules.backfill("tick", START + timedelta(minutes=41), START + HOUR) == 2
    note(using="default", moment=START + HOUR)  # as the pipeline's archive does
    with pytest.raises(BadSchedule, match="its old jobs were deleted"):
        schedules.backfill("tick", START + timedelta(minutes=31), START + HOUR)


def test_runs_that_began_early_are_noted_with_their_own_time(ticks, db_clock):
    late, ended_ms = "tick@2030-02-01T09:00:00", to_ms(START)
    note_deleted("default", [("tick", "tick@2030-01-01T09:00:00", ended_ms), ("tick", "tick@now:7", ended_ms)])
    assert Topic.objects.get(name="tick").runs_deleted_until == START
    note_deleted("default", [("tick", late, ended_ms), ("other", "order:1", ended_ms)])
    assert Topic.objects.get(name="tick").runs_deleted_until == datetime(2030, 2, 2, tzinfo=UTC)
    assert not Topic.objects.filter(name="other").exists()


@pytest.mark.on_both
def test_the_firings_that_a_backfill_leaves_out_are_counted(define, ticks):
    row = define(every=1, start=START - HOUR)
    firings = schedules.past_firings(row, START - HOUR / 2, START)
    assert schedules.count_made(row, firings) == 0
    schedules.backfill("tick", START - HOUR / 2, START - HOUR / 4)
    assert schedules.count_made(row, firings) == 901
    Job.objects.filter(key=f"tick@{firings[0].label}").update(state=State.CANCELLED, ended_at=START)
    Job.objects.filter(key=f"tick@{firings[1].label}").update(state=State.FINISHED, ended_at=START)
    Job.objects.filter(key=f"tick@{firings[2].label}").update(topic="other")
    assert schedules.count_made(row, firings) == 899
    assert schedules.count_made(row, firings[:1]) == schedules.count_made(row, []) == 0


# -- the code's schedules -----------------------------------------------------------------------


def declare(name: str = "tick", **options) -> None:
    registry.unregister(name)
    registry.add(registry.Declared(Definition(name=name, topic="tick", **{"every": 600} | options)))


def kinds(changes) -> dict[str, str]:
    return {change.name: change.kind for change in changes}


def test_recurring_refuses_a_body_that_apply_could_not_store():
    with pytest.raises(BadBody, match="Object of type datetime is not JSON"):
        recurring("tick", every=600, body={"since": START})(lambda job: None)
    assert registry.declared() == {}


def test_recurring_registers_a_handler_and_a_schedule(stage, db_clock):
    ran = []
    stage.registered.append("report.daily")

    @recurring("report.daily", cron="30 2 * * 1-5", tz="Europe/Berlin", ttr=120)
    def report(job):
        ran.append(job.key)

    assert kinds(schedules.apply()) == {"report.daily": "create"}
    assert kinds(schedules.apply()) == {"report.daily": "keep"}
    (job,) = Job.objects.all()
    assert (job.ttr_ms, job.due_at) == (120_000, datetime(2030, 1, 1, 1, 30, tzinfo=UTC))


def test_apply_creates_changes_and_deletes(ticks, db_clock):
    declare()
    declare("other")
    assert kinds(schedules.plan()) == {"tick": "create", "other": "create"}
    schedules.apply()
    declare(every=900)
    registry.unregister("other")
    assert kinds(schedules.apply()) == {"tick": "change", "other": "delete"}
    assert due_times() == ["00:15:00"]
    assert due_times("other") == []


def test_no_check_asks_to_apply_schedules_in_a_test_run(ticks, db_clock):
    declare()
    assert checks.check_applied(databases=["default"]) == []


def test_a_check_names_the_schedules_that_are_not_applied(ticks, db_clock, monkeypatch):
    monkeypatch.setattr(databases, "is_test_run", lambda: False)

    def differences() -> list[str]:
        return [each.msg.partition("'default': ")[2] for each in checks.check_applied(databases=["default"])]

    assert differences() == []
    declare()
    declare("other")
    (warning,) = checks.check_applied(databases=["default"])
    assert (warning.id, "schedules apply" in str(warning.hint)) == ("delaytasks.W070", True)
    schedules.apply()
    assert differences() == []
    declare(every=900)
    registry.unregister("other")
    assert differences() == ["change 'tick', delete 'other'."]
    Schedule.objects.filter(name="tick").update(source=Schedule.Source.STAFF)
    assert "defined by staff" in differences()[0]


def test_apply_stores_a_schedule_whose_times_are_over_as_ended(ticks, stage, db_clock, caplog):
    over = {"every": None, "period": 600, "repeat": 3, "start": START - HOUR}
    declare("over", **over)
    declare()
    assert kinds(schedules.apply()) == {"over": "create", "tick": "create"}
    assert "schedule over does not run" in caplog.text
    assert (schedules.find("over").ended, due_times("over"), due_times()) == (True, [], ["00:10:00"])
    assert kinds(schedules.apply()) == {"over": "keep", "tick": "keep"}
    declare(**over)
    assert kinds(schedules.apply()) == {"over": "keep", "tick": "change"}
    assert (schedules.find("tick").ended, due_times()) == (True, [])
    declare()
    schedules.apply()
    run_until(stage, db_clock, START + HOUR / 2)
    assert len(ticks) == 3


@pytest.mark.parametrize(
    ("times", "due"), [({"period": 3600, "repeat": 1}, "12:00:30"), ({"rrule": "FREQ=DAILY;COUNT=3"}, "12:00:30"),
                       ({"every": 3600}, "13:00:30")], ids=str)  # fmt: skip
def test_times_of_another_kind_start_when_they_are_applied(ticks, db_clock, times, due):
    declare(every=None, cron="0 3 * * *")
    schedules.apply()
    db_clock.advance(seconds=30 * 86_400 + 43_230)
    Job.objects.update(state=State.FINISHED, ended_at=START)
    declare(**{"every": None} | times)
    assert kinds(schedules.apply()) == {"tick": "change"}
    assert due_times()[0] == due
    assert kinds(schedules.apply()) == {"tick": "keep"}


@pytest.mark.parametrize(
    ("times", "due"), [({"every": None, "cron": "0 3 * * *"}, "03:00:00"), ({}, "00:15:00"),
                       ({"every": None, "period": 600, "repeat": 1}, "00:05:00")], ids=str)  # fmt: skip
def test_times_start_when_a_start_that_has_not_come_is_removed(ticks, db_clock, times, due):
    declare(start=START + timedelta(days=365), **times)
    schedules.apply()
    db_clock.advance(seconds=300)
    declare(**times)
    assert kinds(schedules.apply()) == {"tick": "change"}
    assert (due_times()[0], schedules.find("tick").made_until.year) == (due, 2030)
    assert kinds(schedules.apply()) == {"tick": "keep"}


def test_apply_keeps_the_chain_and_staffs_pause(ticks, stage, db_clock):
    declare()
    schedules.apply()
    schedules.pause("tick")
    declare(running="allow")
    schedules.apply()
    assert Schedule.objects.get().paused


def test_a_rename_keeps_the_chain(ticks, stage, db_clock):
    declare("old")
    schedules.apply()
    run_until(stage, db_clock, START + HOUR / 2)
    rename("old", "new")
    run_until(stage, db_clock, START + HOUR)
    assert [key.partition("@")[0] for key in ticks] == ["old"] * 3 + ["new"] * 3
    assert len({key.partition("@")[2] for key in ticks}) == 6


@pytest.mark.parametrize(
    ("change", "ran"), [("edit", ["00:10", "00:30", "01:00"]), ("rename", ["00:10", "00:20", "00:30", "00:40", "00:50",
                        "01:00", "01:10"]), ("delete", ["00:10"])])  # fmt: skip
def test_a_process_of_the_old_version_goes_by_the_rows(ticks, stage, db_clock, change, ran):
    """It has the old declaration, makes jobs and runs them, after the new version was applied."""
    declare("old")
    schedules.apply()
    db_clock.advance(seconds=601)
    maker.make_due("default")  # one is due
    if change == "edit":
        declare("old", every=1800)
        schedules.apply()
    elif change == "rename":
        rename("old", "new")
        registry.unregister("new")
    else:
        registry.unregister("old")
        schedules.apply()
    declare("old")
    run_until(stage, db_clock, START + HOUR + timedelta(minutes=15))
    assert [key[-8:-3] for key in ticks] == ran


def rename(old: str, new: str, **options) -> None:
    registry.unregister(old)
    registry.add(registry.Declared(Definition(name=new, topic="tick", **{"every": 600} | options), was=(old,)))
    assert kinds(schedules.apply()) == {new: "rename"}


def test_a_backfill_after_a_rename_repeats_nothing(ticks, stage, db_clock):
    declare("old")
    schedules.apply()
    run_until(stage, db_clock, START + HOUR / 2)
    rename("old", "new")
    rename("new", "newer")
    assert schedules.backfill("newer", START, START + HOUR / 2) == 1  # the start itself
    assert schedules.backfill("newer", START, START + HOUR / 2) == 0


@pytest.mark.parametrize(("missed", "ran"), [("last", ["00:30"]), ("none", []), ("all", ["00:10", "00:20", "00:30"])])
def test_overdue_firings_of_a_renamed_schedule_run_by_its_rules(ticks, stage, db_clock, missed, ran):
    declare("old", missed=missed)
    schedules.apply()
    db_clock.advance(seconds=1865)
    maker.make_due("default")
    rename("old", "new", missed=missed)
    rename("new", "newer", missed=missed)
    stage.go()
    assert [key[-8:-3] for key in ticks] == ran
    run_until(stage, db_clock, START + HOUR)
    assert [key[-8:-3] for key in ticks][len(ran) :] == ["00:40", "00:50", "01:00"]


def test_a_process_of_the_old_version_makes_the_jobs_of_a_new_schedule(stage, db_clock):
    """In a deployment: it does not know the topic, and so not the TTR of its handler."""
    stage.registered.append("report.daily")
    recurring("report.daily", every=600, ttr=900)(lambda job: None)
    schedules.apply()
    registry.unregister("report.daily")
    handlers.unregister("report.daily")
    db_clock.advance(seconds=600)
    assert maker.make_due("default") == 1
    assert list(Job.objects.values_list("ttr_ms", flat=True)) == [900_000] * 2


@pytest.mark.parametrize("terms", [{"every": None, "cron": "*/10 * * * *"}, {}, {"every": None, "delay": 600,
                                   "period": 600, "repeat": 4}], ids=str)  # fmt: skip
def test_a_rename_that_is_rolled_back_makes_each_instant_once(ticks, stage, db_clock, terms):
    """Workers of both versions run meanwhile: a job that has the other version's name runs, too."""
    runs = 5 if "repeat" in terms else 12
    declare("old", **terms)
    schedules.apply()
    run_until(stage, db_clock, START + HOUR / 2)
    rename("old", "new", **terms)
    run_until(stage, db_clock, START + HOUR - timedelta(minutes=5))
    registry.unregister("new")
    declare("old", **terms)
    assert kinds(schedules.apply()) == {"old": "rename"}
    run_until(stage, db_clock, START + 2 * HOUR)
    assert [key.partition("@")[2][11:16] for key in ticks] == [f"{n // 6:02}:{n % 6}0" for n in range(1, runs + 1)]


def test_a_rename_that_is_rolled_back_keeps_a_pause_and_what_is_overdue(ticks, stage, db_clock):
    declare("old", missed="all")
    schedules.apply()
    rename("old", "new", missed="all")
    db_clock.advance(seconds=1205)  # nobody makes the second firing
    registry.unregister("new")
    declare("old", missed="all")
    schedules.apply()
    run_until(stage, db_clock, START + HOUR / 2)
    assert [key[-8:-3] for key in ticks] == ["00:10", "00:20", "00:30"]
    schedules.pause("old")
    rename("old", "new", missed="all")
    assert Schedule.objects.get().paused


def test_a_schedule_that_is_still_declared_is_not_renamed(ticks, db_clock):
    declare("old")
    schedules.apply()
    registry.add(registry.Declared(Definition(name="new", topic="tick", every=600), was=("old",)))
    assert kinds(schedules.apply()) == {"new": "create", "old": "keep"}
    assert set(Schedule.objects.values_list("name", flat=True)) == {"old", "new"}


def test_apply_refuses_the_name_of_a_schedule_of_staff(define, ticks):
    define()
    declare()
    with pytest.raises(BadSchedule, match="defined by staff"):
        schedules.apply()


def test_two_declarations_of_one_name_are_refused():
    declare()
    with pytest.raises(BadSchedule, match="two schedules named 'tick'"):
        registry.add(registry.Declared(Definition(name="tick", topic="tick", every=1)))


def test_a_former_name_that_is_not_in_a_tuple_is_refused():
    """Its letters would count as names: apply() would delete the schedule, with its pause and its record of runs."""
    with pytest.raises(BadSchedule, match=r"was is 'tock': give a tuple of names, \('tock',\)"):
        recurring("tick", every=600, was="tock")(lambda job: None)


def test_two_declarations_that_were_one_schedule_are_named(ticks, db_clock):
    declare("old")
    schedules.apply()
    registry.unregister("old")
    for name in ("a", "b"):
        registry.add(registry.Declared(Definition(name=name, topic="tick", every=600), was=("old",)))
    with pytest.raises(BadSchedule, match="'a' and 'b' both have the former name 'old'"):
        schedules.apply()
    assert list(Schedule.objects.values_list("name", flat=True)) == ["old"]


def test_apply_goes_on_where_a_row_has_an_unknown_zone(define, ticks, stage, db_clock, caplog):
    define("staff", every=None, cron="0 9 * * *")
    Schedule.objects.update(tz="Mars/Gone")
    declare()
    assert kinds(schedules.apply()) == {"tick": "create"}
    assert "schedule staff" in caplog.text
    assert "Mars/Gone" in caplog.text
    define("staff", every=None, cron="0 9 * * *")
    assert due_times("staff") == ["09:00:00"]
    Schedule.objects.filter(name="staff").update(tz="Mars/Gone")
    schedules.delete(schedules.find("staff"))
    assert due_times("staff") == []


# -- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": None}, "it has none of them"),
        ({"cron": "0 0 * * *"}, "it has cron, every"),
        ({"rrule": "FREQ=DAILY"}, "it has every, rrule"),
        ({"every": None, "rrule": "FREQ=DAILY", "delay": 5}, "it has rrule, delay or period"),
        ({"repeat": 3}, "repeat is 3 with every, which has its own runs: remove repeat"),
        ({"repeat": None}, "repeat is None with every"),
        ({"every": None, "cron": "0 0 * * *", "repeat": 3}, "repeat is 3 without period"),
        ({"every": None, "rrule": "FREQ=DAILY", "repeat": 3}, "repeat is 3 with rrule, .*write COUNT in the rule"),
        ({"every": 0}, "every is"),
        ({"every": "1h"}, "every is '1h'"),
        ({"every": None, "cron": "0 0 30 2 *"}, "no such day comes"),
        ({"tz": "Europe/Nowhere"}, "IANA name"),
        ({"missed": "some"}, "missed is 'some'"),
        ({"running": "kill"}, "running is 'kill'"),
        ({"gap": "no"}, "gap is 'no'"),
        ({"overlap": "no"}, "overlap is 'no'"),
        ({"within": -1}, "within is -1"),
        ({"start": datetime(2030, 1, 1)}, "start is"),  # noqa: DTZ001
        ({"start": datetime.min.replace(tzinfo=UTC)}, "a year from 1900 to 9000"),
        ({"start": datetime(9999, 12, 31, 20, tzinfo=UTC), "tz": "Asia/Tokyo"}, "a year from 1900 to 9000"),
        ({"every": None, "rrule": "FREQ=DAILY", "start": datetime.min.replace(tzinfo=UTC), "tz": NEW_YORK}, "1900"),
        ({"every": None, "rrule": "FREQ=DAILY;UNTIL=99991231T235959", "tz": NEW_YORK}, "UNTIL=99991231T235959"),
        ({"every": None, "cron": "0 0 * * *", "period": 3660 * 86_400, "repeat": 1_000_000}, "31 days at most"),
        ({"ttr": 0}, "ttr is 0"),
        ({"name": "a name"}, "not a schedule's name"),
    ],
)
def test_a_wrong_definition_is_refused(options, words):
    with pytest.raises(BadInput, match=words):
        Definition(**{"name": "tick", "topic": "tick", "every": 600} | options)


def test_a_schedule_of_the_past_or_of_an_unknown_topic_is_refused(define, ticks):
    with pytest.raises(BadSchedule, match="would never run"):
        define(every=None, rrule="FREQ=DAILY;COUNT=2", start=START - 90 * 24 * HOUR)
    with pytest.raises(UnknownTopic):
        define(topic="unknown.topic")
    assert not Schedule.objects.exists()


def test_a_change_to_times_that_never_come_is_refused(define, ticks, stage, db_clock):
    define()
    with pytest.raises(BadSchedule, match="would never run"):
        define(every=None, rrule="FREQ=DAILY;COUNT=2", start=START - 90 * 24 * HOUR)
    run_until(stage, db_clock, START + HOUR)
    assert len(ticks) == 6
    define(every=None, delay=0, running="allow", start=START + HOUR + timedelta(minutes=1))
    run_until(stage, db_clock, START + 2 * HOUR)
    assert define(every=None, delay=0, start=Schedule.objects.get().start_at, body={"n": 1}).body == {"n": 1}  # ended


def test_a_row_written_past_the_checks_stops_itself_not_the_others(define, ticks, stage, db_clock, caplog):
    define("broken")
    define()
    Schedule.objects.filter(name="broken").update(tz="Mars/Base")
    run_until(stage, db_clock, START + HOUR)
    assert len([key for key in ticks if key.startswith("tick@")]) == 6
    assert "Mars/Base" in Schedule.objects.get(name="broken").problem
    assert "broken" in caplog.text


@pytest.mark.parametrize("times", [{"every": 60}, {"cron": "0 9 * * *"}, {"cron": "* * * * *"}, {"rrule": "FREQ=DAILY"},
                                   {"delay": 5, "period": 60, "repeat": None}])  # fmt: skip
@pytest.mark.parametrize("tz", ["Asia/Tokyo", NEW_YORK])
def test_no_run_comes_after_the_year_9999(define, ticks, times, tz):
    row = define(tz=tz, **{"every": None} | times)
    assert schedules.next_firings(row, after=datetime.max.replace(tzinfo=UTC)) == []
    assert schedules.next_firings(row, after=datetime(9999, 12, 31, tzinfo=UTC)) is not None


def test_repetitions_without_a_period_that_a_row_has_are_left_out(define, ticks, stage, db_clock):
    """They meant nothing, and were accepted once."""
    define()
    Schedule.objects.update(repeat=3)
    run_until(stage, db_clock, START + HOUR)
    assert len(ticks) == 6


def test_an_unknown_schedule_is_named():
    with pytest.raises(BadSchedule, match="no schedule 'x'"):
        schedules.pause("x")


def test_a_rule_of_the_zone_that_changed_moves_the_firing(define, ticks, stage, db_clock):
    """As if the firing at 09:00 had been computed when Berlin was two hours ahead of UTC in winter."""
    define(every=None, cron="0 9 * * *", tz="Europe/Berlin", missed="none")
    wrong = datetime(2030, 1, 1, 7, tzinfo=UTC)
    Schedule.objects.update(made_until=wrong)
    Job.objects.update(due_at=wrong, replaced_at=wrong)
    assert maker.refresh_zones("default") == 1
    assert due_times() == ["08:00:00"]
    assert Job.objects.get().replaced_at == START + 8 * HOUR
    assert maker.refresh_zones("default") == 0
    run_until(stage, db_clock, START + 24 * HOUR, step_seconds=1800)
    assert ticks == ["tick@2030-01-01T09:00:00"]


@pytest.mark.parametrize(
    ("times", "moved", "due"),
    [
        ({"cron": "0 9 * * *", "delay": 600}, 1, "08:10:00"),
        ({"cron": "0 9 * * *", "delay": 600, "period": 60, "repeat": 2}, 1, "08:10:00"),
        ({"cron": "0 * * * *", "delay": 600}, 0, "07:10:00"),  # elapsed time
        ({"period": 60, "repeat": 2, "delay": 26_400}, 0, "07:10:00"),
    ],
    ids=str,
)
def test_a_rule_of_the_zone_that_changed_moves_the_delayed_firing_of_a_cron(ticks, stage, db_clock, times, moved, due):
    zone = {"tz": "Europe/Berlin"} if "cron" in times else {}
    job = schedule("tick", "order:1", **times, **zone)
    wrong = datetime(2030, 1, 1, 7, 10, tzinfo=UTC)
    label = "2030-01-01T09:10:00" if "cron" in times else "2030-01-01T07:20:00"
    Schedule.objects.update(made_until=wrong, made_label=label)
    Job.objects.update(due_at=wrong, key=f"order:1#{label}")
    assert maker.refresh_zones("default") == moved
    assert Job.objects.get(pk=job.pk).due_at.strftime("%H:%M:%S") == due


def test_a_schedule_defined_again_in_a_zone_further_west_runs_there_on_the_same_day(define, ticks, stage, db_clock):
    daily = {"every": None, "cron": "0 10 * * *"}
    define(**daily, tz="Asia/Tokyo")
    run_until(stage, db_clock, START + timedelta(hours=5), step_seconds=600)
    assert len(ticks) == 1
    schedules.delete(schedules.find("tick"))
    define(**daily, tz=NEW_YORK)
    run_until(stage, db_clock, START + timedelta(hours=23), step_seconds=600)
    assert len(ticks) == 2


@pytest.mark.parametrize(("changed", "live"), [(True, ["tick@2030-01-01T10:00:00"]), (False, [])])
def test_a_deploy_with_new_zone_data_withdraws_what_the_former_rules_have_made(ticks, changed, live):
    """The schedule is changed, or is no longer declared."""
    daily = {"every": None, "tz": "Europe/Berlin"}
    declare(cron="0 9 * * *", **daily)
    schedules.apply()
    former = datetime(2030, 1, 1, 7, tzinfo=UTC)  # as if Berlin had been two hours ahead of UTC
    Schedule.objects.update(made_until=former)
    Job.objects.update(due_at=former, replaced_at=former)
    registry.unregister("tick")
    if changed:
        declare(cron="0 10 * * *", **daily)
    schedules.apply()
    assert list(Job.objects.filter(ended_at=None).values_list("key", flat=True)) == live
