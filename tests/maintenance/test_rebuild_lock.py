"""A rebuild that lost its lock stops, and does not record that the mirror is complete."""

from collections.abc import Callable

import pytest
from django.db import OperationalError

from delaytasks import mirror, schedule
from delaytasks.db import lookups
from delaytasks.maintenance import data_loss, feed
from delaytasks.models import MirrorMark
from delaytasks.monitoring import metrics

pytestmark = pytest.mark.parametrize("due_index", ["mirror"], indirect=True)
JOBS = 6
TTL_MS = 60_000


def client():
    return mirror.connect()._redis.client


def lock_key() -> str:
    return mirror.connect().keys.lock("rebuild")


def flush() -> None:
    for key in client().scan_iter(f"*{mirror.connect().settings.prefix}*"):
        client().delete(key)


def rebuild_count() -> int:
    return metrics.snapshot()["counters"].get("rebuilt", 0)


def successor_takes_the_lock() -> None:
    """The lock expires while its holder stalls, and another process takes it."""
    client().set(lock_key(), "successor", px=TTL_MS)


@pytest.fixture
def jobs(stage) -> None:
    """More live jobs than a page has, and an empty mirror that the database records as complete."""
    stage.recorder("t")
    for n in range(JOBS):
        schedule("t", key=f"k{n}", delay=60 + n)
    flush()


@pytest.fixture
def after_pages(jobs, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """after_pages(2, act) calls `act` once, when two pages of one job are in the mirror and the third is read."""
    monkeypatch.setattr(feed, "PAGE", 1)
    window_of_lookups = lookups.window

    def after(pages: int, act: Callable[[], None]) -> None:
        def window(*args, **options):
            nonlocal pages
            pages -= 1
            if pages == -1:
                act()
            return window_of_lookups(*args, **options)

        monkeypatch.setattr(lookups, "window", window)

    return after


@pytest.mark.parametrize("pages", [0, 2, JOBS])
def test_a_stalled_rebuild_stops_and_its_successor_keeps_the_lock(stage, after_pages, caplog, pages):
    after_pages(pages, successor_takes_the_lock)
    tick = MirrorMark.objects.get().tick
    assert feed.rebuild() is None
    assert client().get(lock_key()) == "successor"
    assert mirror.connect().due_count() == pages
    assert (MirrorMark.objects.get().tick, mirror.connect().ticks()) == (tick, [None] * 4)
    assert "lost its lock and stopped" in caplog.text


def test_a_stalled_rebuild_does_not_change_the_expiry_of_its_successors_lock(stage, after_pages):
    after_pages(2, successor_takes_the_lock)
    feed.rebuild()
    assert client().pttl(lock_key()) > feed.REBUILD_LOCK_MS


def test_a_stalled_rebuild_without_a_successor_stops_too_and_the_next_guard_rebuilds(stage, after_pages):
    after_pages(2, lambda: client().delete(lock_key()))
    assert feed.rebuild() is None
    assert mirror.connect().due_count() == 2
    stage.guard()
    assert mirror.connect().due_count() == JOBS


def test_pages_that_redis_loses_during_a_rebuild_are_added_again_by_the_next_guard(stage, after_pages):
    after_pages(3, flush)
    stage.guard()
    stage.guard()
    assert mirror.connect().due_count() == JOBS


def test_a_mirror_is_not_complete_if_the_lock_is_lost_while_the_tick_is_written(stage, jobs, monkeypatch):
    def lose_lock(using: str) -> int:
        monkeypatch.undo()
        successor_takes_the_lock()
        return data_loss.increment_tick(using)

    monkeypatch.setattr(feed, "increment_tick", lose_lock)
    assert feed.rebuild() is None
    assert client().get(lock_key()) == "successor"
    client().delete(lock_key())
    stage.guard()
    assert rebuild_count() == 1


def test_a_rebuild_extends_its_lock_for_each_page(stage, after_pages, monkeypatch):
    left_ms, add_page = [], feed.add_page

    def record(*args):
        left_ms.append(client().pttl(lock_key()))
        return add_page(*args)

    monkeypatch.setattr(feed, "add_page", record)
    after_pages(2, lambda: client().pexpire(lock_key(), 1_000))
    assert feed.rebuild() == JOBS
    assert len(left_ms) == JOBS
    assert min(left_ms) > 1_000


def test_a_rebuild_releases_its_lock_at_the_end(stage, jobs):
    assert feed.rebuild() == JOBS
    assert not client().exists(lock_key())


def test_a_rebuild_that_fails_releases_its_lock(stage, after_pages):
    def fail() -> None:
        raise OperationalError("the database went away")

    after_pages(2, fail)
    with pytest.raises(OperationalError):
        feed.rebuild()
    assert not client().exists(lock_key())
    assert mirror.connect().lock("rebuild", TTL_MS).acquire()
