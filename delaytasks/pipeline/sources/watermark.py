"""Watermark of the event ids: an id up to which no event can be added any more. The stream reads up to this id.

Ids are assigned at insert, but rows become visible at commit, in any order. Reading up to the greatest visible id would
miss events with lower ids that commit later. docs/decisions/0014 proves the method used here.
"""

import contextlib
import time
from typing import Any

from ..tables.lake import LakeError
from ..tables.stream_tables import RESTART
from .database import Database

TABLE = "delaytasks_jobevent"
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 0.5  # between two polls for open transactions
MAX_CANDIDATES = 64  # of SettledIds; if there are more, the second newest is dropped
SEQUENCE = """
    SELECT CAST(CAST(seqrelid AS regclass) AS text), seqcache, seqincrement, pg_is_in_recovery()
    FROM pg_sequence WHERE seqrelid = CAST(pg_get_serial_sequence('{table}', 'id') AS regclass)"""
LAST_ID = "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}"
LAST_ID_SQLITE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '{table}'"
HOLDERS = """
    SELECT DISTINCT virtualtransaction FROM pg_locks
    WHERE locktype = 'relation' AND relation = CAST('{table}' AS regclass) AND mode = 'RowExclusiveLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
PREPARED = "-1/"  # prefix of a prepared transaction's (two-phase commit) virtualtransaction in pg_locks


class NoWatermark(LakeError):
    """No watermark can be computed for the event ids of this database."""


class SettledIds:
    """Computes the settled ids: every event up to them is visible or will never exist."""

    def __init__(self) -> None:
        self.settled = 0
        # (id, transactions that may still add events with ids up to it), oldest first
        self.candidates: list[tuple[int, set[str]]] = []
        self._prepared: set[str] = set()

    def advance(self, last: int, holders: set[str]) -> int:
        """Process an observation of the database. Return the greatest settled id.

        last      last id that was assigned. The caller reads it before the holders
        holders   transactions that hold the lock of an insert into the event table
        """
        prepared = {each for each in holders if each.startswith(PREPARED)}
        new_prepared = prepared - self._prepared  # each may have been a holder under another name before
        self._prepared = prepared
        candidates = [(event_id, _remaining(blockers, holders, new_prepared)) for event_id, blockers in self.candidates]
        candidates.append((last, set(holders)))
        self.settled = max([self.settled, *(event_id for event_id, blockers in candidates if not blockers)])
        self.candidates = [pair for pair in candidates if pair[1] and pair[0] > self.settled]
        if len(self.candidates) > MAX_CANDIDATES:
            del self.candidates[-2]
        return self.settled


def _remaining(blockers: set[str], holders: set[str], new_prepared: set[str]) -> set[str]:
    """Return the blockers that may still add events.

    If a blocker does not hold the lock any more, it may have become a prepared transaction, which has another name. So
    all new prepared transactions then take its place.
    """
    gone = blockers - holders
    return (blockers & holders) | (new_prepared if any(not each.startswith(PREPARED) for each in gone) else set())


class Watermark:
    """Computes the watermark over one connection, which stays open until close()."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._stack = contextlib.ExitStack()
        self._connection: Any = None
        self._settling = SettledIds()
        self._last_id_query = ""
        self._last_id = 0  # last assigned id at the last call of settled()

    def settled(self, wait_seconds: float = 0.0, *, above: int = 0) -> int:
        """Return the watermark: an id up to which no event can be added. It never decreases.

        wait_seconds   how long to wait for open transactions
        above          id of the last event that was read; 0: none

        Raises DatabaseUnavailable. Raises NoWatermark if no watermark can be computed, or if the last assigned id is
        less than `above`: the database would assign the ids between them again.
        """
        deadline = time.monotonic() + wait_seconds
        last, settled_id = self._poll()
        self._last_id = last
        if last < above:
            raise NoWatermark(
                f"The stream has read up to event {above}, but the last id in {self.database} is {last}: "
                "the database was restored to an earlier state, or is another one. " + RESTART
            )
        pause = SHORTEST_PAUSE_SECONDS
        while settled_id < last and time.monotonic() + pause <= deadline:
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            _, settled_id = self._poll()
        return settled_id

    @property
    def blocked(self) -> tuple[int, set[str]]:
        """The oldest id that is not settled, and the transactions that block it, as of the last call of settled().

        (0, set()) if all ids that were assigned at that call are settled.
        """
        oldest, holders = self._settling.candidates[0] if self._settling.candidates else (0, set())
        return (oldest, holders) if oldest <= self._last_id else (0, set())

    def newest(self, above: int, limit: int, end: int) -> int:
        """Return the greatest id of the first `limit` events with ids above `above` and up to `end`.

        Returns `above` if there are no such events. Otherwise makes the events durable before it returns: after a crash
        the server could otherwise assign their ids again.
        """
        placeholder = self.database.placeholder
        newest_id = self._query(
            f"SELECT max(id) FROM (SELECT id FROM {TABLE} WHERE id > {placeholder} AND id <= {placeholder} "
            f"ORDER BY id LIMIT {placeholder}) AS e",
            (above, end, limit),
        )[0][0]
        if newest_id is None:
            return above
        self.make_durable()
        return int(newest_id)

    def make_durable(self) -> None:
        """Wait until all commits that are visible now are durable, so that they would survive a crash of the server."""
        if self.database.vendor == "postgresql":
            # A commit with synchronous_commit = off is visible before it is durable. A synchronous commit also flushes
            # all earlier commits in the log; if the server is configured so, it waits for a standby as well.
            with self.database.answering(), self._connection.transaction():
                self._connection.execute("SET LOCAL synchronous_commit = on")
                self._connection.execute("SELECT pg_logical_emit_message(true, 'delaytasks', '')")

    def close(self) -> None:
        self._connection = None
        self._stack.close()

    def _poll(self) -> tuple[int, int]:
        if self._connection is None:
            self._open()
        last = self._query(self._last_id_query)[0][0]
        if self.database.vendor == "sqlite":  # as there is one writer, an id is committed before the next is assigned
            return last, last
        holders = {row[0] for row in self._query(HOLDERS.format(table=TABLE))}
        return last, self._settling.advance(last, holders)

    def _open(self) -> None:
        self._connection = self._stack.enter_context(self.database.connect())
        self._settling = SettledIds()  # after a restart of the server, transactions get the same names again
        if self.database.vendor == "sqlite":
            self._last_id_query = LAST_ID_SQLITE.format(table=TABLE)
            return
        self._connection.autocommit = True
        rows = self._query(SEQUENCE.format(table=TABLE))
        if not rows:
            raise NoWatermark(f"{TABLE}.id in {self.database} has no sequence of its own: the stream cannot read it.")
        sequence, cache, step, standby = rows[0]
        if standby:
            raise NoWatermark(
                f"{self.database} is a standby, which does not show open write transactions: use the primary server."
            )
        if (cache, step) != (1, 1):
            raise NoWatermark(
                f"The sequence {sequence} assigns {cache} ids at once in steps of {step}, so a lower id may appear "
                f"later: run ALTER SEQUENCE {sequence} CACHE 1 INCREMENT 1 and let all writers reconnect."
            )
        self._last_id_query = LAST_ID.format(sequence=sequence)

    def _query(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self.database.answering():
            rows: list[tuple[Any, ...]] = self._connection.execute(sql, params).fetchall()
        return rows
