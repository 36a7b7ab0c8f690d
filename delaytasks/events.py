"""Reading events by the time they happened, which no index knows: their ids grow with it."""

from collections.abc import Sequence
from typing import NamedTuple

from .counting import by_index, run


def first_events(using: str, moments_ms: Sequence[int]) -> list[int]:
    """For each moment the id of the first event from then on, and last of all the id that the next event may have.

    Ids grow with time and no index knows the time, so this is a binary search over the ids.
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
    found = run(using, sql, params)
    return [*(low for low, _ in found), found[0][1]]


def event_ms(using: str, after: int) -> int | None:
    """When the first event behind this id happened; None if there is none."""
    found = run(using, "SELECT done_ms FROM delaytasks_jobevent WHERE id > %s ORDER BY id LIMIT 1", [after])
    return found[0][0] if found else None


class Happened(NamedTuple):
    """Events of one topic in one minute with one outcome, about as late as each other."""

    topic: str
    minute: int  # since 1970
    outcome: str
    late_ms: int | None  # to two digits, cut; None if they do not say how late a due job was begun
    number: int
    worst_ms: int | None


def happened(using: str, after: int, up_to: int, limit: int) -> tuple[list[Happened], int]:
    """The newest `limit` events with after < id <= up_to, grouped; and the id up to which they were not read.

    How late tells the first attempt: a later one may have waited until the one before it gave up.
    """
    with by_index(using):
        rows = run(using, happened_sql(limit), [after, up_to])
    read = sum(row[4] for row in rows)
    rest = after if read < limit else min(row[6] for row in rows) - 1
    return [Happened(*row[:6]) for row in rows if row[0] is not None], rest


def happened_sql(limit: int) -> str:
    steps = [f"WHEN late < {10**n} THEN late / {10 ** (n - 2)} * {10 ** (n - 2)}" for n in range(2, 10)]
    return f"""
        SELECT (SELECT topic FROM delaytasks_job WHERE id = job_id) AS of_topic, done_ms / 60000 AS minute, outcome,
            CASE WHEN late IS NULL THEN NULL {" ".join(steps)} ELSE 1000000000 END AS about,
            count(*), max(late), min(event_id)
        FROM (
            SELECT id AS event_id, job_id, outcome, done_ms, CASE WHEN attempt = 1 THEN reserved_ms - due_ms END AS late
            FROM delaytasks_jobevent WHERE id > %s AND id <= %s ORDER BY id DESC LIMIT {limit}) AS newest
        GROUP BY 1, 2, 3, 4"""
