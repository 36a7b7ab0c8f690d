"""Statements that change the jobs of many callers at once, with an answer for each of them.

The HTTP API uses them to serve the concurrent requests of one process together (api/batching/). The statements of
transitions succeed or fail as a whole; these report for each row what was done. The rules are the same: each row is
guarded by the state before, and rows are locked in one order.
"""

import enum
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections, transaction

from ..states import Outcome
from . import dialects, transitions
from .transitions import (
    DELAYED,
    RESERVED,
    AttemptRow,
    Ended,
    Ending,
    Event,
    JobRow,
    NewJob,
    StoredJob,
)

logger = logging.getLogger("delaytasks")


class NewRow(NamedTuple):
    """A job to add.

    mode        what to do if its topic and key are live: "keep" keeps the live job; "again" keeps it if it waits, and
                lets it run once more if it is running; any other mode refuses the row
    elsewhere   refuse the row if its key is live in one of these topics, apart from its own topic; None: do not check
    """

    job: NewJob
    mode: str
    actor: str
    producer: str = ""  # the API token whose limit of live jobs counts the job; "": none
    elsewhere: frozenset[str] | None = None


class Topics(NamedTuple):
    """The topics that this process knows: those with a handler or a setting, and those of the rows that it has read.

    `elsewhere` of each NewRow was chosen from these topics. If the table has a further topic, rows with `elsewhere`
    are not inserted, because that topic may belong to `elsewhere` too.
    """

    handled: Collection[str]
    stored: Collection[str] = ()


class Done(enum.StrEnum):
    CREATED = "created"
    KEPT = "kept"
    AGAIN = "again"  # the live job is running, and runs once more
    REFUSED = "refused"  # the key is live, here or elsewhere, or the topic is unknown
    REPEAT = "repeat"  # nothing was done, because the live job has just ended or the table has a new topic: try again


class Added(NamedTuple):
    """The result for one NewRow. The ids and times are 0 if there is no job."""

    done: Done
    id: int = 0
    due_ms: int = 0  # with AGAIN, the due time of the next run
    stored_ms: int = 0  # the time of the statement


def begin(using: str, wait_ms: int) -> None:
    """Until the transaction ends, limit the wait for each lock, and plan each statement anew. PostgreSQL only."""
    if connections[using].vendor == "postgresql":
        dialects.run(using, *_first_statement(wait_ms, ()))


def _first_statement(wait_ms: int, keys: Iterable[str]) -> tuple[str, list[Any]]:
    """Return the first statement of a group: it limits the waits for locks, and locks keys as dialects.lock_name().

    Both last until the transaction ends. The keys are locked in one order, so that groups cannot deadlock. PostgreSQL
    then plans each statement anew, because a plan for one size of group or table is wrong for another. Not for SQLite,
    which has one writer at a time.
    """
    # The array always has an element, and the condition is volatile: the settings apply before the first lock is taken.
    sql = """
        SELECT count(CASE WHEN number <> 0 THEN pg_advisory_xact_lock(number) END) FROM (
            SELECT DISTINCT CASE WHEN name = '' THEN 0 ELSE hashtextextended(name, 5307) END AS number
            FROM unnest(CAST(%s AS text[])) AS name ORDER BY number) AS numbers
        WHERE set_config('lock_timeout', %s, true) <> set_config('plan_cache_mode', 'force_custom_plan', true)"""
    return sql, [dialects.array("text", ["", *keys]), f"{wait_ms}ms"]


# -- adds ---------------------------------------------------------------------------------------


StoreNextRuns = Callable[[str, Mapping[int, NewRow]], list[StoredJob]]


