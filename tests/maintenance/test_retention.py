"""Ended jobs are deleted with their events when they are old enough, and nothing else is."""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, transaction

from delaytasks import cancel, conf, mirror, retry_dead, schedule, tasks
from delaytasks.clock import from_ms
from delaytasks.maintenance import retention, sweep
from delaytasks.maintenance.retention import EndedJob, Retention
from delaytasks.models import Job, JobEvent, MirrorMark, RetentionCursor
from delaytasks.states import State

DAY = timedelta(days=1)


@pytest.fixture
def ended(stage: Any, db_clock: Any) -> Callable[..., int]:
    """Return a function that makes a job of a state which ended some days ago, with one event, and returns its id."""

    def make(key: str, topic: str = "t", *, days: float = 40, state: State = State.FINISHED) -> int:
        job = schedule(topic, key, delay=60)
        ended_at = from_ms(db_clock.now_ms) - days * DAY
        Job.objects.filter(pk=job.pk).update(
            state=state, ended_at=ended_at, created_at=ended_at - DAY, attempt=1, failures=1,
            died_at=ended_at if state is State.DEAD else None,
        )  # fmt: skip
        done_ms = db_clock.now_ms - round(days * 86_400_000)
        event = JobEvent(job_id=job.pk, outcome=state.word, attempt=1, due_ms=0, done_ms=done_ms)
        JobEvent.objects.bulk_create([event])
        return job.pk

    stage.recorder("t")
    stage.recorder("u")
    return make


def keys() -> list[str]:
    return sorted(Job.objects.values_list("key", flat=True))


def prune(**topics: Any) -> dict[str, int]:
    counts = {"job": 0, "event": 0}
    for batch in retention.prune("default", Retention(topics.pop("topics", {"*": topics}))):
        counts[batch.table] += batch.deleted
    return counts


