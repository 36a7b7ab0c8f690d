"""Short runs of the two parts of `make fleet`."""

from pathlib import Path
from typing import Any

import pytest

from ..torture.fleet import tenant_trial, trial

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("torture"), pytest.mark.only_on("postgresql")]


def test_a_silent_or_slow_database_delays_no_job_of_the_others(tmp_path: Path, django_db_blocker: Any) -> None:
    phases = {name: trial.PHASES[name] for name in ("east silent", "west slow", "west killed")}
    with django_db_blocker.unblock(), trial.installation(tmp_path) as fleet:
        result = trial.run(fleet, seconds=8, phases=phases)
        assert not result.broken, f"{result.text()}\n{fleet.arena.report()}"
    assert int(result.facts["east silent: west"].split()[0]) > 100, result.text()
    assert int(result.facts["west slow: east"].split()[0]) > 100, result.text()


def test_each_timeout_of_a_tenant_that_moves_takes_effect_once(tmp_path: Path, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock(), trial.installation(tmp_path) as fleet:
        result = trial.run(fleet, seconds=4, phases={"all well": (trial.well, "")})
        tenant_trial.run(fleet, result, seconds=12, per_second=10, kills=1)
        assert not result.broken, f"{result.text()}\n{fleet.arena.report()}"
    assert int(result.facts["tenant: moves; each killed before"].split(";")[0]) > 0, result.text()
