"""Statements that change the jobs of many callers at once, with an answer for each of them.

The HTTP API uses them to serve the concurrent requests of one process together (api/batching/). The statements of
transitions succeed or fail as a whole; these report for each row what was done. The rules are the same: each row is
guarded by the state before, and rows are locked in one order.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections

from ..states import Outcome
from . import dialects, transitions
from .transitions import CANCELLED, DELAYED, RESERVED, AttemptRow, Cancelled, Claimed, Event, JobRow, NewJob, StoredJob


class NewRow(NamedTuple):
    """A job to add.

    mode   what to do with a live job with its key: "keep" it, or "again": let it run once more if it is running, and
           keep it if it waits. With other modes the row is refused
    """

    job: NewJob
    mode: str
    actor: str
    producer: str = ""  # whose limit of live jobs counts it


class Done(enum.StrEnum):
    CREATED = "created"
    KEPT = "kept"
    AGAIN = "again"  # the live job is running, and runs once more
    REFUSED = "refused"  # the key is live
    REPEAT = "repeat"  # the live job ended during the statement: repeat it for this row


class Added(NamedTuple):
    """The result for one NewRow. The ids and times are 0 if there is no job."""

    done: Done
    id: int = 0
    due_ms: int = 0  # with AGAIN, of the next run
    stored_ms: int = 0  # the time of the statement


def begin(using: str, wait_ms: int, keys: Iterable[str] = ()) -> None:
    """Begin a group: limit the wait for each lock to `wait_ms`, and lock these keys as dialects.lock_name() does.

    Both last until the transaction ends. The keys are locked in one order, so that groups cannot deadlock. The
    statements of a group are planned each time: a plan for one size of group or table is wrong for another. Does
    nothing on SQLite, which has one writer at a time.
    """
    if connections[using].vendor != "postgresql":
        return
    # The array always has an element, and the condition is volatile: the settings apply before the first lock is taken.
    sql = """
        SELECT count(CASE WHEN number <> 0 THEN pg_advisory_xact_lock(number) END) FROM (
            SELECT DISTINCT CASE WHEN name = '' THEN 0 ELSE hashtextextended(name, 5307) END AS number
            FROM unnest(CAST(%s AS text[])) AS name ORDER BY number) AS numbers
        WHERE set_config('lock_timeout', %s, true) <> set_config('plan_cache_mode', 'force_custom_plan', true)"""
    dialects.run(using, sql, [["", *keys], f"{wait_ms}ms"])


# -- adds ---------------------------------------------------------------------------------------


def add_each(using: str, rows: Sequence[NewRow]) -> list[Added]:
    """Insert, keep, run again or refuse each row, with its event. Return the results in the order of `rows`.

    Each (topic, key) must be in `rows` only once. Call it in a transaction. New jobs are inserted by one statement;
    only if some keys are live, another one finds them, and a third one stores the next runs of those that are running.
    """
    if not rows:
        return []
    one_lock_order = sorted(rows, key=pair)
    inserted = {(stored.topic, stored.key): stored for stored in _insert(using, one_lock_order)}
    missed = [pair(row) for row in one_lock_order if pair(row) not in inserted]
    live = transitions.find_live(using, missed) if missed else {}
    next_runs = _store_again(using, rows, live)
    return [_added(row, inserted.get(pair(row)), live.get(pair(row)), next_runs) for row in rows]


def pair(row: NewRow) -> tuple[str, str]:
    return row.job.topic, row.job.key


_NEW_KINDS = [*transitions.NEW_KINDS, "text", "text"]


def _insert(using: str, rows: Sequence[NewRow]) -> list[StoredJob]:
    """Insert the rows whose (topic, key) no live job has, with their events. Return the inserted jobs."""
    d = dialects.get_dialect(using)
    if not d.writes_in_with:
        stored = []
        for producer in sorted({row.producer for row in rows}):
            with transitions.produced_by(producer or None):
                stored += transitions.insert_new(using, [row.job for row in rows if row.producer == producer])
        actors = {pair(row): row.actor for row in rows}
        transitions.record(using, [_scheduled(s, actors[s.topic, s.key]) for s in stored if actors[s.topic, s.key]])
        return stored
    table, params = d.table(_NEW_KINDS, [(*row.job, row.actor, row.producer) for row in rows])
    sql = f"""
        WITH new (topic, key, at_ms, delay_ms, ttr_ms, body, label, pk, expires_ms, trace, level, actor, producer)
            AS ({table}),
        inserted AS (
            INSERT INTO delaytasks_job
                (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error,
                 subject_label, subject_pk, expires_ms, trace_context, priority, producer)
            SELECT topic, key, {DELAYED}, {transitions.new_due(d)}, ttr_ms, {d.as_json("body")}, {d.now}, 0, 0, '', '',
                NULLIF(label, ''), NULLIF(pk, ''), expires_ms, NULLIF(trace, ''), level,
                NULLIF(producer, '')
            FROM new
            ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
            RETURNING id, topic, key, {d.to_ms("due_at")} AS due_ms, {d.to_ms("created_at")} AS now_ms, priority),
        recorded AS (
            INSERT INTO delaytasks_jobevent ({transitions.EVENT_COLUMNS})
            SELECT id, '{Outcome.SCHEDULED}', 0, due_ms, now_ms, NULL, due_ms, '', actor, '', ''
            FROM inserted JOIN new USING (topic, key) WHERE actor <> '')
        SELECT id, topic, key, due_ms, now_ms, priority FROM inserted"""
    return list(map(StoredJob._make, dialects.run(using, sql, params)))


def _scheduled(job: StoredJob, actor: str) -> Event:
    return Event(job.id, Outcome.SCHEDULED, 0, job.due_ms, job.stored_ms, None, job.due_ms, "", actor)


def _store_again(using: str, rows: Sequence[NewRow], live: Mapping[tuple[str, str], JobRow]) -> dict[int, StoredJob]:
    """Store the next runs of running jobs, with their events. Return them by id."""
    running = {
        job.id: row
        for row in rows
        if row.mode == "again" and (job := live.get(pair(row))) is not None and job.state == RESERVED
    }
    if not running:
        return {}
    stored = transitions.store_again(using, {job_id: row.job for job_id, row in running.items()})
    transitions.record(using, [_scheduled_again(s, live[s.topic, s.key], running[s.id].actor) for s in stored])
    return {each.id: each for each in stored}


def _scheduled_again(next_run: StoredJob, job: JobRow, actor: str) -> Event:
    return _scheduled(next_run, actor)._replace(attempt=job.attempt)


def _added(row: NewRow, inserted: StoredJob | None, live: JobRow | None, next_runs: Mapping[int, StoredJob]) -> Added:
    if inserted is not None:
        return Added(Done.CREATED, inserted.id, inserted.due_ms, inserted.stored_ms)
    if live is None:
        return Added(Done.REPEAT)
    if row.mode == "again" and live.state == RESERVED:
        stored = next_runs.get(live.id)
        return Added(Done.AGAIN, stored.id, stored.due_ms, stored.stored_ms) if stored else Added(Done.REPEAT)
    return Added(Done.KEPT if row.mode in ("keep", "again") else Done.REFUSED, live.id, live.due_ms)


# -- cancels ------------------------------------------------------------------------------------


class Cancel(NamedTuple):
    id: int
    actor: str
    reason: str


def cancel_each(using: str, cancels: Sequence[Cancel]) -> dict[int, Cancelled]:
    """delayed/ready → cancelled, with an event. An id is missing if its job is in another state. In a transaction."""
    if not cancels:
        return {}
    d = dialects.get_dialect(using)
    condition, params = d.among("id", [each.id for each in cancels])
    locked = f"SELECT id FROM delaytasks_job WHERE {condition} AND state = {DELAYED} ORDER BY id {d.lock}"
    sql = f"""
        WITH locked (job_id) AS {"MATERIALIZED" if d.lock else ""} ({locked})
        UPDATE delaytasks_job SET state = {CANCELLED}, ended_at = {d.now}
        FROM locked WHERE id = job_id AND state = {DELAYED}
        RETURNING id, topic, attempt, {d.to_ms("due_at")}, {d.to_ms("ended_at")}"""
    cancelled = {row[0]: Cancelled(*row) for row in dialects.run(using, sql, params)}
    transitions.record(using, (_cancel_event(each, cancelled[each.id]) for each in cancels if each.id in cancelled))
    return cancelled


def _cancel_event(cancel: Cancel, done: Cancelled) -> Event:
    event = Event(done.id, Outcome.CANCELLED, done.attempt, done.due_ms, done.done_ms)
    return event._replace(actor=cancel.actor, reason=cancel.reason)


# -- attempts -----------------------------------------------------------------------------------


def find_attempts(using: str, ids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> list[AttemptRow]:
    """Return the live jobs with these ids, and those with these pairs (topic, key), with their latest attempts."""
    d = dialects.get_dialect(using)
    found: dict[int, AttemptRow] = {}
    for where, params in _conditions(d, ids, pairs):
        sql = f"""
            SELECT id, topic, key, body, attempt, failures, ttr_ms, {d.to_ms("due_at")}, {d.to_ms("created_at")},
                coalesce({d.to_ms("reserved_at")}, 0), coalesce({d.to_ms("lease_until")}, 0), state, worker,
                {d.to_ms(d.now)}
            FROM delaytasks_job WHERE {where} AND ended_at IS NULL"""
        for *claimed, state, worker, now_ms in dialects.run(using, sql, params):
            found[claimed[0]] = AttemptRow(transitions.with_body(Claimed(*claimed)), state, worker, now_ms)
    return list(found.values())


def _conditions(d: dialects.Dialect, ids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> Iterable[Any]:
    if ids:
        yield d.among("id", ids)
    if pairs:
        yield transitions.is_live(d, pairs)


def assign_workers(using: str, workers: Mapping[int, str]) -> None:
    """Write the worker of each of these jobs, which the caller's transaction has just claimed."""
    d = dialects.get_dialect(using)
    table, params = d.table(["bigint", "text"], sorted(workers.items()))
    sql = f"""
        WITH claimed (job_id, holder) AS ({table})
        UPDATE delaytasks_job SET worker = holder FROM claimed WHERE id = job_id"""
    dialects.run(using, sql, params)
