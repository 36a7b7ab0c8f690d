"""Ladder: the delays between the polls of a job, and its deadline."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..exceptions import BadDelay
from .durations import Duration, to_duration

SHORTEST_REPEATED = timedelta(milliseconds=100)


@dataclass(frozen=True)
class Ladder:
    """The delays between the polls of a job, and the time after which it gives up."""

    rungs: tuple[timedelta, ...]
    until: timedelta

    @classmethod
    def parse(cls, every: Sequence[Duration], until: Duration) -> "Ladder":
        """Return the ladder of these delays and this deadline. Raises BadDelay."""
        if isinstance(every, str) or not isinstance(every, Sequence) or not every:
            raise BadDelay(f"every is {every!r:.100}: give a list of delays, such as ['2m', '10m', '1h'].")
        rungs = tuple(to_duration(rung, what=f"every[{number}]") for number, rung in enumerate(every))
        if rungs[-1] < SHORTEST_REPEATED:
            raise BadDelay(
                f"every[{len(rungs) - 1}] is {every[-1]!r:.100}: the last delay repeats, so give 0.1 s or more."
            )
        deadline = to_duration(until, what="until")
        if not deadline:
            raise BadDelay("until is 0: give the time after which the poll gives up.")
        return cls(rungs, deadline)

    def delay(self, polls: int) -> timedelta:
        """Return the delay after this poll, counted from 0. The last delay repeats."""
        return self.rungs[min(polls, len(self.rungs) - 1)]

    def deadline_ms(self, scheduled_ms: int) -> int:
        """Return when a job that was scheduled at this time gives up; both in ms since 1970."""
        return scheduled_ms + self.until // timedelta(milliseconds=1)
