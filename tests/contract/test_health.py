"""Whether the machinery works, as staff see it."""

from collections.abc import Iterator

import pytest
from django.core.cache import cache

from delaytasks import clock, health, sweeper
from delaytasks.models import MirrorMark


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def test_a_mover_that_never_looked(places):
    found = health.health("default")
    assert (found.looked_ms, found.moving) == (None, False)


@pytest.mark.parametrize(("ago_ms", "moving"), [(0, True), (12_000, True), (29_999, True), (30_000, False)])
def test_a_mover_is_alive_as_long_as_it_looks(db_clock, ago_ms, moving):
    MirrorMark.objects.create(pk=1, looked_at=clock.from_ms(db_clock.now_ms - ago_ms))
    found = health.health("default")
    assert (found.looked_ms, found.moving) == (ago_ms, moving)


def test_whoever_guards_is_alive_with_the_mirror_and_without_it(stage):
    sweeper._said_looked.clear()  # it is written down every ten seconds
    stage.guard()
    assert health.health("default").looked_ms is not None


def test_the_mirror_is_up_or_off(places):
    assert health.health("default").mirror == ("up" if hasattr(places, "feed") else "off")


def test_a_mirror_that_does_not_answer_is_down(with_redis, redis_server):
    redis_server.stop()
    assert health.health("default").mirror == "down"


def test_the_last_audit_says_whether_both_sides_agree(db_clock):
    at_ms = db_clock.now_ms - 90_000
    audit = {"at_ms": at_ms, "checked": 500, "missing": 2, "ghosts": 1, "late": 0, "doubled": 0}
    MirrorMark.objects.create(pk=1, audit=audit)
    found = health.health("default")
    assert (found.audited_ms, found.checked, found.differences) == (90_000, 500, 3)


def test_nothing_was_compared_yet(db_clock):
    MirrorMark.objects.create(pk=1)
    found = health.health("default")
    assert (found.audited_ms, found.checked, found.differences) == (None, 0, 0)


def test_a_rebuild_is_counted(with_redis):
    sweeper.guard("default")
    assert health.health("default").rebuilt == 1
