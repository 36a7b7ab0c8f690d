"""advance() and run_due(): due jobs run in their order, in the test's own transaction."""

import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings

from delaytasks import Calendar, Snooze, cancel, conf, forward, handlers, reschedule, schedule
from delaytasks.backoff import Backoff
from delaytasks.calendars import registry
from delaytasks.db import calendar_days
from delaytasks.exceptions import BadInput, UnknownTopic
from delaytasks.forwarding import Message, TargetDown
from delaytasks.models import CalendarDay, Job, JobEvent, Topic
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.signals import job_finished, job_scheduled
from delaytasks.states import Outcome, State
from delaytasks.testing import Timeouts, engine, hours, minutes
from delaytasks.testing import kit as kit_module
from delaytasks.testing.exceptions import TooManyRuns
from delaytasks.worker import isolation
from project.shop.models import Product
from tests.support.stage import effect, effects

Register = Callable[..., Any]


def test_a_job_runs_at_its_due_time_and_not_before(timeouts: Timeouts, ran: list[str]) -> None:
    schedule("t", "order:1", delay=minutes(30))
    assert not timeouts.advance(minutes=29, seconds=59)
    assert ran == []
    runs = timeouts.advance(seconds=1)
    assert (runs.outcomes, runs.topics, ran) == ({"finished": 1}, {"t": 1}, ["order:1"])
    assert not timeouts.advance(hours=1)


def test_jobs_run_in_the_order_of_their_due_times_across_topics(timeouts: Timeouts, register: Register) -> None:
    order: list[str] = []
    for topic in ("a", "b"):
        register(topic, lambda job: order.append(job.key))
    for topic, key, delay in (("a", "3", 3), ("b", "2", 2), ("a", "1", 1), ("b", "4", 4), ("a", "5", 4)):
        schedule(topic, key, delay=delay)
    schedule("a", "urgent", delay=4, priority=1)
    timeouts.advance(seconds=10)
    assert order == ["1", "2", "3", "urgent", "4", "5"]


def test_the_clock_stands_at_the_due_time_of_the_job_that_runs(timeouts: Timeouts, register: Register) -> None:
    seen: list[datetime] = []
    register("t", lambda job: seen.append(timeouts.now))
    start = timeouts.now
    schedule("t", "1", delay=60)
    schedule("t", "2", delay=90.5)
    timeouts.advance(hours=1)
    assert seen == [start + timedelta(seconds=60), start + timedelta(seconds=90.5)]
    assert timeouts.now == start + timedelta(hours=1)
    assert all(event.late_ms == 0 for event in JobEvent.objects.all())


def test_what_jobs_schedule_on_the_way_runs_too(timeouts: Timeouts, register: Register) -> None:
    times: list[datetime] = []

    def again(job: Any) -> None:
        times.append(timeouts.now)
        if len(times) < 4:
            schedule("t", job.key, delay=minutes(10))

    register("t", again)
    start = timeouts.now
    schedule("t", "1", delay=minutes(10))
    assert timeouts.advance(minutes=30).outcomes == {"finished": 3}
    assert [at - start for at in times] == [minutes(10), minutes(20), minutes(30)]


def test_run_due_runs_only_what_is_due_now(timeouts: Timeouts, ran: list[str]) -> None:
    schedule("t", "now", delay=0)
    schedule("t", "later", delay=0.001)
    now = timeouts.now
    assert timeouts.run_due().outcomes == {"finished": 1}
    assert (ran, timeouts.now) == (["now"], now)


def test_a_job_due_at_the_moment_of_the_next_act_runs_before_it(timeouts: Timeouts, ran: list[str]) -> None:
    """The tie: what is due at or before now runs first."""
    job = schedule("t", "order:1", delay=minutes(30))
    timeouts.advance_to(job.due_at)
    assert (ran, cancel("t", "order:1")) == (["order:1"], "already finished")


def test_a_job_that_was_cancelled_or_moved_does_not_run_at_its_old_time(timeouts: Timeouts, ran: list[str]) -> None:
    schedule("t", "cancelled", delay=10)
    schedule("t", "moved", delay=10)
    cancel("t", "cancelled")
    reschedule("t", "moved", delay=20)
    assert not timeouts.advance(seconds=19)
    timeouts.advance(seconds=1)
    assert ran == ["moved"]