def set_retention(settings: Any, topics: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RETENTION": topics}


def test_old_finished_and_cancelled_jobs_go_with_their_events(ended):
    ended("old")
    ended("cancelled", state=State.CANCELLED)
    ended("dead", state=State.DEAD, days=900)
    ended("young", days=29)
    schedule("t", "live", delay=60)
    assert prune(ended=30 * DAY) == {"job": 2, "event": 0}
    assert keys() == ["dead", "live", "young"]
    assert sorted(JobEvent.objects.values_list("job__key", flat=True)) == ["dead", "young"]


def test_dead_jobs_have_their_own_age(ended):
    ended("finished", days=40)
    ended("dead", days=40, state=State.DEAD)
    ended("long dead", days=90, state=State.DEAD)
    assert prune(dead=60 * DAY)["job"] == 1
    assert keys() == ["dead", "finished"]


def test_a_topic_has_its_own_ages_and_inherits_those_it_does_not_name(ended):
    for topic in ("t", "u"):
        ended(f"{topic} finished", topic, days=8)
        ended(f"{topic} dead", topic, days=40, state=State.DEAD)
    topics = {"*": {"ended": 30 * DAY, "dead": 30 * DAY}, "t": {"ended": 7 * DAY}, "u": {"dead": None}}
    prune(topics=topics)
    assert keys() == ["u dead", "u finished"]


def test_a_job_is_kept_until_exactly_its_age(ended, db_clock):
    ended("job", days=30)
    db_clock.advance(ms=-1)
    assert prune(ended=30 * DAY)["job"] == 0
    db_clock.advance(ms=1)
    assert prune(ended=30 * DAY)["job"] == 1


def test_events_whose_job_was_deleted_by_hand_go_when_they_are_old(ended):
    kept, old, young = ended("kept", days=10), ended("old", days=40), ended("young", days=20)
    Job.objects.filter(pk__in=[old, young]).delete()
    assert prune(ended=30 * DAY) == {"job": 0, "event": 1}
    assert sorted(JobEvent.objects.values_list("job_id", flat=True)) == sorted([kept, young])


def test_more_jobs_than_one_page_go_in_small_transactions(ended, monkeypatch):
    monkeypatch.setattr(retention, "PAGE", 2)
    for number in range(12):
        ended(f"k{number}", days=10 if number == 4 else 40)
    batches = list(retention.prune("default", Retention({"*": {"ended": 30 * DAY}})))
    assert keys() == ["k4"]
    assert max(batch.deleted for batch in batches) == 2
    assert sum(batch.deleted for batch in batches) == 11


def test_a_job_that_a_rule_keeps_stays(ended, monkeypatch):
    monkeypatch.setattr(retention, "_keep_rules", [])
    ended("a")
    newest = ended("a")

    @retention.keep
    def newest_of_each_key(using: str, jobs: list[EndedJob]) -> set[int]:
        return retention.newest_of_keys(using, jobs)

    assert prune(ended=30 * DAY)["job"] == 1
    assert list(Job.objects.values_list("pk", flat=True)) == [newest]


def test_a_rule_that_fails_holds_up_nothing_but_the_deletion(ended, settings, monkeypatch, caplog):
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    monkeypatch.setattr(retention, "_keep_rules", [Mock(side_effect=LookupError("no such table"))])
    ended("a")
    assert tasks.sweep()["pruned"] == 0
    assert MirrorMark.objects.get().swept_at is not None
    assert keys() == ["a"]
    assert "no such table" in caplog.text


def test_a_dead_job_that_was_retried_meanwhile_is_not_deleted(ended):
    ended("dead", state=State.DEAD)
    page = retention.sql.ended_jobs("default", after=0, before_ms=2**42, limit=10)
    retry_dead("t", "dead")
    assert retention.sql.delete_jobs("default", page.rows) == 0
    assert keys() == ["dead"]


def prune_and_disconnect() -> dict[str, int]:
    try:
        return prune(ended=30 * DAY)
    finally:
        connection.close()


@pytest.mark.only_on("postgresql")
def test_a_locked_job_is_skipped_without_waiting(ended):
    locked = ended("locked")
    ended("free")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM delaytasks_job WHERE id = %s FOR UPDATE", [locked])
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(prune_and_disconnect).result(5)["job"] == 1
    assert keys() == ["locked"]


# The pauses


class FakeTime:
    """The module `time` for the retention: sleeping takes no time, and only reads and deletions of pages take some."""

    def __init__(self) -> None:
        self.now, self.sleeps, self.read_seconds, self.delete_seconds = 1000.0, [], 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture(autouse=True)
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    read, delete = retention.sql.ended_jobs, retention.sql.delete_jobs

    def timed_read(*args: Any, **options: Any) -> Any:
        fake.now += fake.read_seconds
        return read(*args, **options)

    def timed_delete(using: str, jobs: list[EndedJob]) -> int:
        fake.now += fake.delete_seconds if jobs else 0.0
        return delete(using, jobs)

    monkeypatch.setattr(retention, "time", fake)
    monkeypatch.setattr(tasks, "time", fake)
    monkeypatch.setattr(retention.sql, "ended_jobs", timed_read)
    monkeypatch.setattr(retention.sql, "delete_jobs", timed_delete)
    return fake


def test_prune_pauses_after_each_page_nine_times_as_long_as_the_page_took(ended, monkeypatch, fake_time):
    monkeypatch.setattr(retention, "PAGE", 1)
    fake_time.read_seconds, fake_time.delete_seconds = 0.001, 0.002
    ended("old")
    ended("young", days=29)
    prune(ended=30 * DAY)
    assert keys() == ["young"]
    after_jobs, after_events = fake_time.sleeps[:3], fake_time.sleeps[3:]
    assert after_jobs == [0.027, 0.009, 0.009]  # deleted; only read; no more jobs
    assert set(after_events) == {0.0}


def test_a_page_that_took_very_long_causes_a_pause_of_a_second(ended, fake_time):
    """A process that was stopped for an hour does not pause for nine hours."""
    fake_time.read_seconds = 3600.0
    ended("old")
    prune(ended=30 * DAY)
    assert fake_time.sleeps[0] == 1


# The sweep


def test_without_the_setting_the_sweep_deletes_nothing(ended):
    ended("old", days=4000)
    assert sweep.sweep()["pruned"] == 0
    assert keys() == ["old"]
    assert not RetentionCursor.objects.exists()


def test_the_sweep_deletes_what_the_setting_says(ended, settings, monkeypatch):
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    monkeypatch.setattr(retention.step, "__defaults__", (math.inf,))  # otherwise other steps do what is left
    ended("old")
    Job.objects.filter(pk=ended("deleted by hand")).delete()
    counts = sweep.sweep()
    assert (counts["pruned"], counts["orphans"], keys()) == (1, 1, [])


def test_the_sweep_goes_on_where_the_last_one_stopped(ended, settings, monkeypatch):
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    monkeypatch.setattr(retention, "PAGE", 1)
    first, second = ended("k1"), ended("k2")
    assert retention.step("default", seconds=0)["pruned"] == 1
    assert RetentionCursor.objects.get().job_id == first
    assert retention.step("default", seconds=0)["pruned"] == 1
    assert RetentionCursor.objects.get().job_id == second
    assert keys() == []


def test_a_step_ends_after_a_hundredth_of_a_second(ended, settings, monkeypatch, fake_time):
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    monkeypatch.setattr(retention, "PAGE", 1)
    fake_time.delete_seconds = 0.004
    last = [ended(f"k{number}") for number in range(4)][2]
    assert retention.step("default")["pruned"] == 3
    assert RetentionCursor.objects.get().job_id == last
    assert fake_time.sleeps == []  # the pool process is free during the pause


def test_a_step_reads_a_page_also_if_that_takes_longer_than_a_step(ended, settings, monkeypatch, fake_time):
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    monkeypatch.setattr(retention, "PAGE", 1)
    fake_time.read_seconds = 60.0
    ended("k1")
    ended("k2")
    assert retention.step("default")["pruned"] == 1
    assert retention.step("default")["pruned"] == 1


@pytest.fixture
def pages_of_one(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep's own step reads one page, and a page has one job."""
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    monkeypatch.setattr(retention, "PAGE", 1)
    monkeypatch.setattr(retention.step, "__defaults__", (0,))


def await_thread() -> None:
    thread = retention._threads["default"]
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_thread_deletes_the_rest_with_pauses_until_the_pass_ends(ended, pages_of_one, monkeypatch, fake_time):
    fake_time.read_seconds = 0.005
    for number in range(3):
        ended(f"k{number}")
    monkeypatch.setattr(tasks, "in_worker", lambda: True)
    tasks.sweep()
    await_thread()
    assert keys() == []
    of_jobs, of_events = fake_time.sleeps[:3], fake_time.sleeps[3:]  # the last page of jobs has none
    assert [round(each, 6) for each in of_jobs] == [0.045] * 3
    assert set(of_events) == {0.0}
    assert not retention.is_unfinished("default")


def test_the_thread_ends_when_the_worker_stops(ended, pages_of_one, monkeypatch):
    for number in range(3):
        ended(f"k{number}")
    monkeypatch.setattr(retention.time, "sleep", lambda seconds: None)
    retention.prune_in_thread("default", stopping=lambda: True)
    await_thread()
    assert keys() == ["k0", "k1", "k2"]
    retention.prune_in_thread("default", stopping=lambda: len(keys()) == 1)
    await_thread()
    assert keys() == ["k2"]


def test_without_redis_the_thread_ends_when_the_next_sweep_is_about_to_begin(
    ended, pages_of_one, monkeypatch, db_clock, settings
):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None, "SWEEP_SECONDS": 30}
    ended("k1")
    ended("k2")
    monkeypatch.setattr(retention.time, "sleep", lambda seconds: db_clock.advance(seconds=30))
    retention.prune_in_thread("default")
    await_thread()
    assert keys() == ["k2"]


@pytest.fixture
def paused_thread(ended, pages_of_one, monkeypatch) -> Iterator[threading.Event]:
    """The thread has begun and is in its first pause. Set the event to end the pause."""
    for number in range(3):
        ended(f"k{number}")
    paused, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(retention.time, "sleep", lambda seconds: (paused.set(), go_on.wait(30)))
    retention.prune_in_thread("default")
    assert paused.wait(30)
    yield go_on
    go_on.set()
    await_thread()


def test_a_process_has_one_thread_for_a_database(paused_thread: threading.Event) -> None:
    first = retention._threads["default"]
    retention.prune_in_thread("default")
    assert retention._threads["default"] is first
    paused_thread.set()
    await_thread()
    assert keys() == []


@pytest.mark.parametrize("due_index", ["mirror"], indirect=True)
def test_with_redis_one_process_at_a_time_has_a_thread(paused_thread: threading.Event, monkeypatch) -> None:
    with monkeypatch.context() as another_process:
        another_process.setattr(retention, "_threads", {})
        retention.prune_in_thread("default")
        assert retention._threads == {}
    paused_thread.set()
    await_thread()
    assert keys() == []
    assert mirror.connect().lock("retention", 1_000).acquire(), "the thread has released it"


@pytest.mark.parametrize("due_index", ["mirror"], indirect=True)
def test_a_thread_that_lost_its_lock_ends(paused_thread: threading.Event, caplog) -> None:
    index = mirror.connect()
    index._redis.client.set(index.keys.lock("retention"), "of another process")
    paused_thread.set()
    await_thread()
    assert "the next sweep goes on: LockLost()" in caplog.text
    assert len(keys()) == 1, "the page after the pause was deleted before the lock was missed"


def test_an_error_in_the_thread_is_logged_and_the_next_sweep_goes_on(ended, pages_of_one, monkeypatch, caplog):
    ended("k1")
    with monkeypatch.context() as broken:
        broken.setattr(retention.sql, "ended_jobs", Mock(side_effect=OperationalError("the server closed it")))
        retention.prune_in_thread("default")
        await_thread()
    assert "the next sweep goes on: the server closed it" in caplog.text
    with monkeypatch.context() as broken:
        broken.setattr(retention, "step", Mock(side_effect=ZeroDivisionError))
        retention.prune_in_thread("default")
        await_thread()
    assert "Traceback" in caplog.text, "of the keep rule that raised"
    retention.prune_in_thread("default")
    await_thread()
    assert keys() == []


def test_no_thread_begins_outside_a_worker_without_the_setting_or_after_the_pass(
    ended, settings, monkeypatch, pages_of_one
):
    begun: list[Any] = []
    monkeypatch.setattr(retention.threading, "Thread", lambda **options: begun.append(options))
    ended("k1")
    tasks.sweep()  # called directly
    monkeypatch.setattr(tasks, "in_worker", lambda: True)
    set_retention(settings, {})
    tasks.sweep()
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    RetentionCursor.objects.update(job_id=None, event_id=None)
    tasks.sweep()
    assert begun == []


def test_a_pass_begins_at_most_once_an_hour(ended, settings, db_clock):
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    sweep.sweep()
    ended("old")
    sweep.sweep()
    assert keys() == ["old"]
    db_clock.advance(seconds=3600)
    sweep.sweep()
    assert keys() == []


@pytest.mark.parametrize("name", ["archive", "archive.json"])
def test_where_the_pipeline_archives_it_alone_deletes_jobs(ended, settings, tmp_path, name):
    ended("old")
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": str(tmp_path)}
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / name).touch()
    sweep.sweep()
    assert prune(ended=30 * DAY)["job"] == 0
    assert keys() == ["old"]


