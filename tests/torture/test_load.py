"""The short forms of `make load` and `make soak`: the same programs, with less to do."""

from typing import Any

import pytest
from django.conf import settings

from . import load, soak
from .arena import arena

pytestmark = pytest.mark.xdist_group("torture")


@pytest.mark.only_on("postgresql")
def test_two_thousand_jobs_in_one_second_above_a_backlog_break_no_promise_and_no_bound(
    tmp_path: Any, django_db_blocker: Any
) -> None:
    with django_db_blocker.unblock(), arena(tmp_path, database=settings.TEST_DB) as there:
        there.populate(workers=1, consumers=1)
        seen = load.run(there, pending=20_000, due=2_000, minutes=3)
        taken = soak.sample(there)
        assert not seen.broken, f"{seen.text()}\n{there.report()}"
    assert seen.latencies
    assert {name for name in soak.BOUNDS if not taken.get(name)} == set(), "what has a bound is not measured"


def samples(name: str, *values: int) -> list[soak.Sample]:
    quiet = dict.fromkeys(soak.BOUNDS, 1)
    return [quiet | {name: value} for value in values]


def test_what_grows_beyond_its_bound_is_found() -> None:
    bound = soak.BOUNDS["connections"]
    assert soak.outgrown(samples("connections", 5, 9, 9 + bound, 9 + bound), settle=2) == []
    (said,) = soak.outgrown(samples("connections", 5, 9, 10 + bound, 10 + bound), settle=2)
    assert said.startswith("connections was 9, and is")


def test_a_moment_of_more_or_of_nothing_is_no_growth() -> None:
    assert soak.outgrown(samples("redis bytes", 5, 0, 6, soak.BOUNDS["redis bytes"] * 9, 6), settle=2) == []


def test_what_was_never_measured_is_not_called_well() -> None:
    assert soak.outgrown(samples("redis keys", 0, 0, 0, 0), settle=2) == ["redis keys was not measured"]
