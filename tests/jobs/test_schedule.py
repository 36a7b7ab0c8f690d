"""schedule() and the other verbs take effect with the caller's transaction."""

from datetime import UTC, datetime, timedelta
from enum import Enum

import pytest
from django.db import transaction

from delaytasks import cancel, reschedule, retry_dead, run_now, schedule, schedule_many
from delaytasks.clock import from_ms
from delaytasks.exceptions import BadDelay, BadInput, KeyIsLive, NotDead, NotLive, Reserved, UnknownTopic
from delaytasks.jobs.control import CancelResult, cancel_job, reschedule_job, run_job_now
from delaytasks.jobs.schedule import Scheduled, schedule_unique
from delaytasks.models import Job, JobEvent, Topic

from ..support.stage import outcomes, state_of


class Boom(Exception):
    pass


def test_a_job_is_due_its_delay_after_now_to_the_millisecond(stage, db_clock):
    stage.recorder("t")
    job = schedule("t", key="a", delay=timedelta(minutes=30), body={"order": 7}, ttr=5)
    assert job.due_at == from_ms(db_clock.now_ms + 1_800_000)
    stored = Job.objects.get(pk=job.pk)
    assert (stored.due_at, stored.body, stored.ttr_ms, stored.attempt) == (job.due_at, {"order": 7}, 5000, 0)
    assert job.is_new


def test_a_due_time_keeps_its_milliseconds_and_is_never_rounded_to_an_earlier_one(stage):
    stage.recorder("t")
    job = schedule("t", key="a", due_at=datetime(2031, 1, 1, 0, 0, 0, 1_001, tzinfo=UTC))
    assert Job.objects.get(pk=job.pk).due_at == datetime(2031, 1, 1, 0, 0, 0, 2_000, tzinfo=UTC)


def test_a_past_due_time_means_now(stage, db_clock):
    stage.recorder("t")
    job = schedule("t", key="a", due_at=datetime(1999, 1, 1, tzinfo=UTC))
    assert job.due_at == from_ms(db_clock.now_ms)


def test_a_rollback_leaves_nothing_in_the_database_or_the_mirror(stage, db_clock):
    keys = stage.recorder("t")
    with pytest.raises(Boom), transaction.atomic():
        schedule("t", key="a", delay=1)
        schedule_many([{"topic": "t", "key": "b", "delay": 1}])
        raise Boom
    db_clock.advance(seconds=10)
    stage.go()
    assert not Job.objects.exists()
    assert keys == []


def test_the_job_is_not_visible_before_the_commit(stage):
    keys = stage.recorder("t")
    with transaction.atomic():
        schedule("t", key="a", delay=0)
        assert stage.dispatched == []
    stage.go()
    assert keys == ["a"]


def test_a_live_key_is_refused_with_the_id_of_its_job(stage):
    stage.recorder("t")
    first = schedule("t", key="a", delay=60)
    with pytest.raises(KeyIsLive, match=f"job {first.pk}"):
        schedule("t", key="a", delay=60)
    assert Job.objects.count() == 1


def test_a_refused_key_does_not_break_the_callers_transaction(stage):
    stage.recorder("t")
    schedule("t", key="a", delay=60)
    with transaction.atomic():
        schedule("t", key="b", delay=60)
        with pytest.raises(KeyIsLive):
            schedule("t", key="a", delay=60)
        schedule("t", key="c", delay=60)
    assert sorted(Job.objects.values_list("key", flat=True)) == ["a", "b", "c"]


def test_keep_returns_the_live_job_unchanged(stage):
    stage.recorder("t")
    first = schedule("t", key="a", delay=60, body={"n": 1})
    kept = schedule("t", key="a", delay=5, body={"n": 2}, on_conflict="keep")
    assert (kept.pk, kept.due_at, kept.body, kept.is_new) == (first.pk, first.due_at, {"n": 1}, False)


def test_replace_changes_the_live_job_and_records_an_event(stage, db_clock):
    keys = stage.recorder("t")
    first = schedule("t", key="a", delay=60, body={"n": 1})
    job = schedule("t", key="a", delay=5, body={"n": 2}, ttr=9, on_conflict="replace", by="ann")
    assert (job.pk, job.body, job.ttr_ms, job.is_new) == (first.pk, {"n": 2}, 9000, False)
    event = JobEvent.objects.get(job=job)
    assert (event.outcome, event.actor, event.due_ms, event.next_due_ms) == (
        "rescheduled", "ann", first.due_ms, job.due_ms,
    )  # fmt: skip
    db_clock.advance(seconds=6)
    stage.go()
    assert keys == ["a"]


