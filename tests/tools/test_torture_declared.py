"""Short runs of `same_rows` and `declared_load`."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from ..torture import declared_load, same_rows
from ..torture.declared import player
from ..torture.declared.player import DIFFERENT, LATE, SAME, Event, Row
from ..torture.environment import arena

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("torture")]


@pytest.mark.on_both
def test_a_few_histories_leave_the_same_rows_through_the_kit_and_with_workers(
    tmp_path: Path, django_db_blocker: Any
) -> None:
    """It takes half a minute of real time, because workers have no virtual clock."""
    with (
        django_db_blocker.unblock(),
        arena(tmp_path, database=settings.TEST_DB, settings=same_rows.SETTINGS) as installation,
    ):
        same_rows.set_up(installation)
        result = same_rows.run(installation, range(5), at_once=5)
        assert not result.broken, f"{result.line()}\n{result.broken}\n{installation.report()}"
    assert (result.same, result.jobs > 20, result.events > 50) == (5, True, True)


@pytest.mark.only_on("postgresql")
def test_orders_are_closed_once_and_the_paid_ones_never_while_workers_are_killed(
    tmp_path: Path, django_db_blocker: Any
) -> None:
    with (
        django_db_blocker.unblock(),
        arena(tmp_path, settings=declared_load.SETTINGS, RECONCILE_SECONDS="3600") as installation,
    ):
        result = declared_load.run(installation, orders=3_000, seconds=20, kill_seconds=8)
        assert not result.broken, f"{result.text()}\n{installation.report()}"
    assert result.facts["workers killed"] == 2
    assert int(result.facts["closed; paid; open"].split(";")[0]) > 200


def row(*events: Event, **changes: Any) -> Row:
    return Row("history.plain", "1:0", 4, 0, 1, events)._replace(**changes)


KIT = [row(Event("finished", 1, 3000))]


@pytest.mark.parametrize(
    ("workers", "latest_act_ms", "result"),
    [
        ([row(Event("finished", 1, 3040))], 10, SAME),
        ([row(Event("finished", 1, 2999))], 10, DIFFERENT),
        ([row(Event("failed", 1, 3040))], 10, DIFFERENT),
        ([row(Event("finished", 1, 3040), failures=1)], 10, DIFFERENT),
        ([row(Event("finished", 1, 3040), Event("finished", 2, 3050))], 10, DIFFERENT),
        ([], 10, DIFFERENT),
        ([row(Event("cancelled", 0, 3500))], 900, LATE),
        ([row(Event("finished", 1, 3900), Event("cancelled", 1, 4500))], 10, LATE),
    ],
)
def test_a_difference_counts_unless_it_may_come_from_lateness(
    workers: list[Row], latest_act_ms: int, result: str
) -> None:
    assert player.compare(KIT, workers, latest_act_ms) == result