def test_snoozes_and_retries_run_on_time_without_jitter(timeouts: Timeouts, register: Register) -> None:
    start, seen = timeouts.now, list[float]()

    def answer(job: Any) -> Snooze | None:
        seen.append((timeouts.now - start).total_seconds())
        if job.attempt == 1:
            return Snooze(60)
        if job.attempt < 4:
            raise ValueError("no")
        return None

    register("t", answer, backoff=Backoff(base_seconds=10, factor=2, jitter=0.5))
    schedule("t", "1", delay=1)
    assert timeouts.advance(minutes=5).outcomes == {"snoozed": 1, "failed": 2, "finished": 1}
    assert seen == [1, 61, 71, 91]


def test_a_failing_job_dies_and_its_error_is_shown(timeouts: Timeouts, register: Register) -> None:
    def fail(job: Any) -> None:
        effect("effect")
        raise ValueError("the bank is closed")

    register("t", fail, max_attempts=2)
    schedule("t", "1", delay=1)
    runs = timeouts.advance(days=1)
    assert runs.outcomes == {"failed": 1, "dead": 1}
    assert "the bank is closed" in repr(runs)
    assert effects() == []


def test_batch_and_non_atomic_handlers_run(timeouts: Timeouts, register: Register) -> None:
    sizes: list[int] = []
    register("batch", lambda jobs: sizes.append(len(jobs)), batch=10)

    def outside(job: Any) -> None:
        job.touch()
        with job.finishing():
            effect("effect")

    register("outside", outside, atomic=False)
    schedule("batch", "1", delay=1)
    schedule("batch", "2", delay=1)
    schedule("outside", "1", delay=1)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 3}
    assert (sizes, effects()) == ([1, 1], ["effect"])


def test_paused_topics_and_topics_without_handler_are_left_alone(timeouts: Timeouts, ran: list[str]) -> None:
    Topic.objects.update_or_create(name="t", defaults={"paused": True})
    Topic.objects.create(name="elsewhere")
    schedule("t", "1", delay=1)
    schedule("elsewhere", "1", delay=1)
    assert not timeouts.advance(hours=1)
    Topic.objects.filter(name="t").update(paused=False)
    assert len(timeouts.run_due()) == 1


def test_an_endless_chain_ends_with_an_error_that_names_the_topic(
    timeouts: Timeouts, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kit_module.MAX_RUNS == 10_000
    monkeypatch.setattr(kit_module, "MAX_RUNS", 20)
    register("endless", lambda job: schedule("endless", job.key, delay=0) and None)
    schedule("endless", "1", delay=0)
    with pytest.raises(TooManyRuns, match="20 jobs ran in one advance, 20 of them of topic 'endless'"):
        timeouts.advance(seconds=1)


def test_time_only_advances(timeouts: Timeouts) -> None:
    with pytest.raises(BadInput, match="travel_to"):
        timeouts.advance(seconds=-1)
    with pytest.raises(BadInput, match="before the clock's time"):
        timeouts.advance_to(timeouts.now - minutes(1))


def test_travelling_runs_nothing_and_may_go_back(timeouts: Timeouts, ran: list[str]) -> None:
    schedule("t", "1", delay=60)
    timeouts.travel_to(datetime(2040, 1, 1, tzinfo=UTC))
    assert (ran, timeouts.now.year) == ([], 2040)
    assert len(timeouts.run_due()) == 1
    timeouts.travel_to(datetime(2016, 1, 1, tzinfo=UTC))
    assert schedule("t", "2", delay=60).due_at == datetime(2016, 1, 1, 0, 1, tzinfo=UTC)


# Transactions


def test_jobs_run_in_the_tests_transaction(timeouts: Timeouts, register: Register) -> None:
    register("t", lambda job: effect("effect"))
    assert connection.in_atomic_block
    with transaction.atomic():
        schedule("t", "1", delay=1)
        timeouts.advance(seconds=1)
        assert effects() == ["effect"]
        transaction.set_rollback(True)
    assert effects() == []
    assert not Job.objects.exists()


def test_on_commit_callbacks_of_a_job_run_after_it_and_those_of_the_test_do_not(
    timeouts: Timeouts, register: Register
) -> None:
    said: list[str] = []

    def handler(job: Any) -> None:
        transaction.on_commit(lambda: said.append(f"committed {job.key} {Job.objects.get(pk=job.id).state}"))
        said.append(f"ran {job.key}")
        if job.key == "2" and job.attempt == 1:
            raise ValueError("rolled back")

    register("t", handler)
    transaction.on_commit(lambda: said.append("the test's own"))
    schedule("t", "1", delay=1)
    schedule("t", "2", delay=2)
    timeouts.advance(seconds=2)
    assert said == ["ran 1", f"committed 1 {int(State.FINISHED)}", "ran 2"]


def test_callbacks_that_callbacks_register_run_too_and_none_runs_twice(
    timeouts: Timeouts, register: Register, django_capture_on_commit_callbacks: Any
) -> None:
    said: list[str] = []

    def callback() -> None:
        said.append("first")
        transaction.on_commit(lambda: said.append("second"))

    register("t", lambda job: transaction.on_commit(callback))
    with django_capture_on_commit_callbacks(execute=True):
        schedule("t", "1", delay=1)
        timeouts.advance(seconds=1)
    assert said == ["first", "second"]


def test_a_callback_that_raises_does_not_end_the_test(timeouts: Timeouts, register: Register, caplog: Any) -> None:
    register("t", lambda job: transaction.on_commit(lambda: 1 / 0))
    schedule("t", "1", delay=1)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}
    assert "an on_commit callback of a job failed" in caplog.text