def add_each(
    using: str, rows: Sequence[NewRow], topics: Topics, wait_ms: int, store_next_runs: StoreNextRuns
) -> tuple[list[Added], set[str]]:
    """Insert, keep, run again or refuse each row, with its event. Return the results in the order of `rows`.

    wait_ms       the longest wait for each lock (PostgreSQL)
    store_next_runs   called in a transaction with {id of a running job: row}; stores the next runs and returns them

    Also returns the topics of the table that are not in `topics`. Each (topic, key) must be in `rows` only once. The
    new jobs are committed together, in one round trip on PostgreSQL; if that fails, nothing is done. If some keys are
    live, a second transaction finds their jobs and stores the next runs of those that are running.
    """
    if not rows:
        return [], set()
    one_lock_order = sorted(rows, key=topic_and_key)
    checked = _insert(using, one_lock_order, topics, wait_ms)
    missed = [
        row for row in one_lock_order if (found := checked[topic_and_key(row)]).is_allowed and found.stored is None
    ]
    live, next_runs = _find_missed(using, missed, wait_ms, store_next_runs) if missed else ({}, {})
    has_refused = any(row.elsewhere is not None and not checked[topic_and_key(row)].is_allowed for row in rows)
    new_topics = _find_new_topics(using, topics) if has_refused else set()
    return [_added(row, checked[topic_and_key(row)], live, next_runs, bool(new_topics)) for row in rows], new_topics


def topic_and_key(row: NewRow) -> tuple[str, str]:
    return row.job.topic, row.job.key


class _Checked(NamedTuple):
    is_allowed: bool
    stored: StoredJob | None  # the inserted job; None if the row was not allowed or its key is live


_NEW_KINDS = ["int", "boolean", *transitions.NEW_KINDS, "text", "text"]
_NOBODY = -1  # the viewer of a row without `elsewhere`


def _checks(d: dialects.Dialect, rows: Sequence[NewRow], topics: Topics) -> tuple[str, list[Any]]:
    """Return the SQL of CTEs, and its parameters. The last one, `checked`, has each row with the column is_allowed.

    Each key is looked up in the index of live keys. With a join, PostgreSQL would read the whole table.
    """
    viewers: dict[frozenset[str] | None, int] = {None: _NOBODY}
    for row in rows:
        viewers.setdefault(row.elsewhere, len(viewers))
    handled = frozenset(topics.handled)
    new = [(viewers[row.elsewhere], row.job.topic in handled, *row.job, row.actor, row.producer) for row in rows]
    new_rows, params = d.table(_NEW_KINDS, new)
    columns = "viewer, handled, topic, key, at_ms, delay_ms, ttr_ms, body, label, pk, expires_ms, trace, level, actor"
    is_known = "(handled OR EXISTS (SELECT 1 FROM delaytasks_topic AS stored WHERE stored.name = new.topic))"
    sql = f"WITH new ({columns}, producer) AS ({new_rows})"
    if len(viewers) == 1:
        return f"{sql}, checked AS (SELECT new.*, {is_known} AS is_allowed FROM new)", params
    seen_rows, seen = d.table(["int", "text"], [(n, name) for names, n in viewers.items() for name in names or [""]])
    new_topics, known = _new_topics(d, topics)
    sql += f""", seen (viewer, name) AS ({seen_rows}),
        checked AS (SELECT new.*, {is_known} AND (viewer = {_NOBODY} OR (
            NOT EXISTS ({new_topics})
            AND (SELECT 1 FROM seen WHERE seen.viewer = new.viewer AND seen.name <> new.topic
                 AND (SELECT id FROM delaytasks_job AS live WHERE live.ended_at IS NULL
                      AND live.topic = seen.name AND live.key = new.key) IS NOT NULL LIMIT 1) IS NULL
        )) AS is_allowed FROM new)"""
    return sql, [*params, *seen, *known]


def _new_topics(d: dialects.Dialect, topics: Topics) -> tuple[str, list[Any]]:
    known, params = d.table(["text"], [[name] for name in ("", *topics.handled, *topics.stored)])
    return f"SELECT stored.name FROM delaytasks_topic AS stored WHERE stored.name NOT IN ({known})", params


