"""poll(): a question is asked again after the delays of its ladder, until it is settled or its deadline has passed."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import DatabaseError, connection

from delaytasks import Retry, Skip, Snooze, cancel, handlers, poll, reschedule, retry_dead, run_now, schedule
from delaytasks.backoff import Backoff
from delaytasks.clock import from_ms
from delaytasks.exceptions import BadDelay
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.outcomes import ErrorCode
from delaytasks.polling.poll import deadline_of
from delaytasks.recurrence import maker, schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.recurrence.wall_times import from_instant
from delaytasks.states import State
from delaytasks.testing import Timeouts
from tests.support.stage import Boom, effect, effects

LADDER = ["2m", "10m", "1h"]
DAY = timedelta(days=1)
WITHOUT_JITTER = Backoff(base_seconds=30, factor=2, jitter=0)


def minutes_of(runs: Any, start: datetime) -> list[float]:
    return [(run.at - start) / timedelta(minutes=1) for run in runs]


@pytest.mark.on_both
def test_an_unsettled_poll_is_asked_again_after_each_rung_and_the_last_rung_repeats(timeouts, register, bank):
    check = register("t", bank.ask, every=LADDER, until=DAY)
    start = timeouts.now
    check.schedule("a", delay=60)
    runs = timeouts.advance(hours=4)
    assert minutes_of(runs, start) == [1, 3, 13, 73, 133, 193]
    assert bank.asked == [(n, n + 1) for n in range(6)]
    assert (runs.outcomes, Job.objects.get().polls) == ({"snoozed": 6}, 6)


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
def test_a_true_answer_settles_the_poll(timeouts, register, bank, atomic):
    bank.answers = [None, 0, "", {"state": "settled"}]
    register("t", bank.ask, every=LADDER, until=DAY, atomic=atomic)
    schedule("t", "a", delay=0)
    assert timeouts.advance(days=2).outcomes == {"snoozed": 3, "finished": 1}
    assert Job.objects.get().error == ""


@pytest.mark.on_both
def test_the_last_poll_is_at_the_deadline_itself(timeouts, register, bank):
    register("t", bank.ask, every=["50m"], until="2h")
    start = timeouts.now
    schedule("t", "a", delay=600)
    runs = timeouts.advance(hours=5)
    assert minutes_of(runs, start) == [10, 60, 110, 120]
    assert [event.due_ms - event.reserved_ms for event in JobEvent.objects.all()] == [0] * 4


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
def test_giving_up_finishes_the_job_with_the_code_gave_up(timeouts, register, bank, atomic):
    def to_a_person(job: Any) -> None:
        effect(f"effect {job.key} after {job.polls}")

    register("t", bank.ask, every=["1h"], until="150m", on_give_up=to_a_person, atomic=atomic)
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=5).outcomes == {"snoozed": 3, "finished": 1}
    assert effects() == ["effect a after 3"]
    job, last = Job.objects.get(), JobEvent.objects.latest("id")
    assert (job.state, job.error) == (State.FINISHED, ErrorCode.GAVE_UP)
    assert (last.outcome, last.error, last.reason) == ("finished", ErrorCode.GAVE_UP, "")


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
def test_the_effects_of_giving_up_and_the_end_of_the_job_are_one_commit(timeouts, register, bank, atomic):
    calls = []

    def to_a_person(job: Any) -> None:
        calls.append(job.attempt)
        effect("effect")
        if len(calls) == 1:
            raise Boom

    register("t", bank.ask, every=["1h"], until="1h", on_give_up=to_a_person, atomic=atomic, backoff=WITHOUT_JITTER)
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=1).outcomes == {"snoozed": 1, "failed": 1}
    assert effects() == []
    start = timeouts.now
    assert minutes_of(timeouts.advance(hours=1), start) == [0.5], "after the backoff, beyond the deadline"
    assert (calls, effects(), Job.objects.get().state) == ([2, 3], ["effect"], State.FINISHED)


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
def test_a_process_that_dies_while_giving_up_leaves_nothing_and_gives_up_once(timeouts, register, bank, atomic):
    register("t", bank.ask, every=["1h"], until="1h", on_give_up=lambda job: effect("effect"), atomic=atomic)
    schedule("t", "a", delay=0)
    timeouts.advance(minutes=30)
    timeouts.die_in("t", before="commit")
    assert timeouts.advance(hours=2).outcomes == {"died": 1, "expired": 1, "finished": 1}
    assert effects() == ["effect"]


def test_without_on_give_up_the_job_is_dead_and_a_retry_asks_once_more(timeouts, register, bank):
    died = []
    register("t", bank.ask, every=["1h"], until="1h", on_dead=lambda job: died.append(job.key))
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=2).outcomes == {"snoozed": 1, "dead": 1}
    assert (died, Job.objects.get().error) == (["a"], ErrorCode.GAVE_UP)
    retry_dead("t", "a")
    assert timeouts.run_due().outcomes == {"dead": 1}
    retry_dead("t", "a")
    bank.answers = [True]
    assert timeouts.run_due().outcomes == {"finished": 1}


# -- failures -----------------------------------------------------------------------------------


@pytest.mark.on_both
def test_a_failed_attempt_follows_the_backoff_and_skips_no_rung(timeouts, register, bank):
    bank.answers = [False, Boom(), Boom(), False, Boom(), False]
    register("t", bank.ask, every=LADDER, until=DAY, backoff=WITHOUT_JITTER)
    start = timeouts.now
    schedule("t", "a", delay=0)
    runs = timeouts.advance(minutes=80)
    assert minutes_of(runs, start) == [0, 2, 2.5, 3.5, 13.5, 14, 74]
    assert [polls for polls, _ in bank.asked] == [0, 1, 1, 1, 2, 2, 3]


@pytest.mark.on_both
@pytest.mark.parametrize("before", ["handler", "commit"])
def test_a_death_of_the_process_skips_no_rung(timeouts, register, bank, before):
    register("t", bank.ask, every=LADDER, until=DAY, ttr=30)
    start = timeouts.now
    schedule("t", "a", delay=0)
    timeouts.advance(minutes=1)
    timeouts.die_in("t", before=before)
    runs = timeouts.advance(minutes=20)
    assert [run.outcome for run in runs] == ["died", "expired", "snoozed", "snoozed"]
    assert minutes_of(runs, start) == [2, 2.5, 2.5, 12.5], "the second rung, 10 minutes, after the answer"


def test_an_answered_poll_forgets_the_failures_before_it(timeouts, register, bank):
    bank.answers = [Boom(), False] * 10 + [True]
    register("t", bank.ask, every=["1m"], until=DAY, max_attempts=2, backoff=WITHOUT_JITTER)
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=1).outcomes == {"failed": 10, "snoozed": 10, "finished": 1}


def test_max_attempts_failures_between_two_answers_make_the_job_dead(timeouts, register, bank):
    gave_up = []
    bank.answers = [False, Boom()]
    register("t", bank.ask, every=["1m"], until=DAY, max_attempts=3, backoff=WITHOUT_JITTER, on_give_up=gave_up.append)
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=1).outcomes == {"snoozed": 1, "failed": 2, "dead": 1}
    assert (gave_up, "Boom" in Job.objects.get().error) == ([], True)


@pytest.mark.on_both
@pytest.mark.parametrize("error", [Boom(), Retry("later", delay=DAY)], ids=["backoff", "Retry"])
def test_a_failed_attempt_is_retried_at_the_deadline_at_the_latest(timeouts, register, bank, error):
    bank.answers = [error, False]
    register("t", bank.ask, every=["1h"], until="30m", backoff=Backoff(base_seconds=86_400, cap_seconds=1e6, jitter=0),
             on_give_up=lambda job: effect("effect"))  # fmt: skip
    start = timeouts.now
    schedule("t", "a", delay=0)
    runs = timeouts.advance(hours=1)
    assert minutes_of(runs, start) == [0, 30]
    assert (runs.outcomes, effects()) == ({"failed": 1, "finished": 1}, ["effect"])


@pytest.mark.parametrize("until", ["30m", "1s"], ids=["before the deadline", "the last poll"])
def test_an_exception_that_a_poll_returns_settles_nothing(timeouts, register, until):
    register("t", lambda job: Boom("no answer"), every=["1h"], until=until, max_attempts=1)
    schedule("t", "a", delay=5)
    assert timeouts.advance(minutes=1).outcomes == {"dead": 1}


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("returned", [False, True], ids=["raised", "returned"])
def test_a_last_poll_that_fails_gives_up_without_its_effects(timeouts, register, atomic, returned):
    def ask(job: Any) -> Any:
        if job.polls and atomic:
            effect("effect of the poll")
        if job.polls and not returned:
            raise Boom
        return Boom() if job.polls else False

    register("t", ask, every=["1h"], until="1h", on_give_up=lambda job: effect("effect of giving up"), atomic=atomic)
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=2).outcomes == {"snoozed": 1, "finished": 1}
    assert effects() == ["effect of giving up"]
    last = JobEvent.objects.latest("id")
    assert (last.error, last.reason) == (ErrorCode.GAVE_UP, "Boom")


def test_a_last_poll_that_the_database_fails_is_retried(timeouts, register, bank):
    bank.answers = [False, DatabaseError("no space left"), True]
    gave_up: list[Any] = []
    register("t", bank.ask, every=["1h"], until="1h", on_give_up=gave_up.append)
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=2).outcomes == {"snoozed": 1, "failed": 1, "finished": 1}
    assert gave_up == []


# -- other results ------------------------------------------------------------------------------


def test_a_snooze_is_asked_again_after_its_own_delay_at_the_deadline_at_the_latest(timeouts, register, bank):
    bank.answers = [Snooze(60, "closed"), False, Snooze(DAY), Snooze(1)]
    register("t", bank.ask, every=["2m", "10m", "1h"], until="1h", on_give_up=lambda job: effect("effect"))
    start = timeouts.now
    schedule("t", "a", delay=0)
    runs = timeouts.advance(hours=2)
    assert minutes_of(runs, start) == [0, 1, 11, 60]
    assert (runs[-1].outcome, effects()) == ("finished", ["effect"])
    assert JobEvent.objects.filter(outcome="snoozed").order_by("id").values_list("reason", flat=True)[0] == "closed"


@pytest.mark.parametrize("late", [False, True], ids=["before the deadline", "at the deadline"])
def test_a_skip_is_passed_on(timeouts, register, bank, late):
    bank.answers = [False, Skip("refunded by hand")] if late else [Skip("refunded by hand")]
    register("t", bank.ask, every=["1h"], until="1h")
    schedule("t", "a", delay=0)
    assert timeouts.advance(hours=2)[-1].outcome == "skipped"
    assert JobEvent.objects.latest("id").reason == "refunded by hand"


@pytest.mark.parametrize("late", [False, True], ids=["before the deadline", "at the deadline"])
def test_a_generator_function_is_not_taken_for_a_true_answer(timeouts, register, bank, late):
    def ask(job: Any) -> Any:
        if not late or job.polls:
            return (each for each in "ab")
        return False

    register("t", ask, every=["1h"], until="1h")
    schedule("t", "a", delay=0)
    timeouts.advance(hours=1)
    assert "has not run" in Job.objects.get().error


@pytest.mark.on_both
@pytest.mark.parametrize("at_the_deadline", [False, True])
def test_a_handler_that_has_finished_its_job_need_not_return_anything(timeouts, register, at_the_deadline):
    def ask(job: Any) -> Any:
        if at_the_deadline and not job.polls:
            return False
        with job.finishing():
            effect("effect")
        return None

    register("t", ask, every=["1h"], until="1h", atomic=False, on_give_up=lambda job: effect("effect of giving up"))
    schedule("t", "a", delay=0)
    timeouts.advance(hours=2)
    assert (Job.objects.get().state, Job.objects.get().error, effects()) == (State.FINISHED, "", ["effect"])


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
def test_coroutine_functions_poll_and_give_up(timeouts, register, atomic):
    async def ask(job: Any) -> bool:
        await asyncio.sleep(0)
        return False

    async def to_a_person(job: Any) -> None:
        await Topic.objects.acreate(name=f"effect after {job.polls}")

    check = register("t", ask, every=["1h"], until="1h", on_give_up=to_a_person, atomic=atomic)
    check.schedule("a", delay=0)
    assert timeouts.advance(hours=2).outcomes == {"snoozed": 1, "finished": 1}
    assert (Job.objects.get().error, effects()) == (ErrorCode.GAVE_UP, ["effect after 1"])


# -- changes to the job -------------------------------------------------------------------------


@pytest.mark.on_both
def test_moving_a_job_moves_neither_its_ladder_nor_its_deadline(timeouts, register, bank):
    register("t", bank.ask, every=["10m", "20m"], until="1h")
    start = timeouts.now
    schedule("t", "a", delay=0)
    timeouts.run_due()
    reschedule("t", "a", delay=timedelta(minutes=5))
    assert minutes_of(timeouts.advance(minutes=24), start) == [5]
    run_now("t", "a")
    assert minutes_of(timeouts.advance(hours=2), start) == [24, 44, 60]
    assert Job.objects.get().polls == 4, "the last one was not answered"


@pytest.mark.on_both
def test_a_job_moved_beyond_its_deadline_is_asked_once(timeouts, register, bank):
    register("t", bank.ask, every=["10m"], until="1h")
    schedule("t", "a", delay=0)
    reschedule("t", "a", delay=DAY)
    assert timeouts.advance(days=2).outcomes == {"dead": 1}


@pytest.mark.on_both
def test_a_replaced_job_begins_its_ladder_anew(timeouts, register, bank):
    register("t", bank.ask, every=["10m", "50m"], until="1h")
    schedule("t", "a", delay=0)
    timeouts.advance(minutes=30)
    start = timeouts.now
    schedule("t", "a", delay=0, on_conflict="replace")
    job = Job.objects.get()
    assert (job.polls, job.replaced_at, deadline_of(job)) == (0, start, start + timedelta(hours=1))
    assert minutes_of(timeouts.advance(hours=2), start) == [0, 10, 60]


def in_twelve_hours(start: datetime) -> tuple[str, datetime]:
    """Return a daily cron expression and its first time, so that whatever the time is, no run is due soon."""
    first = (start + timedelta(hours=12)).replace(minute=0, second=0, microsecond=0)
    return f"0 {first.hour} * * *", first


@pytest.mark.on_both
@pytest.mark.parametrize("by", ["series", "schedule"])
def test_a_run_of_a_schedule_counts_its_deadline_from_its_time(timeouts, register, bank, by):
    """Its job is made a period ahead."""
    register("t", bank.ask, every=["20m"], until="1h", on_give_up=lambda job: None)
    cron, first = in_twelve_hours(timeouts.now)
    if by == "series":
        schedule("t", "a", cron=cron, tz="UTC")
    else:
        schedules.define(Definition(name="a", topic="t", cron=cron, tz="UTC"))
    for day in range(2):
        assert minutes_of(timeouts.advance(days=1), first + timedelta(days=day)) == [0, 20, 40, 60]
    assert deadline_of(Job.objects.live().get()) == first + timedelta(days=2, hours=1)


@pytest.mark.on_both
def test_a_run_made_after_its_time_counts_its_deadline_from_then(timeouts, register, bank):
    register("t", bank.ask, every=["20m"], until="1h", ttr=30, backoff=Backoff(base_seconds=600, factor=1, jitter=0))
    start, late = timeouts.now, timeouts.now - timedelta(hours=2)
    row = schedules.define(Definition(name="a", topic="t", cron=in_twelve_hours(start)[0], tz="UTC"))
    maker.insert("default", [maker.new_firing(row, from_instant(late, ZoneInfo("UTC")))])
    assert deadline_of(Job.objects.get(replaced_at=late)) == start + timedelta(hours=1)
    timeouts.die_in("t", before="commit", times=2)
    runs = timeouts.advance(hours=1)
    assert minutes_of(runs, start) == [0, 0.5, 0.5, 1, 11, 31, 51, 60], "the second death waits for ten minutes"


def test_a_job_that_an_older_version_polled_begins_at_the_first_rung_and_keeps_its_deadline(timeouts, register, bank):
    """An older worker snoozes without counting."""
    register("t", bank.ask, every=["10m", "20m"], until="1h")
    start = timeouts.now
    job = schedule("t", "a", delay=timedelta(minutes=45))
    Job.objects.filter(pk=job.pk).update(attempt=7)
    assert minutes_of(timeouts.advance(hours=2), start) == [45, 55, 60]


@pytest.mark.on_both
def test_a_job_that_an_older_version_inserted_is_polled(timeouts, register, bank):
    """Its INSERT does not name the new columns."""
    register("t", bank.ask, every=["10m"], until="1h")
    new = {"expires_ms", "polls", "replaced_at"}
    old = ", ".join(f.column for f in Job._meta.concrete_fields if not f.primary_key and f.column not in new)
    schedule("t", "template", delay=0)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delaytasks_job SET key = 'a'")
        cursor.execute("CREATE TEMPORARY TABLE older AS SELECT * FROM delaytasks_job")
        cursor.execute("DELETE FROM delaytasks_job")
        cursor.execute(f"INSERT INTO delaytasks_job ({old}) SELECT {old} FROM older")
        cursor.execute("DROP TABLE older")
    assert timeouts.advance(hours=2).outcomes == {"snoozed": 6, "dead": 1}
    assert Job.objects.get().polls == 6


def test_a_cancelled_poll_is_not_asked(timeouts, register, bank):
    register("t", bank.ask, every=["10m"], until="1h")
    schedule("t", "a", delay=0)
    timeouts.run_due()
    assert cancel("t", "a") == "cancelled"
    assert not timeouts.advance(hours=2)


# -- the engine of a worker ---------------------------------------------------------------------


@pytest.mark.on_both
@pytest.mark.parametrize(
    "options", [{}, {"one_commit": True}, {"atomic": False}], ids=["atomic", "group", "not atomic"]
)
def test_a_worker_polls_gives_up_and_settles(stage, db_clock, options):
    def ask(job: Any) -> bool:
        return job.key == "settled" and job.polls > 0

    stage.registered.append("t")
    poll("t", every=["1m"], until="2m", on_give_up=lambda job: effect(f"effect {job.key}"), **options)(ask)
    for key in ("settled", "b", "c"):
        schedule("t", key, delay=0)
    for _ in range(4):
        stage.go()
        db_clock.advance(seconds=60)
    assert effects() == ["effect b", "effect c"]
    assert sorted(Job.objects.values_list("key", "polls", "error")) == [
        ("b", 2, ErrorCode.GAVE_UP), ("c", 2, ErrorCode.GAVE_UP), ("settled", 1, ""),
    ]  # fmt: skip
    created = Job.objects.get(key="b").created_at
    last = JobEvent.objects.filter(job__key="b").latest("id")
    assert from_ms(last.due_ms) == created + timedelta(minutes=2)


def test_no_transaction_is_open_while_a_poll_that_is_not_atomic_is_asked(stage, db_clock):
    inside = []

    def ask(job: Any) -> bool:
        inside.append(connection.in_atomic_block)
        return False

    stage.registered.append("t")
    poll("t", every=["1m"], until="1m", atomic=False, on_give_up=lambda job: inside.append(connection.in_atomic_block))(
        ask
    )
    schedule("t", "a", delay=0)
    stage.go()
    db_clock.advance(seconds=60)
    stage.go()
    assert inside == [False, False, True]


# -- the declaration ----------------------------------------------------------------------------


def test_the_options_of_handler_go_through(register, bank):
    check = register(
        "t", bank.ask, every=["1m"], until=DAY, ttr=7, max_attempts=3, queue="slow", atomic=False, concurrency=2,
        expires=60,
    )  # fmt: skip
    handler = handlers.find("t")
    assert handler is not None
    assert (handler.ttr_ms, handler.max_attempts, handler.queue, handler.atomic) == (7000, 3, "slow", False)
    assert (handler.concurrency, handler.expires_ms) == (2, 60_000)
    assert handler.name.endswith("Bank.ask")
    assert check.function == bank.ask


def test_the_decorated_function_is_called_like_the_function(register):
    check = register("t", lambda job: job * 2, every=["1m"], until=DAY)
    assert check(21) == 42


def test_two_polls_of_a_topic_clash_and_one_that_is_imported_twice_does_not(register):
    def ask(job: Any) -> bool:
        return True

    register("t", ask, every=["1m"], until=DAY)
    register("t", ask, every=["1m"], until=DAY)
    assert handlers.clashes == []
    register("t", lambda job: True, every=["1m"], until=DAY)
    assert "has two handlers" in handlers.clashes[0]


def test_a_batch_is_refused():
    with pytest.raises(ValueError, match="batch is not possible"):
        poll("t", every=["1m"], until=DAY, batch=5)(lambda job: True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("every", "until", "message"),
    [
        ([], DAY, "every is"),
        ("10m", DAY, "every is '10m': give a list"),
        (None, DAY, "every is None"),
        (["10m", "soon"], DAY, r"every\[1\] is 'soon'"),
        ([-1], DAY, r"every\[0\] is -1"),
        (["10m", 0], DAY, r"every\[1\] is 0: the last delay repeats"),
        (["10m"], 0, "until is 0"),
        (["10m"], timedelta(days=800), "until is"),
        (["10m"], None, "until is None"),
    ],
)
def test_a_ladder_that_makes_no_sense_is_refused(every, until, message):
    with pytest.raises(BadDelay, match=message):
        poll("t", every=every, until=until)


def test_the_first_rungs_may_be_zero(timeouts: Timeouts, register, bank):
    register("t", bank.ask, every=[0, 0, "2m"], until=DAY)
    start = timeouts.now
    schedule("t", "a", delay=0)
    assert minutes_of(timeouts.advance(minutes=5), start) == [0, 0, 0, 2, 4]
