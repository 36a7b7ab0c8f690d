"""Interface of the due-job index.

Two implementations: mirror.redis.index.Mirror, and mirror.database.DatabaseIndex if Redis is down or not configured.
One test suite runs against both.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

# A run_topic message that has started no runner by then is sent again. Each wait is twice as long, up to GUARD_TICK_MS.
RESEND_MS = 100
GONE = -1  # Settlement.to_ms that removes the entry


class Entry(NamedTuple):
    id: int
    topic: str
    at_ms: int
    priority: int = 0  # of the job, 0 to 9; ignored when an entry is removed


class Settlement(NamedTuple):
    """A compare-and-set of one entry's time, from seen_ms to to_ms. If to_ms is GONE, the entry is removed.

    The entry keeps its priority.
    """

    id: int
    topic: str
    seen_ms: int
    to_ms: int


class Promotion(NamedTuple):
    topics: set[str]  # topics with new ready jobs; with list_ready, also those that already had ready jobs
    next_ms: int | None  # when the next delayed job is to be made ready, in ms since 1970; None if there is none
    full: bool  # a batch was full: more jobs may be due


class Reservation(NamedTuple):
    """Reserved jobs.

    due_ms      when all of them are due; may lie in the future, because the mover makes jobs ready a moment early
    more        more jobs of the topic are ready
    entries_ms  {id: time of its entry before}; empty without a mirror. A job that is not claimed gets it back: its
                place among the ready jobs depends on it
    """

    ids: list[int]
    due_ms: int
    more: bool = False
    entries_ms: Mapping[int, int] = {}


class CallResult(enum.IntEnum):
    """Result of call_runner()."""

    WOKEN = 0  # a waiting runner was woken
    SEND = 1  # the caller must send a run_topic message
    BUSY = 2  # all run slots are taken
    SENT = 3  # a message was sent a moment ago: send none


class DueIndex(Protocol):
    def add(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        """Add entries for delayed jobs. Return how many jobs had no entry before. Never raises.

        mark   True if a live job was changed: a settle() that saw the former time then fails (add.lua)
        """

    def settle(self, settlements: Iterable[Settlement]) -> int:
        """Move or remove each entry whose time is still `seen_ms`. Return how many changed. Never raises."""

    def postpone(self, settlements: Iterable[Settlement]) -> None:
        """Move, as settle(), the entries of reserved jobs that could not be claimed or ended. Never raises.

        Without a mirror, this index leaves the jobs out until then.
        """

    def count(self, name: str, by: int = 1) -> None:
        """Add `by` to a counter shared by all processes. Never raises."""

    def promote_due(self, now_ms: int, topics: Sequence[str], *, list_ready: bool = False) -> Promotion:
        """Make ready a batch of the jobs that are due within AHEAD_MS of `now_ms`.

        list_ready   also return those of `topics` that had ready jobs before

        Raises MirrorDown, as do the methods below unless they say otherwise.
        """

    def reserve(self, topic: str, count: int, now_ms: int, until_ms: int) -> Reservation:
        """Reserve up to `count` of the topic's ready jobs until `until_ms`; then they are ready again.

        Jobs are taken in the order of their due time minus AGE_MS for each level of priority. Without a mirror, the
        jobs are only read, so several callers may get the same jobs.
        """

    def ready_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return {topic: number of ready jobs} for the topics that have any. Without a mirror, each number is 1."""

    def take_slot(
        self, topic: str, token: str, now_ms: int, until_ms: int, limit: int, *, message_ms: int | None = None
    ) -> bool:
        """Take or renew one of the topic's `limit` run slots. Return False if all are taken.

        message_ms   when the run_topic message was sent that has started this run; None: it was woken. A run that
                     answers the last message lets call_runner() send the next one at once
        """

    def is_superseded(self, topic: str, message_ms: int) -> bool:
        """Return whether a run_topic message was sent later than this one and has started no runner yet."""

    def free_slot(self, topic: str, token: str) -> None:
        """Release a run slot. Never raises MirrorDown."""

    def slot_tokens(self, topic: str) -> list[str]:
        """Return the tokens of the topic's run slots that are taken."""

    def call_runner(self, topic: str, runner_group: str, now_ms: int, limit: int) -> CallResult:
        """Wake a waiting runner for the topic's ready jobs, or return whether the caller must send a message.

        runner_group   name of the group of runners that serve the same topics
        """

    def wait_for_ready(self, runner_group: str, token: str, now_ms: int, wait_ms: int) -> str | None:
        """Wait for a ready job of any topic of the runner group. Return its topic, or None if there is none in time."""
