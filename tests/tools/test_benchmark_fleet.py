"""What the benchmark says of a fleet of HTTP consumers."""

import pytest

from benchmarks.http_fleet import Delivery, summary

pytestmark = pytest.mark.tools


def test_jobs_that_come_twice_late_or_never_are_counted():
    late = [Delivery(f"k{n}", due=100 + n, answered=100.25 + n, consumer=n % 2) for n in range(10)]
    again = Delivery("k9", due=109, answered=110, consumer=0)
    early = Delivery("early", due=105, answered=104.999, consumer=1)

    found = summary([*late, again, early], consumers=3, expected=13)

    assert (found["twice"], found["missing"], found["early"], found["fewest"]) == (1, 2, 1, 0)
    assert found["per_second"] == pytest.approx(11 / 10)
    assert found["p50_ms"] == pytest.approx(250)
    assert found["max_ms"] == pytest.approx(1000)


def test_a_fleet_that_got_nothing_is_an_error():
    with pytest.raises(SystemExit, match="got 0 of 40 jobs"):
        summary([], consumers=2, expected=40)
