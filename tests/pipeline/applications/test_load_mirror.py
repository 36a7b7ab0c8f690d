"""Loaded jobs in the mirror: those of the next hour are in Redis, the others in the database only."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from delaytasks import conf, databases, mirror
from delaytasks.clock import from_ms, to_ms
from delaytasks.db import dialects
from delaytasks.exceptions import MirrorDown
from delaytasks.maintenance import feed, guard, loads, sweep
from delaytasks.models import Job, LoadChunk
from delaytasks.pipeline.sinks.inserts import load_chunk
from delaytasks.pipeline.sinks.jobs import Chunk, Run
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables.lake import Lake

HOUR_MS = 3_600_000
pytestmark = pytest.mark.usefixtures("with_redis")


@pytest.fixture
def fed(mirror: Any, database: Database) -> int:
    """Fill the mirror. Return the database's time in ms."""
    feed.rebuild("default")
    sweep.sweep("default")
    return int(dialects.now_ms("default"))


def in_mirror() -> dict[int, int]:
    """Return id -> ms of the delayed jobs in the mirror."""
    return {entry.id: entry.at_ms for page in mirror.connect("default").entries() for entry in page}


def ids(*keys: str) -> list[int]:
    return [Job.objects.get(key=key).pk for key in keys]


def test_loaded_jobs_due_within_the_hour_are_mirrored_and_later_ones_come_with_the_feeder(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, (key, wait_ms) in enumerate([("now", -5000), ("soon", 3000), ("later", HOUR_MS // 2),
                                             ("far", 3 * HOUR_MS)]):  # fmt: skip
        assert load_chunk(database, lake, Run("r", "s", "reject"), chunk(key, number=number, due_ms=fed + wait_ms))
    assert in_mirror() == {}
    found = mirror.connect("default")
    assert found is not None
    assert feed.feed(found, "default") == 0, "the feeder alone has passed them by"

    assert loads.add_to_mirror("default") == 3
    expected = {job.pk: to_ms(job.due_at) for job in Job.objects.exclude(key="far")}
    assert in_mirror() == expected
    assert not LoadChunk.objects.filter(mirrored=False).exists()
    assert loads.add_to_mirror("default") == 0

    (far,) = ids("far")
    real = databases.now_ms
    monkeypatch.setattr(databases, "now_ms", lambda using: real(using) + 2 * HOUR_MS + 60_000)
    assert feed.feed(found, "default") == 1
    assert far in in_mirror()


def test_the_sweep_mirrors_what_a_killed_command_did_not(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
) -> None:
    keys = [f"k{n}" for n in range(7)]
    assert load_chunk(database, lake, Run("r", "s", "reject"), chunk(*keys, due_ms=fed + HOUR_MS // 2))
    loaded_page, loads.PAGE = loads.PAGE, 3
    try:
        assert sweep.sweep("default")["fed"] == 7
    finally:
        loads.PAGE = loaded_page
    assert set(in_mirror()) == set(ids(*keys))


@pytest.fixture
def moved(fed: int, database: Database, lake: Lake, chunk: Callable[..., Chunk], job: Callable[..., Job]) -> Job:
    """A job that a load moved from the day after tomorrow to the next minute, not mirrored yet."""
    row = job("a", due_at=from_ms(fed) + timedelta(days=2))
    assert load_chunk(database, lake, Run("r", "s", "replace"), chunk("a", due_ms=fed + 60_000))
    return row


def test_a_replaced_job_is_mirrored_at_an_earlier_time_and_its_id_is_cleared(fed: int, moved: Job) -> None:
    loads.add_to_mirror("default")

    assert in_mirror() == {moved.pk: fed + 60_000}
    assert LoadChunk.objects.get().replaced_ids == []


def test_an_unmirrored_job_is_late_by_at_most_the_guard(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
) -> None:
    assert load_chunk(database, lake, Run("r", "s", "reject"), chunk("a", due_ms=fed - 1))
    Job.objects.update(due_at=from_ms(fed - 600))
    found = mirror.connect("default")
    assert found is not None

    assert guard.probe(found, "default") == 1, "it became due half a second ago"
    assert set(in_mirror()) == set(ids("a"))


def test_a_replaced_job_waits_for_redis_to_be_mirrored(moved: Job, redis_server: Any) -> None:
    redis_server.stop()
    with pytest.raises(MirrorDown):
        loads.add_to_mirror("default")
    assert LoadChunk.objects.filter(mirrored=False).get().replaced_ids == [moved.pk]


def test_jobs_wait_while_redis_is_away_and_are_skipped_without_redis(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
    settings: Any,
) -> None:
    assert load_chunk(database, lake, Run("r", "s", "reject"), chunk("a", due_ms=fed + 60_000))
    with_redis = settings.DELAYTASKS
    settings.DELAYTASKS = {**with_redis, "REDIS_URL": None}
    assert conf.get().redis_url is None
    assert loads.add_to_mirror("default") == 0
    assert LoadChunk.objects.filter(mirrored=False).count() == 1
    settings.DELAYTASKS = with_redis
    assert loads.add_to_mirror("default") == 1
