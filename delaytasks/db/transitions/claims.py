"""ready → reserved: a worker claims jobs, renews their leases, or gives them back before the handler is called."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from .. import dialects
from ..lookups import run_order
from .next_run import next_run
from .reads import attempts_sql, to_attempt
from .rows import DELAYED, RESERVED, Claimed, with_body


def claim_parts(
    d: dialects.Dialect, choice: str, *, now: str | None = None, grouped: bool = False, fenceable: bool = False
) -> tuple[str, str]:
    """Return the SQL of a CTE with the chosen jobs, and of the UPDATE that claims them.

    now   SQL of the time of the claim; None: the time when the statement began
    """
    now = now or d.now
    update = f"""
        UPDATE delaytasks_job
        SET state = {RESERVED}, attempt = attempt + 1, reserved_at = {now}, worker = %s,
            lease_until = {d.plus_ms(now, "ttr_ms")}, grouped = {str(grouped).lower()},
            fenceable = {str(fenceable).lower()}
        FROM due WHERE id = due_id AND state = {DELAYED}
        RETURNING id, topic, key, body, attempt, failures, ttr_ms, {d.to_ms("due_at")}, {d.to_ms("created_at")},
            {d.to_ms("reserved_at")}, {d.to_ms("lease_until")}, subject_label, subject_pk, expires_ms, polls,
            {d.to_ms("replaced_at")}, trace_context, priority"""
    return f"due AS MATERIALIZED ({choice})", update


def choice_sql(d: dialects.Dialect, condition: str, order: str) -> str:
    """Return the SQL that locks ready jobs of a topic, by a condition on their ids.

    IS TRUE keeps the planner from an index that begins with the topic: with old statistics it expects few rows of a
    topic that has many, and would read all of them for each claim.
    """
    return f"""SELECT id AS due_id FROM delaytasks_job
        WHERE {condition} AND (topic = %s) IS TRUE AND state = {DELAYED} AND due_at <= {d.now}
        ORDER BY {order} {d.skip_locked}"""


def claim(
    using: str, topic: str, ids: Sequence[int], worker: str, *, limit: int | None = None, grouped: bool = False,
    fenceable: bool = False,
) -> list[Claimed]:  # fmt: skip
    """ready → reserved, with attempt + 1 and a lease. Return the claimed jobs in their run order.

    limit       claim at most so many, the first ones in run order
    grouped     the jobs share a call or a commit: if the process dies, no failure is counted. Jobs to which that has
                happened must run alone and are left out
    fenceable   the handler runs in one transaction with the end of the job, so a cancel can undo it while it runs

    Jobs of `ids` that are not ready or that another transaction has locked are left out.
    """
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    if grouped:
        condition += " AND NOT alone"
    order = "id" if limit is None or limit >= len(ids) else f"{run_order(d)} LIMIT {limit}"
    due, update = claim_parts(d, choice_sql(d, condition, order), grouped=grouped, fenceable=fenceable)
    rows = dialects.run(using, f"WITH {due} {update}", [*params, topic, worker])
    claimed = [with_body(Claimed(*row)) for row in rows]
    return sorted(claimed, key=attrgetter("rank"))


def claim_first(using: str, topic: str, ids: Sequence[int], worker: str, *, fenceable: bool = False) -> Claimed | None:
    """ready → reserved, as claim(), for the first job of `ids` in run order that is free. Return None if none is."""
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    due, update = claim_parts(d, choice_sql(d, condition, f"{run_order(d)} LIMIT 1"), fenceable=fenceable)
    rows = dialects.run(using, f"WITH {due} {update}", [*params, topic, worker])
    return with_body(Claimed(*rows[0])) if rows else None


def find_claimed(using: str, ids: Sequence[int], worker: str) -> Claimed | None:
    """Return the job of `ids` that this worker holds, or None. For a claim whose commit was not confirmed."""
    d = dialects.get_dialect(using)
    condition, params = d.among("id", ids)
    sql = attempts_sql(d, f"{condition} AND state = {RESERVED} AND worker = %s")
    return next((to_attempt(row).claimed for row in dialects.run(using, sql, [*params, worker])), None)


def locked_first(d: dialects.Dialect, rows: Sequence[Any]) -> tuple[str, str]:
    """Return the SQL of a CTE that locks the held rows in id order, and the name of the CTE to read from.

    The lock order prevents deadlocks. For a single row, or on a database without row locks, the SQL is empty.
    """
    if len(rows) < 2 or not d.lock:
        return "", "held"
    cte = f""", locked AS MATERIALIZED (
            SELECT held.* FROM delaytasks_job JOIN held ON id = job_id AND attempt = token
            WHERE state = {RESERVED} ORDER BY id {d.lock} OF delaytasks_job)"""
    return cte, "locked"


def in_time_condition(d: dialects.Dialect, in_time: bool) -> str:
    return f"AND lease_until > {d.now}" if in_time else ""


def renew_if_held(using: str, held: Sequence[tuple[int, int]], *, in_time: bool = False) -> dict[int, int]:
    """reserved → reserved, with a new lease of the TTR from now. Return {id: end of the lease in ms since 1970}.

    in_time   as in end_if_held()
    """
    d = dialects.get_dialect(using)
    table, params = d.table(["bigint", "int"], sorted(held))
    cte, rows = locked_first(d, held)
    sql = f"""
        WITH held (job_id, token) AS ({table}) {cte}
        UPDATE delaytasks_job SET lease_until = {d.plus_ms(d.now, "ttr_ms")}
        FROM {rows} WHERE id = job_id AND attempt = token AND state = {RESERVED} {in_time_condition(d, in_time)}
        RETURNING id, {d.to_ms("lease_until")}"""
    return {row[0]: row[1] for row in dialects.run(using, sql, params)}


def unclaim(using: str, held: Sequence[tuple[int, int]]) -> set[int]:
    """reserved → ready at once, for claimed jobs (id, attempt) whose handler was not called. Return their ids.

    Nothing has happened to these jobs, so no event is written.
    """
    d = dialects.get_dialect(using)
    table, params = d.table(["bigint", "int"], sorted(held))
    cte, rows = locked_first(d, held)
    sql = f"""
        WITH held (job_id, token) AS ({table}) {cte}
        UPDATE delaytasks_job SET state = {DELAYED}, lease_until = NULL, grouped = false,
            failures = CASE WHEN again THEN 0 ELSE failures END, {next_run(d, "again")}
        FROM {rows} WHERE id = job_id AND attempt = token AND state = {RESERVED} RETURNING id"""
    return {row[0] for row in dialects.run(using, sql, params)}


def defer(
    using: str, job_id: int, attempt: int, *, delay_ms: int = 0, declared_ms: int | None = None
) -> tuple[int, int] | None:
    """reserved → delayed, for a claimed job whose handler was not called: after `delay_ms`, or at a new declared time.

    Return (new due time, time of the statement), in ms since 1970, or None if the attempt no longer holds the job.
    Does not record events. A job with a new declared time has no failures. A job that was scheduled again meanwhile has
    not run yet: it gets the newer TTR and body, and no next run.
    """
    d = dialects.get_dialect(using)
    due, params = d.plus_ms(d.now, "%s"), [delay_ms]
    if declared_ms is not None:
        declared = d.from_ms("%s")
        due = f"{d.greatest}({declared}, {d.now}), declared_due = {declared}"
        params = [declared_ms, declared_ms]
    sql = f"""
        UPDATE delaytasks_job SET state = {DELAYED}, lease_until = NULL, grouped = false, due_at = {due},
            failures = CASE WHEN {"true" if declared_ms is not None else "again"} THEN 0 ELSE failures END,
            {next_run(d, "again")}
        WHERE id = %s AND attempt = %s AND state = {RESERVED}
        RETURNING {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    rows = dialects.run(using, sql, [*params, job_id, attempt])
    return (rows[0][0], rows[0][1]) if rows else None
