"""Read-only queries for the guard, for claims, and for running jobs without a mirror.

The queries that return pages use the cursor (due_ms, id), in the order of the index of live rows.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..states import AGE_MS, MAX_PRIORITY, State
from . import dialects

DELAYED, RESERVED = int(State.DELAYED), int(State.RESERVED)


class JobSnapshot(NamedTuple):
    """The columns of a job that decide its entry in the mirror."""

    id: int
    topic: str
    state: int
    attempt: int
    failures: int
    due_ms: int
    lease_ms: int | None
    reserved_ms: int | None
    now_ms: int
    priority: int = 0

    @property
    def lease_is_over(self) -> bool:
        return self.state == RESERVED and (self.lease_ms or 0) <= self.now_ms

    @property
    def entry_ms(self) -> int:
        """The score of the job's entry in the mirror: the end of its lease while it is held, otherwise its due time."""
        held = self.state == RESERVED and self.lease_ms is not None
        return self.lease_ms or 0 if held else self.due_ms


_TOUCH = """FROM delaytasks_touch AS touch WHERE touch.job_id = delaytasks_job.id
            AND touch.attempt = delaytasks_job.attempt AND touch.lease_until > """


def lease_is_over(d: dialects.Dialect) -> str:
    """Return the SQL of the condition that a reserved job's lease, and any extension in models.Touch, has ended."""
    return f"(lease_until <= {d.now} AND NOT EXISTS (SELECT 1 {_TOUCH} {d.now}))"


def lease_ms(d: dialects.Dialect) -> str:
    """Return the SQL of the end of a job's lease, or of its extension in models.Touch, in ms since 1970."""
    touched = f"(SELECT {d.to_ms('touch.lease_until')} {_TOUCH} delaytasks_job.lease_until)"
    return f"coalesce({touched}, {d.to_ms('lease_until')})"


def _select(d: dialects.Dialect) -> str:
    return f"""SELECT id, topic, state, attempt, failures, {d.to_ms("due_at")},
        {lease_ms(d)}, {d.to_ms("reserved_at")}, {d.to_ms(d.now)}, priority
        FROM delaytasks_job"""


def get_snapshots(using: str, ids: Sequence[int]) -> list[JobSnapshot]:
    """Return snapshots of these jobs, live or ended. Unknown ids are left out."""
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    return [JobSnapshot(*row) for row in dialects.run(using, f"{_select(d)} WHERE {condition}", params)]


def overdue_sql(using: str) -> str:
    d = dialects.get_dialect(using)
    return f"""{_select(d)} WHERE ended_at IS NULL AND due_at <= {d.plus_ms(d.now, "%s")} AND (due_at, id) > (%s, %s)
        AND (state = {DELAYED} OR {lease_is_over(d)}) ORDER BY due_at, id LIMIT %s"""


def overdue(using: str, *, age_ms: int, after: tuple[int, int], limit: int) -> list[JobSnapshot]:
    """Return live jobs that have been due for at least `age_ms` and are not held, after the cursor (due_ms, id)."""
    due_ms, job_id = after
    params = [-age_ms, dialects.get_dialect(using).moment(due_ms), job_id, limit]
    return [JobSnapshot(*row) for row in dialects.run(using, overdue_sql(using), params)]


def window_sql(using: str) -> str:
    select = _select(dialects.get_dialect(using))
    return f"""{select} WHERE ended_at IS NULL AND due_at <= %s AND (due_at, id) > (%s, %s)
        ORDER BY due_at, id LIMIT %s"""


def window(using: str, *, until_ms: int, after: tuple[int, int], limit: int) -> list[JobSnapshot]:
    """Return the live jobs due up to `until_ms`, after the cursor (due_ms, id), oldest first, for the mirror."""
    d = dialects.get_dialect(using)
    params = [d.moment(until_ms), d.moment(after[0]), after[1], limit]
    return [JobSnapshot(*row) for row in dialects.run(using, window_sql(using), params)]


def expired_sql(using: str) -> str:
    d = dialects.get_dialect(using)
    return f"""{_select(d)} WHERE ended_at IS NULL AND due_at <= {d.now} AND (due_at, id) > (%s, %s)
        AND state = {RESERVED} AND {lease_is_over(d)} ORDER BY due_at, id LIMIT %s"""