def test_replace_with_a_later_time_never_runs_at_the_old_one(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=5)
    schedule("t", key="a", delay=60, on_conflict="replace")
    db_clock.advance(seconds=10)
    stage.go()
    assert keys == []
    db_clock.advance(seconds=51)
    stage.go()
    assert keys == ["a"]


def test_replace_of_a_reserved_job_is_refused(stage):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    assert len(stage.take("t")) == 1
    with pytest.raises(Reserved):
        schedule("t", key="a", delay=5, on_conflict="replace")


def test_the_key_of_an_ended_job_is_free_again(stage):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=0)
    stage.go()
    schedule("t", key="a", delay=0)
    stage.go()
    assert keys == ["a", "a"]
    assert Job.objects.filter(key="a").count() == 2


def test_the_same_key_may_be_live_in_two_topics(stage):
    stage.recorder("t")
    stage.recorder("u")
    schedule("t", key="a", delay=1)
    schedule("u", key="a", delay=1)
    assert Job.objects.live().count() == 2


def test_an_unknown_topic_is_refused_and_a_topic_row_or_a_setting_makes_it_known(stage, settings):
    with pytest.raises(UnknownTopic, match="nobody"):
        schedule("nobody", key="a", delay=1)
    assert not Job.objects.exists()
    Topic.objects.create(name="nobody")
    schedule("nobody", key="a", delay=1)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"declared": {"ttr": 7, "max_attempts": 2}}}
    assert schedule("declared", key="a", delay=1).ttr_ms == 7000


def test_a_key_is_given_by_position_or_by_name_in_every_verb(stage):
    stage.handler("t", max_attempts=1)(lambda job: 1 / 0)
    schedule("t", "a", delay=60)
    reschedule("t", key="a", delay=90)
    assert cancel("t", "a") is CancelResult.CANCELLED
    schedule("t", key="a", delay=60)
    run_now("t", key="a")
    stage.go()
    assert retry_dead("t", key="a").failures == 0
    assert cancel("t", key="a") is CancelResult.CANCELLED
    assert schedule_unique("t", "b", among=["t"], delay=60).key == "b"


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "generator"])
@pytest.mark.parametrize("mode", ["reject", "keep", "replace"])
def test_many_jobs_are_scheduled_in_chunks_and_counted(stage, mode, kind):
    keys = stage.recorder("t", batch=100)
    batch_sizes: list[int] = []
    stage.handler("many", batch=200)(lambda jobs: batch_sizes.append(len(jobs)))
    made = schedule_many(kind([{"topic": "many", "key": f"k{n}", "delay": 0} for n in range(1201)]), on_conflict=mode)
    assert made == Scheduled(created=1201, kept=0, replaced=0)
    stage.go(rounds=100)
    assert (sum(batch_sizes), keys) == (1201, [])
    assert Job.objects.live().count() == 0


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "generator"])
def test_many_jobs_are_all_or_none_even_if_a_later_chunk_is_refused(stage, kind):
    stage.recorder("t")
    schedule("t", key="live", delay=60)
    items = [{"topic": "t", "key": f"k{n}", "delay": 60} for n in range(1200)]
    with pytest.raises(BadDelay, match="Item 1100"):
        schedule_many(kind([*items[:1100], {"topic": "t", "key": "bad", "delay": -1}]))
    with pytest.raises(KeyIsLive, match="'live'"):
        schedule_many(kind([*items[:700], {"topic": "t", "key": "live", "delay": 1}, *items[700:]]))
    assert Job.objects.count() == 1
    with transaction.atomic():
        with pytest.raises(KeyIsLive):
            schedule_many(kind([{"topic": "t", "key": "live", "delay": 1}]))
        schedule("t", key="after", delay=1)  # the caller's transaction goes on
    assert Job.objects.count() == 2


@pytest.mark.only_on("postgresql")  # SQLite reads all of a query before it writes
def test_a_generator_may_query_the_same_database_for_each_item(stage):
    stage.recorder("t")
    schedule_many([{"topic": "t", "key": f"k{n}", "delay": 60} for n in range(1100)])
    with transaction.atomic():
        known = Job.objects.order_by("id").values_list("key", flat=True).iterator(chunk_size=100)
        made = schedule_many(
            {"topic": "t", "key": f"{key}/{Job.objects.get(key=key).pk}", "delay": 60} for key in known
        )
    assert made.created == 1100


