"""Cancel, move or retry a job that is not running; fence a running one."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...states import Outcome
from .. import dialects
from .events import RECORD_CANCELLED, record
from .next_run import clear_next_run_sql
from .reads import is_live
from .rows import CANCELLED, DEAD, DELAYED, RESERVED, Cancelled, Event


def cancel_delayed(using: str, job_id: int, *, actor: str = "", reason: str = "") -> Cancelled | None:
    """delayed/ready → cancelled, with an event. Return None if the job is in another state."""
    return _cancel(using, "id = %s", [job_id], actor, reason)


def cancel_live(using: str, topic: str, key: str, *, actor: str = "", reason: str = "") -> Cancelled | None:
    """delayed/ready → cancelled, for the live job of (topic, key). Return None if there is none or it is reserved."""
    which, params = is_live(dialects.get_dialect(using), [(topic, key)])
    return _cancel(using, which, params, actor, reason)


def cancel_dead(using: str, job_id: int, *, actor: str = "", reason: str = "") -> Cancelled | None:
    """dead → cancelled, with an event. Return None if the job is in another state."""
    return _cancel(using, "id = %s", [job_id], actor, reason, DEAD)


def fence(using: str, job_id: int, *, actor: str = "", reason: str = "") -> Cancelled | None:
    """reserved → cancelled, with an event, if the job is fenceable: its handler's end is refused and rolled back.

    Waits for the handler's transaction if that has locked the row. Return None if the job is in another state, or if
    its handler cannot be fenced.
    """
    return _cancel(using, "id = %s AND fenceable", [job_id], actor, reason, RESERVED)


def _cancel(
    using: str, which: str, params: list[Any], actor: str, reason: str, state: int = DELAYED
) -> Cancelled | None:
    """Cancel at most one job, so no lock order is needed, and record the event.

    Takes one statement on a database where WITH may write, otherwise two.
    """
    d = dialects.get_dialect(using)
    reserved_ms = d.to_ms("reserved_at") if state == RESERVED else "CAST(NULL AS bigint)"
    update = f"""
        UPDATE delaytasks_job SET state = {CANCELLED}, ended_at = {d.now}, died_at = NULL,
            lease_until = NULL, {clear_next_run_sql()}
        WHERE {which} AND state = {state}
        RETURNING id, topic, attempt, {d.to_ms("due_at")} AS was_due_ms, {d.to_ms("ended_at")} AS now_ms,
            {reserved_ms} AS reserved_ms"""
    if d.writes_in_with:
        sql = f"""
            WITH ended AS ({update}), recorded AS ({RECORD_CANCELLED})
            SELECT * FROM ended"""
        rows = dialects.run(using, sql, [*params, actor, reason])
        return Cancelled(*rows[0]) if rows else None
    for done in map(Cancelled._make, dialects.run(using, update, params)):
        event = Event(done.id, Outcome.CANCELLED, done.attempt, done.due_ms, done.done_ms, done.reserved_ms)
        record(using, [event._replace(actor=actor, reason=reason)])
        return done
    return None


class Cancel(NamedTuple):
    id: int
    actor: str = ""
    reason: str = ""


def cancel_each(
    using: str, cancels: Iterable[Cancel], *, dead: bool = False, skip_locked: bool = False, also: str = ""
) -> list[Cancelled]:
    """delayed/ready → cancelled, with an event for each, in the caller's transaction. Return the cancelled jobs.

    Jobs in another state are left out. Waits for locked rows, in id order.

    dead          True: dead → cancelled, too
    skip_locked   True: leave locked rows out, too. For a transaction that may have locked rows with higher ids
    also          SQL of further assignments, such as ", declared_due = NULL"
    """
    by_id = {each.id: each for each in cancels}
    if not by_id:
        return []
    d = dialects.get_dialect(using)
    condition, params = d.among("id", list(by_id))
    before = f"state IN ({DELAYED}, {DEAD})" if dead else f"state = {DELAYED}"
    sql = f"""
        UPDATE delaytasks_job SET state = {CANCELLED}, ended_at = {d.now}, died_at = NULL{also}
        WHERE id IN (SELECT id FROM delaytasks_job WHERE {condition} AND {before}
                ORDER BY id {d.skip_locked if skip_locked else d.lock}) AND {before}
        RETURNING id, topic, attempt, {d.to_ms("due_at")}, {d.to_ms("ended_at")}"""
    cancelled = [Cancelled(*row) for row in dialects.run(using, sql, params)]
    events = (Event(c.id, Outcome.CANCELLED, c.attempt, c.due_ms, c.done_ms) for c in cancelled)
    record(using, (e._replace(actor=by_id[e.job_id].actor, reason=by_id[e.job_id].reason) for e in events))
    return cancelled


def move_delayed(using: str, job_id: int, *, due_ms: int | None, delay_ms: int | None) -> tuple[int, int] | None:
    """delayed/ready → delayed with a new due time. Return None if the job is in another state.

    Otherwise return (new due time, time of the statement), in ms since 1970. A past due time makes the job ready now. A
    job that is overdue already keeps its due time then, and with it its place in the queue.
    """
    d = dialects.get_dialect(using)
    due = d.from_ms("%s") if delay_ms is None else d.plus_ms(d.now, "%s")
    sql = f"""
        UPDATE delaytasks_job
        SET due_at = CASE WHEN {due} > {d.now} THEN {due} ELSE {d.least}(due_at, {d.now}) END
        WHERE id = %s AND state = {DELAYED}
        RETURNING {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    value = due_ms if delay_ms is None else delay_ms
    rows = dialects.run(using, sql, [value, value, job_id])
    return (rows[0][0], rows[0][1]) if rows else None


def retry_if_dead(using: str, job_id: int) -> int | None:
    """dead → ready, with no failures. Return the new due time in ms since 1970; None if the job is not dead."""
    d = dialects.get_dialect(using)
    sql = f"""
        UPDATE delaytasks_job SET state = {DELAYED}, due_at = {d.now}, ended_at = NULL, died_at = NULL, failures = 0
        WHERE id = %s AND state = {DEAD} RETURNING {d.to_ms("due_at")}"""
    rows = dialects.run(using, sql, [job_id])
    return rows[0][0] if rows else None