def repeat_a_name(*args: Any) -> None:
    Topic.objects.create(name="repeated")


@pytest.mark.on_both
@pytest.mark.parametrize("caller", ["handler", "callback", "receiver"])
def test_a_database_error_outside_a_jobs_transaction_does_not_end_that_of_the_test(
    timeouts: Timeouts, register: Register, caller: str
) -> None:
    """A worker calls these outside a transaction."""

    def receiver(**_: Any) -> None:
        repeat_a_name()

    repeat_a_name()
    if caller == "handler":
        register("t", repeat_a_name, atomic=False)
    else:
        register("t", lambda job: transaction.on_commit(repeat_a_name) if caller == "callback" else None)
    if caller == "receiver":
        job_finished.connect(receiver)
    try:
        schedule("t", "1", delay=1)
        assert timeouts.advance(seconds=1).outcomes == {"failed" if caller == "handler" else "finished": 1}
    finally:
        job_finished.disconnect(receiver)
    assert Topic.objects.filter(name="repeated").count() == 1


def enter_a_block(*args: Any) -> None:
    transaction.atomic().__enter__()
    effect("effect in the block")


def begin(*args: Any) -> None:
    transaction.set_autocommit(False)


@pytest.mark.on_both
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("leave_open", [enter_a_block, begin])
def test_a_handler_that_leaves_a_transaction_open_does_not_end_that_of_the_test(
    timeouts: Timeouts, register: Register, leave_open: Callable[..., Any], atomic: bool
) -> None:
    effect("effect of the test")
    register("t", leave_open, atomic=atomic)
    schedule("t", "1", delay=1)
    assert timeouts.advance(seconds=1).outcomes == {"failed": 1}
    assert effects() == ["effect of the test"]