def expired(using: str, *, after: tuple[int, int], limit: int) -> list[JobSnapshot]:
    """Return reserved jobs whose lease has ended, after the cursor (due_ms, id).

    The query uses the index by due time, because the due time of every reserved job has passed.
    """
    params = [dialects.get_dialect(using).moment(after[0]), after[1], limit]
    return [JobSnapshot(*row) for row in dialects.run(using, expired_sql(using), params)]


def held_by_sql(using: str) -> str:
    d = dialects.get_dialect(using)
    return f"""{_select(d)} WHERE ended_at IS NULL AND due_at <= {d.now} AND (due_at, id) > (%s, %s)
        AND state = {RESERVED} AND (worker = %s OR substr(worker, 1, %s) = %s) ORDER BY due_at, id LIMIT %s"""


def holding_processes(using: str, prefix: str) -> list[str]:
    """Return the names of the processes that hold jobs and whose names begin with `prefix`."""
    d = dialects.get_dialect(using)
    sql = f"""SELECT DISTINCT worker FROM delaytasks_job WHERE ended_at IS NULL AND due_at <= {d.now}
        AND state = {RESERVED} AND substr(worker, 1, %s) = %s"""
    return [row[0] for row in dialects.run(using, sql, [len(prefix), prefix])]


def held_by(using: str, prefix: str, *, after: tuple[int, int], limit: int) -> list[JobSnapshot]:
    """Return the jobs that a process holds, after the cursor (due_ms, id).

    prefix   the name of a process, or that of a worker with "/", for all its processes
    """
    beginning = prefix if prefix.endswith("/") else f"{prefix}."  # its other threads
    params = [dialects.get_dialect(using).moment(after[0]), after[1], prefix, len(beginning), beginning, limit]
    return [JobSnapshot(*row) for row in dialects.run(using, held_by_sql(using), params)]


def run_order(d: dialects.Dialect) -> str:
    """Return the SQL of the order in which due jobs are run: by age, where each level of priority counts AGE_MS."""
    return f"{d.plus_ms('due_at', f'-priority * {AGE_MS}')}, id"


def ready_ids_sql(using: str) -> tuple[str, int]:
    """Return a query for a topic's first ready jobs in run order, and how often its parameters (topic, limit) repeat.

    The query merges the oldest jobs with the oldest jobs of each higher priority, and reads each from the beginning of
    an index. A sort by priority would read all jobs that are due.
    """
    d = dialects.get_dialect(using)
    ready = f"""SELECT id, due_at, priority FROM delaytasks_job WHERE ended_at IS NULL AND topic = %s
        AND due_at <= {d.now} AND (state = {DELAYED} OR {lease_is_over(d)})"""
    oldest = "ORDER BY due_at, id LIMIT %s"
    of_level = f"{ready} AND priority > 0 AND priority = {{}} {oldest}"
    heads = [f"{ready} {oldest}", *d.for_each(range(1, MAX_PRIORITY + 1), of_level)]
    union = " UNION ".join(f"SELECT * FROM ({head}) AS head{i}" for i, head in enumerate(heads))
    return f"SELECT id FROM ({union}) AS head ORDER BY {run_order(d)}", len(heads)


def ready_ids(using: str, topic: str, *, limit: int, without: Collection[int] = ()) -> list[int]:
    """Return the ids of the topic's first ready jobs in run order, without locking them. For claims without a mirror.

    Includes jobs whose lease has ended: the caller cannot claim them and takes them back.
    """
    sql, times = ready_ids_sql(using)
    found = dialects.run(using, sql, [topic, limit + len(without)] * times)
    return [row[0] for row in found if row[0] not in without][:limit]


def ready_topic_sql(using: str) -> str:
    d = dialects.get_dialect(using)
    return f"""SELECT 1 FROM delaytasks_job WHERE ended_at IS NULL AND topic = %s AND due_at <= {d.now}
        AND (state = {DELAYED} OR {lease_is_over(d)}) ORDER BY due_at LIMIT 1"""


def has_ready(using: str, topic: str) -> bool:
    """Return whether the topic has a due job that no attempt holds."""
    return bool(dialects.run(using, ready_topic_sql(using), [topic]))


def next_due_sql(using: str) -> str:
    d = dialects.get_dialect(using)
    return f"""SELECT {d.to_ms("due_at")} FROM delaytasks_job
        WHERE ended_at IS NULL AND due_at > {d.now} ORDER BY due_at, id LIMIT 1"""


def next_due_ms(using: str) -> int | None:
    """Return the next due time after now, in ms since 1970, or None if no live job is due later."""
    rows = dialects.run(using, next_due_sql(using), [])
    return rows[0][0] if rows else None