def _find_new_topics(using: str, topics: Topics) -> set[str]:
    """Return the topics of the table that are not in `topics`.

    Never raises, because rows are committed already: after an error the result is empty.
    """
    try:
        return {name for (name,) in dialects.run(using, *_new_topics(dialects.get_dialect(using), topics))}
    except (DatabaseError, InterfaceError) as error:
        logger.debug("The topics could not be read: %r", error)
        return set()


def _insert(using: str, rows: Sequence[NewRow], topics: Topics, wait_ms: int) -> dict[tuple[str, str], _Checked]:
    """Insert the allowed rows whose (topic, key) is not live, with their events, in one transaction."""
    d = dialects.get_dialect(using)
    if not d.writes_in_with:
        return _insert_in_steps(using, d, rows, topics)
    checks, params = _checks(d, rows, topics)
    sql = f"""{checks},
        inserted AS (
            INSERT INTO delaytasks_job
                (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error,
                 subject_label, subject_pk, expires_ms, trace_context, priority, producer)
            SELECT topic, key, {DELAYED}, {transitions.new_due(d)}, ttr_ms, {d.as_json("body")}, {d.now}, 0, 0, '', '',
                NULLIF(label, ''), NULLIF(pk, ''), expires_ms, NULLIF(trace, ''), level,
                NULLIF(producer, '')
            FROM checked WHERE is_allowed
            ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING
            RETURNING id, topic, key, {d.to_ms("due_at")} AS due_ms, {d.to_ms("created_at")} AS now_ms, priority),
        recorded AS (
            INSERT INTO delaytasks_jobevent ({transitions.EVENT_COLUMNS})
            SELECT id, '{Outcome.SCHEDULED}', 0, due_ms, now_ms, NULL, due_ms, '', actor, '', ''
            FROM inserted JOIN new USING (topic, key) WHERE actor <> '')
        SELECT is_allowed, id, topic, key, due_ms, now_ms, priority
        FROM checked LEFT JOIN inserted USING (topic, key)"""
    keys = sorted({row.job.key for row in rows if row.elsewhere is not None})
    _, found = dialects.run_together(using, [_first_statement(wait_ms, keys), (sql, params)])
    return {(row[2], row[3]): _Checked(row[0], StoredJob(*row[1:]) if row[1] else None) for row in found}


def _insert_in_steps(
    using: str, d: dialects.Dialect, rows: Sequence[NewRow], topics: Topics
) -> dict[tuple[str, str], _Checked]:
    checks, params = _checks(d, rows, topics)
    with transaction.atomic(using):
        found = dialects.run(using, f"{checks} SELECT topic, key, is_allowed FROM checked", params)
        allowed = {(topic, key) for topic, key, is_allowed in found if is_allowed}
        stored: dict[tuple[str, str], StoredJob] = {}
        for producer in sorted({row.producer for row in rows}):
            jobs = [row.job for row in rows if row.producer == producer and topic_and_key(row) in allowed]
            with transitions.produced_by(producer or None):
                stored |= {(s.topic, s.key): s for s in (transitions.insert_new(using, jobs) if jobs else [])}
        actors = {topic_and_key(row): row.actor for row in rows}
        transitions.record(using, [_scheduled(s, actors[name]) for name, s in stored.items() if actors[name]])
    return {topic_and_key(row): _Checked(topic_and_key(row) in allowed, stored.get(topic_and_key(row))) for row in rows}


def _scheduled(job: StoredJob, actor: str) -> Event:
    return Event(job.id, Outcome.SCHEDULED, 0, job.due_ms, job.stored_ms, None, job.due_ms, "", actor)


Live = dict[tuple[str, str], JobRow]


def _find_missed(
    using: str, rows: Sequence[NewRow], wait_ms: int, store_next_runs: StoreNextRuns
) -> tuple[Live | None, dict[int, StoredJob]]:
    """Return the live jobs because of which these rows were not inserted, and the next runs that were stored, by id.

    Never raises, because other rows are committed already. After an error it returns (None, {}) and has stored nothing.
    """
    try:
        with transaction.atomic(using):
            begin(using, wait_ms)
            live = transitions.find_live(using, [topic_and_key(row) for row in rows])
            return live, _store_next_runs(using, rows, live, store_next_runs)
    except (DatabaseError, InterfaceError) as error:
        logger.debug("%s adds must be repeated one by one: %r", len(rows), error)
        return None, {}


