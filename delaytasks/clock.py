"""The database's clock, in milliseconds since 1970.

SQL statements use the database's time directly. Code outside a statement, such as the mover, uses this
host's monotonic clock plus a measured offset. The offset leaves out the time that the database's answer took
to arrive, so this clock is never ahead of the database's: jobs may be a fraction of a millisecond late, but
are never early.
"""

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime

REFRESH_MS = 15_000
INVALIDATED_MS = 1_000  # age of a measurement after which invalidate() has it repeated
SAMPLES = 3

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(moment: datetime) -> int:
    """Convert an aware datetime to milliseconds since 1970, rounded up so that no job runs early."""
    delta = moment - _EPOCH
    microseconds = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return -(-microseconds // 1000)


def from_ms(ms: int) -> datetime:
    """Convert milliseconds since 1970 to an aware datetime in UTC, without rounding."""
    seconds, milliseconds = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=milliseconds * 1000)


def rfc3339(moment: datetime) -> str:
    """Return a time in UTC, to the millisecond: 2031-05-01T07:30:00.250Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rfc3339_of(ms: int) -> str:
    """Format a time in ms since 1970 as rfc3339() does. Five times as fast for times in the same second."""
    seconds, milliseconds = divmod(ms, 1000)
    return f"{_second(seconds)}.{milliseconds:03}Z"


@functools.lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def to_seconds(ms: int) -> int | float:
    """Convert milliseconds to seconds, as an int if they are whole."""
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


class DatabaseClock:
    """The database's time, computed from this host's monotonic clock instead of a query each time.

    read_ms   queries the database's time, in ms since 1970, which may be fractional. Called three times in a row when
              the time is asked for and the last queries are older than 15 s; the fastest answer is used, because it is
              the most exact
    """

    def __init__(self, read_ms: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._read_ms = read_ms
        self._monotonic = monotonic
        self._offset_ms = 0.0
        self._measured_ms: float | None = None
        self._is_invalid = False

    def now_ms(self) -> int:
        """Return the database's time in whole milliseconds since 1970, rounded down."""
        return int(self.exact_ms())

    def last_known_ms(self) -> int:
        """Return the time as now_ms() does, but never with a query. Raises RuntimeError before the first query."""
        if self._measured_ms is None:
            raise RuntimeError("The database's time was never read.")
        return int(self._monotonic() * 1000 + self._offset_ms)

    def exact_ms(self) -> float:
        """Return the database's time in milliseconds since 1970, with a fraction."""
        mono_ms = self._monotonic() * 1000
        limit_ms = INVALIDATED_MS if self._is_invalid else REFRESH_MS
        if self._measured_ms is None or mono_ms - self._measured_ms > limit_ms:
            self.measure()
            mono_ms = self._monotonic() * 1000
        return mono_ms + self._offset_ms

    def measure(self) -> None:
        """Measure the offset between this host's monotonic clock and the database's clock."""
        self._is_invalid = False  # first: another thread may set it during the queries
        offsets = []
        for _ in range(SAMPLES):
            read_ms = self._read_ms()
            offsets.append(read_ms - self._monotonic() * 1000)
        self._offset_ms = max(offsets)
        self._measured_ms = self._monotonic() * 1000

    def invalidate(self) -> None:
        """Measure the offset again, because another server may be the database now.

        This is done when the time is next read, but not before the last measurement is a second old: in a pool of
        threads, each task of the project has a new connection.
        """
        self._is_invalid = True

    def skew_ms(self) -> int:
        """Return how far this host's wall clock is ahead of the database's clock, in ms; negative if it is behind."""
        return round(time.time() * 1000 - self.now_ms())