def test_schedule_many_keeps_replaces_or_refuses_live_jobs(stage):
    stage.recorder("t")
    items = [{"topic": "t", "key": f"k{n}", "delay": 60} for n in range(10)]
    schedule_many(items[:4])
    with pytest.raises(KeyIsLive):
        schedule_many(items)
    assert Job.objects.count() == 4, "all or none"
    assert schedule_many(items[:6], on_conflict="keep") == Scheduled(created=2, kept=4, replaced=0)
    assert schedule_many(items, on_conflict="replace") == Scheduled(created=4, kept=0, replaced=6)
    assert Job.objects.count() == 10


def test_of_a_repeated_key_the_first_is_kept_the_last_replaces_or_all_are_refused(stage):
    stage.recorder("t")
    twice = [{"topic": "t", "key": "a", "delay": 1, "body": 1}, {"topic": "t", "key": "a", "delay": 1, "body": 2}]
    with pytest.raises(KeyIsLive, match="twice"):
        schedule_many(twice)
    assert schedule_many(twice, on_conflict="keep") == Scheduled(created=1, kept=1, replaced=0)
    assert Job.objects.get().body == 1
    cancel("t", key="a")
    assert schedule_many(twice, on_conflict="replace") == Scheduled(created=1, kept=0, replaced=1)
    assert Job.objects.live().get().body == 2


def test_a_bad_item_names_its_position_and_nothing_is_written(stage):
    stage.recorder("t")
    good = {"topic": "t", "key": "a", "delay": 1}
    with pytest.raises(BadDelay, match="Item 1"):
        schedule_many([good, {"topic": "t", "key": "b", "delay": -1}])
    with pytest.raises(BadInput, match="Item 1"):
        schedule_many([good, {"topic": "t", "key": "b", "delay": 1, "colour": "red"}])
    with pytest.raises(BadInput, match="sideways"):
        schedule("t", key="a", delay=1, on_conflict="sideways")
    assert not Job.objects.exists()


# -- cancel -------------------------------------------------------------------------------------


def test_cancel_returns_what_it_found(stage):
    stage.recorder("t")
    assert cancel("t", key="a") is CancelResult.UNKNOWN
    schedule("t", key="a", delay=0)
    held = stage.take("t")
    assert cancel("t", key="a") is CancelResult.RUNNING
    held[0].finish()
    assert cancel("t", key="a") is CancelResult.ALREADY_FINISHED
    schedule("t", key="a", delay=60)
    assert cancel("t", key="a", by="ann") is CancelResult.CANCELLED
    assert cancel("t", key="a") is CancelResult.CANCELLED
    assert outcomes("a") == ["finished", "cancelled"]
    assert JobEvent.objects.get(outcome="cancelled").actor == "ann"


def test_a_cancel_in_an_unknown_topic_is_refused(stage, settings):
    with pytest.raises(UnknownTopic, match="'nobody' is unknown"):
        cancel("nobody", "a")
    Topic.objects.create(name="nobody")
    assert cancel("nobody", "a") is CancelResult.UNKNOWN
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"declared": {}}}
    assert cancel("declared", "a") is CancelResult.UNKNOWN


def test_a_job_of_a_retired_topic_can_still_be_cancelled(stage):
    Topic.objects.create(name="retired")
    schedule("retired", "a", delay=60)
    Topic.objects.all().delete()
    assert cancel("retired", "a") is CancelResult.CANCELLED
    assert cancel("retired", "a") is CancelResult.CANCELLED
    with pytest.raises(UnknownTopic):
        cancel("retired", "b")


def test_a_cancelled_job_never_runs(stage, db_clock):
    keys = stage.recorder("t")
    job = schedule("t", key="a", delay=5)
    schedule("t", key="b", delay=5)
    assert cancel_job(job.pk) is CancelResult.CANCELLED
    db_clock.advance(seconds=10)
    stage.go()
    assert keys == ["b"]


def test_a_ready_job_can_still_be_cancelled(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=5)
    db_clock.advance(seconds=5)
    stage.mover.move_due()
    assert cancel("t", key="a") is CancelResult.CANCELLED
    stage.go()
    assert keys == []


def test_a_cancel_that_is_rolled_back_has_no_effect(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=5)
    with pytest.raises(Boom), transaction.atomic():
        assert cancel("t", key="a") is CancelResult.CANCELLED
        raise Boom
    db_clock.advance(seconds=5)
    stage.go()
    assert keys == ["a"]


def test_cancel_finds_the_live_job_even_if_a_newer_one_has_ended(stage):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise Boom

    older = schedule("t", key="a", delay=0)
    stage.go()
    newer = schedule("t", key="a", delay=60)
    cancel_job(newer.pk)
    retry_dead(job_id=older.pk)
    assert cancel("t", key="a") is CancelResult.CANCELLED
    older.refresh_from_db()
    assert older.ended_at is not None


