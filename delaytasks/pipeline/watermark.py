"""Up to which event's id nothing can be added any more: the safe end of what a stream reads.

Ids are handed out when a row is inserted, and rows become visible when their transactions commit, which is in any
order: who reads up to the greatest id that is there loses what commits later. docs/decisions/0014 has the proof of
what is done here instead.
"""

import contextlib
import time
from typing import Any

from .database import Database
from .lake import LakeError
from .streamed import ANEW

TABLE = "delaytasks_jobevent"
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 0.5  # between looks at those who are still there
MOST_WAITING = 64  # candidates; among more of them the one before the newest is forgotten
SEQUENCE = """
    SELECT CAST(CAST(seqrelid AS regclass) AS text), seqcache, seqincrement, pg_is_in_recovery()
    FROM pg_sequence WHERE seqrelid = CAST(pg_get_serial_sequence('{table}', 'id') AS regclass)"""
LAST = "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}"
LAST_SQLITE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '{table}'"
HOLDERS = """
    SELECT DISTINCT virtualtransaction FROM pg_locks
    WHERE locktype = 'relation' AND relation = CAST('{table}' AS regclass) AND mode = 'RowExclusiveLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
PREPARED = "-1/"  # how pg_locks names the holder of a transaction that is prepared for a two-phase commit


class NoWatermark(LakeError):
    """What an event's id means cannot be told on this database."""


class Settling:
    """Which ids are settled, from looks at the sequence and then at who may be inserting."""

    def __init__(self) -> None:
        self.settled = 0
        self.waiting: list[tuple[int, set[str]]] = []  # (id, those who may still insert one up to it), oldest first
        self._prepared: set[str] = set()

    def look(self, last: int, holders: set[str]) -> int:
        """The greatest id up to which everything is visible or will never be.

        last      the id that was handed out last; read first
        holders   who held the lock that an insert takes; read after it
        """
        prepared = {each for each in holders if each.startswith(PREPARED)}
        appeared = prepared - self._prepared  # until now perhaps under the name of one who is gone
        self._prepared = prepared
        still = [(each, (held & holders) | (appeared if any(_may_prepare(one) for one in held - holders) else set()))
                 for each, held in self.waiting]  # fmt: skip
        still.append((last, set(holders)))
        self.settled = max([self.settled, *(each for each, held in still if not held)])
        self.waiting = [(each, held) for each, held in still if held and each > self.settled]
        if len(self.waiting) > MOST_WAITING:
            del self.waiting[-2]
        return self.settled


def _may_prepare(holder: str) -> bool:
    return not holder.startswith(PREPARED)


class Watermark:
    """Asks a database, over one connection that stays open until close()."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._stack = contextlib.ExitStack()
        self._connection: Any = None
        self._settling = Settling()
        self._last = ""  # the question for the id that was handed out last
        self._wanted = 0  # as far as settled() would have come if nobody had been writing

    def settled(self, patience_seconds: float = 0.0, *, above: int = 0) -> int:
        """An id up to which nothing can be added, and which does not go back.

        patience_seconds   how long transactions that are open now are waited for
        above              an id that was read before

        Raises DatabaseAway, and NoWatermark: also when the sequence has not come so far, as ids would be used again.
        """
        deadline = time.monotonic() + patience_seconds
        wanted, found = self._look()
        self._wanted = wanted
        if wanted < above:
            raise NoWatermark(
                f"The stream has read up to event {above}, but {self.database} has handed out ids up to {wanted} only: "
                "it was set back, or is another one. " + ANEW
            )
        pause = SHORTEST_PAUSE_SECONDS
        while found < wanted and time.monotonic() + pause <= deadline:
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            _, found = self._look()
        return found

    @property
    def held_up(self) -> tuple[int, set[str]]:
        """Which id is the oldest that the last settled() waited for in vain, and for whom; (0, nobody) if for none."""
        oldest, holders = self._settling.waiting[0] if self._settling.waiting else (0, set())
        return (oldest, holders) if oldest <= self._wanted else (0, set())

    def newest(self, above: int, limit: int, upto: int) -> int:
        """The id of the `limit`th event above an id, or of the last one up to `upto`; `above` if there is none.

        They stay: the server could crash now and not hand these ids out again, whatever their transactions waited for.
        """
        mark = self.database.mark
        found = self._ask(
            f"SELECT max(id) FROM (SELECT id FROM {TABLE} WHERE id > {mark} AND id <= {mark} ORDER BY id LIMIT {mark})"
            " AS e",
            (above, upto, limit),
        )[0][0]
        if found is None:
            return above
        self.secure()
        return int(found)

    def secure(self) -> None:
        """Return when what can be seen now would be there after a crash, too."""
        if self.database.vendor == "postgresql":
            # A commit that did not wait for the disk is visible before it is safe. One that does wait takes the log
            # before it along, and to a standby as well where the server is set up so.
            with self.database.answering(), self._connection.transaction():
                self._connection.execute("SET LOCAL synchronous_commit = on")
                self._connection.execute("SELECT pg_logical_emit_message(true, 'delaytasks', '')")

    def close(self) -> None:
        self._connection = None
        self._stack.close()

    def _look(self) -> tuple[int, int]:
        if self._connection is None:
            self._open()
        last = self._ask(self._last)[0][0]
        if self.database.vendor == "sqlite":  # one writer: an id is committed before the next one is handed out
            return last, last
        holders = {row[0] for row in self._ask(HOLDERS.format(table=TABLE))}
        return last, self._settling.look(last, holders)

    def _open(self) -> None:
        self._connection = self._stack.enter_context(self.database.connect())
        self._settling = Settling()  # after a restart of the server names of transactions begin anew
        if self.database.vendor == "sqlite":
            self._last = LAST_SQLITE.format(table=TABLE)
            return
        self._connection.autocommit = True
        found = self._ask(SEQUENCE.format(table=TABLE))
        if not found:
            raise NoWatermark(f"{TABLE}.id of {self.database} has no sequence of its own: the stream cannot read it.")
        sequence, cache, step, standby = found[0]
        if standby:
            raise NoWatermark(
                f"{self.database} is a standby, where it cannot be seen who is writing: name the primary server."
            )
        if (cache, step) != (1, 1):
            raise NoWatermark(
                f"The sequence {sequence} hands out ids {cache} at once in steps of {step}, so an older id may come "
                f"later: ALTER SEQUENCE {sequence} CACHE 1 INCREMENT 1, and let all writers connect anew."
            )
        self._last = LAST.format(sequence=sequence)

    def _ask(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self.database.answering():
            rows: list[tuple[Any, ...]] = self._connection.execute(sql, params).fetchall()
        return rows
