"""The guarded statements of recurrence: find the schedules that need a next firing, advance them, insert the jobs.

advance() and insert_firings() run in one transaction. So the job of each instant is made by exactly one transaction,
the one that advances the chain past the instant, even if several processes try or one is killed.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from django.db import connections

from ..states import State
from . import dialects
from .transitions import StoredJob

DELAYED, CANCELLED = int(State.DELAYED), int(State.CANCELLED)
_FREQUENT = "(COALESCE(every_ms, period_ms, 60000) < 60000 OR rrule LIKE '%%BYSECOND%%')"


class Advance(NamedTuple):
    """The chain of a schedule: its old values, as read, and its new ones."""

    id: int
    seen_ms: int  # made_until
    version: int
    until_ms: int
    label: str
    ended: int
    problem: str


class NewFiring(NamedTuple):
    """A job to insert. Its due time may have passed.

    planned_ms   the firing's time; None: a backfill, which is due later than that
    unknown_ms   jobs of firings up to this time were made for another zone or topic; None: there are none
    """

    topic: str
    key: str
    due_ms: int
    planned_ms: int | None
    unknown_ms: int | None
    ttr_ms: int
    body: str  # JSON
    subject_label: str = ""  # "": none
    subject_pk: str = ""
    producer: str = ""  # the API token whose limit of live jobs counts the job; "": none


def due_sql(using: str, *, is_frequent: bool) -> str:
    d = dialects.get_dialect(using)
    return f"""SELECT id FROM delaytasks_schedule
        WHERE NOT paused AND NOT ended AND made_until <= {d.plus_ms(d.now, "%s")}
            AND {"" if is_frequent else "NOT"} {_FREQUENT}
        ORDER BY made_until, id LIMIT %s"""


def due(using: str, ahead_ms: int, limit: int, *, is_frequent: bool) -> list[int]:
    """Return the ids of the schedules that need a next firing: their last one is due within `ahead_ms`; earliest first.

    is_frequent   True: only schedules that may run more than once a minute; False: only the others
    """
    return [row[0] for row in dialects.run(using, due_sql(using, is_frequent=is_frequent), [ahead_ms, limit])]


def advance(using: str, rows: Sequence[Advance]) -> set[int]:
    """Advance the chains that have not changed since they were read. Return their ids. Locked rows are skipped.

    A chain that other software has written may have microseconds, which `seen_ms` rounds up.
    """
    d = dialects.get_dialect(using)
    as_seen = f"made_until > {d.from_ms('seen_ms - 1')} AND made_until <= {d.from_ms('seen_ms')}"
    table, params = d.table(["bigint", "bigint", "bigint", "bigint", "text", "int", "text"], rows)
    sql = f"""
        WITH seen (seen_id, seen_ms, seen_version, until_ms, label, last, why) AS ({table}),
        free AS MATERIALIZED (
            SELECT id AS free_id FROM delaytasks_schedule JOIN seen ON id = seen_id
            WHERE version = seen_version AND {as_seen} AND NOT paused
            ORDER BY id {d.skip_locked.replace("UPDATE", "UPDATE OF delaytasks_schedule")})
        UPDATE delaytasks_schedule SET made_until = {d.from_ms("until_ms")}, made_label = label,
            version = version + 1, ended = (last = 1), problem = why
        FROM seen, free WHERE id = seen_id AND id = free_id AND version = seen_version AND NOT paused
        RETURNING id"""
    return {row[0] for row in dialects.run(using, sql, params)}


def insert_firings(using: str, rows: Sequence[NewFiring]) -> list[StoredJob]:
    """Insert the jobs of firings. Return those inserted: a firing that ran or is live already is left out."""
    d = dialects.get_dialect(using)
    kinds = ["text", "text", "bigint", "bigint", "bigint", "bigint", "text", "text", "text", "text"]
    table, params = d.table(kinds, rows)
    sql = f"""
        WITH new (new_topic, new_key, at_ms, planned_ms, unknown_ms, new_ttr_ms, new_body, new_label, new_pk,
            new_producer) AS ({table})
        INSERT INTO delaytasks_job
            (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error,
             subject_label, subject_pk, producer, replaced_at)
        SELECT new_topic, new_key, {DELAYED}, {d.from_ms("at_ms")}, new_ttr_ms, {d.as_json("new_body")}, {d.now},
            0, 0, '', '', NULLIF(new_label, ''), NULLIF(new_pk, ''), NULLIF(new_producer, ''),
            {d.from_ms("planned_ms")} FROM new
        WHERE NOT EXISTS ({_made_sql(d)})
        ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms("created_at")}"""
    return [StoredJob(*row) for row in dialects.run(using, sql, params)]


def find_made(using: str, topic: str, keys: Sequence[str], unknown_ms: int | None) -> list[str]:
    """Return the keys whose job is live or has run. insert_firings() leaves these keys out.

    unknown_ms   as in NewFiring
    """
    d = dialects.get_dialect(using)
    table, params = d.table(["text", "text", "bigint"], [(topic, key, unknown_ms) for key in keys])
    new = f"new (new_topic, new_key, unknown_ms) AS ({table})"
    sql = f"WITH {new} SELECT new_key FROM new WHERE EXISTS ({_made_sql(d)})"
    return [row[0] for row in dialects.run(using, sql, params)]


def _made_sql(d: dialects.Dialect) -> str:
    """Return the query for a job that a firing has already: it has the same key, and was planned since `unknown_ms`."""
    planned = "coalesce(old.replaced_at, old.created_at)"
    return f"""SELECT 1 FROM delaytasks_job old
        WHERE old.topic = new_topic AND old.key = new_key AND old.state <> {CANCELLED}
            AND (unknown_ms IS NULL OR {planned} > {d.from_ms("unknown_ms")})"""


def move_firing(using: str, topic: str, key: str, *, seen_ms: int, due_ms: int) -> list[StoredJob]:
    """delayed → delayed with a new planned time, if the job is still due at the old one. A past time becomes now.

    Return the changed job.
    """
    d = dialects.get_dialect(using)
    due = f"{d.greatest}({d.from_ms('%s')}, {d.now})"
    sql = f"""
        UPDATE delaytasks_job SET due_at = {due}, replaced_at = {due}
        WHERE topic = %s AND key = %s AND ended_at IS NULL AND state = {DELAYED} AND {d.to_ms("due_at")} = %s
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms(d.now)}, priority"""
    return [StoredJob(*row) for row in dialects.run(using, sql, [due_ms, due_ms, topic, key, seen_ms])]


def find_upcoming(using: str, topic: str, prefix: str, now_ms: int) -> list[tuple[int, str, int]]:
    """Return (id, key, due time in ms) of the jobs that are due after `now_ms` and whose key begins with `prefix`."""
    d = dialects.get_dialect(using)
    sql = f"""SELECT id, key, {d.to_ms("due_at")} FROM delaytasks_job
        WHERE topic = %s AND ended_at IS NULL AND state = {DELAYED} AND due_at > {d.from_ms("%s")}
            AND key LIKE %s ESCAPE '!' ORDER BY id"""
    found = dialects.run(using, sql, [topic, now_ms, re.sub("([!%_])", r"!\1", prefix) + "%"])
    return [(job_id, key, due_ms) for job_id, key, due_ms in found if key.startswith(prefix)]  # LIKE ignores case


def has_later_sql(using: str) -> str:
    d = dialects.get_dialect(using)
    by_bytes = " USING ~<~" if connections[using].vendor == "postgresql" else ""
    return f"""SELECT 1 FROM delaytasks_job
        WHERE topic = %s AND {_key_between(using)} AND substr(key, %s) LIKE '____-__-__T%%' AND id <> %s
            AND {d.least}(due_at, coalesce(replaced_at, due_at)) > {d.from_ms("%s")}
            AND (attempt > 0 OR state = {DELAYED} AND due_at <= {d.from_ms("%s")}) ORDER BY key{by_bytes} LIMIT 1"""


def has_later(using: str, topic: str, job_id: int, prefix: str, label: str, due_ms: int, now_ms: int) -> bool:
    """Return whether a job of a firing later than `due_ms` has begun or is due. The job `job_id` does not count.

    label   the end of a key that sorts before those of all later firings, because keys sort by their wall times
    """
    start, end = prefix + label, f"{prefix}:"  # ":" sorts between digits and "now"
    return bool(dialects.run(using, has_later_sql(using), [topic, start, end, len(prefix) + 1, job_id, due_ms, now_ms]))


def _key_between(using: str) -> str:
    """Return a condition for keys of a range, by bytes as in the index of keys: from the first on, before the last."""
    postgresql = connections[using].vendor == "postgresql"
    return "key ~>=~ %s AND key ~<~ %s" if postgresql else "key >= %s AND key < %s"


def delete_orphaned_runs(using: str) -> None:
    """Delete the rows of ScheduleRun whose schedule is gone, but not those that running handlers have locked."""
    d = dialects.get_dialect(using)
    dialects.run(using, f"""
        DELETE FROM delaytasks_schedulerun WHERE schedule_id IN (
            SELECT schedule_id FROM delaytasks_schedulerun AS run
            WHERE NOT EXISTS (SELECT 1 FROM delaytasks_schedule WHERE id = run.schedule_id) {d.skip_locked})
        RETURNING schedule_id""", [])  # fmt: skip


class RunEvent(NamedTuple):
    """The end of the first attempt at a schedule's job that called its handler, or skipped the job."""

    schedule_id: int
    outcome: str
    reason: str
    late_ms: int
    due_ms: int


def recent_runs(using: str, ranges: Sequence[tuple[int, str, str, str]], limit: int) -> list[RunEvent]:
    """Return how the first attempts of the newest `limit` due jobs in each range have ended.

    ranges   (id of the schedule, topic, first key, key after the last), by bytes as in the index of keys
    """
    if not ranges:
        return []
    d = dialects.get_dialect(using)
    one = f"""SELECT * FROM (SELECT CAST(%s AS bigint) AS schedule_id, id AS run_id FROM delaytasks_job
        WHERE topic = %s AND {_key_between(using)} AND due_at <= {d.now}
        ORDER BY id DESC LIMIT {limit}) AS newest"""
    sql = f"""
        SELECT schedule_id, outcome, reason, reserved_ms - due_ms, due_ms
        FROM ({" UNION ALL ".join([one] * len(ranges))}) AS runs
        JOIN delaytasks_jobevent AS event ON event.id = (
            SELECT id FROM delaytasks_jobevent WHERE job_id = run_id AND reserved_ms IS NOT NULL
            ORDER BY attempt LIMIT 1)"""
    return list(map(RunEvent._make, dialects.run(using, sql, [value for each in ranges for value in each])))
