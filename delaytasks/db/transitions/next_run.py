"""The next run of a job that was scheduled again while its handler was running.

The columns again_… of the running job store the terms of its next run: due time, TTR, expiry and body.
"""

from collections.abc import Sequence

from ...states import Outcome
from .. import dialects
from .rows import DELAYED, RESERVED, StoredJob

# For RETURNING, where SQLite 3.40 judges by the first column, the id, whether a column can be NULL.
HAS_NEXT_RUN = "coalesce(again_ttr_ms, 0) > 0"
_NEXT_RUN = ("again_due_at", "again_ttr_ms", "again_expires_ms", "again_body")


def clear_next_run_sql() -> str:
    """Return the SQL assignments that remove a next run."""
    return "again = false, " + ", ".join(f"{column} = NULL" for column in _NEXT_RUN)


def withdraw_next_runs(using: str, ids: Sequence[int]) -> set[int]:
    """reserved → reserved: remove the next runs of running jobs. Return the ids of the jobs that had one."""
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    sql = f"""
        UPDATE delaytasks_job SET {clear_next_run_sql()}
        WHERE id IN (SELECT id FROM delaytasks_job WHERE {condition} AND again AND state = {RESERVED}
            ORDER BY id {d.lock}) AND again AND state = {RESERVED}
        RETURNING id"""
    return {row[0] for row in dialects.run(using, sql, params)}


def insert_next_runs(using: str, ids: Sequence[int]) -> list[StoredJob]:
    """Insert the next runs of these jobs, which have ended and had been scheduled again. Return the new jobs.

    A next run keeps its due time; a past one becomes now. No job is inserted for a key that is live again.
    """
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    sql = f"""
        INSERT INTO delaytasks_job
            (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error,
             subject_label, subject_pk, declared_due, expires_ms, trace_context, priority, producer)
        SELECT topic, key, {DELAYED}, {d.greatest}(again_due_at, {d.now}), again_ttr_ms, again_body, {d.now}, 0, 0,
            '', '', subject_label, subject_pk, declared_due, again_expires_ms, trace_context, priority,
            producer
        FROM delaytasks_job
        WHERE {condition} AND ended_at IS NOT NULL AND again_due_at IS NOT NULL
        ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms("created_at")}, priority"""
    return list(map(StoredJob._make, dialects.run(using, sql, params)))


def ignored_next_runs_sql(using: str) -> str:
    """Return the query of the next runs for settle_ignored_next_runs(): (job's id, whether the next run is dropped)."""
    d = dialects.get_dialect(using)
    return f"""
        SELECT id, EXISTS (SELECT 1 FROM delaytasks_job AS newer WHERE newer.topic = job.topic AND newer.key = job.key
                AND newer.id > job.id)
            OR EXISTS (SELECT 1 FROM delaytasks_jobevent AS event
                WHERE event.job_id = job.id AND outcome = '{Outcome.CANCELLED}')
        FROM delaytasks_job AS job WHERE again AND state <> {RESERVED}
        ORDER BY id LIMIT %s {d.skip_locked and "FOR UPDATE OF job SKIP LOCKED"}"""


def settle_ignored_next_runs(using: str, limit: int) -> tuple[list[StoredJob], list[int]]:
    """Settle next runs that workers of an older version ignored when they ended the attempts.

    A waiting job gets the terms of its next run, at the earlier of both due times. Return (these jobs, the ids of ended
    jobs for insert_next_runs()). If a job was cancelled afterwards or its key has a newer job, its next run is dropped.
    """
    d = dialects.get_dialect(using)
    rows = dialects.run(using, ignored_next_runs_sql(using), [limit])
    if not rows:
        return [], []
    condition, params = d.among("id", [row[0] for row in rows if row[1]])
    dialects.run(using, f"UPDATE delaytasks_job SET {clear_next_run_sql()} WHERE {condition}", params)
    condition, params = d.among("id", [row[0] for row in rows if not row[1]])
    merge = f"again AND state = {DELAYED}"
    sql = f"""
        UPDATE delaytasks_job SET failures = CASE WHEN {merge} THEN 0 ELSE failures END,
            due_at = CASE WHEN {merge} THEN {d.least}(due_at, {d.greatest}(again_due_at, {d.now})) ELSE due_at END,
            {next_run(d, merge)}
        WHERE {condition}
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms(d.now)}, priority, state"""
    settled = dialects.run(using, sql, params)
    waiting = [StoredJob._make(row[:6]) for row in settled if row[6] == DELAYED]
    return waiting, [row[0] for row in settled if row[6] != DELAYED]


def next_run(d: dialects.Dialect, merge: str, polls: str = "polls") -> str:
    """Return the SQL of the columns of the next run, for an UPDATE that ends an attempt.

    merge   SQL of the condition that the job stays live and was scheduled again. It then gets the newer terms, as if it
            was replaced. A job that ends keeps them for insert_next_runs()
    polls   SQL of the number of polls of a job that does not get newer terms
    """
    newer = {
        "ttr_ms": ("again_ttr_ms", "ttr_ms"), "body": ("again_body", "body"),
        "expires_ms": ("again_expires_ms", "expires_ms"), "polls": ("0", polls),
        "replaced_at": (d.now, "replaced_at"),
    }  # fmt: skip
    changes = [f"{column} = CASE WHEN {merge} THEN {new} ELSE {old} END" for column, (new, old) in newer.items()]
    changes += [f"{column} = CASE WHEN again AND NOT ({merge}) THEN {column} END" for column in _NEXT_RUN]
    return ", ".join([*changes, "again = false"])
