"""A short run of `make failover`."""

from pathlib import Path
from typing import Any

import pytest

from ..torture.failover import trial
from ..torture.failover.trial import Case

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("torture"), pytest.mark.only_on("postgresql")]


@pytest.mark.parametrize("case", [Case(), Case(synchronous=False)], ids=["synchronous", "asynchronous"])
def test_a_standby_takes_over_under_load(case: Case, tmp_path: Path, django_db_blocker: Any) -> None:
    """The synchronous one loses nothing, the asynchronous one only what was answered after its last bytes."""
    with django_db_blocker.unblock(), trial.installation(tmp_path, case) as there:
        result = trial.run(there, case, orders=3_000, seconds=15)
        assert not result.broken, f"{result.text()}\n{there.report()}"
    assert int(result.facts["jobs scheduled; handlers begun"].split(";")[0]) > 100, result.text()
    assert case.synchronous or int(result.facts["answers of the lost tail"]) > 0, result.text()
