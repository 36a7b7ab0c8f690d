"""Delay levels: numbered delays, as in message brokers such as RocketMQ."""

import bisect
from collections.abc import Iterator
from datetime import timedelta

from ..exceptions import BadDelay
from .durations import Duration, to_duration

NAMED = {  # RocketMQ: the default of messageDelayLevel
    "rocketmq": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
}


class Levels:
    """Delays by level, counted from 1. Made by levels().

    LEVELS[3]             the delay of level 3, a timedelta
    LEVELS.round_up(17)   the shortest delay of a level that is 17 seconds or more
    LEVELS.level(17)      the number of that level

    len() is the number of levels; iteration yields their delays.
    """

    def __init__(self, text: str) -> None:
        self._delays = [to_duration(word, what=f"level {n}") for n, word in enumerate(text.split(), 1)]
        if not self._delays:
            raise BadDelay("levels is empty: give delays separated by spaces, such as '1s 5s 10s', or 'rocketmq'.")
        for number, (lower, higher) in enumerate(zip(self._delays, self._delays[1:], strict=False), 2):
            if lower >= higher:
                raise BadDelay(f"level {number} is {higher}, and level {number - 1} is {lower}: the levels must grow.")

    def __getitem__(self, level: int) -> timedelta:
        """Return the delay of a level. Raises BadDelay for a level that does not exist."""
        if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= len(self):
            raise BadDelay(f"There is no level {level!r:.100}: the levels are 1 to {len(self)}.")
        return self._delays[level - 1]

    def __len__(self) -> int:
        return len(self._delays)

    def __iter__(self) -> Iterator[timedelta]:
        return iter(self._delays)

    def __repr__(self) -> str:
        return f"<Levels 1 to {len(self)}: {', '.join(map(str, self))}>"

    def level(self, delay: Duration) -> int:
        """Return the lowest level whose delay is at least `delay`. Raises BadDelay if all levels are shorter."""
        wanted = to_duration(delay, what="delay")
        found = bisect.bisect_left(self._delays, wanted) + 1
        if found > len(self):
            raise BadDelay(
                f"delay is {wanted}, but the longest level is {self._delays[-1]}: give schedule() the delay itself."
            )
        return found

    def round_up(self, delay: Duration) -> timedelta:
        """Return the delay of level(delay). Raises BadDelay."""
        return self[self.level(delay)]


def levels(text: str) -> Levels:
    """Return numbered delay levels, as in message brokers.

        LEVELS = levels("rocketmq")             # or levels("1s 5s 10s 30s 1m 2m ... 1h 2h")
        schedule("order.close", key="order:1042", delay=LEVELS[16])                 # level 16: 30 minutes
        schedule("order.close", key="order:1042", delay=LEVELS.round_up("17m"))     # level 15: 20 minutes

    text   delays separated by spaces, each longer than the one before it, in the units ms, s, m, h and d; or
           "rocketmq", for the 18 levels of RocketMQ

    Levels are counted from 1. A level that does not exist raises BadDelay; RocketMQ takes its last level instead.

    Raises BadDelay.
    """
    if not isinstance(text, str):
        raise BadDelay(f"levels is {text!r:.100}: give a text such as '1s 5s 10s', or 'rocketmq'.")
    return Levels(NAMED.get(text.strip().lower(), text))
