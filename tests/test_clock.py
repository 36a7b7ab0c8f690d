"""The database's clock: exact to the millisecond, never ahead."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delaytasks import clock
from delaytasks.clock import REFRESH_MS, SAMPLES, DatabaseClock, from_ms, to_ms

MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 bounds only


class Database:
    """A database with a network delay in each direction. Time passes only during queries."""

    def __init__(self, *, ahead_ms: float = 0.0) -> None:
        self.host_ms = 5_000.0  # monotonic: since the host started
        self.epoch_ms = 1_893_456_000_000.0 + ahead_ms - self.host_ms
        self.delays_ms: list[tuple[float, float]] = []
        self.queries = 0

    @property
    def now_ms(self) -> float:
        return self.host_ms + self.epoch_ms

    def monotonic(self) -> float:
        return self.host_ms / 1000

    def read_ms(self) -> float:
        there, back = self.delays_ms[self.queries % len(self.delays_ms)] if self.delays_ms else (0.0, 0.0)
        self.queries += 1
        self.host_ms += there
        answer = self.now_ms
        self.host_ms += back
        return answer

    def clock(self) -> DatabaseClock:
        return DatabaseClock(self.read_ms, self.monotonic)


# Conversions


@settings(database=None)
@given(MOMENTS)
def test_to_ms_rounds_up_by_less_than_a_millisecond(moment: datetime) -> None:
    assert timedelta(0) <= from_ms(to_ms(moment)) - moment < timedelta(milliseconds=1)


@settings(database=None)
@given(st.integers(-2_000_000_000_000, 200_000_000_000_000))
def test_from_ms_and_to_ms_are_inverse(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        pytest.param(datetime(1970, 1, 1, tzinfo=UTC), 0, id="epoch"),
        pytest.param(datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1, id="a-microsecond-is-rounded-up"),
        pytest.param(datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), 1, id="a-millisecond-is-exact"),
        pytest.param(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), 0, id="before-1970-is-rounded-up-too"),
        pytest.param(datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000_000, id="13-digits"),
        pytest.param(datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1_893_456_000_000, id="zone"),
        pytest.param(datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), 1_792_888_200_000, id="first"),
        pytest.param(
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_792_891_800_000, id="second"
        ),
    ],
)
def test_to_ms(moment: datetime, ms: int) -> None:
    assert to_ms(moment) == ms


def test_from_ms_returns_an_aware_datetime_in_utc() -> None:
    assert from_ms(1_893_456_000_001).isoformat() == "2030-01-01T00:00:00.001000+00:00"


# The clock


@settings(database=None)
@given(
    delays_ms=st.lists(st.tuples(st.floats(0, 300), st.floats(0, 300)), min_size=SAMPLES, max_size=SAMPLES),
    ahead_ms=st.floats(-1e9, 1e9),
    wait_ms=st.floats(0, REFRESH_MS - 1),
)
def test_the_clock_is_never_ahead_and_behind_by_less_than_the_fastest_answer_took(
    delays_ms: list[tuple[float, float]], ahead_ms: float, wait_ms: float
) -> None:
    database = Database(ahead_ms=ahead_ms)
    database.delays_ms = delays_ms
    clock = database.clock()
    clock.now_ms()
    database.host_ms += wait_ms
    behind_ms = database.now_ms - clock.now_ms()
    assert -0.001 < behind_ms <= min(back for _, back in delays_ms) + 1.001  # floats of 13 digits


def test_the_database_is_queried_three_times_and_then_not_for_15_seconds() -> None:
    database = Database()
    clock = database.clock()
    for _ in range(100):
        clock.now_ms()
        database.host_ms += REFRESH_MS / 100
    assert database.queries == SAMPLES
    database.host_ms += 1
    clock.now_ms()
    assert database.queries == 2 * SAMPLES


def test_a_slow_answer_between_fast_ones_is_ignored() -> None:
    database = Database()
    database.delays_ms = [(0, 0), (0, 5_000), (0, 0)]
    assert database.clock().now_ms() == database.now_ms


@pytest.mark.parametrize("jump_ms", [60_000, -60_000], ids=["forward", "backward"])
def test_a_change_of_the_database_clock_is_seen_at_the_next_refresh(jump_ms: int) -> None:
    database = Database()
    clock = database.clock()
    clock.now_ms()
    database.epoch_ms += jump_ms
    assert clock.now_ms() == database.now_ms - jump_ms
    database.host_ms += REFRESH_MS + 1
    assert clock.now_ms() == database.now_ms


def test_after_a_failed_query_the_next_call_tries_again() -> None:
    database = Database()
    answers = iter([ConnectionError("gone"), None])

    def read_ms() -> float:
        failure = next(answers, None)
        if failure:
            raise failure
        return database.read_ms()

    clock = DatabaseClock(read_ms, database.monotonic)
    with pytest.raises(ConnectionError):
        clock.now_ms()
    assert clock.now_ms() == database.now_ms


@pytest.mark.parametrize("ahead_ms", [7_000, -7_000], ids=["host-ahead", "host-behind"])
def test_the_skew_is_the_hosts_wall_clock_minus_the_databases(monkeypatch: pytest.MonkeyPatch, ahead_ms: int) -> None:
    database = Database()
    monkeypatch.setattr(clock.time, "time", lambda: (database.now_ms + ahead_ms) / 1000)
    assert database.clock().skew_ms() == ahead_ms


def test_the_clock_of_another_server_is_measured_when_told_but_at_most_once_a_second() -> None:
    database = Database()
    clock = database.clock()
    clock.now_ms()
    database.epoch_ms -= 20_000
    assert clock.now_ms() == database.now_ms + 20_000
    for _ in range(10):
        clock.invalidate()
        assert clock.now_ms() == database.now_ms + 20_000
        database.host_ms += 110
    assert clock.last_known_ms() == database.now_ms + 20_000  # no query
    assert clock.now_ms() == database.now_ms
    assert database.queries == 2 * SAMPLES