def test_a_callback_that_raises_leaves_nothing_to_clean_up(
    timeouts: Timeouts, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of a TTR would be left whenever its traceback is collected, in the middle of another test."""
    errors: list[BaseException] = []
    monkeypatch.setattr(engine.logger, "exception", lambda *args: errors.append(sys.exc_info()[1]))
    register("t", lambda job: transaction.on_commit(lambda: 1 / 0))
    schedule("t", "1", delay=1)
    timeouts.advance(seconds=1)
    assert errors
    assert getattr(isolation._running, "pid", None) is None


def test_signals_are_sent(timeouts: Timeouts, ran: list[str]) -> None:
    said: list[str] = []

    def receiver(*, job: Any, signal: Any, **_: Any) -> None:
        said.append(job.key)

    for signal in (job_finished, job_scheduled):
        signal.connect(receiver)
    try:
        schedule("t", "1", delay=1)
        timeouts.advance(seconds=1)
    finally:
        for signal in (job_finished, job_scheduled):
            signal.disconnect(receiver)
    assert said == ["1"]  # job_scheduled is the test's own: Django sends it on its commit, which never comes


@pytest.mark.django_db(transaction=True)
def test_it_commits_in_a_test_that_commits(timeouts: Timeouts, register: Register) -> None:
    said: list[str] = []
    register("t", lambda job: transaction.on_commit(lambda: said.append(str(connection.in_atomic_block))))
    assert not connection.in_atomic_block
    schedule("t", "1", delay=1)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}
    assert said == ["False"]


# Assertions


def test_assert_scheduled_finds_the_live_job(timeouts: Timeouts, register: Register, product: Product) -> None:
    dim = register("t")
    job = dim.schedule(product, delay=minutes(30), body={"n": 1})
    assert timeouts.assert_scheduled("t", subject=product, within=minutes(30)) == job
    assert timeouts.assert_scheduled(dim, f"product:{product.pk}", due_at=job.due_at, body={"n": 1}) == job
    timeouts.assert_not_scheduled("t", "another")
    dim.cancel(product)
    timeouts.assert_not_scheduled(dim, subject=product)


def test_assert_scheduled_finds_the_job_that_is_due_at_a_time_to_the_millisecond(
    timeouts: Timeouts, register: Register
) -> None:
    register("t")
    first, second = datetime(2030, 1, 1, 12, 0, 0, 1, UTC), datetime(2030, 1, 2, 12, 0, 0, 123_456, UTC)
    schedule("t", "1", due_at=first)
    schedule("t", "2", due_at=second)
    assert timeouts.assert_scheduled("t", due_at=first).key == "1"
    assert timeouts.assert_scheduled("t", due_at=second).key == "2"
    with pytest.raises(AssertionError, match=r"is due at 2030-01-01T12:00:00.001000\+00:00, not at 2030"):
        timeouts.assert_scheduled("t", due_at=datetime(2030, 1, 1, 12, tzinfo=UTC))


def test_failing_assertions_say_what_is_there(timeouts: Timeouts, register: Register, product: Product) -> None:
    register("t")
    schedule("t", "order:1", delay=hours(1), body={"n": 1})
    missing = r"No live job of t about shop\.product \d+\. Live jobs of t: order:1 \(due"
    with pytest.raises(AssertionError, match=missing):
        timeouts.assert_scheduled("t", subject=product)
    with pytest.raises(AssertionError, match=r"t 'order:1' is due at .*, 1:00:00 from now"):
        timeouts.assert_scheduled("t", "order:1", within=minutes(59))
    with pytest.raises(AssertionError, match=r"is due at .*, not at"):
        timeouts.assert_scheduled("t", "order:1", due_at=timeouts.now)
    with pytest.raises(AssertionError, match=r"The body of t 'order:1' is \{'n': 1\}, not \{'n': 2\}"):
        timeouts.assert_scheduled("t", "order:1", body={"n": 2})
    with pytest.raises(AssertionError, match="A live job of t 'order:1' exists"):
        timeouts.assert_not_scheduled("t", "order:1")


def test_a_topic_that_has_only_a_row_is_known(timeouts: Timeouts) -> None:
    Topic.objects.create(name="http")
    timeouts.assert_not_scheduled("http")
    schedule("http", "1", delay=1)
    timeouts.assert_scheduled("http", "1")


def test_an_unknown_topic_is_not_merely_not_scheduled(timeouts: Timeouts) -> None:
    with pytest.raises(UnknownTopic, match=r"order\.clsoe"):
        timeouts.assert_not_scheduled("order.clsoe")


def test_series_and_schedules_go_on_while_the_clock_advances(timeouts: Timeouts, ran: list[str]) -> None:
    start = timeouts.now
    schedule("t", "order:1", delay=60, period=60, repeat=2)
    schedules.define(Definition("tick", "t", every=1, start=start))
    assert timeouts.advance(minutes=5).outcomes == {"finished": 303}
    assert sum(key.startswith("order:1#") for key in ran) == 3


@pytest.mark.parametrize("change", [cancel, lambda topic, key: reschedule(topic, key, delay=hours(80))])
def test_a_schedule_whose_next_job_was_cancelled_or_moved_goes_on(
    timeouts: Timeouts, ran: list[str], register: Register, change: Callable[[str, str], Any]
) -> None:
    timeouts.travel_to(datetime(2030, 1, 1, 12, tzinfo=UTC))
    register("other", lambda job: ran.append(f"{job.key} at {timeouts.now:%d}"))
    schedules.define(Definition("daily", "t", cron="0 9 * * *"))
    schedule("other", "noon", delay=hours(48))
    change("t", "daily@2030-01-02T09:00:00")
    timeouts.advance(days=3)
    assert ran == ["daily@2030-01-03T09:00:00", "noon at 03", "daily@2030-01-04T09:00:00"]
    timeouts.assert_scheduled("t", "daily@2030-01-05T09:00:00")


def test_a_schedule_makes_no_further_jobs_if_it_or_its_topic_is_paused_or_without_a_handler(
    timeouts: Timeouts, register: Register
) -> None:
    timeouts.travel_to(datetime(2030, 1, 1, 12, tzinfo=UTC))
    Topic.objects.create(name="elsewhere")
    Topic.objects.create(name="rests", paused=True)
    register("rests", lambda job: None)
    register("paused", lambda job: None)
    for topic in ("elsewhere", "paused", "rests"):
        schedules.define(Definition(topic, topic, cron="0 9 * * *"))
    schedules.pause("paused")
    cancel("paused", "paused@2030-01-02T09:00:00")
    timeouts.advance(days=3)
    assert set(Job.objects.values_list("key", flat=True)) == {
        f"{name}@2030-01-02T09:00:00" for name in ("elsewhere", "paused", "rests")
    }


def test_a_series_that_a_job_begins_goes_on(timeouts: Timeouts, ran: list[str], register: Register) -> None:
    register("first", lambda job: schedule("t", "order:1", period=60, repeat=2) and None)
    schedule("first", "1", delay=60)
    timeouts.advance(minutes=5)
    assert [key.partition("#")[0] for key in ran] == ["order:1"] * 3


def test_a_job_that_has_expired_is_skipped(timeouts: Timeouts, ran: list[str]) -> None:
    for run_late in (timeouts.run_due, timeouts.advance):
        schedule("t", "order:1", delay=5, expires=hours(2))
        timeouts.travel_to(timeouts.now + hours(3))
        assert [(run.key, run.outcome, run.at) for run in run_late()] == [("order:1", "skipped", timeouts.now)]
    assert (ran, Job.objects.live().count()) == ([], 0)


def test_of_runs_missed_while_the_clock_travelled_the_last_is_run(timeouts: Timeouts, ran: list[str]) -> None:
    schedules.define(Definition("tick", "t", every=60))
    timeouts.travel_to(timeouts.now + hours(1))
    runs = timeouts.run_due()
    assert runs.outcomes == {"skipped": 59, "finished": 1}


def test_the_days_that_staff_close_in_a_test_are_forgotten_after_it(db: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(calendar_days, "CACHE_SECONDS", 3600.0)
    office = Calendar("office of a test", tz="UTC", hours={"mon-fri": "09:00-17:00"})
    day = date(2030, 1, 2)
    try:
        for _ in range(2):
            with transaction.atomic():
                with Timeouts():
                    assert office.is_working_day(day)
                CalendarDay.objects.bulk_create([CalendarDay(calendar=office.name, day=day)])
                with Timeouts():
                    assert not office.is_working_day(day)
                transaction.set_rollback(True)
            assert office.is_working_day(day)
    finally:
        registry.unregister(office.name)
        calendar_days.clear_cache()


def test_the_howto_lists_each_outcome_of_a_run() -> None:
    text = (Path(__file__).parents[2] / "docs/howto/test.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text.partition("| outcome |")[2].partition("\n\n")[0], re.MULTILINE)
    never = {Outcome.SCHEDULED, Outcome.RETRIED, Outcome.RELEASED}  # done by people and by consumers
    assert set(listed) == {*Outcome, "died", "lost"} - never


def test_the_target_of_a_topics_row_is_not_called(timeouts: Timeouts) -> None:
    """Data must not make a test send something."""
    target = {"kind": "celery", "task": "shop.tasks.close", "format": "json", "source": "/delaytasks", "timeout": 15}
    Topic.objects.create(name="order.timeout", target=target)
    schedule("order.timeout", "order:1", delay=1)
    assert not timeouts.advance(hours=1)
    assert Job.objects.get().attempt == 0


@pytest.mark.django_db
def test_the_kit_leaves_no_settings_behind_if_a_test_changes_settings_inside() -> None:
    """pytest-django's fixture `settings` ends after the kit if it began before it."""
    before = conf.get()
    changed = override_settings(DELAYTASKS={**settings.DELAYTASKS, "REDIS_URL": "redis://localhost:1", "BUCKETS": 7})
    with Timeouts():
        assert conf.get().redis_url is None
        changed.enable()
        assert (conf.get().redis_url, conf.get().buckets) == (None, 7)
    changed.disable()
    assert conf.get() == before


def test_the_jobs_of_a_held_topic_wait_for_its_probes_and_run_when_the_target_is_back(
    timeouts: Timeouts, register: Register
) -> None:
    sent: list[tuple[str, timedelta]] = []
    start = timeouts.now

    class Target:
        def deliver(self, message: Message, timeout_seconds: float) -> None:
            if timeouts.now < start + timedelta(hours=1):
                raise TargetDown("away")
            sent.append((message.key, timeouts.now - start))

    register("t")
    handlers.unregister("t")  # and again at the end of the test
    forward("t", Target())
    for number in range(3):
        schedule("t", str(number), due_at=start + minutes(number + 1))
    runs = timeouts.advance(hours=2)
    assert sorted(key for key, _ in sent) == ["0", "1", "2"]
    assert {after - minutes(60) < minutes(5) for _, after in sent} == {True}
    assert len(runs) == JobEvent.objects.count() < 25, "only probes before"