@pytest.mark.parametrize("name", ["a lake", "läke", "a#b", "a?b", "a%20b"])
def test_the_archive_is_found_by_path_and_by_uri(ended, settings, tmp_path: Path, name):
    ended("old")
    (tmp_path / name / "default" / "archive").mkdir(parents=True)
    for lake in (str(tmp_path / name), (tmp_path / name).as_uri()):
        settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": lake}
        assert prune(ended=30 * DAY)["job"] == 0


def test_a_lake_without_an_archive_does_not_stop_the_retention(ended, settings, tmp_path: Path):
    (tmp_path / "default" / "report").mkdir(parents=True)
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": str(tmp_path)}
    ended("old")
    assert prune(ended=30 * DAY)["job"] == 1


def test_a_lake_that_is_not_mounted_stops_the_retention_with_one_warning(
    ended: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "_warned", set())
    set_retention(settings, {"*": {"ended": 30 * DAY}})
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": str(tmp_path / "lake")}
    ended("old")
    retention.note_archive("default", datetime(2026, 11, 29, tzinfo=UTC))
    for _ in range(2):
        sweep.sweep()
        assert prune(ended=30 * DAY)["job"] == 0
        assert not retention.is_unfinished("default")
    assert keys() == ["old"]
    (warning,) = (each.getMessage() for each in caplog.records if "the retention" in each.getMessage())
    assert f"last archived jobs of this database on 2026-11-29, but {tmp_path}/lake/default has no archive" in warning
    retention.note_archive("default", None)
    sweep.sweep()
    assert keys() == []


def test_a_site_that_has_unset_its_lake_deletes_as_retention_says(ended: Any, settings: Any) -> None:
    ended("old")
    retention.note_archive("default", datetime(2026, 11, 29, tzinfo=UTC))
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": None}
    assert prune(ended=30 * DAY)["job"] == 1


def test_answers_about_a_pruned_job_are_those_of_an_unknown_one(ended):
    ended("old")
    assert cancel("t", "old") == "already finished"
    prune(ended=30 * DAY)
    assert cancel("t", "old") == "unknown"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"t": timedelta(days=1)}, "must be a dict such as"),
        ({"t": {"finished": timedelta(days=1)}}, "unknown key 'finished'. Known keys: 'ended', 'dead'"),
        ({"t": {"ended": 30}}, "must be a timedelta of 0 or more, or None"),
        ({"t": {"ended": timedelta(days=-1)}}, "must be a timedelta of 0 or more, or None"),
        ([], "of the wrong type"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(value, message):
    with pytest.raises(ImproperlyConfigured, match="RETENTION") as error:
        conf.from_dict({"RETENTION": value})
    assert message in str(error.value)
