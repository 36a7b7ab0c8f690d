"""SQL of the retention: pages of ended jobs and of events without a job, and their deletion.

No index has `ended_at`, because an ending would then write one more index entry. The pages therefore follow the
primary key, and each reads a bounded number of rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import transaction

from . import dialects
from .retries import retry_conflicts


class EndedJob(NamedTuple):
    id: int
    topic: str
    key: str
    state: int
    ended_ms: int


class Page(NamedTuple):
    """A page of rows in order of their ids.

    rows      the rows of the page that may be deleted
    last_id   of the last row that was read; None: there are no more rows
    first_ms  time of the oldest row that was read, in ms since 1970
    """

    rows: list[Any]
    last_id: int | None
    first_ms: int | None


def ended_sql(using: str) -> str:
    d = dialects.get_dialect(using)
    return f"""
        WITH page AS (
            SELECT id, topic, key, state, ended_at, created_at FROM delaytasks_job WHERE id > %s ORDER BY id LIMIT %s),
        bounds AS (SELECT max(id) AS last_id, min(created_at) AS first_at FROM page)
        SELECT bounds.last_id, {d.to_ms("bounds.first_at")}, page.id, topic, key, state, {d.to_ms("ended_at")}
        FROM bounds LEFT JOIN page ON ended_at <= {d.as_moment("%s")} ORDER BY page.id"""


def ended_jobs(using: str, *, after: int, before_ms: int, limit: int) -> Page:
    """Read `limit` jobs after the id `after`. The page has those that ended by `before_ms`, as EndedJob."""
    moment = dialects.get_dialect(using).moment(before_ms)
    return _page(dialects.run(using, ended_sql(using), [after, limit, moment]), lambda row: EndedJob(*row))


def orphans_sql() -> str:
    return """
        WITH page AS (SELECT id, job_id, done_ms FROM delaytasks_jobevent WHERE id > %s ORDER BY id LIMIT %s),
        bounds AS (SELECT max(id) AS last_id, min(done_ms) AS first_ms FROM page)
        SELECT bounds.last_id, bounds.first_ms, page.id FROM bounds LEFT JOIN page
            ON done_ms <= %s AND NOT EXISTS (SELECT 1 FROM delaytasks_job AS job WHERE job.id = page.job_id)
        ORDER BY page.id"""


def orphan_events(using: str, *, after: int, before_ms: int, limit: int) -> Page:
    """Read `limit` events after the id `after`. The page has the ids of those until `before_ms` whose job is gone."""
    return _page(dialects.run(using, orphans_sql(), [after, limit, before_ms]), lambda row: row[0])


def _page(rows: list[tuple[Any, ...]], make: Any) -> Page:
    last_id, first_ms = rows[0][:2]
    return Page([make(row[2:]) for row in rows if row[2] is not None], last_id, first_ms)


def delete_jobs(using: str, jobs: Sequence[EndedJob]) -> int:
    """Delete these jobs and their events in one transaction. Return the number of deleted jobs.

    A job that was retried after it was read is not deleted: it has no longer ended, or it ended later. Jobs locked by
    other transactions are skipped (PostgreSQL).
    """
    if not jobs:
        return 0
    return retry_conflicts(lambda: _delete_jobs(using, jobs), using)


def _delete_jobs(using: str, jobs: Sequence[EndedJob]) -> int:
    d = dialects.get_dialect(using)
    among, params = d.among("id", [job.id for job in jobs])
    params.append(d.moment(max(job.ended_ms for job in jobs) + 1))  # the column has microseconds
    unchanged = f"SELECT id FROM delaytasks_job WHERE {among} AND ended_at < {d.as_moment('%s')} {d.skip_locked}"
    if d.writes_in_with:
        sql = f"""
            WITH gone AS ({unchanged}),
            events AS (DELETE FROM delaytasks_jobevent WHERE job_id IN (SELECT id FROM gone))
            DELETE FROM delaytasks_job WHERE id IN (SELECT id FROM gone) RETURNING id"""
        return len(dialects.run(using, sql, params))
    with transaction.atomic(using), dialects.cursor(using) as cursor:
        cursor.execute(f"DELETE FROM delaytasks_jobevent WHERE job_id IN ({unchanged})", params)
        cursor.execute(f"DELETE FROM delaytasks_job WHERE id IN ({unchanged})", params)
        return int(cursor.rowcount)


def delete_orphans(using: str, ids: Sequence[int]) -> int:
    """Delete these events, if they still have no job. Return the number of deleted events."""
    if not ids:
        return 0
    among, params = dialects.get_dialect(using).among("id", ids)
    sql = f"""
        DELETE FROM delaytasks_jobevent WHERE {among} AND NOT EXISTS (
            SELECT 1 FROM delaytasks_job AS job WHERE job.id = delaytasks_jobevent.job_id) RETURNING id"""
    return len(retry_conflicts(lambda: dialects.run(using, sql, params), using))


def newest_of_keys(using: str, jobs: Sequence[EndedJob]) -> set[int]:
    """Return the ids of those jobs that are the newest of their topic and key."""
    if not jobs:
        return set()
    among, params = dialects.get_dialect(using).among("job.id", [job.id for job in jobs])
    sql = f"""
        SELECT job.id FROM delaytasks_job AS job WHERE {among} AND NOT EXISTS (
            SELECT 1 FROM delaytasks_job AS later
            WHERE later.topic = job.topic AND later.key = job.key AND later.id > job.id)"""
    return {row[0] for row in dialects.run(using, sql, params)}
