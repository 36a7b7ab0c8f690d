"""Short runs of `make load` and `make soak`."""

from typing import Any

import pytest
from django.conf import settings

from ..torture import load, soak
from ..torture.environment import arena

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("torture")]


@pytest.mark.only_on("postgresql")
def test_two_thousand_jobs_due_at_once_break_no_promise_and_no_bound(tmp_path: Any, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock(), arena(tmp_path, database=settings.TEST_DB) as installation:
        installation.populate(workers=1, consumers=1)
        result = load.run(installation, pending=20_000, due=2_000, minutes=3)
        sample = soak.sample(installation)
        assert not result.broken, f"{result.text()}\n{installation.report()}"
    assert result.latencies
    assert {name for name in soak.BOUNDS if not sample.get(name)} == set(), "everything with a bound is measured"


def samples(name: str, *values: int) -> list[soak.Sample]:
    base = dict.fromkeys(soak.BOUNDS, 1)
    return [base | {name: value} for value in values]


def test_growth_beyond_its_bound_is_reported() -> None:
    bound = soak.BOUNDS["connections"]
    assert soak.outgrown(samples("connections", 5, 9, 9 + bound, 9 + bound), settle=2) == []
    (problem,) = soak.outgrown(samples("connections", 5, 9, 10 + bound, 10 + bound), settle=2)
    assert problem.startswith("connections was 9, and is")


def test_a_single_outlier_is_not_growth() -> None:
    assert soak.outgrown(samples("redis bytes", 5, 0, 6, soak.BOUNDS["redis bytes"] * 9, 6), settle=2) == []


def test_a_resource_that_was_never_measured_is_reported() -> None:
    assert soak.outgrown(samples("redis keys", 0, 0, 0, 0), settle=2) == ["redis keys was not measured"]
