"""Find and lock jobs by id, or by topic and key."""

from collections.abc import Sequence
from typing import Any

from .. import dialects
from ..lookups import lease_ms
from .rows import DELAYED, RESERVED, AttemptRow, Claimed, JobRow, with_body


def find_live(using: str, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], JobRow]:
    """Return the live jobs of these pairs (topic, key), as {(topic, key): row}."""
    condition, params = is_live(dialects.get_dialect(using), pairs)
    rows = _find(using, f"{condition} ORDER BY id", params)
    return {(row.topic, row.key): row for row in rows}


def is_live(d: dialects.Dialect, pairs: Sequence[tuple[str, str]]) -> tuple[str, list[Any]]:
    """Return the SQL of the condition that a job is live and one of these pairs (topic, key), and its parameters.

    Each pair is looked up in the index of live keys. With a join of many pairs, PostgreSQL would read the whole table.
    If it saw the values of a single pair whose topic is newer than its statistics, it would read all live jobs of that
    topic.
    """
    table, params = d.table(["text", "text"], pairs, hidden=True)
    ids = f"""
        WITH pair (topic, key) AS ({table})
        SELECT (SELECT id FROM delaytasks_job AS live
                WHERE ended_at IS NULL AND live.topic = pair.topic AND live.key = pair.key) FROM pair"""
    return d.among_results("id", ids), params


def find_by_id(using: str, job_id: int) -> JobRow | None:
    """Return the job with this id, live or ended, or None if there is none."""
    return next(iter(_find(using, "id = %s", [job_id])), None)


def lock_delayed(using: str, job_id: int) -> JobRow | None:
    """Lock and return the job if it is delayed or ready, otherwise return None. Never waits for a reserved job."""
    where = f"id = %s AND state = {DELAYED} {dialects.get_dialect(using).lock}"
    return next(iter(_find(using, where, [job_id])), None)


def lock_live(using: str, ids: Sequence[int]) -> list[JobRow]:
    """Lock those of these jobs that are live, and return them in id order. Waits for locked rows."""
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    return _find(using, f"{condition} AND state IN ({DELAYED}, {RESERVED}) ORDER BY id {d.lock}", params)


def lock_in_state(using: str, ids: Sequence[int], state: int, only: str = "", *, wait: bool = True) -> list[JobRow]:
    """Lock the jobs that are in this state, and return them in id order.

    only   SQL of a further condition, such as "AND due_at > ..."
    wait   False: skip jobs that other transactions have locked, if the database has row locks
    """
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    return _find(
        using, f"{condition} AND state = {state} {only} ORDER BY id {d.lock if wait else d.skip_locked}", params
    )


def find_latest(using: str, topic: str, key: str) -> JobRow | None:
    """Return the live job of (topic, key), otherwise the newest ended one, or None if there is neither."""
    live = find_live(using, [(topic, key)]).get((topic, key))
    if live is not None:
        return live
    return next(iter(_find(using, "topic = %s AND key = %s ORDER BY id DESC LIMIT 1", [topic, key])), None)


def _find(using: str, where: str, params: list[Any]) -> list[JobRow]:
    d = dialects.get_dialect(using)
    sql = (
        f"SELECT id, topic, key, state, {d.to_ms('due_at')}, attempt, again, priority FROM delaytasks_job WHERE {where}"
    )
    return [JobRow._make((*row[:-2], bool(row[-2]), row[-1])) for row in dialects.run(using, sql, params)]


def find_attempt(using: str, job_id: int) -> AttemptRow | None:
    """Return the job with its latest attempt, or None if there is no such job."""
    rows = dialects.run(using, attempts_sql(dialects.get_dialect(using), "id = %s"), [job_id])
    return to_attempt(rows[0]) if rows else None


def attempts_sql(d: dialects.Dialect, condition: str) -> str:
    """Return the query of jobs with their latest attempts, for to_attempt()."""
    return f"""
        SELECT id, topic, key, body, attempt, failures, ttr_ms, {d.to_ms("due_at")}, {d.to_ms("created_at")},
            coalesce({d.to_ms("reserved_at")}, 0), coalesce({lease_ms(d)}, 0), subject_label, subject_pk,
            expires_ms, polls, {d.to_ms("replaced_at")}, trace_context, priority, state, worker, {d.to_ms(d.now)}
        FROM delaytasks_job WHERE {condition}"""


def to_attempt(row: Sequence[Any]) -> AttemptRow:
    *claimed, state, worker, now_ms = row
    return AttemptRow(with_body(Claimed(*claimed)), state, worker, now_ms)
