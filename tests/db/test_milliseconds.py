"""The time of a column in milliseconds, also if other software has written microseconds."""

from datetime import UTC, datetime

import pytest

from delaytasks.clock import to_ms
from delaytasks.db import dialects

pytestmark = [pytest.mark.django_db, pytest.mark.on_both]


@pytest.mark.parametrize("second", [0, 30, 59])
@pytest.mark.parametrize("microsecond", [0, 1_000, 499, 999_000, 999_499, 999_501, 999_999])
def test_a_time_is_the_nearest_millisecond(second: int, microsecond: int) -> None:
    moment, dialect = datetime(2030, 2, 28, 23, 59, second, microsecond, UTC), dialects.get_dialect("default")
    sql = f"SELECT {dialect.to_ms('moment')} FROM (SELECT {dialect.as_moment('%s')} AS moment) AS given"
    [(ms,)] = dialects.run("default", sql, [str(moment.replace(tzinfo=None))])
    assert 0 <= to_ms(moment) - ms <= 1
