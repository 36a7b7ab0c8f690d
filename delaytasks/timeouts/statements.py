"""SQL of the declared timeouts: find the jobs that differ from the model's table, and make, move and cancel them.

The caller holds the locks of the model's rows, so that no other process changes the same jobs for a declaration.
"""

import logging
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import connections

from .. import handlers
from ..db import dialects, transitions
from ..db.transitions import Cancel, Cancelled, Event, StoredJob
from ..states import STORED_LIVE, Outcome, State
from .declarations import Declaration
from .desired_jobs import desired_sql, desired_table

logger = logging.getLogger("delaytasks")
DELAYED = int(State.DELAYED)
# Finds the live job of a key by its state, which a CHECK constraint ties to ended_at. With `ended_at IS NULL`,
# PostgreSQL might read all live jobs of the topic for each key, because it expects few of them while its statistics do
# not contain the topic. By state, it can only use the index on topic, key and id, from the newest job on. It reads one
# job if the newest is live, and all jobs of the key if none is.
LIVE = f"job.state IN ({', '.join(str(int(state)) for state in STORED_LIVE)})"
# Finds the newest job with a declared time, only for a row that matches. If its live job has such a time, only newer
# jobs count: there are some only if the live job was dead, and a person has retried it.
LATEST = """desired.declared_ms IS NOT NULL AND job.declared_due IS NOT NULL
            AND job.id > CASE WHEN live.declared_due IS NULL THEN 0 ELSE live.id END"""
UNMET = "unmet"  # the reason in the event of a job whose condition is no longer true


class Difference(NamedTuple):
    """A row whose live job is missing, has another due time, or should not exist."""

    pk: str
    key: str
    declared_ms: int | None  # None: the condition is false, the field is null, or the row is gone
    past: bool  # True: if_past or `apply --overdue skip` skips this due time, or a job newer than the live one had it
    job_id: int | None  # of the live job
    due_ms: int | None
    attempt: int | None
    spread_until_ms: int | None  # end of the spread, if the due time had passed when the declaration was applied
    now_ms: int
    matches: bool  # True: the row matches; if declared_ms is None, its due time cannot be computed or stored
    is_older: bool  # True: a newer job than the live one had a declared time, so that a new job must take its place

    @property
    def change(self) -> str:
        if self.job_id is None:
            return "make"
        return "cancel" if self.declared_ms is None or self.past else "move"

    @property
    def overdue(self) -> bool:
        return self.declared_ms is not None and self.declared_ms <= self.now_ms

    @property
    def at_ms(self) -> int:
        """The due time of the job. A past one becomes now, or a random time before the end of the spread."""
        assert self.declared_ms is not None
        if self.spread_until_ms is not None and self.spread_until_ms > self.now_ms:
            return random.randint(self.now_ms, self.spread_until_ms)
        return max(self.declared_ms, self.now_ms)


def differences(
    declaration: Declaration,
    keys: Sequence[tuple[str, Any]],
    using: str,
    *,
    gated: bool = True,
    due_times: Sequence[tuple[str, int]] | None = None,
) -> list[Difference]:
    """Return the differences between these rows and their jobs, in key order. Writes nothing.

    keys        (primary key as text, primary key) of each row; the rows need not exist
    gated       True: return nothing unless the declaration's fingerprint is the applied one
    due_times   (primary key as text, due time in ms) of the matching rows, if the caller has them; None: read them
    """
    if not keys:
        return []
    sql, params = differences_sql(declaration, keys, using, gated=gated, due_times=due_times)
    with dialects.cursor(using) as cursor:  # Django's cursor: the SQL of the condition is Django's
        cursor.execute(sql, params)
        found = [Difference(*row) for row in cursor.fetchall()]
    _warn(declaration, [each.pk for each in found if each.declared_ms is None and each.matches])
    different = [each for each in found if each.declared_ms is not None or each.job_id is not None]
    return sorted(different, key=lambda each: each.key)


def _warn(declaration: Declaration, pks: Sequence[str]) -> None:
    if pks:
        logger.warning(
            "%s: %d rows have no job, because their due times cannot be computed, or are not in the years 1970 to "
            "9998. Their primary keys: %s%s",
            declaration.topic, len(pks), ", ".join(f"{each!r:.80}" for each in pks[:5]), ", …" if len(pks) > 5 else "",
        )  # fmt: skip


