"""Read events by time. No index holds the time of an event, but ids grow with time."""

from collections.abc import Sequence
from typing import NamedTuple

from ..db.counts import by_index, run


def first_events(using: str, moments_ms: Sequence[int]) -> list[int]:
    """Return the id of the first event at or after each moment, followed by the first id not used yet.

    Uses a binary search over the ids. The moments are in milliseconds since 1970.
    """
    values = ", ".join(["(%s, %s)"] * len(moments_ms))
    params = [value for pair in enumerate(moments_ms) for value in pair]
    before = "(SELECT done_ms FROM delaytasks_jobevent WHERE id >= (low + high) / 2 ORDER BY id LIMIT 1) < moment"
    sql = f"""
        WITH RECURSIVE wanted (number, moment) AS (VALUES {values}),
        search (number, moment, low, high, top) AS (
            SELECT number, moment, low, high, high FROM wanted, (
                SELECT coalesce(min(id), 1) AS low, coalesce(max(id), 0) + 1 AS high FROM delaytasks_jobevent) AS ends
            UNION ALL
            SELECT number, moment,
                CASE WHEN {before} THEN (low + high) / 2 + 1 ELSE low END,
                CASE WHEN {before} THEN high ELSE (low + high) / 2 END, top
            FROM search WHERE low < high)
        SELECT low, top FROM search WHERE low >= high ORDER BY number"""
    rows = run(using, sql, params)
    return [*(low for low, _ in rows), rows[0][1]]


def event_ms(using: str, after: int) -> int | None:
    """Return the time of the first event with id > `after`, in ms since 1970, or None if there is no such event."""
    rows = run(using, "SELECT done_ms FROM delaytasks_jobevent WHERE id > %s ORDER BY id LIMIT 1", [after])
    return rows[0][0] if rows else None


class EventGroup(NamedTuple):
    """Events with the same topic, minute, outcome and lateness (cut to two digits)."""

    topic: str
    minute: int  # since 1970
    outcome: str
    late_ms: int | None  # first attempts: start minus due time, cut to two digits; None for other events
    total: int  # events
    worst_ms: int | None  # the largest lateness in the group, not cut


def newest_events(using: str, after: int, up_to: int, limit: int) -> tuple[list[EventGroup], int]:
    """Return the newest `limit` events with after < id <= up_to, grouped, and the largest id not read.

    Only first attempts have a lateness: a later attempt may have waited until the lease of the one before it ended.
    """
    with by_index(using):
        rows = run(using, newest_events_sql(limit), [after, up_to])
    total = sum(row[4] for row in rows)
    unread_up_to = after if total < limit else min(row[6] for row in rows) - 1
    return [EventGroup(*row[:6]) for row in rows if row[0] is not None], unread_up_to


def newest_events_sql(limit: int) -> str:
    steps = [f"WHEN late < {10**n} THEN late / {10 ** (n - 2)} * {10 ** (n - 2)}" for n in range(2, 10)]
    return f"""
        SELECT (SELECT topic FROM delaytasks_job WHERE id = job_id) AS of_topic, done_ms / 60000 AS minute, outcome,
            CASE WHEN late IS NULL THEN NULL {" ".join(steps)} ELSE 1000000000 END AS about,
            count(*), max(late), min(event_id)
        FROM (
            SELECT id AS event_id, job_id, outcome, done_ms, CASE WHEN attempt = 1 THEN reserved_ms - due_ms END AS late
            FROM delaytasks_jobevent WHERE id > %s AND id <= %s ORDER BY id DESC LIMIT {limit}) AS newest
        GROUP BY 1, 2, 3, 4"""