# -- reschedule and run now ---------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "ran_after"), [(5, 5), (600, 600)], ids=["earlier", "later"])
def test_a_rescheduled_job_runs_at_its_new_time_only(stage, db_clock, seconds, ran_after):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=60)
    moved = reschedule("t", "a", delay=seconds, by="ann")
    assert moved.due_at == from_ms(db_clock.now_ms + seconds * 1000)
    db_clock.advance(ms=seconds * 1000 - 1)
    stage.go()
    assert keys == []
    db_clock.advance(ms=1)
    stage.go()
    assert keys == ["a"]
    assert outcomes("a") == ["rescheduled", "finished"]


def test_a_ready_job_that_is_postponed_does_not_run_yet(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=1)
    db_clock.advance(seconds=1)
    stage.mover.move_due()
    reschedule("t", "a", delay=60)
    stage.dispatched.append("t")
    stage.go()
    assert keys == []
    db_clock.advance(seconds=60)
    stage.go()
    assert keys == ["a"]


def test_run_now_makes_a_job_due_now(stage, db_clock):
    keys = stage.recorder("t")
    job = schedule("t", key="a", delay=3600 * 24 * 30)
    assert run_job_now(job.pk).due_at == from_ms(db_clock.now_ms)
    stage.go()
    assert keys == ["a"]


def test_a_reserved_job_is_not_moved(stage):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    stage.take("t")
    with pytest.raises(Reserved, match="running"):
        reschedule("t", "a", delay=5)
    with pytest.raises(Reserved):
        run_now("t", "a")
    with pytest.raises(Reserved):
        reschedule_job(job.pk, delay=5)


def test_an_ended_or_unknown_job_is_neither_moved_nor_created(stage):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    stage.go()
    for key in ("a", "never"):
        with pytest.raises(NotLive):
            reschedule("t", key, delay=5)
        with pytest.raises(NotLive):
            run_now("t", key)
    assert Job.objects.count() == 1


# -- retry --------------------------------------------------------------------------------------


def test_a_dead_job_is_retried_with_no_failures(stage):
    fail = [True]

    @stage.handler("t", max_attempts=1)
    def sometimes(job):
        if fail[0]:
            raise Boom("no")

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"
    fail[0] = False
    retried = retry_dead("t", "a", by="ann")
    assert (retried.failures, retried.attempt) == (0, 1)
    stage.go()
    assert outcomes("a") == ["dead", "retried", "finished"]
    assert JobEvent.objects.get(outcome="retried").actor == "ann"


def test_only_dead_jobs_are_retried_and_never_beside_a_live_job(stage):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise Boom

    with pytest.raises(NotDead):
        retry_dead("t", "a")
    dead = schedule("t", key="a", delay=0)
    stage.go()
    live = schedule("t", key="a", delay=60)
    with pytest.raises(KeyIsLive, match=str(live.pk)):
        retry_dead("t", "a")
    with pytest.raises(KeyIsLive, match=str(live.pk)):
        retry_dead(job_id=dead.pk)
    with pytest.raises(NotDead):
        retry_dead(job_id=live.pk)
    with pytest.raises(BadInput):
        retry_dead()


@pytest.mark.django_db
def test_schedule_many_returns_the_job_of_each_item_of_a_list():
    Topic.objects.get_or_create(name="t")
    kept = schedule("t", "b", delay=600)
    done = schedule_many([{"topic": "t", "key": key, "delay": 60} for key in "abca"], on_conflict="keep")
    a, c = (Job.objects.get(key=key).id for key in "ac")
    assert list(done.job_ids) == [a, kept.id, c, a]
    assert list(schedule_many({"topic": "t", "key": key, "delay": 60} for key in "xy").job_ids) == []


@pytest.mark.on_both
def test_topic_and_key_may_be_members_of_an_enum_of_strings(stage):
    class Name(str, Enum):  # noqa: UP042 - its str() is "Name.TOPIC"
        TOPIC = "t"
        KEY = "a"

    keys = stage.recorder("t")
    schedule(Name.TOPIC, Name.KEY, delay=60)
    assert Job.objects.values_list("topic", "key").get() == ("t", "a")
    assert cancel("t", "a") == "cancelled"
    schedule("t", "a", delay=60)
    assert cancel(Name.TOPIC, Name.KEY) == "cancelled"
    assert schedule_many([{"topic": Name.TOPIC, "key": Name.KEY, "delay": 0}]).created == 1
    stage.go()
    assert keys == ["a"]
