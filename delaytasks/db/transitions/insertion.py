"""Insert jobs, replace waiting jobs, and store the next runs of running jobs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from .. import dialects
from .next_run import clear_next_run_sql
from .rows import DELAYED, RESERVED, NewJob, StoredJob

NEW_KINDS = ["text", "text", "bigint", "bigint", "bigint", "text", "text", "text", "bigint", "text", "smallint"]
# The API token whose limit of live jobs counts the jobs that are inserted in this context.
_producer: ContextVar[str | None] = ContextVar("delaytasks_producer", default=None)


@contextmanager
def produced_by(producer: str | None) -> Iterator[None]:
    """Store this producer with the jobs that are inserted inside the block. None: they count towards no limit."""
    token = _producer.set(producer)
    try:
        yield
    finally:
        _producer.reset(token)


def current_producer() -> str | None:
    return _producer.get()


def insert_new(using: str, rows: Sequence[NewJob], meanwhile: Callable[[], None] | None = None) -> list[StoredJob]:
    """Insert the jobs whose (topic, key) no live job has. Return the inserted jobs. A past due time becomes now.

    meanwhile   a function that is called while the database executes the statement
    """
    d = dialects.get_dialect(using)
    table, params = d.table(NEW_KINDS, rows)
    sql = f"""
        WITH new (topic, key, at_ms, delay_ms, ttr_ms, body, label, pk, expires_ms, trace, level) AS ({table})
        INSERT INTO delaytasks_job
            (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error,
             subject_label, subject_pk, expires_ms, trace_context, priority, producer)
        SELECT topic, key, {DELAYED}, {new_due(d)}, ttr_ms, {d.as_json("body")}, {d.now}, 0, 0, '', '',
            NULLIF(label, ''), NULLIF(pk, ''), expires_ms, NULLIF(trace, ''), level, CAST(%s AS text)
        FROM new
        WHERE true
        ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
        RETURNING id, topic, key, {d.to_ms("due_at")}, {d.to_ms("created_at")}, priority"""
    return list(map(StoredJob._make, dialects.run(using, sql, [*params, current_producer()], meanwhile)))


def new_due(d: dialects.Dialect) -> str:
    return f"""CASE WHEN delay_ms IS NULL THEN {d.greatest}({d.from_ms("at_ms")}, {d.now})
            ELSE {d.plus_ms(d.now, "delay_ms")} END"""


def replace_delayed(using: str, rows: Mapping[int, NewJob], *, earlier: bool = False) -> list[StoredJob]:
    """delayed/ready → delayed with a new due time, TTR, expiry, priority and body. Return the jobs that were replaced.

    rows      {id: new values}; reserved and ended jobs are not changed. A job whose new values have no subject keeps
              its subject; its trace context is always the new one
    earlier   a job that is due earlier keeps its due time
    """
    d = dialects.get_dialect(using)
    due = f"{d.least}(due_at, {new_due(d)})" if earlier else new_due(d)
    changes = f"""failures = 0, error = '', ttr_ms = new_ttr_ms, body = {d.as_json("new_body")}, due_at = {due},
            expires_ms = new_expires_ms, polls = 0, replaced_at = {d.now}, {clear_next_run_sql()}"""
    return _rewrite(using, rows, DELAYED, changes, "due_at")


def store_next_runs(using: str, rows: Mapping[int, NewJob]) -> list[StoredJob]:
    """reserved → reserved: store the next runs of running jobs. Return the changed jobs with the new due times.

    rows   {id: values of the next run}; jobs that are not reserved are not changed. The last call wins. Trace context
           and priority replace those of the row at once, because the running attempt has already read them
    """
    d = dialects.get_dialect(using)
    changes = f"""again = true, again_due_at = {new_due(d)}, again_ttr_ms = new_ttr_ms,
            again_expires_ms = new_expires_ms, again_body = {d.as_json("new_body")}"""
    return _rewrite(using, rows, RESERVED, changes, "again_due_at")


def _rewrite(using: str, rows: Mapping[int, NewJob], state: int, changes: str, due: str) -> list[StoredJob]:
    """Change the jobs that are in this state, in id order. Return them with the column `due`."""
    d = dialects.get_dialect(using)
    values = [(i, *row[2:]) for i, row in rows.items()]
    table, params = d.table(["bigint", *NEW_KINDS[2:]], values)
    sql = f"""
        WITH new_values (job_id, at_ms, delay_ms, new_ttr_ms, new_body, label, pk, new_expires_ms, trace, level)
            AS ({table}),
        locked AS MATERIALIZED (
            SELECT new_values.* FROM delaytasks_job JOIN new_values ON id = job_id
            WHERE state = {state} ORDER BY id {d.lock and d.lock + " OF delaytasks_job"})
        UPDATE delaytasks_job SET {changes}, subject_label = coalesce(NULLIF(label, ''), subject_label),
            subject_pk = coalesce(NULLIF(pk, ''), subject_pk), trace_context = NULLIF(trace, ''),
            priority = level
        FROM locked WHERE id = job_id AND state = {state}
        RETURNING id, topic, key, {d.to_ms(due)}, {d.to_ms(d.now)}, priority"""
    return [StoredJob(*row) for row in dialects.run(using, sql, params)]