def _store_next_runs(
    using: str, rows: Sequence[NewRow], live: Mapping[tuple[str, str], JobRow], store_next_runs: StoreNextRuns
) -> dict[int, StoredJob]:
    """Store the next runs of running jobs, with their events. Return them by id."""
    running = {
        job.id: row
        for row in rows
        if row.mode == "again" and (job := live.get(topic_and_key(row))) is not None and job.state == RESERVED
    }
    if not running:
        return {}
    stored = store_next_runs(using, running)
    transitions.record(using, [_scheduled_again(s, live[s.topic, s.key], running[s.id].actor) for s in stored])
    return {each.id: each for each in stored}


def _scheduled_again(next_run: StoredJob, job: JobRow, actor: str) -> Event:
    return _scheduled(next_run, actor)._replace(attempt=job.attempt)


def _added(
    row: NewRow, checked: _Checked, live: Live | None, next_runs: Mapping[int, StoredJob], has_new_topics: bool
) -> Added:
    if checked.stored is not None:
        return Added(Done.CREATED, checked.stored.id, checked.stored.due_ms, checked.stored.stored_ms)
    if not checked.is_allowed:
        return Added(Done.REPEAT if has_new_topics and row.elsewhere is not None else Done.REFUSED)
    if live is None:
        return Added(Done.REFUSED)
    job = live.get(topic_and_key(row))
    if job is None:
        return Added(Done.REPEAT)
    if row.mode == "again" and job.state == RESERVED:
        stored = next_runs.get(job.id)
        return Added(Done.AGAIN, stored.id, stored.due_ms, stored.stored_ms) if stored else Added(Done.REPEAT)
    return Added(Done.KEPT if row.mode in ("keep", "again") else Done.REFUSED, job.id, job.due_ms)


# -- attempts -----------------------------------------------------------------------------------


def find_attempts(using: str, ids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> list[AttemptRow]:
    """Return the jobs with these ids, and the live ones with these pairs (topic, key), with their latest attempts."""
    d = dialects.get_dialect(using)
    statements = [(transitions.attempts_sql(d, where), params) for where, params in _conditions(d, ids, pairs)]
    rows = itertools.chain(*dialects.run_together(using, statements))
    return list({row[0]: transitions.to_attempt(row) for row in rows}.values())


def _conditions(d: dialects.Dialect, ids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> Iterable[Any]:
    if ids:
        yield d.among("id", ids)
    if pairs:
        yield transitions.is_live(d, pairs)


def end_each(using: str, endings: Sequence[Ending], wait_ms: int) -> dict[int, Ended]:
    """reserved → finished, with an event for each, in a transaction. Return {id: Ended}.

    wait_ms   the longest wait for each lock (PostgreSQL)

    An id is missing if the attempt no longer holds its job, or if the job was scheduled again: its next run needs
    another statement. On PostgreSQL this is one round trip.
    """
    d = dialects.get_dialect(using)
    if not d.writes_in_with:
        with transaction.atomic(using):
            return transitions.end_if_held(using, endings, in_time=True, not_again=True)
    _, rows = dialects.run_together(using, [_first_statement(wait_ms, ()), transitions.end_statement(d, endings)])
    return {row[0]: Ended(*row[1:]) for row in rows}


def assign_workers(using: str, workers: Mapping[int, str]) -> None:
    """Store the worker's name with each of these jobs, {id: name}, which the caller's transaction has just claimed."""
    d = dialects.get_dialect(using)
    table, params = d.table(["bigint", "text"], sorted(workers.items()))
    sql = f"""
        WITH claimed (job_id, holder) AS ({table})
        UPDATE delaytasks_job SET worker = holder FROM claimed WHERE id = job_id"""
    dialects.run(using, sql, params)
