"""The questions that a place where due jobs are looked for answers, and the words of the answers.

Two places exist: mirror.index.Mirror (Redis) and without_mirror.WithoutMirror (the database,
while Redis is off or down). One suite of tests runs against both.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

GONE = -1


class Entry(NamedTuple):
    id: int
    topic: str
    at_ms: int


class Settlement(NamedTuple):
    """Where an entry was seen and where it belongs; to_ms GONE removes it."""

    id: int
    topic: str
    seen_ms: int
    to_ms: int


class Promotion(NamedTuple):
    topics: set[str]  # that got ready jobs, or had some, if asked to look
    next_ms: int | None  # when there will be more
    full: bool  # a batch was full: there is more


class Handful(NamedTuple):
    """What was reserved. due_ms: when all of it is due; the mover may be a moment early, and then so is this."""

    ids: list[int]
    due_ms: int


class Call(enum.IntEnum):
    WOKEN = 0  # a runner that lingered goes on
    RING = 1  # ring a bell
    BUSY = 2  # all run slots are taken
    RUNG = 3  # a bell was rung a moment ago


class Places(Protocol):
    def add(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        """Enter jobs as delayed; how many were nowhere before. Never raises."""

    def settle(self, settlements: Iterable[Settlement]) -> int:
        """Move entries later, or remove them, where they still are as seen; how many were. Never raises."""

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the whole fleet. Never raises."""

    def promote_due(self, now_ms: int, topics: Sequence[str], *, look: bool = False) -> Promotion:
        """Make what is due ready, or will be in AHEAD_MS, one batch; `look` for ready jobs from before, too.

        Raises MirrorDown, as all that follow.
        """

    def reserve(self, topic: str, count: int, now_ms: int, until_ms: int) -> Handful | None:
        """The topic's oldest ready jobs; None: no index here, the claim looks by itself."""

    def ready_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """How many jobs are ready, for those of `topics` that have any (without a mirror: 1 for "some")."""

    def take_slot(self, topic: str, token: str, now_ms: int, until_ms: int, limit: int) -> bool:
        """Take or renew one of the topic's `limit` run slots; False if all are taken."""

    def free_slot(self, topic: str, token: str) -> None:
        """Give a run slot back."""

    def call_runner(self, topic: str, crew: str, now_ms: int, limit: int) -> Call:
        """Find somebody for the topic's ready jobs: of its crew, the runners that serve the same topics."""

    def linger(self, crew: str, token: str, now_ms: int, wait_ms: int) -> str | None:
        """Wait for a ready job of any of the crew's topics; its topic, or None if none came."""