def differences_sql(
    declaration: Declaration,
    keys: Sequence[tuple[str, Any]],
    using: str,
    *,
    gated: bool,
    due_times: Sequence[tuple[str, int]] | None = None,
) -> tuple[str, list[Any]]:
    d, distinct = dialects.get_dialect(using), _distinct(using)
    table, key_params = d.table(["text", "text"], [(text, declaration.key_of(text)) for text, _ in keys])
    pks = [pk for _, pk in keys]
    desired, desired_params = (
        desired_sql(declaration, pks, using) if due_times is None else desired_table(due_times, using)
    )
    now_ms = d.to_ms(d.now)
    gate, before, spread = "", "0", "NULL"
    gate_params: list[Any] = []
    if gated:
        gate = "JOIN delaytasks_declaration AS applied ON applied.topic = %s AND applied.fingerprint = %s"
        gate_params = [declaration.topic, declaration.fingerprint]
        applied_ms = d.to_ms("applied.applied_at")
        before = f"CASE WHEN applied.overdue = 'skip' THEN {applied_ms} ELSE 0 END"
        spread = f"CASE WHEN declared_ms <= {applied_ms} THEN {d.to_ms('applied.spread_until')} END"
    past = f"({past_sql(declaration, d)} OR declared_ms < {before})"
    missing = f"(NOT {past} AND {d.to_ms('latest.declared_due')} {distinct} declared_ms)"
    is_older = "(live.declared_due IS NOT NULL AND latest.id IS NOT NULL)"
    fired = f"({is_older} AND {d.to_ms('latest.declared_due')} = declared_ms)"
    sql = f"""
        WITH delaytasks_keys (pk, name) AS ({table}),
        delaytasks_desired (pk, declared_ms) AS MATERIALIZED ({desired})
        SELECT keys.pk, keys.name, declared_ms, coalesce({past} OR {fired}, false), live.id, {d.to_ms("live.due_at")},
            live.attempt, {spread}, {now_ms}, desired.pk IS NOT NULL, {is_older}
        FROM delaytasks_keys AS keys {gate}
        LEFT JOIN delaytasks_desired AS desired ON desired.pk = keys.pk
        {_newest("live", LIVE, using)}
        {_newest("latest", LATEST, using)}
        WHERE (live.id IS NULL AND declared_ms IS NOT NULL AND {missing})
            OR (desired.pk IS NOT NULL AND declared_ms IS NULL)
            OR (live.state = {DELAYED} AND {d.to_ms("live.declared_due")} {distinct} declared_ms
                AND (live.declared_due IS NOT NULL OR {missing}))"""
    topics = [declaration.topic, declaration.topic]
    return sql, [*key_params, *desired_params, *gate_params, *topics]


def past_sql(declaration: Declaration, d: dialects.Dialect) -> str:
    """Return an SQL condition: `declared_ms` passed so long ago that if_past skips the job."""
    if declaration.if_past == "run":
        return "(declared_ms < 0)"
    grace_ms = 0 if declaration.if_past == "skip" else int(declaration.if_past.total_seconds() * 1000)
    return f"(declared_ms < {d.to_ms(d.now)} - {grace_ms})"


def _distinct(using: str) -> str:
    """Return the operator that also compares nulls. SQLite before version 3.39 lacks the standard one."""
    return "IS NOT" if connections[using].vendor == "sqlite" else "IS DISTINCT FROM"


def _newest(name: str, condition: str, using: str) -> str:
    """Return the SQL of a join with the newest job of the topic and the row's key that meets the condition."""
    choice = f"""FROM delaytasks_job AS job
            WHERE job.topic = %s AND job.key = keys.name AND {condition} ORDER BY job.id DESC LIMIT 1"""
    if connections[using].vendor == "sqlite":
        return f"LEFT JOIN delaytasks_job AS {name} ON {name}.id = (SELECT job.id {choice})"
    columns = "job.id, job.state, job.due_at, job.attempt, job.declared_due"
    return f"LEFT JOIN LATERAL (SELECT {columns} {choice}) AS {name} ON true"


