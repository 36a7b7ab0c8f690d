"""The one clock: the database's, in milliseconds since 1970.

A statement asks the database itself what time it is. Where no statement is at hand (the
mover), "now" is this host's monotonic clock plus an offset learned from the database. The
offset is always taken on the low side (the reply is assumed to be instantly old), so this
clock is never ahead of the database's: a job is perhaps looked at a fraction of a
millisecond late, never early.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

REFRESH_MS = 15_000
SAMPLES = 3

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime, rounded up, so that nothing becomes earlier."""
    delta = moment - _EPOCH
    microseconds = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return -(-microseconds // 1000)


def from_ms(ms: int) -> datetime:
    """The aware datetime (UTC) of milliseconds since 1970, exact to the millisecond."""
    seconds, rest = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest * 1000)


class DatabaseClock:
    """now_ms() by the database's clock without asking it each time; exact_ms() with its fraction.

    read_ms   asks the database; milliseconds, may be fractional. Called again every 15 s,
              three times in a row; the quickest answer is the most exact and wins.
    """

    def __init__(self, read_ms: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._read_ms = read_ms
        self._monotonic = monotonic
        self._offset_ms = 0.0
        self._learned_ms: float | None = None

    def now_ms(self) -> int:
        return int(self.exact_ms())

    def exact_ms(self) -> float:
        mono_ms = self._monotonic() * 1000
        if self._learned_ms is None or mono_ms - self._learned_ms > REFRESH_MS:
            self.learn()
            mono_ms = self._monotonic() * 1000
        return mono_ms + self._offset_ms

    def learn(self) -> None:
        offsets = []
        for _ in range(SAMPLES):
            read_ms = self._read_ms()
            offsets.append(read_ms - self._monotonic() * 1000)
        self._offset_ms = max(offsets)
        self._learned_ms = self._monotonic() * 1000

    def skew_ms(self) -> int:
        """How far this host's wall clock is ahead of the database's (negative: behind). For metrics only."""
        return round(time.time() * 1000 - self.now_ms())
