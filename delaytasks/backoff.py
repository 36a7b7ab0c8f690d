"""Retry delays: exponential, capped, with jitter."""

import random
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Backoff:
    """Retry delays of a topic: base × factor^(failures − 1), at most `cap_seconds`, ± `jitter`.

    jitter   0.0 to 1.0: the largest random change, as a share of the delay

    A delay is at least one millisecond.
    """

    base_seconds: float = 5.0
    factor: float = 2.0
    cap_seconds: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for name in ("base_seconds", "factor", "cap_seconds", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"Backoff: {name} is {value!r}; give an int or a float.")
        if not (self.base_seconds > 0 and self.factor >= 1 and 0 < self.cap_seconds < inf):
            raise ValueError(f"Backoff needs base > 0, factor >= 1 and cap > 0, the cap finite; got {self}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff needs a jitter from 0 to 1; got {self}")

    def delay_ms(self, failures: int, *, rng: random.Random | None = None) -> int:
        """Return the delay in milliseconds after this number of failures, which counts from 1."""
        try:
            seconds = min(self.base_seconds * self.factor ** (max(failures, 1) - 1), self.cap_seconds)
        except OverflowError:
            seconds = self.cap_seconds
        spread = (rng or random).uniform(-self.jitter, self.jitter)
        return max(1, round(seconds * (1 + spread) * 1000))


# For handlers without a backoff of their own: 5 s, 10 s, 20 s and so on, at most 6 h. With the default max_attempts of
# 25, the 24 retries take 3.2 days: a job survives an outage from Friday evening to Monday morning.
DEFAULT_BACKOFF = Backoff(cap_seconds=6 * 3600.0)