def insert(
    declaration: Declaration, rows: Sequence[Difference], using: str, trace_context: str = ""
) -> list[StoredJob]:
    """Insert the jobs, except those whose key has become live. Return the new jobs."""
    d = dialects.get_dialect(using)
    values = [(row.key, row.pk, row.at_ms, row.declared_ms) for row in rows]
    table, params = d.table(["text", "text", "bigint", "bigint"], values)
    sql = f"""
        WITH new (new_key, pk, at_ms, declared_ms) AS ({table})
        INSERT INTO delaytasks_job
            (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error,
             subject_label, subject_pk, declared_due, trace_context)
        SELECT CAST(%s AS text), new_key, {DELAYED}, {_due(d)}, CAST(%s AS bigint), {d.as_json("'{}'")}, {d.now},
            0, 0, '', '', CAST(%s AS text), pk, {d.from_ms("declared_ms")},
            NULLIF(CAST(%s AS text), '')
        FROM new WHERE true ORDER BY new_key
        ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms("created_at")}"""
    more = [declaration.topic, handlers.ttr_ms(declaration.topic), declaration.label, trace_context]
    return [StoredJob(*row) for row in dialects.run(using, sql, [*params, *more])]


def _due(d: dialects.Dialect) -> str:
    return f"{d.greatest}({d.from_ms('at_ms')}, {d.now})"


def move(declaration: Declaration, rows: Sequence[Difference], using: str, *, skip_locked: bool) -> list[StoredJob]:
    """delayed/ready → delayed with another declared due time, and with no failures. Return the moved jobs.

    A job that was claimed meanwhile is left out: its worker tests the due time again.

    skip_locked   True: leave out jobs whose rows are locked. False: wait for them
    """
    d = dialects.get_dialect(using)
    values = [(row.job_id, row.pk, row.at_ms, row.declared_ms) for row in rows]
    table, params = d.table(["bigint", "text", "bigint", "bigint"], values)
    sql = f"""
        WITH new (job_id, pk, at_ms, declared_ms) AS ({table}),
        locked AS MATERIALIZED (
            SELECT new.* FROM delaytasks_job JOIN new ON id = job_id
            WHERE state = {DELAYED} ORDER BY id {_lock(d, "OF delaytasks_job", skip_locked)})
        UPDATE delaytasks_job SET failures = 0, error = '', due_at = {_due(d)},
            declared_due = {d.from_ms("declared_ms")}, subject_label = CAST(%s AS text), subject_pk = pk
        FROM locked WHERE id = job_id AND state = {DELAYED}
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms(d.now)}, priority"""
    moved = [StoredJob(*row) for row in dialects.run(using, sql, [*params, declaration.label])]
    before = {row.job_id: row for row in rows}
    transitions.record(using, (_moved_event(before[job.id], job) for job in moved))
    return moved


def _moved_event(row: Difference, job: StoredJob) -> Event:
    return Event(job.id, Outcome.RESCHEDULED, row.attempt or 0, row.due_ms or 0, job.stored_ms, None, job.due_ms)


def _lock(d: dialects.Dialect, tables: str, skip_locked: bool) -> str:
    """Return the SQL that locks the rows of `tables` ("OF ...", or "" for all) that a SELECT returns."""
    return f"{d.lock} {tables} {'SKIP LOCKED' if skip_locked else ''}" if d.lock else ""


def cancel(ids: Sequence[int], using: str, *, skip_locked: bool) -> list[Cancelled]:
    """delayed/ready → cancelled, except locked jobs with skip_locked. Return the cancelled jobs.

    Clears their declared time, so that a new job is made if the condition becomes true again.
    """
    cancels = (Cancel(job_id, reason=UNMET) for job_id in ids)
    return transitions.cancel_each(using, cancels, skip_locked=skip_locked, also=", declared_due = NULL")


def forget(job_id: int, using: str) -> None:
    """Clear the declared time of an ended job, so that a new job is made if the condition becomes true again.

    A job that is not ended keeps it: without a declared time the job would run whatever its row declares.
    """
    ended = "id = %s AND ended_at IS NOT NULL"
    dialects.run(using, f"UPDATE delaytasks_job SET declared_due = NULL WHERE {ended} RETURNING id", [job_id])
