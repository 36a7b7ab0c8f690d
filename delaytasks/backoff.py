"""How long to wait before a failed job is tried again: exponential, capped, with jitter."""

import random
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Backoff:
    """A topic's retry delays: base × factor^(failures − 1), at most `cap_seconds`, spread by ± `jitter`.

    jitter   0.0 to 1.0: the share of the delay that is random. Never makes a delay negative.
    """

    base_seconds: float = 5.0
    factor: float = 2.0
    cap_seconds: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not (self.base_seconds > 0 and self.factor >= 1 and 0 < self.cap_seconds < inf):
            raise ValueError(f"Backoff needs base > 0, factor >= 1 and cap > 0, the cap finite; got {self}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff needs a jitter from 0 to 1; got {self}")

    def delay_ms(self, failures: int, *, rng: random.Random | None = None) -> int:
        """Milliseconds to wait after the `failures`-th failure (1 is the first)."""
        try:
            seconds = min(self.base_seconds * self.factor ** (max(failures, 1) - 1), self.cap_seconds)
        except OverflowError:
            seconds = self.cap_seconds
        spread = (rng or random).uniform(-self.jitter, self.jitter)
        return max(1, round(seconds * (1 + spread) * 1000))
