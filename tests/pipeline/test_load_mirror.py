"""Jobs that a load put into the tables become due in time: those of the next hour are in Redis, the others are rows."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from delaytasks import conf, dialect, engine, loaded, sweeper
from delaytasks.clock import from_ms, to_ms
from delaytasks.exceptions import MirrorDown
from delaytasks.models import Job, LoadChunk
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.lake import Lake
from delaytasks.pipeline.placing import place
from delaytasks.pipeline.stages import Chunk, Run

HOUR_MS = 3_600_000
pytestmark = pytest.mark.usefixtures("with_redis")


@pytest.fixture
def fed(mirror: Any, database: Database) -> int:
    """The mirror was filled, as it always is; the database's time in ms."""
    sweeper.rebuild("default")
    sweeper.sweep("default")
    return int(dialect.now_ms("default"))


def in_mirror() -> dict[int, int]:
    """id -> ms, of what waits."""
    return {entry.id: entry.at_ms for page in engine.mirror_of("default").entries() for entry in page}


def ids(*keys: str) -> list[int]:
    return [Job.objects.get(key=key).pk for key in keys]


def test_what_is_loaded_and_due_within_the_hour_is_told_and_what_is_later_comes_with_the_feeder(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, (key, wait_ms) in enumerate([("now", -5000), ("soon", 3000), ("later", HOUR_MS // 2),
                                             ("far", 3 * HOUR_MS)]):  # fmt: skip
        assert place(database, lake, Run("r", "s", "reject"), chunk(key, number=number, due_ms=fed + wait_ms))
    assert in_mirror() == {}
    found = engine.mirror_of("default")
    assert found is not None
    assert sweeper.feed(found, "default") == 0, "the feeder alone has passed them by"

    assert loaded.tell("default") == 3
    expected = {job.pk: to_ms(job.due_at) for job in Job.objects.exclude(key="far")}
    assert in_mirror() == expected
    assert not LoadChunk.objects.filter(told=False).exists()
    assert loaded.tell("default") == 0

    (far,) = ids("far")
    real = engine.now_ms
    monkeypatch.setattr(engine, "now_ms", lambda using: real(using) + 2 * HOUR_MS + 60_000)
    assert sweeper.feed(found, "default") == 1
    assert far in in_mirror()


def test_what_a_dead_command_did_not_tell_the_sweep_tells(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
) -> None:
    keys = [f"k{n}" for n in range(7)]
    assert place(database, lake, Run("r", "s", "reject"), chunk(*keys, due_ms=fed + HOUR_MS // 2))
    loaded_page, loaded.PAGE = loaded.PAGE, 3
    try:
        assert sweeper.sweep("default")["fed"] == 7
    finally:
        loaded.PAGE = loaded_page
    assert set(in_mirror()) == set(ids(*keys))


@pytest.fixture
def moved(fed: int, database: Database, lake: Lake, chunk: Callable[..., Chunk], job: Callable[..., Job]) -> Job:
    """A job of the day after tomorrow that a load has made one of the next minute, and told nobody."""
    row = job("a", due_at=from_ms(fed) + timedelta(days=2))
    assert place(database, lake, Run("r", "s", "replace"), chunk("a", due_ms=fed + 60_000))
    return row


def test_a_replaced_job_is_at_its_new_time_if_that_is_earlier_and_its_ids_are_forgotten(fed: int, moved: Job) -> None:
    loaded.tell("default")

    assert in_mirror() == {moved.pk: fed + 60_000}
    assert LoadChunk.objects.get().replaced_ids == []


def test_a_job_that_nobody_told_of_is_late_by_no_more_than_the_guard(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
) -> None:
    assert place(database, lake, Run("r", "s", "reject"), chunk("a", due_ms=fed - 1))
    Job.objects.update(due_at=from_ms(fed - 600))
    found = engine.mirror_of("default")
    assert found is not None

    assert sweeper.probe(found, "default") == 1, "it became due half a second ago"
    assert set(in_mirror()) == set(ids("a"))


def test_a_replaced_job_that_redis_was_not_there_for_stays_to_be_told(moved: Job, redis_server: Any) -> None:
    redis_server.stop()
    with pytest.raises(MirrorDown):
        loaded.tell("default")
    assert LoadChunk.objects.filter(told=False).get().replaced_ids == [moved.pk]


def test_while_redis_is_away_it_stays_to_be_told_and_without_one_nothing_is_asked(
    fed: int,
    database: Database,
    lake: Lake,
    chunk: Callable[..., Chunk],
    settings: Any,
) -> None:
    assert place(database, lake, Run("r", "s", "reject"), chunk("a", due_ms=fed + 60_000))
    with_redis = settings.DELAYTASKS
    settings.DELAYTASKS = {**with_redis, "REDIS_URL": None}
    assert conf.get().redis_url is None
    assert loaded.tell("default") == 0
    assert LoadChunk.objects.filter(told=False).count() == 1
    settings.DELAYTASKS = with_redis
    assert loaded.tell("default") == 1
